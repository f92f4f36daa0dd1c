"""Workers of Dramatiq and taskiq that a test kills: `python -m tests.messages.dying_workers dramatiq URL NAME`.

The queue is called NAME. The one task notes in Redis that it has begun, and that it has ended; in this process it
never ends.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import dramatiq
import redis
from dramatiq.brokers.redis import RedisBroker
from taskiq import TaskiqMessage
from taskiq.receiver import Receiver
from taskiq_redis import RedisStreamBroker

import fastdedup
import fastdedup.integrations.taskiq
from fastdedup.integrations.dramatiq import DedupMiddleware
from fastdedup.sync import Dedup

LEASE = 0.5
DEAD_AFTER_MS = 300
"""The brokers take a message from a worker that is silent for so long."""
READY = "takes messages"


def note(url: str, name: str, what: str) -> None:
    with redis.Redis.from_url(url) as client:
        client.incr(f"{name}:{what}")


class DramatiqWorker:
    """An actor and a worker of one thread.

    Args:
        dies: the actor never ends.
    """

    def __init__(self, url: str, name: str, *, dies: bool = False) -> None:
        self._gate = Dedup(url, namespace=name, lease=LEASE)
        self.broker = RedisBroker(
            url=url,
            namespace=name,
            maintenance_chance=1_000_000,
            heartbeat_timeout=DEAD_AFTER_MS,
            middleware=[DedupMiddleware(self._gate, wait=0.05)],
        )
        forever = threading.Event()

        def work(key: str) -> None:
            note(url, name, "begun")
            forever.wait(None if dies else 0.0)
            note(url, name, "ended")

        self._actor: Any = dramatiq.actor(
            work, broker=self.broker, actor_name="work", dedup_key=lambda key: key
        )

    def send(self, key: str) -> None:
        self._actor.send(key)

    @contextmanager
    def running(self) -> Iterator[None]:
        worker = dramatiq.Worker(self.broker, worker_threads=1, worker_timeout=50)
        with self._gate:
            worker.start()
            try:
                yield
            finally:
                worker.stop(timeout=1000)
                self.broker.close()


class TaskiqWorker:
    """A task and its receiver, in a thread with an event loop of its own. Arguments as for `DramatiqWorker`."""

    def __init__(self, url: str, name: str, *, dies: bool = False) -> None:
        self._gate = fastdedup.Dedup(url, namespace=name, lease=LEASE)
        middleware = fastdedup.integrations.taskiq.DedupMiddleware(self._gate, wait=0.1)
        broker = RedisStreamBroker(
            url, queue_name=name, xread_block=50, consumer_id="0", idle_timeout=DEAD_AFTER_MS
        )
        self._broker = broker.with_middlewares(middleware)

        async def work(key: str) -> None:
            note(url, name, "begun")
            await (asyncio.Event().wait() if dies else asyncio.sleep(0))
            note(url, name, "ended")

        self._broker.task(task_name="work")(middleware.once(key=lambda key: key)(work))
        self._url, self._name = url, name
        self._loop = asyncio.new_event_loop()

    def send(self, key: str) -> None:
        async def kick() -> None:
            message = TaskiqMessage(task_id=key, task_name="work", labels={}, args=[key], kwargs={})
            broker = RedisStreamBroker(self._url, queue_name=self._name)
            await broker.kick(broker.formatter.dumps(message))
            await broker.connection_pool.disconnect()

        asyncio.run(kick())

    @contextmanager
    def running(self) -> Iterator[None]:
        finish = asyncio.Event()
        thread = threading.Thread(
            target=self._loop.run_until_complete, args=(self._listen(finish),), daemon=True
        )
        thread.start()
        try:
            yield
        finally:
            self._loop.call_soon_threadsafe(finish.set)
            thread.join(10.0)

    async def _listen(self, finish: asyncio.Event) -> None:
        async with self._gate:
            await self._broker.startup()
            try:
                await Receiver(self._broker, max_async_tasks=20, run_startup=False).listen(finish)
            except redis.ConnectionError:
                if not finish.is_set():  # else the test is over, and so is its server
                    raise
            await self._broker.shutdown()


WORKERS: dict[str, type[DramatiqWorker | TaskiqWorker]] = {"dramatiq": DramatiqWorker, "taskiq": TaskiqWorker}

if __name__ == "__main__":
    with WORKERS[sys.argv[1]](*sys.argv[2:], dies=True).running():
        print(READY, flush=True)
        threading.Event().wait()
