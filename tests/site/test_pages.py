"""The tutorial, the recipes and the pages of ideas: their Python runs, and its own assertions hold."""

from __future__ import annotations

import asyncio
import contextlib
import io
import linecache
import sqlite3
import sys
import uuid
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import httpx
import pytest
import redis
from click.testing import CliRunner
from redis.asyncio import Redis

from fastdedup.cli.main import cli
from fastdedup.integrations.redis_streams import _entries
from fastdedup.testing import swapped

from ..sql_pages.pages import DOCS, REDIS, Page, names_of, statements
from ..waiting import cancel, wait_until

PAGES = ["index.md", "choosing.md", "claims.md", "concepts.md", "outages.md", "errors.md", "security.md"]
PAGES += sorted(f"recipes/{path.name}" for path in (DOCS / "recipes").glob("*.md"))
START = Page("start.md")
CONTINUED = {"recipes/limited-stock.md": Page("committing-endpoint.md").blocks("FastAPI", "python")}
"""Pages whose code is put into the program of another page, and that program."""


@pytest.fixture(autouse=True)
def _streams_are_removed(redis_url: str) -> Iterator[None]:
    yield
    with contextlib.closing(redis.Redis.from_url(redis_url)) as raw:
        raw.delete("payments", "payments.dead")  # streams have no TTL


def migration(redis_url: str) -> dict[str, Any]:
    """Give the names of the recipe that leaves SET NX EX, without its programs."""
    blocks = [
        each for each in Page("recipes/migration.md").all_blocks("python") if "asyncio.run(" not in each
    ]
    return names_of("\n".join(blocks), "recipes/migration.md", redis_url)


def run(page: str, redis_url: str) -> str:
    """Run a page's blocks one after the other, as one program; give what it printed."""
    names: dict[str, Any] = {"__name__": "__main__"}
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        for block in [*CONTINUED.get(page, []), *Page(page).all_blocks("python")]:
            exec(compile(block.replace(REDIS, redis_url), f"docs/{page}", "exec", dont_inherit=True), names)
    names.clear()
    return printed.getvalue()


@pytest.mark.parametrize("page", PAGES)
def test_the_page_runs_and_runs_again(page: str, redis_url: str) -> None:
    """Keys are remembered, so a program that leaves its own behind would fail at its second run."""
    printed = [run(page, redis_url) for _ in range(2)]
    if page == "index.md":
        (shown,) = Page(page).all_blocks("text")
        assert printed == [shown, shown.splitlines(keepends=True)[-1] * 2]


@pytest.mark.parametrize("decode", [False, True])
async def test_a_migrating_process_goes_on_after_one_that_died(redis_url: str, decode: bool) -> None:
    """It died between the old key and its work, whichever type the client gives that key's value."""
    names = migration(redis_url)
    async with names["dedup"], names["redis"], Redis.from_url(redis_url, decode_responses=decode) as client:
        await client.set("order:6", "fastdedup", ex=60)
        names["redis"] = client
        await names["new_place"]("6")
    assert names["placed"] == ["6"]


async def test_a_key_that_is_freed_meanwhile_is_never_done(redis_url: str) -> None:
    """The old process fails between the new one's look at its key and the look at the key's age."""
    names = migration(redis_url)

    class FreedMeanwhile:
        async def get(self, key: str) -> bytes:
            return b"1"

        async def set(self, key: str, *_: Any, **__: Any) -> None:
            return None

        async def pttl(self, key: str) -> Any:
            return await names["client"].pttl(key)

    async with names["dedup"], names["redis"] as names["client"]:
        names["redis"] = FreedMeanwhile()
        assert await names["place_by_http_beside_old"]("6") == 409
        with pytest.raises(names["StillAtWork"]):
            await names["place_beside_old"]("6")
    assert names["placed"] == []


async def test_old_and_new_consumers_side_by_side_do_each_message_once(redis_url: str) -> None:
    """Each message comes twice. One was done long ago, and a new consumer died with another one.

    An old consumer has failed with one and freed its key, and another old consumer has one in hand.
    """
    names = migration(redis_url)
    longest, names["LONGEST"] = names["LONGEST"], 0.05
    redis, dedup, day, stream = names["redis"], names["dedup"], names["DAY"], f"orders-{uuid.uuid4().hex}"
    orders = [f"{stream}-{number}" for number in range(40)]
    old_ones_end = asyncio.Event()
    long_ago, died, freed, in_hand = (f"{stream}-{each}" for each in ("long-ago", "died", "freed", "in-hand"))
    refused: list[str] = []

    async def new_handler(entry: Any) -> None:
        try:
            await names["on_order_beside_old"](entry)
        except names["StillAtWork"] as error:
            refused.append(str(error))
            raise

    async def old_consumer(name: str) -> None:
        while not old_ones_end.is_set():
            reply = await redis.xreadgroup("billing", name, {stream: ">"}, count=1, block=10)
            for entry, fields in _entries(reply):
                await names["old_place"](fields[b"id"].decode())
                await redis.xack(stream, "billing", entry)

    async with dedup, redis:
        await redis.xgroup_create(stream, "billing", id="0", mkstream=True)
        await redis.set(f"order:{long_ago}", "1", ex=day - 60)
        await redis.set(f"order:{died}", "fastdedup", ex=day)
        await redis.set(f"order:{freed}", "1", ex=day + 60)  # as one that began a moment ago
        for order, member, idle in ((died, "dead", longest + 1), (in_hand, "slow", longest - 60)):
            entry = await redis.xadd(stream, {"id": order})
            await redis.xreadgroup("billing", member, {stream: ">"})
            await redis.xclaim(stream, "billing", member, 0, [entry], idle=round(idle * 1000), justid=True)
        running = [asyncio.create_task(old_consumer(f"old-{number}")) for number in range(2)]
        for _ in range(2):
            for order in orders:
                await redis.xadd(stream, {"id": order})
        await wait_until(lambda: len(names["placed"]) > 5, description="the old ones are at work")
        new = {**names["beside_old"], "attempts": 100, "retry_delay": 0.02, "limit": 3}
        running += [asyncio.create_task(names["consume"](stream, new_handler, **new)) for _ in range(2)]
        await wait_until(lambda: {*orders, died} == set(names["placed"]), description="all are done")
        old_ones_end.set()
        await asyncio.wait(running[:2])
        for order in (long_ago, died, freed, *orders):
            await redis.xadd(stream, {"id": order})
        await wait_until(lambda: freed in refused, description="it comes again")
        await redis.delete(f"order:{freed}")

        async def is_in_hand() -> bool:
            lag = (await redis.xinfo_groups(stream))[0]["lag"]
            pending = await redis.xpending(stream, "billing")
            return not lag and pending["consumers"] == [{"name": b"slow", "pending": 1}]

        await wait_until(is_in_hand, description="all but what the slow one has are acknowledged")
        for task in running[2:]:
            task.cancel()
        await asyncio.wait(running)
        await redis.delete(stream)
    assert sorted(names["placed"]) == sorted([*orders, died, freed])


def test_patience_with_old_consumers_outlasts_their_longest_work(redis_url: str) -> None:
    names = migration(redis_url)
    patient = names["patient"]
    assert (patient["attempts"] - 1) * patient["retry_delay"] > names["LONGEST"]


@pytest.fixture(scope="module")
def shop() -> Iterator[ModuleType]:
    """The tutorial's shop.py, as its tests import it."""
    source = START.all_blocks("python")[0]
    module = sys.modules["shop"] = ModuleType("shop")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("REDIS_URL", raising=False)
        exec(compile(source, "shop.py", "exec"), module.__dict__)
    yield module
    del sys.modules["shop"]
    linecache.clearcache()


@pytest.mark.filterwarnings("ignore:Using `httpx` with `starlette.testclient`")
def test_the_tutorial_s_tests_pass(shop: ModuleType) -> None:
    names = names_of(START.all_blocks("python")[1], "start.md")
    tests = [name for name in names if name.startswith("test_")]
    assert len(tests) == 3
    for test in tests:
        names[test]()


async def test_the_tutorial_answers_as_it_says(redis_url: str) -> None:
    names = names_of(START.all_blocks("python")[0], "start.md", redis_url)
    first, second = [block.splitlines() for block in START.blocks("A gate", "text")]
    headers = {"x-account": "7", "idempotency-key": "k-1"}
    transport = httpx.ASGITransport(names["app"])
    async with names["dedup"], httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
        answers = [await client.post("/orders?item=lamp", headers=headers) for _ in range(2)]
        assert [answer.text for answer in answers] == [first[-1], second[-1]]
        assert {answer.status_code for answer in answers} == {int(first[0].split()[1])}
        replayed, value = second[1].split(": ")
        assert answers[1].headers[replayed] == value
        assert replayed not in answers[0].headers
        assert (await client.post("/orders?item=lamp", headers={"x-account": "7"})).status_code == 400
        assert (await client.post("/orders?item=chair", headers=headers)).status_code == 422
        assert (await client.get("/health")).json() == {"redis": "closed", "operations": 0}
        (figure,) = START.blocks("A look inside", "text")
        assert figure in (await client.get("/metrics/")).text
    for command, shown in zip(
        START.blocks("A look inside", "sh"), ("mail for order 1", "succeeded"), strict=True
    ):
        arguments = command.strip().replace(REDIS, redis_url).split()[1:]
        # It has an event loop of its own.
        assert shown in (await asyncio.to_thread(CliRunner().invoke, cli, arguments)).output


@pytest.mark.parametrize(("outage", "status"), [(True, 503), (False, 409)])
async def test_a_click_that_loses_its_link_is_told_why(outage: bool, status: int) -> None:
    """An outage outlasts the lease, or the link is revoked, while the password is set."""
    block = Page("recipes/one-time-link.md").all_blocks("python")[0].replace("wait=5.0)", "lease=5.0)")
    done = "            passwords[user] = password\n"
    assert done in block
    code = block.replace(done, f"{done}            await meanwhile(token)\n")
    names = names_of(code, "recipes/one-time-link.md")
    transport = httpx.ASGITransport(names["app"])
    client = httpx.AsyncClient(transport=transport, base_url="http://shop")
    with swapped(names["dedup"]) as store:

        async def meanwhile(token: str) -> None:
            if outage:
                store.outage.start("refused")
                store.clock.advance(6.0)
            else:
                assert await names["dedup"].forget(token, "token")

        names["meanwhile"] = meanwhile
        async with names["dedup"], client:
            link = await names["link_for"]("ann")
            answer = await client.post(link, data={"user": "ann", "password": "new"})
            store.outage.stop()
    assert (answer.status_code, names["passwords"]) == (status, {"ann": "new"})


def test_a_write_with_a_lower_fence_changes_no_row() -> None:
    (block,) = Page("recipes/cron.md").blocks("Refuse writes of an earlier owner", "sql")
    table, write = statements(block)
    with contextlib.closing(sqlite3.connect(":memory:")) as database:
        database.execute(table)
        database.execute("INSERT INTO report VALUES ('2026-11-22', '', 0)")
        writes = [("first", 7), ("second", 9), ("first, late", 7), ("second, again", 9)]
        changed = [
            database.execute(write, {"body": body, "fence": fence, "day": "2026-11-22"}).rowcount
            for body, fence in writes
        ]
        assert changed == [1, 1, 0, 1]
        assert database.execute("SELECT body FROM report").fetchall() == [("second, again",)]


async def test_release_2_buries_what_has_failed_more_often_than_it_tries(redis_url: str) -> None:
    """Six attempts of release 1 are more than the five of release 2: no handler runs."""
    names = migration(redis_url)
    redis, dedup, stream, runs = names["redis"], names["dedup"], f"orders-{uuid.uuid4().hex}", []

    async def fails(entry: Any) -> None:
        runs.append(entry.id)
        raise ValueError

    async def consume(until: Callable[[], Any], **options: Any) -> None:
        task = asyncio.create_task(names["consume"](stream, fails, dead_letter=f"{stream}.dead", **options))
        await wait_until(until, description="release 1 has failed, or release 2 has buried it")
        await cancel(task)

    async with dedup, redis:
        await redis.xgroup_create(stream, "billing", id="0", mkstream=True)
        await redis.xadd(stream, {"id": stream})
        await consume(lambda: len(runs) > 5, attempts=25, retry_delay=0.02)
        failed = len(runs)
        await consume(lambda: redis.xlen(f"{stream}.dead"), idle=0.1)
        ((_, dead),) = await redis.xrange(f"{stream}.dead")
        await redis.delete(stream, f"{stream}.dead")
    assert (len(runs), dead[b"x-fastdedup-reason"]) == (failed, b"exhausted")
