"""Ways past a rule, or to another's response, that review found: each worked before its fix."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Annotated, Any

import flask
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from django.http import HttpResponse
from django.test import RequestFactory, override_settings
from fastapi import FastAPI, Header
from flask.views import MethodView
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route as Path

from fastdedup import Claim, ConfigError, Dedup, UnavailableError, fingerprint
from fastdedup.integrations import aiohttp, asgi, wsgi
from fastdedup.integrations.django import IdempotencyMiddleware as DjangoMiddleware
from fastdedup.integrations.fastapi import Claimed, Idempotency, OneTimeToken, everyone
from fastdedup.integrations.flask import FastDedup
from fastdedup.integrations.flask import idempotent as flask_guard
from fastdedup.integrations.http.exchange import AsgiExchange
from fastdedup.sync import Dedup as SyncDedup

from ..integrations import django_project as django_project  # sets Django up
from ..integrations.desk import behind, client


async def answer(request: Any) -> PlainTextResponse:
    return PlainTextResponse(request.url.path)


@pytest.mark.parametrize("path", ["/orders", "/orders%0a", "/orders/", "//orders"])
async def test_no_spelling_of_a_path_slips_past_a_required_key(path: str) -> None:
    app = Starlette(routes=[Path("/orders", answer, methods=["POST"])])
    async with behind(Dedup("memory://"), app, routes=[asgi.Route("/orders", required=True)]) as visitor:
        request = visitor.build_request("POST", "/orders")
        request.url = request.url.copy_with(raw_path=path.encode())
        assert (await visitor.send(request)).status_code == 400


@pytest.mark.parametrize("method", ["POST", "post", "PoSt"])
def test_no_spelling_of_a_method_slips_past_a_required_key(method: str) -> None:
    shop = flask.Flask("shop")
    shop.post("/orders")(lambda: "done")
    statuses = []
    with SyncDedup("memory://") as dedup:
        routes = [wsgi.Route("/orders", required=True)]
        app = wsgi.IdempotencyMiddleware(shop.wsgi_app, dedup, principal=wsgi.everyone, routes=routes)
        environ = flask.Flask("x").test_request_context("/orders", method="POST").request.environ
        environ["REQUEST_METHOD"] = method
        list(app(environ, lambda status, headers, exc_info=None: statuses.append(status)))  # type: ignore[arg-type,return-value,func-returns-value]
    assert statuses == ["400 Bad Request"]


@pytest.mark.parametrize("place", ["application", "blueprint", "class"])
def test_a_flask_route_below_its_guard_is_refused(place: str) -> None:
    """The route led to the view alone: each retry ran it again, and no line told of that."""
    shop, calls = flask.Flask("shop"), []
    shop.testing = True
    orders = flask.Blueprint("orders", "orders")
    guard = flask_guard(principal=lambda _: "ann")

    def order() -> str:
        calls.append(1)
        return "ordered"

    class Orders(MethodView):
        def post(self) -> str:
            return order()

    match place:
        case "application":
            guard(shop.post("/orders")(order))
        case "blueprint":
            guard(orders.post("/orders")(order))
            shop.register_blueprint(orders)
        case _:
            view = Orders.as_view("order")
            shop.add_url_rule("/orders", view_func=view, methods=["POST"])
            guard(view)
    with SyncDedup("memory://") as dedup:
        FastDedup(shop, dedup)
        with pytest.raises(ConfigError, match=r"must be below @app\.route: the route of '[\w.]+' leads"):
            shop.test_client().post("/orders", headers={"Idempotency-Key": "k"})
    assert calls == []


def test_a_flask_view_may_have_one_route_with_a_guard_and_one_without() -> None:
    shop, calls = flask.Flask("shop"), []
    shop.testing = True

    def order() -> str:
        calls.append(1)
        return "ordered"

    shop.add_url_rule("/internal", "internal", order, methods=["POST"])
    shop.add_url_rule("/orders", "orders", flask_guard(principal=lambda _: "ann")(order), methods=["POST"])
    with SyncDedup("memory://") as dedup:
        FastDedup(shop, dedup)
        for path in ("/internal", "/internal", "/orders", "/orders"):
            assert shop.test_client().post(path, headers={"Idempotency-Key": "k"}).text == "ordered"
    assert len(calls) == 3


async def somebody(x_user: Annotated[str | None, Header()] = None) -> str | None:
    return x_user


async def test_nobody_redeems_nor_replays_somebodys_token() -> None:
    dedup = Dedup("memory://")
    app = FastAPI()
    Idempotency(app, dedup)

    @app.post("/orders")
    async def order(claim: Annotated[Claim, OneTimeToken(subject=somebody)]) -> str:
        return "her receipt"

    async with dedup, client(app, raises=True) as visitor:
        used, fresh = [await dedup.tokens.issue(subject="ann") for _ in range(2)]
        open_to_all = await dedup.tokens.issue()
        assert (await visitor.post("/orders", headers={"x-user": "ann", "x-one-time-token": used})).is_success
        for token, status in (
            (used, 409),
            (fresh, 403),
        ):  # "was done already", without her receipt; and "not yours"
            refused = await visitor.post("/orders", headers={"x-one-time-token": token})
            assert refused.status_code == status
            assert "her receipt" not in refused.text
        assert (await visitor.post("/orders", headers={"x-one-time-token": open_to_all})).is_success


async def test_one_key_for_two_resources_is_not_replayed_whatever_the_fingerprint_looks_at() -> None:
    app = Starlette(routes=[Path("/pay/{id}", answer, methods=["POST"])])
    rules = {"routes": ["/pay/{id}"], "fingerprint": lambda request: fingerprint(request.body)}
    async with behind(Dedup("memory://"), app, **rules) as visitor:
        paid = [
            await visitor.post(f"/pay/{number}", headers={"idempotency-key": "k"}) for number in (1, 2, 1)
        ]
    assert [(each.status_code, each.text) for each in (paid[0], paid[2])] == [(200, "/pay/1")] * 2
    assert paid[1].status_code == 422


async def test_a_mounted_application_without_a_gate_of_its_own_is_a_mistake() -> None:
    dedup = Dedup("memory://")
    app, part = FastAPI(), FastAPI()
    Idempotency(app, dedup)
    app.mount("/part", part)

    @part.post("/orders", dependencies=[Claimed(principal=everyone)])
    async def order() -> None: ...

    async with dedup, client(app, raises=True) as visitor:
        with pytest.raises(ConfigError, match=r"Idempotency\(\.\.\.\) of its own"):
            await visitor.post("/part/orders", headers={"idempotency-key": "k"})


@pytest.mark.parametrize(
    "settings", [{"requird": True}, {"methods": ["PUT"]}, {"principal": "x"}, {"principal": None}]
)
def test_mistakes_in_claimed_are_told_where_they_are_made(settings: Any) -> None:
    with pytest.raises(ConfigError, match=re.escape(next(iter(settings)))):
        Claimed(**{"principal": everyone, **settings})


@pytest.mark.parametrize("gate", ["redis://localhost", SyncDedup("memory://"), None])
def test_asgi_takes_the_asyncio_gate(gate: Any) -> None:
    with pytest.raises(ConfigError, match=re.escape("must be a fastdedup.Dedup")):
        asgi.IdempotencyMiddleware(FastAPI(), gate, principal=asgi.everyone)


def test_a_gate_is_a_dedup() -> None:
    with pytest.raises(ConfigError, match=re.escape("must be a fastdedup.Dedup")):
        Idempotency(FastAPI(), "redis://localhost")  # type: ignore[arg-type]


async def test_empty_chunks_of_a_body_take_no_memory() -> None:
    left = 10_000

    async def receive() -> dict[str, Any]:
        nonlocal left
        left -= 1
        return {"type": "http.request", "body": b"" if left else b"end", "more_body": bool(left)}

    async def send(message: Any) -> None: ...

    exchange = AsgiExchange(receive, send, 1000)
    assert await exchange.body() == b"end"
    assert len(exchange._chunks) == 1


def test_a_body_with_two_lengths_is_refused() -> None:
    statuses = []
    with SyncDedup("memory://") as dedup:
        app = wsgi.IdempotencyMiddleware(lambda environ, start: [b""], dedup, principal=wsgi.everyone)
        environ = flask.Flask("x").test_request_context("/", method="POST", data=b"abcde").request.environ
        environ |= {"CONTENT_LENGTH": "3", "HTTP_TRANSFER_ENCODING": "chunked", "HTTP_IDEMPOTENCY_KEY": "k"}
        list(app(environ, lambda status, headers, exc_info=None: statuses.append(status)))  # type: ignore[arg-type,return-value,func-returns-value]
    assert statuses == ["400 Bad Request"]


async def test_the_link_to_the_docs_is_below_the_root_path() -> None:
    dedup = Dedup("memory://")
    app = FastAPI()
    Idempotency(app, dedup)

    @app.post("/orders", dependencies=[Claimed(principal=everyone, required=True)])
    async def order() -> None: ...

    async with dedup, client(app, raises=True, root_path="/v1") as visitor:
        answered = await visitor.post("/v1/orders")
    assert answered.headers["link"] == '</v1/docs>; rel="describedby"'


async def test_an_outage_that_a_handler_without_a_key_meets_is_its_own() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise UnavailableError("the handler's own store")

    async with behind(Dedup("memory://"), app) as visitor:
        with pytest.raises(UnavailableError, match="own store"):
            await visitor.post("/orders")


def test_an_outage_that_a_wsgi_handler_without_a_key_meets_is_its_own() -> None:
    def app(environ: Any, start_response: Any) -> Any:
        raise UnavailableError("the handler's own store")

    with SyncDedup("memory://") as dedup:
        middleware = wsgi.IdempotencyMiddleware(app, dedup, principal=wsgi.everyone)
        environ = flask.Flask("x").test_request_context("/orders", method="POST").request.environ
        with pytest.raises(UnavailableError, match="own store"):
            middleware(environ, lambda status, headers, exc_info=None: lambda data: None)


# A middleware that tried a request again after an error ran it the second time without a claim: it was marked as
# claimed, by the claim that the first run had given back. Its response was not stored, so a duplicate ran as well.


class Runs(list[str]):
    """What a handler does: the first run fails."""

    def answer(self) -> str:
        self.append("run")
        if len(self) == 1:
            raise ConnectionError("a deadlock")
        return f"run {len(self)}"


KEYED = {"Idempotency-Key": "k"}


@pytest.mark.parametrize("guard", ["middleware", "decorator"])
def test_a_request_that_wsgi_middleware_tries_again_is_claimed_again(guard: str) -> None:
    runs, shop = Runs(), flask.Flask("shop")
    shop.testing = True
    with SyncDedup("memory://") as dedup:
        FastDedup(shop, dedup)
        decorate: Any = flask_guard(principal=lambda _: "ann") if guard == "decorator" else lambda view: view
        shop.post("/orders")(decorate(runs.answer))
        app: Any = shop.wsgi_app
        if guard == "middleware":
            app = wsgi.IdempotencyMiddleware(app, dedup, principal=wsgi.everyone)

        def again(environ: Any, start: Any) -> Any:
            try:
                return app(environ, start)
            except ConnectionError:
                return app(environ, start)

        shop.wsgi_app = again  # type: ignore[method-assign]
        first, second = (shop.test_client().post("/orders", headers=KEYED) for _ in range(2))
    assert [first.data, second.data, second.headers["idempotency-replayed"]] == [b"run 2"] * 2 + ["true"]


def test_a_request_that_django_middleware_tries_again_is_claimed_again() -> None:
    runs = Runs()

    def view(request: Any) -> HttpResponse:
        try:
            return HttpResponse(runs.answer())
        except ConnectionError:
            return HttpResponse(status=500)  # as Django makes of each error

    with override_settings(FASTDEDUP={"url": "memory://"}, FASTDEDUP_HTTP={"principal": lambda _: "ann"}):
        app = DjangoMiddleware(view)
        request, duplicate = (RequestFactory().post("/orders", headers=KEYED) for _ in range(2))
        assert app(request).status_code == 500
        assert [app(one).content for one in (request, duplicate)] == [b"run 2"] * 2


async def test_a_request_that_aiohttp_middleware_tries_again_is_claimed_again() -> None:
    runs = Runs()

    @web.middleware
    async def again(request: web.Request, handler: Any) -> Any:
        try:
            return await handler(request)
        except ConnectionError:
            return await handler(request)

    async def order(request: web.Request) -> web.Response:
        return web.Response(text=runs.answer())

    app = web.Application(middlewares=[again])
    app.router.add_post("/orders", order)
    aiohttp.setup(app, Dedup("memory://"), principal=aiohttp.everyone)
    async with TestClient(TestServer(app)) as visitor:
        answers = [await visitor.post("/orders", headers=KEYED) for _ in range(2)]
        assert [await answer.text() for answer in answers] == ["run 2"] * 2


# A claim whose lease was lost is neither settled nor given back: such a request ran again without a claim, beside the
# key's new owner.


def test_a_request_of_wsgi_that_has_lost_its_lease_claims_again() -> None:
    runs, shop = [], flask.Flask("shop")
    shop.testing = True

    @shop.post("/orders")
    def order() -> str:
        claim = wsgi.claim_of(flask.request.environ)
        assert claim is not None
        runs.append(claim)
        claim.asynchronous.settlement.note_lost(outage=False)
        raise ConnectionError

    with SyncDedup("memory://") as dedup:
        app: Any = wsgi.IdempotencyMiddleware(shop.wsgi_app, dedup, principal=wsgi.everyone)

        def again(environ: Any, start: Any) -> Any:
            with suppress(ConnectionError):
                app(environ, start)
            return app(environ, start)

        shop.wsgi_app = again  # type: ignore[method-assign]
        assert (shop.test_client().post("/orders", headers=KEYED).status_code, len(runs)) == (409, 1)


async def test_a_request_of_aiohttp_that_has_lost_its_lease_claims_again() -> None:
    runs = []

    @web.middleware
    async def again(request: web.Request, handler: Any) -> Any:
        with suppress(ConnectionError):
            await handler(request)
        return await handler(request)

    async def order(request: web.Request) -> web.Response:
        claim = aiohttp.claim_of(request)
        assert claim is not None
        runs.append(claim)
        claim.settlement.note_lost(outage=False)
        raise ConnectionError

    app = web.Application(middlewares=[again])
    app.router.add_post("/orders", order)
    aiohttp.setup(app, Dedup("memory://"), principal=aiohttp.everyone)
    async with TestClient(TestServer(app)) as visitor:
        assert ((await visitor.post("/orders", headers=KEYED)).status, len(runs)) == (409, 1)


def test_a_view_that_has_completed_its_claim_calls_another_under_it() -> None:
    """The inner one claimed anew, and answered with the outer one's record."""
    shop = flask.Flask("shop")
    with SyncDedup("memory://") as dedup:
        FastDedup(shop, dedup)

        @flask_guard(principal=lambda _: "ann")
        def inner() -> str:
            return "inner"

        @shop.post("/orders")
        @flask_guard(principal=lambda _: "ann")
        def order() -> str:
            claim = wsgi.claim_of(flask.request.environ)
            assert claim is not None
            claim.complete()
            return inner()

        assert shop.test_client().post("/orders", headers=KEYED).data == b"inner"
