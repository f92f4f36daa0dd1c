"""docs/committing-endpoint.md and the payment recipe: their code runs, over SQLite, and their claims hold."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import re
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import httpx
import pytest
import redis
from django.db import connections
from django.test import RequestFactory, override_settings
from sqlalchemy import create_engine

from fastdedup import Dedup
from fastdedup.web.rules import NOT_KEPT

from ..integrations import django_project as django_project  # sets Django up
from ..integrations.desk import client
from ..sql_pages.pages import Page, forget, statements
from .bank import IMMEDIATE, tables
from .django_bank import open_database

PAGE = Page("committing-endpoint.md")
(FASTAPI,) = PAGE.blocks("FastAPI", "python")
(STARLETTE,) = PAGE.blocks("Starlette", "python")
(FLASK,) = PAGE.blocks("Flask", "python")
RECIPE = Page("recipes/payment-endpoint.md")
(PAYMENTS,), (BOOKED,) = RECIPE.blocks("", "python"), RECIPE.blocks("", "sql")
(CHARGE_ONCE,) = RECIPE.blocks("A provider that takes no key", "python")
(DJANGO,) = PAGE.blocks("Django", "python")
(ASYNCPG,) = PAGE.blocks("Other drivers", "python")
_, BEGIN = Page("inbox.md").blocks("Once, with a gate in front", "python")
"""The `begin` that the page takes from the inbox's."""
URL = "redis://localhost:6379/0"
IN_THREAD = """
from sqlalchemy.orm import Session as BlockingSession
from sqlalchemy.orm import sessionmaker
from fastdedup.sync.sql import Inbox as BlockingInbox

sessions = sessionmaker()                                 # sessionmaker(create_engine(…))
PayingInThread = Annotated[
    Committed[BlockingSession],
    Commits(BlockingInbox("payments", keep=timedelta(days=7)), begin=sessions.begin, principal=account),
]

@app.post("/sync-payments", status_code=201)
def pay_in_thread(order: Order, x_account: Annotated[str, Header()], request: PayingInThread) -> Receipt:
    payment = Payment(account=x_account, amount=order.amount)
    request.session.add(payment)
    request.session.flush()
    return Receipt(payment=payment.id)
"""
ENGINE = 'create_async_engine("postgresql+asyncpg://localhost/shop")'
PAYMENT = "CREATE TABLE payment (id INTEGER PRIMARY KEY, account TEXT, amount INTEGER)"


@pytest.fixture(autouse=True)
def _inboxes_of_the_page_go() -> Iterator[None]:
    """Inboxes of one table keep their rows equally long, and so do those of other tests, as long as they live."""
    gc.collect()
    yield
    forget()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A database with the tables."""
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        for statement in [*tables("sqlite"), PAYMENT]:
            connection.execute(statement)
    return tmp_path / "shop.db"


def run(block: str, names: dict[str, Any]) -> None:
    """Run a block of code, whose annotations are no text: SQLAlchemy would look for the block's module."""
    exec(compile(block, PAGE.name, "exec", dont_inherit=True), names)


def run_endpoints(file: Path, redis_url: str) -> dict[str, Any]:
    """Run the first block over a database of SQLite."""
    engine = f'create_async_engine("sqlite+aiosqlite:///{file}", connect_args={IMMEDIATE!r})'
    assert ENGINE in FASTAPI
    names = PAGE.run("")
    run(FASTAPI.replace(ENGINE, engine).replace(URL, redis_url), names)
    return names


def payments(file: Path) -> list[tuple[str, int]]:
    """Return what was paid."""
    with closing(sqlite3.connect(file)) as connection:
        return list(connection.execute("SELECT account, amount FROM payment ORDER BY id"))


async def test_a_client_pays_once_though_redis_forgets(file: Path, redis_url: str) -> None:
    names = run_endpoints(file, redis_url)
    async with names["dedup"], client(names["app"]) as calling:
        headers = {"x-account": "7", "idempotency-key": "k"}

        async def pay() -> httpx.Response:
            return await calling.post("/payments", json={"amount": 500}, headers=headers)

        answers = list(await asyncio.gather(pay(), pay()))
        with contextlib.closing(redis.Redis.from_url(redis_url)) as raw:
            for name in raw.keys("payments:*"):
                raw.delete(name)
        answers.append(await pay())
    await names["Session"].kw["bind"].dispose()
    assert [(one.status_code, one.json()) for one in answers] == [(201, {"payment": 1})] * 3
    assert answers[-1].headers["Idempotency-Replayed"] == "true"
    assert payments(file) == [("7", 500)]


class Provider:
    """Charges once for each key, and repeats a decline; it may be down."""

    def __init__(self, names: dict[str, Any]) -> None:
        self.names = names
        self.charges: dict[str, tuple[int, str]] = {}
        self.down = False

    async def charge(self, amount: int, card: str, *, key: str) -> str:
        charge = "" if card == "stolen" else f"ch_{len(self.charges) + 1}"
        known, charge = self.charges.setdefault(key, (amount, charge))
        if self.down:
            raise TimeoutError
        if known != amount:
            raise self.names["OtherAmount"]
        if not charge:
            raise self.names["Declined"]
        return charge


@contextlib.asynccontextmanager
async def payments_of(file: Path, redis_url: str) -> AsyncIterator[dict[str, Any]]:
    """The recipe's endpoint over a database of SQLite, and `charge`, which sends it a payment."""
    with closing(sqlite3.connect(file)) as connection:
        for statement in ("DROP TABLE payment", *statements(BOOKED)):
            connection.execute(statement)
    names = RECIPE.run("")
    engine = f'create_async_engine("sqlite+aiosqlite:///{file}", connect_args={IMMEDIATE!r})'
    assert ENGINE in PAYMENTS
    run(PAYMENTS.replace(ENGINE, engine).replace(URL, redis_url), names)
    names["provider"] = Provider(names)
    async with names["dedup"], client(names["app"]) as calling:

        async def charge(
            key: str, order: str, card: str = "good", *, amount: int = 5, account: str = "7"
        ) -> httpx.Response:
            body = {"order": order, "amount": amount, "card": card}
            headers = {"x-account": account, "idempotency-key": key}
            return await calling.post("/payments", json=body, headers=headers)

        names["charge"] = charge
        yield names
    await names["Session"].kw["bind"].dispose()


def booked(file: Path) -> list[tuple[str, str, int]]:
    with closing(sqlite3.connect(file)) as connection:
        return list(connection.execute("SELECT charge, account, amount FROM payment ORDER BY charge"))


async def test_a_payment_is_charged_and_booked_once(file: Path, redis_url: str) -> None:
    async with payments_of(file, redis_url) as names:
        charge, provider = names["charge"], names["provider"]
        provider.down = True
        assert (await charge("a", "o-1")).status_code == 503
        assert booked(file) == []
        provider.down = False
        answers = list(await asyncio.gather(*(charge("a", "o-1") for _ in range(2))))
        answers.append(await charge("new-key", "o-1"))
        assert [(one.status_code, one.json()) for one in answers] == [(201, {"charge": "ch_1"})] * 3
        assert (await charge("a", "o-1", amount=6)).status_code == 422
        assert (await charge("other-amount", "o-1", amount=6)).status_code == 422
        assert (await charge("a", "o-1", account="8")).json() == {"charge": "ch_2"}
    assert booked(file) == [("ch_1", "7", 5), ("ch_2", "8", 5)]


async def test_a_decline_is_kept_and_the_next_card_is_charged(file: Path, redis_url: str) -> None:
    async with payments_of(file, redis_url) as names:
        charge = names["charge"]
        declined = [await charge("b", "o-2", "stolen") for _ in range(2)]
        assert [one.status_code for one in declined] == [402, 402]
        assert declined[1].headers["Idempotency-Replayed"] == "true"
        assert (await charge("c", "o-2")).json() == {"charge": "ch_2"}
    assert booked(file) == [("ch_2", "7", 5)]


async def test_two_requests_that_learn_of_one_decline_count_it_once(file: Path, redis_url: str) -> None:
    """The second one learns late, after the next card was charged, which no further request charges again."""
    async with payments_of(file, redis_url) as names:
        charge, provider = names["charge"], names["provider"]
        assert (await charge("b", "o-3", "stolen")).status_code == 402
        assert (await charge("c", "o-3")).json() == {"charge": "ch_2"}
        with closing(sqlite3.connect(file)) as connection, connection:
            late = {"account": "7", "order": "o-3", "number": 0}
            connection.execute(str(names["DECLINED"]), late)
        assert (await charge("d", "o-3")).json() == {"charge": "ch_2"}
        assert len(provider.charges) == 2


async def test_a_provider_without_keys_is_asked_first(redis_url: str) -> None:
    class Bank:
        charges: ClassVar[dict[str, str]] = {}

        async def find(self, reference: str) -> str | None:
            return self.charges.get(reference)

        async def charge(self, amount: int, *, reference: str) -> str:
            assert reference not in self.charges
            return self.charges.setdefault(reference, "ch_1")

    names = RECIPE.run("from fastdedup import Dedup\n" + CHARGE_ONCE)
    async with Dedup(redis_url, namespace="banks") as gate:
        charges = (names["charge_once"](gate, Bank(), "7|o-1", 500) for _ in range(3))
        assert await asyncio.gather(*charges) == ["ch_1"] * 3


async def twice(app: Any, path: str) -> list[httpx.Response]:
    """Send a request two times."""
    async with client(app) as calling:
        headers = {"x-account": "7", "idempotency-key": path}
        return [await calling.post(path, json={"amount": 5}, headers=headers) for _ in range(2)]


async def test_starlette_commits(file: Path, redis_url: str) -> None:
    names = run_endpoints(file, redis_url)
    run(STARLETTE, names)
    async with names["dedup"]:
        answers = await twice(names["refunds"], "/refunds")
    await names["Session"].kw["bind"].dispose()
    assert [one.json() for one in answers] == [{"refunded": True}] * 2
    assert payments(file) == [("7", -5)]


async def test_plain_functions_commit_in_threads(file: Path, redis_url: str) -> None:
    names = run_endpoints(file, redis_url)
    run(BEGIN, names)
    run(ASYNCPG, names)
    run(IN_THREAD, names)
    engine = create_engine(f"sqlite:///{file}", connect_args=IMMEDIATE)
    names["sessions"].configure(bind=engine)
    async with names["dedup"]:
        answers = await twice(names["app"], "/sync-payments")
    engine.dispose()
    assert [(one.status_code, one.json()) for one in answers] == [(201, {"payment": 1})] * 2
    assert payments(file) == [("7", 5)]


def test_flask_commits(file: Path, redis_url: str) -> None:
    names = PAGE.run("")
    engine = 'create_engine("postgresql+psycopg://localhost/shop")'
    assert engine in FLASK
    here = f'create_engine("sqlite:///{file}", connect_args={IMMEDIATE!r})'
    run(FLASK.replace(engine, here).replace(URL, redis_url), names)
    headers = {"x-account": "7", "idempotency-key": "flask"}
    with names["gate"]:
        browser = names["app"].test_client()
        answers = [browser.post("/payments", json={"amount": 5}, headers=headers) for _ in range(2)]
    names["Session"].kw["bind"].dispose()
    assert [(one.status_code, one.json) for one in answers] == [(201, {"paid": 5})] * 2
    assert payments(file) == [("7", 5)]


class Payment:
    """Stands for a model: its manager inserts by Django's connection."""

    pk = 1

    class objects:  # noqa: N801 -- Django's name
        """The manager."""

        @staticmethod
        def create(account: Any, amount: str) -> Payment:
            with connections["default"].cursor() as cursor:
                insert = "INSERT INTO payment (account, amount) VALUES (%s, %s)"
                cursor.execute(insert, [str(account.pk), int(amount)])
            return Payment()


def test_django_commits(file: Path, redis_url: str) -> None:
    names = PAGE.run("")
    run(DJANGO, names)
    names["Payment"] = Payment

    def request() -> Any:
        sent = RequestFactory().post("/payments", {"amount": "5"}, headers={"idempotency-key": "django"})
        sent.user = SimpleNamespace(pk=7, is_authenticated=True)
        return sent

    database = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(file)}
    dedup = {"url": redis_url, "namespace": "payments"}
    with open_database(**database), override_settings(FASTDEDUP=dedup):
        answers = [names["pay"](request()) for _ in range(2)]
    assert [(one.status_code, one.content) for one in answers] == [(201, b'{"payment": 1}')] * 2
    assert payments(file) == [("7", 5)]


def test_its_table_leads_to_each_status_that_is_not_kept() -> None:
    """The statuses are listed once, in the rules of HTTP."""
    assert "| returns 5xx, or [a 4xx that frees the key](http-rules.md#what-is-kept)" in PAGE.text
    rule = (
        Page("http-rules.md")
        .sections["What is kept"]
        .partition("**Statuses**")[2]
        .partition("free the key")[0]
    )
    assert {int(status) for status in re.findall(r"\b4\d\d\b", rule)} == NOT_KEPT


def test_the_page_is_in_the_navigation() -> None:
    assert "committing-endpoint.md" in (Path(__file__).parents[2] / "mkdocs.yml").read_text()
