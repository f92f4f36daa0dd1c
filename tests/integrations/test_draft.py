"""The draft's rules (fastdedup/web/README.md) and our own choices (docs/http-rules.md): a test for each row."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

import fastdedup.web
from fastdedup import Dedup, LocalLRU, fingerprint
from fastdedup.integrations.asgi import UUID, IdempotencyMiddleware, Route, by_header, claim_of
from fastdedup.integrations.lifespan import ASGIApp

from ..servers import RedisServer
from ..stores import TIMEOUT
from .desk import BIG, Desk, at, client
from .frameworks import app_of
from .live import Call
from .test_asgi import key, problem

PAGES = [
    Path(fastdedup.web.__file__).with_name("README.md"),
    Path(__file__).parents[2] / "docs" / "http-rules.md",
]
TABLE = re.compile(r"^\| .* \| test \|\n\|[-|]+\|\n((?:\|.*\n)+)", re.MULTILINE)
WaitUntil = Callable[..., Awaitable[Any]]


class Server:
    """The example application behind the middleware, on this worker's Redis."""

    def __init__(self, url: str, desk: Desk, timeout: float = TIMEOUT) -> None:
        self.desk = desk
        self.dedup = Dedup(url, namespace="t", timeout=timeout)
        self.runs = desk.runs
        self.app: ASGIApp = self.behind()

    def behind(self, **settings: Any) -> ASGIApp:
        defaults = {"principal": by_header("x-account"), "docs": "/idempotency"}
        self.app = IdempotencyMiddleware(
            at(self.desk, app_of("starlette")), self.dedup, **{**defaults, **settings}
        )
        return self.app

    async def post(self, path: str = "/orders", sent: str | None = "k", **options: Any) -> httpx.Response:
        headers = {**options.pop("headers", {}), **({} if sent is None else key(sent))}
        return await client(self.app, x_account="ann").post(path, headers=headers, **options)

    async def policy(self) -> Any:
        return (await client(self.app).get("/idempotency")).json()


@pytest.fixture
def server(redis_url: str, desk: Desk) -> Server:
    return Server(redis_url, desk)


def test_each_row_of_the_tables_names_a_test_and_each_test_a_row() -> None:
    rows = [row for page in PAGES for table in TABLE.findall(page.read_text()) for row in table.splitlines()]
    named = [row.split(" | ")[-1].strip("` |") for row in rows]
    assert len(set(named)) == len(named)
    here = {name for name in globals() if name.startswith("test_")}
    assert here - {"test_each_row_of_the_tables_names_a_test_and_each_test_a_row"} == set(named)


# 2.1


async def test_the_value_is_a_string_of_rfc_8941(server: Server) -> None:
    async with server.dedup:
        for sent in ('"a\\"b c"', '"a\\"b c";v=1', '  "a\\"b c"  '):
            assert (await server.post(sent=sent)).headers["x-run"] == "1"
        for sent in ('"plain"', "plain"):
            assert (await server.post(sent=sent)).headers["x-run"] == "2"


async def test_what_is_no_string_is_refused(server: Server) -> None:
    async with server.dedup:
        for sent in ('("a" "b")', '"a', "a b", '""', '"a";V'):
            problem(await server.post(sent=sent), "key-malformed", 400)
    assert not server.runs


async def test_two_keys_are_refused(server: Server) -> None:
    async with server.dedup:
        problem(await server.post(sent='"a", "a"'), "key-malformed", 400)
        http = client(server.app)
        twice = await http.post("/orders", headers=[("idempotency-key", "a"), ("idempotency-key", "a")])
        problem(twice, "key-malformed", 400)
    assert not server.runs


# 2.2


async def test_a_key_is_not_reused_with_another_payload(server: Server) -> None:
    async with server.dedup:
        await server.post(content=b"1")
        problem(await server.post(content=b"2"), "key-reused", 422)
        assert (await server.post("/payments", content=b"2")).status_code == 201
    assert server.runs["orders"] == 1


async def test_a_uuid_may_be_insisted_upon(server: Server) -> None:
    server.behind(key_format=UUID)
    async with server.dedup:
        problem(await server.post(sent="k"), "key-malformed", 400)
        assert (await server.post(sent="8e03978e-40d5-43e8-bc93-6894a57f9324")).status_code == 201


# 2.3


async def test_keys_expire(server: Server, wait_until: WaitUntil) -> None:
    server.behind(ttl=0.05, failure_ttl=0.05)
    async with server.dedup:
        for path, status in (("/orders", 201), ("/gone", 404)):
            await server.post(path)

            async def runs_anew(path: str = path, status: int = status) -> bool:
                answer = await server.post(path)
                assert answer.status_code == status
                return "idempotency-replayed" not in answer.headers

            await wait_until(runs_anew, description="the key has expired")


async def test_the_expiration_is_published(server: Server) -> None:
    server.behind(ttl=600.0, failure_ttl=60.0)
    (operation,) = (await server.policy())["operations"]
    assert (operation["lifetime_seconds"], operation["failure_lifetime_seconds"]) == (600.0, 60.0)


# 2.4


async def test_the_fingerprint_covers_the_whole_request(server: Server) -> None:
    async with server.dedup:
        await server.post("/orders?a=1", content=b"x")
        for path, content in (("/orders?a=1", b"y"), ("/orders?a=2", b"x"), ("/orders", b"x")):
            problem(await server.post(path, content=content), "key-reused", 422)
        for _ in range(2):  # httpx draws a new boundary for each
            assert (await server.post("/upload", files={"file": b"abc"})).status_code == 201
    assert (server.runs["orders"], server.runs["upload"]) == (1, 1)


async def test_the_fingerprint_may_be_of_selected_elements(server: Server) -> None:
    server.behind(fingerprint=lambda request: fingerprint(request.body[:3]))
    async with server.dedup:
        await server.post(content=b"abc 1")
        assert "idempotency-replayed" in (await server.post(content=b"abc 2")).headers
        problem(await server.post(content=b"abd 1"), "key-reused", 422)


# 2.5


async def test_the_specification_is_published(server: Server) -> None:
    facts = await server.policy()
    assert facts["header"] == "Idempotency-Key"
    assert {"key", "scope", "specification", "operations", "errors"} <= set(facts)
    assert {"key_format", "replayed_statuses", "in_flight", "largest_request_bytes"} <= set(
        facts["operations"][0]
    )
    page = await client(server.app).get("/idempotency", headers={"accept": "text/html"})
    assert "Idempotency-Key" in page.text


async def test_the_key_is_taken_from_the_header(server: Server) -> None:
    async with server.dedup:
        for _ in range(2):
            await server.post("/orders?Idempotency-Key=k", sent=None, json={"Idempotency-Key": "k"})
    assert server.runs["orders"] == 2


async def test_the_lifecycle_is_the_servers(server: Server, redis_server: RedisServer) -> None:
    async with server.dedup:
        gate = server.desk.hold()
        first = asyncio.ensure_future(server.post())
        await server.desk.started.wait()
        with redis_server.client() as raw:
            (record,) = raw.keys("t:http:*")
            assert raw.pttl(record) > 0  # type: ignore[operator]
            gate.set()
            await first
            assert 0 < raw.pttl(record) <= 86_400_000  # type: ignore[operator]
        server.desk.gate = None
        await server.post("/failing", sent="f")
        assert (await server.post("/failing", sent="f")).headers["x-run"] == "2"


# 2.6


async def test_the_first_request_is_processed_as_usual(server: Server) -> None:
    async with server.dedup:
        with_key = await server.post(content=b"x")
        without = await server.post(sent=None, content=b"x")
    assert with_key.status_code == without.status_code
    assert set(with_key.headers) == set(without.headers)
    assert with_key.json()["sum"] == without.json()["sum"]


async def test_a_duplicate_gets_the_first_result(server: Server) -> None:
    async with server.dedup:
        for path in ("/orders", "/gone"):
            first, again = await server.post(path), await server.post(path)
            assert again.headers.pop("idempotency-replayed") == "true"
            assert (again.status_code, again.content) == (first.status_code, first.content)
            assert again.headers.multi_items() == first.headers.multi_items()


async def test_a_duplicate_in_flight_is_a_conflict(server: Server) -> None:
    async with server.dedup:
        gate = server.desk.hold()
        first = asyncio.ensure_future(server.post())
        await server.desk.started.wait()
        busy = await server.post()
        problem(busy, "in-progress", 409)
        assert busy.headers["retry-after"] == "1"
        server.behind(wait=30.0)
        waiting = asyncio.ensure_future(server.post())
        gate.set()
        assert (await waiting).content == (await first).content


# 2.7

LINK = '</idempotency>; rel="describedby"'


async def test_a_missing_key_is_400_with_a_link(server: Server) -> None:
    server.behind(routes=[Route("/orders", required=True), "/*"])
    async with server.dedup:
        missing = await server.post(sent=None)
        problem(missing, "key-missing", 400)
        assert missing.headers["link"] == LINK
        assert (await server.post("/payments", sent=None)).status_code == 201


async def test_a_reused_key_is_422_with_a_link(server: Server) -> None:
    async with server.dedup:
        await server.post(content=b"1")
        reused = await server.post(content=b"2")
    problem(reused, "key-reused", 422)
    assert reused.headers["link"] == LINK


async def test_still_in_process_is_409_with_a_problem(server: Server) -> None:
    async with server.dedup:
        gate = server.desk.hold()
        first = asyncio.ensure_future(server.post())
        await server.desk.started.wait()
        body = problem(await server.post(), "in-progress", 409)
        gate.set()
        await first
    assert "still being processed" in body["detail"]


async def test_the_link_is_a_header(server: Server) -> None:
    server.behind(required=True)
    call = Call(server.app, "/api/orders", root_path="/api")
    await call.start()
    assert call.headers[b"link"] == b'</api/idempotency>; rel="describedby"'
    server.behind(required=True, docs="https://example.com/keys")
    assert (await server.post(sent=None)).headers["link"] == '<https://example.com/keys>; rel="describedby"'


async def test_an_uncorrected_request_fails_again(server: Server) -> None:
    server.behind(required=True)
    async with server.dedup:
        for _ in range(2):
            problem(await server.post(sent=None), "key-missing", 400)
        await server.post(content=b"1")
        for _ in range(2):
            problem(await server.post(content=b"2"), "key-reused", 422)
        assert (await server.post(content=b"2", sent="another")).status_code == 201


# 5


async def test_the_published_format_is_checked_first(server: Server) -> None:
    """Before the principal is asked, and before anything is asked of the store, which is not even open here."""
    asked = []
    server.behind(key_format="[a-z]{4}", principal=asked.append)
    problem(await server.post(sent="a:b"), "key-malformed", 400)
    assert (await server.policy())["operations"][0]["key_format"] == "[a-z]{4}"
    assert not asked
    assert not server.dedup.is_open


async def test_nobody_fetches_anothers_entry(server: Server) -> None:
    async with server.dedup:
        names = ["ann", "bob", "ann|k", "#", "-"]
        for at_, name in enumerate(names, 1):
            answer = await client(server.app, x_account=name).post("/orders", headers=key("k"))
            assert answer.headers["x-run"] == str(at_)
        for headers in ({}, {"x_account": ""}):
            stranger = await client(server.app, **headers).post("/orders", headers=key("k"))
            problem(stranger, "principal-required", 400)
    assert server.runs["orders"] == len(names)


async def test_a_key_injects_nothing(server: Server, redis_server: RedisServer) -> None:
    odd = ["a|b", "a\\|b", "a||1x2.0", "*", "{a}", "%0d%0aX", "$(x)", "';--", "k" * 255, "|" * 255]
    async with server.dedup:
        for at_, one in enumerate(odd, 1):
            escaped = one.replace("\\", "\\\\")
            assert (await server.post(sent=f'"{escaped}"')).headers["x-run"] == str(at_)
        http = client(server.app)
        for one in (b"a\r\nb", b"a\x00b", "é".encode()):
            answer = await http.post("/orders", headers=[(b"idempotency-key", one)])
            problem(answer, "key-malformed", 400)
    with redis_server.client() as raw:
        assert len(raw.keys()) == len(odd)  # type: ignore[arg-type]


# What the draft leaves open


async def test_lasting_answers_are_kept_passing_ones_released(server: Server) -> None:
    async with server.dedup:
        for path in ("/orders", "/redirect", "/gone", "/conflict", "/failing", "/raising"):
            for _ in range(2):
                await server.post(path)
    assert [server.runs[name] for name in ("orders", "redirect", "gone")] == [1, 1, 1]
    assert [server.runs[name] for name in ("conflict", "failing", "raising")] == [2, 2, 2]


async def test_cookies_are_not_kept(server: Server) -> None:
    async with server.dedup:
        assert "set-cookie" in (await server.post("/cookie")).headers
        assert "set-cookie" not in (await server.post("/cookie")).headers


async def test_a_stream_is_sent_once(server: Server) -> None:
    async with server.dedup:
        first, again = await server.post("/events"), await server.post("/events")
        assert first.headers["idempotency-stored"] == "false"
        assert problem(again, "response-not-stored", 409)["original_status"] == 200
        server.behind(unstored="release")
        for _ in range(2):
            assert (await server.post("/events", sent="l")).content == first.content


async def test_a_large_response_is_sent_once(server: Server) -> None:
    async with server.dedup:
        first, again = await server.post("/big"), await server.post("/big")
    assert len(first.content) == BIG
    assert problem(again, "response-not-stored", 409)["original_status"] == 201
    assert again.headers["location"] == first.headers["location"]


async def test_a_large_request_is_413(server: Server) -> None:
    large = b"x" * (1024 * 1024 + 1)
    async with server.dedup:
        problem(await server.post(content=large), "body-too-large", 413)
        assert (await server.post(content=large, sent=None)).status_code == 201
    assert server.runs["orders"] == 1


async def test_a_client_that_leaves_loses_nothing(server: Server) -> None:
    async with server.dedup:
        for on_disconnect, runs in (("finish", 1), ("cancel", 2)):
            server.behind(on_disconnect=on_disconnect)
            gate = server.desk.hold()
            call = Call(server.app, "/" + on_disconnect, ("idempotency-key", "k"), ("x-account", "ann"))
            task = call.start()
            await server.desk.started.wait()
            call.leave()
            if on_disconnect == "finish":
                gate.set()
            await task
            server.desk.gate = None
            again = await server.post("/" + on_disconnect)
            assert ("idempotency-replayed" in again.headers) == (on_disconnect == "finish")
            assert server.runs[on_disconnect] == runs
            assert server.desk.ended[on_disconnect] == 1


async def test_a_stream_that_is_cut_short_frees_its_key(server: Server) -> None:
    for kind, frees in (("text/event-stream", True), ("text/csv", False)):

        async def app(scope: Any, receive: Any, send: Any, kind: str = kind) -> None:
            server.runs[kind] += 1
            await receive()
            headers = [(b"content-type", kind.encode())]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": b"x" * BIG, "more_body": True})
            assert (await receive())["type"] == "http.disconnect"

        server.app = IdempotencyMiddleware(app, server.dedup, principal=by_header("x-account"))
        async with server.dedup:
            for _ in range(2):
                call = Call(server.app, f"/{kind}", ("idempotency-key", "k"), ("x-account", "ann"))
                task = call.start()
                call.leave()
                await task
        assert (server.runs[kind], call.status) == ((2, 200) if frees else (1, 409))


async def test_a_lost_lease_cancels_the_handler(server: Server) -> None:
    server.behind(lease=0.3)
    async with server.dedup:
        server.desk.hold()
        first = asyncio.ensure_future(server.post())
        await server.desk.started.wait()
        claim = claim_of(server.desk.scopes[0])
        assert claim is not None
        server.desk.gate = None
        await server.dedup.scoped("http").forget(claim.key)
        second = await server.post()
        problem(await first, "claim-lost", 409)
        assert (await server.post()).content == second.content
    assert (server.desk.cancelled["orders"], server.desk.ended["orders"]) == (1, 1)


async def test_a_store_that_is_down_is_503(desk: Desk) -> None:
    nowhere = "unix:///nowhere/redis.sock"
    for policy in (None, LocalLRU()):
        async with Dedup(nowhere, timeout=0.25, on_unavailable=policy) as dedup:
            http = client(
                IdempotencyMiddleware(at(desk, app_of("starlette")), dedup, principal=by_header("x"))
            )
            answer = await http.post("/orders", headers={**key("k"), "x": "ann"})
            if policy is None:
                problem(answer, "unavailable", 503)
                assert answer.headers["retry-after"]
                assert not desk.runs
            else:
                assert (answer.status_code, answer.headers["idempotency-degraded"]) == (201, "true")


async def test_a_response_that_cannot_be_stored_is_sent(desk: Desk) -> None:
    redis = RedisServer().start()
    try:
        server = Server(redis.url, desk, timeout=0.5)
        async with server.dedup:
            gate = desk.hold()
            first = asyncio.ensure_future(server.post())
            await desk.started.wait()
            redis.kill()
            gate.set()
            answer = await first
        assert (answer.status_code, answer.headers["idempotency-stored"]) == (201, "false")
    finally:
        redis.stop()


async def test_background_work_comes_after_storing(server: Server) -> None:
    async with server.dedup:
        await server.post()
        assert server.desk.after["orders"] == 1
        await server.post()
        assert server.desk.after["orders"] == 1


async def test_a_handler_may_settle_by_hand(server: Server) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        claim = claim_of(scope)
        assert claim is not None
        await (claim.release() if scope["path"] == "/release" else claim.complete())
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"done"})

    server.app = IdempotencyMiddleware(app, server.dedup, principal=by_header("x-account"))
    async with server.dedup:
        assert [(await server.post("/release")).content for _ in range(2)] == [b"done", b"done"]
        assert (await server.post("/complete")).content == b"done"
        problem(await server.post("/complete"), "response-not-stored", 409)
