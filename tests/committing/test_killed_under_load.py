"""Web applications killed by SIGKILL anywhere under load: a small run of `bench.endpoint_kills`."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from ..gated_inbox.shop import Place
from ..servers import RedisServer

KILLS = 5
MEASURE = """
import sys
from pathlib import Path
from bench import endpoint_kills, inbox_kills
from tests.databases import PostgresDatabase
inbox_kills.LONGEST_LIFE, inbox_kills.LEASE = 4, 0.4
kills, database, folder, url = sys.argv[1:]
way, database = endpoint_kills.WAYS["committing endpoint"], PostgresDatabase(database, Path(folder))
tally = inbox_kills.measure_way(way, int(kills), database, url, endpoint_kills.COPIES)
print(tally.kills, tally.messages, tally.deliveries, tally.lost, tally.doubled)
"""


def test_no_request_is_lost_or_done_twice_under_kills(
    mortal_postgres: Place, mortal_redis: RedisServer
) -> None:
    """In a process of its own, because it forks."""
    database: Any = mortal_postgres.server.fresh()
    arguments = [str(KILLS), database.name, str(database.folder), mortal_redis.url]
    command = [sys.executable, "-c", MEASURE, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    kills, requests, deliveries, lost, doubled = map(int, done.stdout.split())
    assert kills == KILLS
    assert deliveries >= 3 * requests > 0
    assert (lost, doubled) == (0, 0)
