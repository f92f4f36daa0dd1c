"""A `def` handler whose lease ended in an outage was answered 503, ran on in its thread, and a retry ran it again."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import httpx
import litestar
import litestar.di
import pytest
from asgiref.wsgi import WsgiToAsgi
from fastapi import Depends, FastAPI
from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from fastdedup import Claim, Dedup
from fastdedup.events import Event, LeaseLost
from fastdedup.integrations import asgi
from fastdedup.integrations import litestar as for_litestar
from fastdedup.integrations import starlette as for_starlette
from fastdedup.integrations.fastapi import Claimed, Idempotency, OneTimeToken, everyone
from fastdedup.integrations.http.threads import has_plain_operation
from fastdedup.model import BreakerState

from ..integrations import django_project  # noqa: F401 - configures Django
from ..programs import until
from ..servers import RedisServer
from ..waiting import wait_until

from django.core.handlers.asgi import ASGIHandler  # isort: skip
from django.http import HttpRequest, HttpResponse  # isort: skip
from django.test import override_settings  # isort: skip
from django.urls import path  # isort: skip
from ninja import NinjaAPI  # isort: skip

KEY = {"Idempotency-Key": "k"}
LEASE = 2.0
Work = Callable[[Any], str]
"""The handler's work, with the claim; it returns the text of its response."""
AsyncWork = Callable[[], Awaitable[None]]


def in_fastapi(dedup: Dedup, order: Any) -> Any:
    """An application with this endpoint, which claims by itself."""
    app = FastAPI()
    Idempotency(app, dedup)
    app.post("/orders")(order)
    return app


def below(dedup: Dedup, app: Any) -> Any:
    return asgi.IdempotencyMiddleware(app, dedup, principal=asgi.everyone)


def claimed(dedup: Dedup, work: Work) -> Any:
    def order(claim: Annotated[Claim, Claimed(principal=everyone)]) -> str:
        return work(claim)

    return in_fastapi(dedup, order)


def one_time_token(dedup: Dedup, work: Work) -> Any:
    def order(claim: Annotated[Claim, OneTimeToken(subject=everyone)]) -> str:
        return work(claim)

    return in_fastapi(dedup, order)


def fastapi_middleware(dedup: Dedup, work: Work) -> Any:
    app = FastAPI()
    app.add_middleware(asgi.IdempotencyMiddleware, dedup=dedup, principal=asgi.everyone)

    @app.post("/orders")
    def order(request: Request) -> str:
        return work(asgi.claim_of(request.scope))

    return app


def starlette_middleware(dedup: Dedup, work: Work) -> Any:
    class Orders(HTTPEndpoint):
        def post(self, request: Request) -> PlainTextResponse:
            return PlainTextResponse(work(asgi.claim_of(request.scope)))

    app = Starlette(routes=[Route("/orders", Orders)])
    return below(dedup, app)


def starlette_function(dedup: Dedup, work: Work) -> Any:
    @for_starlette.idempotent(dedup, principal=for_starlette.everyone)
    def order(request: Request) -> PlainTextResponse:
        return PlainTextResponse(work(for_starlette.claim_of(request.scope)))

    return Starlette(routes=[Route("/orders", order, methods=["POST"])])


def starlette_method(dedup: Dedup, work: Work) -> Any:
    class Orders(HTTPEndpoint):
        @for_starlette.idempotent(dedup, principal=for_starlette.everyone)
        def post(self, request: Request) -> PlainTextResponse:
            return PlainTextResponse(work(for_starlette.claim_of(request.scope)))

    return Starlette(routes=[Route("/orders", Orders)])


def litestar_handler(dedup: Dedup, work: Work) -> Any:
    @for_litestar.idempotent(dedup, principal=for_litestar.everyone)
    @litestar.post("/orders", sync_to_thread=True)
    def order(request: litestar.Request[Any, Any, Any]) -> str:
        return work(for_litestar.claim_of(request.scope))  # type: ignore[arg-type] # a TypedDict of its own

    return litestar.Litestar([order], logging_config=None)


def claimed_object(dedup: Dedup, work: Work) -> Any:
    class Order:
        def __call__(self, claim: Annotated[Claim, Claimed(principal=everyone)]) -> str:
            return work(claim)

    return in_fastapi(dedup, Order())


def decorated_by_a_class(dedup: Dedup, work: Work) -> Any:
    class Counted:
        def __init__(self, function: Callable[..., str]) -> None:
            functools.update_wrapper(self, function)
            self.function = function

        def __call__(self, *args: Any, **named: Any) -> str:
            return self.function(*args, **named)

    def order(request: Request) -> str:
        return work(asgi.claim_of(request.scope))

    app = FastAPI()
    app.post("/orders")(functools.partial(Counted(order)))
    return below(dedup, app)


def claimed_dependency(dedup: Dedup, work: Work) -> Any:
    def charged(claim: Annotated[Claim, Claimed(principal=everyone)]) -> str:
        return work(claim)

    async def twice(charge: str = Depends(charged)) -> str:
        return charge

    async def order(charge: str = Depends(twice)) -> str:
        return charge

    return in_fastapi(dedup, order)


def dependency_below_middleware(dedup: Dedup, work: Work) -> Any:
    """Starlette's BaseHTTPMiddleware runs what is below in a task of its own."""
    app = FastAPI()

    @app.middleware("http")
    async def passed_on(request: Request, call_next: Any) -> Any:
        return await call_next(request)

    def charged(request: Request) -> str:
        return work(asgi.claim_of(request.scope))

    @app.post("/orders")
    async def order(charge: str = Depends(charged)) -> str:
        return charge

    return below(dedup, app)


def litestar_dependency(dedup: Dedup, work: Work) -> Any:
    def charged(request: litestar.Request[Any, Any, Any]) -> str:
        return work(asgi.claim_of(request.scope))  # type: ignore[arg-type] # a TypedDict of its own

    @litestar.post("/orders", dependencies={"charge": litestar.di.Provide(charged, sync_to_thread=True)})
    async def order(charge: Annotated[str, "a dependency"]) -> str:
        return charge

    return below(dedup, litestar.Litestar([order], logging_config=None))


def django_view(dedup: Dedup, work: Work) -> Any:
    def order(request: HttpRequest) -> HttpResponse:
        return HttpResponse(work(asgi.claim_of(request.scope)))  # type: ignore[attr-defined] # an ASGIRequest

    return django(dedup, order)


def django(dedup: Dedup, view: Callable[..., Any]) -> Any:
    return with_view(view, below(dedup, Outer(ASGIHandler())))


def with_view(view: Any, app: Any, at: str = "orders") -> Any:
    class WithView(Outer):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            with override_settings(ROOT_URLCONF=(path(at, view),)):
                await super().__call__(scope, receive, send)

    return WithView(app)


class Outer:
    """An application's own middleware."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.app(scope, receive, send)


APPS = (
    claimed,
    one_time_token,
    fastapi_middleware,
    starlette_middleware,
    starlette_function,
    starlette_method,
    litestar_handler,
    claimed_object,
    decorated_by_a_class,
    claimed_dependency,
    dependency_below_middleware,
    litestar_dependency,
    django_view,
)


async def posted(app: Any, dedup: Dedup, times: int = 1) -> list[httpx.Response]:
    """Send the same request several times, one after the other."""
    headers = {**KEY, "x-one-time-token": await dedup.tokens.issue()}
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://shop.test", timeout=30.0
    ) as client:
        return [await client.post("/orders", headers=headers) for _ in range(times)]


@pytest.mark.parametrize("make", APPS)
async def test_a_handler_in_a_thread_keeps_its_response(
    redis_url: str, redis_server: RedisServer, make: Any
) -> None:
    runs = []
    async with Dedup(redis_url, timeout=1.0, lease=LEASE) as dedup:

        def work(claim: Any) -> str:
            runs.append(claim)
            redis_server.freeze()
            try:
                until(lambda: claim.lost, "the lease is lost")
            finally:
                redis_server.thaw()
            until(lambda: dedup.breaker is BreakerState.CLOSED, "Redis is back")
            return "done"

        first, again = await posted(make(dedup, work), dedup, 2)
    assert "done" in first.text
    assert (again.status_code, again.content) == (first.status_code, first.content)
    assert again.headers["idempotency-replayed"] == "true"
    assert len(runs) == 1


@pytest.mark.parametrize(
    "make",
    [claimed, fastapi_middleware, starlette_middleware, starlette_function, litestar_handler],
)
async def test_a_handler_in_a_thread_keeps_its_key_if_something_cancels_its_request(make: Any) -> None:
    """Such as a server that stops, or a timeout: the thread works on, and a retry ran beside it."""
    begun, ends, runs = threading.Event(), threading.Event(), []

    def work(claim: Any) -> str:
        runs.append(claim)
        begun.set()
        assert ends.wait(20.0)
        return "done"

    async with Dedup("memory://") as dedup:
        app = make(dedup, work)
        request = asyncio.create_task(posted(app, dedup))
        await wait_until(begun.is_set, description="the handler is at work")
        request.cancel()
        try:
            with pytest.raises(asyncio.CancelledError):
                await asyncio.wait_for(request, 10.0)
            (again,) = await posted(app, dedup)
        finally:
            ends.set()
    assert (again.status_code, len(runs)) == (409, 1)


def alone(adapter: Any) -> Any:
    return adapter


def mounted(adapter: Any) -> Any:
    return Starlette(routes=[Mount("/", app=adapter)])


def wrapped_and_mounted(adapter: Any) -> Any:
    return mounted(Outer(adapter))


class ByProtocol:
    """Has its applications as ProtocolTypeRouter of Channels has them."""

    def __init__(self, app: Any) -> None:
        self.application_mapping = {"http": app}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.application_mapping[scope["type"]](scope, receive, send)


def in_litestar(adapter: Any) -> Any:
    return litestar.Litestar(
        [litestar.asgi("/", is_mount=True, copy_scope=True)(Outer(adapter))], logging_config=None
    )


@pytest.mark.parametrize("place", [alone, Outer, ByProtocol, mounted, wrapped_and_mounted, in_litestar])
async def test_a_wsgi_application_keeps_its_response(
    redis_url: str, redis_server: RedisServer, place: Any
) -> None:
    """Its adapter for ASGI runs it in a thread, under the middleware itself or mounted somewhere below."""
    runs, lost = [], threading.Event()

    def note(event: Event) -> None:
        if isinstance(event, LeaseLost):
            lost.set()

    async with Dedup(redis_url, timeout=1.0, lease=LEASE, on_event=note) as dedup:

        def wsgi(environ: Any, start_response: Any) -> list[bytes]:
            runs.append(environ)
            redis_server.freeze()
            try:
                assert lost.wait(10.0)
            finally:
                redis_server.thaw()
            until(lambda: dedup.breaker is BreakerState.CLOSED, "Redis is back")
            start_response("200 OK", [])
            return [b"done"]

        app = place(WsgiToAsgi(wsgi))
        guarded = below(dedup, app)
        first, again = await posted(guarded, dedup, 2)
    assert (first.status_code, again.content, len(runs)) == (200, b"done", 1)
    assert again.headers["idempotency-replayed"] == "true"


@pytest.mark.parametrize("make", [claimed, starlette_function])
async def test_a_handler_in_a_thread_that_was_overtaken_does_not_answer(
    redis_url: str, redis_server: RedisServer, make: Any
) -> None:
    async with Dedup(redis_url, lease=LEASE) as dedup:
        loop = asyncio.get_running_loop()

        def work(claim: Any) -> str:
            forgotten = dedup.scoped("http").forget(claim.key)  # as if another owner had it
            asyncio.run_coroutine_threadsafe(forgotten, loop).result(10.0)
            until(lambda: claim.lost, "the lease is lost")
            return "done"

        (lost,) = await posted(make(dedup, work), dedup)
    assert (lost.status_code, lost.json()["type"]) == (409, "urn:fastdedup:problem:claim-lost")


def async_function(dedup: Dedup, work: AsyncWork) -> Any:
    app = FastAPI()

    @app.post("/orders")
    async def order() -> None:
        await work()

    return below(dedup, app)


def async_object(dedup: Dedup, work: AsyncWork) -> Any:
    class Order:
        async def __call__(self, claim: Annotated[Claim, Claimed(principal=everyone)]) -> None:
            await work()

    return in_fastapi(dedup, Order())


def async_function_in_a_plain_decorator(dedup: Dedup, work: AsyncWork) -> Any:
    async def order() -> None:
        await work()

    @functools.wraps(order)
    def counted() -> Any:
        return order()

    app = FastAPI()
    app.post("/orders")(counted)
    return below(dedup, app)


def account() -> str:
    return "mary"


def async_after_a_dependency(dedup: Dedup, work: AsyncWork) -> Any:
    async def order(
        claim: Annotated[Claim, Claimed(principal=everyone)], name: str = Depends(account)
    ) -> None:
        await work()

    return in_fastapi(dedup, order)


def async_in_litestar_after_a_dependency(dedup: Dedup, work: AsyncWork) -> Any:
    @litestar.post("/orders", dependencies={"name": litestar.di.Provide(account, sync_to_thread=True)})
    async def order(name: Annotated[str, "a dependency"]) -> None:
        await work()

    return below(dedup, litestar.Litestar([order], logging_config=None))


def asgi_application(dedup: Dedup, work: AsyncWork) -> Any:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await work()

    return below(dedup, mounted(Outer(app)))


def async_django_view(dedup: Dedup, work: AsyncWork) -> Any:
    async def order(request: HttpRequest) -> None:
        await work()

    return django(dedup, order)


@pytest.mark.parametrize(
    "make",
    [
        async_function,
        async_object,
        async_function_in_a_plain_decorator,
        async_after_a_dependency,
        async_in_litestar_after_a_dependency,
        asgi_application,
        async_django_view,
    ],
)
async def test_an_async_handler_is_cancelled(redis_url: str, redis_server: RedisServer, make: Any) -> None:
    """Also if it stands beside a function that has run in a thread: a retry is not to run beside it."""
    async with Dedup(redis_url, timeout=1.0, lease=LEASE) as dedup:
        cancelled = False

        async def work() -> None:
            nonlocal cancelled
            redis_server.freeze()
            try:
                await asyncio.wait_for(asyncio.Event().wait(), 10.0)
            except asyncio.CancelledError:
                cancelled = True
                raise

        try:
            (lost,) = await posted(make(dedup, work), dedup)
        finally:
            redis_server.thaw()
    assert (lost.status_code, cancelled) == (503, True)


def starlette_app(work: Callable[[], str]) -> Any:
    def order(request: Request) -> PlainTextResponse:
        return PlainTextResponse(work())

    return Starlette(routes=[Route("/orders", order, methods=["POST"])])


def django_app(work: Callable[[], str]) -> Any:
    def order(request: HttpRequest) -> HttpResponse:
        return HttpResponse(work())

    return with_view(order, ASGIHandler())


def ninja_app(work: Callable[[], str]) -> Any:
    """A path with a plain and an async operation: Ninja's view of it is async."""
    api = NinjaAPI(urls_namespace="in a thread")
    api.post("/orders")(lambda request: HttpResponse(work()))
    api.get("/orders")(orders)
    return with_view(api.urls, ASGIHandler(), "")


async def orders(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


def test_a_view_of_django_may_have_a_name_that_is_gone() -> None:
    gone = 1

    async def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse(gone)  # noqa: F821 -- it is gone

    del gone
    assert not has_plain_operation(view, "POST")


@pytest.mark.parametrize("make", [starlette_app, django_app, ninja_app])
async def test_a_client_that_leaves_does_not_cancel_a_handler_in_a_thread(redis_url: str, make: Any) -> None:
    working, left = asyncio.Event(), threading.Event()
    runs = []

    async with Dedup(redis_url, namespace="t") as dedup:
        loop = asyncio.get_running_loop()

        def work() -> str:
            runs.append("order")
            loop.call_soon_threadsafe(working.set)
            assert left.wait(10.0)
            return "done"

        app = make(work)
        guarded = asgi.IdempotencyMiddleware(app, dedup, principal=asgi.everyone, on_disconnect="cancel")
        request = httpx.Request("POST", "http://shop.test/orders", headers=KEY)
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/orders",
            "query_string": b"",
            "headers": [(name.lower(), value) for name, value in request.headers.raw],
        }
        events = [{"type": "http.request", "body": b""}]

        async def receive() -> Any:
            if events:
                return events.pop()
            await working.wait()
            loop.call_soon(left.set)
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            raise AssertionError(f"the client has left: {message}")

        await guarded(scope, receive, send)
        (again,) = await posted(guarded, dedup)
    assert (again.text, len(runs)) == ("done", 1)
