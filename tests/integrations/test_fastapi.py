"""`Claimed` and `OneTimeToken`: dependencies of a FastAPI application."""

import asyncio
import gc
import threading
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Annotated, Any
from weakref import WeakSet

import pytest
from fastapi import (
    APIRouter,
    BackgroundTasks,
    Body,
    Depends,
    FastAPI,
    File,
    Form,
    HTTPException,
    Request,
    Security,
    UploadFile,
    WebSocket,
    WebSocketDisconnect,
)
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from fastapi.testclient import TestClient
from pydantic import BaseModel
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware

from fastdedup import Claim, ConfigError, Dedup, LocalLRU, Outcome, ResultError, UnavailableError
from fastdedup.integrations.asgi import IdempotencyMiddleware, by_header, claim_of
from fastdedup.integrations.asgi import everyone as anybody
from fastdedup.integrations.fastapi import Claimed, Commits, FormRefused, Idempotency, OneTimeToken, everyone
from fastdedup.integrations.flask import by_session
from fastdedup.sql import Inbox
from fastdedup.sync import Dedup as SyncDedup
from fastdedup.web.response import ResponseCodec

from ..servers import RedisServer
from ..waiting import wait_until
from .conftest import MakeGate
from .desk import client, enveloping, key, problem


@pytest.fixture
def url() -> str:
    """Of a store in memory: test_draft.py asks of both kinds."""
    return "memory://"


class Order(BaseModel):
    sku: str
    quantity: int = 1


def account(request: Request) -> str:
    """Authenticates."""
    name = request.headers.get("x-account")
    if name is None:
        raise HTTPException(401, "who are you?")
    return name


def session(request: Request) -> str:
    return request.cookies.get("session", "guest")


OnceFor = Annotated[Claim[dict[str, Any]] | None, Claimed(principal=account)]
Sent = Annotated[Claim, OneTimeToken(subject=session)]


class Shop:
    """An application with one of each."""

    def __init__(self, dedup: Dedup, **settings: Any) -> None:
        self.dedup = dedup
        self.runs = 0
        self.gate: asyncio.Event | None = None
        self.started = asyncio.Event()
        self.app = FastAPI()
        Idempotency(self.app, dedup, **settings)
        self.routes()
        self.ann = client(self.app, x_account="ann")
        self.bob = client(self.app, x_account="bob")

    async def work(self) -> dict[str, int]:
        self.runs += 1
        self.started.set()
        if self.gate is not None:
            await self.gate.wait()
        return {"run": self.runs}

    def routes(self) -> None:
        app = self.app

        @app.post("/orders", status_code=201)
        async def order(body: Order, claim: OnceFor) -> dict[str, Any]:
            return {
                **await self.work(),
                "sku": body.sku,
                "attempt": claim.attempt if claim is not None else 0,
            }

        @app.post("/sync")
        def in_thread(body: Annotated[dict[str, Any], Body()], claim: OnceFor) -> dict[str, Any]:
            self.runs += 1
            return {"run": self.runs, "thread": threading.current_thread() is not threading.main_thread()}

        @app.post("/orders/{number}/pay")
        async def pay(number: int, claim: OnceFor) -> dict[str, Any]:
            return {**await self.work(), "number": number}

        @app.post("/form")
        async def form(sku: Annotated[str, Form()], claim: OnceFor) -> dict[str, Any]:
            return {**await self.work(), "sku": sku}

        @app.post("/upload")
        async def upload(file: UploadFile, note: Annotated[str, Form()], claim: OnceFor) -> dict[str, Any]:
            return {**await self.work(), "size": len(await file.read()), "note": note}

        @app.post("/raw")
        async def raw(request: Request, claim: OnceFor) -> dict[str, Any]:
            return {**await self.work(), "size": len(b"".join([chunk async for chunk in request.stream()]))}

        @app.post("/needed")
        async def needed(
            claim: Annotated[Claim[list[int]], Claimed(principal=everyone, required=True)],
        ) -> dict[str, int]:
            return await self.work()

        @app.post("/buy")
        async def buy(claim: Sent, sku: Annotated[str, Form()] = "") -> Any:
            return {**await self.work(), "sku": sku}

        @app.post("/buy-upload")
        async def buy_upload(claim: Sent, file: Annotated[UploadFile, File()]) -> Any:
            return {**await self.work(), "size": len(await file.read())}

        @app.post("/buy-bare")
        async def buy_bare(claim: Sent) -> Any:
            await self.work()
            return RedirectResponse(f"/orders/{self.runs}", 303)

    async def token(self, subject: str = "guest") -> str:
        return await self.dedup.tokens.issue(subject=subject)


@asynccontextmanager
async def open_shop(dedup: Dedup, **settings: Any) -> AsyncIterator[Shop]:
    shop = Shop(dedup, **settings)
    async with dedup, shop.ann, shop.bob:
        yield shop


def application(dedup: Dedup | None = None, **settings: Any) -> tuple[FastAPI, Dedup]:
    """Make an application with a gate, and no routes yet."""
    app, gate = FastAPI(), dedup or Dedup("memory://")
    Idempotency(app, gate, **settings)
    return app, gate


# Claimed


@pytest.mark.parametrize(
    ("path", "sent", "other"),
    [
        ("/orders", {"json": {"sku": "a"}}, {"json": {"sku": "b"}}),
        ("/sync", {"json": {"a": 1}}, {"json": {"a": 2}}),
        ("/orders/7/pay", {}, {"params": {"a": 1}}),
        ("/form", {"data": {"sku": "a"}}, {"data": {"sku": "b"}}),
        (
            "/upload",
            {"data": {"note": "n"}, "files": {"file": bytes(9000)}},
            {"data": {"note": "m"}, "files": {"file": bytes(9000)}},
        ),
        ("/raw", {"content": b"abc"}, {"content": b"abcd"}),
    ],
)
async def test_a_handler_runs_once_for_a_key_whatever_it_reads(
    make_gate: MakeGate, path: str, sent: dict[str, Any], other: dict[str, Any]
) -> None:
    async with open_shop(make_gate()) as shop:
        first = await shop.ann.post(path, headers=key("k"), **sent)
        again = await shop.ann.post(path, headers=key("k"), **sent)
        changed = await shop.ann.post(path, headers=key("k"), **other)
        of_bob = await shop.bob.post(path, headers=key("k"), **sent)
    assert first.status_code in (200, 201), first.text
    assert again.content == first.content
    assert again.headers["idempotency-replayed"] == "true"
    problem(changed, "key-reused", 422)
    assert of_bob.json()["run"] == 2
    assert shop.runs == 2


async def test_without_a_key_the_claim_is_none_where_it_is_not_required(make_gate: MakeGate) -> None:
    async with open_shop(make_gate()) as shop:
        assert (await shop.ann.post("/orders", json={"sku": "a"})).json()["attempt"] == 0
        assert (await shop.ann.post("/orders", json={"sku": "a"}, headers=key("k"))).json()["attempt"] == 1
        missing = await shop.ann.post("/needed")
        problem(missing, "key-missing", 400)
        assert missing.headers["link"] == '</docs>; rel="describedby"'
        problem(await shop.ann.post("/needed", headers=key("a,b")), "key-malformed", 400)
        twice = await shop.ann.post("/needed", headers=[("idempotency-key", "k"), ("idempotency-key", "k")])
        problem(twice, "key-malformed", 400)
    assert shop.runs == 2


async def test_who_is_not_known_is_told_that_first(make_gate: MakeGate) -> None:
    async with open_shop(make_gate()) as shop:
        stranger = client(shop.app)
        for headers in ({}, key("k"), key('"')):
            assert (await stranger.post("/orders", json={"sku": "a"}, headers=headers)).status_code == 401
        assert (await shop.ann.post("/orders", json={"sku": "a"}, headers=key("k"))).status_code == 201
    assert shop.runs == 1


async def test_without_redis_it_is_503_and_nothing_runs(own_redis: RedisServer) -> None:
    async with open_shop(Dedup(own_redis.url, timeout=0.25)) as shop:
        own_redis.kill()
        answer = await shop.ann.post("/orders", json={"sku": "a"}, headers=key("k"))
        problem(answer, "unavailable", 503)
        assert answer.headers["retry-after"] == "1"
        refused = await shop.ann.post("/buy", data={"one_time_token": "x"}, headers={"accept": "text/html"})
        assert refused.status_code == 503
        assert "Please try again" in refused.text
    assert shop.runs == 0


# Routers


async def test_routers_in_routers_have_scopes_of_their_own(make_gate: MakeGate) -> None:
    """Of the whole path, also where a router stands under several prefixes, and a route has an empty path."""
    app, dedup = application(make_gate())
    inner, middle = APIRouter(prefix="/inner"), APIRouter()
    keys = []

    @inner.post("/{item}")
    async def call(item: int, claim: OnceFor) -> dict[str, int]:
        assert claim is not None
        keys.append(claim.key)
        return {"item": item}

    @middle.post("")
    async def empty(claim: OnceFor) -> dict[str, int]:
        assert claim is not None
        keys.append(claim.key)
        return {}

    middle.include_router(inner)
    app.include_router(middle, prefix="/a")
    app.include_router(middle, prefix="/b/{tenant}")
    async with dedup, client(app, x_account="ann") as ann:
        for path in ("/a/inner/1", "/b/x/inner/1", "/a", "/b/x"):
            for _ in range(2):
                answer = await ann.post(path, headers=key("k"))
                assert answer.status_code == 200, answer.text
    scopes = [one.split("|")[0] for one in keys]
    assert scopes == ["POST /a/inner/{item}", "POST /b/{tenant}/inner/{item}", "POST /a", "POST /b/{tenant}"]


async def test_a_router_level_dependency_guards_all_its_routes(make_gate: MakeGate) -> None:
    app, dedup = application(make_gate())
    router = APIRouter(dependencies=[Claimed(principal=account, required=True)])
    runs = []

    @router.post("/a")
    async def call() -> dict[str, int]:
        runs.append(1)
        return {"run": len(runs)}

    app.include_router(router)
    async with dedup, client(app, x_account="ann") as ann:
        problem(await ann.post("/a"), "key-missing", 400)
        for _ in range(2):
            assert (await ann.post("/a", headers=key("k"))).json() == {"run": 1}


def websockets_behind(dependency: Any) -> TestClient:
    """An application whose router has this dependency, and a WebSocket that says what it got."""
    app = FastAPI()
    Idempotency(app, Dedup("memory://"))
    router = APIRouter(dependencies=[dependency])

    @router.websocket("/talk")
    async def talk(socket: WebSocket) -> None:
        await socket.accept()
        await socket.send_text("heard")
        await socket.close()

    app.include_router(router)
    return TestClient(app)


@pytest.mark.parametrize("required", [False, True])
def test_a_router_level_dependency_lets_websockets_through(required: bool) -> None:
    """FastAPI gives a router's dependencies to its WebSockets too; each of them failed with a TypeError."""
    with websockets_behind(Claimed(principal=everyone, required=required)) as client:
        with client.websocket_connect("/talk") as talk:
            assert talk.receive_text() == "heard"
        with (
            pytest.raises(WebSocketDisconnect) as refused,
            client.websocket_connect("/talk", headers=key("k")),
        ):
            pass
    assert (refused.value.code, refused.value.reason) == (1008, "a WebSocket takes no Idempotency-Key")


@pytest.mark.parametrize(
    "dependency",
    [
        OneTimeToken(subject=everyone),
        Commits(Inbox("mistakes", keep=604_800.0), begin=lambda: None, principal=everyone),
    ],
)
def test_a_response_that_a_websocket_has_not_is_a_mistake(dependency: Any) -> None:
    with (
        websockets_behind(dependency) as client,
        pytest.raises(ConfigError, match="is for HTTP: a WebSocket"),
        client.websocket_connect("/talk"),
    ):
        pass


@pytest.mark.parametrize("around", [Depends, Security])
@pytest.mark.parametrize(
    "dependency", [Claimed(principal=everyone), OneTimeToken(subject=everyone)], ids=["claimed", "token"]
)
def test_a_dependency_within_another_says_what_to_write(around: Any, dependency: Any) -> None:
    written = around(dependency)

    def of_an_argument(claim: Annotated[Claim, written]) -> None: ...

    for declare in (
        lambda: FastAPI().post("/orders")(of_an_argument),
        lambda: FastAPI().post("/orders", dependencies=[written])(lambda: None),
    ):
        with pytest.raises(ConfigError, match=r"write Annotated\[Claim, Claimed\(\.\.\.\)\]"):
            declare()


async def test_two_claims_for_one_response_are_a_mistake(make_gate: MakeGate) -> None:
    app, dedup = application(make_gate())

    @app.post("/a", dependencies=[Claimed(principal=account)])
    async def call(claim: Annotated[Claim, Claimed(principal=everyone)]) -> None: ...

    async with dedup, client(app, raises=True) as ann:
        with pytest.raises(ConfigError, match="one Claimed"):
            await ann.post("/a", headers={**key("k"), "x-account": "ann"})


@pytest.mark.parametrize("outside", [True, False])
async def test_middleware_and_dependency_on_one_route_are_a_mistake(
    make_gate: MakeGate, outside: bool
) -> None:
    dedup = make_gate()
    app = FastAPI()
    if not outside:
        app.add_middleware(IdempotencyMiddleware, dedup=dedup, principal=anybody)
    Idempotency(app, dedup)
    if outside:
        app.add_middleware(IdempotencyMiddleware, dedup=dedup, principal=anybody)

    @app.post("/a", dependencies=[Claimed(principal=everyone)])
    async def call() -> None: ...

    async with dedup, client(app, raises=True) as ann:
        with pytest.raises(ConfigError, match="use either the middleware or Claimed"):
            await ann.post("/a", headers=key("k"))


# Principals, gates


@pytest.mark.parametrize("names", [("ann", "bob"), (1, 2), (uuid.uuid4(), uuid.uuid4())])
async def test_a_principal_is_text_a_number_or_a_uuid(names: tuple[Any, Any]) -> None:
    app, dedup = application()

    def who(at: int) -> Any:
        return names[at]

    @app.post("/a")
    async def call(claim: Annotated[Claim, Claimed(principal=who)]) -> str:
        return claim.key

    async with dedup, client(app) as http:
        keys = []
        for at in (0, 1, 0):
            answer = await http.post("/a", params={"at": at}, headers=key("k"))
            keys.append(answer.text if answer.status_code == 200 else "mismatch")
    assert keys[0] == keys[2] != keys[1]


@pytest.mark.parametrize(
    ("claimed", "told"),
    [
        (Claimed(principal=lambda: {"id": 1}), "a principal must be text"),
        (Claimed(principal=everyone, max_request=2000), "max_request=2000 is over the 1000"),
        (
            Claimed(principal=everyone, dedup=lambda request: None),  # type: ignore[arg-type,return-value]
            "the function given as dedup= returns must be",
        ),
    ],
    ids=["principal", "max_request", "dedup"],
)
async def test_a_dependency_that_cannot_be_used_is_a_mistake_of_the_program(claimed: Any, told: str) -> None:
    app, dedup = application(max_request=1000)

    @app.post("/a")
    async def call(claim: Annotated[Claim, claimed]) -> None: ...

    async with dedup, client(app, raises=True) as http:
        with pytest.raises(ConfigError, match=told):
            await http.post("/a", headers=key("k"))


@pytest.mark.parametrize(
    "make", [Claimed, OneTimeToken, partial(Commits, Inbox("mistakes", keep=604_800.0), begin=lambda: None)]
)
@pytest.mark.parametrize(
    ("caller", "told"),
    [
        (by_header("x-api-key"), "middlewares and decorators, such as by_header"),
        (anybody, "`everyone` of fastdedup.integrations.fastapi"),
        (by_session("user"), "middlewares and decorators"),
        (lambda request: request.headers["x-api-key"], "write a function with `request: fastapi.Request`"),
        ("x-api-key", "must be a dependency that names the caller"),
    ],
)
def test_a_caller_that_fastapi_cannot_find_is_told_at_once(make: Any, caller: Any, told: str) -> None:
    """Every request was answered 422, with a text that names neither the function nor the mistake."""
    who = {"subject" if make is OneTimeToken else "principal": caller}
    with pytest.raises(ConfigError, match=told):
        make(**who)


async def choose_later(request: Request) -> Dedup:
    return Dedup("memory://")


@pytest.mark.parametrize(
    "make", [Claimed, OneTimeToken, partial(Commits, Inbox("mistakes", keep=604_800.0), begin=lambda: None)]
)
@pytest.mark.parametrize("gate", ["memory://", SyncDedup("memory://"), choose_later, lambda: None])
def test_a_gate_that_cannot_be_used_is_told_at_once(make: Any, gate: Any) -> None:
    who = {"subject" if make is OneTimeToken else "principal": everyone}
    with pytest.raises(ConfigError, match=r"^dedup= must be a fastdedup.Dedup, or a plain function") as told:
        make(**who, dedup=gate)
    assert "memory" not in str(told.value)  # it may be a URL with a password


async def test_dependency_overrides_reach_the_principal(make_gate: MakeGate) -> None:
    async with open_shop(make_gate()) as shop:
        shop.app.dependency_overrides[account] = lambda: "tester"
        stranger = client(shop.app)
        for _ in range(2):
            answer = await stranger.post("/orders", json={"sku": "a"}, headers=key("k"))
            assert answer.status_code == 201
    assert shop.runs == 1


async def test_an_operation_may_have_another_gate_or_choose_one(redis_url: str) -> None:
    main, other = Dedup("memory://"), Dedup(redis_url, namespace="other", timeout=5.0)
    scopes = {"refuse": other, "local": other.scoped("local", on_unavailable=LocalLRU())}
    app = FastAPI()
    Idempotency(app, main)

    @app.post("/other")
    async def one(claim: Annotated[Claim, Claimed(principal=everyone, dedup=other)]) -> None: ...

    @app.post("/chosen")
    async def two(
        claim: Annotated[
            Claim, Claimed(principal=everyone, dedup=lambda request: scopes[request.headers["x-gate"]])
        ],
    ) -> None: ...

    async with main, other, client(app) as http:
        await http.post("/other", headers=key("k"))
        for gate in ("refuse", "local"):
            answer = await http.post("/chosen", headers={**key("k"), "x-gate": gate})
            assert "idempotency-replayed" not in answer.headers
        for gate_, path, there in [
            (other, "/other", True),
            (other, "/chosen", True),
            (scopes["local"], "/chosen", True),
            (main, "/other", False),
        ]:
            record = await gate_.scoped("http", codec=ResponseCodec()).get(f"POST {path}|-|k")
            assert (record is not None) is there, (gate_, path)


class Tenants:
    """A function for `dedup=` that makes each request a gate for its tenant.

    Attributes:
        living: the gates that something still refers to.
    """

    def __init__(self, gate: Dedup) -> None:
        self._gate = gate
        self.living: WeakSet[Dedup] = WeakSet()

    def __call__(self, request: Request) -> Dedup:
        gate = self._gate.scoped(request.headers["x-tenant"])
        self.living.add(gate)
        return gate


@pytest.mark.parametrize("guards", [Claimed, OneTimeToken])
async def test_gates_that_are_chosen_for_one_request_are_not_all_kept(
    redis_url: str, guards: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the memory of a program with tenants grows with each request."""
    monkeypatch.setattr("fastdedup.integrations.fastapi.MOST_ROUTES", 1)
    main, app = Dedup(redis_url, timeout=5.0), FastAPI()
    tenants = Tenants(main)
    Idempotency(app, main)
    caller = {"principal" if guards is Claimed else "subject": everyone}

    @app.post("/orders")
    async def order(claim: Annotated[Claim, guards(dedup=tenants, **caller)]) -> str:
        return uuid.uuid4().hex

    async with main, client(app) as http:
        pages = []
        for tenant in ("a", "b"):
            token = await main.scoped(tenant).tokens.issue()
            sent = {**key("k"), "x-tenant": tenant, "x-one-time-token": token}
            first, again = [await http.post("/orders", headers=sent) for _ in range(2)]
            assert (again.content, again.headers["idempotency-replayed"]) == (first.content, "true")
            pages.append(first.content)
    gc.collect()
    assert pages[0] != pages[1]
    assert len(tenants.living) == 1, "more gates than MOST_ROUTES are kept"


async def test_without_idempotency_on_the_application_the_error_says_what_to_add() -> None:
    app = FastAPI()

    @app.post("/a")
    async def call(claim: Annotated[Claim, Claimed(principal=everyone)]) -> None: ...

    async with client(app, raises=True) as http:
        with pytest.raises(ConfigError, match=r"Idempotency\(app, dedup\)"):
            await http.post("/a", headers=key("k"))


def test_an_application_has_one_idempotency() -> None:
    app = FastAPI()
    Idempotency(app, Dedup("memory://"))
    with pytest.raises(ConfigError, match="already"):
        Idempotency(app, Dedup("memory://"))


@pytest.mark.parametrize(
    ("setting", "value"),
    [("max_request", "1 MB"), ("max_request", 0), ("docs", "help"), ("docs", "/help\r\nx-run: 1")],
)
def test_an_argument_that_cannot_be_used_is_told_at_once(setting: str, value: Any) -> None:
    """Each request was answered 500, or each error with a broken Link header."""
    with pytest.raises(ConfigError, match=setting):
        application(**{setting: value})


@pytest.mark.parametrize("make", [Claimed, OneTimeToken])
@pytest.mark.parametrize(
    ("setting", "value"), [("lease", 0), ("keep", 5), ("max_request", 0), ("on_disconnect", "x")]
)
def test_mistakes_in_settings_are_told_where_they_are_made(make: Any, setting: str, value: Any) -> None:
    who = {"principal" if make is Claimed else "subject": everyone}
    with pytest.raises(ConfigError, match=setting):
        make(**who, **{setting: value})


# Limits


@pytest.mark.parametrize(("path", "sent"), [("/raw", b"x" * 3000), ("/raw", b"x" * 2000)])
async def test_a_body_over_the_limit_is_413_and_says_which_limit(path: str, sent: bytes) -> None:
    async with open_shop(Dedup("memory://"), max_request=2000) as shop:
        answer = await shop.ann.post(path, content=sent, headers=key("k"))
        if len(sent) > 2000:
            assert "2000 bytes" in problem(answer, "body-too-large", 413)["detail"]
        else:
            assert answer.status_code == 200
        free = await shop.ann.post(path, content=b"x" * 5000)
        assert free.json()["size"] == 5000


async def test_a_larger_limit_for_the_application_holds_for_all_operations() -> None:
    async with open_shop(Dedup("memory://"), max_request=3 * 1024 * 1024) as shop:
        for _ in range(2):
            answer = await shop.ann.post(
                "/upload", data={"note": "n"}, files={"file": bytes(2 * 1024 * 1024)}, headers=key("k")
            )
            assert answer.json() == {"run": 1, "size": 2 * 1024 * 1024, "note": "n"}


async def test_cancelling_is_for_handlers_that_can_be_cancelled() -> None:
    """A thread would go on beside the retry."""
    app, dedup = application()

    @app.post("/a")
    def call(claim: Annotated[Claim, Claimed(principal=everyone, on_disconnect="cancel")]) -> None: ...

    class Call:
        def __call__(
            self, claim: Annotated[Claim, Claimed(principal=everyone, on_disconnect="cancel")]
        ) -> None: ...

    app.post("/b")(Call())

    async with dedup, client(app, raises=True) as http:
        with pytest.raises(ConfigError, match=r"on_disconnect='cancel'.*call\(\)"):
            await http.post("/a", headers=key("k"))
        with pytest.raises(ConfigError, match=r"on_disconnect='cancel'.*Call\(\)"):
            await http.post("/b", headers=key("k"))


async def test_background_tasks_run_after_the_response_is_stored() -> None:
    app, dedup = application()
    found: list[Any] = []

    @app.post("/a")
    async def call(tasks: BackgroundTasks, claim: Annotated[Claim, Claimed(principal=everyone)]) -> None:
        async def look() -> None:
            found.append(await dedup.claim(claim.key))  # of the gate's own namespace: nothing is there
            with pytest.raises(Exception, match="settle it once"):
                await claim.release()

        tasks.add_task(look)

    async with dedup, client(app) as http:
        await http.post("/a", headers=key("k"))
    assert found[0].outcome is Outcome.ACQUIRED


async def test_middleware_inside_changes_a_response_once(make_gate: MakeGate) -> None:
    """A stored response has its changes already; its cookies are those of this request. A refusal passes through."""
    async with open_shop(make_gate()) as shop:
        shop.app.user_middleware.append(Middleware(BaseHTTPMiddleware, dispatch=enveloping))
        form = {"one_time_token": await shop.token(), "sku": "a"}
        requests: dict[str, Any] = {"/orders": {"json": {"sku": "a"}}, "/buy": {"data": form}}
        for path, sent in requests.items():
            first = await shop.ann.post(path, **sent, headers=key("k"))
            again = await shop.ann.post(path, **sent, headers=key("k"))
            assert again.headers.pop("idempotency-replayed") == "true"
            assert (again.status_code, again.content) == (first.status_code, first.content)
            assert sorted(again.headers.multi_items()) == sorted(first.headers.multi_items())
            assert again.headers["set-cookie"].startswith("envelope=new")
        refused = await shop.ann.post("/orders", json={"sku": "b"}, headers=key("k"))
        assert (refused.status_code, refused.headers["x-enveloped"]) == (422, "once")


async def test_middleware_inside_may_answer_for_a_stored_response(make_gate: MakeGate) -> None:
    async def close(request: Request, call_next: Any) -> Any:
        answer = await call_next(request)
        return Response(status_code=403) if closed else answer

    async with open_shop(make_gate()) as shop:
        closed = set[str]()
        shop.app.user_middleware.append(Middleware(BaseHTTPMiddleware, dispatch=close))
        await shop.ann.post("/orders", json={"sku": "a"}, headers=key("k"))
        closed.add("now")
        assert (await shop.ann.post("/orders", json={"sku": "a"}, headers=key("k"))).status_code == 403


# OneTimeToken


async def test_a_second_click_gets_the_page_of_the_first(make_gate: MakeGate) -> None:
    async with open_shop(make_gate()) as shop:
        form = {"one_time_token": await shop.token(), "sku": "a"}
        shop.gate = asyncio.Event()
        clicks = [asyncio.ensure_future(shop.ann.post("/buy", data=form)) for _ in range(4)]
        await shop.started.wait()
        shop.gate.set()
        pages = await asyncio.gather(*clicks)
        refreshed = await shop.ann.post("/buy", data=form)
    assert {page.content for page in pages} == {refreshed.content}
    assert refreshed.json() == {"run": 1, "sku": "a"}
    assert refreshed.headers["idempotency-replayed"] == "true"


@pytest.mark.parametrize("how", ["form", "multipart", "header", "bare"])
async def test_a_token_comes_in_the_form_or_a_header(make_gate: MakeGate, how: str) -> None:
    async with open_shop(make_gate()) as shop:
        token = await shop.token()
        sent: dict[str, Any] = {
            "form": {"url": "/buy", "data": {"one_time_token": token}},
            "multipart": {
                "url": "/buy-upload",
                "data": {"one_time_token": token},
                "files": {"file": b"x" * 9000},
            },
            "header": {"url": "/buy", "headers": {"x-one-time-token": token}},
            "bare": {"url": "/buy-bare", "data": {"one_time_token": token}},
        }[how]
        first, again = [await shop.ann.post(**sent) for _ in range(2)]
    assert first.status_code in (200, 303), first.text
    assert again.headers["idempotency-replayed"] == "true"
    assert again.content == first.content
    assert again.headers.get("location") == first.headers.get("location")
    assert shop.runs == 1


@pytest.mark.parametrize(
    ("case", "status"),
    [
        ("missing", 400),
        ("empty", 400),
        ("unknown", 410),
        ("foreign", 403),
        ("changed", 422),
        ("odd", 410),
        ("file", 400),
    ],
)
async def test_all_else_is_refused_and_nothing_runs(make_gate: MakeGate, case: str, status: int) -> None:
    async with open_shop(make_gate()) as shop:
        token = await shop.token("somebody" if case == "foreign" else "guest")
        if case == "changed":
            await shop.ann.post("/buy", data={"one_time_token": token, "sku": "a"})
        ran = shop.runs
        field = {"missing": {}, "empty": {"one_time_token": ""}, "unknown": {"one_time_token": "x" * 32}}
        form = field.get(case, {"one_time_token": "\x00\u20ac" if case == "odd" else token})
        for accept in ("text/html", "application/json"):
            headers = {"accept": accept, "referer": "http://shop.test/form"}
            if case == "file":
                answer = await shop.ann.post("/buy", files={"one_time_token": b"x"}, headers=headers)
            else:
                answer = await shop.ann.post("/buy", data={**form, "sku": "b"}, headers=headers)
            assert answer.status_code == status, answer.text
            kind = "text/html; charset=utf-8" if accept == "text/html" else "application/problem+json"
            assert answer.headers["content-type"] == kind
            if accept == "text/html":
                assert 'href="/form"' in answer.text
        assert shop.runs == ran


@pytest.mark.parametrize("by_hand", [False, True])
async def test_a_token_that_was_merely_consumed_is_not_run_again(make_gate: MakeGate, by_hand: bool) -> None:
    async with open_shop(make_gate()) as shop:
        token = await shop.token()
        if by_hand:
            await (await shop.dedup.tokens.redeem(token, subject="guest")).complete({"order": 7})
        else:
            await shop.dedup.tokens.consume(token, subject="guest")
        problem(await shop.ann.post("/buy", data={"one_time_token": token}), "response-not-stored", 409)
    assert shop.runs == 0


async def test_an_application_may_show_its_form_anew() -> None:
    shop = Shop(Dedup("memory://"))

    @shop.app.exception_handler(FormRefused)
    async def anew(request: Request, refused: FormRefused) -> HTMLResponse:
        return HTMLResponse(f"<form>{refused.reason}: {refused.message}</form>", refused.status)

    async with shop.dedup:
        answer = await shop.ann.post("/buy", data={"one_time_token": "x"}, headers={"accept": "text/html"})
    assert answer.status_code == 410
    assert answer.text.startswith("<form>expired: Nothing was done.")


async def test_a_handler_of_ones_own_from_before_idempotency_is_kept() -> None:
    async def anew(request: Request, refused: Exception) -> HTMLResponse:
        return HTMLResponse("mine", 400)

    app = FastAPI(exception_handlers={FormRefused: anew})
    dedup = Dedup("memory://")
    Idempotency(app, dedup)

    @app.post("/buy")
    async def buy(claim: Sent) -> None: ...

    async with dedup, client(app) as http:
        assert (await http.post("/buy")).text == "mine"


async def test_the_field_may_have_another_name_and_the_subject_comes_first() -> None:
    app, dedup = application()

    @app.post("/buy")
    async def buy(claim: Annotated[Claim, OneTimeToken(subject=account, field="nonce")]) -> dict[str, bool]:
        return {"done": True}

    async with dedup, client(app) as http:
        token = await dedup.tokens.issue(subject="ann")
        assert (await http.post("/buy", data={"nonce": token})).status_code == 401
        answer = await http.post("/buy", data={"nonce": token}, headers={"x-account": "ann"})
        assert answer.json() == {"done": True}


@pytest.mark.parametrize("unrecorded", [False, True])
async def test_a_claim_by_hand_without_a_store_is_answered_503(unrecorded: bool) -> None:
    """Where the work is done and only not recorded, 503 would ask for it again: that stays an error."""
    app, server = FastAPI(), RedisServer()  # which does not run
    dedup = Dedup(server.url, timeout=0.1)
    Idempotency(app, dedup)

    async def by_hand() -> None:
        try:
            await dedup.claim("k")
        except UnavailableError as error:
            error.unrecorded = unrecorded
            raise

    app.add_api_route("/by-hand", by_hand, methods=["POST"])
    app.add_api_websocket_route("/by-hand", by_hand)
    async with dedup, client(app) as http:
        answer = await http.post("/by-hand")
    with TestClient(app) as talking, pytest.raises(UnavailableError), talking.websocket_connect("/by-hand"):
        pass
    if unrecorded:
        assert answer.status_code == 500
        return
    problem(answer, "unavailable", 503)
    assert int(answer.headers["retry-after"]) >= 1
    assert "processed" not in answer.json()["detail"]  # the handler may have done something before its claim


async def test_a_handler_that_completes_its_claim_with_a_value_is_told_what_to_write(
    make_gate: MakeGate,
) -> None:
    """The error advised JSON-able data and a codec, which are both no response."""
    app = FastAPI()
    Idempotency(app, make_gate())

    @app.post("/a")
    async def call(claim: Annotated[Claim, Claimed(principal=everyone)]) -> str:
        with pytest.raises(ResultError) as refused:
            await claim.complete({"done": True})
        return str(refused.value)

    async with client(app) as http:
        first, second = [(await http.post("/a", headers=key("k"))).json() for _ in range(2)]
    assert first == second
    assert "got dict: return it from the handler, which settles the claim" in first
    assert "codec" not in first


CLAIMED = Claimed(principal=everyone)


def test_dependencies_can_be_declared_without_annotated() -> None:
    app = FastAPI()
    Idempotency(app, Dedup("memory://"))

    @app.post("/a")
    async def call(claim: Any = CLAIMED) -> None: ...

    assert "/a" in app.openapi()["paths"]


@pytest.mark.parametrize("cancelled_before", [False, True])
async def test_a_lease_lost_before_the_handler_stops_it(make_gate: MakeGate, cancelled_before: bool) -> None:
    """A sync dependency runs in a thread, so it is not known yet that the handler can be cancelled.

    A server's task may have caught a cancellation before, which says nothing of this request.
    """
    app = FastAPI()
    Idempotency(app, make_gate())

    def in_thread() -> None: ...

    async def lose(request: Request) -> None:
        claim = claim_of(request.scope)
        assert claim is not None
        claim.settlement.lose(outage=False)

    @app.post("/")
    async def endless(
        claim: Annotated[Claim, Claimed(principal=everyone)],
        one: Annotated[None, Depends(in_thread)],
        other: Annotated[None, Depends(lose)],
    ) -> None:
        await asyncio.Event().wait()

    task = asyncio.current_task()
    assert task is not None
    if cancelled_before:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0)
    async with client(app) as ann:
        problem(await ann.post("/", headers={"idempotency-key": "k"}), "claim-lost", 409)
    assert task.cancelling() == cancelled_before


async def test_a_handler_that_middleware_has_left_alone_holds_its_key_no_longer_than_it_runs() -> None:
    """The middleware answers before the claim, and `AsgiExchange.run` has ended, which else ends the renewal."""
    app, may_go_on, runs = FastAPI(), asyncio.Event(), list[Any]()

    class Impatient:
        def __init__(self, app: Any) -> None:
            self.app = app

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            handling = asyncio.ensure_future(self.app(scope, receive, send))
            runs.append(handling)  # a task that is kept is not collected
            if len(runs) > 1:
                return await handling
            handling.add_done_callback(lambda task: task.exception())
            return await Response(status_code=504)(scope, receive, send)

    async def wait() -> None:
        await may_go_on.wait()

    @app.post("/", dependencies=[Depends(wait), Claimed(principal=everyone)])
    async def fail_first(request: Request) -> None:
        claims.append(claim_of(request.scope))
        if len(claims) == 1:
            raise ValueError

    claims: list[Any] = []
    app.add_middleware(Impatient)
    Idempotency(app, Dedup("memory://", lease=0.3))
    async with client(app) as ann:

        async def status() -> int:
            return (await ann.post("/", headers={"idempotency-key": "k"})).status_code

        assert await status() == 504
        may_go_on.set()
        await wait_until(lambda: claims, description="the handler has run")

        async def is_free() -> bool:
            return await status() == 200

        await wait_until(is_free, description="the key is free", deadline=5.0)
