"""`sync.Dedup`, for synchronous code. Main path: `Dedup.claim` → `LoopThread.run` → `fastdedup.Dedup.claim`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, Self, overload

from ..arguments import CallRules
from ..checks import Seconds, check_seconds
from ..codec import Codec
from ..core.options import ClaimOptions
from ..core.settings import Settings
from ..events import OnEvent
from ..fallback.base import FallbackPolicy
from ..gateway import Dedup as AsyncDedup
from ..kernel.keyspace import READABLE_BYTES
from ..machine import Transitions
from ..model import Batching, BreakerState
from ..once import FewArguments, P, T
from ..results.declared import R
from ..stores.base import Credentials, Store
from .background import Bound, PerProcess
from .claim import Claim, answered
from .claiming import claim_list_now, claim_now
from .inspected import Inspected
from .ledger import Ledger
from .lock import LockCall
from .machine import StateMachine
from .once import once
from .resolving import SyncCheck
from .tokens import Tokens

_STEPS = 8
"""The longest time of a call, opening included, in deadlines of one operation."""


class Dedup(Inspected):
    """The gate in front of a side effect, for synchronous code. Arguments and settings: see `fastdedup.Dedup`.

    Make it once, at module level, and share it among threads. It opens when first used. A forked process opens a
    connection of its own, and its `LocalLRU` begins without records. Call `close`, or use `with`; it also closes when
    it is collected, and at the interpreter's end, which takes a second at most.

    `on_event`, the codec's `dumps` and a policy of your own are called in a background thread: they must neither
    block nor call this `Dedup`.
    """

    def _init(self, url: str | Store, *, timeout: Seconds, **settings: Any) -> None:
        make = partial(AsyncDedup, url, timeout=timeout, **settings)
        seconds = _STEPS * check_seconds(timeout, "timeout")
        self._hold(PerProcess(make, reusable=isinstance(url, str), seconds=seconds), lambda dedup: dedup)

    @classmethod
    def _over(cls, per_process: PerProcess, derive: Callable[[AsyncDedup], AsyncDedup]) -> Self:
        dedup = cls.__new__(cls)
        cls._hold(dedup, per_process, derive)
        return dedup

    def _hold(self, per_process: PerProcess, derive: Callable[[AsyncDedup], AsyncDedup]) -> None:
        self.per_process = per_process
        """For integrations: makes the asyncio `Dedup` of each process. All gates from `scoped` share it."""
        self.bound = Bound(per_process, derive)
        """For integrations: `background, dedup = bound.get()` returns this process's asyncio `Dedup`; see `bind`."""
        self.tokens = Tokens(self.bind(lambda dedup: dedup.tokens))
        """One-time tokens. See `fastdedup.tokens.Tokens`."""

    def __repr__(self) -> str:
        return f"<sync.Dedup namespace={self.settings.namespace!r}>"

    def open(self) -> Self:
        """Open now instead of at the first use, so that mistakes show at start-up. Opening twice is fine.

        After `close` this opens it again: `memory://` then begins empty.

        Raises:
            ConfigError: the store cannot be used with its present set-up.
        """

        async def opened() -> None:
            """Do nothing: `BackgroundDedup.run` opens before it calls this."""

        self.per_process.reopen()
        self.per_process.background().run(opened, self.per_process.seconds)
        return self

    def close(self) -> None:
        """Answer the accepted operations, then close, with all gates from `scoped`. Closing twice is fine.

        A later use of it raises a UsageError, until `open` or `with` opens it again.
        """
        self.per_process.close()

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def breaker(self) -> BreakerState:
        """The state of the breaker: OPEN while the store gets no operations, because it did not answer."""
        return self.bound.get()[1].breaker

    @property
    def batching(self) -> Batching:
        """How batches go to the store; see `fastdedup.Dedup.batching`."""
        return self.bound.get()[1].batching

    def _scoped(self, name: str | None, **changes: Any) -> Self:
        derive = self.bound.make
        return self._over(self.per_process, lambda dedup: derive(dedup).scoped(name, **changes))

    def bind(self, make: Callable[[AsyncDedup], T]) -> Bound[T]:
        """Return an object that is made from the asyncio `Dedup`, for integrations that work in its thread.

        `background, made = bound.get()`, then `background.run(lambda: made.something(), seconds)`, or
        `await background.arun(...)`.
        """
        derive = self.bound.make
        return Bound(self.per_process, lambda dedup: make(derive(dedup)))

    def _claim(self, key: str, fingerprint: Any, *options: Any) -> Claim:
        """Ask to be the first for `key`, and block for the answer. Main path of the module.

        `claim = dedup.claim(key)`: settle it yourself. `with dedup.claim(key) as claim:` settles on the way
        out: `complete(None)` if the body did not settle, `release()` on an exception. For arguments and errors
        see `fastdedup.Dedup.claim`; for `renew` see `Claim`. `resolve` is a function that is not async, and is called
        in the caller's thread.
        """
        return claim_now(self.bound, ClaimOptions(*options), key, fingerprint)

    def _claim_many(
        self, keys: Sequence[str], fingerprints: Sequence[Any] | None, *options: Any
    ) -> list[Claim]:
        return claim_list_now(self.bound, ClaimOptions(*options), keys, fingerprints)

    def _lock(self, key: str, **options: Any) -> LockCall:
        """Return a mutual exclusion, which remembers nothing: `with dedup.lock(key, wait=5.0) as lock:`.

        Entering raises InProgressError if the lock is still held after `wait` seconds; leaving raises
        ClaimLostError if another holder took over. Pass `lock.fence` to what you write to.
        """
        return LockCall(lambda: answered(self.bound, lambda dedup: dedup.lock(key, **options).call))

    def _once(
        self,
        key: Callable[..., str],
        *,
        name: str | None,
        fingerprint: Callable[..., Any] | None,
        fail_on: tuple[type[Exception], ...],
        **options: Any,
    ) -> Callable[[Callable[P, T]], Callable[P, T]]:
        """Decorate a function to run once per key; later calls return the first result.

        Arguments and errors as for `fastdedup.Dedup.once`; no function is async here.
        """
        return once(self.bound, ClaimOptions(**options), CallRules(key, fingerprint, name), fail_on)

    # The rest of the class is written by scripts/write_sync.py, which `make format` runs.

    def __init__(
        self,
        url: str | Store,
        *,
        namespace: str = "fastdedup",
        lease: Seconds = 30.0,
        ttl: Seconds = 86_400.0,
        failure_ttl: Seconds = 3_600.0,
        token_ttl: Seconds = 300.0,
        timeout: Seconds = 0.25,
        replicas: int = 0,
        on_unavailable: FallbackPolicy | None = None,
        on_shortfall: Literal["report", "raise"] = "report",
        codec: Codec | None = None,
        max_result: int = 256 * 1024,
        max_pending: int = 65_536,
        readable_keys: int = READABLE_BYTES,
        known_duplicates: Seconds = 1.0,
        on_event: OnEvent | None = None,
        credentials: Credentials | None = None,
        holder: str | bool = False,
    ) -> None:
        self._init(
            url,
            namespace=namespace,
            lease=lease,
            ttl=ttl,
            failure_ttl=failure_ttl,
            token_ttl=token_ttl,
            timeout=timeout,
            replicas=replicas,
            on_unavailable=on_unavailable,
            on_shortfall=on_shortfall,
            codec=codec,
            max_result=max_result,
            max_pending=max_pending,
            readable_keys=readable_keys,
            known_duplicates=known_duplicates,
            on_event=on_event,
            credentials=credentials,
            holder=holder,
        )

    @property
    def settings(self) -> Settings:
        """The settings of this gate's namespace, checked; times in seconds."""
        return self.bound.latest.settings

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
        """Return a gate for the namespace `<this namespace>:<name>` over the same connection.

        Settings that are not given are those of this gate; without a name, so is the namespace. It opens and
        closes with this gate.
        """
        return self._scoped(
            name,
            lease=lease,
            ttl=ttl,
            failure_ttl=failure_ttl,
            token_ttl=token_ttl,
            on_unavailable=on_unavailable,
            codec=codec,
            max_result=max_result,
        )

    def claim(
        self,
        key: str,
        *,
        fingerprint: Any = None,
        owner: str | None = None,
        lease: Seconds | None = None,
        ttl: Seconds | None = None,
        wait: Seconds | None = None,
        renew: bool | None = None,
        remember: Ledger | None = None,
        returns: type[R] | None = None,
        resolve: SyncCheck | None = None,
    ) -> Claim[R]:
        """Ask to be the first for `key`, and block for the answer. Main path of the module.

        `claim = dedup.claim(key)`: settle it yourself. `with dedup.claim(key) as claim:` settles on the way
        out: `complete(None)` if the body did not settle, `release()` on an exception. For arguments and errors
        see `fastdedup.Dedup.claim`; for `renew` see `Claim`. `resolve` is a function that is not async, and is called
        in the caller's thread.
        """
        return self._claim(key, fingerprint, owner, lease, ttl, wait, renew, remember, returns, resolve)

    def claim_many(
        self,
        keys: Sequence[str],
        *,
        fingerprints: Sequence[Any] | None = None,
        owner: str | None = None,
        lease: Seconds | None = None,
        ttl: Seconds | None = None,
        wait: Seconds | None = None,
        renew: bool | None = None,
        remember: Ledger | None = None,
        returns: type[R] | None = None,
    ) -> list[Claim[R]]:
        """Claim many keys at once, each on its own; the answers have the order of the keys.

        This costs half as much as the same claims one by one. A key that is in the list twice is acquired once; with
        `owner=`, both answers are of one holding. If a claim gets no answer, its error is raised, and the acquired
        claims are released. More than 2,000 keys are sent in parts, and the first leases begin first. If a lease is
        over when the waits end, its key is asked for again. Arguments, errors: see `claim`; `fingerprints`: one each.
        """
        return self._claim_many(keys, fingerprints, owner, lease, ttl, wait, renew, remember, returns)

    def lock(
        self,
        key: str,
        *,
        lease: Seconds | None = None,
        wait: Seconds | None = None,
        renew: bool | None = None,
    ) -> LockCall:
        """Return a mutual exclusion, which remembers nothing: `with dedup.lock(key, wait=5.0) as lock:`.

        Entering raises InProgressError if the lock is still held after `wait` seconds; leaving raises
        ClaimLostError if another holder took over. Pass `lock.fence` to what you write to.
        """
        return self._lock(key, lease=lease, wait=wait, renew=renew)

    # In two: a checker gives the parameters of a lambda a type only if it knows their number.
    @overload
    def once(
        self,
        key: FewArguments[str],
        *,
        name: str | None = None,
        fingerprint: FewArguments[Any] | None = None,
        lease: Seconds | None = None,
        ttl: Seconds | None = None,
        wait: Seconds | None = None,
        renew: bool = True,
        fail_on: tuple[type[Exception], ...] = (),
        remember: Ledger | None = None,
        resolve: SyncCheck | None = None,
    ) -> Callable[[Callable[P, T]], Callable[P, T]]: ...

    @overload
    def once(  # type: ignore[overload-cannot-match]
        self,
        key: Callable[..., str],
        *,
        name: str | None = None,
        fingerprint: Callable[..., Any] | None = None,
        lease: Seconds | None = None,
        ttl: Seconds | None = None,
        wait: Seconds | None = None,
        renew: bool = True,
        fail_on: tuple[type[Exception], ...] = (),
        remember: Ledger | None = None,
        resolve: SyncCheck | None = None,
    ) -> Callable[[Callable[P, T]], Callable[P, T]]: ...

    def once(
        self,
        key: Callable[..., str],
        *,
        name: str | None = None,
        fingerprint: Callable[..., Any] | None = None,
        lease: Seconds | None = None,
        ttl: Seconds | None = None,
        wait: Seconds | None = None,
        renew: bool = True,
        fail_on: tuple[type[Exception], ...] = (),
        remember: Ledger | None = None,
        resolve: SyncCheck | None = None,
    ) -> Callable[[Callable[P, T]], Callable[P, T]]:
        """Decorate a function to run once per key; later calls return the first result.

        Arguments and errors as for `fastdedup.Dedup.once`; no function is async here.
        """
        return self._once(
            key,
            name=name,
            fingerprint=fingerprint,
            lease=lease,
            ttl=ttl,
            wait=wait,
            renew=renew,
            fail_on=fail_on,
            remember=remember,
            resolve=resolve,
        )

    def machine(
        self, name: str, *, initial: str, transitions: Transitions, ttl: Seconds = 30 * 86_400.0
    ) -> StateMachine:
        """Define a state machine whose instances live in the store. See `StateMachine`."""
        return StateMachine(
            self.bind(lambda it: it.machine(name, initial=initial, transitions=transitions, ttl=ttl))
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
        """Return a ledger, which remembers ids for days in some 12 bytes each. See `Ledger`.

        Args:
            name: 1 to 64 characters; every process that uses the ledger passes the same settings with it.
            window: seconds, or a timedelta, for which an id is remembered.
            capacity: ids in one window, best 4/3 of those that you expect: at four fifths, LedgerFilling is reported.
                It may hold more ids, but gets slower then; it takes no memory beforehand.
            exact: a new id is taken for a duplicate once in 6 * 10**14 times (7 bytes of digest). False: 4 bytes,
                once in 27 million times.
            width: bytes of digest if these two do not suit: 16 is as much as a UUID, 3 needs exact=False.
            write: "set" rewrites a bucket after 12 new ids, "append" after 40: that sends a fifth
                less to replicas and the append-only file, for a tenth more memory.
            dense: the ids are integers that nearly follow each other, such as auto-increment ids or a partition's
                offsets: some 0.4 bytes each.
            allow_eviction: do not refuse a store that evicts keys when its memory is full.

        Raises:
            ConfigError: a setting is not valid; the message names it.
        """
        return Ledger(
            self.bind(
                lambda it: it.ledger(
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
