"""Each face of the gate gives the requests of its work their keys: the same at each attempt, and none afterwards."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import celery
import dramatiq
import flask
import httpx
import pytest
from asgiref.sync import async_to_sync
from django.http import HttpRequest, StreamingHttpResponse
from django.template.response import TemplateResponse
from django.test import Client
from django.urls import path
from dramatiq.brokers.stub import StubBroker
from dramatiq.middleware import Retries
from faststream.rabbit import RabbitBroker, RabbitRouter, TestRabbitBroker
from taskiq import InMemoryBroker, SimpleRetryMiddleware

from fastdedup import Dedup, sync
from fastdedup.client.httpx import IdempotentTransport
from fastdedup.downstream import downstream_key, present_work
from fastdedup.integrations import dramatiq as dramatiq_gate
from fastdedup.integrations import faststream as faststream_gate
from fastdedup.integrations import taskiq as taskiq_gate
from fastdedup.integrations.celery import DedupTask
from fastdedup.integrations.django import idempotent as idempotent_view
from fastdedup.integrations.flask import FastDedup, idempotent
from fastdedup.integrations.wsgi import IdempotencyMiddleware, everyone
from fastdedup.messages.dispatch import Dispatcher, SyncDispatcher
from fastdedup.sql import Inbox
from fastdedup.sync.sql import Inbox as SyncInbox
from fastdedup.testing import inbox_database

from ..fixtures import fixture_of
from ..inbox_file import transaction, transaction_now
from ..integrations import django_project as django_project  # sets Django up
from ..integrations.django_inside import SETTINGS as INSIDE
from ..integrations.django_shop import open_shop
from ..integrations.wsgi_apps import environ_of
from ..servers import RedisServer

HEADER = "Idempotency-Key"
KEY = {HEADER: "k"}


class Broken(Exception):
    """The first attempt at the work fails."""


class Work:
    """Sends a request, and fails at the first attempt."""

    def __init__(self) -> None:
        self.keys: list[str] = []

    def __call__(self, error: type[Exception] = Broken) -> str:
        transport = IdempotentTransport(httpx.MockTransport(lambda request: httpx.Response(200)))
        with httpx.Client(transport=transport) as client:
            self.keys.append(client.post("http://bank/charges").request.headers[HEADER])
        if len(self.keys) == 1:
            raise error
        return "done"

    def is_right(self) -> bool:
        """True where both attempts sent one key, and this context is free again."""
        return len(self.keys) == 2 and len(set(self.keys)) == 1 and present_work() is None


@pytest.fixture
def work() -> Work:
    return Work()


dedup = fixture_of(sync.Dedup, "memory://")


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Path]:
    with inbox_database(Inbox("billing", keep=60.0), path=tmp_path / "orders.db"):
        yield tmp_path / "orders.db"


# The web: ASGI, FastAPI and WSGI are in test_claims.py


@pytest.mark.parametrize("url", ["/drf/view", "/drf/function", "/ninja/orders", "/ninja/async"])
def test_operations_of_rest_framework_and_ninja(url: str, work: Work, monkeypatch: Any) -> None:
    secret = "Token ann's" if url.startswith("/drf") else "Bearer ann's"
    with open_shop(**INSIDE, FASTDEDUP={"url": "memory://"}) as desk:
        monkeypatch.setattr(desk, "order", lambda item: work(RuntimeError))
        client = Client(raise_request_exception=False)
        for _ in range(2):
            client.post(url, {}, "application/json", headers={**KEY, "Authorization": secret})
    assert work.is_right()


@pytest.mark.parametrize("url", ["/decorated/ok", "/adecorated/ok", "/class/ok"])
def test_views_of_django(url: str, work: Work, monkeypatch: Any) -> None:
    urls = "tests.integrations.django_api"
    with open_shop(ROOT_URLCONF=urls, FASTDEDUP={"url": "memory://"}) as desk:
        monkeypatch.setattr(desk, "order", lambda item: work(RuntimeError))
        client = Client(raise_request_exception=False)
        for _ in range(2):
            client.post(url, "{}", content_type="application/json", headers=KEY)
    assert work.is_right()


def test_views_of_flask(work: Work, dedup: sync.Dedup) -> None:
    app = flask.Flask("shop")
    FastDedup(app, dedup, principal=lambda request: "ann")
    app.post("/orders")(idempotent()(lambda: work()))
    for _ in range(2):
        app.test_client().post("/orders", headers=KEY)
    assert work.is_right()


def parts(work: Work) -> Iterator[bytes]:
    """A stream that sends its request between two parts."""
    yield b"first"
    yield work().encode()


async def async_parts(work: Work) -> AsyncIterator[bytes]:
    for part in parts(work):
        yield part


@pytest.mark.parametrize("app", ["flask", "wsgi"])
def test_streams_of_flask_and_wsgi(app: str, work: Work, dedup: sync.Dedup) -> None:
    """A stream is read once its view has ended, and another claim that it holds has keys of its own."""
    shop = flask.Flask("shop")
    view: Any = lambda: flask.Response(parts(work), mimetype="text/event-stream")  # noqa: E731
    if app == "flask":
        FastDedup(shop, dedup, principal=lambda request: "ann")
        view = idempotent()(view)
    else:
        shop.wsgi_app = IdempotencyMiddleware(shop.wsgi_app, dedup, principal=everyone)  # type: ignore[method-assign]
    shop.post("/orders")(view)
    for _ in range(2):
        with contextlib.suppress(Broken), shop.test_client().post("/orders", headers=KEY) as response:
            assert response.data == b"firstdone"
    assert work.is_right()


class Rendered(TemplateResponse):
    """A response that sends a request while it is rendered, after the view."""

    def __init__(self, work: Work) -> None:
        super().__init__(HttpRequest(), "none")
        self.work = work

    @property
    def rendered_content(self) -> str:
        return self.work()


def closed_parts(work: Work) -> Iterator[bytes]:
    """A stream that sends its request when it is closed."""
    try:
        yield b"first"
    finally:
        work()


class Tracked(StreamingHttpResponse):
    """A stream that its application looks up when it is closed."""

    open: ClassVar[set[Any]] = set()

    def close(self) -> None:
        self.open.discard(self)
        super().close()


@pytest.mark.parametrize("kind", ["stream", "async stream", "closed stream", "rendered"])
def test_responses_of_django_that_come_after_the_view(kind: str, work: Work) -> None:
    """A view that has sent the same request before: each has a key of its own, at each attempt the same."""
    first: list[str] = []

    @idempotent_view(principal=lambda request: "ann")
    def view(request: HttpRequest) -> Any:
        with contextlib.suppress(Broken):
            before = Work()
            before()
        first.extend(before.keys)
        if kind == "rendered":
            return Rendered(work)
        make = {"async stream": async_parts, "closed stream": closed_parts}.get(kind, parts)
        return Tracked(make(work), content_type="text/event-stream")

    async def read(response: Any) -> bytes:
        return b"".join([part async for part in response])

    with open_shop(ROOT_URLCONF=(path("orders", view),), FASTDEDUP={"url": "memory://"}):
        for _ in range(2):
            with contextlib.suppress(Broken):
                response: Any = Client().post("/orders", headers=KEY)
                if kind == "async stream":
                    async_to_sync(read)(response)
                elif kind == "closed stream":
                    next(iter(response))
                    response.close()
                else:
                    assert b"done" in response.getvalue()
    assert work.is_right()
    assert len({*first}) == 1
    assert first[0] not in work.keys


@pytest.mark.parametrize("nested", [False, True])
def test_a_claim_that_a_stream_holds_keeps_its_keys(nested: bool, dedup: sync.Dedup) -> None:
    """From one part to the next: the request's own claim does not come between, and goes on after it."""
    asked: list[str | None] = []
    expected: list[str] = []

    def ask() -> None:
        work = present_work()
        asked.append(work and work.key_for("POST", "http://bank"))

    def app(environ: Any, start_response: Any) -> Iterator[bytes]:
        start_response("200 OK", [("Content-Type", "text/event-stream")])
        outer = present_work()
        assert outer is not None
        expected.extend(downstream_key(outer.wire, f"POST http://bank {place}") for place in (1, 2, 3))
        ask()
        around = dedup.claim("middle") if nested else contextlib.nullcontext()
        with around, dedup.claim("inner") as claim:
            yield b"a"
            ask()
            expected.insert(1, claim.downstream("POST http://bank 1"))
        ask()
        yield b"b"
        ask()

    gated: Any = IdempotencyMiddleware(app, dedup, principal=everyone)
    assert b"".join(gated(environ_of(key="k"), lambda *_: None)) == b"ab"
    assert asked == expected
    assert present_work() is None


# Tasks and messages


def test_tasks_of_celery(work: Work, dedup: sync.Dedup) -> None:
    app = celery.Celery("shop", broker="memory://", backend="cache+memory://", set_as_current=False)
    app.conf.task_always_eager = True

    @app.task(base=DedupTask, dedup=dedup, key=lambda order: order, bind=True, shared=False)
    def charge(self: Any, order: str) -> str:
        try:
            return work()
        except Broken as error:
            raise self.retry(exc=error, countdown=0) from None

    assert charge.delay("7").get() == "done"
    assert work.is_right()


def test_actors_of_dramatiq(work: Work, dedup: sync.Dedup) -> None:
    broker = StubBroker(
        middleware=[Retries(min_backoff=1, max_backoff=2), dramatiq_gate.DedupMiddleware(dedup)]
    )
    charge = dramatiq.actor(lambda order: work(), actor_name="charge", broker=broker, dedup_key=str)
    charge.send("7")
    worker = dramatiq.Worker(broker, worker_timeout=10, worker_threads=1)
    worker.start()
    broker.join(charge.queue_name)
    worker.join()
    worker.stop()
    assert work.is_right()


async def test_tasks_of_taskiq(work: Work) -> None:
    async with Dedup("memory://") as dedup:
        gate = taskiq_gate.DedupMiddleware(dedup)
        broker = InMemoryBroker(await_inplace=True).with_middlewares(SimpleRetryMiddleware(), gate)

        @broker.task(retry_on_error=True, task_name="charge")
        @gate.once(key=lambda order: order)
        async def charge(order: str) -> str:
            return work()

        await broker.startup()
        await charge.kiq("7")
        await broker.wait_all()
        await broker.shutdown()
    assert work.is_right()


@pytest.mark.parametrize("in_an_inbox", [False, True])
async def test_subscribers_of_faststream(work: Work, database: Path, in_an_inbox: bool) -> None:
    inbox = Inbox("billing", keep=60.0, begin=lambda: transaction(database)) if in_an_inbox else None
    async with Dedup("memory://") as dedup:
        guard = faststream_gate.DedupMiddleware(
            dedup, key=faststream_gate.message_id, retry_delay=0.01, inbox=inbox, dead_letter="dead"
        )
        broker = RabbitBroker()
        router = RabbitRouter(middlewares=[guard])

        @router.subscriber("orders")
        async def charge(order: int) -> None:
            work()

        broker.include_router(router)
        async with TestRabbitBroker(broker):
            for _ in range(2):
                await broker.publish(7, "orders", message_id="order-7")
    assert work.is_right()


async def test_messages_of_dispatchers(work: Work) -> None:
    async def handler(message: str) -> str:
        return work()

    async with Dedup("memory://") as dedup:
        orders = Dispatcher("orders", dedup, key=str, retry_delay=0.01)
        for _ in range(2):
            await orders.dispatch("7", handler)
    assert work.is_right()


def test_messages_of_blocking_dispatchers(work: Work, dedup: sync.Dedup) -> None:
    orders = SyncDispatcher("orders", dedup, key=str, retry_delay=0.01)
    for _ in range(2):
        orders.dispatch("7", lambda message: work())
    assert work.is_right()


# The inbox behind the gate


@pytest.mark.parametrize("is_gone", [False, True], ids=["", "the gate is gone"])
async def test_an_inbox_behind_the_gate(
    work: Work, database: Path, own_redis: RedisServer, is_gone: bool
) -> None:
    """If the inbox alone decides at the second attempt, the next hop must know it by the same key all the same."""
    async with Dedup(own_redis.url, timeout=0.2) as dedup:
        inbox = Inbox("billing", keep=60.0, begin=lambda: transaction(database))

        @inbox.once(lambda connection, order: order, gate=dedup)
        async def charge(connection: Any, order: str) -> str:
            return work()

        with contextlib.suppress(Broken):
            await charge("7")
        if is_gone:
            own_redis.kill()
        await charge("7")
    assert work.is_right()


def test_an_inbox_of_synchronous_code(work: Work, dedup: sync.Dedup, database: Path) -> None:
    @SyncInbox("billing", keep=60.0, begin=partial(transaction_now, database)).once(
        lambda connection, order: order, gate=dedup
    )
    def charge(connection: Any, order: str) -> str:
        return work()

    with contextlib.suppress(Broken):
        charge("7")
    charge("7")
    assert work.is_right()
