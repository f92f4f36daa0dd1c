"""Claims for synchronous code: asyncio's claims, driven from the caller's thread."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, overload
from weakref import ref

from .. import downstream
from ..checks import Seconds, check_seconds
from ..claim import Claim as AsyncClaim
from ..core.calls import ClaimCall
from ..errors import ClaimLostError, ConfigError, DedupError, UnavailableError, UsageError
from ..model import Outcome
from ..results.declared import R
from .background import BackgroundDedup, Bound

T = TypeVar("T")


class Claim(Generic[R]):
    """The answer to a claim, and while `acquired`, the right to settle it. See `fastdedup.Claim`.

    `with dedup.claim(key) as claim:` settles on the way out: `complete(None)` if the body did not,
    `release()` on an exception. Any thread of the process may settle it.

    The lease is renewed in the background while that body runs, and with `renew=True` until the claim is settled or
    collected. If the lease is still lost, the body cannot be stopped: `lost` turns True, and leaving it, or
    `complete`, raises ClaimLostError. Ask `lost` before a step that cannot be undone, and pass `fence` to what you
    write to.
    """

    __slots__ = ("__weakref__", "_background", "_claim", "_entered", "_renews", "_said", "_seconds", "_work")

    def __init__(self, background: BackgroundDedup, claim: AsyncClaim, *, renews: bool | None = None) -> None:
        self._background = background
        self._claim = claim
        # What its caller said of `renew=`; None: the lease is renewed while a `with` block runs.
        self._renews = renews
        # Mutable: the longest lease that it had, which is the time to retry settling.
        self._seconds = claim.lease or 0.0
        # Mutable: whether its block has begun.
        self._entered = False
        # Mutable, within `with`: the object that ends the work for HTTP clients.
        self._work: Any = None
        # Mutable: the function that records the caller's outcome, until it has begun.
        self._said: Callable[[], Coroutine[Any, Any, Any]] | None = None

    def __repr__(self) -> str:
        return repr(self._claim)

    def __bool__(self) -> bool:
        bool(self._claim)
        raise AssertionError

    @property
    def asynchronous(self) -> AsyncClaim:
        """The asyncio claim behind it, which belongs to the background thread."""
        return self._claim

    @property
    def background(self) -> BackgroundDedup:
        """For integrations: the `Dedup` and the thread of `asynchronous`."""
        return self._background

    def _complete(self, result: Any, ttl: Seconds | None, *, within: Seconds | None) -> None:
        self._said = lambda: self._claim.complete(result, ttl, within=within)
        self._say(within)

    def _fail(self, error: Any, ttl: Seconds | None, *, within: Seconds | None) -> None:
        self._said = lambda: self._claim.fail(error, ttl, within=within)
        self._say(within)

    def say(self, outcome: Callable[[AsyncClaim], Coroutine[Any, Any, Any]]) -> None:
        """Record an outcome by `outcome(asynchronous)`; it blocks, and raises the errors of `complete`."""
        self._said = lambda: outcome(self._claim)
        self._say(None)

    def _release(self) -> None:
        self._run(self._claim.release, settles=True)

    def free(self, *, after: Seconds = 0.0) -> None:
        """Release without a caller that could retry: see `Settlement.free`."""
        self._run(lambda: self._claim.settlement.free(after=after), settles=True)

    def settle_by(self, settle: Callable[[AsyncClaim], Awaitable[T]], seconds: float) -> T:
        """Return what `settle`, called in the background thread with `asynchronous`, returns within `seconds`.

        If the caller is interrupted, it is still begun, and then cancelled.
        """
        return self._run(lambda: settle(self._claim), seconds, settles=True)

    def settled_by(self, settle: Callable[[AsyncClaim], Coroutine[Any, Any, AsyncClaim]]) -> AsyncClaim:
        """Return the claim that `settle`, called in the background thread with `asynchronous`, returns.

        If the caller is interrupted, it goes on, and if the claim is acquired then, it is released.
        """

        async def settled(claim: AsyncClaim) -> AsyncClaim:
            settling = self._kept(settle(claim))
            try:
                return await asyncio.shield(settling)
            except asyncio.CancelledError:
                settling.add_done_callback(_take_back_what_is_left)
                raise

        return self.settle_by(settled, self._seconds)

    def with_answer(self, found: AsyncClaim) -> Claim:
        """Return another asyncio claim of the same background thread as a claim for synchronous code."""
        return Claim(self._background, found, renews=self._renews)

    def tell(self, callback: Callable[[AsyncClaim], object]) -> None:
        """Call `callback` with `asynchronous` in the background thread, and do not wait."""
        self._background.thread.tell(lambda: callback(self._claim))

    def _renew(self, lease: Seconds | None) -> None:
        if lease is not None:  # first: a renewal that ends in an error may have been done
            self._seconds = max(self._seconds, check_seconds(lease, "lease"))
        self._run(lambda: self._claim.renew(lease))

    def _longest(self, within: Seconds | None) -> float:
        """Return the seconds that settling may take; `within` ends it sooner, with a last try that began before."""
        if within is None:
            return self._seconds
        return min(self._seconds, check_seconds(within, "within", least=0.0)) + self._one_operation

    def __enter__(self) -> Self:
        if self.acquired:
            if self.lost:
                raise self._claim.settlement.lost_error()
            if self._entered:
                raise UsageError("this claim was entered before, so its block does not run again: claim anew")
            try:
                self._work = downstream.enter(self._claim.settlement.store_key, self)
                if self._renews is None and self._background.thread.alive:
                    self._background.thread.tell(partial(_renew_in_block, ref(self)))
            except BaseException:  # such as a signal's: a block that was not entered is never left
                self._end_block()
                if self._renews is None and self._background.thread.alive:
                    self._background.thread.tell(self._claim.settlement.renew_no_more)
                raise
            self._entered = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self._end_block()
        finally:  # also if an interrupt comes here
            self.leave(error)

    def _end_block(self) -> None:
        work, self._work = self._work, None
        downstream.leave(work)

    def leave(self, error: BaseException | None, *, release: bool = False) -> None:
        """Settle on the way out of `with`. A child that was forked inside does nothing: its parent has the claim.

        If the background thread has died, a body that ended without an error gets one, because nothing is recorded.
        """
        idle = error is not None or not self.acquired or self._claim.settlement.settled is not None
        if self._background.thread.forked or (idle and not self._background.thread.alive):
            return

        left = False

        async def leave() -> None:
            nonlocal left
            if left:
                return
            left = True
            if (said := self._said) is not None:  # the caller was interrupted before it could begin
                self._said = None
                self._kept(self._told(said))
                await asyncio.sleep(0)  # its first step
            await self._claim.settlement.leave(error, release=release)

        self._surely(leave, self._seconds)

    def _say(self, within: Seconds | None) -> None:
        """Record the outcome in `_said`. An interrupt does not undo that, because done work must not run again."""
        said = self._said

        async def begun() -> None:
            nonlocal said
            if said is None:
                return
            mine, said = said, None
            if self._said is mine:
                self._said = None
            await mine()

        try:
            self._surely(begun, self._longest(within))
        except (ConfigError, UsageError):  # this outcome cannot be recorded
            self._said = None
            raise

    def _surely(self, make: Callable[[], Awaitable[T]], seconds: float) -> T:
        """Run a settlement, which begins once for any number of calls, even if an interrupt comes first."""
        try:
            return self._run(make, seconds, settles=True)
        except DedupError:
            raise
        except BaseException:
            self._background.post(make)
            raise

    async def _told(self, said: Callable[[], Awaitable[None]]) -> None:
        """Record the outcome of an interrupted caller; if that fails, log it."""
        try:
            await said()
        except (ClaimLostError, UnavailableError) as error:
            self._claim.settlement.warn_of_loss(error)

    def _kept(self, settling: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run it in the background thread, if this is called, to its end."""
        return self._background.dedup.gate.connection.keep(settling)

    def _run(
        self, make: Callable[[], Awaitable[T]], seconds: float | None = None, *, settles: bool = False
    ) -> T:
        """Run it in the background thread, for at most `seconds`; by default for one operation's."""
        if not self._background.thread.alive:
            raise UsageError(
                "this claim was made in another process, or its background thread has died: claim again"
            )
        longest = self._one_operation if seconds is None else seconds
        return self._background.run(make, longest, settles=settles)

    @property
    def _one_operation(self) -> float:
        """The most seconds that an operation takes."""
        return self._background.dedup.gate.connection.timeout

    @property
    def in_block(self) -> bool:
        """True while a `with` block of it runs."""
        return self._work is not None

    # The rest of the class is written by scripts/write_sync.py, which `make format` runs.

    @property
    def outcome(self) -> Outcome:
        """The answer to the claimant."""
        return self._claim.outcome

    @property
    def acquired(self) -> bool:
        """True for the claimant that must do the work."""
        return self._claim.acquired

    @property
    def key(self) -> str:
        """The idempotency key; for a token a digest of it."""
        return self._claim.key

    @property
    def owner(self) -> str:
        """This claimant's own name, never another's. Each caller that knows it can settle the claim."""
        return self._claim.owner

    @property
    def fence(self) -> int:
        """The present owner's fence, which rises from owner to owner of a key; 0 if it is not known.

        Send it to the system that you write to, which can then refuse an overtaken owner. It is the server's time
        in microseconds, and never below the latest time that this client has seen from the store. One
        case is left: a key that has expired or was forgotten leaves no memory. So after the server's clock was
        set back, a client that never saw the later time may get a lower fence for that key.
        """
        return self._claim.fence

    @property
    def attempt(self) -> int:
        """How often the key was acquired: 1 for the first, more after takeovers and releases."""
        return self._claim.attempt

    @property
    def result(self) -> Any:
        """The first result if the outcome is SUCCEEDED; a fresh copy each time."""
        return self._claim.result

    @property
    def remembered(self) -> bool:
        """True if only a ledger knows of the success (`remember=`): then `result` is None, because it is not kept."""
        return self._claim.remembered

    @property
    def error(self) -> Any:
        """The recorded error if the outcome is FAILED; a fresh copy each time."""
        return self._claim.error

    @property
    def lease(self) -> float | None:
        """Seconds that this claim's lease had left when it was answered; None unless acquired."""
        return self._claim.lease

    @property
    def retry_after(self) -> float | None:
        """Seconds until the present owner's lease ends at the latest; None unless IN_PROGRESS."""
        return self._claim.retry_after

    @property
    def degraded(self) -> bool:
        """True if the fallback policy answered instead of the store."""
        return self._claim.degraded

    @property
    def confirmed(self) -> bool:
        """False if it was acquired and too few replicas had that in time (`replicas=`)."""
        return self._claim.confirmed

    @property
    def lost(self) -> bool:
        """True once the lease is known to be lost."""
        return self._claim.lost

    def downstream(self, name: str) -> str:
        """Return the idempotency key for a call that the work makes, such as `claim.downstream("stripe")`.

        It is the same for every attempt and owner of this key, also after its record has expired or was forgotten.
        It differs for each name, so give each call its own name. It is the text of a UUID.

        Raises:
            InvalidKeyError: the name is empty, longer than 1,024 characters, or not text.
        """
        return self._claim.downstream(name)

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
        return self._claim.replay(declared)

    def complete(
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
        self._complete(result, ttl, within=within)

    def fail(self, error: Any = None, ttl: Seconds | None = None, *, within: Seconds | None = None) -> None:
        """Record a failure for good: every duplicate gets `error` for `ttl` seconds (`failure_ttl` by default).

        For a failure that a retry may fix, use `release` instead. An exception is recorded as its type's name and its
        text, which is cut to fit into `max_result`. Any other error must be JSON-able: it does not pass through
        `codec=`. Errors: see `complete`.
        """
        self._fail(error, ttl, within=within)

    def release(self) -> None:
        """Free the key: nothing happened, the next claimant may try.

        If the caller is interrupted before the store has answered, the key is freed as soon as the store answers.
        """
        self._release()

    def renew(self, lease: Seconds | None = None) -> None:
        """Start the lease anew from now, for `lease` seconds; by default for as long as the first lease."""
        self._renew(lease)

    def touch(self, ttl: Seconds | None = None) -> None:
        """Let the record live for at least `ttl` seconds from now; by default for the claim's own `ttl`.

        It does not change the lease. When that has ended, the next owner finds the record, and `attempt` counts on. A
        renewal does not shorten that time. If the claim is completed or fails, its record gets another time to live.
        """
        self._run(lambda: self._claim.touch(ttl))


def _renew_in_block(mine: ref[Claim]) -> None:
    """Renew the lease from now on; in the background thread, which may get to this after the block has ended.

    It goes on until the claim is collected at the latest, because an interrupt may stop a thread before `__exit__`.
    """
    claim = mine()
    if claim is not None and claim.in_block:
        claim.asynchronous.settlement.keep_renewed(mine)


def take_back(claim: AsyncClaim) -> None:
    """Free a claim whose caller was interrupted before the claim reached him; in the background thread."""
    # A claim that another call of the same named owner knows of is that call's to settle.
    settlement = claim.settlement
    if settlement.gate.connection.becomes_orphan(settlement.op, settlement.verdict):
        settlement.gate.connection.keep(settlement.release_soon())


def _take_back_what_is_left(settling: asyncio.Task[AsyncClaim]) -> None:
    if not settling.cancelled() and settling.exception() is None:
        take_back(settling.result())


def answered(bound: Bound[T], ask: Callable[[T], ClaimCall], renews: bool | None = None) -> Claim:
    """Make a claim in the background thread, and block for its answer: an operation's time plus the claim's wait.

    `renews`: what the caller said of `renew=`.
    """
    background, asked = bound.get()
    return background.make(
        ask(asked),
        bound.per_process.seconds,
        lambda found: Claim(background, found, renews=renews),
        lambda claim: take_back(claim.asynchronous),
    )
