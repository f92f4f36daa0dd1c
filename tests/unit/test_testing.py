"""What `fastdedup.testing` gives to users' tests, without pytest's plugin; docs/testing.md is tested beside it."""

from __future__ import annotations

import asyncio
import gc
import logging
import sqlite3
import threading
import warnings
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from fastdedup import (
    Claim,
    ClaimLostError,
    Dedup,
    InProgressError,
    LocalLRU,
    Outcome,
    Resolution,
    State,
    Takeover,
    UnavailableError,
)
from fastdedup.errors import ConfigError, UsageError
from fastdedup.events import BreakerClosed, BreakerOpened, Event
from fastdedup.model import BreakerState
from fastdedup.sql import Inbox
from fastdedup.sync import Dedup as SyncDedup
from fastdedup.sync.sql import Inbox as SyncInbox
from fastdedup.testing import (
    Clock,
    FakeStore,
    Kind,
    assert_claimed_once,
    assert_not_claimed,
    claims_of,
    fake_dedup,
    fake_sync_dedup,
    inbox_database,
    swapped,
)
from fastdedup.tokens import draw_token

from ..test_record_commands import answered
from ..waiting import wait_until

NOWHERE = "redis://localhost:1/0"
"""No server listens there: a gate that is not swapped shows itself by an UnavailableError."""


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Users' tests may turn warnings into errors, and read their logs."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gc.collect()
    assert not [record.getMessage() for record in caplog.records if record.levelname in ("WARNING", "ERROR")]


@pytest.fixture
def dedup(store: FakeStore) -> Dedup:
    return fake_dedup(store)


class App:
    """A module with a gate, and with what such modules make of one while they are imported."""

    def __init__(self, **settings: Any) -> None:
        self.dedup = Dedup(NOWHERE, namespace="app", **settings)
        self.sync = SyncDedup(NOWHERE, namespace="app")
        self.scope = self.dedup.scoped("scope", lease=5.0)
        self.tokens = self.dedup.tokens
        self.clicks = self.dedup.ledger("clicks", window=60.0, capacity=1000)
        self.orders = self.dedup.machine("order", initial="new", transitions={"new": ("paid",), "paid": ()})
        self.sync_scope = self.sync.scoped("scope")
        self.runs: list[object] = []
        once: Any = self.dedup.once(key=lambda number: f"run:{number}")
        self.run: Callable[[object], Coroutine[Any, Any, object]] = once(self._run)
        self.sync_run: Callable[[object], object] = self.sync.once(key=lambda number: f"run:{number}")(
            self._sync_run
        )

    async def _run(self, number: object) -> object:
        return self._sync_run(number)

    def _sync_run(self, number: object) -> object:
        self.runs.append(number)
        return number


APP = App()
"""At module level, as `swapped("…")` names it."""


# Time


async def test_time_stands_still_until_it_is_moved(store: FakeStore) -> None:
    dedup = fake_dedup(store, lease=30.0, ttl=60.0)
    claim = await dedup.claim("k")
    store.clock.advance(29.999)
    assert not (await dedup.claim("k")).acquired
    store.clock.advance(0.001)
    assert (await dedup.claim("k")).attempt == 2
    with pytest.raises(ClaimLostError):
        await claim.complete()


async def test_a_records_age_is_the_time_by_which_the_clock_was_moved(store: FakeStore, dedup: Dedup) -> None:
    for number in range(10):
        await dedup.claim(f"order:{number}")
    store.clock.advance(60)
    stuck = (await dedup.records(state=State.PROCESSING, older=60.0)).records
    assert [record.age for record in stuck] == [60.0] * 10
    record = await dedup.get("order:9")
    assert record is not None
    assert record.age == 60.0


async def test_tokens_ledgers_and_results_end_by_the_same_clock(store: FakeStore) -> None:
    dedup = fake_dedup(store, ttl=60.0, token_ttl=60.0)
    seen = dedup.ledger("seen", window=60.0, capacity=100)
    token = await dedup.tokens.issue()
    assert await seen.first("id")
    assert not await seen.first("id")
    async with dedup.claim("k") as claim:
        await claim.complete("result")
    assert (await dedup.claim("k")).result == "result"
    store.clock.advance(61)
    assert (await dedup.claim("k")).acquired
    assert await dedup.tokens.consume(token) is Outcome.UNKNOWN
    assert await seen.first("id")


async def test_a_waiter_looks_again_when_time_passes(store: FakeStore, dedup: Dedup) -> None:
    await dedup.claim("k")
    waiting = asyncio.create_task(dedup.claim("k", wait=10.0))
    await wait_until(lambda: claims_of(dedup, "k").duplicates.total() >= 2, description="it waits")
    store.clock.advance(30)
    assert (await waiting).attempt == 2


async def test_a_lease_that_ends_in_an_outage_stops_the_body(store: FakeStore, dedup: Dedup) -> None:
    steps: list[str] = []

    async def work() -> None:
        async with dedup.claim("k", renew=True) as claim:
            with store.outage():
                store.clock.advance(10)
                assert not claim.lost
                store.clock.advance(20)
            steps.append("before")
            await asyncio.Event().wait()
            steps.append("after")

    async with dedup:  # its end waits for what frees the lost claim
        with pytest.raises(ClaimLostError, match="was lost while its body ran"):
            await work()
        assert steps == ["before"]
        assert (await dedup.claim("k")).attempt == 2


def test_a_clock_keeps_exact_time_and_does_not_go_back() -> None:
    clock = Clock(1_700_000_000.0)
    for _ in range(10):
        clock.advance(0.1)
    assert clock.now == clock() == 1_700_000_001.0
    clock.move_to(1_700_000_002.5)
    assert clock.now == 1_700_000_002.5
    with pytest.raises(ConfigError, match="does not go back"):
        clock.move_to(1.0)
    with pytest.raises(ConfigError, match="seconds"):
        clock.advance(-1)
    assert clock.now == 1_700_000_002.5


# Outages


async def test_a_refusing_store_opens_the_breaker_until_it_is_back(store: FakeStore) -> None:
    events: list[Event] = []
    async with fake_dedup(store, on_event=events.append) as dedup:
        with store.outage("refused"):
            for _ in range(4):
                with pytest.raises(UnavailableError):
                    await dedup.claim("k")
            assert dedup.breaker is BreakerState.OPEN
        assert dedup.breaker is BreakerState.CLOSED
        assert (await dedup.claim("k")).acquired
    assert [type(event) for event in events if isinstance(event, BreakerOpened | BreakerClosed)] == [
        BreakerOpened,
        BreakerClosed,
    ]


@pytest.mark.parametrize("kind", ["frozen", "lost_reply"])
async def test_what_nobody_was_told_of_is_taken_back(store: FakeStore, kind: Kind) -> None:
    """At once when the outage ends: a test's next claim finds a free key."""
    async with fake_dedup(store, timeout=0.3) as dedup:
        token = await dedup.tokens.issue()
        store.outage.start(kind)
        with pytest.raises(UnavailableError):
            await dedup.claim("k")
        with pytest.raises(UnavailableError):
            await dedup.tokens.consume(token)
        assert claims_of(dedup, "k").times == (0 if kind == "frozen" else 1)
        store.outage.stop()
        assert claims_of(dedup, "k").acquisitions[0].end == "released"
        assert (await dedup.claim("k")).attempt == 2
        assert await dedup.tokens.consume(token) is Outcome.ACQUIRED


async def test_a_lost_reply_has_taken_effect(store: FakeStore, dedup: Dedup) -> None:
    with store.outage("lost_reply", times=1):
        with pytest.raises(UnavailableError) as told:
            await dedup.claim("k")
        assert store.outage.kind is None
        again = await dedup.claim("k", owner=told.value.owner)
    assert again.acquired
    assert_claimed_once(dedup, "k")


async def test_a_handler_that_meets_an_outage_completes_after_it(store: FakeStore, dedup: Dedup) -> None:
    async with dedup.claim("k") as claim:
        store.outage.start("refused", times=2)
        await claim.complete("charged")  # tried again until the lease ends
    assert (await dedup.claim("k")).result == "charged"


async def test_local_answers_come_into_the_store_when_it_is_back(store: FakeStore) -> None:
    dedup = fake_dedup(store, on_unavailable=LocalLRU())
    with store.outage():
        async with dedup.claim("k") as claim:
            assert claim.degraded
            await claim.complete("locally")
        store.clock.advance(86_401)
        assert (await dedup.claim("k")).acquired, "the policy's time is the clock's"

    async def adopted() -> bool:
        return not (await dedup.claim("other")).degraded and (await dedup.get("k")) is not None

    await wait_until(adopted, description="the store has what the policy made")
    await dedup.aclose()


def test_a_wrong_outage_is_refused(store: FakeStore) -> None:
    wrong: Any = "down"
    with pytest.raises(ConfigError, match="one of refused, frozen, lost_reply, got 'down'"):
        store.outage.start(wrong)
    with pytest.raises(ConfigError, match="goes on at stop"):
        store.outage.start("frozen", times=1)
    with store.outage(), pytest.raises(UsageError, match="on already"):
        store.outage.start("frozen")
    assert store.outage.kind is None
    store.outage.stop()


# Event loops and threads


def test_a_gate_works_in_each_event_loop_one_after_another(store: FakeStore, dedup: Dedup) -> None:
    async def claim() -> Any:
        async with dedup.claim("k") as claim:
            if not claim.acquired:
                return claim.replay()
            return await claim.complete("first")

    assert [asyncio.run(claim()) for _ in range(3)] == [None, "first", "first"]
    assert not dedup.is_open


async def test_a_gate_works_in_two_event_loops_at_a_time(store: FakeStore, dedup: Dedup) -> None:
    """A waiter in another thread's loop is woken by news, as another process is by Redis."""
    results: list[object] = []

    async def wait() -> None:
        results.append((await dedup.claim("k", wait=10.0)).replay())

    async with dedup.claim("k") as claim:
        thread = threading.Thread(target=lambda: asyncio.run(wait()))
        thread.start()
        await wait_until(lambda: claims_of(dedup, "k").duplicates.total() >= 2, description="it waits")
        await claim.complete("told")
    await wait_until(lambda: results, description="it was woken")
    thread.join()
    assert results == ["told"]


def test_outside_of_its_loop_the_breaker_is_seen(store: FakeStore, dedup: Dedup) -> None:
    async def ask() -> None:
        await asyncio.gather(*(dedup.claim(f"k{number}") for number in range(3)), return_exceptions=True)

    with asyncio.Runner() as runner:
        assert dedup.breaker is BreakerState.CLOSED
        with store.outage():
            for _ in range(3):
                runner.run(ask())
            assert dedup.breaker is BreakerState.OPEN
        runner.run(dedup.aclose())


async def test_an_application_may_open_and_close_it(store: FakeStore, dedup: Dedup) -> None:
    await dedup.claim("before")
    for _ in range(2):
        async with dedup:
            assert dedup.is_open
            assert not (await dedup.claim("before")).acquired
            with pytest.raises(UsageError, match="open already"):
                await dedup.open()
        assert not dedup.is_open
    assert not (await dedup.claim("before")).acquired


def test_a_loop_that_has_ended_renews_no_lease(store: FakeStore, dedup: Dedup) -> None:
    async def begin() -> Claim:
        return await dedup.claim("k").__aenter__()

    async def take_over() -> int:
        return (await dedup.claim("k")).attempt

    claim = asyncio.run(begin())
    store.clock.advance(31)
    assert (claim.attempt, asyncio.run(take_over())) == (1, 2)


def test_a_synchronous_gate_shares_the_store(store: FakeStore) -> None:
    dedup, sync = fake_dedup(store), fake_sync_dedup(store, on_unavailable=LocalLRU())
    with sync.claim("k") as claim:
        claim.complete("sync")

    async def ask() -> Any:
        return (await dedup.claim("k")).result

    assert asyncio.run(ask()) == "sync"
    assert_claimed_once(sync, "k", end="completed")
    sync.close()


def test_a_synchronous_block_keeps_its_lease_from_its_first_line(store: FakeStore) -> None:
    """Its renewal begins in the background thread, which must come first when the clock is moved at once."""
    made = fake_sync_dedup(store)
    with swapped(APP.sync, store=store):
        for sync in (made, APP.sync):
            with sync.claim("k"):
                store.clock.advance(100)
                assert sync.claim("k").outcome is Outcome.IN_PROGRESS
            assert_claimed_once(sync, "k", end="completed")
    made.close()


# An application's own gate


async def test_all_that_was_made_of_a_gate_is_swapped() -> None:
    with swapped(f"{__name__}.APP.dedup") as store:
        APP.runs.clear()
        assert [await APP.run(7), await APP.run(7)] == [7, 7]
        assert APP.runs == [7]
        assert_claimed_once(APP.dedup, "run:7", end="completed")
        await APP.scope.claim("k")
        store.clock.advance(5)
        assert (await APP.scope.claim("k")).attempt == 2
        assert claims_of(APP.dedup.scoped("scope"), "k").times == 2
        token = await APP.tokens.issue()
        assert [await APP.tokens.consume(token) for _ in range(2)] == [Outcome.ACQUIRED, Outcome.SUCCEEDED]
        assert [await APP.clicks.first("id") for _ in range(2)] == [True, False]
        assert (await APP.orders.transition("1", to="paid")).changed
        assert len(store) > 0


def test_two_tests_share_nothing() -> None:
    for _ in range(2):
        with swapped(APP.dedup, APP.sync):
            asyncio.run(first_of_its_test())


async def first_of_its_test() -> None:
    assert (await APP.dedup.claim("k")).attempt == 1
    assert await APP.clicks.first("shared")
    assert (await APP.orders.transition("shared", to="paid")).changed


def test_a_synchronous_gate_is_swapped_with_its_scopes() -> None:
    for _ in range(2):
        APP.runs.clear()
        with swapped(APP.sync) as store:
            assert [APP.sync_run(7), APP.sync_run(7)] == [7, 7]
            assert APP.runs == [7]
            assert_claimed_once(APP.sync, "run:7", end="completed")
            APP.sync_scope.claim("k")
            assert_claimed_once(APP.sync_scope, "k", end="at work")
            assert_not_claimed(APP.sync, "k")
            with store.outage(), pytest.raises(UnavailableError):
                APP.sync_run(8)


async def test_afterwards_a_gate_is_as_it_was() -> None:
    app = App(on_unavailable=LocalLRU(), timeout=1.0)
    policy = app.dedup.settings.on_unavailable
    gate = app.dedup.gate

    def state() -> list[dict[str, Any]]:
        return [dict(vars(each)) for each in (policy, gate.connections, gate.connection)]

    before = state()
    with swapped(app.dedup, app.sync) as store:
        await app.run(1)
        with store.outage():
            await app.run(2)
        await app.dedup.aclose()
    assert state() == before
    with pytest.raises(UsageError, match="not open"):
        await app.run(3)
    with pytest.raises(UsageError, match="only a gate on a FakeStore"):
        claims_of(app.dedup, "run:1")


def test_what_a_scopes_policy_answered_ends_with_the_swap() -> None:
    """Also where the scope was not named: its journal would go to the store that is opened next."""
    policy = LocalLRU()
    scope = APP.dedup.scoped("local", on_unavailable=policy)

    async def claim_in_an_outage(store: FakeStore) -> list[bool]:
        with store.outage():
            return [(await scope.claim("k")).acquired for _ in range(2)]

    for _ in range(2):
        with swapped(APP.dedup) as store:
            assert asyncio.run(claim_in_an_outage(store)) == [True, False]
        assert policy.lines == 0


async def test_swaps_stand_within_each_other() -> None:
    with swapped(APP.dedup) as outer:
        await APP.dedup.claim("outer")
        with swapped(APP.dedup) as inner:
            assert (await APP.dedup.claim("outer")).acquired
        with swapped(APP.scope, store=outer):
            assert not (await APP.dedup.claim("outer")).acquired
        assert not (await APP.dedup.claim("outer")).acquired
    assert (len(outer), len(inner)) == (1, 1)


async def test_an_open_gate_is_not_swapped() -> None:
    async with Dedup("memory://", namespace="open") as dedup:
        with pytest.raises(UsageError, match="swap it before the application opens it"), swapped(dedup):
            pass


def test_an_open_synchronous_gate_is_not_swapped() -> None:
    dedup = SyncDedup("memory://", namespace="open")
    dedup.claim("k")
    for gate in (dedup, dedup.scoped("scope")):
        with (
            pytest.raises(UsageError, match=r"is open, since its first use.* call close\(\) first"),
            swapped(gate),
        ):
            pass
    dedup.close()
    with swapped(dedup, dedup.scoped("scope")), swapped(dedup):
        dedup.claim("k")
        with swapped(dedup):  # open, and a test's own
            assert dedup.claim("k").acquired
    with pytest.raises(UsageError, match="open it again first"):
        dedup.claim("k")
    dedup.open()
    assert dedup.claim("k").acquired
    dedup.close()


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("nowhere.dedup", "there is no 'nowhere.dedup': write it as 'package.module.dedup'"),
        ("dedup", "there is no 'dedup': write it as"),
        ("..a", r"there is no '\.\.a': write it as 'package\.module\.dedup'"),
        ("a..b", "write it as"),
        (f"{__name__}.APP.gate", "has no attribute 'gate'"),
        (f"{__name__}.NOWHERE", "takes a Dedup or a fastdedup.sync.Dedup, or its place, got str"),
    ],
)
def test_a_place_without_a_gate_is_refused(place: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message), swapped(place):
        pass


# What was claimed


async def test_a_failed_assertion_tells_who_had_the_key(store: FakeStore, dedup: Dedup) -> None:
    await (await dedup.claim("k", owner="one")).release()
    claim = await dedup.claim("k", owner="two")
    assert not (await dedup.claim("k")).acquired
    await claim.fail("no money")
    with pytest.raises(AssertionError) as told:
        assert_claimed_once(dedup, "k")
    assert str(told.value).splitlines() == [
        "'k' was claimed 2 times, not once:",
        "  1. attempt 1 by owner one: released",
        "  2. attempt 2 by owner two: failed",
        "  duplicates that the store answered: 1 in_progress",
    ]
    with pytest.raises(AssertionError, match="claimed 2 times, not never"):
        assert_not_claimed(dedup, "k")
    with pytest.raises(AssertionError, match=r"never claimed; of the namespace 'test' these keys were: 'k'"):
        assert_claimed_once(dedup, "other")
    with pytest.raises(AssertionError, match="no key of the namespace 'test:scope' was"):
        assert_claimed_once(dedup.scoped("scope"), "k")


@pytest.mark.parametrize("make", [fake_dedup, fake_sync_dedup], ids=["async", "sync"])
def test_a_web_request_is_named_by_its_route_and_key(store: FakeStore, make: Callable[..., Any]) -> None:
    asyncio.run(_post_twice(store))
    asked = make(store)
    seen = assert_claimed_once(asked, "k-1", http=("POST", "/orders/{id}"), principal="ann", end="completed")
    assert seen.key.startswith("POST /orders/{id}|=")
    assert_not_claimed(asked, "k-1", http=("POST", "/orders/{id}"), principal="bob")
    by_text, by_number = (claims_of(asked, "k", http=("POST", "/"), principal=who).key for who in ("7", 7))
    assert by_text == by_number
    with pytest.raises(AssertionError) as told:
        assert_claimed_once(asked, "k-1")
    assert str(told.value) == (
        "'k-1' was never claimed; no key of the namespace 'test' was; of the namespace 'test:http' these keys "
        f'were: {seen.key!r}. A web request is named by http=("POST", "/orders"), principal= and its key'
    )
    with pytest.raises(UsageError, match=r"principal= belongs to a web request"):
        assert_not_claimed(asked, "k-1", principal="ann")
    if make is fake_sync_dedup:
        asked.close()


async def _post_twice(store: FakeStore) -> None:
    async with fake_dedup(store) as dedup:
        for _ in range(2):
            await answered(dedup)


async def test_an_assertion_may_ask_how_it_ended(store: FakeStore, dedup: Dedup) -> None:
    claim = await dedup.claim("k")
    with pytest.raises(AssertionError, match="claimed once, and is at work, not completed"):
        assert_claimed_once(dedup, "k", end="completed")
    await claim.complete()
    assert assert_claimed_once(dedup, "k", end="completed").times == 1


async def test_long_keys_and_remembered_claims_are_found(store: FakeStore, dedup: Dedup) -> None:
    ledger = dedup.ledger("done", window=60.0, capacity=100)
    for key in ("short", "long" * 50):
        for remember in (None, ledger):
            name = f"{key}{remember is None}"
            async with dedup.claim(name, remember=remember):
                pass
            assert_claimed_once(dedup, name, end="completed")
        await dedup.claim(key)
        store.clock.advance(30)
        await dedup.claim(key)
        assert [each.end for each in claims_of(dedup, key).acquisitions] == ["taken over", "at work"]


async def test_the_same_owner_again_is_one_acquisition(store: FakeStore, dedup: Dedup) -> None:
    for _ in range(2):
        assert (await dedup.claim("k", owner="me")).acquired
    assert_claimed_once(dedup, "k")
    with pytest.raises(InProgressError):
        (await dedup.claim("k")).replay()


ANY: Any = "redis://user:secret@localhost"  # what is given by mistake
MISTAKES: list[tuple[Callable[[], object], str]] = [
    (
        lambda: fake_dedup(ANY),
        r"must be a FakeStore, got str; a gate that has a URL is put on one by swapped\(gate\)",
    ),
    (lambda: fake_sync_dedup(ANY), "must be a FakeStore, got str"),
    (lambda: swapped(store=ANY).__enter__(), "must be a FakeStore, got str"),
    (lambda: FakeStore(ANY), r"clock must be a fastdedup.testing.Clock, got str: use Clock\(now\)"),
    (lambda: Clock(float("nan")), "must be a number of seconds since 1970, like time.time.., got nan"),
    (lambda: Clock(-1.0), "got -1.0"),
    (lambda: Clock(1_700_000_000_000.0), "got 1700000000000.0"),
    (lambda: Clock().move_to(None), "must be a number of seconds since 1970.*got None"),  # type: ignore[arg-type]
    (lambda: Clock().move_to(float("inf")), "got inf"),
    (
        lambda: claims_of(None, "k"),
        "must be a Dedup or a fastdedup.sync.Dedup, got NoneType: give the object",
    ),  # type: ignore[arg-type]
    (lambda: assert_not_claimed("k", ANY), "must be a Dedup or a fastdedup.sync.Dedup, got str"),  # type: ignore[arg-type]
    (
        lambda: claims_of(fake_dedup(), "k", http="POST /x"),
        r'a method and a path such as \("POST", "/orders"\), got str',
    ),  # type: ignore[arg-type]
    (lambda: claims_of(fake_dedup(), "k", http=("POST", None)), "a method and a path"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("call", "message"), MISTAKES)
def test_a_mistake_is_named(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as told:
        call()
    assert "secret" not in str(told.value)


# The inbox


@pytest.mark.parametrize("kind", ["refused", "frozen"])
async def test_what_the_policy_answers_counts_as_claimed(store: FakeStore, kind: Kind) -> None:
    """Else `assert_not_claimed` passes where the work was done."""
    dedup = fake_dedup(store, timeout=0.05, on_unavailable=LocalLRU())
    async with dedup:
        with store.outage(kind):
            async with dedup.claim("mail:7") as claim:
                assert claim.degraded
            assert not (await dedup.claim("mail:7")).acquired
            assert_claimed_once(dedup, "mail:7", end="completed")
            with pytest.raises(AssertionError, match="1 times, not never"):
                assert_not_claimed(dedup, "mail:7")

        async def is_home() -> bool:
            return await dedup.get("mail:7") is not None

        await wait_until(is_home, description="the record is in the store")
        assert_claimed_once(dedup, "mail:7")


async def test_locks_and_tokens_are_named_by_their_kind(store: FakeStore, dedup: Dedup) -> None:
    async with dedup.lock("nightly"):
        pass
    used, unused = await dedup.tokens.issue(), await dedup.tokens.issue()
    await dedup.tokens.consume(used)
    assert_claimed_once(dedup, "nightly", kind="lock", end="released")
    assert_claimed_once(dedup, used, kind="token", end="consumed")
    assert_not_claimed(dedup, unused, kind="token")
    assert_not_claimed(dedup, "nightly")
    with pytest.raises(AssertionError, match='but a lock of this name was: give kind="lock"'):
        assert_claimed_once(dedup, "nightly")
    with pytest.raises(AssertionError, match=r"no key of the namespace 'test' was$"):
        assert_claimed_once(dedup, "another")
    with pytest.raises(UsageError, match="leave out kind='lock'"):
        claims_of(dedup, "k", kind="lock", http=("POST", "/orders"))


@pytest.mark.parametrize("ask", [claims_of, assert_claimed_once, assert_not_claimed])
async def test_a_machine_is_not_claimed(store: FakeStore, ask: Callable[..., object], dedup: Dedup) -> None:
    """Nothing notes who has moved it: `assert_not_claimed` passed after a transition."""
    orders = dedup.machine("order", initial="new", transitions={"new": ("paid",), "paid": ()})
    assert (await orders.transition("42", to="paid")).changed
    with pytest.raises(ConfigError, match=r"moved, not claimed.* compare its state: dedup\.get"):
        ask(dedup, "order/42", kind="machine")
    record = await dedup.get("order/42", kind="machine")
    assert record is not None
    assert record.result == "paid"
    with pytest.raises(ConfigError, match="kind must be one of claim, lock, token, got str"):
        ask(dedup, "order/42", kind="machines")


def test_a_token_begins_with_no_dash(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = iter(["-" * 32, "a" * 32])
    monkeypatch.setattr("secrets.token_urlsafe", lambda size: next(drawn))
    assert draw_token() == "a" * 32


async def test_a_gate_s_log_lines_have_its_own_name(
    store: FakeStore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "fastdedup")  # whatever another test has made of it
    for gate in (fake_dedup(store, namespace="one"), fake_dedup(store, namespace="two")):
        async with gate:
            with store.outage("refused"), pytest.raises(UnavailableError):
                await gate.claim("k")
    told = [record.getMessage() for record in caplog.records if "does not answer" in record.getMessage()]
    assert [line.split(":")[0] for line in told] == ["gate 'one'", "gate 'two'"]


def test_an_inbox_is_tried_out_on_sqlite(tmp_path: Path) -> None:
    sync, other = SyncInbox("testing-a", keep=600), Inbox("testing-b", keep=600)
    for path in (":memory:", tmp_path / "test.db", tmp_path / "test.db"):
        with inbox_database(sync, other, path=path) as connection, connection:
            connection.execute("DELETE FROM fastdedup_inbox")
            assert [sync.receive(connection, "m").first for _ in range(2)] == [True, False]
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        connection.execute("SELECT 1")


async def test_what_is_stuck_is_listed_and_resolved(store: FakeStore) -> None:
    async def paid(takeover: Takeover) -> Resolution:
        return Resolution.done(f"attempt {takeover.attempt - 1}")

    async with Dedup(store, lease=30.0) as dedup:
        await dedup.claim("k")
        store.clock.advance(61)
        assert [record.key for record in (await dedup.records(older=60)).records] == ["k"]
        assert (await dedup.claim("k", resolve=paid)).result == "attempt 1"
        with store.outage("refused"), pytest.raises(UnavailableError):
            await dedup.records()


async def test_a_lease_whose_outcome_was_not_recorded_ends(store: FakeStore, dedup: Dedup) -> None:
    """As in life: it was renewed for as long as somebody held the claim."""
    claims: list[Claim] = []

    async def work() -> None:
        async with dedup.claim("order:42", lease=3.0, renew=True) as claim:
            claims.append(claim)
            await asyncio.sleep(0)
            store.outage.start("refused")
            await claim.complete("done", within=0.0)

    with pytest.raises(UnavailableError) as caught:
        await work()
    assert caught.value.unrecorded
    store.outage.stop()
    store.clock.advance(3.1)
    assert (await dedup.claim("order:42")).attempt == 2
    assert claims[0].acquired
