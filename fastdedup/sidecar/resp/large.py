"""The large replies of one RESP connection: each is built when it is written, and waits in memory within a limit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..reply_memory import ReplyMemory
from .errors import error_reply
from .reply_places import ReplyPlace

Build = Callable[[], bytes]
_AHEAD = 1024 * 1024
"""The bytes of replies that are kept before their turn has come; further ones are let go, and asked for again."""


class LargeReply:
    """A reply that is not built yet.

    Attributes:
        build: returns the reply.
        payload: what `build` keeps in memory; None once that was let go.
        again: runs the command anew, if `payload` was let go.
    """

    __slots__ = ("again", "build", "payload")

    def __init__(self, build: Build, payload: bytes, again: Callable[[], object] | None) -> None:
        self.build: Build | None = build
        self.payload: bytes | None = payload
        self.again = again


class LargeReplies:
    """The large replies that wait for their turn, and what they keep in memory.

    A reply that has no room is let go, and its command is run again when its turn has come. A command whose reply is
    large has changed nothing, so that is safe.

    Args:
        memory: the memory of all connections.
        most: the bytes that this connection may keep.
    """

    __slots__ = ("_memory", "_most", "_sharers", "held", "waiting")

    def __init__(self, memory: ReplyMemory, most: int) -> None:
        self._memory = memory
        self._most = most
        # Mutable: the replies, by their command's place; the bytes that they keep; for each payload the number of
        # replies that share it.
        self.waiting: dict[Any, LargeReply] = {}
        self.held = 0
        self._sharers: dict[int, int] = {}

    def put(self, place: Any, reply: LargeReply, *, first: bool) -> bool:
        """Keep a reply, or let it go until its turn comes.

        Return False if its turn has come and all connections together have no room for it, even after the clients
        that were cut give their bytes back.
        """
        if not self._keep(reply, first):
            if first and not self._memory.is_clearing:
                return False
            reply.build = reply.payload = None
        self.waiting[place] = reply
        return True

    def build(self, place: ReplyPlace) -> bool:
        """Give a place its large reply, because its turn has come; return False if the reply is not there yet.

        A payload that further replies share stays in memory beside the built reply. If there is no room for both, the
        further replies are let go.
        """
        large = self.waiting.pop(place, None)
        if large is None:
            return False
        if (payload := large.payload) is not None:
            self._let_go(payload)
            if id(payload) in self._sharers and not self._memory.has_room(len(payload)):
                self._let_go_of_sharers(payload)
        if large.build is not None:
            place.reply = large.build()
        elif large.again is not None:
            try:
                large.again()
            except Exception as fault:  # noqa: BLE001 -- the client gets every error as a reply
                place.reply = error_reply(fault)
        return place.reply is not None

    def reserve(self, size: int) -> bool:
        """Reserve bytes for a part of a reply; return False if there is no room."""
        if self.held + size > self._most or not self._memory.reserve(size):
            return False
        self.held += size
        return True

    def free(self, size: int) -> None:
        """Give back reserved bytes."""
        self.held -= size
        self._memory.free(size)

    def clear(self) -> None:
        """Let go of every reply: the client has gone."""
        for reply in self.waiting.values():
            if reply.payload is not None:
                self._let_go(reply.payload)
        self.waiting.clear()

    def _keep(self, reply: LargeReply, first: bool) -> bool:
        payload = reply.payload
        assert payload is not None
        number = id(payload)  # `reply` keeps it, so no other object gets this number meanwhile
        size = len(payload)
        if number not in self._sharers:
            too_far = not first and self.held + size > min(_AHEAD, self._most)
            if reply.again is None:  # it cannot be had a second time
                self._memory.take(size)
            elif too_far or not self._memory.reserve(size, ahead=not first):
                return False
            self.held += size
        self._sharers[number] = self._sharers.get(number, 0) + 1
        return True

    def _let_go(self, payload: bytes) -> None:
        number = id(payload)
        self._sharers[number] -= 1
        if not self._sharers[number]:
            del self._sharers[number]
            self.free(len(payload))

    def _let_go_of_sharers(self, payload: bytes) -> None:
        """Let go of the replies that share this payload; their commands are run again."""
        for reply in self.waiting.values():
            if reply.payload is payload:
                reply.build = reply.payload = None
                self._let_go(payload)
