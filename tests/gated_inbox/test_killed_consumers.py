"""Consumers killed by SIGKILL: at known points, and anywhere under load."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from ..programs import started
from ..servers import RedisServer
from ..waiting import wait_until
from .consumer import POINTS
from .shop import Place, new_key, open_shop, redelivered
from .times import LEASE

KILLS = 5
MEASURE = """
import subprocess
import sys
from pathlib import Path
from bench import inbox_kills
from tests.databases import PostgresDatabase
inbox_kills.LONGEST_LIFE, inbox_kills.LEASE = 4, 0.4
kills, database, folder, url = sys.argv[1:]
for name in ("inbox", "gate + inbox"):
    tally = inbox_kills.measure(name, int(kills), PostgresDatabase(database, Path(folder)), url)
    print(tally.kills, tally.messages, tally.deliveries, tally.lost, tally.doubled)
"""


@pytest.fixture(scope="module")
def killed(mortal_postgres: Place, mortal_redis: RedisServer) -> tuple[str, str]:
    """Kill a consumer that stands at every point; give the gate's namespace, and what its keys begin with."""
    prefix = new_key()
    arguments = [mortal_redis.url, f"n-{prefix}", str(mortal_postgres.server.folder)]
    arguments += [mortal_postgres.database.name, prefix]
    command = [sys.executable, "-m", "tests.gated_inbox.consumer", *arguments]
    with started(command) as consumer:
        assert consumer.stdout is not None
        reached = {consumer.stdout.readline().strip() for _ in range(2 * len(POINTS))}
    assert reached == {f"{prefix}-{kind}-{point}" for kind in ("async", "sync") for point in POINTS}
    return f"n-{prefix}", prefix


@pytest.mark.parametrize("kind", ["async", "sync"])
@pytest.mark.parametrize(("point", "done"), [("claimed", 0), ("working", 0), ("committed", 1)])
async def test_the_next_delivery_finishes_what_a_killed_consumer_began(
    kind: str,
    point: str,
    done: int,
    killed: tuple[str, str],
    mortal_postgres: Place,
    mortal_redis: RedisServer,
) -> None:
    namespace, prefix = killed
    key = f"{prefix}-{kind}-{point}"
    async with open_shop(
        mortal_postgres, mortal_redis, gate={"lease": LEASE, "namespace": namespace}
    ) as shop:

        async def act(transaction: Any, key: str) -> str:
            return key

        shop.act = act
        assert await wait_until(lambda: redelivered(shop, key), description="the lease ends") == [key]
        assert (shop.runs, shop.place.effects(key)) == (1 - done, 1)
        assert (await shop.record(key)).result == key  # type: ignore[union-attr]


def test_no_message_is_lost_or_handled_twice_under_kills(
    mortal_postgres: Place, mortal_redis: RedisServer
) -> None:
    """A small run of the benchmark, in a process of its own, as it forks: the inbox, then gate and inbox."""
    database = mortal_postgres.server.fresh()
    arguments = [str(KILLS), database.name, str(database.folder), mortal_redis.url]
    command = [sys.executable, "-c", MEASURE, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    tallies = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    assert len(tallies) == 2
    for kills, messages, deliveries, lost, doubled in tallies:
        assert kills == KILLS
        assert deliveries >= 2 * messages > 0
        assert (lost, doubled) == (0, 0)
