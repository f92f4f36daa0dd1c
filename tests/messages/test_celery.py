"""Celery tasks behind the gate, with real workers of each pool, and a real Redis as broker, backend and gate."""

from __future__ import annotations

import importlib
import uuid
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fastdedup import MismatchError
from fastdedup.messages import DeadLetterError
from fastdedup.messages.keys import gate_key
from fastdedup.messages.rules import ExhaustedError

from ..servers import RedisServer
from .worker_process import WorkerProcess as Worker
from .worker_process import until

TIMEOUT = 25.0
POOLS = ["prefork", "threads", "gevent", "solo"]
prefork = pytest.mark.parametrize("worker", ["prefork"], indirect=True)


class Celery:
    """The servers of this file's workers, and the tasks as their client has them."""

    def __init__(self, broker: RedisServer, gate: RedisServer, folder: Path) -> None:
        self.gate = gate
        self._folder = folder
        self._env = {"CELERY_TASKS_SOCKET": str(broker.socket), "CELERY_TASKS_DEDUP": gate.url}
        with pytest.MonkeyPatch.context() as patch:
            for name, value in self._env.items():
                patch.setenv(name, value)
            self.tasks: ModuleType = importlib.import_module("tests.messages.celery_tasks")

    def start(self, pool: str, queue: str = "celery", *, visibility: float = 3600.0) -> Worker:
        command = ["celery", "-A", "tests.messages.celery_tasks", "worker", "--pool", pool, "-c", "4"]
        command += ["-Q", queue, "--without-gossip", "--without-mingle", "--without-heartbeat", "-l", "INFO"]
        env = {**self._env, "CELERY_TASKS_VISIBILITY": str(visibility)}
        return Worker(*command, "-n", f"{uuid.uuid4()}@t", folder=self._folder, env=env, ready=" ready.")

    def runs(self, name: str) -> int:
        with self.tasks.diary() as diary:
            return int(diary.llen(f"runs:{name}"))

    def go(self, name: str, times: int = 1) -> None:
        with self.tasks.diary() as diary:
            diary.rpush(f"go:{name}", *range(times))
            diary.expire(f"go:{name}", 60)

    def get(self, *results: Any) -> list[Any]:
        return [result.get(timeout=TIMEOUT) for result in results]

    def error(self, result: Any) -> BaseException:
        return result.get(timeout=TIMEOUT, propagate=False)  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def celery(server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Celery]:
    gate = RedisServer().start()
    yield Celery(server, gate, tmp_path_factory.mktemp("celery"))
    gate.stop()


@pytest.fixture(scope="module")
def worker(celery: Celery, request: pytest.FixtureRequest) -> Iterator[Worker]:
    worker = celery.start(request.param)
    yield worker
    worker.stop()


# On each pool


@pytest.mark.parametrize("worker", POOLS, indirect=True)
def test_each_pool_works_once_for_a_key(worker: Worker, celery: Celery, name: str) -> None:
    tasks = celery.tasks
    calls = [
        tasks.charge.delay(name),
        tasks.charge.delay(order_id=name, times=1),
        tasks.charge.delay(name, 1),
    ]
    retried = tasks.retrying.delay(f"{name}-retry", 3)
    remembered = [tasks.remembered.delay(f"{name}-done") for _ in range(2)]
    first, *others = celery.get(*calls)
    assert isinstance(first["at"], datetime)
    assert others == [first, first]
    assert celery.runs(name) == 1
    assert celery.get(retried) == [[3, 2, 3]]
    assert celery.get(*remembered) == [1, 1]
    # Opened: another test has restarted the gate's Redis, and this process may know of the ledger before that.
    assert tasks.remembered.remember.open().seen(gate_key(tasks.remembered.name, f"{name}-done"))


@pytest.mark.parametrize("worker", POOLS, indirect=True)
def test_each_pool_delays_a_twin_and_keeps_the_lease(worker: Worker, celery: Celery, name: str) -> None:
    """The work takes several leases, and twins come while it goes on: on the solo pool, one slot, they come after."""
    twins = [celery.tasks.slow.delay(name) for _ in range(2)]
    until(lambda: celery.runs(name), "the first has begun")
    if "solo" not in name:
        until(
            lambda: worker.log.count(twins[0].id) + worker.log.count(twins[1].id) >= 6,
            "the twin was delayed twice",
        )
    celery.go(name, 2)
    assert celery.get(*twins) == [1, 1]
    assert celery.runs(name) == 1


# On prefork


@prefork
def test_a_message_that_is_sent_again_by_its_id_is_done_once(
    worker: Worker, celery: Celery, name: str
) -> None:
    identity = str(uuid.uuid4())
    assert (
        celery.get(*(celery.tasks.by_id.apply_async((name,), task_id=identity) for _ in range(3))) == [1] * 3
    )
    assert celery.get(celery.tasks.by_id.delay(name)) == [2]
    assert celery.runs(name) == 2


@prefork
def test_attempts_end_in_a_failure_that_duplicates_share(worker: Worker, celery: Celery, name: str) -> None:
    failed = celery.tasks.failing.delay(name)
    errors = [celery.error(failed), celery.error(celery.tasks.failing.delay(name))]
    assert [(type(each), str(each)) for each in errors] == [(ValueError, "declined, run 4")] * 2
    assert celery.runs(name) == 4


@prefork
def test_abandoned_work_is_resolved_before_the_body_runs_again(
    worker: Worker, celery: Celery, name: str
) -> None:
    """Its worker is killed; the first lookup fails, so it comes again; what was done is everybody's result."""
    first, duplicate = celery.get(*(celery.tasks.abandoned.delay(name) for _ in range(2)))
    assert isinstance(first["at"], datetime)
    assert (first["run"], duplicate) == (3, first)
    assert (celery.runs(name), celery.runs(f"{name}-asked")) == (1, 2)


@prefork
def test_a_failure_before_the_last_attempt_frees_the_key(worker: Worker, celery: Celery, name: str) -> None:
    errors = [celery.error(celery.tasks.failing_twice.delay(name)) for _ in range(2)]
    assert [type(each) for each in errors] == [KeyError] * 2
    assert celery.get(celery.tasks.failing_twice.delay(name)) == [3]


@prefork
def test_a_body_can_give_its_key_up(worker: Worker, celery: Celery, name: str) -> None:
    errors = [celery.error(celery.tasks.given_up.delay(name)) for _ in range(2)]
    assert [type(each) for each in errors] == [DeadLetterError] * 2
    assert celery.runs(name) == 1


@prefork
def test_ignore_reject_and_replace_free_the_key(worker: Worker, celery: Celery, name: str) -> None:
    celery.tasks.ignoring.delay(f"{name}-i")
    until(lambda: celery.runs(f"{name}-i") == 1, "it was ignored")
    replaced = celery.tasks.replaced.delay(f"{name}-r")
    assert celery.get(celery.tasks.ignoring.delay(f"{name}-i")) == [None]
    assert celery.runs(f"{name}-i") == 2
    assert celery.get(celery.tasks.rejecting.delay(f"{name}-j")) == [2]
    assert celery.get(replaced)[0]["order"] == f"{name}-r-instead"
    assert celery.get(celery.tasks.replaced.delay(f"{name}-r"))[0]["run"] == 1
    assert celery.runs(f"{name}-r") == 2


@prefork
def test_a_killed_child_is_an_attempt(worker: Worker, celery: Celery, name: str) -> None:
    once = celery.tasks.crashing.delay(f"{name}-once", 2)
    always = celery.tasks.crashing.delay(f"{name}-always", 9)
    assert celery.get(once) == [2]
    assert isinstance(celery.error(always), ExhaustedError)
    assert celery.runs(f"{name}-always") == 2
    assert isinstance(celery.error(celery.tasks.crashing.delay(f"{name}-always", 9)), ExhaustedError)


@prefork
def test_another_call_with_the_same_key_is_a_mismatch(worker: Worker, celery: Celery, name: str) -> None:
    assert celery.get(celery.tasks.compared.delay(name, 1)) == [1]
    assert isinstance(celery.error(celery.tasks.compared.delay(name, 2)), MismatchError)
    assert celery.get(celery.tasks.compared.delay(name, total=1)) == [1]


@prefork
def test_a_call_within_the_body_is_a_plain_call(worker: Worker, celery: Celery, name: str) -> None:
    assert celery.get(celery.tasks.calling_itself.delay(name)) == [101]


@prefork
def test_a_chord_with_a_duplicate_in_its_header_completes(worker: Worker, celery: Celery, name: str) -> None:
    whole = celery.tasks.chord_of([f"{name}-a", f"{name}-b", f"{name}-a"])
    until(lambda: celery.runs(f"{name}-a") and celery.runs(f"{name}-b"), "both have begun")
    celery.go(f"{name}-b")
    celery.go(f"{name}-a")
    assert celery.get(whole) == [3]
    assert celery.runs(f"{name}-a") == 1


@prefork
def test_a_redelivered_step_does_not_double_the_next(worker: Worker, celery: Celery, name: str) -> None:
    """A redelivery sends the next step again, as the first delivery may have died before it did."""
    steps = celery.tasks.first_step.s(name).set(queue=name) | celery.tasks.next_step.s()
    sent = steps.apply_async()
    with celery.tasks.diary() as diary:
        message = diary.rpop(name)
        diary.lpush("celery", message, message)
    assert celery.get(sent, sent.parent) == [1, name]
    until(lambda: worker.log.count(f"{sent.id}] succeeded") == 2, "the next step came twice")
    assert (celery.runs(name), celery.runs(f"after-{name}")) == (1, 1)


@prefork
def test_a_publisher_can_name_the_key_in_the_header(worker: Worker, celery: Celery, name: str) -> None:
    headers = {"x-fastdedup-key": name}
    calls = [
        celery.tasks.charge.apply_async((f"{name}-{n}",), headers=dict(headers), countdown=0.01)
        for n in (1, 2)
    ]
    first, second = celery.get(*calls)
    assert first == second
    by_name = celery.tasks.app.send_task(celery.tasks.charge.name, (f"{name}-3",))
    assert celery.get(by_name)[0]["run"] == 1


@prefork
def test_an_outage_delays_tasks_and_spends_no_attempt(
    worker: Worker, celery: Celery, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    celery.gate.kill()
    held = [celery.tasks.retrying.delay(f"{name}-{n}", 1) for n in range(3)]
    until(lambda: worker.log.count("comes again in") and worker.log.count(held[2].id) >= 4, "one was delayed")
    assert [celery.runs(f"{name}-{n}") for n in range(3)] == [0] * 3
    celery.gate.start()
    assert celery.get(*held) == [[1, 0, 1]] * 3


@prefork
def test_a_message_that_meets_a_closed_gate_comes_again(worker: Worker, celery: Celery, name: str) -> None:
    """The gate may be closed first as a process ends: then its last messages were failed tasks."""
    assert celery.get(celery.tasks.meeting_a_closed_gate.delay(name)) == [1]
    assert (celery.runs(name), celery.runs(f"{name}-came")) == (1, 2)
    assert "because the gate cannot be asked: UsageError(" in worker.log


# A worker that dies


def test_a_killed_worker_loses_no_task_and_a_redelivery_waits(
    celery: Celery, name: str, request: pytest.FixtureRequest
) -> None:
    """The broker gives a message again after its visibility timeout, whether its worker lives or not."""
    first = celery.start("solo", name, visibility=1.0)
    workers = [first]
    request.addfinalizer(lambda: [each.kill() for each in workers])
    result = celery.tasks.slow.apply_async((name,), queue=name)
    until(lambda: celery.runs(name), "the first has begun")
    workers.append(celery.start("solo", name, visibility=1.0))
    until(lambda: workers[1].says("comes again in"), "the redelivery found the first at work")
    first.kill()
    until(lambda: celery.runs(name) == 2, "the second has the key, once the lease has ended")
    celery.go(name)
    assert celery.get(result) == [2]
    assert celery.runs(name) == 2
