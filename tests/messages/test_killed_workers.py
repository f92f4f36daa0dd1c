"""Workers of Dramatiq and taskiq are killed while they work: their message is worked on once more, and no more."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
import redis

from ..servers import RedisServer
from .dying_workers import READY, WORKERS
from .worker_process import WorkerProcess, until


@pytest.mark.parametrize("kind", WORKERS)
def test_a_killed_workers_message_is_worked_on_once_more(
    server: RedisServer, tmp_path: Path, kind: str
) -> None:
    """The broker delivers it again before the dead worker's lease has ended, and its publisher sends it again."""
    name = uuid.uuid4().hex
    worker = WORKERS[kind](server.url, name)
    with redis.Redis.from_url(server.url, decode_responses=True) as client:
        command = ("tests.messages.dying_workers", kind, server.url, name)
        dying = WorkerProcess(*command, folder=tmp_path, env={}, ready=READY)
        try:
            worker.send("order")
            until(lambda: client.get(f"{name}:begun"), "it is worked on")
        finally:
            dying.kill()
        worker.send("order")
        with worker.running():
            until(lambda: client.get(f"{name}:ended"), "its redelivery has the key, once the lease has ended")
            worker.send("last")
            until(lambda: client.get(f"{name}:ended") == "2", "the queue is done")
        assert client.get(f"{name}:begun") == "3"
