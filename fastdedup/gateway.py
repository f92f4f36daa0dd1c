"""`Dedup`: the gate. The main path is `Dedup.claim` → `ClaimCall.__await__` → `Gate.begin_claim` → the engine."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Literal, NoReturn, Self, overload

from .admin.inspected import Inspected
from .admin.resolving import Check
from .arguments import CallRules
from .checks import Seconds, check_seconds
from .claim import Claim
from .claiming import claim_call, claim_list
from .codec import Codec, JSONCodec
from .compiled import mypyc_attr
from .core.calls import ClaimCall, key_call
from .core.common import Common, OnBatch
from .core.connections import Connections
from .core.gate import Gate
from .core.holder import check_holder
from .core.options import PLAIN, ClaimOptions
from .core.settings import Settings
from .errors import UsageError
from .events import OnEvent
from .fallback.base import FallbackPolicy
from .fallback.reject import Reject
from .kernel.keyspace import READABLE_BYTES
from .ledger.client import Ledger
from .ledger.settings import check_settings
from .lock import LockCall, lock_call
from .machine import StateMachine, Transitions
from .model import Batching, BreakerState
from .once import FewArguments, P, T, once
from .results.declared import R
from .stores import stores_of
from .stores.base import Credentials, Store
from .tokens import Tokens


@mypyc_attr(allow_interpreted_subclasses=True)
class Dedup(Inspected):
    """The gate in front of a side effect: `claim` answers "are you the first?", once, for each key.

    Open it once in each event loop (`async with dedup:` or `await dedup.open()`), and share it.

    Args:
        url: `memory://`, `redis://host:6379/0`, `rediss://…`, `unix:///path/redis.sock?db=0`,
            `redis+sentinel://h1,h2,h3/service/0` with every sentinel, `redis+cluster://h1,h2`,
            `sidecar:///path/fastdedup.sock`; or a store object of your own.
        namespace: prefix of every key, and the scope of the settings.
        lease: seconds that an owner has before another may take over.
        ttl: seconds that a success is remembered, from its completion on; also how long a dead claim's attempts are
            counted, from the end of its lease on. So `lease` may be longer than `ttl`.
        failure_ttl: seconds that a failure is remembered.
        token_ttl: seconds in which a token can be redeemed.
        timeout: seconds, the deadline of one operation. A token's use or a ledger's id that got no answer is undone
            before its error is raised, within one further `timeout`.
        replicas: replicas that must confirm each write (WAIT), within two fifths of `timeout`. A failover may still
            forget a write, but a write with too few confirmations is reported: see `on_shortfall`. Give the number
            of all replicas to learn of each such write, because a failover may choose one that has not confirmed it.
            A primary that restarts without its data loses confirmed writes too, because its replicas copy it: event
            `PrimaryRestarted`.
        on_unavailable: the policy while the store cannot answer: `Reject()` or `LocalLRU()`.
        on_shortfall: if fewer replicas confirm, "report" answers with `confirmed=False` and a `Shortfall` event,
            "raise" raises ShortfallError.
        codec: turns results into bytes; JSON by default.
        max_result: the most bytes of an encoded result, 255 MiB at most.
        max_pending: the most operations waiting or under way; one more raises UnavailableError.
        readable_keys: bytes of UTF-8 up to which a key is stored unchanged; a longer one becomes a 16-byte
            digest. 0 digests all, 1024 none.
        known_duplicates: seconds for which this process caches a known success; 0 turns that off. If another
            process forgets the key, this process notices it only after that time.
        on_event: called with each event of `fastdedup.events`.
        credentials: gives the login of each new connection to Redis, so that a password can be changed while
            the gate is open: a function, also an async function, that returns `(user name, password)`, or a
            `redis.credentials.CredentialProvider`. It must not block. Open connections keep their login. The
            URL then has no password; its user counts if the user name is None.
        holder: let each record of a claim or lock name its holder, for `inspect` and `list`: host and process, and
            if it is text also this label of 1 to 20 of A-Z a-z 0-9 _ . : -. Such a record takes some 20 to 50
            bytes more. A claim with `owner=` has its owner instead.

    Raises:
        ConfigError: a setting is wrong; the message names it.
    """

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
        settings = Settings(
            namespace=namespace,
            lease=check_seconds(lease, "lease"),
            ttl=check_seconds(ttl, "ttl"),
            failure_ttl=check_seconds(failure_ttl, "failure_ttl"),
            token_ttl=check_seconds(token_ttl, "token_ttl"),
            max_result=max_result,
            on_unavailable=Reject() if on_unavailable is None else on_unavailable,
            codec=JSONCodec() if codec is None else codec,
            readable_keys=readable_keys,
            holder=check_holder(holder),
        )
        common = Common(
            settings,
            timeout=timeout,
            max_pending=max_pending,
            replicas=replicas,
            on_shortfall=on_shortfall,
            known_duplicates=known_duplicates,
            on_event=on_event,
        )
        connections = Connections(common, stores_of(url, common.timeout, replicas, credentials))
        self._hold(Gate(connections, settings))

    def __repr__(self) -> str:
        settings = self._gate.settings
        return f"<Dedup namespace={settings.namespace!r} {settings.on_unavailable!r}>"

    # Life

    async def open(self) -> Self:
        """Open in the running event loop. If a store is only down, the policy answers: that is not an error.

        After `aclose` it can be opened again, also in another event loop: `memory://` then begins empty.
        If its event loop ended without `aclose`, it is opened again in the present one: `memory://` then
        keeps its records.

        Raises:
            ConfigError: the store cannot be used with its present set-up: it is too old, the password is wrong.
            UsageError: the gate is already open in a loop that still runs, or it is being closed.
        """
        await self._gate.connections.open()
        return self

    async def aclose(self) -> None:
        """Answer the accepted operations, then close, with all scopes. Closing twice is fine.

        Claims that were granted before are still settled, renewed and freed afterwards, until the event loop ends: a
        connection is opened for that, and closed at once. Only a gate on a URL can do that, and not on `memory://`.
        """
        await self._gate.connections.aclose()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    def __enter__(self) -> NoReturn:
        raise UsageError(
            "this is the asyncio gate: write `async with dedup:`; for `with`, `from fastdedup.sync import Dedup`"
        )

    def __exit__(self, *error: object) -> None:
        """Never reached: `with` is refused on entry."""

    @property
    def gate(self) -> Gate:
        """The part for integrations: operations, keys, the connections. See `fastdedup.core.gate.Gate`."""
        return self._gate

    @property
    def settings(self) -> Settings:
        """The settings of this gate's namespace, checked; times in seconds."""
        return self._gate.settings

    @property
    def tokens(self) -> Tokens:
        """One-time tokens: `issue`, `consume`, `redeem`. See `fastdedup.tokens.Tokens`."""
        return Tokens(self._gate)

    @property
    def is_open(self) -> bool:
        """True between `open` and `aclose`, for code that shares a gate and may be the first to use it.

        If the event loop that opened it has ended, it is no longer open, and can be opened in another one.
        """
        return self._gate.connections.is_open

    @property
    def pending(self) -> int:
        """Operations waiting or under way, of all scopes."""
        engine = self._gate.connection.engine
        return 0 if engine is None else engine.pending

    @property
    def in_flight(self) -> int:
        """Batches under way, of all scopes."""
        engine = self._gate.connection.engine
        return 0 if engine is None else engine.in_flight

    def on_batch(self, callback: OnBatch) -> None:
        """Call `callback` with the size of each batch that has ended, for metrics. Call this before opening.

        An error of the callback is logged, and stops no batch.
        """
        self._gate.connections.common.on_batch = callback

    @property
    def breaker(self) -> BreakerState:
        """OPEN while the store does not answer and gets no operations; PARTLY_OPEN for some nodes of a Cluster."""
        return self._gate.connections.breaker

    @property
    def batching(self) -> Batching:
        """How batches go to the store: WHOLE, or BY_SLOT on a Cluster that refuses scripts with undeclared keys."""
        return self._gate.connection.batching

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
        changed = self._gate.settings.within(
            name,
            lease=lease,
            ttl=ttl,
            failure_ttl=failure_ttl,
            token_ttl=token_ttl,
            on_unavailable=on_unavailable,
            codec=codec,
            max_result=max_result,
        )
        return self.with_settings(changed)

    def with_settings(self, settings: Settings, *, passing: bool = False) -> Self:
        """Return a gate with all these settings over the same connection, for code that keeps many namespaces.

        Args:
            settings: checked already; `replace(dedup.settings, namespace=…)` changes some of this gate's.
            passing: the gate serves only a few operations, and leaves nothing behind at its end.
        """
        return self._over(self._gate.with_settings(settings, passing=passing))

    # Claims

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
        resolve: Check | None = None,
    ) -> ClaimCall[R]:
        """Ask to be the first for `key`. Main path of the library.

        `claim = await dedup.claim(key)`: settle it yourself. `async with dedup.claim(key) as claim:`
        settles on the way out: `complete(None)` if the body did not settle, `release()` on an exception.

        Args:
            key: 1 to 1024 bytes of UTF-8 text.
            fingerprint: the request under this key: a value to digest, or a result of `fingerprint()`.
                Another one under the same key is a MISMATCH.
            owner: your own name for this claimant, 1 to 63 bytes, kept over retries and restarts; by default random.
                If a claim gets no reply, the gate releases it when the store answers again, but not a claim with your
                own name: claim again with the same name to get it.
            lease: seconds until another owner may take over.
            ttl: seconds that a success is remembered.
            wait: seconds to wait for a present owner to settle, and then get its result. If neither the store nor
                the policy answers, the claim looks again within this time before it raises UnavailableError.
            renew: keep the lease alive until settled; by default as long as the body of `async with` runs. If the
                lease is lost, that body is cancelled and ClaimLostError is raised.
            remember: the ledger that remembers a success for its window, in a tenth of a record's memory. The result
                is kept for a minute; a later duplicate is SUCCEEDED without it, and `claim.remembered` is True.
                Until it is settled, the claim is like any other. In an outage `LocalLRU` knows the ids that the
                store has lately reported, and asks the ledger when the store is back.
            returns: the type of the result. With `Receipt`, `replay()` of the `Claim[Receipt]` returns a Receipt.
                Without `codec=`, `complete` refuses a value that would come back as another one, except None.
            resolve: an async function that is asked before the work runs, if the key was held before (`attempt`
                above 1) or this `owner=` gets its own claim back: another owner may have done the work and died. It
                gets a `Takeover` and returns `Resolution.done(result)` (the claim is SUCCEEDED, for all callers),
                `.not_done()` (acquired: do the work) or `.unknown()` (FAILED). The lease is renewed meanwhile. If it
                raises an error, the claim raises it too, and the key is released.

        Raises:
            InvalidKeyError: the key or owner cannot be used.
            ConfigError: a time is not valid, the fingerprint cannot be digested, or `returns` cannot come back.
            UnavailableError: (on await) neither the store nor the policy answered; claim again
                with `owner=error.owner` to get this same claim back, if it had taken effect.
            ForeignRecordError: (on await) the key holds a value that fastdedup did not write.
            UsageError: (on await) not open, closed, or another event loop.
        """
        if (
            owner is None
            and lease is None
            and ttl is None
            and remember is None
            and returns is None
            and resolve is None
            and renew is None
            and wait is None
        ):
            return key_call(self._gate, PLAIN, key, fingerprint)
        options = ClaimOptions(owner, lease, ttl, wait, renew, remember, returns, resolve)
        return claim_call(self._gate, options, key, fingerprint)

    async def claim_many(
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
        options = ClaimOptions(owner, lease, ttl, wait, renew, remember, returns)
        return await claim_list(self._gate, options, keys, fingerprints)

    def lock(
        self,
        key: str,
        *,
        lease: Seconds | None = None,
        wait: Seconds | None = None,
        renew: bool | None = None,
    ) -> LockCall:
        """Return a mutual exclusion: `async with dedup.lock(key, wait=5.0) as lock:`. Nothing is remembered.

        Without `lease` it is renewed while the block runs, and its loss cancels the block. With `lease` it ends then.
        Raises InProgressError on entry if it is still held after `wait` seconds, UnavailableError if the store
        does not answer by then, ClaimLostError on leaving if another holder took over meanwhile. Send
        `lock.fence` with your writes.
        """
        return lock_call(self._gate, ClaimOptions(lease=lease, wait=wait, renew=renew), key)

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
        resolve: Check | None = None,
    ) -> Callable[[Callable[P, Awaitable[T]]], Callable[P, Coroutine[Any, Any, T]]]: ...

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
        resolve: Check | None = None,
    ) -> Callable[[Callable[P, Awaitable[T]]], Callable[P, Coroutine[Any, Any, T]]]: ...

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
        resolve: Check | None = None,
    ) -> Callable[[Callable[P, Awaitable[T]]], Callable[P, Coroutine[Any, Any, T]]]:
        """Decorate an async function to run once per key; later calls return the first result, of the declared type.

        An exception releases the key, so that the next call runs the function again.

        Args:
            key: returns the key; called with those arguments of the function that it names. Not async.
                `by("order.id")` makes one.
            name: stands before each key, so that two functions with equal keys stay apart. It is not the function's
                own name, because a rename would forget what was done.
            fingerprint: returns the request under this key; called like `key`. None: no comparison.
            lease: see `claim`.
            ttl: see `claim`.
            wait: see `claim`.
            renew: see `claim`.
            fail_on: types of exceptions that are recorded: later calls raise FailedError.
            remember: see `claim`; a call that comes a minute after the first one or later returns None.
            resolve: see `claim`: asked about abandoned work.

        Raises, when it is called:
            InProgressError: another call is at work, and `wait` is over.
            FailedError: the first call failed for good, or its result cannot come back; `error` says why.
            MismatchError: the key is known with another fingerprint.
            ResultError, ResultTooLargeError: the result cannot be stored. A failure is recorded, because the work is
                done.
            UnavailableError: see `claim`; with `unrecorded` the work is done.
            ConfigError: when it decorates: the function is not async, or `key` is, or takes an argument that the
                function does not have; or its type cannot come back.
        """
        options = ClaimOptions(
            lease=lease, ttl=ttl, wait=wait, renew=renew, remember=remember, resolve=resolve
        )
        return once(self._gate, options, CallRules(key, fingerprint, name), fail_on)

    def machine(
        self, name: str, *, initial: str, transitions: Transitions, ttl: Seconds = 30 * 86_400.0
    ) -> StateMachine:
        """Define a state machine whose instances live in the store. See `StateMachine`."""
        return StateMachine(self._gate, name, initial=initial, transitions=transitions, ttl=ttl)

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
        settings = check_settings(
            name,
            window=window,
            capacity=capacity,
            exact=exact,
            width=width,
            write=write,
            dense=dense,
            allow_eviction=allow_eviction,
        )
        return Ledger(self._gate, settings)
