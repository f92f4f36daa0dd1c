"""A Celery app for tests: its tasks tell a Redis what they do."""

from __future__ import annotations

import os
import signal
from datetime import UTC, datetime
from typing import Any

import redis
from celery import Celery, chord
from celery.exceptions import Ignore, Reject
from celery.signals import task_prerun

from fastdedup import Resolution, Takeover
from fastdedup.integrations.celery import DedupTask
from fastdedup.messages import DeadLetterError, blocking
from fastdedup.sync import Dedup

SOCKET = os.environ.get("CELERY_TASKS_SOCKET", "")
LEASE = 0.5
blocking.HOLD = 0.5

app = Celery("tests", broker=f"redis+socket://{SOCKET}", backend=f"redis+socket://{SOCKET}")
app.conf.update(
    broker_connection_retry_on_startup=True,
    broker_transport_options={
        "visibility_timeout": float(os.environ.get("CELERY_TASKS_VISIBILITY", "3600")),
        "unacked_restore_interval": 1,
        "unacked_restore_throttle": 1,
    },
    result_expires=60,
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_hijack_root_logger=False,
    worker_prefetch_multiplier=1,
)
dedup = Dedup(os.environ.get("CELERY_TASKS_DEDUP", "memory://"), namespace="tasks", lease=LEASE, timeout=0.5)


class OnceTask(DedupTask):
    dedup = dedup
    wait = 0.1


def once(**options: Any) -> Any:
    return app.task(base=OnceTask, shared=False, **options)  # shared: each app of the process would get it


def diary() -> redis.Redis:
    return redis.Redis(unix_socket_path=SOCKET, decode_responses=True, socket_timeout=60.0)


def tell(name: Any) -> int:
    """Note that a task's body was begun; return how often it was."""
    with diary() as client:
        client.expire(f"runs:{name}", 60, nx=True)
        count = client.rpush(f"runs:{name}", os.getpid())
        client.expire(f"runs:{name}", 60)
        return int(count)


def wait_for(name: Any) -> None:
    """Wait until a test says that the body shall go on."""
    with diary() as client:
        assert client.blpop([f"go:{name}"], timeout=20) is not None


@once(key=lambda order_id: f"order:{order_id}")
def charge(order_id: str, times: int = 1) -> dict[str, Any]:
    return {"order": order_id, "run": tell(order_id), "at": datetime.now(UTC)}


@once(ignore_result=False)
def by_id(name: str) -> int:
    return tell(name)


@once(key=lambda name: name, remember=dedup.ledger("done", window=7 * 86_400.0, capacity=1000))
def remembered(name: str) -> int:
    return tell(name)


@once(key=lambda name: name)
def slow(name: str) -> int:
    run = tell(name)
    wait_for(name)
    return run


@once(key=lambda name: name, bind=True, max_retries=8, attempts=10)
def retrying(self: Any, name: str, ends: int) -> list[int]:
    run = tell(name)
    if run < ends:
        raise self.retry(countdown=0.0)
    return [run, self.request.retries, self.claim.attempt]


@once(key=lambda name: name, autoretry_for=(ValueError,), retry_kwargs={"countdown": 0.0}, attempts=4)
def failing(name: str) -> None:
    raise ValueError(f"declined, run {tell(name)}")


@once(key=lambda name: name)
def failing_twice(name: str) -> int:
    run = tell(name)
    if run <= 2:
        raise KeyError(name)
    return run


@once(key=lambda name: name)
def given_up(name: str) -> None:
    tell(name)
    raise DeadLetterError("this order was cancelled")


@once(key=lambda name: name)
def ignoring(name: str) -> None:
    if tell(name) == 1:
        raise Ignore


@once(key=lambda name: name)
def rejecting(name: str) -> int:
    run = tell(name)
    if run == 1:
        raise Reject("not now", requeue=True)
    return run


@once(key=lambda name: name, bind=True)
def replaced(self: Any, name: str) -> Any:
    tell(name)
    return self.replace(charge.s(f"{name}-instead"))


@once(key=lambda name: name, attempts=2)
def crashing(name: str, until: int) -> int:
    run = tell(name)
    if run < until:
        os.kill(os.getpid(), signal.SIGKILL)
    return run


def look_up(takeover: Takeover) -> Resolution:
    name = takeover.key.partition("|")[2]
    if tell(f"{name}-asked") == 1:
        raise OSError("the provider is away")
    return Resolution.done({"run": takeover.attempt, "at": datetime.now(UTC)})


@once(key=lambda name: name, resolve=look_up)
def abandoned(name: str) -> None:
    tell(name)
    os.kill(os.getpid(), signal.SIGKILL)


@once(key=lambda name: name, fingerprint=lambda total: total)
def compared(name: str, total: int) -> int:
    return tell(name)


@once(key=lambda name: name, bind=True)
def calling_itself(self: Any, name: str, depth: int = 0) -> int:
    return tell(name) if depth else self(name, 1) + 100


shut = Dedup(os.environ.get("CELERY_TASKS_DEDUP", "memory://"), namespace="shut", lease=LEASE, timeout=0.5)


@once(dedup=shut, key=lambda name: name)
def meeting_a_closed_gate(name: str) -> int:
    return tell(name)


@task_prerun.connect(sender=meeting_a_closed_gate)
def open_or_close(args: list[str], **more: Any) -> None:
    """Close the gate before the first delivery, and open it before the second one."""
    if tell(f"{args[0]}-came") == 1:
        shut.close()
    else:
        shut.open()


@once()
def next_step(first: int) -> int:
    """The second step of a chain; without a key of its own."""
    return tell(f"after-{first}")


@once(key=lambda name: name)
def first_step(name: str) -> str:
    tell(name)
    return name


@app.task(shared=False)
def total(numbers: list[int]) -> int:
    return sum(numbers)


def chord_of(names: list[str]) -> Any:
    return chord([slow.s(name) for name in names])(total.s())
