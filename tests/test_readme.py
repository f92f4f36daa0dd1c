"""The README is true: its snippets run, on a real Redis, and its length keeps its promise."""

from __future__ import annotations

import inspect
import re
import sqlite3
from contextlib import closing, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import httpx
import pytest

from fastdedup import Dedup
from fastdedup.sql.dialects import dialect_of

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
SNIPPETS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
(PRINTED,) = re.findall(r"```text\n(.*?)```", README, re.DOTALL)
"""What the first snippet prints, the first time."""
DEFAULTS = dict(re.findall(r"`(\w+)=([\d_.]+|Reject\(\))`", README))


@pytest.mark.parametrize("number", range(len(SNIPPETS)))
def test_each_snippet_runs(number: int, redis_url: str) -> None:
    snippet = SNIPPETS[number]
    assert ("redis://localhost:6379/0" in snippet) != ("Inbox(" in snippet)
    names: dict[str, Any] = {"__name__": "__main__"}
    printed = StringIO()
    with redirect_stdout(printed):
        exec(compile(snippet.replace("redis://localhost:6379/0", redis_url), "README.md", "exec"), names)
    names.clear()
    if number == 0:
        assert printed.getvalue() == PRINTED


def test_each_use_has_a_snippet() -> None:
    text = "".join(SNIPPETS)
    for use in (
        ".claim(",
        ".once(",
        ".tokens.issue(",
        ".tokens.redeem(",
        ".machine(",
        ".transition(",
        ".lock(",
        ".receive(",
    ):
        assert use in text


def test_its_defaults_are_the_code_s() -> None:
    known = inspect.signature(Dedup.__init__).parameters
    told = {name: float(value) for name, value in DEFAULTS.items() if value != "Reject()" and name in known}
    assert told.keys() >= {"lease", "ttl", "failure_ttl", "timeout"}
    assert told == {name: known[name].default for name in told}


def test_it_stays_short_and_names_the_two_commands() -> None:
    assert len(README.splitlines()) <= 150
    assert "make demo" in README
    assert "make test" in README


def test_the_inbox_snippet_pays_once(tmp_path: Path) -> None:
    names: dict[str, Any] = {"__name__": "readme"}
    exec(compile(next(each for each in SNIPPETS if "Inbox(" in each), "README.md", "exec"), names)
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        connection.executescript(dialect_of("sqlite", names["inbox"].table).ddl())
        connection.executescript("CREATE TABLE account (balance); INSERT INTO account VALUES (500)")
        for _ in range(2):
            names["on_payment"](connection, {"id": "m-1", "amount": 100})
        assert connection.execute("SELECT balance FROM account").fetchall() == [(400,)]
    names.clear()  # the function holds its names, and they the inbox: other tests' inboxes keep rows for another time


async def test_the_web_snippet_replays(redis_url: str) -> None:
    snippet = next(each for each in SNIPPETS if "Claimed(" in each)
    names: dict[str, Any] = {"__name__": "readme"}
    exec(compile(snippet.replace("redis://localhost:6379/0", redis_url), "README.md", "exec"), names)
    transport = httpx.ASGITransport(names["app"])
    async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
        headers = {"x-account": "7", "idempotency-key": "8e03978e-40d5-43e8-bc93-6894a57f9324"}
        first, second = [await client.post("/orders?item=lamp", headers=headers) for _ in range(2)]
        keyless = await client.post("/orders?item=lamp", headers={"x-account": "7"})
    assert first.status_code == 200
    assert (second.content, second.headers["idempotency-replayed"]) == (first.content, "true")
    assert keyless.status_code == 400
    await names["dedup"].aclose()
