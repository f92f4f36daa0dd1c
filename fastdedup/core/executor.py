"""The one way of an operation from its caller to its verdict: the engine, else the policy; never around the check.

`begin` sends an operation, and `verdict` judges the answer: the policy replaces a store that did not answer, too few
replicas are reported, a value that fastdedup did not write is an error. Code that executes an operation (a
claim, a settling, a token, a lock, a machine, the sidecar) calls these two, or `run`, which is both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from time import perf_counter
from typing import Any, Final, cast

from ..checks import named
from ..errors import ConfigError, DedupError, ShortfallError, UnavailableError, foreign, is_answer
from ..events import KEPT_LOCALLY, Degraded, Shortfall, Unreplayed
from ..fallback.base import FallbackPolicy, IdPolicy, JournalledPolicy, TimedPolicy
from ..fallback.reject import Reject
from ..kernel.codes import Code
from ..kernel.granted import GRANTED, LOOKS, may_be_undone
from ..kernel.keyspace import names_of
from ..kernel.operations import ClaimOp, Op, ReleaseOp, Reply, SettleOp, Verdict, was_accepted
from ..kernel.owners import owner_text
from ..kernel.replies import StoreRefusal, TransitionReply
from ..kernel.verbs import Effect, Verb
from ..ledger.operations import IdOp
from ..tasks import running_loop
from .connection import Connection, Sender
from .connections import Connections
from .counters import verb_of
from .observers import Observers
from .orphans import Orphan
from .settings import Settings

_ENDINGS: Final = (Effect.FREES, Effect.REMOVES)
_FREEING: Final = tuple(verb for verb in Verb if verb.row.effect in _ENDINGS and not verb.row.of_ledger)
_OF_OWNERS: Final = tuple(verb for verb in Verb if verb.row.of_owner)
_GRANTING: Final = tuple(verb for verb in Verb if verb.row.grants)


class HeldLocally(UnavailableError):
    """The policy keeps a record of this key that the store does not know yet, so the store is not asked."""

    def __init__(self) -> None:
        super().__init__(KEPT_LOCALLY)


class StaleLedger(UnavailableError):
    """The known form of a ledger is too old; nothing was done. The caller reads the ledger's form and retries."""

    def __init__(self) -> None:
        super().__init__("what this process knows of the ledger is too old")


class Executor:
    """Executes the operations of one namespace in the store, or if the store does not answer, in the policy.

    Args:
        connections: the gate's.
        settings: the namespace's.

    Raises:
        ConfigError: `on_unavailable` is not a policy.
        UsageError: a gate that is open in another event loop has the same policy.
    """

    def __init__(self, connections: Connections, settings: Settings) -> None:
        policy = settings.on_unavailable
        if isinstance(policy, type) or not isinstance(policy, FallbackPolicy):
            raise ConfigError(
                f"on_unavailable must be a policy such as Reject() or LocalLRU(), got {named(policy)}"
            )
        connections.use_policy(policy)
        self.connections = connections
        """The connections, which all scopes of a gate share."""
        self.observers: Observers = connections.common.observers
        self.settings = settings
        self._name = settings.namespace
        self._policy = policy
        # `Reject` remembers nothing, so the claim's path does not ask it either.
        self._remembers = not isinstance(policy, Reject)
        self._journal = policy if isinstance(policy, JournalledPolicy) else None
        self._timed = policy if isinstance(policy, TimedPolicy) else None
        self._ids = policy if isinstance(policy, IdPolicy) else None

    @property
    def connection(self) -> Connection:
        """The connection of the running event loop. It need not be open."""
        return self.connections.here()

    # To the store

    def begin_claim(self, op: ClaimOp, taker: Any = None) -> asyncio.Future[Reply]:
        """Send a claim; pass its result to `verdict`. Main path of every claim.

        Args:
            op: the claim.
            taker: takes the reply in place of a future, with a future's done, set_result and set_exception.

        Raises:
            UnavailableError: nothing was sent to the store; pass this error to `verdict` too.
            UsageError: not open, closed, or another event loop.
        """
        engine = self.connections.engine or self.connection.running_engine()
        if self._remembers:
            if self._policy.holds(op.wire) or (op.terms.remembered and self._holds(op)):
                raise HeldLocally
            if self._journal is not None:
                op.let_witness(self._heard)
        return engine.claim(op, taker)

    def begin(
        self, op: Op, taker: Any = None, *, degraded: bool = False, granted: bool = False
    ) -> asyncio.Future[Reply]:
        """Send any operation on its own; arguments and errors: see `begin_claim`.

        `degraded`: it belongs to a record that the policy made. If no journal writes that into the store, only
        the policy knows it. `granted`: it concerns a claim of this gate, so it is also sent after closing.
        """
        engine = self.connections.engine
        if engine is not None and running_loop() is engine.loop:
            sender: Sender = engine
        else:
            sender = self.connection.sender(granted=granted)
        if self._remembers:
            self._prepare(op)
        if isinstance(op, ClaimOp):
            self.connection.orphans.leave_to_owner(op)
        if degraded and self._journal is None and not self.connection.behind_a_policy:
            raise HeldLocally
        return sender.submit(op, taker)

    async def run(
        self, op: Op, *, degraded: bool = False, begun: asyncio.Future[Reply] | None = None
    ) -> Reply:
        """Execute one operation that is not a claim: `begin`, then `verdict`, with the errors of both.

        `begun`: what `begin` has returned, if it was called already.
        """
        since = self.now
        try:
            answer = await (self.begin(op, degraded=degraded) if begun is None else begun)
        except UnavailableError as error:
            return self.counted(op, error, since)
        return self.counted(op, answer, since)

    @property
    def now(self) -> float:
        """The time by perf_counter(), if anything counts."""
        return 0.0 if self.observers.counters is None else perf_counter()

    def counted(
        self, op: Op, answer: Reply | BaseException, since: float, *, is_tried_again: bool = False
    ) -> Reply:
        """Return the verdict (see `verdict`), and count it if anything counts.

        Args:
            op: the operation.
            answer: its reply or error.
            since: `now` when the operation began.
            is_tried_again: True if its caller retries after a refusal, and calls `refused` when it gives up.
        """
        counters = self.observers.counters
        if counters is None:
            return self.verdict(op, answer)
        try:
            reply = self.verdict(op, answer)
        except Exception as fault:
            if not (is_tried_again and isinstance(fault, UnavailableError)):
                counters.ended(self, op, fault, since)
            raise
        counters.ended(self, op, reply, since)
        return reply

    def refused(self, op: Op, error: UnavailableError, since: float) -> None:
        """Count an operation that was given up, once for all its tries; `since`: `now` when it began."""
        if self.observers.counters is not None:
            self.observers.counters.ended(self, op, error, since)

    async def claim(self, op: ClaimOp) -> Verdict:
        """Make a claim: `begin_claim`, then `claim_verdict`. If its caller is cancelled, it is released."""
        try:
            answer = await self.begin_claim(op)
        except UnavailableError as error:
            return self.claim_verdict(op, error)
        except asyncio.CancelledError:
            self.abandon(op)
            raise
        return self.claim_verdict(op, answer)

    async def use(self, op: ClaimOp) -> Verdict:
        """Use a token: `claim`, then `until_use_stays`.

        A use that got no answer is undone before its error is raised.
        """
        verdict = await self.until_use_stays(op, await self._used(op))
        if verdict.outcome == "acquired":
            GRANTED.add(op.wire)
        return verdict

    async def until_use_stays(self, op: ClaimOp, verdict: Verdict) -> Verdict:
        """Ask again while a verdict shows a token's use that may still be undone; return the last verdict.

        A use of another process may be undone until it is older than two timeouts. A use that the store has confirmed
        to this process stays.
        """
        look = self._used if op.terms.consumes else self.claim
        for _ in range(LOOKS):
            pause = self._unsettled_seconds(op, verdict)
            if pause <= 0:
                break
            await asyncio.sleep(min(pause, self.connection.timeout / 2))
            again = op.copy()
            verdict = await look(again)
            if verdict.outcome == "acquired":
                self.took(op, again)
        return verdict

    def took(self, call: ClaimOp, look: ClaimOp) -> None:
        """Let a call know what one of its looks knows, which has acquired the key."""
        # An earlier look may be an orphan that has acquired it.
        was_orphan = self.connection.orphans.leave_to_owner(look)
        if hasattr(look, "at"):
            call.at = look.at
        if look.named and hasattr(look, "future"):
            call.future = look.future  # by which the engine knows whether the caller learned of it
        if was_orphan or hasattr(look, "resent"):
            call.resent = True

    async def _used(self, op: ClaimOp) -> Verdict:
        try:
            return await self.claim(op)
        except UnavailableError as error:
            fault = error
        try:
            await self.until_taken_back([op])
            raise fault
        finally:
            del fault  # it refers to this frame

    def _unsettled_seconds(self, op: ClaimOp, verdict: Verdict) -> float:
        """Return the seconds for which the use in a verdict may still be undone; 0 if it stays."""
        connection = self.connection
        if verdict.outcome != "succeeded" or verdict.degraded or not may_be_undone(op.wire, verdict.payload):
            return 0.0
        # A use's fence is its time. If the fence is ahead of the store's clock, the use counts as new.
        age = max(connection.store_time_us - verdict.fence, 0) / 1_000_000
        return 2 * connection.timeout - age if connection.store_time_us else 0.0

    def abandon(self, op: ClaimOp) -> None:
        """Release a claim whose caller was cancelled."""
        self.connection.free_orphan(op)

    def release_later(self, wire: bytes, owner: bytes, *, consumed: bool = False) -> None:
        """Free a claim whose holder will not learn of it, as soon as the store takes the release.

        `consumed`: the claim used a token in one step, which is issued again.
        """
        if consumed:
            GRANTED.discard(wire)
        if self.connection.engine is not None:
            self.connection.keep(self._release(ReleaseOp(wire, owner, 0, consumed=consumed)))

    async def _release(self, op: ReleaseOp) -> None:
        try:
            await self.run(op)
        except ShortfallError:
            raise  # it was done
        except Exception as error:
            if is_answer(error):
                raise
            self.free_if_held(op.wire, op.owner, consumed=op.consumed)

    def free_if_held(self, wire: bytes, owner: bytes, *, consumed: bool = False) -> None:
        """Free a key as soon as the store answers, if this owner holds it: its claim may take effect late.

        If another claim of this owner is under way, the key is left to that claim.
        """
        if not self.connection.is_asked_for(wire, owner):
            self.connection.orphans.put((wire, owner), Orphan(consumed))

    def leave_to_owner(self, wire: bytes, owner: bytes) -> None:
        """Free a key no more: its owner asks for it again, or has it again."""
        self.connection.orphans.pop((wire, owner))

    def took_back(self, op: IdOp) -> None:
        """Let the policy forget an id that is an orphan now: the call that has remembered it ends in an error."""
        if self._ids is not None:
            self._ids.took_back(op)

    async def until_taken_back(self, ops: Sequence[ClaimOp | IdOp]) -> None:
        """Wait until the remains of these calls are undone, for at most one more `timeout`.

        A token's use and an id have no lease. So their caller gets its error only after that: otherwise a message
        that it returns because of the error would be a duplicate of the call that has failed.
        """
        orphans = self.connection.orphans
        if orphans:
            sent = [op.held_key for op in ops if was_accepted(op)]
            await orphans.until_asked(sent, self.connection.timeout)

    def _holds(self, op: Op) -> bool:
        """True if the policy keeps the operation's key, or its id of a ledger's bucket."""
        if self._ids is not None:
            of_id = cast(IdOp | None, op.of_id())
            if of_id is op:
                return self._ids.holds_id(of_id)
            if of_id is not None and self._ids.holds_id(of_id):
                return True
        return self._policy.holds(op.wire)

    def _prepare(self, op: Op) -> None:
        """Ask the policy whether it keeps this key, and let it see the store's reply."""
        if self._holds(op):
            raise HeldLocally
        if self._journal is not None:
            op.let_witness(self._heard)

    def _heard(self, op: Op, reply: Reply) -> Reply:
        """Give the store's reply to the policy; if the policy took the key meanwhile, its own answer counts.

        That is so for a claim or a transition whose caller still waits. If a claim is settled, freed or renewed
        twice, the second answer is the same as the first.
        """
        try:
            return self._witnessed(op, reply)
        except Exception as fault:  # noqa: BLE001 -- its caller gets it; the engine has other answers to deliver
            if isinstance(op, ClaimOp):
                self._give_back(op, reply)
            return cast(Reply, fault)

    def _witnessed(self, op: Op, reply: Reply) -> Reply:
        assert self._journal is not None
        self._journal.saw(op, reply)
        if op.verb not in _GRANTING or op.future.done() or not self._holds(op):
            return reply
        try:
            return self._ask_policy(op, HeldLocally())
        except UnavailableError as refusal:
            return refusal

    # To the verdict

    def verdict(self, op: Op, answer: Reply | BaseException) -> Reply:
        """Return the verdict on an operation, from the store's reply or from the error in its place.

        Raises:
            UnavailableError: neither the store nor the policy answers; `owner` names a claim's own.
            ShortfallError: it was done, but too few replicas confirmed it, and the settings make that an error.
            ForeignRecordError: the key holds a value that fastdedup did not write.
            Exception: `answer`, if it is any other error.
        """
        reply = self.answer(op, answer)
        if type(reply) is Verdict:
            if reply.underreplicated:
                self._fell_short(op, reply)
            return reply
        if type(reply) is TransitionReply:
            if reply.code is Code.FOREIGN:
                raise foreign(self._key_of(op))
            if reply.underreplicated:
                self._fell_short(op)
            return reply
        if reply is Code.UNCONFIRMED:
            self._fell_short(op)
            return Code.OK
        if reply is Code.FOREIGN:
            raise foreign(self._key_of(op))
        return reply

    def claim_verdict(self, op: ClaimOp, answer: Reply | BaseException) -> Verdict:
        """Return the verdict on a claim; see `verdict`."""
        reply = self.verdict(op, answer)
        if type(reply) is not Verdict:
            if reply is Code.STALE:
                raise StaleLedger
            raise foreign(self._key_of(op))
        return reply

    def answer(self, op: Op, answer: Reply | BaseException) -> Reply:
        """Return the store's reply, or the policy's if the store gave none: `verdict` before it is judged.

        This is for the sidecar, whose client judges the reply. It raises the errors of `verdict`, except those that
        `verdict` makes from a reply.
        """
        if isinstance(answer, UnavailableError):
            return self._ask_policy(op, answer)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def _ask_policy(self, op: Op, error: UnavailableError) -> Reply:
        """Let the policy answer, visibly: each answer and each refusal is an event."""
        connection = self.connection
        if self._timed is not None and (time_us := connection.store_time_us):
            self._timed.hear_time(time_us)
        try:
            # The store answers, and may know the key. A claim may ask again with the error that its caller got.
            refused = error if isinstance(error, StoreRefusal) else error.__cause__
            if isinstance(refused, StoreRefusal):
                raise UnavailableError(*error.args, retry_after=error.retry_after) from refused
            if op.verb in _OF_OWNERS and connection.engine is None and not self._holds(op):
                raise error  # a closed gate writes no answer of the policy into the store
            reply = self._policy.answer(op, error)
        except UnavailableError as refusal:
            self._report_degraded(op, error, answered=False)
            if type(error) is HeldLocally and op.verb in _OF_OWNERS and not self._holds(op):
                return Code.LOST  # the store never had this record, and now the policy has lost it too
            if isinstance(op, ClaimOp):
                refusal.owner = owner_text(op.owner)
            raise
        self._report_degraded(op, error, answered=True)
        if connection.policy_answered is not None:
            connection.policy_answered(op, reply)
        if isinstance(op, ClaimOp) and type(reply) is Verdict and reply.outcome == "acquired":
            connection.orphans.leave_to_owner(op)
        if self._journal is not None:
            is_brought = connection.reconcile(self._journal, self._name)
            if not is_brought and isinstance(op, SettleOp):
                owner = owner_text(op.owner)
                connection.report(Unreplayed(self._name, self._key_of(op), owner, "the gate is closed"))
        if op.verb in _FREEING:
            connection.wakeups.freed(op.wire)
        return reply

    def _report_degraded(self, op: Op, error: UnavailableError, *, answered: bool) -> None:
        self.connection.report(Degraded(self._name, verb_of(op), answered, str(error)))

    def _fell_short(self, op: Op, acquired: Verdict | None = None) -> None:
        """Report that too few replicas confirmed; or raise, and undo an acquisition that no caller knows of."""
        wanted, key = self.connections.common.replicas, self._key_of(op)
        self.connection.report(Shortfall(self._name, verb_of(op), key, wanted))
        if not self.connections.common.raises_shortfall:
            return
        if acquired is not None and isinstance(op, ClaimOp):
            if op.terms.consumes:
                # Not if the caller named the owner, because that owner can ask again.
                self.connection.orphans.add(op, acquired.fence)
                if self._journal is not None and not op.named:
                    self._journal.saw(ReleaseOp(op.wire, op.owner, acquired.fence, consumed=True), Code.OK)
            else:
                self._give_back(op, acquired, told=True)
        raise ShortfallError(
            f"{verb_of(op)} of {key!r} was done, but fewer than {wanted} replicas confirmed it in time"
        )

    def _give_back(self, op: ClaimOp, reply: Reply, *, told: bool = False) -> None:
        """Free a key that was acquired, because the caller gets an error, unless another call knows of it."""
        if self.connection.becomes_orphan(op, reply):
            self.connection.orphans.free(op, cast(Verdict, reply).fence, self._run_at_once, told)

    def _run_at_once(self, release: ReleaseOp) -> asyncio.Future[Reply]:
        """Send it before anything else runs: the next claim of the same owner must not get back what it frees."""
        begun: asyncio.Future[Reply] | None = None
        with suppress(DedupError):  # `run` begins it again, and gets the same error
            begun = self.begin(release)
        return self.connection.keep(self.run(release, begun=begun))

    def _key_of(self, op: Op) -> str:
        return cast(str, getattr(op, "key", "")) or names_of(op.wire)[1]
