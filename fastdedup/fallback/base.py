"""The policy that answers for a namespace while the store cannot. The user chooses it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable
from weakref import WeakSet

from ..errors import UnavailableError
from ..events import Conflict, Unreplayed
from ..kernel.codes import Code
from ..kernel.operations import AdoptOp, ForgetOp, Op, ReadOp, Reply
from ..kernel.records import Stored
from ..kernel.replies import Adopted, StoredForm
from ..ledger.operations import IdOp, LedgerOp

JournalOp = AdoptOp | ReadOp | ForgetOp | LedgerOp | IdOp
"""An operation that a journal sends to the store: adopt a record; or read, then remove, a forgotten key's record; or
read a ledger's form, then remember, look for or remove an id."""


@runtime_checkable
class FallbackPolicy(Protocol):
    """Answers an operation in place of the store, or refuses it.

    A policy must never answer as if the check had been made: it either keeps records of its own,
    or raises. The event loop calls it, so it must not block. `fastdedup.kernel.operations` has the
    operations that it gets (`ClaimOp`, `SettleOp`, …) and the replies that it may give: `Verdict` to a claim,
    `TransitionReply` to a transition, a `Code` to most others. A reply that has a field `degraded` must set it to
    True.

    The store never learns a policy's answers, unless the policy is a `JournalledPolicy`, such as `LocalLRU`.
    So the simplest policy of your own refuses the operations that `LocalLRU` must not answer. This one takes claims
    of premium customers only::

        class PremiumOnly(LocalLRU):
            def answer(self, op: Op, error: UnavailableError) -> Reply:
                if isinstance(op, ClaimOp) and "premium" not in op.key:  # `op.wire` may be a digest
                    raise UnavailableError("only premium orders for now", retry_after=5.0)
                return super().answer(op, error)

        dedup = Dedup("redis://localhost:6379/0", on_unavailable=PremiumOnly(maxsize=1_000))
    """

    def answer(self, op: Op, error: UnavailableError) -> Reply:
        """Return the reply to `op`, or raise UnavailableError. `error` says why the store did not answer."""
        ...

    def holds(self, wire: bytes) -> bool:
        """True while this policy keeps a record that the store does not know: the policy goes on answering for it."""
        ...


@runtime_checkable
class JournalledPolicy(FallbackPolicy, Protocol):
    """An optional ability of a policy: to write its records into the store when the store is back.

    The gate gives the policy each reply of the store (`saw`). When the store is back, the gate takes operations
    from the journal (`next_operations`), sends them, and gives the policy the outcome (`adopted` or `put_back`).

    The journal's lines are in lanes, one for each part of the store, such as the nodes of a Cluster: the refusals of
    one part do not hold up the lines of another part. A lane's name is what `lane_of` returns for a key in it.
    """

    def saw(self, op: Op, reply: Reply) -> None:
        """Note the store's reply to an operation. It must not raise."""
        ...

    def lanes(self, lane_of: Callable[[bytes], bytes]) -> Sequence[bytes]:
        """Sort the lines that are new into their lanes; return the names of the lanes that have lines."""
        ...

    def next_operations(self, most: int, lane: bytes) -> Sequence[JournalOp]:
        """Return at most `most` operations of a lane, the oldest first; empty if no line waits there."""
        ...

    def adopted(
        self, op: JournalOp, reply: Adopted | Stored | StoredForm | Code
    ) -> Conflict | Unreplayed | None:
        """Take the store's reply; return an event if an owner has lost something."""
        ...

    def put_back(self, op: JournalOp, *, asked: bool, lane: bytes) -> Unreplayed | None:
        """Keep an operation that the store did not answer, at the end of a lane. `asked`: it was sent."""
        ...

    def give_up(self) -> Sequence[Unreplayed]:
        """Return an event for each record that the store never got, because the gate is closing."""
        ...

    @property
    def lines(self) -> int:
        """The number of lines in the journal: keys whose records the store has yet to get."""
        ...


@runtime_checkable
class OrphanPolicy(Protocol):
    """An optional ability of a journal: to know claims that were sent, and that no caller waits for."""

    def note_orphan(self, wire: bytes, owner: bytes) -> None:
        """Note that the store may have given this owner the key, and that no caller uses it. It must not raise."""
        ...


@runtime_checkable
class IdPolicy(Protocol):
    """An optional ability of a policy: to answer for the ids of ledgers."""

    def holds_id(self, op: IdOp) -> bool:
        """Do the same as `FallbackPolicy.holds`, for the operation's one id of a bucket."""
        ...

    def took_back(self, op: IdOp) -> None:
        """Forget the id that a call remembered here, because the call ends in an error. It must not raise."""
        ...


class OneLoopPolicy:
    """A policy that is refused if gates in two event loops use it at a time.

    A base class and no Protocol, so that no attribute of a user's own policy is taken for this one's.
    """

    def __init__(self) -> None:
        self.connections: WeakSet[Any] = WeakSet()
        """The connections of the gates that were opened with it. One that is closed refuses no other loop."""


@runtime_checkable
class TimedPolicy(Protocol):
    """An optional ability of a policy: to give fences by the store's clock instead of this process's own."""

    def hear_time(self, time_us: int) -> None:
        """Note that the store's clock shows `time_us` (microseconds since 1970) now. It must not raise."""
        ...
