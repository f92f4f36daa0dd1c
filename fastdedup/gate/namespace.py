"""One namespace's way to the store, and to its policy when the store is unavailable: what `Dedup` stands on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from ..checks import milliseconds
from ..claims.waiting import claim_patiently
from ..compiled import mypyc_attr
from ..errors import (
    ClaimLostError,
    ConfigError,
    ResultTooLargeError,
    ShortfallError,
    UnavailableError,
    foreign,
)
from ..events import Degraded, LeaseLost, Shortfall, emit
from ..fallback.base import FallbackPolicy, JournalledPolicy
from ..fallback.reject import Reject
from ..protocol.keyspace import names_of
from ..protocol.operations import (
    ClaimOp,
    Code,
    Mode,
    Moved,
    Op,
    ReleaseOp,
    RenewOp,
    Reply,
    SettleOp,
    Terms,
    Verb,
    Verdict,
    terms,
)
from .connection import Connection
from .renewal import RenewalQueue
from .settings import Settings

if TYPE_CHECKING:
    from ..claim import Claim
    from ..claims.call import ClaimCall

T = TypeVar("T")

_HELD_LOCALLY = "this key was used while the store was unavailable, and the store does not know of it yet"
_FREEING = (Verb.SETTLE, Verb.RELEASE, Verb.FORGET)


@mypyc_attr(allow_interpreted_subclasses=True)
class Scope:
    """Executes operations: by the store, or where that cannot, by the namespace's policy, visibly.

    Raises:
        ConfigError: the policy is none.
    """

    def __init__(self, core: Connection, settings: Settings) -> None:
        policy = settings.on_unavailable
        if isinstance(policy, type) or not isinstance(policy, FallbackPolicy):
            raise ConfigError(f"on_unavailable is a policy such as Reject() or LocalLRU(), not {policy!r}")
        self.settings = settings
        self._core = core
        self._policy = policy
        self._known = core.known_of(settings.namespace)
        self.claim_terms = self.terms(Mode.CLAIM, settings.lease, settings.ttl)
        # The claims of most programs ask nothing of the policy; then the hot path does not either.
        self._remembers = not isinstance(policy, Reject)
        self._journal = policy if isinstance(policy, JournalledPolicy) else None

    def terms(self, mode: Mode, lease: Any, ttl: Any) -> Terms:
        """Return the shared terms of claims with this lease and ttl."""
        lease_ms = milliseconds(self.settings.lease if lease is None else lease, "lease")
        ttl_ms = milliseconds(self.settings.ttl if ttl is None else ttl, "ttl")
        return terms(mode, lease_ms, ttl_ms if mode is Mode.CONSUME else lease_ms + ttl_ms, False)

    def terms_ms(self, lease_ms: int | None, ttl_ms: int | None) -> Terms:
        """As `terms`, of claims, in ms."""
        if lease_ms is None and ttl_ms is None:
            return self.claim_terms
        default = self.claim_terms
        lease = default.lease_ms if lease_ms is None else lease_ms
        ttl = default.keep_ms - default.lease_ms if ttl_ms is None else ttl_ms
        return terms(Mode.CLAIM, lease, lease + ttl, False)

    def keep_ms(self, *, succeeded: bool) -> int:
        """Return for how many ms an outcome is remembered by default."""
        return milliseconds(self.settings.ttl if succeeded else self.settings.failure_ttl, "ttl")

    def check_loop(self) -> None:
        """Raise UsageError unless open in the running event loop."""
        self._core.running_engine()

    def start_claim(self, op: ClaimOp, future: Any = None) -> asyncio.Future[Reply]:
        """Send a claim on its way; `future` as for `Engine.claim`."""
        engine = self._core.engine
        if engine is None:
            raise self._core.not_open()
        if self._remembers:
            if self._policy.holds(op.wire):
                raise UnavailableError(_HELD_LOCALLY)
            if self._journal is not None:
                op.let_witness(self._heard)
        return engine.claim(op, future) if op.terms.shared and not op.named else engine.claim_named(op)

    def _heard(self, op: ClaimOp, reply: Reply) -> Reply:
        """The store has answered a claim. Where the policy took the key meanwhile, the policy's answer stands."""
        assert self._journal is not None
        self._journal.saw(op, reply)
        if not self._policy.holds(op.wire):
            return reply
        try:
            return self.fall_back(op, UnavailableError(_HELD_LOCALLY))
        except UnavailableError as error:
            return error

    def disown(self, op: ClaimOp) -> None:
        """Take back a claim whose caller was cancelled."""
        if self._core.last_engine is not None:
            self._core.last_engine.disown(op)

    async def claim_patiently(self, call: ClaimCall) -> Verdict:
        """Claim, and wait while another owner is at work. See `patience.py`."""
        return await claim_patiently(self, self._core, call)

    async def run(self, op: Op, *, degraded: bool = False) -> Reply:
        """Execute one operation that is no claim; `degraded` where it belongs to the policy's own record."""
        engine = self._core.running_engine()
        if self._remembers and self._policy.holds(op.wire):
            return self._ask_policy_alone(op)
        if degraded and self._journal is None and not self._core.behind_a_policy:
            return self._ask_policy_alone(op)
        try:
            reply = await engine.submit(op)
            if isinstance(reply, UnavailableError | ResultTooLargeError):
                raise reply
        except UnavailableError as error:
            return self.fall_back(op, error)
        if self._journal is not None:
            self._journal.saw(op, reply)
        if reply is Code.UNCONFIRMED or (isinstance(reply, Moved) and reply.short):
            self.fell_short(op)
        return Code.OK if reply is Code.UNCONFIRMED else reply

    def _ask_policy_alone(self, op: Op) -> Reply:
        """Of a record that the policy made, the store knows nothing; once that is gone, nobody does."""
        try:
            return self.fall_back(op, UnavailableError(_HELD_LOCALLY))
        except UnavailableError:
            if self._policy.holds(op.wire):
                raise
            return Code.LOST

    def hand_in(self, op: Op, taker: Any) -> Reply | None:
        """Execute an operation of another gate's, which named its owner there: each stands for itself.

        Returns the policy's reply where the store is not asked; else None, and `taker` (as for
        `Engine.claim`) gets the reply, for `took`, or the error, for `fall_back`.

        Raises:
            UnavailableError: neither the store nor the policy answers.
        """
        if self._remembers:
            if self._policy.holds(op.wire):
                held = UnavailableError(_HELD_LOCALLY)
                return self.fall_back(op, held) if op.verb is Verb.CLAIM else self._ask_policy_alone(op)
            if self._journal is not None and isinstance(op, ClaimOp):
                op.let_witness(self._heard)
        engine = self._core.engine
        if engine is None:
            raise self._core.not_open()
        try:
            engine.submit(op, taker)
        except UnavailableError as error:
            return self.fall_back(op, error)
        return None

    def took(self, op: Op, reply: Reply) -> None:
        """The store has answered what was handed in, and is no claim (that has a witness)."""
        if self._journal is not None:
            self._journal.saw(op, reply)
        if op.verb is Verb.FORGET:
            self._known.drop(names_of(op.wire)[1])

    async def overhear(self, on_freed: Callable[[bytes | None], None]) -> Callable[[], None]:
        """Call `on_freed` for all that wakes a waiter of this gate, as `Store.listen` does; return what ends that.

        Raises:
            UnavailableError: the store cannot be listened to just now.
        """
        return await self._core.overhear(on_freed)

    async def change(self, op: SettleOp | ReleaseOp | RenewOp) -> None:
        """Settle, free or renew on behalf of an owner who keeps no `Claim`.

        Raises:
            ClaimLostError: it is not, or no longer, the owner's; nothing was changed.
            ForeignRecordError: the key holds what fastdedup did not write.
            UnavailableError: neither the store nor the policy answered; repeating is safe.
        """
        code = await self.run(op)
        if code == Code.FOREIGN:
            raise foreign(names_of(op.wire)[1])
        if code != Code.OK:
            raise ClaimLostError(f"{names_of(op.wire)[1]!r} is not held by this owner; nothing was changed")
        self._known.drop(names_of(op.wire)[1])

    def release_later(self, wire: bytes, owner: bytes) -> None:
        """Free a claim whose holder is gone, as soon as the store takes it."""
        if self._core.engine is not None:
            self.keep(self.run(ReleaseOp(wire, owner, 0)))

    def fall_back(self, op: Op, error: UnavailableError) -> Reply:
        """Ask the policy, visibly: every such answer is an event."""
        settings, on_event = self.settings, self._core.on_event
        try:
            reply = self._policy.answer(op, error)
        except UnavailableError:
            emit(on_event, Degraded(settings.namespace, op.verb.value, False, str(error)))
            raise
        emit(on_event, Degraded(settings.namespace, op.verb.value, True, str(error)))
        if self._journal is not None:
            self._core.reconcile(self._journal)
        if op.verb in _FREEING:
            self._core.waiters.freed(op.wire)
        return reply

    def fell_short(self, op: Op) -> None:
        """Too few replicas confirmed: say so, or raise ShortfallError."""
        wanted = self._core.replicas
        key = getattr(op, "key", "") or names_of(op.wire)[1]
        emit(self._core.on_event, Shortfall(self.settings.namespace, op.verb.value, key, wanted))
        if self._core.raises_shortfall:
            raise ShortfallError(
                f"{op.verb} of {key!r}: done, but fewer than {wanted} replicas confirmed it in time"
            )

    def learn(self, claim: Claim, op: ClaimOp, verdict: Verdict) -> None:
        """Remember a success for the duplicates to come; a token's is not a key's."""
        if op.terms.shared and not verdict.degraded:
            # Counted from when it was asked: surely not past the record's expiry.
            waited = asyncio.get_running_loop().time() - op.at
            self._known.learn(claim, op.fingerprint, len(verdict.payload), verdict.left_ms / 1000 - waited)

    def keep(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run work that must end even when its caller is cancelled."""
        return self._core.keep(work)

    def renewals(self, lease: float) -> RenewalQueue:
        """Return the queue of renewals of that lease, in seconds."""
        return self._core.renewals(lease)

    def lease_lost(self, claim: Claim) -> None:
        """Report a lease that could not be renewed."""
        emit(
            self._core.on_event,
            LeaseLost(self.settings.namespace, claim.key, claim.owner, claim.fence),
        )
