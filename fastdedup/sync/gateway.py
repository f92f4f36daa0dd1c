"""`sync.Dedup`, for synchronous code. Main path: `Dedup.claim` → `LoopThread.run` → `fastdedup.Dedup.claim`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Literal, ParamSpec, Self, TypeVar, overload

from ..admin.resolving import check_resolve
from ..checks import Seconds, check_seconds
from ..codec import Codec
from ..core.settings import Settings
from ..events import OnEvent
from ..fallback.base import FallbackPolicy
from ..gateway import Dedup as AsyncDedup
from ..kernel.keyspace import READABLE_BYTES
from ..machine import Transitions
from ..model import Batching, BreakerState, Listing, Record, RecordKind, State
from ..once import FewArguments
from ..stores.base import Credentials, Store
from .background import Bound, PerProcess
from .claim import Claim, answered, take_back
from .ledger import Ledger, ledger_behind
from .lock import LockCall
from .machine import StateMachine
from .once import once
from .resolving import SyncCheck, resolved
from .tokens import Tokens

P = ParamSpec("P")
T = TypeVar("T")

_STEPS = 8
"""The longest time of a call, opening included, in deadlines of one operation."""


class Dedup:
    """The gate in front of a side effect, for synchronous code. Arguments and settings as for `fastdedup.Dedup`.

    Make it once, at module level, and share it among threads. It opens when first used. A forked process opens a
    connection of its own; what `LocalLRU` held before the fork is then in both processes. Call `close`, or use
    `with`; at the interpreter's end it closes within a second.

    `on_event`, the codec's `dumps` and a policy of your own are called in a background thread: they must neither
    block nor call this `Dedup`.
    """

    def __init__(
        self,
        url: str | Store = "memory://",
        *,
        namespace: str = "fastdedup",
        lease: Seconds = 30.0,
        ttl: Seconds = 86_400.0,
        failure_ttl: Seconds = 3_600.0,
        token_ttl: Seconds = 300.0,
        timeout: Seconds = 0.25,
        replicas: int = 0,
        on_shortfall: Literal["report", "raise"] = "report",
        on_unavailable: FallbackPolicy | None = None,
        codec: Codec | None = None,
        max_result: int = 256 * 1024,
        max_pending: int = 65_536,
        readable_keys: int = READABLE_BYTES,
        known_duplicates: Seconds = 1.0,
        on_event: OnEvent | None = None,
        credentials: Credentials | None = None,
        holder: str | bool = False,
    ) -> None:
        make = partial(
            AsyncDedup,
            url,
            namespace=namespace,
            lease=lease,
            ttl=ttl,
            failure_ttl=failure_ttl,
            token_ttl=token_ttl,
            timeout=timeout,
            replicas=replicas,
            on_shortfall=on_shortfall,
            on_unavailable=on_unavailable,
            codec=codec,
            max_result=max_result,
            max_pending=max_pending,
            readable_keys=readable_keys,
            known_duplicates=known_duplicates,
            on_event=on_event,
            credentials=credentials,
            holder=holder,
        )
        seconds = _STEPS * check_seconds(timeout, "timeout")
        self._hold(PerProcess(make, reusable=isinstance(url, str), seconds=seconds), lambda dedup: dedup)

    @classmethod
    def _over(cls, per_process: PerProcess, derive: Callable[[AsyncDedup], AsyncDedup]) -> Self:
        dedup = cls.__new__(cls)
        cls._hold(dedup, per_process, derive)
        return dedup

    def _hold(self, per_process: PerProcess, derive: Callable[[AsyncDedup], AsyncDedup]) -> None:
        self.per_process = per_process
        """For integrations: makes the asyncio `Dedup` of each process. All that `scoped` returns shares it."""
        self.bound = Bound(per_process, derive)
        """For integrations: `background, dedup = bound.get()` returns this process's asyncio `Dedup`; see `bind`."""
        self.tokens = Tokens(self.bound)
        """One-time tokens. See `fastdedup.tokens.Tokens`."""

    def __repr__(self) -> str:
        return f"<sync.Dedup namespace={self.settings.namespace!r}>"

    # Life

    def open(self) -> Self:
        """Open now instead of at the first use, so that mistakes show at start-up. Opening twice is fine.

        After `close` this opens it again: `memory://` then begins empty.

        Raises:
            ConfigError: the store can never be used as it is set up.
        """

        async def opened() -> None:
            """Do nothing: `BackgroundDedup.run` opens before it calls this."""

        self.per_process.reopen()
        self.per_process.background().run(opened, self.per_process.seconds)
        return self

    def close(self) -> None:
        """Answer what was accepted, then close, with all that `scoped` has made. Closing twice is fine.

        Whoever uses it afterwards gets a UsageError, until `open` or `with` opens it again.
        """
        self.per_process.close()

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def settings(self) -> Settings:
        """The settings of this namespace."""
        return self.bound.latest.settings

    @property
    def breaker(self) -> BreakerState:
        """The state of the breaker: OPEN while the store is not asked, as it did not answer."""
        return self.bound.get()[1].breaker

    @property
    def batching(self) -> Batching:
        """How batches go to the store, as `fastdedup.Dedup.batching` says."""
        return self.bound.get()[1].batching

    def scoped(
        self,
        name: str | None = None,
        *,
        lease: Seconds | None = None,
        ttl: Seconds | None = None,
        failure_ttl: Seconds | None = None,
        token_ttl: Seconds | None = None,
        on_unavailable: FallbackPolicy | None = None,
        codec: Codec | None = None,
        max_result: int | None = None,
    ) -> Dedup:
        """Return a `Dedup` for the namespace `<this namespace>:<name>`, or for this one, over the same connection."""
        derive = self.bound.make

        def narrowed(dedup: AsyncDedup) -> AsyncDedup:
            return derive(dedup).scoped(
                name,
                lease=lease,
                ttl=ttl,
                failure_ttl=failure_ttl,
                token_ttl=token_ttl,
                on_unavailable=on_unavailable,
                codec=codec,
                max_result=max_result,
            )

        return self._over(self.per_process, narrowed)

    def bind(self, make: Callable[[AsyncDedup], T]) -> Bound[T]:
        """Return something that is made of the asyncio `Dedup`, for integrations that work in its thread.

        `background, made = bound.get()`, then `background.run(lambda: made.something(), seconds)`, or
        `await background.arun(...)`.
        """
        derive = self.bound.make
        return Bound(self.per_process, lambda dedup: make(derive(dedup)))

    # Claims

    def claim(
        self,
        key: str,
        *,
        fingerprint: Any = None,
        owner: str | None = None,
        lease: Seconds | None = None,
        ttl: Seconds | None = None,
        wait: Seconds = 0.0,
        renew: bool = False,
        resolve: SyncCheck | None = None,
        remember: Ledger | None = None,
    ) -> Claim:
        """Ask to be the first for `key`, and block for the answer. Main path of the module.

        `claim = dedup.claim(key)`: settle it yourself. `with dedup.claim(key) as claim:` settles on the way
        out: `complete(None)` if the body did not settle, `release()` on an exception. Arguments and errors as
        for `fastdedup.Dedup.claim`; for `renew` see `Claim`. `resolve` is a function that is not async, and is called
        in the caller's thread.
        """
        if resolve is not None:
            check_resolve(resolve, asynchronous=False)
        background, dedup = self.bound.get()
        renewed = renew or resolve is not None
        call = dedup.claim(
            key,
            fingerprint=fingerprint,
            owner=owner,
            lease=lease,
            ttl=ttl,
            wait=wait,
            renew=renewed,
            remember=None if remember is None else ledger_behind(remember),
        )
        claim = answered(background, call, self.per_process.seconds)
        return claim if resolve is None else resolved(claim, resolve, renews=renew)

    def claim_many(
        self,
        keys: Sequence[str],
        *,
        fingerprints: Sequence[Any] | None = None,
        owner: str | None = None,
        lease: Seconds | None = None,
        ttl: Seconds | None = None,
        wait: Seconds = 0.0,
        renew: bool = False,
        remember: Ledger | None = None,
    ) -> list[Claim]:
        """Claim many keys at once, each by itself; the answers are in the order of the keys."""
        background, dedup = self.bound.get()
        options: dict[str, Any] = {"owner": owner, "lease": lease, "ttl": ttl, "wait": wait, "renew": renew}
        if remember is not None:
            options["remember"] = ledger_behind(remember)

        async def made() -> list[Claim]:
            claims = await dedup.claim_many(keys, fingerprints=fingerprints, **options)
            return [Claim(background, claim) for claim in claims]

        def discard(claims: list[Claim]) -> None:
            for claim in claims:
                take_back(claim.asynchronous)

        seconds = self.per_process.seconds + check_seconds(wait, "wait", least=0.0)
        return background.run(made, seconds, discard)

    def lock(
        self, key: str, *, lease: Seconds | None = None, wait: Seconds = 0.0, renew: bool = False
    ) -> LockCall:
        """Return a mutual exclusion, which remembers nothing: `with dedup.lock(key, wait=5.0) as lock:`.

        Entering raises InProgressError where the lock is still held after `wait` seconds; leaving raises
        ClaimLostError where another holder took over. Pass `lock.fence` to what you write to.
        """

        def ask() -> Claim:
            background, dedup = self.bound.get()
            call = dedup.lock(key, lease=lease, wait=wait, renew=renew).call
            return answered(background, call, self.per_process.seconds)

        return LockCall(ask)

    # In two: a checker gives the parameters of a lambda a type only where it is told how many there are.
    @overload
    def once(
        self,
        key: FewArguments[str],
        *,
        fingerprint: FewArguments[Any] | None = None,
        lease: Seconds | None = None,
        ttl: Seconds | None = None,
        wait: Seconds = 0.0,
        renew: bool = True,
        fail_on: tuple[type[Exception], ...] = (),
        resolve: SyncCheck | None = None,
        remember: Ledger | None = None,
    ) -> Callable[[Callable[P, T]], Callable[P, T]]: ...

    @overload
    def once(  # type: ignore[overload-cannot-match]
        self,
        key: Callable[..., str],
        *,
        fingerprint: Callable[..., Any] | None = None,
        lease: Seconds | None = None,
        ttl: Seconds | None = None,
        wait: Seconds = 0.0,
        renew: bool = True,
        fail_on: tuple[type[Exception], ...] = (),
        resolve: SyncCheck | None = None,
        remember: Ledger | None = None,
    ) -> Callable[[Callable[P, T]], Callable[P, T]]: ...

    def once(
        self,
        key: Callable[..., str],
        *,
        fingerprint: Callable[..., Any] | None = None,
        lease: Seconds | None = None,
        ttl: Seconds | None = None,
        wait: Seconds = 0.0,
        renew: bool = True,
        fail_on: tuple[type[Exception], ...] = (),
        resolve: SyncCheck | None = None,
        remember: Ledger | None = None,
    ) -> Callable[[Callable[P, T]], Callable[P, T]]:
        """Decorate a function to run once per key; later calls return the first result.

        Arguments and errors as for `fastdedup.Dedup.once`; no function is async here.
        """
        options = {
            "lease": lease,
            "ttl": ttl,
            "wait": wait,
            "renew": renew,
            "resolve": resolve,
            "remember": remember,
        }
        settings, decorated = self.settings, self.per_process.decorated
        return once(
            self.claim,
            key,
            tell=lambda function: decorated.tell(function, key, settings.namespace, settings.codec),
            fingerprint=fingerprint,
            fail_on=fail_on,
            options=options,
        )

    def machine(
        self, name: str, *, initial: str, transitions: Transitions, ttl: Seconds = 30 * 86_400.0
    ) -> StateMachine:
        """Define a state machine whose instances live in the store. See `fastdedup.StateMachine`."""
        return StateMachine(
            self.bind(lambda dedup: dedup.machine(name, initial=initial, transitions=transitions, ttl=ttl))
        )

    def ledger(
        self,
        name: str,
        *,
        window: Seconds,
        capacity: int,
        exact: bool = True,
        width: int | None = None,
        write: Literal["set", "append"] = "set",
        dense: bool = False,
        allow_eviction: bool = False,
    ) -> Ledger:
        """Return a ledger, which remembers ids for days in some 12 bytes each. Arguments as for `fastdedup.Dedup`."""
        return Ledger(
            self.bind(
                lambda dedup: dedup.ledger(
                    name,
                    window=window,
                    capacity=capacity,
                    exact=exact,
                    width=width,
                    write=write,
                    dense=dense,
                    allow_eviction=allow_eviction,
                )
            )
        )

    # Inspection and administration

    def get(self, key: str, kind: RecordKind = "claim", *, digest: bool = False) -> Record | None:
        """Return the store's record of `key`, or None. For inspection only: to decide, claim the key."""
        background, dedup = self.bound.get()
        return background.run(lambda: dedup.get(key, kind, digest=digest), self.per_process.seconds)

    def forget(
        self, key: str, kind: RecordKind = "claim", *, digest: bool = False, reason: str | None = None
    ) -> bool:
        """Remove the record of `key`, of any owner; return False where there was no record. The key is new again."""
        background, dedup = self.bound.get()
        return background.run(
            lambda: dedup.forget(key, kind, digest=digest, reason=reason), self.per_process.seconds
        )

    def records(
        self,
        *,
        kind: RecordKind | None = None,
        prefix: str = "",
        state: State | None = None,
        older: Seconds = 0.0,
        limit: int = 1000,
        within: Seconds = 5.0,
        cursor: str | None = None,
        reason: str | None = None,
    ) -> Listing:
        """Return records of this namespace, to find what is stuck. Arguments and errors as for `fastdedup.Dedup`."""
        background, dedup = self.bound.get()
        options: dict[str, Any] = {"kind": kind, "prefix": prefix, "state": state, "older": older}
        return background.run(
            lambda: dedup.records(limit=limit, within=within, cursor=cursor, reason=reason, **options),
            self.per_process.seconds + check_seconds(within, "within"),
        )
