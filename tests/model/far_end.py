"""The far end: what executes the operations that arrive, and how a trace shows them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

from fastdedup import UnavailableError
from fastdedup.protocol.operations import Code, Op, ReadOp, Reply, Stored, Verdict
from fastdedup.stores.memory import MemoryStore


class FarEnd(Protocol):
    """What executes the operations: the memory store, or an executable contract."""

    def apply(self, op: Op) -> Reply:
        """Execute one operation now."""

    def records(self) -> Iterable[tuple[bytes, Stored]]:
        """Return each store key and its record as it is now."""

    def on_freed(self, tell: Callable[[bytes], None]) -> None:
        """Call `tell` for each watched key that is freed or settled."""


class MemoryFarEnd:
    """The memory store as the far end."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._store = MemoryStore(clock=clock)

    def apply(self, op: Op) -> Reply:
        try:
            return self._store.apply(op)
        except UnavailableError as error:
            return error

    def records(self) -> Iterable[tuple[bytes, Stored]]:
        for wire, _ in self._store:
            found = self._store.apply(ReadOp(wire))
            if isinstance(found, Stored):
                yield wire, found

    def on_freed(self, tell: Callable[[bytes], None]) -> None:
        self._store._listeners.append(tell)


class Packet(NamedTuple):
    """What was sent at once."""

    number: int
    verb: str
    ops: Sequence[Op]

    def __str__(self) -> str:
        named = [f"{str(op.wire)[2:-1]} {_short(getattr(op, 'owner', b''))}".strip() for op in self.ops]
        return f"packet {self.number} {self.verb} {', '.join(named)}".strip()


def describe(reply: Reply) -> str:
    """Return a reply as a trace shows it."""
    if isinstance(reply, Verdict):
        return f"{reply.outcome}(fence {reply.fence}, {reply.left_ms} ms left)"
    if isinstance(reply, Stored):
        return f"record({reply.state}, owner {_short(reply.owner)}, fence {reply.fence}, {reply.left_ms} ms left)"
    if isinstance(reply, Code):
        return reply.name
    return repr(reply) if isinstance(reply, Exception) else type(reply).__name__


def _short(owner: bytes) -> str:
    return owner.hex()[2:8]
