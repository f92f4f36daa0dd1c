"""A key that came again under another host got the response of the first host's view.

Django applications choose a database, and Flask and Starlette a view, by the host. So one tenant's user got the
stored response of another tenant's user with the same name, and its own request never ran.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import flask
import httpx
import litestar
import pytest
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client, override_settings
from django.urls import include, path
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Host, Route

from fastdedup import ConfigError, Dedup
from fastdedup.integrations import asgi, starlette, wsgi
from fastdedup.integrations import fastapi as for_fastapi
from fastdedup.integrations import flask as for_flask
from fastdedup.integrations import litestar as for_litestar
from fastdedup.integrations.django import by_host, everyone, idempotent
from fastdedup.sync import Dedup as SyncDedup
from fastdedup.testing import assert_claimed_once, assert_not_claimed, fake_dedup
from fastdedup.web.inspection import forget_request, get_request
from fastdedup.web.request import normal_host
from fastdedup.web.rules import Rule

from ..integrations import django_project as django_project  # sets Django up
from ..integrations.desk import client
from ..integrations.django_inside import APIView, NinjaAPI, drf, ninja
from ..integrations.django_shop import open_shop

KEY = {"Idempotency-Key": "k"}
CHOICES: Any = [{}, {"tenant": by_host}, {"tenant": lambda request: ""}]
Make = Callable[..., Any]


def answers_of(responses: Any) -> list[Any]:
    return [one.status_code if one.status_code >= 300 else text_of(one).strip('"') for one in responses]


def text_of(response: Any) -> str:
    return str(response.content.decode() if hasattr(response, "content") else response.text)


def expected(settings: dict[str, Any]) -> list[Any]:
    """Return the answers at a.test, b.test, and a.test again."""
    if not settings:
        return ["a.test", 422, "a.test"]
    return ["a.test", "b.test", "a.test"] if settings["tenant"] is by_host else ["a.test"] * 3


HOSTS = ["a.test", "b.test", "a.test:80"]


# ASGI


async def told(request: Request) -> PlainTextResponse:
    return PlainTextResponse(request.url.hostname)


def in_middleware(dedup: Dedup, **settings: Any) -> Any:
    pages = Starlette(routes=[Route("/", told, methods=["POST"])])
    routes = [Host(name, pages) for name in HOSTS[:2]]
    return asgi.IdempotencyMiddleware(Starlette(routes=routes), dedup, principal=everyone, **settings)


def in_starlette(dedup: Dedup, **settings: Any) -> Any:
    endpoint = starlette.idempotent(dedup, principal=everyone, **settings)(told)
    return Starlette(routes=[Route("/", endpoint, methods=["POST"])])


def in_fastapi(dedup: Dedup, **settings: Any) -> Any:
    claimed = for_fastapi.Claimed(principal=for_fastapi.everyone, **settings)
    app, apps = FastAPI(), Starlette()
    for_fastapi.Idempotency(app, dedup)

    @app.post("/", response_class=PlainTextResponse)
    async def view(request: Request, claim: Any = claimed) -> str:
        return request.url.hostname or ""

    apps.routes.extend(Host(name, app) for name in HOSTS[:2])
    return apps


def in_litestar(dedup: Dedup, **settings: Any) -> Any:
    view = for_litestar.idempotent(dedup, principal=everyone, **settings)(
        litestar.post("/", media_type="text/plain", status_code=200)(litestar_view)
    )
    return litestar.Litestar([view], logging_config=None)


async def litestar_view(request: litestar.Request[Any, Any, Any]) -> str:
    return request.url.hostname or ""


@asynccontextmanager
async def client_of(make: Make, dedup: Dedup, **settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    async with dedup, client(make(dedup, **settings), raises=True) as visitor:
        yield visitor


@pytest.mark.parametrize("settings", CHOICES)
@pytest.mark.parametrize("make", [in_middleware, in_starlette, in_fastapi, in_litestar])
async def test_asgi_replays_nothing_under_another_host(
    make: Make, settings: dict[str, Any], redis_url: str
) -> None:
    async with client_of(make, Dedup(redis_url, namespace="t"), **settings) as client:
        got = [await client.post("/", headers={**KEY, "Host": host}) for host in HOSTS]
    assert answers_of(got) == expected(settings)


# WSGI


def in_wsgi(dedup: SyncDedup, **settings: Any) -> flask.Flask:
    shop = flask.Flask("shop", host_matching=True, static_folder=None)
    for name in HOSTS[:2]:
        shop.add_url_rule("/", name, lambda: flask.request.url_rule.host, methods=["POST"], host=name)  # type: ignore[union-attr]
    middleware = wsgi.IdempotencyMiddleware(shop.wsgi_app, dedup, principal=everyone, **settings)
    shop.wsgi_app = middleware  # type: ignore[method-assign]
    return shop


def by_subdomain(dedup: SyncDedup, **settings: Any) -> flask.Flask:
    shop = flask.Flask("shop", subdomain_matching=True)
    shop.config["SERVER_NAME"] = "test"
    for_flask.FastDedup(shop, dedup, principal=everyone)

    @shop.post("/", subdomain="<tenant>")
    @for_flask.idempotent(**settings)
    def view(tenant: str) -> str:
        return f"{tenant}.test"

    return shop


@pytest.mark.parametrize("settings", CHOICES)
@pytest.mark.parametrize("make", [in_wsgi, by_subdomain])
def test_wsgi_replays_nothing_under_another_host(
    make: Make, settings: dict[str, Any], redis_url: str
) -> None:
    with SyncDedup(redis_url, namespace="t", timeout=5.0) as dedup:
        client = make(dedup, **settings).test_client()
        got = [client.post("/", headers={**KEY, "Host": host}) for host in HOSTS]
    assert answers_of(got) == expected(settings)


# Django


def view(request: HttpRequest, *args: Any, **data: Any) -> HttpResponse:
    return HttpResponse(request.get_host())


api = NinjaAPI(urls_namespace="hosts")


@api.post("/orders")
@ninja.idempotent(principal=everyone)
def operation(request: HttpRequest) -> str:
    return request.get_host()


class View(APIView):
    @drf.idempotent(principal=everyone)
    def post(self, request: Any) -> Any:
        return HttpResponse(request.get_host())


urlpatterns = [
    path("middleware", view),
    path("decorated", idempotent(principal=everyone)(view)),
    path("drf", View.as_view()),
    path("ninja/", include([path("", api.urls)])),
]


@contextmanager
def browser(redis_url: str, middleware: bool, settings: dict[str, Any]) -> Iterator[Client]:
    with open_shop(
        ROOT_URLCONF=__name__,
        REST_FRAMEWORK={"UNAUTHENTICATED_USER": None},
        ALLOWED_HOSTS=[".test"],
        USE_X_FORWARDED_HOST=True,
        MIDDLEWARE=["fastdedup.integrations.django.IdempotencyMiddleware"] if middleware else [],
        FASTDEDUP={"url": redis_url, "namespace": "t", "timeout": 5.0},
        FASTDEDUP_HTTP={"principal": everyone, **settings},
    ):
        yield Client(headers=KEY)


@pytest.mark.parametrize("header", ["HTTP_HOST", "HTTP_X_FORWARDED_HOST"])
@pytest.mark.parametrize("settings", CHOICES)
@pytest.mark.parametrize("url", ["/middleware", "/decorated", "/drf", "/ninja/orders"])
def test_django_replays_nothing_under_another_host(
    url: str, settings: dict[str, Any], header: str, redis_url: str
) -> None:
    with browser(redis_url, url == "/middleware", settings) as client:
        got = [client.post(url, **{header: host}) for host in HOSTS]
    assert answers_of(got) == expected(settings)


CHOSEN = threading.local()


def chooses(get_response: Any) -> Any:
    """Choose a tenant for this thread, as applications with a database for each tenant do."""

    def middleware(request: HttpRequest) -> HttpResponse:
        CHOSEN.tenant = request.get_host()
        return get_response(request)  # type: ignore[no-any-return]

    return middleware


def of_this_thread(request: Any) -> str:
    return str(CHOSEN.tenant)


def of_the_database(request: Any) -> str:
    with pytest.raises(RuntimeError, match="no running event loop"):
        asyncio.get_running_loop()  # Django refuses the database in a thread with a loop
    return str(request.host)


async def aview(request: HttpRequest) -> HttpResponse:
    return view(request)


urlpatterns += [
    path("thread", idempotent(principal=everyone, tenant=of_this_thread)(view)),
    path("database", idempotent(principal=everyone, fingerprint=of_the_database)(view)),
    path("adatabase", idempotent(principal=everyone, tenant=of_the_database)(aview)),
]


def test_django_asks_for_the_tenant_in_the_views_thread(redis_url: str) -> None:
    with browser(redis_url, False, {}) as client, override_settings(MIDDLEWARE=[f"{__name__}.chooses"]):
        got = [client.post("/thread", HTTP_HOST=host) for host in ("a.test", "b.test", "a.test")]
    assert answers_of(got) == ["a.test", "b.test", "a.test"]


@pytest.mark.parametrize("url", ["/database", "/adatabase"])
async def test_django_asks_where_the_database_may_be_used(url: str, redis_url: str) -> None:
    with browser(redis_url, False, {}), override_settings(ALLOWED_HOSTS=["testserver"]):
        answers = [await AsyncClient().post(url, headers=KEY) for _ in range(2)]
    assert answers_of(answers) == ["testserver"] * 2
    assert answers[1]["idempotency-replayed"] == "true"


# The rule


@pytest.mark.parametrize(
    ("host", "scheme"),
    [("a.test", "http"), ("A.Test.", "http"), ("a.test:80", "http"), (" a.test.:443", "https")],
)
def test_one_host_has_one_spelling(host: str, scheme: str) -> None:
    assert normal_host(host, scheme) == "a.test"


@pytest.mark.parametrize("host", ["a.test:443", "a.test:8080", "b.a.test", ""])
def test_other_hosts_and_ports_are_apart(host: str) -> None:
    assert normal_host(host, "http") == host


@pytest.mark.parametrize(("tenant", "status"), [(None, 400), ("", 200), (7, 200)])
async def test_a_tenant_that_is_not_known_is_refused(tenant: Any, status: int, redis_url: str) -> None:
    dedup = Dedup(redis_url, namespace="t")
    async with client_of(in_starlette, dedup, tenant=lambda request: tenant) as client:
        answer = await client.post("/", headers=KEY)
    assert answer.status_code == status
    if status == 400:
        assert json.loads(answer.content)["type"].endswith(":principal-required")


def test_a_tenant_is_named_by_a_function() -> None:
    with pytest.raises(ConfigError, match="tenant must be a plain function"):
        Rule("/", everyone, tenant="a.test")  # type: ignore[arg-type]


async def test_a_record_with_a_tenant_is_found_by_it() -> None:
    dedup = fake_dedup()
    async with client_of(in_starlette, dedup, tenant=by_host) as client:
        await client.post("/", headers={**KEY, "Host": "a.test"})
        assert_claimed_once(dedup, "k", http=("POST", "/"), tenant="a.test")
        assert_not_claimed(dedup, "k", http=("POST", "/"))
        record = await get_request(dedup, "POST", "/", key="k", tenant="a.test")
        assert record is not None
        assert await get_request(dedup, "POST", "/", key="k", tenant="b.test") is None
        assert await forget_request(dedup, "POST", "/", key="k", tenant="a.test")
