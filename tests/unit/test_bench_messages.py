"""The messages' rows of the benchmark: what is played, checked, and made of it. No test looks at a time."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aio_pika
import pytest

from bench import messages, messages_waits
from bench.contest import ClaimedTwiceError, Plan, Row, Table
from bench.messages import (
    CONTESTANTS,
    NOT_PLAYED,
    Consume,
    Contestant,
    check,
    play_rounds,
    row_of,
)
from bench.messages_inbox import NAMES, messages_inbox
from bench.messages_waits import ROWS, Watched
from bench.pairs import ABOVE
from bench.queues import Broker, Filled
from bench.report import Report
from bench.run import Run
from bench.targets import verdicts

from ..brokers import RabbitServer


def run(url: str = "") -> Run:
    return Run(Plan(url, rounds=1, seconds=0.001), 0, 0, ())


@asynccontextmanager
async def nothing(filled: Filled) -> AsyncIterator[Consume]:
    raise AssertionError
    yield


def filled(*handled: str, count: int) -> Filled:
    found = Filled(None, count, count, "", "", "")  # type: ignore[arg-type] # no queue is looked at
    for name in handled:
        asyncio.run(found.on_item(name))
    return found


# On a real RabbitMQ


@pytest.mark.parametrize("lists", [False, True])
async def test_each_way_handles_each_item_once(rabbitmq: RabbitServer, redis_url: str, lists: bool) -> None:
    contestants = [each for each in CONTESTANTS if each.lists is lists]
    async with await aio_pika.connect(rabbitmq.url) as connection:
        found, faults = await play_rounds(run(redis_url), Broker(rabbitmq, connection), contestants)
    assert not faults
    assert all(len(turns) == 1 for turns in found.values())


async def test_a_way_that_leaves_messages_unhandled_is_a_fault(
    rabbitmq: RabbitServer, redis_url: str
) -> None:
    @asynccontextmanager
    async def give_up(filled: Filled) -> AsyncIterator[Consume]:
        """Take no message."""
        yield lambda: asyncio.sleep(0)

    async with await aio_pika.connect(rabbitmq.url) as connection:
        broker = Broker(rabbitmq, connection)
        _, faults = await play_rounds(run(redis_url), broker, [Contestant("lazy", give_up)])
    assert "ClaimedTwiceError" in faults["lazy"]


# What is made of it


@pytest.mark.parametrize("handled", [("a",), ("a", "a"), ("a", "b", "b")])
def test_an_item_handled_twice_or_never_voids_the_turn(handled: tuple[str, ...]) -> None:
    with pytest.raises(ClaimedTwiceError):
        check(filled(*handled, count=2))


def test_a_row_s_ratio_is_the_median_of_the_rounds() -> None:
    found: Any = {
        "base": [{"rate": 10.0}, {"rate": 100.0}, {"rate": 20.0}],
        "ours": [{"rate": 5.0}, {"rate": 10.0}, {"rate": 12.0}],
    }
    row = row_of(Contestant("ours", nothing, ("base",)), found, {})
    assert (row.figures, row.ratios) == ({"rate": 10.0}, {"base": 0.5})


def test_a_baseline_that_failed_gives_no_ratio() -> None:
    found: Any = {"base": [], "ours": [{"rate": 5.0}]}
    faults = {"base": "n/a: why"}
    assert row_of(Contestant("ours", nothing, ("base",)), found, faults).ratios == {}
    assert row_of(Contestant("base", nothing), found, faults).note == "n/a: why"


def test_every_message_target_has_its_row() -> None:
    rows = [Row(each.name, {"rate": 9.0}, dict.fromkeys(each.bases, 9.0)) for each in CONTESTANTS]
    waits = [Row(name, {"deliveries": 1.0, "redelivered": 0.0, "resumed_ms": 9.0}) for name in ROWS]
    tables = (
        Table("messages", "", "rate", tuple(rows)),
        Table("messages-inbox", "", "rate", (Row(NAMES[1], {}, {ABOVE: 9.0}),)),
        Table("messages-waits", "", "deliveries", tuple(waits)),
    )
    found = [line[-1] for line in verdicts(Report({}, {}, tables))]
    assert found.count("short") == 0
    assert found.count("pass") == 9


async def test_a_second_copy_is_counted_once_for_each_delivery() -> None:
    watched = Watched(0.0)
    message: Any = aio_pika.Message(b"", message_id="one")
    assert [watched.key(message) for _ in range(3)] == ["one"] * 3
    await watched.handler(message)
    await watched.begun(1)
    assert watched.deliveries == {"one": 3}


# Processes to be killed


# Without a package


async def test_a_missing_package_is_a_row_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aio_pika", None)
    tables = [
        await play(run()) for play in (messages.messages, messages_inbox, messages_waits.messages_waits)
    ]
    notes = [row.note for table in tables for row in table.rows if row.contestant not in NOT_PLAYED]
    assert len(notes) == len(CONTESTANTS) + len(NAMES) + len(ROWS)
    assert {note for note in notes if "aio_pika" not in note} == set()


def test_the_benchmark_starts_without_its_peers() -> None:
    missing = (
        "aio_pika",
        "aiomysql",
        "asyncpg",
        "boto3",
        "coredis",
        "fastapi",
        "faststream",
        "glide",
        "psycopg",
    )
    program = f"import sys; sys.modules.update(dict.fromkeys({missing})); import bench.__main__"
    subprocess.run([sys.executable, "-c", program], check=True)
