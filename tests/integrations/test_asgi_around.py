"""What stands around `IdempotencyMiddleware`: other middleware, mounts, lifespans, background tasks."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route

from fastdedup import ConfigError, Dedup
from fastdedup.integrations.asgi import IdempotencyMiddleware, claim_of, everyone
from fastdedup.integrations.http.lifespan import ASGIApp, Message
from fastdedup.stores.memory import MemoryStore

from .desk import Desk, at, client, key, problem
from .live import Call


class Tagging(BaseHTTPMiddleware):
    """What many applications have: it runs the rest in a task of its own, and hands the body through a queue."""

    async def dispatch(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        response = await call_next(request)
        response.headers["x-tagged"] = "yes"
        return response


class Shop:
    """A small Starlette application whose middleware a test arranges."""

    def __init__(
        self, *, outside: Sequence[Middleware] = (), inside: Sequence[Middleware] = (), **settings: Any
    ) -> None:
        self.dedup = Dedup("memory://")
        self.runs = 0
        self.order: list[str] = []
        ours = Middleware(IdempotencyMiddleware, dedup=self.dedup, principal=everyone, **settings)
        self.app = Starlette(
            routes=[
                Route("/orders", self.orders, methods=["POST"]),
                Route("/slow", self.slow, methods=["POST"]),
                Route("/raising", self.raising, methods=["POST"]),
                Route("/streamed", self.streamed, methods=["POST"]),
            ],
            middleware=[*outside, ours, *inside],
        )
        self.client = client(self.app, accept_encoding="gzip")
        self.started = asyncio.Event()
        self.cancelled = 0

    async def orders(self, request: Request) -> Response:
        self.runs += 1
        body = await request.json()

        async def after() -> None:
            record = await self.dedup.scoped("http").claim(claim.key, fingerprint=b"?" * 16)  # type: ignore[union-attr]
            self.order.append(f"after: {record.outcome}")

        claim = claim_of(request.scope)
        task = BackgroundTask(after) if claim is not None else None
        return JSONResponse({"run": self.runs, "echo": body, "long": "x" * 2000}, 201, background=task)

    async def slow(self, request: Request) -> Response:
        self.runs += 1
        self.started.set()
        try:
            if self.runs == 1:
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return JSONResponse({"run": self.runs})

    async def raising(self, request: Request) -> Response:
        self.runs += 1
        raise RuntimeError("boom")

    async def streamed(self, request: Request) -> Response:
        self.runs += 1

        async def rows() -> AsyncIterator[bytes]:
            for row in range(3):
                yield b"%d\n" % row

        return StreamingResponse(rows(), media_type="text/csv")


TAGGING = [Middleware(Tagging)]
GZIP = [Middleware(GZipMiddleware, minimum_size=100)]
ARRANGEMENTS = {
    "alone": {},
    "base outside": {"outside": TAGGING},
    "base inside": {"inside": TAGGING},
    "base on both sides": {"outside": TAGGING, "inside": TAGGING},
    "gzip outside": {"outside": GZIP},
    "gzip inside": {"inside": GZIP},
    "gzip outside, base inside": {"outside": GZIP, "inside": TAGGING},
}


@pytest.fixture(params=list(ARRANGEMENTS))
def arranged(request: pytest.FixtureRequest) -> dict[str, Any]:
    return dict(ARRANGEMENTS[request.param])


async def test_a_retry_gets_the_same_through_any_middleware(arranged: dict[str, Any]) -> None:
    shop = Shop(**arranged)
    async with shop.dedup:
        first = await shop.client.post("/orders", json={"a": 1}, headers=key("k"))
        again = await shop.client.post("/orders", json={"a": 1}, headers=key("k"))
        other = await shop.client.post("/orders", json={"a": 2}, headers=key("k"))
    assert first.json()["echo"] == again.json()["echo"] == {"a": 1}
    assert again.headers.pop("idempotency-replayed") == "true"
    assert dict(again.headers) == dict(first.headers)
    assert other.status_code == 422
    assert shop.runs == 1


async def test_streamed_responses_are_replayed_through_any_middleware(arranged: dict[str, Any]) -> None:
    shop = Shop(**arranged)
    async with shop.dedup:
        first = await shop.client.post("/streamed", headers=key("k"))
        again = await shop.client.post("/streamed", headers=key("k"))
    assert first.text == again.text == "0\n1\n2\n"
    assert shop.runs == 1


async def test_exceptions_release_the_key_through_any_middleware(arranged: dict[str, Any]) -> None:
    shop = Shop(**arranged)
    async with shop.dedup:
        for _ in range(2):
            assert (await shop.client.post("/raising", headers=key("k"))).status_code == 500
    assert shop.runs == 2


@pytest.mark.parametrize("on_disconnect", ["finish", "cancel"])
async def test_a_client_that_leaves_is_noticed_or_not_through_any_middleware(
    arranged: dict[str, Any], on_disconnect: str
) -> None:
    shop = Shop(**arranged, on_disconnect=on_disconnect)
    async with shop.dedup:
        call = Call(shop.app, "/slow", ("idempotency-key", "k"))
        task = call.start()
        await shop.started.wait()
        call.leave()
        if on_disconnect == "finish":
            raced = await shop.client.post("/slow", headers=key("k"))
            problem(raced, "in-progress", 409)
            assert shop.cancelled == 0
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        again = await shop.client.post("/slow", headers=key("k"))
    assert again.json() == {"run": 2}
    assert shop.cancelled == 1


async def test_a_client_that_leaves_within_its_body_is_no_error_through_any_middleware(
    arranged: dict[str, Any],
) -> None:
    """BaseHTTPMiddleware, outside, requires a response: it raised RuntimeError, which the server logged."""
    shop = Shop(**arranged)
    async with shop.dedup:
        call = Call(shop.app, "/orders", ("idempotency-key", "k"))
        call.inbox.put_nowait({"type": "http.request", "body": b'{"a', "more_body": True})
        call.leave()
        await call.start(None)
    assert (shop.runs, call.status) == (0, 499)


@pytest.mark.parametrize("how", ["raises", "answers", "lost"])
async def test_a_client_that_leaves_shows_the_server_no_cancellation(how: str) -> None:
    """The task was cancelled though its handler had ended, or caught that; or twice: its lease was lost, too."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        call.leave()
        if how == "raises":
            raise RuntimeError("boom")
        if how == "answers":
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            return await Response("done")(scope, receive, send)
        try:
            await asyncio.Event().wait()
        finally:
            claim: Any = claim_of(scope)
            asyncio.get_running_loop().call_soon(lambda: claim.settlement.lose(outage=False))
            await asyncio.Event().wait()

    async with Dedup("memory://") as dedup:
        middleware = IdempotencyMiddleware(app, dedup, principal=everyone, on_disconnect="cancel")
        call = Call(middleware, "/", ("idempotency-key", "k"))
        with pytest.raises(RuntimeError, match="boom") if how == "raises" else contextlib.nullcontext():
            await call.start()
    assert call.task.cancelling() == 0


@pytest.mark.parametrize("where", ["gzip inside", "gzip outside"])
async def test_a_client_that_takes_no_gzip_gets_what_was_stored(where: str) -> None:
    """Outside is the right place for compression: what is stored then suits every client."""
    shop = Shop(**ARRANGEMENTS[where])
    async with shop.dedup:
        await shop.client.post("/orders", json={}, headers=key("k"))
        plain = await shop.client.post(
            "/orders", json={}, headers={**key("k"), "accept-encoding": "identity"}
        )
    assert plain.headers.get("content-encoding") == ("gzip" if where == "gzip inside" else None)
    assert plain.json()["run"] == 1


@pytest.mark.parametrize("outside", [[], TAGGING])
async def test_background_tasks_run_after_the_response_is_stored(outside: list[Middleware]) -> None:
    shop = Shop(outside=outside)
    async with shop.dedup:
        await shop.client.post("/orders", json={}, headers=key("k"))
        assert shop.order == ["after: mismatch"]  # the record is settled, and not this one's
        assert (await shop.client.post("/orders", json={}, headers=key("k"))).json()["run"] == 1


# Mounts


async def test_below_a_mount_paths_are_the_applications_own_and_the_policy_link_is_whole(desk: Desk) -> None:
    dedup = Dedup("memory://")
    routes = ["/orders"]
    inner = IdempotencyMiddleware(
        Starlette(routes=[Route("/{name}", _call, methods=["POST"])]),
        dedup,
        principal=everyone,
        routes=routes,
        docs="/idempotency",
        required=True,
    )
    app = at(desk, Starlette(routes=[Mount("/api>x", inner)]))
    async with dedup:
        http = client(app)
        missing = await http.post("/api>x/orders")
        assert missing.headers["link"] == '</api%3Ex/idempotency>; rel="describedby"'
        assert (await http.get("/api%3Ex/idempotency")).status_code == 200
        for _ in range(2):
            assert (await http.post("/api>x/orders", headers=key("k"))).status_code == 201
        assert (await http.post("/api>x/others")).status_code == 201
    assert (desk.runs["orders"], desk.runs["others"]) == (1, 1)


async def _call(request: Request) -> Response:
    made = await request.scope["desk"].work(request.path_params["name"])
    return Response(made.body, made.status)


@pytest.mark.parametrize(
    ("path", "root", "status"),
    [
        ("/api/orders", "/api", 400),
        ("/api/orders", "/api/", 400),
        ("/api", "/api", 400),
        ("/apiary", "/api", 400),
        ("/orders", "/api", 400),
    ],
)
async def test_no_path_slips_past_a_route_for_all(path: str, root: str, status: int) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("unguarded")

    middleware = IdempotencyMiddleware(app, Dedup("memory://"), principal=everyone, required=True)
    call = Call(middleware, path, root_path=root)
    await call.start()
    assert call.status == status


async def test_websockets_are_let_through() -> None:
    seen = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["type"])

    middleware = IdempotencyMiddleware(app, Dedup("memory://"), principal=everyone, required=True)
    await Call(middleware, "/", type="websocket").start()
    assert seen == ["websocket"]


async def test_extensions_that_would_go_past_the_capture_are_not_offered() -> None:
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(set(scope["extensions"]))
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    offered = {"http.response.pathsend": {}, "http.response.trailers": {}, "http.response.debug": {}}
    async with Dedup("memory://") as dedup:
        middleware = IdempotencyMiddleware(app, dedup, principal=everyone)
        await Call(middleware, "/", ("idempotency-key", "k"), extensions=offered).start()
        await Call(middleware, "/", extensions=offered).start()
    assert seen == [{"http.response.debug"}, set(offered)]


# Lifespan


class Host:
    """An ASGI server's side of the lifespan protocol."""

    def __init__(self, app: ASGIApp) -> None:
        self._inbox: asyncio.Queue[Message] = asyncio.Queue()
        self._sent: asyncio.Queue[Message] = asyncio.Queue()
        self.task = asyncio.ensure_future(
            app(
                {"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}, self._inbox.get, self._sent.put
            )
        )

    async def say(self, what: str) -> str:
        """Send an event, and return what the application answers."""
        self._inbox.put_nowait({"type": f"lifespan.{what}"})
        answer = asyncio.ensure_future(self._sent.get())
        await asyncio.wait([answer, self.task], return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            await asyncio.wait([answer], timeout=0)
        return str(answer.result()["type"]).removeprefix("lifespan.")


def lifespan_app(dedup: Dedup, lifespan: Any = None) -> ASGIApp:
    return IdempotencyMiddleware(Starlette(lifespan=lifespan), dedup, principal=everyone)


@pytest.mark.parametrize("opened", [False, True])
async def test_the_gate_is_closed_with_the_application_unless_it_was_open_before(opened: bool) -> None:
    dedup = Dedup("memory://")
    async with dedup if opened else contextlib.nullcontext():
        host = Host(lifespan_app(dedup))
        assert await host.say("startup") == "startup.complete"
        assert dedup.is_open
        assert await host.say("shutdown") == "shutdown.complete"
        await host.task
        assert dedup.is_open is opened


@pytest.mark.parametrize("by_itself", [True, False], ids=["the application opens it", "the middleware does"])
async def test_the_gate_is_still_open_while_the_application_shuts_down(by_itself: bool) -> None:
    dedup = Dedup("memory://")
    seen = []

    @contextlib.asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[None]:
        async with dedup if by_itself else contextlib.nullcontext():
            yield
            seen.append((await dedup.claim("last")).acquired)

    host = Host(lifespan_app(dedup, lifespan))
    assert await host.say("startup") == "startup.complete"
    assert await host.say("shutdown") == "shutdown.complete"
    await host.task
    assert seen == [True]


async def test_a_start_that_fails_leaves_no_gate_open() -> None:
    dedup = Dedup("memory://")

    @contextlib.asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[None]:
        raise RuntimeError("no database")
        yield

    host = Host(lifespan_app(dedup, lifespan))
    assert await host.say("startup") == "startup.failed"
    with pytest.raises(RuntimeError, match="no database"):
        await host.task
    assert not dedup.is_open


class TooOld(MemoryStore):
    """A store that can never be used."""

    async def open(self) -> None:
        raise ConfigError("this store is too old")


async def test_a_gate_that_can_never_be_used_fails_the_start() -> None:
    host = Host(lifespan_app(Dedup(TooOld())))
    assert await host.say("startup") == "startup.failed"
    with pytest.raises(ConfigError):
        await host.task


@pytest.mark.parametrize(("usable", "raises"), [(True, True), (False, True), (True, False)])
async def test_for_an_application_without_lifespan_the_middleware_has_one(usable: bool, raises: bool) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if raises:
            raise ValueError(f"{scope['type']}?")  # as Django

    dedup = Dedup("memory://" if usable else TooOld())
    host = Host(IdempotencyMiddleware(app, dedup, principal=everyone))
    assert await host.say("startup") == ("startup.complete" if usable else "startup.failed")
    if usable:
        assert dedup.is_open
        assert await host.say("shutdown") == "shutdown.complete"
    await host.task
    assert not dedup.is_open


# Settings


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({}, "principal"),
        ({"principal": "ann"}, "principal"),
        ({"principal": None}, "principal must be a function"),
        ({"principal": everyone, "fingerprint": "body"}, "fingerprint must be a plain function"),
        ({"principal": everyone, "routes": "/orders"}, "routes"),
        ({"principal": everyone, "routes": []}, "routes"),
        ({"principal": everyone, "docs": "idempotency"}, "docs"),
        ({"principal": everyone, "docs": "/a>b"}, "docs"),
        ({"principal": everyone, "docs": "/a\r\nset-cookie: x"}, "docs"),
        ({"principal": everyone, "lease": 0}, "lease"),
        ({"principal": everyone, "waits": 1.0}, "waits"),
    ],
)
def test_a_setting_that_cannot_be_used_is_told_when_the_middleware_is_made(
    settings: dict[str, Any], named: str
) -> None:
    with pytest.raises(ConfigError, match=named):
        IdempotencyMiddleware(Starlette(), Dedup("memory://"), **settings)
