"""A kind of request: its address, its models, its handler, and its problems. Batches wait here for their turn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Annotated, Any, Final

from pydantic import BaseModel, Field, TypeAdapter

from ...web.problems import ProblemType
from ..access import Access
from ..namespaces import Namespaces
from ..turns import weight_of
from ..wire_verbs import VERBS
from . import models
from .batch import BatchRequest, read
from .request import Gone
from .strict import parse_once
from .verbs import Client, Handler, HttpAnswer

EACH = "each"
"""The verb of a batch: each of its operations asks the rules for itself."""


# The turn of a batch: its body is parsed when the batches of all clients leave memory for it


class UnreadBatch:
    """The body of a batch, which is parsed when its turn comes: parsed, it takes up to 50 times the memory.

    Args:
        read: parses and checks a body.
        most: how many requests a batch may have.
        body: the body.
    """

    def __init__(self, read: Callable[[bytes], list[Any]], most: int, body: bytes) -> None:
        self.read = read
        self.body = body
        escaped = b"\\" in body  # a name that is written by escapes is not found
        self.weight = weight_of(most if escaped else min(most, body.count(b'"op"')), len(body))
        self.may_wait = escaped or b'"wait"' in body


async def in_turn(namespaces: Namespaces, unread: UnreadBatch, client: Client) -> HttpAnswer:
    """`POST /v1/batch`: wait for the batches of other clients if these take much memory."""
    gate = namespaces.turns.batches(waiting=unread.may_wait)
    await gate.enter(unread.weight, len(unread.body))
    try:
        if client.request.gone:
            raise Gone
        return await BatchRequest(namespaces, unread.read(unread.body), client).run()
    finally:
        gate.leave(unread.weight)


# The requests about ledgers, whose names stand in the path

PREFIX: Final = "/v1/ledgers/"
_PATHS: Final = frozenset(verb.path for verb in VERBS if verb.of_ledger)


def route_path(path: str) -> str:
    """Return the path of the route that answers this path."""
    if not path.startswith(PREFIX):
        return path
    name, slash, verb = path.removeprefix(PREFIX).partition("/")
    route = f"{PREFIX}{{name}}{slash}{verb}"
    return route if name and route in _PATHS else path


def named(handler: Handler) -> Handler:
    """Return a handler that adds the ledger's name to the request."""

    async def handle(namespaces: Namespaces, ask: Any, client: Client) -> HttpAnswer:
        name = client.request.path.removeprefix(PREFIX).partition("/")[0]
        return await handler(namespaces, SimpleNamespace(ledger=name, namespace=None, **dict(ask)), client)

    return handle


# The routes


@dataclass(frozen=True, slots=True)
class HttpRoute:
    """A kind of request.

    Attributes:
        asks: the model of its body or of its query; a list for a batch.
        answers: the models of its successful answers, by status; None stands for text.
        problems: its problems beside those that every request may have.
        shaped: the model of its problems that carry the claim's answer.
        verb: what it does, in the words of `access.VERBS`; "" for what every client may do.
    """

    method: str
    path: str
    handler: Handler
    summary: str
    verb: str
    asks: Any = None
    answers: tuple[tuple[int, Any], ...] = ()
    problems: tuple[ProblemType, ...] = ()
    shaped: type[BaseModel] = models.Problem

    def body(self, most: int) -> Any:
        """Return the type of its body; a batch has at most `most` operations."""
        return Annotated[self.asks, Field(max_length=most)] if self.asks is models.Items else self.asks

    def parser(self, most: int) -> Callable[[bytes], Any] | None:
        """Return the function that parses and checks its body, or None if it has no body."""
        if self.method != "POST":
            return None
        check = TypeAdapter(self.body(most)).validator.validate_json
        if self.asks is models.Items:
            return partial(UnreadBatch, partial(read, check, most), most)
        return partial(parse_once, check)

    def under(self, access: Access) -> HttpRoute:
        """Return this route with a handler that asks the socket's rules first, if the socket has rules for it."""
        if not self.verb or self.verb == EACH or not access.judges(self.verb):
            return self
        return replace(self, handler=partial(_ask_first, access, self.verb, self.handler))


async def _ask_first(
    access: Access, verb: str, handler: Handler, namespaces: Namespaces, ask: Any, client: Client
) -> HttpAnswer:
    access.admit(verb)
    access.pending += 1
    try:
        return await handler(namespaces, ask, client)
    finally:
        access.pending -= 1
