"""One resource has one key, by whichever path, mount or redirect a request comes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Any

import flask
import httpx
import pytest
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.test import AsyncClient, Client
from django.urls import path, re_path
from fastapi import FastAPI
from fastapi import Request as FastRequest
from starlette.applications import Starlette
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse
from starlette.routing import Mount, Route
from starlette.routing import Route as Path

from fastdedup import Dedup
from fastdedup.integrations import asgi, starlette, wsgi
from fastdedup.integrations.asgi import IdempotencyMiddleware, everyone
from fastdedup.integrations.django import everyone as django_everyone
from fastdedup.integrations.django import idempotent
from fastdedup.integrations.fastapi import Claimed, Idempotency
from fastdedup.integrations.fastapi import everyone as anybody
from fastdedup.sync import Dedup as SyncDedup
from fastdedup.web.inspection import get_request

from ..integrations import django_project as django_project  # sets Django up
from ..integrations.desk import behind, client
from ..integrations.django_shop import behind_middleware, open_shop

# Under the default routes `/plain` and `/plain/` had keys of their own: an application with both worked
# twice.


KEY = {"Idempotency-Key": "k"}
PATHS = ["/plain", "/plain/", "/plain"]


async def told(request: Request) -> PlainTextResponse:
    return PlainTextResponse(request.url.path)


def serving_both() -> Starlette:
    return Starlette(routes=[Route(path, told, methods=["POST"]) for path in PATHS[:2]])


def redirecting() -> Starlette:
    return Starlette(routes=[Route("/plain", told, methods=["POST"])])


def exactly(request: Any) -> Any:
    return [request.path, request.query.hex(), request.body.hex()]


async def posted(app: Any, redis_url: str, paths: list[str], **settings: Any) -> list[httpx.Response]:
    async with behind(Dedup(redis_url, namespace="t"), app, **settings) as client:
        return [await client.post(path, headers=KEY, follow_redirects=True) for path in paths]


@pytest.mark.parametrize(
    ("app", "paths"), [(serving_both, PATHS), (redirecting, PATHS), (redirecting, ["/plain/"] * 2)]
)
async def test_a_path_with_a_slash_at_its_end_is_the_same(
    app: Callable[[], Any], paths: list[str], redis_url: str
) -> None:
    first, *others = await posted(app(), redis_url, paths)
    assert {first.text, *(other.text for other in others)} == {"/plain"}
    assert {other.headers["idempotency-replayed"] for other in others} == {"true"}


async def test_two_resources_are_told_apart_by_the_path_as_it_is(redis_url: str) -> None:
    answers = await posted(serving_both(), redis_url, PATHS, fingerprint=exactly)
    assert [answer.status_code for answer in answers] == [200, 422, 200]


async def test_two_declared_routes_are_told_apart(redis_url: str) -> None:
    async with Dedup(redis_url, namespace="t") as dedup:
        one, other = (starlette.idempotent(dedup, principal=asgi.everyone)(told) for _ in range(2))
        routes = [
            Route(path, view, methods=["POST"]) for path, view in zip(PATHS, (one, other), strict=False)
        ]
        async with client(Starlette(routes=routes), raises=True) as visitor:
            answers = [await visitor.post(path, headers=KEY) for path in PATHS]
        for path in PATHS:
            assert await get_request(dedup, "POST", path, key="k") is not None
    assert [answer.status_code for answer in answers] == [200, 422, 200]


def test_wsgi_serves_both_paths_once(redis_url: str) -> None:
    shop = flask.Flask("shop")
    shop.add_url_rule("/plain/", view_func=lambda: flask.request.path, methods=["POST"], strict_slashes=False)
    with SyncDedup(redis_url, namespace="t", timeout=5.0) as dedup:
        middleware = wsgi.IdempotencyMiddleware(shop.wsgi_app, dedup, principal=wsgi.everyone)
        shop.wsgi_app = middleware  # type: ignore[method-assign]
        answers = [shop.test_client().post(path, headers=KEY).text for path in PATHS]
    assert answers == ["/plain"] * 3


def view(request: HttpRequest) -> HttpResponse:
    return HttpResponse(request.path)


SLASH_URLS = (re_path("^plain/?$", view),)


def test_django_serves_both_paths_once(redis_url: str) -> None:
    with behind_middleware(redis_url, ROOT_URLCONF=SLASH_URLS):
        answers = [Client(headers=KEY).post(path).content for path in PATHS]
    assert answers == [b"/plain"] * 3


# One key at two paths of a route: the second path got the first response where `fingerprint=` left out the
# path. A name in braces was seen. A mount's part of the path, and the names in Django's patterns, were not.
# And two mounts of one application shared a record: with the default fingerprint the second one was
# answered 422.


def body_of(request: Any) -> bytes:
    return bytes(request.body)


@idempotent(principal=django_everyone, fingerprint=body_of)
def pay(request: HttpRequest, number: str) -> HttpResponse:
    return HttpResponse(request.path)


ROUTE_URLS = (
    path("c/<int:number>/pay", pay),
    re_path(r"^r/(?P<number>\d+)/pay$", pay),
)


async def answer(request: Request) -> PlainTextResponse:
    return PlainTextResponse(request.url.path)


def decorated(dedup: Dedup) -> Any:
    endpoint = starlette.idempotent(dedup, principal=asgi.everyone, fingerprint=body_of)(answer)
    return Starlette(routes=[Path("/orders", endpoint, methods=["POST"])])


def within_middleware(dedup: Dedup) -> Any:
    inner = Starlette(routes=[Path("/orders", answer, methods=["POST"])])
    routes = ["/orders"]
    return asgi.IdempotencyMiddleware(
        inner, dedup, principal=asgi.everyone, routes=routes, fingerprint=body_of
    )


@pytest.mark.parametrize("make", [decorated, within_middleware])
async def test_mounts_never_replay_each_others_responses(make: Callable[[Dedup], Any]) -> None:
    async with Dedup("memory://") as dedup:
        app = Starlette(routes=[Mount("/shop/{name}", make(dedup))])
        async with client(app, raises=True) as visitor:
            places = ["/shop/a/orders", "/shop/b/orders", "/shop/a/orders"]
            found = [await visitor.post(place, headers=KEY, content=b"tea") for place in places]
    assert [each.status_code for each in found] == [200, 200, 200]
    assert [each.text for each in found] == ["/shop/a/orders", "/shop/b/orders", "/shop/a/orders"]
    assert [each.headers.get("idempotency-replayed") for each in found] == [None, None, "true"]


@pytest.mark.parametrize("places", [["/c/1/pay", "/c/2/pay"], ["/r/1/pay", "/r/2/pay"]])
def test_paths_of_a_django_pattern_never_replay_each_other(places: list[str], redis_url: str) -> None:
    with open_shop(ROOT_URLCONF=ROUTE_URLS, FASTDEDUP={"url": redis_url, "namespace": "t", "timeout": 5.0}):
        found = [Client().post(place, headers=KEY) for place in (*places, places[0])]
    assert [each.status_code for each in found] == [200, 422, 200]
    assert found[2].content.decode() == places[0]


# One instance was reached with its root_path and without it: an honest retry was answered 422, or ran
# again.


def claimed(app: FastAPI, dedup: Dedup) -> Any:
    Idempotency(app, dedup)
    return [Claimed(principal=anybody)]


def guarded(app: FastAPI, dedup: Dedup) -> Any:
    app.add_middleware(IdempotencyMiddleware, dedup=dedup, principal=everyone)
    return []


def guarded_by_route(app: FastAPI, dedup: Dedup) -> Any:
    app.add_middleware(IdempotencyMiddleware, dedup=dedup, principal=everyone, routes=["/orders/{id}"])
    return []


@pytest.mark.parametrize("paths", [["/api/orders/7", "/orders/7"], ["/orders/7", "/api/orders/7"]])
@pytest.mark.parametrize("guard", [claimed, guarded, guarded_by_route])
async def test_a_request_is_the_same_with_the_root_path_and_without(
    guard: Callable[..., Any], paths: list[str], redis_url: str
) -> None:
    dedup, app = Dedup(redis_url, namespace="t"), FastAPI()

    @app.post("/orders/{id}", dependencies=guard(app, dedup))
    async def order(id: str, request: FastRequest) -> str:
        return request.scope["path"]  # type: ignore[no-any-return]

    async with dedup, client(app, raises=True, root_path="/api") as visitor:
        first, again = [await visitor.post(path, headers=KEY) for path in paths]
        other = await visitor.post("/apiary/orders/7", headers=KEY)
    assert first.json() == again.json() == paths[0]
    assert again.headers["idempotency-replayed"] == "true"
    assert other.status_code == 404


async def test_mounts_stay_apart(redis_url: str) -> None:
    dedup, inner = Dedup(redis_url, namespace="t"), FastAPI()

    @inner.post("/orders/{id}", dependencies=claimed(inner, dedup))
    async def order(id: str, request: FastRequest) -> str:
        return request.scope["path"]  # type: ignore[no-any-return]

    app = FastAPI(routes=[Mount("/a", inner), Mount("/b", inner)])
    async with dedup, client(app, raises=True) as visitor:
        answers = [await visitor.post(path, headers=KEY) for path in ("/a/orders/7", "/b/orders/7")]
    assert [answer.json() for answer in answers] == ["/a/orders/7", "/b/orders/7"]


# A 307 or 308 to the same path was kept under the key that the redirected request has as well. An
# application that redirects to https, to www, or to `/orders/` was so never reached: its client got the
# redirect again and again, or 422, key-reused, until the record expired.


async def order(request: Any) -> PlainTextResponse:
    return PlainTextResponse("ordered")


async def moved(request: Any) -> RedirectResponse:
    return RedirectResponse("/orders")  # 307


@asynccontextmanager
async def visitor(redis_url: str, **settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    routes = [Route("/orders", order, methods=["POST"]), Route("/old", moved, methods=["POST"])]
    app = TrustedHostMiddleware(Starlette(routes=routes), ["www.shop.test"])
    async with behind(Dedup(redis_url, namespace="t"), app, **settings) as client:
        client.base_url, client.max_redirects = "http://www.shop.test", 3
        client.headers, client.follow_redirects = KEY, True
        yield client


@pytest.mark.parametrize("settings", [{}, {"keep_headers": ["content-type"]}])
@pytest.mark.parametrize("url", ["http://shop.test/orders", "/orders/"])
async def test_asgi_keeps_no_redirect_to_the_same_path(
    url: str, settings: dict[str, Any], redis_url: str
) -> None:
    one_application = {"tenant": lambda request: ""}  # both hosts are names of one application
    async with visitor(redis_url, routes=["/orders"], **one_application, **settings) as client:
        answers = [await client.post(url) for _ in range(2)]
    assert [answer.text for answer in answers] == ["ordered"] * 2
    assert len(answers[0].history) == 1
    assert "idempotency-replayed" in answers[1].headers


async def test_asgi_replays_a_redirect_to_another_path(redis_url: str) -> None:
    """Its handler may have had an effect: Starlette's redirects are 307 unless the handler says otherwise."""
    async with visitor(redis_url) as client:
        first, again = [await client.post("/old") for _ in range(2)]
    assert first.text == again.text == "ordered"
    assert "idempotency-replayed" in again.history[0].headers


def test_wsgi_keeps_no_redirect_to_the_same_path(redis_url: str) -> None:
    shop = flask.Flask("shop")
    shop.post("/orders/")(lambda: "ordered")
    with SyncDedup(redis_url, namespace="t") as dedup:
        shop.wsgi_app = wsgi.IdempotencyMiddleware(  # type: ignore[method-assign]
            shop.wsgi_app, dedup, principal=wsgi.everyone, routes=["/orders"]
        )
        client = shop.test_client()
        answers = [client.post("/orders", headers=KEY, follow_redirects=True) for _ in range(2)]
    assert [answer.text for answer in answers] == ["ordered"] * 2
    assert answers[1].headers["idempotency-replayed"] == "true"


# Django


def secure(get_response: Any) -> Any:
    def middleware(request: Any) -> HttpResponse:
        if request.is_secure():
            return get_response(request)  # type: ignore[no-any-return]
        return HttpResponseRedirect(f"https://testserver{request.path}", status=308)

    return middleware


REDIRECT_URLS = (path("orders", lambda request: HttpResponse("ordered")),)


@pytest.fixture
def browser(redis_url: str) -> Iterator[Client]:
    with open_shop(
        ROOT_URLCONF=REDIRECT_URLS,
        MIDDLEWARE=["fastdedup.integrations.django.IdempotencyMiddleware", f"{__name__}.secure"],
        FASTDEDUP={"url": redis_url, "namespace": "t", "timeout": 5.0},
        FASTDEDUP_HTTP={"principal": "fastdedup.integrations.django.everyone"},
    ):
        yield Client(headers=KEY)


def test_django_keeps_no_redirect_to_the_same_path(browser: Client) -> None:
    answers = [browser.post("/orders", follow=True) for _ in range(2)]
    assert [answer.content for answer in answers] == [b"ordered"] * 2
    assert answers[1]["idempotency-replayed"] == "true"


# Django's errors linked to the policy as if the application had no mount: the address was another
# application's. Below the mount `/` it was `//rules`: a link to another host.


MOUNT_URLS = (path("orders", lambda request: HttpResponse("ordered")),)


def mounted(mount: str, redis_url: str) -> AbstractContextManager[Any]:
    rules = {"required": True, "docs": "/rules"}
    return behind_middleware(redis_url, rules, ROOT_URLCONF=MOUNT_URLS, FORCE_SCRIPT_NAME=mount)


def link_of(answer: Any) -> str:
    return str(answer["Link"].partition(">")[0].removeprefix("<"))


@pytest.mark.parametrize(
    ("mount", "link"), [("/v2", "/v2/rules"), ("/v2/", "/v2/rules"), ("/café x", "/caf%C3%A9%20x/rules")]
)
async def test_the_link_to_the_policy_is_below_the_mount(mount: str, link: str, redis_url: str) -> None:
    with mounted(mount, redis_url):
        answers = [Client().post("/orders"), await AsyncClient().post("/orders")]
    assert [link_of(answer) for answer in answers] == [link] * 2


def test_the_link_below_the_root_names_no_host(redis_url: str) -> None:
    with mounted("/", redis_url):
        assert link_of(Client().post("/orders")) == "/rules"
