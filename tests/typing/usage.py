"""What type checkers see: read by `mypy --strict`, never run."""

from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any, assert_type

import httpx
import requests
from redis.credentials import UsernamePasswordCredentialProvider

from fastdedup import (
    Claim,
    Codec,
    Dedup,
    FallbackPolicy,
    Fingerprint,
    Ledger,
    LedgerResize,
    LedgerStats,
    LocalLRU,
    Lock,
    Outcome,
    Record,
    Reject,
    State,
    StateMachine,
    Transition,
    TransitionOutcome,
    UnavailableError,
    business_key,
    fingerprint,
)
from fastdedup.client import Retry, RetryRules
from fastdedup.client.httpx import AsyncIdempotentTransport, IdempotentTransport
from fastdedup.client.requests import IdempotentAdapter
from fastdedup.events import (
    BatchedBySlot,
    BreakerClosed,
    BreakerOpened,
    ClockSkew,
    Conflict,
    ConsumerEnded,
    ConsumerPaused,
    ConsumerResumed,
    DeadLettered,
    Degraded,
    Event,
    GateBypassed,
    KeyForgotten,
    LeaseLost,
    LedgerFilling,
    PrimaryRestarted,
    PrimarySwitched,
    RecordsListed,
    Replayed,
    Shortfall,
    UndoOverflow,
    Unreplayed,
)
from fastdedup.kernel.operations import Op, Reply, Verdict
from fastdedup.sync import Dedup as SyncDedup
from fastdedup.web.inspection import forget_request, get_request


class Order:
    id: str


class Pickled:
    """A codec of one's own needs no base class."""

    def dumps(self, value: Any) -> bytes:
        return b""

    def loads(self, data: bytes) -> Any:
        return None


class Brave:
    """Nor does a policy."""

    def answer(self, op: Op, error: UnavailableError) -> Reply:
        return Verdict(Outcome.ACQUIRED, degraded=True)

    def holds(self, wire: bytes) -> bool:
        return False


def on_event(event: Event) -> None:
    match event:
        case Degraded() | BreakerOpened() | Unreplayed() | BatchedBySlot():
            assert_type(event.reason, str)
        case ConsumerPaused() | ConsumerEnded():
            assert_type(event.reason, str)
        case LeaseLost() | Conflict() | Shortfall() | KeyForgotten():
            assert_type(event.key, str)
        case BreakerClosed() | ConsumerResumed():
            assert_type(event.lasted, float)
        case PrimaryRestarted() | PrimarySwitched():
            assert_type(event.store, str)
        case ClockSkew():
            assert_type(event.offset_seconds, float)
        case _:
            assert_type(
                event, Replayed | UndoOverflow | RecordsListed | GateBypassed | LedgerFilling | DeadLettered
            )


async def login() -> tuple[None, str]:
    return None, "password"


def settings() -> None:
    codec: Codec = Pickled()
    policies: list[FallbackPolicy] = [Reject(retry_after=2.0), LocalLRU(maxsize=10), Brave()]
    dedup = Dedup("redis://h", lease=1, ttl=60.0, codec=codec, on_unavailable=policies[0], on_event=on_event)
    assert_type(dedup, Dedup)
    Dedup("redis://h", credentials=lambda: ("user", "password"))
    Dedup("redis://h", credentials=login)
    Dedup("redis://h", credentials=UsernamePasswordCredentialProvider("user", "password"))
    assert_type(dedup.scoped("sms", ttl=60.0, on_unavailable=Brave()), Dedup)


async def life() -> None:
    async with Dedup("memory://") as dedup:
        assert_type(dedup, Dedup)
    assert_type(await Dedup("memory://").open(), Dedup)


async def claims(dedup: Dedup) -> None:
    claim = await dedup.claim(
        "k", fingerprint={"a": 1}, owner="worker", lease=1.0, ttl=2.0, wait=3.0, renew=True
    )
    assert_type(claim, Claim)
    assert_type(claim.outcome, Outcome)
    assert_type(claim.acquired, bool)
    assert_type(claim.key, str)
    assert_type(claim.owner, str)
    assert_type(claim.fence, int)
    assert_type(claim.attempt, int)
    assert_type(claim.lease, float | None)
    assert_type(claim.retry_after, float | None)
    assert_type(claim.degraded, bool)
    assert_type(claim.result, Any)
    assert_type(claim.error, Any)
    await claim.complete({"a": 1}, ttl=5.0)
    await claim.fail(ValueError("no"))
    await claim.release()
    await claim.renew(lease=5.0)
    await claim.touch(ttl=5.0)
    async with dedup.claim("k") as entered:
        assert_type(entered, Claim)
    assert_type(await dedup.claim_many(["a", "b"], fingerprints=["x", b"y"]), list[Claim])


async def calls_are_coroutines(dedup: Dedup) -> None:
    import asyncio

    assert_type(await asyncio.create_task(dedup.claim("k")), Claim)
    assert_type(await asyncio.gather(dedup.claim("a"), dedup.claim("b")), tuple[Claim, Claim])
    async with asyncio.TaskGroup() as group:
        assert_type(group.create_task(dedup.claim("k")), asyncio.Task[Claim])


async def decorated(dedup: Dedup) -> None:
    def key(order: Order, *, retries: int = 0) -> str:
        return order.id

    @dedup.once(key=key, wait=2.0)
    async def place(order: Order, *, retries: int = 0) -> dict[str, int]:
        return {}

    assert_type(await place(Order(), retries=1), dict[str, int])
    await place("no order")  # type: ignore[arg-type] # the parameters stay those of the function
    await place(Order(), pieces=3)  # type: ignore[call-arg]

    @dedup.once(key=lambda order: f"order:{order.id}")
    async def place_shortly(order: Order) -> int:
        return 1

    assert_type(await place_shortly(Order()), int)

    def plain(order: Order, *, retries: int = 0) -> int:
        return 1

    dedup.once(key=key)(plain)  # type: ignore[arg-type] # a sync function is refused by the checker, too


async def once_keeps_the_result_type(
    dedup: Dedup, function: Callable[[int], Coroutine[Any, Any, str]]
) -> None:
    assert_type(await dedup.once(str)(function)(7), str)


async def locks(dedup: Dedup) -> None:
    async with dedup.lock("k", lease=5.0, wait=1.0) as lock:
        assert_type(lock, Lock)
        assert_type(lock.fence, int)


async def tokens(dedup: Dedup) -> None:
    token = await dedup.tokens.issue(subject="user:7", ttl=60.0)
    assert_type(token, str)
    assert_type(await dedup.tokens.consume(token, subject="user:7"), Outcome)
    assert_type(await dedup.tokens.redeem(token), Claim)
    async with dedup.tokens.redeem(token, "user:7", lease=5.0) as claim:
        assert_type(claim, Claim)


async def machines(dedup: Dedup) -> None:
    orders = dedup.machine(
        "order", initial="new", transitions={"new": ("paid", "canceled"), "paid": [], "canceled": ()}
    )
    assert_type(orders, StateMachine)
    move = await orders.transition("42", to="paid", version=3)
    assert_type(move, Transition)
    assert_type(move.outcome, TransitionOutcome)
    assert_type(move.changed, bool)
    assert_type((move.state, move.version), tuple[str, int])
    assert_type(await orders.get("42"), tuple[str, int])


async def ledgers(dedup: Dedup) -> None:
    ledger = dedup.ledger("orders", window=timedelta(days=7), capacity=600_000_000, exact=False, width=4)
    assert_type(ledger, Ledger)
    assert_type(await ledger.first("id", owner="worker"), bool)
    assert_type(await ledger.first_many(["id", b"id", 7]), list[bool])
    assert_type(await ledger.seen("id"), bool)
    assert_type(await ledger.forget("id"), bool)
    assert_type(await ledger.stats(), LedgerStats)
    assert_type(await ledger.resize(capacity=700_000_000), LedgerResize)
    assert_type(dedup.ledger("offsets", window=60, capacity=10, dense=True), Ledger)
    assert_type(await ledger.open(), Ledger)
    dedup.ledger("orders", window=60, capacity=10, write="get")  # type: ignore[arg-type]


async def inspection(dedup: Dedup) -> None:
    record = await dedup.get("k")
    assert_type(record, Record | None)
    if record is not None:
        assert_type(record.state, State)
        assert_type(record.lease, float | None)
        assert_type(record.fingerprint, bytes | None)
    assert_type(await dedup.forget("k"), bool)


async def web_records(dedup: Dedup, blocking: SyncDedup) -> None:
    assert_type(await get_request(dedup, "POST", "/orders", key="k"), Record | None)
    assert_type(get_request(blocking, "POST", "/orders", key="k"), Record | None)
    assert_type(await forget_request(dedup, "POST", "/orders", key="k"), bool)
    assert_type(forget_request(blocking, "POST", "/orders", key="k"), bool)


def keys() -> None:
    assert_type(business_key("user:7", 9, window=300), str)
    business_key(1.5)  # type: ignore[arg-type] # its text would not be stable
    assert_type(fingerprint({"a": 1}), Fingerprint)


def clients() -> None:
    def told(retry: Retry) -> None:
        assert_type((retry.status, retry.error), tuple[int | None, Exception | None])

    rules = RetryRules(attempts=3, within=timedelta(seconds=20), on_retry=told)
    httpx.Client(transport=IdempotentTransport(httpx.HTTPTransport(), rules=rules))
    httpx.AsyncClient(transport=AsyncIdempotentTransport(rules=rules))
    requests.Session().mount("https://", IdempotentAdapter(rules=rules, pool_maxsize=20))
