"""taskiq tasks behind the gate: its own receiver in this loop, a real Redis as broker, results and gate."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any
from uuid import UUID

import pytest
from taskiq import InMemoryBroker, SimpleRetryMiddleware, SmartRetryMiddleware, TaskiqMiddleware
from taskiq.receiver import Receiver
from taskiq_redis import RedisAsyncResultBackend, RedisStreamBroker

import fastdedup.sync
from fastdedup import ConfigError, Dedup, Resolution
from fastdedup.integrations.taskiq import DedupMiddleware
from fastdedup.messages import DeadLetterError

from ..fixtures import async_fixture
from ..kinds import Order, Rushed
from ..servers import RedisServer
from ..waiting import wait_until
from .consumers import Answers

runs: Counter[str] = Counter()


class Queue:
    """A broker with its receiver, and the gate."""

    def __init__(self, server: RedisServer, dedup: Dedup, wait: float, retries: TaskiqMiddleware) -> None:
        name = uuid.uuid4().hex
        backend: Any = RedisAsyncResultBackend(server.url, prefix_str=name, result_ex_time=60)
        broker = RedisStreamBroker(server.url, queue_name=f"forever-{name}", xread_block=50, consumer_id="0")
        self.dedup = dedup
        self.gate = DedupMiddleware(dedup, wait=wait)
        self.broker = broker.with_result_backend(backend)
        self.broker.add_middlewares(retries, self.gate)

    def task(self, body: Callable[..., Any], *, retry: bool = False, **options: Any) -> Any:
        return self.broker.task(task_name=uuid.uuid4().hex, retry_on_error=retry)(
            self.gate.once(**options)(body)
        )

    async def get(self, *tasks: Any) -> list[Any]:
        return [await each.wait_result(check_interval=0.01, timeout=20.0) for each in tasks]

    async def results(self, *tasks: Any) -> list[Any]:
        return [each.return_value for each in await self.get(*tasks)]


@asynccontextmanager
async def receiving(
    server: RedisServer, wait: float = 0.1, retries: TaskiqMiddleware | None = None
) -> AsyncIterator[Queue]:
    async with Dedup(server.url, namespace="t", lease=0.5, timeout=5.0) as dedup:
        queue = Queue(server, dedup, wait, retries or SimpleRetryMiddleware(default_retry_count=9))
        finished = asyncio.Event()
        await queue.broker.startup()
        receiver = Receiver(queue.broker, max_async_tasks=20, run_startup=False)
        listening = asyncio.create_task(receiver.listen(finished))
        try:
            yield queue
        finally:
            finished.set()
            await listening
            await queue.broker.shutdown()


async def count(name: str, total: int = 1) -> int:
    runs[name] += 1
    return runs[name]


queue = async_fixture(lambda server: receiving(server))


async def test_a_duplicate_gets_the_first_result(queue: Queue, name: str) -> None:
    task = queue.task(count, key=lambda name: name)
    sent = [await task.kiq(name), await task.kiq(name=name), await task.kiq(name, total=1)]
    assert await queue.results(*sent) == [1, 1, 1]


async def test_a_duplicate_gets_the_declared_type(queue: Queue, name: str) -> None:
    async def order(name: str) -> Order:
        runs[name] += 1
        return Order(UUID(int=1), datetime(2026, 1, 2), [])

    async def numbers(name: str) -> Any:
        return (1, 2)

    async def wide(name: str) -> int:
        runs[name] += 1
        return 2**70

    async def rushed(name: str) -> Order:
        return Rushed(UUID(int=1), datetime(2026, 1, 2), [])

    task = queue.task(order, key=lambda name: name)
    sent = [await task.kiq(name), await task.kiq(name)]
    first, again = await queue.results(*sent)
    assert runs[name] == 1
    assert first == again
    task = queue.task(wide, key=lambda name: f"w:{name}")
    sent = [await task.kiq(name), await task.kiq(name)]
    assert await queue.results(*sent) == [2**70, 2**70]
    assert runs[name] == 2
    task = queue.task(numbers, key=lambda name: f"n:{name}")
    sent = [await task.kiq(name), await task.kiq(name)]
    assert await queue.results(*sent) == [[1, 2], [1, 2]], "taskiq itself passes on JSON"
    task = queue.task(rushed, key=lambda name: f"r:{name}")
    (first,) = await queue.get(await task.kiq(name))
    (again,) = await queue.get(await task.kiq(name))
    assert not first.is_err
    assert "would come back as Order" in str(again.error)
    with pytest.raises(ConfigError, match="cannot come back"):
        queue.task(nothing_that_comes_back, key=lambda name: name)


async def nothing_that_comes_back(name: str) -> AsyncIterator[int]:
    raise AssertionError


async def test_a_redelivery_is_known_by_the_tasks_id(queue: Queue, name: str) -> None:
    task = queue.task(count)
    sent = [await task.kicker().with_task_id(name).kiq(name) for _ in range(3)]
    assert await queue.results(*sent) == [1] * 3
    assert await queue.results(await task.kiq(name)) == [2]


async def test_a_ledger_remembers_what_is_done(queue: Queue, name: str) -> None:
    ledger = queue.gate._dedup.ledger("done", window=60.0, capacity=1000)
    queue.gate._remember = ledger
    task = queue.task(count, key=lambda name: name)
    assert await queue.results(await task.kiq(name), await task.kiq(name)) == [1, 1]
    assert (await ledger.stats()).ids == 1
    with pytest.raises(ConfigError, match="remember must be a ledger of the gate's"):
        DedupMiddleware(queue.gate._dedup, remember="done")  # type: ignore[arg-type]


async def test_abandoned_work_is_resolved_before_the_task_runs_again(
    server: RedisServer, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    look_up = Answers(OSError("away"), Resolution.not_done(), Resolution.done(7), Resolution.unknown("?"))

    async def fail(name: str) -> None:
        await count(name)
        raise ValueError("declined")

    async with receiving(server) as queue:
        task = queue.task(fail, retry=True, key=lambda name: name, resolve=look_up.later)
        assert await queue.results(await task.kiq(name), await task.kiq(name)) == [7, 7]
        assert (runs[name], look_up.attempts) == (2, [2, 3, 4])
        (result,) = await queue.get(await task.kiq(f"{name}-unknown"))
        assert result.is_err
        assert runs[f"{name}-unknown"] == 1
        with pytest.raises(ConfigError, match="resolve must be a function"):
            queue.task(count, resolve="done")
    assert not [line for line in caplog.messages if line.startswith("attempt ")]  # taskiq logs each error


async def test_a_resolved_result_has_the_declared_type(queue: Queue, name: str) -> None:
    """Its JSON is enough, as for `Dedup.once`. Duplicates got an error, because a dict is no Order."""
    order = Order(UUID(int=1), datetime(2026, 1, 2), [])
    look_up = Answers(Resolution.done({"id": str(order.id), "at": "2026-01-02T00:00:00", "lines": []}))

    async def fail(name: str) -> Order:
        raise ValueError("declined")

    task = queue.task(fail, retry=True, key=lambda name: name, resolve=look_up.later)
    assert await queue.results(await task.kiq(name), await task.kiq(name)) == [order, order]
    assert look_up.attempts == [2]


async def test_a_twin_at_work_is_sent_again_and_never_at_once(queue: Queue, name: str) -> None:
    """The work takes several leases."""
    go, kicked = asyncio.Event(), 0

    async def work(name: str) -> int:
        await count(name)
        await go.wait()
        return runs[name]

    task = queue.task(work, key=lambda name: name)
    sent = [await task.kiq(name) for _ in range(2)]
    kick = queue.broker.kick

    async def counted(message: Any) -> None:
        nonlocal kicked
        kicked += 1
        await kick(message)

    queue.broker.kick = counted  # type: ignore[method-assign]
    begun = asyncio.get_running_loop().time()
    await wait_until(lambda: kicked >= 6, description="the twin came again")
    assert asyncio.get_running_loop().time() - begun > 0.4
    go.set()
    assert await queue.results(*sent) == [1, 1]


async def test_a_message_that_the_broker_does_not_take_again_is_held(
    queue: Queue, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without that, taskiq acknowledges it, though its work never ran, and its result is the broker's error."""
    monkeypatch.setattr("fastdedup.integrations.taskiq.REFUSED_PAUSE", 0.01)
    begun, failing, refused = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def fails_first(name: str, total: int) -> int:
        if total == 1:
            begun.set()
            await failing.wait()
            raise ValueError("the first message's work is not done")
        return await count(name)

    task = queue.task(fails_first, key=lambda name: name)
    kick = queue.broker.kick

    async def refusing(message: Any) -> None:
        refused.set()
        raise ConnectionError("the broker is away")

    first = await task.kiq(name, 1)
    await begun.wait()
    twin = await task.kiq(name, 2)
    monkeypatch.setattr(queue.broker, "kick", refusing)
    await refused.wait()
    monkeypatch.setattr(queue.broker, "kick", kick)
    failing.set()
    assert (await queue.get(first))[0].is_err
    assert await queue.results(twin) == [1]


async def test_a_message_that_meets_a_closed_gate_comes_again(
    queue: Queue, name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The gate may be closed first as a process ends. Work that was done then is not done again for that."""
    monkeypatch.setattr("fastdedup.integrations.taskiq.REFUSED_PAUSE", 0.01)
    task = queue.task(count, key=lambda name: name)
    await queue.dedup.aclose()
    sent = await task.kiq(name)
    told = "because the gate cannot be asked: UsageError("
    await wait_until(lambda: told in caplog.text, description="it is told")
    await queue.dedup.open()
    assert await queue.results(sent) == [1]

    async def closing(name: str) -> int:
        await queue.dedup.aclose()
        return await count(f"{name}-closing")

    caplog.clear()
    await queue.get(await queue.task(closing, key=lambda name: f"{name}-closing").kiq(name))
    assert (runs[f"{name}-closing"], told in caplog.text) == (1, False)


async def test_a_task_in_memory_without_a_gate_is_an_error() -> None:
    """As in Celery's eager mode: there is no broker that could deliver it later."""
    gate = DedupMiddleware(Dedup("memory://"))
    task = InMemoryBroker().with_middlewares(gate).task(gate.once()(count))
    result = await (await task.kiq("in-memory")).wait_result()
    assert "is not open" in str(result.error)


async def test_a_failure_frees_the_key_for_taskiqs_retries(queue: Queue, name: str) -> None:
    async def late(name: str) -> int:
        if await count(name) < 3:
            raise ValueError(name)
        return runs[name]

    task = queue.task(late, retry=True)
    sent = await task.kiq(name)
    results = await queue.get(sent)
    while results[0].is_err:  # taskiq keeps the error of each attempt, until the next one's result
        results = await queue.get(sent)
    assert results[0].return_value == 3


async def test_the_last_attempts_failure_is_the_duplicates_failure(queue: Queue, name: str) -> None:
    async def fail(name: str) -> None:
        await count(name)
        raise ValueError("declined")

    task = queue.task(fail, key=lambda name: name, attempts=2)
    errors = [(await queue.get(await task.kiq(name)))[0].error for _ in range(3)]
    assert [type(each).__name__ for each in errors] == ["ValueError", "ValueError", "FailedError"]
    assert "declined" in str(errors[2])
    assert runs[name] == 2


@pytest.mark.parametrize("retries", [SimpleRetryMiddleware, SmartRetryMiddleware])
async def test_a_task_that_no_attempt_can_help_is_not_sent_again(
    server: RedisServer, name: str, retries: type[TaskiqMiddleware]
) -> None:
    """It was, up to `max_retries`: its work would run again once its failure was forgotten."""

    async def fail(name: str, total: int = 1) -> None:
        await count(name)
        raise DeadLetterError("no such customer") if total == 1 else ValueError("declined")

    async with receiving(server, retries=retries(default_retry_count=9)) as queue:
        kick, kicked = queue.broker.kick, Counter[str]()

        async def counted(message: Any) -> None:
            kicked[message.task_id] += 1
            await kick(message)

        queue.broker.kick = counted  # type: ignore[method-assign]
        task = queue.task(
            fail, retry=True, key=lambda name: name, fingerprint=lambda total: total, attempts=1
        )
        calls = [(name, 1), (name, 1), (name, 2), (f"{name}-last", 2)]
        results = [(await queue.get(await task.kiq(*each)))[0].error for each in calls]
        errors = [type(each).__name__ for each in results]
        assert errors == ["DeadLetterError", "FailedError", "MismatchError", "ValueError"]
    assert [*kicked.values()] == [1, 1, 1, 1]


async def test_another_call_with_the_same_key_is_a_mismatch(queue: Queue, name: str) -> None:
    task = queue.task(count, key=lambda name: name, fingerprint=lambda total: total)
    assert await queue.results(await task.kiq(name, 1)) == [1]
    assert "another message had the same key" in str((await queue.get(await task.kiq(name, 2)))[0].error)


async def test_a_direct_call_is_a_plain_call(queue: Queue, name: str) -> None:
    task = queue.task(count, key=lambda name: name)
    assert [await task(name), await task(name)] == [1, 2]

    async def calling(name: str, within: bool = False) -> int:
        return await count(name) if within else await outer(name, True) + await task(name) * 10

    outer = queue.task(calling, key=lambda name: name)
    assert await queue.results(await outer.kiq(name)) == [43]


def charge(order_id: str) -> None: ...


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"key": lambda order: order}, "key= takes 'order', which is not an argument of the task"),
        ({"key": "name"}, "key= must be a function of the task's arguments"),
        ({"attempts": 0}, "attempts must be a whole number"),
    ],
)
def test_a_wrong_setting_is_refused_at_the_start(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        DedupMiddleware(Dedup("memory://")).once(**options)(count)


def test_a_key_must_outlive_the_idle_timeout() -> None:
    gate = DedupMiddleware(Dedup("memory://", ttl=600.0))
    RedisStreamBroker("redis://localhost", idle_timeout=600_000).with_middlewares(gate)
    with pytest.raises(ConfigError, match=r"600.001 s \(idle_timeout\).*set ttl= of the Dedup above"):
        RedisStreamBroker("redis://localhost", idle_timeout=600_001).with_middlewares(gate)
    InMemoryBroker().with_middlewares(DedupMiddleware(Dedup("memory://", ttl=0.1)))


def test_what_blocks_is_refused() -> None:
    with pytest.raises(ConfigError, match="once\\(\\) decorates async functions"):
        DedupMiddleware(Dedup("memory://")).once()(charge)  # type: ignore[arg-type]
    with pytest.raises(
        ConfigError,
        match=r"taskiq is asynchronous: dedup must be a fastdedup.Dedup, got fastdedup.sync.gateway.Dedup",
    ):
        DedupMiddleware(fastdedup.sync.Dedup("memory://"))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"wait must be between 0.1 s"):
        DedupMiddleware(Dedup("memory://"), wait=0.0)
