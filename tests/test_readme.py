"""The README is true: its snippets run, on a real Redis, its figures are measured, and it stays short."""

from __future__ import annotations

import asyncio
import gc
import inspect
import json
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis.asyncio
from sqlalchemy.ext.asyncio import create_async_engine

from fastdedup import Dedup
from fastdedup.kernel.keyspace import MAX_KEY_BYTES
from fastdedup.ledger.ids import MAX_ID
from fastdedup.web.header import MAX_KEY
from fastdedup.web.rules import Rule
from scripts.mkdocs_outside import links_of

from .committing.bank import IMMEDIATE, tables

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SNIPPETS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
"""Each goes on from those before it."""
(PRINTED,) = re.findall(r"```text\n(.*?)```", README, re.DOTALL)
"""What the first snippet prints, the first time."""
ONCE, BLOCK, ENDPOINT, MONEY, CONSUMER, SEEN = USES = (
    "@dedup.once(",
    "dedup.claim(",
    "Claimed(",
    "= Commits(",
    "Consumer(",
    "dedup.ledger(",
)
ELSEWHERE = (".tokens.issue(", ".tokens.redeem(", ".machine(", ".transition(", ".lock(", ".receive(")
"""Uses whose snippets are on the pages that the README links to."""
REDIS, DATABASE = "redis://localhost:6379/0", "postgresql+asyncpg://localhost/shop"
DEFAULTS = dict(re.findall(r"`(\w+)=([\d_.]+)`", README))
RESULTS = ROOT / "bench" / "results"


class Snippets:
    """What the snippets define, one after the other."""

    def __init__(self, redis_url: str) -> None:
        self._redis_url = redis_url
        self.names: dict[str, Any] = {"__name__": "__main__"}
        self.printed = ""

    def run(self, use: str, engine: Any = None) -> dict[str, Any]:
        """Run the snippets up to the one with this use. `engine` stands for the database."""
        last = next(at for at, snippet in enumerate(SNIPPETS) if use in snippet)
        self.names["engine"] = engine
        with redirect_stdout(StringIO()) as printed:
            for snippet in SNIPPETS[: last + 1]:
                exec(compile(self._here(snippet), "README.md", "exec", dont_inherit=True), self.names)
        self.printed = printed.getvalue()
        return self.names

    def _here(self, snippet: str) -> str:
        return snippet.replace(REDIS, self._redis_url).replace(f'create_async_engine("{DATABASE}")', "engine")

    def clear(self) -> None:
        """Let the inboxes go: those of one table keep their rows equally long, while they live."""
        self.names.clear()
        gc.collect()


@pytest.fixture
def snippets(redis_url: str) -> Iterator[Snippets]:
    made = Snippets(redis_url)
    yield made
    made.clear()


def client(names: dict[str, Any]) -> httpx.AsyncClient:
    headers = {"x-account": "7", "idempotency-key": "8e03978e-40d5-43e8-bc93-6894a57f9324"}
    transport = httpx.ASGITransport(names["app"])
    return httpx.AsyncClient(transport=transport, base_url="http://shop", headers=headers)


def test_the_first_snippet_prints_what_stands_below_it(snippets: Snippets) -> None:
    snippets.run(ONCE)
    assert snippets.printed == PRINTED


async def test_a_claimed_block_sells_once(redis_url: str) -> None:
    names: dict[str, Any] = {"dedup": Dedup(redis_url, namespace="shop")}
    exec(compile(next(each for each in SNIPPETS if BLOCK in each), "README.md", "exec"), names)
    async with names["dedup"] as dedup:
        assert [await names["sell"]("42") for _ in range(2)] == ["sold", "sold"]
        assert (await dedup.claim("sale:42")).replay() == "sold"


async def test_the_endpoint_replays(snippets: Snippets, redis_url: str) -> None:
    names = await asyncio.to_thread(snippets.run, ENDPOINT)
    async with client(names) as shop:
        first, second = [await shop.post("/orders?item=lamp") for _ in range(2)]
        del shop.headers["idempotency-key"]
        keyless = await shop.post("/orders?item=lamp")
    assert first.status_code == 200
    assert (second.content, second.headers["idempotency-replayed"]) == (first.content, "true")
    assert keyless.status_code == 400
    await names["dedup"].aclose()


async def test_the_payment_pays_once_also_if_redis_forgets_it(
    snippets: Snippets, redis_url: str, tmp_path: Path
) -> None:
    file = tmp_path / "shop.db"
    with closing(sqlite3.connect(file)) as database:
        for statement in (*tables("sqlite"), "CREATE TABLE account (id, balance)"):
            database.execute(statement)
        database.execute("INSERT INTO account VALUES (7, 500), (8, 500)")
        database.commit()
        engine = create_async_engine(f"sqlite+aiosqlite:///{file}", connect_args=IMMEDIATE)
        names = await asyncio.to_thread(snippets.run, MONEY, engine)
        async with client(names) as shop, redis.asyncio.Redis.from_url(redis_url) as server:
            first, second = [await shop.post("/payments?amount=100") for _ in range(2)]
            await server.flushdb()
            third = await shop.post("/payments?amount=100")
        assert [each.json() for each in (first, second, third)] == [{"paid": 100}] * 3
        assert third.headers["idempotency-replayed"] == "true"
        assert database.execute("SELECT balance FROM account").fetchall() == [(400,), (500,)]
    await names["dedup"].aclose()
    await engine.dispose()


def test_the_consumer_is_a_coroutine_function(snippets: Snippets) -> None:
    assert inspect.iscoroutinefunction(snippets.run(CONSUMER)["consume"])


async def test_an_id_is_new_once(snippets: Snippets) -> None:
    names = await asyncio.to_thread(snippets.run, SEEN)
    async with names["dedup"]:
        assert [await names["on_click"]({"id": "7"}) for _ in range(2)] == [True, False]


def test_each_snippet_has_a_test() -> None:
    assert len(SNIPPETS) == len(USES)
    for use, snippet in zip(USES, SNIPPETS, strict=True):
        assert use in snippet


def test_every_other_use_is_on_a_page_that_it_links_to() -> None:
    pages = [ROOT / path for path in links_of("README.md", README) if path.startswith("docs/")]
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    for use in ELSEWHERE:
        assert use in text


def test_each_story_of_set_nx_is_a_test() -> None:
    stories = re.findall(r"\[`(\w+)`\]\(tests/test_set_nx\.py\)", README)
    assert (
        re.findall(r"^async def (test_\w+)", (ROOT / "tests" / "test_set_nx.py").read_text("utf-8"), re.M)
        == stories
    )
    assert len(stories) == 3


def test_its_defaults_are_the_code_s() -> None:
    known = inspect.signature(Dedup.__init__).parameters
    stated = {name: float(value) for name, value in DEFAULTS.items()}
    assert stated.keys() == {"lease", "ttl", "failure_ttl", "timeout"}
    assert stated == {name: known[name].default for name in stated}


def test_its_limits_are_the_code_s() -> None:
    result = inspect.signature(Dedup.__init__).parameters["max_result"].default
    request, response = (
        inspect.signature(Rule).parameters[name].default for name in ("max_request", "max_response")
    )
    keys = f"{MAX_KEY_BYTES:,} bytes; {MAX_KEY} characters; {MAX_ID // 1024} KiB"
    bodies = f"{result // 1024} KiB; {request // 1024**2} MiB; {response // 1024} KiB"
    assert f"| a key; an `Idempotency-Key`; a ledger's id | {keys} |" in README
    assert f"| a result; a request's body; a response's body | {bodies} |" in README


NAMES = {
    "redis-py `SET NX PX`": "redis-py SET NX PX",
    "idempotency-kit": "idempotency-kit",
    "idemkit": "idemkit",
    "AWS Powertools": "aws-lambda-powertools",
    "**fastdedup**": "fastdedup",
}
"""The contestants of the README's table, by the names that the benchmark gives them."""


def test_its_figures_are_the_benchmark_s() -> None:
    run = json.loads((RESULTS / "latest.json").read_text("utf-8"))
    figures = {
        (table["name"], row["contestant"]): row["figures"] for table in run["tables"] for row in table["rows"]
    }
    for shown, name in NAMES.items():
        rates = [f"{figures[table, name]['rate']:,.0f}" for table in ("fresh-1000", "fresh-64", "cycle-64")]
        alone, memory = figures["alone", name], figures["memory", name]["memory_usage"]
        lone = [f"{alone['p50_ms']:.3f} ms", f"{alone['p99_ms']:.3f} ms"]
        assert f"| {' | '.join([shown, *rates[:2], *lone, rates[2], f'{memory:.0f}'])} |" in README
    machine = run["machine"]
    for words in (
        f"{machine['cores']} cores of {machine['cpu']}",
        machine["python"],
        machine["server"].split(",")[0],
        f"{machine['date']}, commit `{machine['commit']}`",
    ):
        assert words in README.replace("\n", " ")


def test_it_shows_the_missed_targets_of_a_claim_and_how_many_others_are_missed() -> None:
    """Those of single claims and of processes, numbers 1 to 9; the run's table marks each of the others."""
    table = (RESULTS / "latest.md").read_text("utf-8")
    judged = re.findall(r"^\| (\d+) \| .+? \| (\S+) \| . ([\d.]+) \|.*\| (pass|short) \|$", table, re.M)
    assert len(judged) == table.count("| short |") + table.count("| pass |")
    missed = [(int(number), figure, wanted) for number, figure, wanted, how in judged if how == "short"]
    shown = [(figure, wanted) for number, figure, wanted in missed if number <= 9]
    more = f"{len(missed) - len(shown)} more of its {len(judged)} targets"
    assert more in README.replace("\n", " ")
    for figure, wanted in shown:
        assert re.search(
            rf"\b{re.escape(figure)}\b[^;(]*\(wanted: {re.escape(wanted)}\)", README.replace("\n", " ")
        )


def test_it_shows_what_the_middleware_costs() -> None:
    ((ratio, wanted),) = re.findall(
        r"\| FastAPI POST with the middleware, fresh keys, ratio to without \| ([\d.]+) \| ≥ ([\d.]+) \|",
        (RESULTS / "latest.md").read_text("utf-8"),
    )
    shown = f"has {100 * float(ratio):.0f} % of a bare one's rate (wanted: {100 * float(wanted):.0f} %)"
    assert shown in README


def test_it_stays_short_and_names_the_two_commands() -> None:
    lines = README.splitlines()
    assert len(lines) <= 120
    assert len(README.split()) <= 1_200
    assert not [line for line in lines if len(line) > 120 and not line.startswith("|")]
    assert "make demo" in README
    assert "make test" in README
