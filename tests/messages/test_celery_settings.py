"""The settings of Celery tasks, wrong ones with their errors, and eager mode, without a worker."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import celery
import dramatiq.brokers.stub
import pytest
from celery.exceptions import Ignore, MaxRetriesExceededError, Reject, Retry
from taskiq import InMemoryBroker

import fastdedup
from fastdedup import (
    ClaimLostError,
    ConfigError,
    FailedError,
    InProgressError,
    InvalidKeyError,
    Resolution,
    Takeover,
    UnavailableError,
)
from fastdedup.integrations.celery import DedupTask
from fastdedup.messages import DeadLetterError
from fastdedup.messages.blocking import Attempt, BlockingWay
from fastdedup.sync import Dedup

from ..fixtures import fixture_of
from ..programs import ended
from ..servers import RedisServer
from .consumers import Answers


def app_of(**settings: Any) -> celery.Celery:
    app = celery.Celery("shop", broker="memory://", backend="cache+memory://", set_as_current=False)
    app.conf.update(task_always_eager=True, **settings)
    app.task = functools.partial(app.task, shared=False)  # else every app of this process gets the tasks
    return app


dedup = fixture_of(Dedup, "memory://")


def charge(order_id: str, times: int = 1) -> str:
    return f"{order_id}*{times}"


async def awaited(order_id: str) -> str:
    return order_id


def begun(options: dict[str, Any], **settings: Any) -> Any:
    app = app_of(**settings)
    options.setdefault("dedup", Dedup("memory://"))
    task = app.task(base=DedupTask, name="charge", **options)(charge)
    app.finalize()
    return task


# Wrong settings


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dedup": None}, "dedup= must be a fastdedup.sync.Dedup, got None"),
        ({"dedup": fastdedup.Dedup("memory://")}, "got fastdedup.gateway.Dedup: these tasks are synchronous"),
        ({"dedup": "redis://"}, "got builtins.str"),
        ({"key": awaited}, "key= must be a function of the task's arguments, not async"),
        ({"key": "order_id"}, "key= must be a function of the task's arguments"),
        (
            {"key": lambda order: order},
            "key= takes 'order', which is not an argument of the task: it has order_id",
        ),
        ({"fingerprint": lambda total: total}, "fingerprint= takes 'total', which is not an argument"),
        ({"attempts": 0}, "attempts must be a whole number of at least 1"),
        ({"attempts": "5", "max_retries": 3}, "attempts must be a whole number"),
        ({"attempts": 3, "max_retries": 3}, "attempts=3 ends the task before its max_retries=3 does"),
        ({"max_retries": None}, "max_retries=None retries without end: set attempts="),
        ({"wait": -1}, "wait must be between 0 s"),
        ({"resolve": "done"}, "resolve must be a function that takes a Takeover, got str"),
        ({"resolve": lambda: True}, "resolve must be a function that takes a Takeover alone, got <lambda>()"),
        ({"resolve": awaited}, "resolve is an async function: in synchronous code give one that is not"),
        ({"remember": "done"}, "remember must be a ledger of the gate's, made by its ledger(), got 'done'"),
    ],
)
def test_a_wrong_setting_is_refused_at_the_start(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        begun(options)
    assert words in str(refused.value)
    assert str(refused.value).startswith("task 'charge': ")


@pytest.mark.parametrize(
    ("settings", "ttl"),
    [
        ({"broker_url": "redis://localhost"}, 3_599.0),
        ({"broker_url": "redis+socket:///r.sock"}, 60.0),
        ({"broker_url": "sqs://"}, 60.0),
        ({"broker_transport_options": {"visibility_timeout": 90_000}}, 86_400.0),
    ],
    ids=str,
)
def test_a_key_must_outlive_the_visibility_timeout(settings: dict[str, Any], ttl: float) -> None:
    dedup = Dedup("memory://", ttl=ttl)
    with pytest.raises(ConfigError, match=r"set ttl= of the Dedup above visibility_timeout"):
        begun({"dedup": dedup}, **settings)
    assert begun({"dedup": dedup}, broker_url="amqp://")
    ledger = dedup.ledger("done", window=2 * 86_400.0, capacity=1000)
    assert begun({"dedup": dedup, "remember": ledger}, **settings)


@pytest.mark.parametrize(
    ("options", "attempts"),
    [({}, 5), ({"max_retries": 9}, 10), ({"max_retries": None, "attempts": 7}, 7), ({"attempts": 1}, 1)],
    ids=str,
)
def test_attempts_leave_room_for_celerys_retries(options: dict[str, Any], attempts: int) -> None:
    task = begun(options)
    assert task._gate._way.rules.attempts == attempts


# Keys


@pytest.mark.parametrize(
    "key", [lambda order_id: order_id, lambda *args, **kwargs: "7", lambda order_id, /: order_id]
)
def test_a_call_is_one_call_however_it_names_its_arguments(key: Callable[..., str], dedup: Dedup) -> None:
    runs: list[str] = []

    @app_of().task(base=DedupTask, dedup=dedup, key=key)
    def pay(order_id: str, times: int = 1) -> str:
        runs.append(order_id)
        return order_id

    calls = [
        pay.delay("7"),
        pay.delay(order_id="7"),
        pay.delay("7", times=1),
        pay.apply(("7",)),
        pay.s("7").apply(),
    ]
    assert [each.get() for each in calls] == ["7"] * 5
    assert runs == ["7"]


def test_a_task_with_any_arguments_gives_the_rule_what_it_names(dedup: Dedup) -> None:
    @app_of().task(base=DedupTask, dedup=dedup, key=lambda order: order)
    def pay(**details: Any) -> int:
        return len(details)

    assert pay.delay(order="7", total=1).get() == 2
    assert pay.delay(order="7").get() == 2
    with pytest.raises(InvalidKeyError, match="the rule for its key failed"):
        pay.delay(total=1)


@pytest.mark.parametrize("order", [None, "", 7, "x" * 1025], ids=lambda order: repr(order)[:10])
def test_arguments_without_a_usable_key_are_refused(order: Any, dedup: Dedup) -> None:
    task = begun({"dedup": dedup, "key": lambda order_id: order_id})
    with pytest.raises(InvalidKeyError):
        task.apply((order,), throw=True).get()
    if not isinstance(order, str) or not order:
        with pytest.raises(InvalidKeyError):
            task.delay(order)


def test_wrong_arguments_are_celerys_own_error(dedup: Dedup) -> None:
    task = begun({"dedup": dedup, "key": lambda order_id: order_id})
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        task.delay()


def test_two_tasks_with_one_key_both_work(dedup: Dedup) -> None:
    app = app_of()
    pay, ship = (
        app.task(base=DedupTask, dedup=dedup, key=lambda order_id: order_id, name=name)(charge)
        for name in ("pay", "ship")
    )
    assert pay.delay("7", 1).get() == "7*1"
    assert ship.delay("7", 2).get() == "7*2"


def test_a_class_can_be_the_apps_base_and_hold_the_settings(dedup: Dedup) -> None:
    class Once(DedupTask):
        def key(order_id: str) -> str:  # type: ignore[override]  # noqa: N805 -- a function of the arguments
            return order_id

    Once.dedup = dedup
    app = celery.Celery("shop", broker="memory://", set_as_current=False, task_cls=Once)
    app.conf.task_always_eager = True
    app.finalize()
    assert app.tasks["celery.chord_unlock"]._gate is None
    task = app.task(shared=False)(charge)
    assert [task.delay("7", times).get() for times in (1, 2)] == ["7*1"] * 2


# Eager mode, and what only a call in this process shows


def test_a_direct_call_is_a_plain_call(dedup: Dedup) -> None:
    task = begun({"dedup": dedup, "key": lambda order_id: order_id})
    assert [task("7", times) for times in (1, 2)] == ["7*1", "7*2"]
    assert task.claim is None


def test_an_eager_retry_runs_until_it_succeeds(dedup: Dedup) -> None:
    attempts: list[int] = []

    @app_of().task(base=DedupTask, dedup=dedup, key=lambda n: f"n:{n}", bind=True)
    def late(self: Any, n: int) -> int:
        attempts.append(self.claim.attempt)
        if len(attempts) < 3:
            raise self.retry(args=(n + 1,), countdown=0)
        return n

    assert late.delay(1).get() == 3
    assert attempts == [1, 2, 3]
    assert late.delay(1).get() == 3


@pytest.mark.parametrize("has_rule", [True, False])
def test_headers_that_a_body_passes_on_are_no_key_of_another_task(dedup: Dedup, has_rule: bool) -> None:
    """A body may do so for the sake of its tracing: its own key came along, so all of its calls had that one key."""
    runs: list[int] = []
    app, settings = app_of(), {"key": lambda n: f"part:{n}"} if has_rule else {}

    @app.task(base=DedupTask, dedup=dedup, **settings)
    def part(n: int) -> None:
        runs.append(n)

    @app.task(base=DedupTask, dedup=dedup, key=lambda order_id: order_id, bind=True)
    def whole(self: Any, order_id: str) -> None:
        for n in (1, 2, 2):
            part.apply_async((n,), headers={**self.request.headers, "trace": "t-1"}).get(
                disable_sync_subtasks=False
            )

    whole.delay("order-7").get()
    assert runs == ([1, 2] if has_rule else [1, 2, 2])


def test_an_eager_failure_is_the_duplicates_failure(dedup: Dedup) -> None:
    """The last attempt ends Celery's own retries too, and those of autoretry_for with the error that they retried."""
    runs: list[str] = []

    def fail(self: Any, kind: str) -> None:
        runs.append(kind)
        raise ValueError("declined") if kind == "auto" else self.retry(countdown=0)

    options = {"bind": True, "attempts": 2, "autoretry_for": (ValueError,), "retry_kwargs": {"countdown": 0}}
    task = app_of().task(base=DedupTask, dedup=dedup, key=lambda kind: kind, **options)(fail)
    for kind, error in (("auto", ValueError), ("own", MaxRetriesExceededError)):
        errors = [task.delay(kind).result for _ in range(2)]
        assert [type(each) for each in errors] == [error] * 2
        assert str(errors[0]) == str(errors[1])
        assert runs.count(kind) == 2


def test_a_dead_letter_is_not_retried_by_autoretry_for(dedup: Dedup) -> None:
    runs: list[str] = []

    @app_of().task(base=DedupTask, dedup=dedup, autoretry_for=(Exception,), retry_kwargs={"countdown": 0})
    def fail(name: str) -> None:
        runs.append(name)
        raise DeadLetterError("no such customer")

    assert isinstance(fail.delay("7").result, DeadLetterError)
    assert runs == ["7"]


def test_abandoned_work_is_asked_about_before_the_body_runs_again(
    dedup: Dedup, caplog: pytest.LogCaptureFixture
) -> None:
    look_up = Answers(
        OSError("the provider is away"),
        Resolution.not_done(),
        Resolution.done({7}),
        Resolution.unknown("ask the bank"),
        SystemExit(),
        "yes",
    )
    runs: list[str] = []
    app = app_of(
        result_serializer="pickle", accept_content=["pickle", "json"], result_accept_content=["pickle"]
    )

    @app.task(base=DedupTask, dedup=dedup, key=lambda order: order, resolve=look_up)
    def pay(order: str) -> None:
        runs.append(order)
        raise ValueError("declined")

    # A first attempt asks nobody. An error of the check is an attempt that failed, and its text is not logged.
    assert [type(pay.delay("7").result) for _ in range(3)] == [ValueError, OSError, ValueError]
    assert pay.delay("7").get() == pay.delay("7").get() == {7}
    assert look_up.attempts == [2, 3, 4]
    assert len({takeover.downstream("bank") for takeover in look_up.heard}) == 1
    assert runs == ["7"] * 2
    own = "".join(each.getMessage() for each in caplog.records if each.name == "fastdedup.messages")
    assert "attempt 2 of 5 failed: consumer='" in own
    assert "key='7' error=OSError at __call__ (" in own
    assert "provider is away" not in own
    # What nobody can know has failed for good, for duplicates as well.
    errors = [pay.delay("8").result for _ in range(3)]
    assert [type(each).__name__ for each in errors] == ["ValueError", "AbandonedError", "AbandonedError"]
    assert "ask the bank" in str(errors[1])
    # A way out that is no answer frees the key.
    pay.delay("9")
    with suppress(SystemExit):
        pay.delay("9")
    assert isinstance(pay.delay("9").result, ConfigError)
    assert look_up.attempts[-1] == 3


def test_an_abandoned_tasks_last_attempt_is_its_last(dedup: Dedup) -> None:
    """A check that never answers spends attempts as the body does."""

    def look_up(takeover: Takeover) -> Resolution:
        raise OSError(f"away at {takeover.attempt}")

    @app_of().task(base=DedupTask, dedup=dedup, key=lambda: "7", resolve=look_up, attempts=2)
    def pay() -> None:
        raise ValueError("declined")

    assert [str(pay.delay().result) for _ in range(3)] == ["declined", "away at 2", "away at 2"]


def test_a_lease_that_is_lost_while_the_check_runs_lets_the_message_come_again(dedup: Dedup) -> None:
    runs: list[int] = []

    def look_up(takeover: Takeover) -> Resolution:
        dedup.forget("pay|7")
        (record,) = [attempt for attempt in began if not attempt.claim.lost]
        while not record.claim.lost:
            with suppress(ClaimLostError):
                record.claim.renew()
        return Resolution.not_done()

    began: list[Attempt] = []
    begin = Attempt.resolve

    def noted(attempt: Attempt, *given: Any) -> Any:
        began.append(attempt)
        return begin(attempt, *given)

    @app_of().task(base=DedupTask, dedup=dedup, key=lambda: "7", resolve=look_up, name="pay")
    def pay() -> int:
        runs.append(1)
        if len(runs) == 1:
            raise ValueError("declined")
        return len(runs)

    pay.delay()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Attempt, "resolve", noted)
        assert isinstance(pay.delay().result, InProgressError)
    assert len(runs) == 1
    assert pay.delay().get() == 2


@pytest.mark.parametrize("way_out", [Ignore, Reject, SystemExit])
def test_what_is_no_failure_frees_the_key(dedup: Dedup, way_out: type[BaseException]) -> None:
    runs: list[int] = []

    @app_of().task(base=DedupTask, dedup=dedup, key=lambda: "7")
    def leave() -> int:
        runs.append(1)
        if len(runs) == 1:
            raise way_out
        return len(runs)

    with suppress(SystemExit):
        leave.delay()
    assert leave.delay().get() == 2


def test_an_eager_twin_is_an_error_instead_of_a_delay(dedup: Dedup) -> None:
    task = begun({"dedup": dedup, "key": lambda order_id: order_id, "wait": 0.0})
    held = dedup.claim("charge|7")
    with pytest.raises(InProgressError):
        task.delay("7").get()
    held.release()
    assert task.delay("7").get() == "7*1"


def test_an_eager_call_without_a_store_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setattr("fastdedup.messages.blocking.HOLD", 0.0)
    with Dedup(f"unix://{tmp_path}/no.sock", timeout=0.1) as gate:
        task = begun({"dedup": gate, "key": lambda order_id: order_id})
        with pytest.raises(UnavailableError):
            task.delay("7").get()


def test_a_duplicate_is_told_of_a_result_that_cannot_be_kept(
    dedup: Dedup, caplog: pytest.LogCaptureFixture
) -> None:
    small = dedup.scoped(max_result=100)

    def long(order_id: str) -> str:
        return "x" * 1000

    def odd(order_id: str) -> object:
        return object()

    long, odd = (
        app_of().task(base=DedupTask, dedup=small, key=lambda order_id: order_id)(body)
        for body in (long, odd)
    )
    assert long.delay("7").get() == "x" * 1000
    with pytest.raises(FailedError, match="cannot be stored"):
        long.delay("7").get()
    assert odd.apply(("7",)).get() is not None
    with pytest.raises(FailedError, match="cannot be stored"):
        odd.apply(("7",)).get()
    assert [record.levelno for record in caplog.records if "not kept" in record.message] == [
        logging.WARNING
    ] * 2


def test_results_of_other_serializers_keep_their_types(dedup: Dedup) -> None:
    app = app_of(
        result_serializer="pickle", accept_content=["pickle", "json"], result_accept_content=["pickle"]
    )

    @app.task(base=DedupTask, dedup=dedup, key=lambda n: f"n:{n}")
    def pair(n: int) -> tuple[int, set[int]]:
        return n, {n}

    assert [pair.delay(7).get() for _ in range(2)] == [(7, {7})] * 2


def test_a_task_may_keep_no_result(dedup: Dedup) -> None:
    task = begun({"dedup": dedup, "key": lambda order_id: order_id, "keep_result": False})
    assert [task.delay("7").get() for _ in range(2)] == ["7*1", None]


def test_a_message_is_held_while_the_broker_does_not_take_it(
    dedup: Dedup, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It may be acknowledged already, so the worker's slot is the only place where it is."""
    monkeypatch.setattr("fastdedup.messages.blocking.REFUSED_PAUSE", 0.0)
    task = begun({"dedup": dedup, "key": lambda order_id: order_id, "wait": 0.0})
    held = dedup.claim("charge|7")
    sent: list[Any] = []

    def refuse(*args: Any, **options: Any) -> None:
        sent.append(options)
        if len(sent) == 2:
            held.release()
        raise task.OperationalError("the broker is away")

    monkeypatch.setattr(celery.canvas.Signature, "apply_async", refuse)
    task.push_request(args=("7",), kwargs={}, called_directly=False, retries=0, is_eager=False, id="1")
    assert task("7") == "7*1"
    assert len(sent) == 2
    assert "because the broker does not take it" in caplog.text


def test_a_delayed_message_spends_no_retry(dedup: Dedup, monkeypatch: pytest.MonkeyPatch) -> None:
    task = begun({"dedup": dedup, "key": lambda order_id: order_id, "wait": 0.0})
    dedup.claim("charge|7")
    sent: list[Any] = []
    monkeypatch.setattr(celery.canvas.Signature, "apply_async", lambda self: sent.append(self.options))
    for held in range(3):
        headers = {"x-fastdedup-held": held, "mine": 1}
        task.push_request(
            args=("7",), kwargs={}, called_directly=False, retries=2, is_eager=False, id="1", headers=headers
        )
        with pytest.raises(Retry):
            task("7")
    assert [
        (each["retries"], each["headers"]["x-fastdedup-held"], each["headers"]["mine"]) for each in sent
    ] == [
        (2, 1, 1),
        (2, 2, 1),
        (2, 3, 1),
    ]
    assert all(2**n / 2 <= each["countdown"] <= 2**n for n, each in enumerate(sent))


def test_the_lost_lease_of_a_finished_body_raises_nothing(server: RedisServer) -> None:
    with Dedup(server.url, namespace="lost", timeout=5.0) as gate:
        other: list[Any] = []

        @app_of().task(base=DedupTask, dedup=gate, key=lambda n: f"n:{n}", name="robbed", bind=True)
        def robbed(self: Any, n: int) -> int:
            gate.forget(self.claim.key)
            other.append(gate.claim(self.claim.key))
            return n

        assert robbed.delay(7).get() == 7
        assert other[0].acquired
        other[0].complete()


def test_the_pages_python_runs(dedup: Dedup) -> None:
    page = (Path(__file__).parents[2] / "docs/celery.md").read_text(encoding="utf-8")
    blocks = [block.partition("```")[0] for block in page.split("```python\n")[1:]]
    app, stub = app_of(), dramatiq.brokers.stub.StubBroker(middleware=[])
    actor = functools.partial(dramatiq.actor, broker=stub)
    names: dict[str, Any] = {"__name__": __name__, "app": app, "dedup": dedup, "broker": stub}
    names |= {"dramatiq": SimpleNamespace(actor=actor), "RedisStreamBroker": lambda url: InMemoryBroker()}
    for block in blocks:
        exec(compile(block.replace("redis://localhost:6379/0", "memory://"), "docs/celery.md", "exec"), names)
    assert len(blocks) == 3
    assert list(app.tasks["tests.messages.test_celery_settings.charge"].delay(7).get() or []) == []
    assert stub.actors["charge"].options["dedup_key"](7) == "order:7"
    assert asyncio.iscoroutinefunction(names["charge"].original_func)


def test_the_rules_need_neither_celery_nor_a_broker() -> None:
    code = (
        "import sys, fastdedup.messages, fastdedup.messages.blocking as b;"
        "print(b.BlockingWay.__name__, sorted({'anyio', 'celery', 'aio_pika', 'dramatiq'} & set(sys.modules)))"
    )
    found = ended("-c", code)
    assert found.stdout.split(maxsplit=1) == [BlockingWay.__name__, "[]\n"]
