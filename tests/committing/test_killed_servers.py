"""A process killed by SIGKILL at each point of a request: the retry finishes what it began, or finds it done."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from ..gated_inbox.shop import Place, new_key
from ..gated_inbox.times import LEASE
from ..programs import started
from ..servers import RedisServer
from .bank import open_postgres, pay_until_done
from .server import POINTS

Waiter = Callable[..., Awaitable[Any]]


@pytest.fixture(scope="module")
def killed(mortal_postgres: Place, mortal_redis: RedisServer) -> tuple[str, str]:
    """Kill a process that stands at every point; give the gate's namespace, and what its keys begin with."""
    prefix = new_key()
    namespace = f"n-{prefix}"
    database = mortal_postgres.database.urls["asyncpg"]
    command = [sys.executable, "-m", "tests.committing.server", mortal_redis.url, namespace, database, prefix]
    with started(command) as server:
        assert server.stdout is not None
        reached = {server.stdout.readline().strip() for _ in POINTS}
    assert reached == {f"{prefix}-{point}" for point in POINTS}
    return namespace, prefix


@pytest.mark.parametrize("point", POINTS)
async def test_a_retry_finishes_what_a_killed_process_began(
    point: str,
    killed: tuple[str, str],
    mortal_postgres: Place,
    mortal_redis: RedisServer,
    wait_until: Waiter,
) -> None:
    namespace, prefix = killed
    key, done = f"{prefix}-{point}", point in ("committed", "recorded")
    gate = {"lease": LEASE, "namespace": namespace}
    async with open_postgres(mortal_postgres, mortal_redis, gate=gate) as bank:
        answer = await pay_until_done(bank, key, wait_until)
        assert (answer.status_code, answer.json()) == (201, {"paid": 1, "run": 1})
        assert ("idempotency-replayed" in answer.headers) is done
        assert (bank.runs, mortal_postgres.effects(key)) == (1 - done, 1)
        again = await bank.pay(key, key)
        assert (again.content, again.headers["idempotency-replayed"]) == (answer.content, "true")
