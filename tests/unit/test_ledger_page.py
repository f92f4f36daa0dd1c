"""docs/ledger.md: its Python runs and does what it says, its commands and its figures are those of the code."""

from __future__ import annotations

import re
import shlex
from typing import Any

import click
import pytest

from fastdedup import Dedup
from fastdedup.cli.main import cli
from fastdedup.ledger.forms import LedgerForm

from ..servers import RedisServer
from ..sql_pages.pages import Page

PAGE = Page("ledger.md")
(USE,) = PAGE.blocks("", "python")
(REMEMBER,) = PAGE.blocks("A claim that ends in the ledger", "python")
(FORGET,) = PAGE.blocks("What it does not promise", "python")
(RETRY,) = PAGE.blocks("Retries", "python")
WIDER = """
wider = dedup.ledger("clicks-2", window=timedelta(days=7), capacity=800_000_000, width=16)

async def first(id):
    return not await clicks.seen(id) and await wider.first(id)
"""
"""Both ledgers, for the window after the width was changed."""
(OFFSETS,) = PAGE.blocks("Integers that follow each other", "python")
(COMMANDS,) = PAGE.blocks("Capacity", "sh")


async def test_the_page_runs(redis_url: str) -> None:
    counted: list[str] = []
    names: dict[str, Any] = {"count": lambda click: counted.append(click["id"])}
    text = "\n".join((USE, REMEMBER, OFFSETS, FORGET, RETRY, WIDER)).replace(
        "redis://localhost:6379/0", redis_url
    )
    names = PAGE.run(text, **names)
    async with names["dedup"]:
        for _ in range(2):
            await names["on_click"]({"id": "a"})
            await names["on_batch"]([{"id": "a"}, {"id": "b"}, {"id": "b"}])
        assert counted == ["a", "b"]
        for _ in range(2):
            await names["on_record"]({"offset": 7, "id": "offset 7"})
        assert counted.pop() == "offset 7"
        assert counted == ["a", "b"]
        await mails_are_sent_again(names)
        batch = [{"id": "a"}, {"id": "c"}]
        assert [await names["on_delivery"](batch, 1, 7) for _ in range(2)] == [[False, True]] * 2
        assert [await names["first"](each) for each in ("a", "new", "new")] == [False, True, False]
        await an_order_is_shipped_once(names)
    names.clear()


async def an_order_is_shipped_once(names: dict[str, Any]) -> None:
    shipped: list[str] = []

    async def ship(order: dict[str, str]) -> None:
        shipped.append(order["id"])

    names["ship"] = ship
    for _ in range(2):
        await names["on_order"]({"id": "o-1"})
    assert shipped == ["o-1"]
    assert await names["clicks"].seen("o-1")


async def mails_are_sent_again(names: dict[str, Any]) -> None:
    sent: list[str] = []

    async def send(mail: dict[str, str]) -> None:
        sent.append(mail["id"])
        if len(sent) == 1:
            raise OSError("the mail server is away")

    names["send"] = send
    with pytest.raises(OSError, match="away"):
        await names["on_mail"]({"id": "m"})
    for _ in range(2):
        await names["on_mail"]({"id": "m"})
    assert sent == ["m", "m"]


def test_its_commands_can_be_given() -> None:
    for line in COMMANDS.splitlines():
        _, group, name, *arguments = shlex.split(line)
        command: Any = cli.get_command(click.Context(cli), group)
        command.commands[name].make_context(name, arguments)


def test_the_rates_of_false_duplicates_are_the_codes() -> None:
    """The page's last column: what is expected of 600 million new ids, at a bucket's mean of entries."""
    text = next(line for line in PAGE.sections["What it promises"].split("\n\n") if line.startswith("| |"))
    told = dict(re.findall(r"\| (\d+) \| one in [^|]* \| ([^|]+) \|", text))
    for width, figure in told.items():
        form = LedgerForm.drawn(capacity=600_000_000, width=int(width), window_ms=1000)
        expected = form.capacity * form.capacity / form.buckets / 256**form.width
        assert float(number(figure)) == pytest.approx(expected, rel=0.2)
    assert sorted(told) == ["16", "3", "4", "7"]


def number(text: str) -> str:
    """Return a figure of the page as Python writes it: as 2e-28."""
    digits = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
    return text.replace(" \N{MULTIPLICATION SIGN} 10", "e").translate(digits).replace(",", "")


async def test_a_bucket_begins_with_as_many_bytes_as_the_page_says(
    redis_server: RedisServer, redis_url: str
) -> None:
    (told,) = re.findall(r"each begins a bucket of (\d+) bytes", PAGE.text)
    async with Dedup(redis_url, namespace="begun") as dedup:
        ledger = dedup.ledger("clicks", window=7 * 86_400.0, capacity=800_000_000)
        await ledger.first("a")
        with redis_server.client() as raw:
            sizes = [raw.memory_usage(key) for key in raw.scan_iter("begun:~clicks{*")]
    assert sizes == [pytest.approx(int(told), rel=0.1)]


@pytest.mark.parametrize("name", ["ledger.md", "messages.md", "sidecar.md", "../README.md"])
def test_a_capacity_of_the_pages_never_fills(name: str) -> None:
    """Each page plans for 600 million ids; one is kept for the window and a hundredth of it."""
    told = {int(each.replace("_", "")) for each in re.findall(r"capacity ?= ?([78][\d_]+)", Page(name).text)}
    assert told == {800_000_000}
    form = LedgerForm.drawn(capacity=told.pop(), width=7, window_ms=7 * 86_400_000)
    assert 1.01 * 600_000_000 / form.buckets < 0.97 * form.filling_from
