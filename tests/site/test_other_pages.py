"""Pages whose own tests are of something else: their Python runs; and no page's Python is left out."""

from __future__ import annotations

import contextlib
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import click
import pytest
from faststream.rabbit import RabbitBroker, TestRabbitBroker
from redis.asyncio import Redis

from fastdedup import Dedup, FailedError, InProgressError
from fastdedup.cli.main import cli
from fastdedup.sql import Inbox
from fastdedup.testing import Clock, FakeStore, fake_dedup

from ..sql_pages.pages import DOCS, REDIS, Page, names_of

TESTS = "".join(path.read_text("utf-8") for path in Path(__file__).parents[1].rglob("test_*.py"))
WITH_PYTHON = sorted(path.name for path in DOCS.glob("*.md") if "```python" in path.read_text("utf-8"))


def test_the_page_of_synchronous_code_runs(redis_url: str) -> None:
    (block,) = Page("synchronous.md").all_blocks("python")
    names = names_of(block, "synchronous.md", redis_url)
    with contextlib.closing(names["dedup"]):
        assert [names["buy"]("42") for _ in range(2)] == [{"order": "42"}] * 2


async def test_the_page_of_messages_runs(redis_url: str) -> None:
    (block,) = Page("messages.md").all_blocks("python")
    async with Redis.from_url(redis_url) as redis:
        names = names_of(block, "messages.md", redis=redis, dedup=Dedup(redis_url))
    assert names["done"].window == 7 * 86_400


async def test_the_page_of_faststream_runs() -> None:
    first, with_inbox = Page("faststream.md").all_blocks("python")
    runs: list[dict[str, str]] = []
    names = names_of(
        first.replace(REDIS, "memory://").replace("    ...", "    runs.append(order)"),
        "faststream.md",
        runs=runs,
    )
    async with names["dedup"], TestRabbitBroker(names["broker"], connect_only=False) as broker:
        names["guard"].check(names["broker"])
        for _ in range(2):
            await broker.publish({"order": "42"}, "orders", message_id="m-1")
    assert runs == [{"order": "42"}]

    names["inbox"] = Inbox("billing", keep=timedelta(days=7), begin=lambda: None)
    names["broker"] = RabbitBroker("amqp://guest:guest@localhost/")
    names_of(with_inbox, "faststream.md", **names)
    assert names["broker"].subscribers


@pytest.mark.parametrize("result", ["done", object()], ids=["stored", "that cannot be stored"])
async def test_the_page_of_integrations_runs(result: Any) -> None:
    """A job that fails may be run again after a while; one that is done is not, whatever it has returned."""
    (block,) = Page("integrations.md").all_blocks("python")
    run_once = names_of(block, "integrations.md")["run_once"]
    clock, outcomes = Clock(), iter([LookupError("first"), result])

    async def work() -> Any:
        outcome = next(outcomes)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    dedup = fake_dedup(FakeStore(clock=clock))
    with pytest.raises(LookupError):
        await run_once(dedup, "42", work)
    with pytest.raises(InProgressError):
        await run_once(dedup, "42", work)
    clock.advance(dedup.settings.lease / 10 + 0.1)
    assert await run_once(dedup, "42", work) is result
    if result == "done":
        assert await run_once(dedup, "42", work) == "done"
    else:
        with pytest.raises(FailedError):
            await run_once(dedup, "42", work)


@pytest.mark.parametrize("page", WITH_PYTHON)
def test_a_test_runs_the_page(page: str) -> None:
    assert f'"{page}"' in TESTS or f'docs/{page}"' in TESTS


BRINGS_THE_COMMAND = {"cli", "sidecar"}
GIVES_A_COMMAND = re.compile(
    r"\bfastdedup (?:" + "|".join(cli.list_commands(click.Context(cli))) + r") [-a-z'#$<]"
)


def extras(text: str) -> set[str]:
    return {name for found in re.findall(r"fastdedup\[([a-z,_-]+)]", text) for name in found.split(",")}


def test_what_installs_and_gives_a_command_installs_the_command() -> None:
    """A page that installs extras, and a line that names them, also name an extra that brings the command line."""
    pages = [*DOCS.rglob("*.md"), *DOCS.parent.glob("README*.md")]
    texts = {path.name: path.read_text("utf-8") for path in pages if path.name != "versions.md"}
    places = [(name, text) for name, text in texts.items() if "pip install 'fastdedup[" in text]
    places += [(name, line) for name, text in texts.items() for line in text.splitlines() if extras(line)]
    assert len(places) > 20
    assert not [
        (name, sorted(extras(place)))
        for name, place in places
        if GIVES_A_COMMAND.search(place) and not extras(place) & BRINGS_THE_COMMAND
    ]
