"""What answers when the store cannot: a policy, chosen by the user, for each namespace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from ..errors import UnavailableError
from ..events import Conflict, Unreplayed
from ..protocol.operations import Adopted, AdoptOp, Code, ForgetOp, Op, ReadOp, Reply, Stored

LineOp = AdoptOp | ReadOp | ForgetOp
"""What a journal asks of the store: to adopt a record; of a forgotten key to be shown it, and to remove it."""


@runtime_checkable
class FallbackPolicy(Protocol):
    """Answers an operation in place of the store, or says that nobody can.

    A policy must never answer as if the check had been made: it either keeps records of its own,
    or raises. It is called in the event loop and must not block. What it is asked, and what it may
    answer, stands in `fastdedup.protocol.operations`: operations (`ClaimOp`, `SettleOp`, …) and replies
    (`Verdict` for a claim, `Moved` for a transition, a `Code` for most else), with `degraded=True`
    wherever there is such a field.

    What a policy answers stays with it, unless it is a `JournalledPolicy`, as `LocalLRU` is. So the
    simplest one of your own refuses what `LocalLRU` shall not answer; here, all but premium customers::

        class PremiumOnly(LocalLRU):
            def answer(self, op: Op, error: UnavailableError) -> Reply:
                if b"premium" not in op.wire:      # the store's key: namespace, kind, the user's key
                    raise UnavailableError("only premium orders for now", retry_after=5.0)
                return super().answer(op, error)

        dedup = Dedup("redis://localhost:6379/0", on_unavailable=PremiumOnly(maxsize=1_000))
    """

    def answer(self, op: Op, error: UnavailableError) -> Reply:
        """Return the reply to `op`, or raise UnavailableError. `error` says why the store did not."""
        ...

    def holds(self, wire: bytes) -> bool:
        """True while this policy keeps a record that the store does not know: then it goes on answering for it."""
        ...


@runtime_checkable
class JournalledPolicy(FallbackPolicy, Protocol):
    """An optional ability of a policy: to bring what it answered into the store, once that is back.

    The gateway then tells it what the store answers (`saw`), and when the store is back takes the
    journal's lines (`next_lines`), has each adopted, and reports (`adopted`, or `put_back`).
    """

    def saw(self, op: Op, reply: Reply) -> None:
        """The store has answered. Must not raise."""
        ...

    def next_lines(self, most: int) -> Sequence[LineOp]:
        """Take what the store is to be asked next, the oldest first; empty where nothing waits."""
        ...

    def adopted(self, line: LineOp, reply: Adopted | Stored | Code) -> Conflict | Unreplayed | None:
        """The store has answered: return what was lost, if anything."""
        ...

    def put_back(self, line: LineOp, *, asked: bool) -> Unreplayed | None:
        """The store did not answer, or was not even asked: the line is still to be adopted."""
        ...

    def give_up(self) -> Sequence[Unreplayed]:
        """Return what has not been adopted: the gate is closing."""
        ...

    @property
    def lines(self) -> int:
        """How many lines are yet to be adopted."""
        ...
