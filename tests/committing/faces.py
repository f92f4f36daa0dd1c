"""The bank behind FastAPI, Starlette, Flask and Django, with the same verbs, for tests of what all promise."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import flask
import httpx
import orjson
from django.http import Http404, HttpRequest, HttpResponseBase
from django.test import Client, override_settings
from sqlalchemy import Engine, create_engine
from starlette.exceptions import HTTPException
from starlette.responses import Response, StreamingResponse
from werkzeug.exceptions import NotFound

from fastdedup.integrations.django import gate as gate_of_django
from fastdedup.model import State
from fastdedup.sync import Dedup
from fastdedup.web.inspection import forget_request, get_request, principal_of_header

from ..gated_inbox.shop import Place
from ..integrations.desk import client
from ..integrations.wsgi_apps import Reply
from ..integrations.wsgi_django import response_of
from .bank import IMMEDIATE, open_sqlite, tables
from .django_bank import TILL, URLS, open_database
from .flask_bank import Shop
from .test_starlette import starlette_of

ANN = principal_of_header("ann")


@dataclass
class Face:
    """An endpoint that commits its work, which is to leave the request's note behind.

    Attributes:
        send: sends a request, by its method and path.
        known: calls a function of `fastdedup.web.inspection` for a key.
        not_found: what the framework raises for 404.
        bank: what is particular to the framework.
        path: of the endpoint.
        database: its file of SQLite.
        act: what the handler does after its work: it raises an error, or gives its answer, or None for the usual one.
    """

    send: Callable[..., httpx.Response]
    known: Callable[..., Any]
    not_found: Exception
    bank: Any
    database: Path = Path()
    path: str = "/payments/1"
    act: Callable[[], Reply | None] = lambda: None
    runs: int = 0

    def handle(self) -> Reply | None:
        """Do what a handler does after its work."""
        self.runs += 1
        return self.act()

    def pay(self, key: str | None, note: str = "n") -> httpx.Response:
        return self.send("POST", self.path, json={"note": note}, headers=headers_of(key))

    def query(self, statement: str) -> list[Any]:
        """Run a statement, and commit; return the first column of its rows."""
        with closing(sqlite3.connect(self.database)) as connection, connection:
            return [value for (value,) in connection.execute(statement)]

    def effects(self) -> list[str]:
        """Return the notes of all work that was committed."""
        return self.query("SELECT note FROM work")

    def rows(self) -> int:
        """Return the number of rows of the inbox."""
        return int(self.query("SELECT count(*) FROM fastdedup_inbox")[0])

    def state(self, key: str) -> State | None:
        record = self.known(get_request, key)
        return None if record is None else record.state

    def forget(self, key: str) -> None:
        """Let the gate forget a request, like a failover."""
        assert self.known(forget_request, key)

    def is_undone(self, key: str) -> bool:
        """Return whether a request has left nothing behind, so that a retry is a first run."""
        return (self.effects(), self.rows(), self.state(key)) == ([], 0, State.RELEASED)


def headers_of(key: str | None) -> dict[str, str]:
    return {"x-account": "ann"} | ({} if key is None else {"idempotency-key": key})


# FastAPI and Starlette, in an event loop of their own, so that the tests are plain functions


@contextmanager
def of_asgi(is_fastapi: bool, url: str, folder: Path, **gate: Any) -> Iterator[Face]:
    with asyncio.Runner() as runner:
        opened = open_sqlite(url, folder, gate=gate)
        bank = runner.run(opened.__aenter__())
        http = client(bank.app if is_fastapi else starlette_of(bank))
        route, name = ("/payments", "ann") if is_fastapi else ("/payments/{number}", ANN)

        def send(*request: str, **sent: Any) -> httpx.Response:
            return runner.run(http.request(*request, **sent))

        def known(ask: Callable[..., Any], key: str) -> Any:
            return runner.run(ask(bank.gate, "POST", route, key=key, principal=name))

        path = route.replace("{number}", "1")
        face = Face(send, known, HTTPException(404), bank, folder / "bank.db", path)

        async def act(request: Any) -> Response | None:
            return response_of_starlette(face.handle())

        bank.act = act
        try:
            yield face
        finally:
            runner.run(opened.__aexit__(None, None, None))


def response_of_starlette(reply: Reply | None) -> Response | None:
    if reply is None:
        return None
    headers = dict(reply.headers)
    if isinstance(reply.body, bytes):
        return Response(reply.body, reply.status, headers)
    return StreamingResponse(reply.body, reply.status, headers)


# Flask and Django


@contextmanager
def of_flask(engine: Engine, url: str, database: Path = Path(), **gate: Any) -> Iterator[Face]:
    with Dedup(url, namespace="flask", **gate) as dedup:
        shop = Shop(dedup, engine)

        def send(method: str, path: str, **sent: Any) -> httpx.Response:
            answer = shop.app.test_client().open(path, method=method, **sent)
            headers = answer.headers.to_wsgi_list()
            return httpx.Response(answer.status_code, headers=headers, content=answer.data)

        def known(ask: Callable[..., Any], key: str) -> Any:
            return ask(dedup, "POST", "/payments/{int:number}", key=key, principal=ANN)

        def act() -> Any:
            reply = face.handle()
            return shop.usual() if reply is None else flask.Response(reply.body, reply.status, reply.headers)

        face = Face(send, known, NotFound(), shop, database)
        shop.act = act
        yield face
    engine.dispose()


@contextmanager
def of_django(database: Path = Path(), **gate: Any) -> Iterator[Face]:
    """Open the views over Django's default database."""

    def send(method: str, path: str, **sent: Any) -> httpx.Response:
        data = orjson.dumps(sent["json"]) if "json" in sent else b""
        http = Client(raise_request_exception=False)
        answer = http.generic(method, path, data, "application/json", headers=sent["headers"])
        return httpx.Response(answer.status_code, headers=list(answer.items()), content=answer.getvalue())

    def known(ask: Callable[..., Any], key: str) -> Any:
        return ask(gate_of_django(), "POST", "/payments/<int:number>", key=key, principal=ANN)

    def act(request: HttpRequest) -> HttpResponseBase:
        reply = face.handle()
        return TILL.usual(request) if reply is None else response_of(reply)

    face = Face(send, known, Http404(), TILL, database)
    TILL.runs, TILL.act = 0, act
    with override_settings(ROOT_URLCONF=URLS, FASTDEDUP={"namespace": "django", **gate}):
        yield face


# On files of SQLite, and for those without a server of ASGI on PostgreSQL, behind the proxy


@contextmanager
def flask_on_sqlite(url: str, folder: Path, **gate: Any) -> Iterator[Face]:
    engine = create_engine(f"sqlite:///{folder / 'flask.db'}", connect_args=IMMEDIATE)
    with engine.begin() as connection:
        for statement in tables("sqlite"):
            connection.exec_driver_sql(statement)
    with of_flask(engine, url, folder / "flask.db", **gate) as face:
        yield face


@contextmanager
def django_on_sqlite(url: str, folder: Path, **gate: Any) -> Iterator[Face]:
    sqlite = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(folder / "bank.db")}
    immediate = {"transaction_mode": "IMMEDIATE"}
    with (
        open_database(dialect="sqlite", OPTIONS=immediate, **sqlite),
        of_django(folder / "bank.db", url=url, **gate) as face,
    ):
        yield face


@contextmanager
def flask_on_postgres(place: Place, url: str, **gate: Any) -> Iterator[Face]:
    database = place.database.urls["psycopg"].partition("?")[0]
    with of_flask(create_engine(f"{database}?host={place.proxy.folder}"), url, **gate) as face:
        yield face


@contextmanager
def django_on_postgres(place: Place, url: str, **gate: Any) -> Iterator[Face]:
    database = {**place.database.django, "HOST": str(place.proxy.folder)}
    with open_database(**database), of_django(url=url, **gate) as face:
        yield face


FACES: dict[str, Callable[..., AbstractContextManager[Face]]] = {
    "fastapi": partial(of_asgi, True),
    "starlette": partial(of_asgi, False),
    "flask": flask_on_sqlite,
    "django": django_on_sqlite,
}
ON_POSTGRES = {"flask": flask_on_postgres, "django": django_on_postgres}
