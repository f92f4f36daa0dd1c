"""The answer to a claim, and the right to settle it."""

from __future__ import annotations

from typing import Any, Final, Generic, TypeVar, overload

from . import codec
from .checks import Seconds, milliseconds
from .compiled import mypyc_attr
from .core.gate import Gate
from .core.settlement import Settlement
from .downstream import downstream_key
from .errors import InProgressError, InvalidKeyError, MismatchError, ResultError, UsageError, first_run_failed
from .kernel.operations import ClaimOp, TouchOp, Verdict
from .kernel.owners import owner_text
from .kernel.terms import Mode
from .model import Outcome
from .results.declared import R, read_as

T = TypeVar("T")
_ACQUIRED: Final = Outcome.ACQUIRED  # naming an enum's member through its class costs 50 ns on Python 3.11
_SUCCEEDED: Final = Outcome.SUCCEEDED
_SHAREABLE: Final = (str, int, float, bool)
"""These results are decoded once for all callers. A result that a caller could change is decoded for each caller."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Claim(Generic[R]):
    """The answer to a claim, and while `acquired`, the right to settle it.

    Settle it once, with `complete`, `fail` or `release`. Each of these raises ClaimLostError if
    another owner has the key (nothing was changed), UnavailableError if the store did not
    answer (call it again: repeating is safe), UsageError on a claim that is not acquired, is
    settled already, or belongs to another event loop. While the store does not answer, `complete` and `fail` are
    tried again until the lease ends, or for `within` seconds, because the work is done. Their UnavailableError has
    `unrecorded`.

    A claim has no truth value: ask `claim.acquired`. A `Claim[Receipt]` has a declared type of its result: see
    `returns` of `Dedup.claim`.
    """

    __slots__ = ("_call", "_gate", "_settlement", "_verdict")

    def __init__(
        self, gate: Gate, call: ClaimOp, verdict: Verdict, settlement: Settlement | None = None
    ) -> None:
        self._gate = gate
        self._call = call
        self._verdict = verdict
        self._settlement = settlement  # made on demand, because a duplicate needs none

    def __bool__(self) -> bool:
        raise TypeError(
            "a claim has no truth value, because a duplicate gets a claim, too: ask claim.acquired"
        )

    def __repr__(self) -> str:
        return f"<Claim {self.key!r} {self.outcome} fence={self.fence} attempt={self.attempt}>"

    @property
    def outcome(self) -> Outcome:
        """The answer to the claimant."""
        return self._verdict.outcome

    @property
    def acquired(self) -> bool:
        """True for the claimant that must do the work."""
        return self._verdict.outcome is _ACQUIRED

    @property
    def key(self) -> str:
        """The idempotency key; for a token a digest of it."""
        return self._call.key

    @property
    def owner(self) -> str:
        """This claimant's own name, never another's. Each caller that knows it can settle the claim."""
        return owner_text(self._call.owner)

    @property
    def fence(self) -> int:
        """The present owner's fence, which rises from owner to owner of a key; 0 if it is not known.

        Send it to the system that you write to, which can then refuse an overtaken owner. It is the server's time
        in microseconds, and never below the latest time that this client has seen from the store. One
        case is left: a key that has expired or was forgotten leaves no memory. So after the server's clock was
        set back, a client that never saw the later time may get a lower fence for that key.
        """
        return self._verdict.fence

    @property
    def attempt(self) -> int:
        """How often the key was acquired: 1 for the first, more after takeovers and releases."""
        return self._verdict.attempt

    @property
    def result(self) -> Any:
        """The first result if the outcome is SUCCEEDED; a fresh copy each time."""
        verdict = self._verdict
        if verdict.outcome is not _SUCCEEDED or not verdict.payload:
            return None
        own = self._gate.settings.codec
        if verdict.value is not None and verdict.value[0] is own:
            return verdict.value[1]
        value = codec.decode(own, verdict.payload, self.key)
        if type(value) in _SHAREABLE:
            verdict.value = (own, value)
        return value

    @property
    def remembered(self) -> bool:
        """True if only a ledger knows of the success (`remember=`): then `result` is None, because it is not kept."""
        verdict = self._verdict
        return verdict.outcome is _SUCCEEDED and not verdict.attempt  # a record counts at least one attempt

    @property
    def error(self) -> Any:
        """The recorded error if the outcome is FAILED; a fresh copy each time."""
        if self.outcome is not Outcome.FAILED:
            return None
        return codec.decode_error(self._gate.settings.codec, self._verdict.payload, self.key)

    @property
    def lease(self) -> float | None:
        """Seconds that this claim's lease had left when it was answered; None unless acquired."""
        return self._verdict.left_ms / 1000 if self.acquired else None

    @property
    def retry_after(self) -> float | None:
        """Seconds until the present owner's lease ends at the latest; None unless IN_PROGRESS."""
        return self._verdict.left_ms / 1000 if self.outcome is Outcome.IN_PROGRESS else None

    @property
    def degraded(self) -> bool:
        """True if the fallback policy answered instead of the store."""
        return self._verdict.degraded

    @property
    def confirmed(self) -> bool:
        """False if it was acquired and too few replicas had that in time (`replicas=`)."""
        return not self._verdict.underreplicated

    @property
    def lost(self) -> bool:
        """True once the lease is known to be lost."""
        return self._settlement is not None and self._settlement.lost

    def downstream(self, name: str) -> str:
        """Return the idempotency key for a call that the work makes, such as `claim.downstream("stripe")`.

        It is the same for every attempt and owner of this key, also after its record has expired or was forgotten.
        It differs for each name, so give each call its own name. It is the text of a UUID.

        Raises:
            InvalidKeyError: the name is empty, longer than 1,024 characters, or not text.
        """
        return downstream_key(self.settlement.store_key, name)

    @overload
    def replay(self) -> R: ...

    @overload
    def replay(self, declared: type[T]) -> T: ...

    @overload
    def replay(self, declared: Any) -> Any: ...

    def replay(self, declared: Any = None) -> Any:
        """Return the result of a success, for a duplicate that needs the first call's result.

        `declared`: the type that it was completed with, such as `Receipt` or `list[Receipt]`; by default the type
        that `returns=` has declared. Without either, the result is what JSON brings back: a dict for a dataclass,
        text for a datetime.

        Raises:
            FailedError: the first run ended in a failure that was recorded; `error` is the recorded error.
            InProgressError: another owner is at work; `retry_after` says how long at most.
            MismatchError: the key is known with another fingerprint, or the token with another subject.
            InvalidKeyError: the token was never issued, or has expired.
            UsageError: this claim is acquired: there is nothing to replay, do the work.
            ResultError: the result is not of the declared type, or cannot be read.
            ConfigError: the declared type cannot come back, or needs `fastdedup[types]`.
        """
        match self.outcome:
            case Outcome.SUCCEEDED:
                wanted = self._call.reader if declared is None else declared
                if wanted is None:
                    return self.result
                try:
                    return read_as(wanted, self._verdict.payload, self.key, self._gate.settings.codec)
                except ResultError:
                    if not self.remembered:
                        raise
                raise ResultError(
                    f"the result of {self.key!r} is not kept any more, only a ledger knows of its success: "
                    "ask claim.remembered before replay()"
                )
            case Outcome.FAILED:
                raise first_run_failed(self.key, self.error)
            case Outcome.IN_PROGRESS:
                after = self.retry_after or 0.0
                raise InProgressError(
                    f"another owner works on {self.key!r}, for at most {after:.1f} s unless it renews its lease: "
                    "ask again later, or pass wait=",
                    retry_after=after,
                )
            case Outcome.MISMATCH:
                plain = self._call.terms.mode is Mode.CLAIM
                former = "used before with another fingerprint: take a new key for another request"
                raise MismatchError(f"{self.key!r} was {former if plain else 'issued for another subject'}")
            case Outcome.UNKNOWN:
                raise InvalidKeyError(f"{self.key!r} was never issued, or has expired")
            case _:
                raise UsageError(
                    f"this claim of {self.key!r} is acquired, there is nothing to replay: do the work and complete it"
                )

    async def complete(
        self, result: R | None = None, ttl: Seconds | None = None, *, within: Seconds | None = None
    ) -> None:
        """Record success: every duplicate gets `result` for `ttl` seconds (the namespace's by default).

        JSON holds it, also a dataclass, a Pydantic model, a datetime, a Decimal or a set: `replay(Receipt)` gives
        that back. With `returns=` and no `codec=`, a result is refused if a duplicate gets no equal one, except None.

        If a ledger remembers the success (`remember=`), it does so for its window, and `ttl` is only the time
        for which `result` is kept: a minute by default.

        It is tried for `within` seconds while the store is unavailable; by default until the lease ends.

        Raises:
            ResultError: the result cannot be stored, or `returns=` refuses it; the claim stays live.
            ResultTooLargeError: the result is larger than `max_result`; the claim stays live.
            ClaimLostError: another owner has the key, it was forgotten, or the store lost its data before this call.
            UnavailableError: the result could not be recorded; `unrecorded` is True. Also if the reply was lost, and
                the store is back without its data.
        """
        await self.settlement.complete(result, ttl, within=within)

    async def fail(
        self, error: Any = None, ttl: Seconds | None = None, *, within: Seconds | None = None
    ) -> None:
        """Record a failure for good: every duplicate gets `error` for `ttl` seconds (`failure_ttl` by default).

        For a failure that a retry may fix, use `release` instead. An exception is recorded as its type's name and its
        text, which is cut to fit into `max_result`. Any other error must be JSON-able: it does not pass through
        `codec=`. Errors: see `complete`.
        """
        await self.settlement.fail(error, ttl, within=within)

    async def release(self) -> None:
        """Free the key: nothing happened, the next claimant may try.

        If the caller is cancelled before the store has answered, the key is freed as soon as the store answers.
        """
        await self.settlement.release()

    async def renew(self, lease: Seconds | None = None) -> None:
        """Start the lease anew from now, for `lease` seconds; by default for as long as the first lease."""
        await self.settlement.renew(lease)

    async def touch(self, ttl: Seconds | None = None) -> None:
        """Let the record live for at least `ttl` seconds from now; by default for the claim's own `ttl`.

        It does not change the lease. When that has ended, the next owner finds the record, and `attempt` counts on. A
        renewal does not shorten that time. If the claim is completed or fails, its record gets another time to live.
        """
        call = self._call
        keep_ms = call.terms.ttl_ms if ttl is None else milliseconds(ttl, "ttl")
        await self.settlement.extend(TouchOp(call.wire, call.owner, self.fence, keep_ms))

    @property
    def settlement(self) -> Settlement:
        """The life of this claim, for integrations: see `fastdedup.core.settlement.Settlement`."""
        settlement = self._settlement
        if settlement is None:
            settlement = self._settlement = Settlement(self._gate, self._call, self._verdict)
        return settlement
