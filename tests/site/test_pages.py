"""The tutorial, the recipes and the pages of ideas: their Python runs, and its own assertions hold."""

from __future__ import annotations

import asyncio
import contextlib
import io
import linecache
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import httpx
import pytest
import redis
from click.testing import CliRunner
from redis.asyncio import Redis

from fastdedup.cli.main import cli

from ..sql_pages.pages import DOCS, Page

URL = "redis://localhost:6379/0"
PAGES = ["index.md", "choosing.md", "concepts.md", "outages.md", "errors.md", "security.md"]
PAGES += sorted(f"recipes/{path.name}" for path in (DOCS / "recipes").glob("*.md"))
START = Page("start.md")


@pytest.fixture(autouse=True)
def _streams_are_removed(redis_url: str) -> Iterator[None]:
    yield
    with contextlib.closing(redis.Redis.from_url(redis_url)) as raw:
        raw.delete("payments", "payments.dead")  # streams have no TTL


def run(page: str, redis_url: str) -> str:
    """Run a page's blocks one after the other, as one program; give what it printed."""
    names: dict[str, Any] = {"__name__": "__main__"}
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        for block in Page(page).all_blocks("python"):
            exec(compile(block.replace(URL, redis_url), f"docs/{page}", "exec"), names)
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
    names: dict[str, Any] = {"__name__": "migration"}
    source = Page("recipes/migration.md").all_blocks("python")[0].replace(URL, redis_url)
    exec(compile(source, "docs/recipes/migration.md", "exec"), names)
    async with names["dedup"], names["redis"], Redis.from_url(redis_url, decode_responses=decode) as client:
        await client.set("order:6", "fastdedup", ex=60)
        names["redis"] = client
        await names["new_place"]("6")
    assert names["placed"] == ["6"]


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
    names: dict[str, Any] = {"__name__": "test_shop"}
    exec(compile(START.all_blocks("python")[1], "test_shop.py", "exec"), names)
    tests = [name for name in names if name.startswith("test_")]
    assert len(tests) == 3
    for test in tests:
        names[test]()


async def test_the_tutorial_answers_as_it_says(redis_url: str) -> None:
    names: dict[str, Any] = {"__name__": "shop"}
    exec(compile(START.all_blocks("python")[0].replace(URL, redis_url), "shop.py", "exec"), names)
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
        arguments = command.strip().replace(URL, redis_url).split()[1:]
        # It has an event loop of its own.
        assert shown in (await asyncio.to_thread(CliRunner().invoke, cli, arguments)).output
