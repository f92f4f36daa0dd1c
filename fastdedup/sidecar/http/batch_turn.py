"""The turn of a `/v1/batch`: its body is parsed when the batches of all clients leave memory for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..namespaces import Namespaces
from ..turns import weight_of
from .batch import batch
from .request import Gone
from .verbs import Client, HttpAnswer


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
        return await batch(namespaces, unread.read(unread.body), client)
    finally:
        gate.leave(unread.weight)
