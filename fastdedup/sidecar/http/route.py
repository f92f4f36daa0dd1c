"""A kind of request: its address, its models, its handler, and its problems."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

from pydantic import BaseModel, Field, TypeAdapter

from ...web.problems import ProblemType
from ..access import Access
from ..namespaces import Namespaces
from . import models
from .batch import read
from .batch_turn import UnreadBatch
from .names import parse_once
from .verbs import Client, Handler, HttpAnswer

EACH = "each"
"""The verb of a batch: each of its operations asks the rules for itself."""


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
