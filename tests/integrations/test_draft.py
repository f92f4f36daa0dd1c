"""The draft's rules (fastdedup/web/README.md) and our own choices (docs/http-rules.md): a test for each row.

Each runs on every face of the middleware, those of ASGI, aiohttp and WSGI, most of them on both kinds of store.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

import fastdedup.web
from fastdedup import Dedup, LocalLRU, fingerprint
from fastdedup.integrations.asgi import UUID, IdempotencyMiddleware, Route, by_header, claim_of
from fastdedup.web.inspection import place_of_request, principal_of_header

from ..servers import RedisServer
from ..waiting import wait_until
from .conftest import MakeShop
from .desk import BIG, Desk, client, key, problem
from .live import Call
from .middleware_shop import ASGI, Shop, of_asgi, on_one_of_each, on_redis

PAGES = [
    Path(fastdedup.web.__file__).with_name("README.md"),
    Path(__file__).parents[2] / "docs" / "http-rules.md",
]
TABLE = re.compile(r"^\| .* \| test \|\n\|[-|]+\|\n((?:\|.*\n)+)", re.MULTILINE)


def test_each_row_of_the_tables_names_a_test_and_each_test_a_row() -> None:
    rows = [row for page in PAGES for table in TABLE.findall(page.read_text()) for row in table.splitlines()]
    named = [row.split(" | ")[-1].strip("` |") for row in rows]
    assert len(set(named)) == len(named)
    here = {name for name in globals() if name.startswith("test_")}
    assert here - {"test_each_row_of_the_tables_names_a_test_and_each_test_a_row"} == set(named)


# 2.1


async def test_the_value_is_a_string_of_rfc_8941(shop: Shop) -> None:
    for sent in ('"a\\"b c"', '"a\\"b c";v=1', '  "a\\"b c"  '):
        assert (await shop.post(sent=sent)).headers["x-run"] == "1"
    for sent in ('"plain"', "plain"):
        assert (await shop.post(sent=sent)).headers["x-run"] == "2"


NO_STRINGS = ["", '"a', "a b", '"k";=1', "a,b"]
"""`unit/test_web_header.py` has all."""


@on_redis  # which is not asked
@pytest.mark.parametrize("sent", [*NO_STRINGS, "k" * 256, "\xff", "€"])
async def test_what_is_no_string_is_refused(shop: Shop, sent: str) -> None:
    http = client(shop.app, x_account="ann")
    answer = await http.post("/orders", headers=[(b"idempotency-key", sent.encode())])
    problem(answer, "key-malformed", 400)
    assert not shop.runs


async def test_two_keys_are_refused(shop: Shop) -> None:
    http = client(shop.app, x_account="ann")
    twice = await http.post("/orders", headers=[("idempotency-key", "a"), ("idempotency-key", "a")])
    detail = problem(twice, "key-malformed", 400)["detail"]
    assert ("send one" if shop.is_async else "send a String") in detail  # WSGI joins them
    assert not shop.runs


# 2.2


@on_one_of_each
async def test_a_key_is_not_reused_with_another_payload(shop: Shop) -> None:
    await shop.post(content=b"1")
    problem(await shop.post(content=b"2"), "key-reused", 422)
    assert (await shop.post("/payments", content=b"2")).status_code == 201
    assert shop.runs["orders"] == 1


async def test_a_uuid_may_be_insisted_upon(make_shop: MakeShop) -> None:
    async with make_shop(key_format=UUID) as shop:
        problem(await shop.post(sent="k"), "key-malformed", 400)
        uuid = "8e03978e-40d5-43e8-bc93-6894a57f9324"
        assert [(await shop.post(sent=sent)).status_code for sent in (uuid, f'"{uuid}"')] == [201, 201]
    assert shop.runs["orders"] == 1


# 2.3


@on_one_of_each
async def test_keys_expire(make_shop: MakeShop) -> None:
    async with make_shop(ttl=0.05, failure_ttl=0.05) as shop:
        for path, status in (("/orders", 201), ("/gone", 404)):
            await shop.post(path)

            async def runs_anew(path: str = path, status: int = status) -> bool:
                answer = await shop.post(path)
                assert answer.status_code == status
                return "idempotency-replayed" not in answer.headers

            await wait_until(runs_anew, description="the key has expired")


@on_one_of_each
async def test_the_expiration_is_published(make_shop: MakeShop) -> None:
    async with make_shop(ttl=600.0, failure_ttl=60.0) as shop:
        (operation,) = (await shop.request("GET", "/idempotency")).json()["operations"]
    assert (operation["lifetime_seconds"], operation["failure_lifetime_seconds"]) == (600.0, 60.0)


# 2.4


async def test_the_fingerprint_covers_the_whole_request(shop: Shop) -> None:
    await shop.post("/orders?a=1", content=b"x")
    others = ("/orders?a=1", b"y"), ("/orders?a=1", b""), ("/orders?a=2", b"x"), ("/orders", b"x")
    for path, content in others:
        problem(await shop.post(path, content=content), "key-reused", 422)
    uploads = [await shop.post("/upload", files={"file": ("a.bin", bytes(5000))}) for _ in range(2)]
    problem(await shop.post("/upload", files={"file": ("a.bin", bytes(4999))}), "key-reused", 422)
    assert len({upload.request.headers["content-type"] for upload in uploads}) == 2, "another boundary each"
    assert uploads[0].json()["size"] == 5000
    assert uploads[1].content == uploads[0].content
    assert (shop.runs["orders"], shop.runs["upload"]) == (1, 1)


async def test_the_fingerprint_may_be_of_selected_elements(make_shop: MakeShop) -> None:
    def selected(request: Any) -> Any:
        return fingerprint([request.body[:3].decode(), request.header("x-amount")])

    async with make_shop(fingerprint=selected) as shop:
        await shop.post(content=b"abc 1", headers={"x-amount": "5"})
        again = await shop.post(content=b"abc 2", headers={"x-amount": "5"})
        assert again.headers["idempotency-replayed"] == "true"
        problem(await shop.post(content=b"abd 1", headers={"x-amount": "5"}), "key-reused", 422)
        problem(await shop.post(content=b"abc 1", headers={"x-amount": "6"}), "key-reused", 422)


# 2.5


@on_one_of_each
async def test_the_specification_is_published(shop: Shop) -> None:
    facts = (await shop.request("GET", "/idempotency")).json()
    page = await shop.request("GET", "/idempotency", headers={"accept": "text/html"})
    assert facts["header"] == "Idempotency-Key"
    assert {"key", "scope", "specification", "operations", "errors"} <= set(facts)
    assert {"key_format", "replayed_statuses", "in_flight", "largest_request_bytes"} <= set(
        facts["operations"][0]
    )
    assert page.headers["content-type"].startswith("text/html")
    assert "Idempotency-Key" in page.text


@on_one_of_each
async def test_the_key_is_taken_from_the_header(shop: Shop) -> None:
    for _ in range(2):
        await shop.post("/orders?Idempotency-Key=k", sent=None, json={"Idempotency-Key": "k"})
    assert shop.runs["orders"] == 2


@on_one_of_each
async def test_the_lifecycle_is_the_servers(shop: Shop, redis_server: RedisServer) -> None:
    go_on, first = await shop.held()
    with redis_server.client() as raw:
        (record,) = raw.keys("t:http:*")
        assert raw.pttl(record) > 0  # type: ignore[operator]
        go_on.set()
        await first
        assert 0 < raw.pttl(record) <= 86_400_000  # type: ignore[operator]
    await shop.post("/failing", sent="f")
    assert (await shop.post("/failing", sent="f")).headers["x-run"] == "2"


# 2.6


@on_one_of_each
async def test_the_first_request_is_processed_as_usual(shop: Shop) -> None:
    with_key, without = await shop.post(content=b"x"), await shop.post(sent=None, content=b"x")
    assert with_key.status_code == without.status_code
    assert set(with_key.headers) == set(without.headers)
    assert with_key.json()["sum"] == without.json()["sum"]


async def test_a_duplicate_gets_the_first_result(shop: Shop) -> None:
    for path in ("/orders", "/gone"):
        first, again = await shop.post(path, content=b"1"), await shop.post(path, '"k"', content=b"1")
        assert again.headers.pop("idempotency-replayed") == "true"
        assert (again.status_code, again.content) == (first.status_code, first.content)
        assert again.headers.multi_items() == first.headers.multi_items()
    assert (shop.runs["orders"], shop.runs["gone"]) == (1, 1)


async def test_a_duplicate_in_flight_is_a_conflict(shop: Shop) -> None:
    go_on, first = await shop.held()
    busy = await shop.post()
    problem(busy, "in-progress", 409)
    assert busy.headers["retry-after"] == "1"
    problem(await shop.post(content=b"other"), "key-reused", 422)
    shop.behind(wait=30.0)
    waiting = asyncio.ensure_future(shop.post())
    go_on.set()
    assert (await waiting).content == (await first).content
    assert (await shop.post()).content == (await first).content
    assert shop.runs["orders"] == 1


# 2.7

LINK = '</idempotency>; rel="describedby"'


async def test_a_missing_key_is_400_with_a_link(make_shop: MakeShop) -> None:
    async with make_shop(routes=[Route("/orders", required=True), "/*"]) as shop:
        missing = await shop.post(sent=None)
        problem(missing, "key-missing", 400)
        assert missing.headers["link"] == LINK
        assert (await shop.post("/payments", sent=None)).status_code == 201
    assert not shop.runs["orders"]


@on_one_of_each
async def test_a_reused_key_is_422_with_a_link(shop: Shop) -> None:
    _, reused = await shop.post(content=b"1"), await shop.post(content=b"2")
    problem(reused, "key-reused", 422)
    assert reused.headers["link"] == LINK


@on_one_of_each
async def test_still_in_process_is_409_with_a_problem(make_shop: MakeShop) -> None:
    async with make_shop(retry_after=3.0) as shop:
        go_on, first = await shop.held()
        busy = await shop.post()
        go_on.set()
        assert (await first).status_code == 201
    assert "still being processed" in problem(busy, "in-progress", 409)["detail"]
    assert busy.headers["retry-after"] == "3"
    assert busy.headers["link"] == LINK


@on_redis
@of_asgi  # Below a mount of WSGI: see test_wsgi.py
async def test_the_link_is_a_header(make_shop: MakeShop) -> None:
    async with make_shop(required=True) as shop:
        call = Call(shop.app, "/api/orders", root_path="/api")
        await call.start()
        assert call.headers[b"link"] == b'</api/idempotency>; rel="describedby"'
        shop.behind(required=True, docs="https://example.com/keys")
        missing = await shop.post(sent=None)
        assert missing.headers["link"] == '<https://example.com/keys>; rel="describedby"'


@on_one_of_each
async def test_an_uncorrected_request_fails_again(make_shop: MakeShop) -> None:
    async with make_shop(required=True) as shop:
        for _ in range(2):
            problem(await shop.post(sent=None), "key-missing", 400)
        await shop.post(content=b"1")
        for _ in range(2):
            problem(await shop.post(content=b"2"), "key-reused", 422)
        assert (await shop.post(content=b"2", sent="another")).status_code == 201


# 5


@on_one_of_each
async def test_the_published_format_is_checked_first(make_shop: MakeShop) -> None:
    """Before the principal is asked, and before anything is asked of the store, which is not even open here."""
    asked: list[Any] = []
    async with make_shop(key_format="[a-z]{4}", principal=asked.append) as shop:
        problem(await shop.post(sent="a:b"), "key-malformed", 400)
        (operation,) = (await shop.request("GET", "/idempotency", None)).json()["operations"]
        assert operation["key_format"] == "[a-z]{4}"
        assert not asked
        assert not (shop.is_async and shop.dedup.is_open)


async def test_nobody_fetches_anothers_entry(shop: Shop) -> None:
    names = ["ann", "bob", "ann|k", "#", "-"]
    for _ in range(2):
        answers = [await shop.post(account=name) for name in names]
        assert [answer.headers["x-run"] for answer in answers] == ["1", "2", "3", "4", "5"]
    for headers in ({}, {"x_account": ""}):
        stranger = await client(shop.app, **headers).post("/orders", headers=key("k"))
        problem(stranger, "principal-required", 400)
    assert shop.runs["orders"] == len(names)


@on_one_of_each
async def test_a_key_injects_nothing(shop: Shop, redis_server: RedisServer) -> None:
    odd = ["a|b", "a\\|b", "a||1x2.0", "*", "{a}", "%0d%0aX", "$(x)", "';--", "k" * 255, "|" * 255]
    for run, one in enumerate(odd, 1):
        escaped = one.replace("\\", "\\\\")
        assert (await shop.post(sent=f'"{escaped}"')).headers["x-run"] == str(run)
    if shop.is_async:  # what checks that WSGI is kept to refuses those of its own
        http = client(shop.app, x_account="ann")
        for raw_key in (b"a\r\nb", b"a\x00b", "é".encode()):
            answer = await http.post("/orders", headers=[(b"idempotency-key", raw_key)])
            problem(answer, "key-malformed", 400)
    with redis_server.client() as raw:
        assert len(raw.keys()) == len(odd)  # type: ignore[arg-type]


# What the draft leaves open


LASTING = {"orders": 201, "redirect": 303, "empty": 204, "gone": 404}
PASSING = {"conflict": 409, "failing": 500, "raising": 500}


@pytest.mark.parametrize(("name", "status"), (LASTING | PASSING).items())
async def test_lasting_answers_are_kept_passing_ones_released(shop: Shop, name: str, status: int) -> None:
    kept = name in LASTING
    first, again = await shop.post(f"/{name}"), await shop.post(f"/{name}")
    assert first.status_code == again.status_code == status
    assert shop.runs[name] == (1 if kept else 2)
    assert again.headers.get("idempotency-replayed") == ("true" if kept else None)
    assert again.headers.get("location") == first.headers.get("location")
    if kept:
        assert again.content == first.content


async def test_cookies_are_not_kept(shop: Shop) -> None:
    first, again = await shop.post("/cookie"), await shop.post("/cookie")
    assert len(first.headers.get_list("set-cookie")) == 2
    assert "set-cookie" not in again.headers
    assert again.headers["x-run"] == "1"
    shop.behind(drop_headers=())
    first, again = [await shop.post("/cookie", "another") for _ in range(2)]
    assert len(first.headers.get_list("set-cookie")) == 2
    assert again.headers.get_list("set-cookie") == first.headers.get_list("set-cookie")


async def _check_that_it_is_sent_once(shop: Shop, path: str, status: int, whole: bytes) -> None:
    """By default its duplicates are refused; by rule it is released, and runs again."""
    async with shop:
        first, again = await shop.post(path), await shop.post(path)
        assert (first.status_code, first.content) == (status, whole)
        assert first.headers["idempotency-stored"] == "false"
        assert problem(again, "response-not-stored", 409)["original_status"] == status
        assert again.headers.get("location") == first.headers.get("location")
        assert shop.runs[path[1:]] == 1
        shop.behind(unstored="release")
        for _ in range(2):
            assert (await shop.post(path, sent="another")).content == whole
        assert shop.runs[path[1:]] == 3
        without = await shop.post(path, sent=None)
        assert (without.content, "idempotency-stored" in without.headers) == (whole, False)


async def test_a_stream_is_sent_once(shop: Shop) -> None:
    await _check_that_it_is_sent_once(shop, "/events", 200, b"data: 0\n\ndata: 1\n\ndata: 2\n\n")


async def test_a_large_response_is_sent_once(shop: Shop) -> None:
    await _check_that_it_is_sent_once(shop, "/big", 201, b"x" * BIG)


@on_one_of_each
async def test_a_large_request_is_413(shop: Shop) -> None:
    large = b"x" * (1024 * 1024 + 1)
    problem(await shop.post(content=large), "body-too-large", 413)
    assert (await shop.post(content=large, sent=None)).status_code == 201
    assert shop.runs["orders"] == 1


@of_asgi  # WSGI does not tell that a client left
@pytest.mark.parametrize(("on_disconnect", "runs"), [("finish", 1), ("cancel", 2)])
async def test_a_client_that_leaves_loses_nothing(make_shop: MakeShop, on_disconnect: str, runs: int) -> None:
    async with make_shop(on_disconnect=on_disconnect) as shop:
        gate = shop.desk.hold()
        call = Call(shop.app, "/orders", ("idempotency-key", "k"), ("x-account", "ann"))
        task = call.start()
        await shop.desk.started.wait()
        call.leave()
        if on_disconnect == "finish":
            gate.set()
        await task
        shop.desk.gate = None
        again = await shop.post()
    assert ("idempotency-replayed" in again.headers) == (on_disconnect == "finish")
    assert (shop.runs["orders"], shop.desk.ended["orders"]) == (runs, 1)


@pytest.mark.parametrize(("kind", "runs", "status"), [("text/event-stream", 2, 200), ("text/csv", 1, 409)])
async def test_a_stream_that_is_cut_short_frees_its_key(url: str, kind: str, runs: int, status: int) -> None:
    run = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        run.append(1)
        await receive()
        headers = [(b"content-type", kind.encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"x" * BIG, "more_body": True})
        assert (await receive())["type"] == "http.disconnect"

    async with Dedup(url, namespace="t", timeout=5.0) as dedup:
        guarded = IdempotencyMiddleware(app, dedup, principal=by_header("x-account"))
        for _ in range(2):
            call = Call(guarded, "/", ("idempotency-key", "k"), ("x-account", "ann"))
            task = call.start()
            call.leave()
            await task
    assert (len(run), call.status) == (runs, status)


@pytest.mark.parametrize("face", [*ASGI, "aiohttp"])  # A thread is not cancelled: see test_wsgi.py
async def test_a_lost_lease_cancels_the_handler(make_shop: MakeShop) -> None:
    async with make_shop(lease=0.3) as shop:
        _, first = await shop.held()
        shop.desk.gate = None
        await shop.forget()
        second = await shop.post()
        lost = await first
        problem(lost, "claim-lost", 409)
        assert shop.claim().lost
        assert (await shop.post()).content == second.content
    assert lost.headers["retry-after"] == "1"
    assert lost.headers["link"] == LINK
    assert second.json()["run"] == 2
    assert (shop.desk.cancelled["orders"], shop.desk.ended["orders"]) == (1, 1)


@pytest.mark.parametrize("policy", [None, LocalLRU()])
async def test_a_store_that_is_down_is_503(face: str, desk: Desk, policy: Any) -> None:
    gate = {"timeout": 0.25, "on_unavailable": policy}
    async with Shop(face, "unix:///nowhere/redis.sock", desk, gate=gate) as shop:
        answer = await shop.post()
    if policy is None:
        problem(answer, "unavailable", 503)
        assert answer.headers["retry-after"]
        assert not desk.runs
    else:
        assert (answer.status_code, answer.headers["idempotency-degraded"]) == (201, "true")


@pytest.mark.usefixtures("short_hold")
@pytest.mark.parametrize("face", ["starlette", "wsgi-bare"])
async def test_a_response_that_cannot_be_stored_is_sent(
    face: str, desk: Desk, own_redis: RedisServer
) -> None:
    async with Shop(face, own_redis.url, desk, gate={"timeout": 0.5}) as shop:
        go_on, first = await shop.held()
        own_redis.kill()
        go_on.set()
        answer = await first
    assert (answer.status_code, answer.headers["idempotency-stored"]) == (201, "false")


@pytest.mark.parametrize("face", ["starlette", "fastapi"])
async def test_background_work_comes_after_storing(shop: Shop) -> None:
    for _ in range(2):
        await shop.post()
        assert shop.desk.after["orders"] == 1


@pytest.mark.parametrize("release", [True, False])
async def test_a_handler_may_settle_by_hand(url: str, release: bool) -> None:
    """Released: a retry runs again. Completed: duplicates are told that it was, but not with what."""
    runs = 0

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal runs
        runs += 1
        claim = claim_of(scope)
        assert claim is not None
        await (claim.release() if release else claim.complete())
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await send({"type": "http.response.body", "body": b"done"})

    async with Dedup(url, namespace="t", timeout=5.0) as dedup:
        http = client(IdempotencyMiddleware(app, dedup, principal=by_header("x-account")), x_account="ann")
        first, again = [await http.post("/", headers=key("k")) for _ in range(2)]
    assert (first.status_code, first.content) == (201, b"done")
    assert first.headers["idempotency-stored"] == "false"
    if release:
        assert (again.status_code, runs) == (201, 2)
    else:
        problem(again, "response-not-stored", 409)
        assert runs == 1


@pytest.mark.parametrize("settle", ["complete", "fail"])
async def test_a_person_may_settle_with_any_value(url: str, settle: str) -> None:
    """The work is done, and no response is stored: a retry was told 500, and to take another namespace."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("the work was done")

    async with Dedup(url, namespace="t", timeout=5.0) as dedup:
        place = place_of_request("POST", "/", principal_of_header("ann"), "k")
        claim = await dedup.scoped(place.scope_in("t")).claim(place.key)
        await getattr(claim, settle)({"payment": 7})
        http = client(IdempotencyMiddleware(app, dedup, principal=by_header("x-account")), x_account="ann")
        problem(await http.post("/", headers=key("k")), "response-not-stored", 409)
