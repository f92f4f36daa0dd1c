"""`Dedup`: the gate. The main path is `Dedup.claim` → `ClaimCall.__await__` → `Engine.submit` → the store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from time import monotonic
from types import TracebackType
from typing import Any, Literal, ParamSpec, Self, TypeVar

from . import codec as codecs
from .checks import check_seconds
from .claim import Claim
from .claims.call import ClaimCall
from .codec import Codec, JSONCodec, check_size
from .compiled import mypyc_attr
from .engine.engine import OnBatch
from .errors import ConfigError, InvalidKeyError, foreign
from .events import OnEvent
from .fallback.base import FallbackPolicy
from .fallback.reject import Reject
from .gate.connection import Connection
from .gate.namespace import Scope
from .gate.settings import Settings
from .keys import digest
from .lock import LockCall
from .machine import StateMachine, Transitions
from .model import BreakerState, Record, State
from .once import once
from .protocol.keyspace import READABLE_BYTES, Keyspace, Kind
from .protocol.operations import Code, ForgetOp, Mode, ReadOp, Stored
from .protocol.owners import draw_owner, owner_field, owner_text
from .stores.base import Store
from .tokens import Tokens

P = ParamSpec("P")
T = TypeVar("T")

_STATES = {
    "I": State.ISSUED,
    "P": State.PROCESSING,
    "W": State.PROCESSING,
    "R": State.RELEASED,
    "S": State.SUCCEEDED,
    "F": State.FAILED,
}


@mypyc_attr(allow_interpreted_subclasses=True)
class Dedup(Scope):
    """The gate in front of a side effect: `claim` answers "are you the first?", once, for each key.

    Open it once in each event loop (`async with dedup:` or `await dedup.open()`), and share it.

    Args:
        url: `memory://`, `redis://host:6379/0`, `rediss://…`, `unix:///path/redis.sock?db=0`,
            `redis+sentinel://h1,h2/service/0`, `redis+cluster://h1,h2`, `sidecar:///path/fastdedup.sock`;
            or a store object of your own.
        namespace: prefix of every key, and the scope of the settings.
        lease: seconds that an owner has before another may take over.
        ttl: seconds that a success is remembered; also how long a dead claim's attempts are counted.
        failure_ttl: seconds that a failure is remembered.
        token_ttl: seconds in which a token can be redeemed.
        timeout: seconds, the deadline of one operation.
        replicas: replicas that shall confirm each write (WAIT), within two fifths of `timeout`. It narrows
            the window in which a failover forgets a write that was acknowledged, and shows when it
            stands open; it does not close it (see README).
        on_shortfall: where fewer confirm, "report" answers with `confirmed=False` and a `Shortfall` event,
            "raise" raises ShortfallError.
        on_unavailable: the policy while the store cannot answer: `Reject()` or `LocalLRU()`.
        codec: how results become bytes; JSON by default.
        max_result: bytes of an encoded result at most.
        max_pending: operations waiting or under way at most; one more raises UnavailableError.
        readable_keys: bytes of UTF-8 up to which a key is stored as it is; a longer one becomes a 16-byte
            digest. 0 digests all, 1024 none.
        known_duplicates: seconds for which a success that the store has told may be told again from this
            process's memory; 0 turns that off. When another process forgets the key, it is seen that late.
        on_event: called with each event of `fastdedup.events`.

    Raises:
        ConfigError: a setting is wrong; the message names it.
    """

    def __init__(
        self,
        url: str | Store = "memory://",
        *,
        namespace: str = "fastdedup",
        lease: float = 30.0,
        ttl: float = 86_400.0,
        failure_ttl: float = 3_600.0,
        token_ttl: float = 300.0,
        timeout: float = 0.25,
        replicas: int = 0,
        on_shortfall: Literal["report", "raise"] = "report",
        on_unavailable: FallbackPolicy | None = None,
        codec: Codec | None = None,
        max_result: int = 256 * 1024,
        max_pending: int = 65_536,
        readable_keys: int = READABLE_BYTES,
        known_duplicates: float = 1.0,
        on_event: OnEvent | None = None,
    ) -> None:
        if codec is not None and (isinstance(codec, type) or not isinstance(codec, Codec)):
            raise ConfigError(f"codec has dumps() and loads(), as an object; {codec!r} has not")
        if on_event is not None and not callable(on_event):
            raise ConfigError(f"on_event is called with each event; {on_event!r} cannot be")
        policy = Reject() if on_unavailable is None else on_unavailable
        settings = Settings(
            namespace=namespace,
            lease=lease,
            ttl=ttl,
            failure_ttl=failure_ttl,
            token_ttl=token_ttl,
            max_result=max_result,
            on_unavailable=policy,
            codec=JSONCodec() if codec is None else codec,
            readable_keys=readable_keys,
        )
        core = Connection(
            url,
            timeout=timeout,
            max_pending=max_pending,
            replicas=replicas,
            on_shortfall=on_shortfall,
            known_duplicates=known_duplicates,
            on_event=on_event,
            namespace=namespace,
        )
        self._set_up(core, settings)

    def _set_up(self, core: Connection, settings: Settings) -> None:
        super().__init__(core, settings)
        self._claims = Keyspace(settings.namespace, Kind.CLAIM, readable=settings.readable_keys)
        self._locks = Keyspace(settings.namespace, Kind.LOCK, readable=settings.readable_keys)
        self.tokens = Tokens(self)

    def __repr__(self) -> str:
        return f"<Dedup namespace={self.settings.namespace!r} {self._policy!r}>"

    # Life

    async def open(self) -> Self:
        """Open in the running event loop. A store that is merely down is the policy's matter, not an error.

        Raises:
            ConfigError: the store can never be used as it is set up: too old, a wrong password.
            UsageError: open already, or closed.
        """
        await self._core.open()
        return self

    async def aclose(self) -> None:
        """Answer what was accepted, then close, with all scopes. Closing twice is fine."""
        await self._core.aclose()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    @property
    def is_open(self) -> bool:
        """True between `open` and `aclose`, for who shares a gate and may be the first to use it."""
        return self._core.engine is not None

    @property
    def pending(self) -> int:
        """Operations waiting or under way, of all scopes."""
        return 0 if self._core.engine is None else self._core.engine.pending

    @property
    def in_flight(self) -> int:
        """Batches under way, of all scopes."""
        return 0 if self._core.engine is None else self._core.engine.in_flight

    def on_batch(self, callback: OnBatch) -> None:
        """Call `callback` with the size of each batch that starts; say so before opening. For metrics."""
        self._core.on_batch = callback

    @property
    def breaker(self) -> BreakerState:
        """OPEN while the store does not answer and is not asked; PARTLY_OPEN where some nodes of a Cluster do not."""
        return self._core.breaker

    def scoped(
        self,
        name: str | None = None,
        *,
        lease: float | None = None,
        ttl: float | None = None,
        failure_ttl: float | None = None,
        token_ttl: float | None = None,
        on_unavailable: FallbackPolicy | None = None,
        codec: Codec | None = None,
        max_result: int | None = None,
    ) -> Dedup:
        """Return a gate for the namespace `<this namespace>:<name>` over the same connection.

        Settings not given are this one's; without a name the namespace is, too. It opens and closes with
        this one.
        """
        given = {
            "lease": lease,
            "ttl": ttl,
            "failure_ttl": failure_ttl,
            "token_ttl": token_ttl,
            "on_unavailable": on_unavailable,
            "codec": codec,
            "max_result": max_result,
        }
        changes: dict[str, Any] = {option: value for option, value in given.items() if value is not None}
        namespace = self.settings.namespace if name is None else f"{self.settings.namespace}:{name}"
        return self.with_settings(replace(self.settings, namespace=namespace, **changes))

    def with_settings(self, settings: Settings) -> Dedup:
        """Return a gate with these settings over the same connection; `scoped` is the way for users."""
        scope = type(self).__new__(type(self))
        scope._set_up(self._core, settings)
        return scope

    # Claims

    def claim(
        self,
        key: str,
        *,
        fingerprint: Any = None,
        owner: str | None = None,
        lease: float | None = None,
        ttl: float | None = None,
        wait: float = 0.0,
        renew: bool = False,
    ) -> ClaimCall:
        """Ask to be the first for `key`. Main path of the library.

        `claim = await dedup.claim(key)`: settle it yourself. `async with dedup.claim(key) as claim:`
        settles on the way out: `complete(None)` if the body did not settle, `release()` on an exception.

        Args:
            key: 1 to 1024 bytes of UTF-8 text.
            fingerprint: what is asked under this key: 16 bytes as of `fingerprint()`, or a value to digest.
                Another one under the same key is a MISMATCH.
            owner: your own name for this claimant, kept over retries and restarts; drawn at random by default.
            lease: seconds until another may take over.
            ttl: seconds that a success is remembered.
            wait: seconds to wait for a present owner to settle, so that the answer is its result.
            renew: keep the lease alive until settled; should it be lost, the `async with` body is
                cancelled and ClaimLostError raised.

        Raises:
            InvalidKeyError: the key or owner cannot be used.
            ConfigError: a time is none, or the fingerprint's value cannot be digested.
            UnavailableError: (on await) the store did not answer and the policy does not either.
            ForeignRecordError: (on await) the key holds a value that fastdedup did not write.
            UsageError: (on await) not open, closed, or another event loop.
        """
        mark = None if fingerprint is None else digest(fingerprint)
        if wait:
            check_seconds(wait, "wait", least=0.0)
        if self._known and isinstance(key, str):  # empty but in a storm
            known = self._known.get(key)
            if (
                known is not None
                # Of another fingerprint only the store can judge, which knows the record's own.
                and known.mark == mark
                and monotonic() < known.until
                and owner is None
                and lease is None
                and ttl is None
                and self._core.engine is not None
            ):
                return known
        call = ClaimCall(
            self,
            key,
            self._claims.wire(key),
            self.claim_terms if lease is None and ttl is None else self.terms(Mode.CLAIM, lease, ttl),
            draw_owner() if owner is None else owner_field(owner),
            mark,
        )
        if owner is not None:
            call.named = True
        if wait or renew:
            call.set_patience(wait, renew)
        return call

    async def claim_many(
        self,
        keys: Sequence[str],
        *,
        fingerprints: Sequence[Any] | None = None,
        owner: str | None = None,
        lease: float | None = None,
        ttl: float | None = None,
        wait: float = 0.0,
        renew: bool = False,
    ) -> list[Claim]:
        """Claim many keys at once, each on its own; the answers stand in the order of the keys.

        Where one cannot be answered its error is raised, and those that were acquired are released.
        Arguments and errors as for `claim`; `fingerprints` gives one for each key.
        """
        if isinstance(keys, str | bytes):
            raise InvalidKeyError(
                "claim_many() takes a list of keys, not one text: its characters would be the keys"
            )
        marks = [None] * len(keys) if fingerprints is None else fingerprints
        if len(marks) != len(keys):
            raise ConfigError(f"{len(marks)} fingerprints for {len(keys)} keys: give one for each")
        options: dict[str, Any] = {"owner": owner, "lease": lease, "ttl": ttl, "wait": wait, "renew": renew}
        calls = [self.claim(key, fingerprint=mark, **options) for key, mark in zip(keys, marks, strict=True)]
        tasks = [asyncio.ensure_future(call) for call in calls]
        try:
            return list(await asyncio.gather(*tasks))
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.shield(self.keep(_release_all(tasks, owner is not None)))
            raise

    def lock(
        self, key: str, *, lease: float | None = None, wait: float = 0.0, renew: bool = False
    ) -> LockCall:
        """Return a mutual exclusion: `async with dedup.lock(key, wait=5.0) as lock:`. Nothing is remembered.

        Raises InProgressError on entry where it is still held after `wait` seconds, ClaimLostError on
        leaving where another holder took over meanwhile. Hand `lock.fence` to what you write to.
        """
        seconds = self.settings.lease if lease is None else lease
        call = ClaimCall(
            self,
            key,
            self._locks.wire(key),
            self.terms(Mode.CLAIM, seconds, seconds),
            draw_owner(),
            None,
        )
        call.set_patience(wait, renew)
        return LockCall(call)

    def once(
        self,
        key: Callable[..., str],
        *,
        fingerprint: Callable[..., Any] | None = None,
        lease: float | None = None,
        ttl: float | None = None,
        wait: float = 0.0,
        renew: bool = True,
        fail_on: tuple[type[Exception], ...] = (),
    ) -> Callable[[Callable[P, Awaitable[T]]], Callable[P, Coroutine[Any, Any, T]]]:
        """Decorate an async function to run once per key; later calls return the first result. See `once.py`."""
        return once(
            self,
            key,
            fingerprint=fingerprint,
            fail_on=fail_on,
            options={"lease": lease, "ttl": ttl, "wait": wait, "renew": renew},
        )

    def machine(
        self, name: str, *, initial: str, transitions: Transitions, ttl: float = 30 * 86_400.0
    ) -> StateMachine:
        """Define a state machine whose instances live in the store. See `StateMachine`."""
        return StateMachine(self, name, initial=initial, transitions=transitions, ttl=ttl)

    def claim_wire(self, key: bytes) -> bytes:
        """Return the store key of a claim by its key's UTF-8; for who keeps no text of it."""
        return self._claims.wire_of(key)

    def check_result(self, payload: bytes) -> None:
        """Raise ResultTooLargeError where a result as bytes exceeds `max_result`."""
        check_size(payload, self.settings.max_result)

    # Inspection and administration

    async def get(self, key: str) -> Record | None:
        """Return what the store holds under `key`, or None. For inspection: to decide, claim."""
        wire = self._claims.wire(key)
        reply = await self.run(ReadOp(wire))
        if reply == Code.ABSENT:
            return None
        if not isinstance(reply, Stored) or reply.state not in _STATES:
            raise foreign(key)
        return self._record(key, reply)

    async def forget(self, key: str) -> bool:
        """Remove the record of `key`, whoever owns it; False where there was none. The key is new again."""
        wire = self._claims.wire(key)
        try:
            reply = await self.run(ForgetOp(wire))
        finally:
            self._known.drop(key)  # also where the answer is lost: it may have taken effect
        if reply == Code.FOREIGN:
            raise foreign(key)
        return reply == Code.OK

    def _record(self, key: str, stored: Stored) -> Record:
        state = _STATES[stored.state]
        value = codecs.decode(self.settings.codec, stored.payload)
        return Record(
            key=key,
            state=state,
            owner=owner_text(stored.owner),
            fence=stored.fence,
            attempt=stored.attempt,
            lease=stored.left_ms / 1000 if state is State.PROCESSING else None,
            ttl=stored.ttl_ms / 1000,
            fingerprint=stored.fingerprint,
            result=value if state is State.SUCCEEDED else None,
            error=value if state is State.FAILED else None,
        )


async def _release_all(tasks: Sequence[asyncio.Task[Claim]], named: bool) -> None:
    """Free what was acquired on behalf of a caller who does not get to know of it."""
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    # A claim that the same named owner held before is that earlier call's to settle. An owner drawn
    # for this call held nothing before: told so, it lost the first reply.
    claims = [
        answer
        for answer in answers
        if isinstance(answer, Claim) and answer.acquired and (answer.first_hand or not named)
    ]
    await asyncio.gather(*[claim.release() for claim in claims], return_exceptions=True)
