"""Dramatiq actors behind the gate: a worker of threads in this process, a real Redis as broker, results and gate."""

from __future__ import annotations

import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import date
from typing import Any

import dramatiq
import pytest
import redis
from dramatiq.brokers.redis import RedisBroker
from dramatiq.brokers.stub import StubBroker
from dramatiq.encoder import PickleEncoder
from dramatiq.middleware import Callbacks, Middleware, Pipelines, Retries, SkipMessage
from dramatiq.results import ResultFailure, Results
from dramatiq.results.backends import RedisBackend

import fastdedup
from fastdedup import ConfigError, Resolution
from fastdedup.events import LeaseLost
from fastdedup.integrations.dramatiq import ActorOptionError, DedupMiddleware, message_id
from fastdedup.messages import DeadLetterError, blocking
from fastdedup.messages.keys import gate_key
from fastdedup.sync import Dedup

from ..fixtures import fixture_with
from ..servers import RedisServer
from .consumers import Answers
from .worker_process import until


class Skipping(Middleware):
    """Another middleware, behind the gate's, that skips a message once."""

    def __init__(self) -> None:
        self.left = 0

    def before_process_message(self, broker: Any, message: Any) -> None:
        if self.left:
            self.left -= 1
            raise SkipMessage("another middleware's reason")


class Queue:
    """A broker, its actors, and what they did."""

    def __init__(self, server: RedisServer, dedup: Dedup) -> None:
        self.results = RedisBackend(client=redis.Redis(unix_socket_path=str(server.socket)))
        self.skipping = Skipping()
        retries = Retries(min_backoff=10, max_backoff=20)
        middleware = [Pipelines(), Callbacks(), retries, Results(backend=self.results)]
        middleware += [DedupMiddleware(dedup, wait=0.05), self.skipping]
        self.broker = RedisBroker(
            middleware=middleware, client=redis.Redis(unix_socket_path=str(server.socket))
        )
        self.runs: Counter[str] = Counter()
        self.go = threading.Event()

    def actor(self, body: Callable[..., Any], **options: Any) -> Any:
        def run(name: str, *args: Any) -> Any:
            self.runs[name] += 1
            return body(name, *args)

        options = {"dedup_key": message_id, "store_results": True, **options}
        return dramatiq.actor(run, broker=self.broker, actor_name=f"a{uuid.uuid4().hex}", **options)

    def get(self, *messages: Any) -> list[Any]:
        return [self.results.get_result(each, block=True, timeout=20_000) for each in messages]

    def dead(self) -> int:
        return int(self.broker.client.zcard("dramatiq:default.XQ"))


gate = fixture_with(lambda server: Dedup(server.url, namespace="d", lease=0.5, timeout=0.5), scope="module")


@pytest.fixture(scope="module")
def queue(server: RedisServer, gate: Dedup) -> Iterator[Queue]:
    queue = Queue(server, gate)
    queue.broker.declare_queue("default")
    worker = dramatiq.Worker(queue.broker, worker_threads=4, worker_timeout=50)
    worker.start()
    yield queue
    worker.stop()
    queue.broker.close()


def by_name(name: str) -> str:
    return f"key:{name}"


def test_a_duplicate_gets_the_first_result(queue: Queue, name: str) -> None:
    actor = queue.actor(lambda name, number: {"number": number}, dedup_key=lambda *args: by_name(args[0]))
    assert queue.get(actor.send(name, 1), actor.send(name, 2), actor.send(name, 3)) in [
        [{"number": number}] * 3 for number in (1, 2, 3)
    ]
    assert queue.runs[name] == 1


def test_a_duplicate_gets_the_types_of_the_results_encoder(
    queue: Queue, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It got `["2026-11-30", 1]`, which JSON makes of it."""
    monkeypatch.setattr(queue.results, "encoder", PickleEncoder())
    result = (date(2026, 11, 30), 1)
    actor = queue.actor(lambda name: result, dedup_key=lambda *args: by_name(args[0]))
    for _ in range(2):
        assert queue.get(actor.send(name)) == [result]
    lost = queue.actor(lambda name: print, store_results=False, dedup_key=lambda *args: by_name(args[0]))
    monkeypatch.setattr(PickleEncoder, "encode", lambda *_: {}["no form"])
    for _ in range(2):
        lost.send(name)
        queue.broker.join("default")
    assert queue.runs[name] == 2, "each actor is done once, also if its result cannot be kept"


def test_a_duplicate_whose_result_cannot_be_decoded_does_no_work(
    queue: Queue, name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Dramatiq went on to the actor: a pickled result's class had a new name after a deploy."""
    monkeypatch.setattr(queue.results, "encoder", PickleEncoder())
    actor = queue.actor(lambda name: name, dedup_key=lambda *args: by_name(args[0]))
    assert queue.get(actor.send(name)) == [name]
    monkeypatch.setattr(queue.results, "encoder", PickleEncoder())
    monkeypatch.setattr(queue.results.encoder, "decode", lambda data: getattr(uuid, data.decode("latin1")))
    message = actor.send(name)
    until(lambda: f"{message} was skipped" in caplog.text or queue.runs[name] > 1, "it is decided")
    assert queue.runs[name] == 1


def test_a_duplicate_of_a_failure_gets_its_error(queue: Queue, name: str) -> None:
    """Nothing was stored for it, so its caller waited until a timeout. What a message has got stays as it is."""

    def fail(name: str) -> None:
        raise DeadLetterError("no such customer")

    actor, dead = queue.actor(fail, dedup_key=lambda *args: by_name(args[0])), queue.dead()
    first, other = actor.send(name), actor.message(name)
    with pytest.raises(ResultFailure, match="DeadLetterError"):
        queue.get(first)
    queue.broker.enqueue(other)
    with pytest.raises(ResultFailure, match=r"FailedError.*no such customer"):
        queue.get(other)
    queue.broker.enqueue(first)
    queue.broker.join("default")
    with pytest.raises(ResultFailure, match="DeadLetterError"):
        queue.get(first)
    assert (queue.runs[name], queue.dead()) == (1, dead + 1)


def test_a_redelivery_is_known_by_its_message_id(queue: Queue, name: str) -> None:
    actor = queue.actor(lambda name: 7)
    message = actor.send(name)
    assert queue.get(message) == [7]
    queue.broker.enqueue(message)
    queue.broker.join("default")
    assert queue.get(message, actor.send(name)) == [7, 7]
    assert queue.runs[name] == 2


def test_a_duplicate_goes_on_in_its_pipeline(queue: Queue, name: str) -> None:
    actor = queue.actor(lambda name: name)
    following = queue.actor(lambda name: len(name), dedup_key=lambda *args: f"len:{args[0]}")
    parts = [actor.message(name), following.message()]
    pipes = [dramatiq.pipeline(parts, broker=queue.broker).run() for _ in range(2)]
    assert queue.get(*(pipe.messages[-1] for pipe in pipes)) == [len(name)] * 2
    assert queue.runs[name] == 2


def test_a_ledger_remembers_what_is_done(
    queue: Queue, gate: Dedup, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    middleware = next(each for each in queue.broker.middleware if isinstance(each, DedupMiddleware))
    ledger = gate.ledger("done", window=60.0, capacity=1000)
    with monkeypatch.context() as patch:
        patch.setattr(middleware, "_remember", ledger)
        actor = queue.actor(lambda name: 7, dedup_key=lambda *args: by_name(args[0]))
    assert queue.get(actor.send(name), actor.send(name)) == [7, 7]
    assert queue.runs[name] == 1
    assert ledger.stats().ids == 1
    with pytest.raises(ConfigError, match="remember must be a ledger of the gate's"):
        DedupMiddleware(gate, remember="done")  # type: ignore[arg-type]


def test_abandoned_work_is_resolved_before_the_actor_runs_again(queue: Queue, name: str) -> None:
    look_up = Answers(OSError("away"), Resolution.not_done(), Resolution.done(7), Resolution.unknown("?"))

    def fail(name: str) -> None:
        raise ValueError("declined")

    actor = queue.actor(fail, dedup_key=lambda *args: by_name(args[0]), dedup_resolve=look_up)
    assert queue.get(actor.send(name), actor.send(name)) == [7, 7]
    assert (queue.runs[name], look_up.attempts) == (2, [2, 3, 4])
    dead = queue.dead()
    actor.send(f"{name}-unknown")
    until(lambda: queue.dead() == dead + 1, "a dead letter")
    assert queue.runs[f"{name}-unknown"] == 1
    with pytest.raises(ActorOptionError, match="resolve must be a function"):
        queue.actor(fail, dedup_resolve="done")


def test_a_failure_frees_the_key_for_dramatiqs_retries(queue: Queue, name: str) -> None:
    def fail_twice(name: str) -> int:
        if queue.runs[name] < 3:
            raise ValueError(name)
        return queue.runs[name]

    assert queue.get(queue.actor(fail_twice).send(name)) == [3]


@pytest.mark.parametrize("options", [{}, {"retry_when": lambda *_: True}])
@pytest.mark.parametrize(("error", "runs"), [(ValueError, 2), (DeadLetterError, 1)])
def test_the_last_attempt_ends_in_the_dead_letters(
    queue: Queue,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    error: type[Exception],
    runs: int,
    options: dict[str, Any],
) -> None:
    """Retries enqueued a second copy of it, which ran once the gate had forgotten the failure."""

    def fail(name: str) -> None:
        raise error(name)

    delays: list[int | None] = []
    enqueue = queue.broker.enqueue

    def noted(message: Any, *, delay: int | None = None) -> Any:
        delays.append(delay)
        return enqueue(message, delay=delay)

    monkeypatch.setattr(queue.broker, "enqueue", noted)
    actor, dead = queue.actor(fail, dedup_attempts=2, **options), queue.dead()
    message = actor.send(name)
    with pytest.raises(ResultFailure, match=error.__name__):
        queue.get(message)
    until(lambda: queue.dead() == dead + 1, "it is a dead letter")
    queue.broker.join("default")
    assert (queue.runs[name], len([delay for delay in delays if delay])) == (runs, runs - 1)


@pytest.mark.parametrize("options", [{}, {"retry_when": lambda *_: True}])
def test_a_dead_letter_is_told_to_the_actors_that_hear_of_failures(
    queue: Queue, name: str, options: dict[str, Any]
) -> None:
    told = []

    def fail(name: str) -> None:
        raise DeadLetterError(name)

    def hears(option: str) -> str:
        def hear(message: dict[str, Any], _: Any) -> None:
            told.append((option, message["args"]))

        actor = dramatiq.actor(hear, broker=queue.broker, actor_name=f"a{uuid.uuid4().hex}")
        return str(actor.actor_name)

    heard = {option: hears(option) for option in ("on_failure", "on_retry_exhausted")}
    queue.actor(fail, **heard, **options).send(name)
    until(lambda: len(told) == 2, "both are told")
    assert sorted(told) == [(option, [name]) for option in heard]


def test_work_that_lost_its_lease_is_no_dead_letter(name: str) -> None:
    """Another worker may have the message by then, and its work may succeed."""
    lost = threading.Event()

    def heard(event: object) -> None:
        if isinstance(event, LeaseLost):
            lost.set()

    with Dedup("memory://", lease=0.3, on_event=heard) as dedup:
        gate = DedupMiddleware(dedup)
        broker = StubBroker(middleware=[Retries(min_backoff=1, max_backoff=2), gate])
        runs: list[str] = []

        def charge(name: str) -> None:
            runs.append(name)
            if len(runs) == 1:
                dedup.forget(gate_key("charge", by_name(name)))
                lost.wait()
                raise DeadLetterError("no such customer")

        actor = dramatiq.actor(charge, actor_name="charge", broker=broker, dedup_key=by_name)
        actor.send(name)
        worker = dramatiq.Worker(broker, worker_timeout=10, worker_threads=1)
        worker.start()
        broker.join(actor.queue_name)
        worker.join()
        worker.stop()
        assert (runs, broker.dead_letters) == ([name, name], [])


def test_a_twin_at_work_delays_a_message_and_spends_no_retry(
    queue: Queue, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The work takes several leases."""
    queue.go.clear()
    actor = queue.actor(
        lambda name: queue.go.wait(10), dedup_key=lambda *args: by_name(args[0]), max_retries=0
    )
    messages = [actor.send(name) for _ in range(2)]
    until(lambda: queue.runs[name], "the first has begun")
    late: list[Any] = []
    enqueue = queue.broker.enqueue

    def noted(message: Any, **options: Any) -> Any:
        late.append(message)
        return enqueue(message, **options)

    monkeypatch.setattr(queue.broker, "enqueue", noted)
    until(lambda: len(late) >= 3, "the twin was delayed for longer than a lease")
    assert {each.options.get("retries", 0) for each in late} == {0}
    queue.go.set()
    assert queue.get(*messages) == [True, True]
    assert queue.runs[name] == 1


def test_another_message_with_the_same_key_is_a_dead_letter(queue: Queue, name: str) -> None:
    actor = queue.actor(
        lambda name, total: total,
        dedup_key=lambda *args: by_name(args[0]),
        dedup_fingerprint=lambda *args: args[1],
    )
    assert queue.get(actor.send(name, 1)) == [1]
    with pytest.raises(ResultFailure, match="another message had the same key"):
        queue.get(actor.send(name, 2))


def test_a_message_without_a_key_never_runs(queue: Queue, name: str) -> None:
    """Dramatiq goes on to the actor where a hook raises any other error than SkipMessage."""
    actor = queue.actor(lambda name: 1, dedup_key=lambda *args: {}[args[0]])
    with pytest.raises(ResultFailure, match="the rule for its key failed"):
        queue.get(actor.send(name))
    assert queue.runs[name] == 0


def test_a_message_that_another_middleware_skips_frees_its_key(queue: Queue, name: str) -> None:
    actor = queue.actor(lambda name: 1, dedup_key=lambda *args: by_name(args[0]))
    queue.skipping.left = 1
    assert queue.get(actor.send(name)) == [None]
    assert queue.get(actor.send(name)) == [1]


def test_an_outage_delays_messages_and_nothing_runs(
    queue: Queue, name: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setattr(blocking, "HOLD", 0.3)
    monkeypatch.setattr("fastdedup.messages.blocking.REFUSED_PAUSE", 0.0)
    store = RedisServer().start()
    request.addfinalizer(store.stop)
    with Dedup(store.url, namespace="out", lease=0.5, timeout=0.2) as gate:
        middleware = next(each for each in queue.broker.middleware if isinstance(each, DedupMiddleware))
        with monkeypatch.context() as patch:
            patch.setattr(middleware, "_dedup", gate)
            actor = queue.actor(lambda name: 1)
        gate.open()
        store.kill()
        refused: list[Any] = []
        enqueue = queue.broker.enqueue

        def refuse_once(message: Any, **options: Any) -> Any:
            refused.append(message.options)
            if len(refused) == 2:
                raise ConnectionError("the broker is away as well")
            return enqueue(message, **options)

        monkeypatch.setattr(queue.broker, "enqueue", refuse_once)
        message = actor.send(name)
        until(lambda: len(refused) >= 4, "it was delayed")
        assert queue.runs[name] == 0
        store.start()
        assert queue.get(message) == [1]


def test_a_message_that_meets_a_closed_gate_comes_again(
    queue: Queue, server: RedisServer, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The gate may be closed first as a process ends: then its last messages were dead letters."""
    middleware = next(each for each in queue.broker.middleware if isinstance(each, DedupMiddleware))
    gate, before = Dedup(server.url, namespace="shut", lease=0.5), queue.dead()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(middleware, "_dedup", gate)
        actor = queue.actor(lambda name: 1)
    with gate:
        pass
    message = actor.send(name)
    until(lambda: "because the gate cannot be asked: UsageError(" in caplog.text, "it is told")
    with gate:
        assert queue.get(message) == [1]
    assert (queue.runs[name], queue.dead()) == (1, before)


def test_a_direct_call_is_a_plain_call(queue: Queue, name: str) -> None:
    actor = queue.actor(lambda name: 1)
    assert (actor(name), actor(name)) == (1, 1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dedup_key": "order_id"}, "dedup_key= must be a function of the task's arguments"),
        ({"dedup_key": lambda order: order}, "dedup_key= takes 'order', which is not an argument"),
        ({"dedup_key": message_id, "dedup_attempts": 0}, "attempts must be a whole number"),
        ({"dedup_key": message_id, "dedup_fingerprint": 7}, "dedup_fingerprint= must be a function"),
    ],
)
def test_a_wrong_option_is_refused_at_the_start(queue: Queue, options: dict[str, Any], words: str) -> None:
    def charge(order_id: str) -> None: ...

    with pytest.raises(ActorOptionError, match=r"actor 'charge': ") as refused:
        dramatiq.actor(charge, broker=queue.broker, **options)
    assert words in str(refused.value)
    assert isinstance(refused.value, ConfigError)


def test_a_key_must_outlive_the_heartbeat_timeout() -> None:
    def declared(**options: Any) -> Any:
        middleware = [DedupMiddleware(Dedup("memory://", ttl=60.0))]
        broker = RedisBroker(middleware=middleware, **options)
        return dramatiq.actor(by_name, broker=broker, actor_name="charge", dedup_key=message_id)

    assert declared()  # a minute, by default
    with pytest.raises(ActorOptionError, match=r"actor 'charge': .* 60.001 s \(heartbeat_timeout\)"):
        declared(heartbeat_timeout=60_001)


def test_retries_after_the_gate_are_refused() -> None:
    """They sent a dead letter again, because they decided before the gate."""
    gate = DedupMiddleware(Dedup("memory://"))
    declared = {"actor_name": "charge", "dedup_key": message_id}
    assert dramatiq.actor(by_name, broker=StubBroker(middleware=[Retries(), gate]), **declared)
    with pytest.raises(ActorOptionError, match=r"actor 'charge': Retries must stand before DedupMiddleware"):
        dramatiq.actor(by_name, broker=StubBroker(middleware=[gate, Retries()]), **declared)


def test_an_async_gate_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"must be a fastdedup.sync.Dedup, got fastdedup.gateway.Dedup"):
        DedupMiddleware(fastdedup.Dedup("memory://"))  # type: ignore[arg-type]
