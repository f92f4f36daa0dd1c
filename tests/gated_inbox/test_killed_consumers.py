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
import sys
from importlib import import_module
from pathlib import Path
from bench import inbox_kills
from tests.databases import PostgresDatabase
inbox_kills.LONGEST_LIFE, inbox_kills.LEASE = 4, 0.4
bench, name, kills, copies, database, folder, url = sys.argv[1:]
way, database = import_module(bench).WAYS[name], PostgresDatabase(database, Path(folder))
tally = inbox_kills.measure_way(way, int(kills), database, url, int(copies))
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


@pytest.mark.parametrize(
    ("bench", "way", "copies"),
    [
        ("inbox_kills", "inbox", 2),
        ("inbox_kills", "gate + inbox", 2),
        ("endpoint_kills", "committing endpoint", 3),
    ],
)
def test_no_message_is_lost_or_handled_twice_under_kills(
    bench: str, way: str, copies: int, mortal_postgres: Place, mortal_redis: RedisServer
) -> None:
    """A small run of the benchmark, in a process of its own, because it forks."""
    database = mortal_postgres.server.fresh()
    arguments = [f"bench.{bench}", way, str(KILLS), str(copies), database.name, str(database.folder)]
    command = [sys.executable, "-c", MEASURE, *arguments, mortal_redis.url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    kills, messages, deliveries, lost, doubled = map(int, done.stdout.split())
    assert kills == KILLS
    assert deliveries >= copies * messages > 0
    assert (lost, doubled) == (0, 0)
