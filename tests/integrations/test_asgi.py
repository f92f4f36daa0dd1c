"""What a client sees of `IdempotencyMiddleware`: the same under Starlette, FastAPI, Litestar and Django."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from fastdedup import Dedup
from fastdedup.integrations.asgi import (
    UUID,
    IdempotencyMiddleware,
    Route,
    by_header,
    claim_of,
    everyone,
)
from fastdedup.integrations.lifespan import ASGIApp
from fastdedup.web.request import Request

from .conftest import MakeGate
from .desk import BIG, Desk, at, client

PROBLEM = "urn:fastdedup:problem:"


def key(value: str) -> dict[str, str]:
    return {"idempotency-key": value}


def problem(response: httpx.Response, name: str, status: int) -> dict[str, Any]:
    """The body of a problem, once it is seen to be this one."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = response.json()
    assert (body["type"], body["status"]) == (PROBLEM + name, status)
    assert body["title"]
    assert body["detail"]
    return body


class Shop:
    """The example application behind the middleware, with two customers."""

    def __init__(self, app: ASGIApp, dedup: Dedup, desk: Desk, **settings: Any) -> None:
        self.dedup = dedup
        self.desk = desk
        settings = {"principal": by_header("x-account"), "docs": "/idempotency", **settings}
        self.app = IdempotencyMiddleware(at(desk, app), dedup, **settings)
        self.ann = client(self.app, x_account="ann")
        self.bob = client(self.app, x_account="bob")

    async def __aenter__(self) -> Shop:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.ann.aclose()
        await self.bob.aclose()
        await self.dedup.aclose()


# One key, one run


async def test_a_retry_gets_the_first_response_byte_for_byte(
    app: ASGIApp, make_gate: MakeGate, desk: Desk
) -> None:
    async with Shop(app, make_gate(), desk) as shop:
        first = await shop.ann.post("/orders", content=b'{"sku": 1}', headers=key("k"))
        again = await shop.ann.post("/orders", content=b'{"sku": 1}', headers=key('"k"'))
    assert first.status_code == again.status_code == 201
    assert first.json()["run"] == 1
    assert first.json()["size"] == len(b'{"sku": 1}')
    assert again.content == first.content
    assert again.headers.pop("idempotency-replayed") == "true"
    assert again.headers.multi_items() == first.headers.multi_items()
    assert desk.runs["orders"] == 1


async def test_requests_without_a_key_or_of_other_methods_run_each_time(
    app: ASGIApp, make_gate: MakeGate, desk: Desk
) -> None:
    async with Shop(app, make_gate(), desk) as shop:
        for _ in range(2):
            await shop.ann.post("/orders")
            await shop.ann.get("/orders", headers=key("k"))
            answer = await shop.ann.put("/orders", headers=key("k"))
            assert "idempotency-replayed" not in answer.headers
    assert desk.runs["orders"] == 6


async def test_one_tenant_never_sees_anothers_result(app: ASGIApp, make_gate: MakeGate, desk: Desk) -> None:
    async with Shop(app, make_gate(), desk) as shop:
        ann = await shop.ann.post("/orders", headers=key("k"))
        bob = await shop.bob.post("/orders", headers=key("k"))
        nobody = await client(shop.app).post("/orders", headers=key("k"))
        assert [one.headers["x-run"] for one in (ann, bob)] == ["1", "2"]
        assert nobody.json()["type"].endswith(":principal-required")
        assert (await shop.ann.post("/orders", headers=key("k"))).headers["x-run"] == "1"
        assert (await shop.bob.post("/orders", headers=key("k"))).headers["x-run"] == "2"


async def test_methods_and_routes_have_keys_of_their_own(
    app: ASGIApp, make_gate: MakeGate, desk: Desk
) -> None:
    async with Shop(app, make_gate(), desk, methods=["POST", "PATCH"]) as shop:
        answers = [
            await shop.ann.post("/orders", headers=key("k")),
            await shop.ann.patch("/orders", headers=key("k")),
            await shop.ann.post("/payments", headers=key("k")),
        ]
    assert all("idempotency-replayed" not in answer.headers for answer in answers)
    assert (desk.runs["orders"], desk.runs["payments"]) == (2, 1)


@pytest.mark.parametrize("change", ["body", "query", "empty"])
async def test_another_payload_under_a_key_is_422(
    app: ASGIApp, make_gate: MakeGate, desk: Desk, change: str
) -> None:
    async with Shop(app, make_gate(), desk) as shop:
        await shop.ann.post("/orders?a=1", content=b"x", headers=key("k"))
        address = "/orders?a=2" if change == "query" else "/orders?a=1"
        content = {"body": b"y", "query": b"x", "empty": b""}[change]
        other = await shop.ann.post(address, content=content, headers=key("k"))
    problem(other, "key-reused", 422)
    assert other.headers["link"] == '</idempotency>; rel="describedby"'
    assert desk.runs["orders"] == 1


# What is kept, and what is not


@pytest.mark.parametrize(
    ("name", "status", "kept"),
    [
        ("orders", 201, True),
        ("redirect", 303, True),
        ("empty", 204, True),
        ("gone", 404, True),
        ("conflict", 409, False),
        ("failing", 500, False),
        ("raising", 500, False),
    ],
)
async def test_successes_and_lasting_refusals_are_kept_failures_run_again(
    app: ASGIApp, make_gate: MakeGate, desk: Desk, name: str, status: int, kept: bool
) -> None:
    async with Shop(app, make_gate(), desk) as shop:
        first = await shop.ann.post(f"/{name}", headers=key("k"))
        again = await shop.ann.post(f"/{name}", headers=key("k"))
    assert first.status_code == again.status_code == status
    assert desk.runs[name] == (1 if kept else 2)
    assert again.headers.get("idempotency-replayed") == ("true" if kept else None)
    assert again.headers.get("location") == first.headers.get("location")
    if kept:
        assert again.content == first.content


async def test_a_rule_may_keep_other_statuses(app: ASGIApp, make_gate: MakeGate, desk: Desk) -> None:
    async with Shop(app, make_gate(), desk, keep=[500]) as shop:
        for _ in range(2):
            await shop.ann.post("/failing", headers=key("k"))
            await shop.ann.post("/orders", headers=key("k"))
    assert (desk.runs["failing"], desk.runs["orders"]) == (1, 2)


async def test_cookies_are_not_replayed(app: ASGIApp, make_gate: MakeGate, desk: Desk) -> None:
    async with Shop(app, make_gate(), desk) as shop:
        first = await shop.ann.post("/cookie", headers=key("k"))
        shop.ann.cookies.clear()
        again = await shop.ann.post("/cookie", headers=key("k"))
    assert len(first.headers.get_list("set-cookie")) == 2
    assert "set-cookie" not in again.headers


async def test_cookies_are_replayed_where_asked_for(app: ASGIApp, make_gate: MakeGate, desk: Desk) -> None:
    async with Shop(app, make_gate(), desk, drop_headers=()) as shop:
        first = await shop.ann.post("/cookie", headers=key("k"))
        shop.ann.cookies.clear()
        again = await shop.ann.post("/cookie", headers=key("k"))
    assert again.headers.get_list("set-cookie") == first.headers.get_list("set-cookie")


async def test_only_allowed_headers_are_replayed(app: ASGIApp, make_gate: MakeGate, desk: Desk) -> None:
    async with Shop(app, make_gate(), desk, keep_headers=["X-Run", "Content-Type"]) as shop:
        await shop.ann.post("/redirect", headers=key("k"))
        again = await shop.ann.post("/redirect", headers=key("k"))
    assert again.headers["x-run"] == "1"
    assert "location" not in again.headers


# Streams, large bodies, uploads


@pytest.mark.parametrize("name", ["events", "big"])
async def test_a_stream_or_large_response_is_sent_once_and_its_duplicates_are_refused(
    app: ASGIApp, make_gate: MakeGate, desk: Desk, name: str
) -> None:
    async with Shop(app, make_gate(), desk) as shop:
        first = await shop.ann.post(f"/{name}", headers=key("k"))
        again = await shop.ann.post(f"/{name}", headers=key("k"))
    assert first.headers["idempotency-stored"] == "false"
    whole = {"events": b"data: 0\n\ndata: 1\n\ndata: 2\n\n", "big": b"x" * BIG}
    assert first.content == whole[name]
    body = problem(again, "response-not-stored", 409)
    assert body["original_status"] == first.status_code
    assert again.headers.get("location") == first.headers.get("location")
    assert desk.runs[name] == 1


@pytest.mark.parametrize("name", ["events", "big"])
async def test_or_by_rule_they_are_released_and_run_again(
    app: ASGIApp, make_gate: MakeGate, desk: Desk, name: str
) -> None:
    async with Shop(app, make_gate(), desk, unstored="release") as shop:
        first = await shop.ann.post(f"/{name}", headers=key("k"))
        again = await shop.ann.post(f"/{name}", headers=key("k"))
    assert again.content == first.content
    assert desk.runs[name] == 2


async def test_a_short_streamed_response_is_replayed_whole(
    app: ASGIApp, make_gate: MakeGate, desk: Desk
) -> None:
    async with Shop(app, make_gate(), desk) as shop:
        first = await shop.ann.post("/chunks", headers=key("k"))
        again = await shop.ann.post("/chunks", headers=key("k"))
    assert first.content == again.content == b"one,two,three"
    assert desk.runs["chunks"] == 1


async def test_a_response_as_large_as_the_limit_is_kept_one_byte_more_is_not(
    app: ASGIApp, make_gate: MakeGate, desk: Desk
) -> None:
    async with Shop(app, make_gate(), desk, routes=[Route("/big", max_response=BIG), "/*"]) as shop:
        assert "idempotency-stored" not in (await shop.ann.post("/big", headers=key("k"))).headers
        assert len((await shop.ann.post("/big", headers=key("k"))).content) == BIG
    assert desk.runs["big"] == 1


@pytest.mark.parametrize(("size", "status"), [(1000, 201), (1001, 413)])
async def test_a_request_body_over_the_limit_is_413_and_nothing_runs(
    app: ASGIApp, make_gate: MakeGate, desk: Desk, size: int, status: int
) -> None:
    async with Shop(app, make_gate(), desk, max_request=1000) as shop:
        answer = await shop.ann.post("/orders", content=b"x" * size, headers=key("k"))
        assert answer.status_code == status
        if status == 413:
            assert "1000 bytes" in problem(answer, "body-too-large", 413)["detail"]
        assert desk.runs["orders"] == (status == 201)
        free = await shop.ann.post("/orders", content=b"x" * 5000)  # without a key there is no limit
        assert free.json()["size"] == 5000


async def test_an_upload_encoded_again_with_another_boundary_is_the_same_request(
    app: ASGIApp, make_gate: MakeGate, desk: Desk
) -> None:
    async with Shop(app, make_gate(), desk) as shop:
        answers = [
            await shop.ann.post("/upload", files={"file": ("a.bin", bytes(5000))}, headers=key("k"))
            for _ in range(2)
        ]
        other = await shop.ann.post("/upload", files={"file": ("a.bin", bytes(4999))}, headers=key("k"))
    assert answers[0].request.headers["content-type"] != answers[1].request.headers["content-type"]
    assert answers[0].json()["size"] == 5000
    assert answers[1].content == answers[0].content
    problem(other, "key-reused", 422)
    assert desk.runs["upload"] == 1


# The header


async def test_a_missing_key_is_400_only_where_one_is_required(
    app: ASGIApp, make_gate: MakeGate, desk: Desk
) -> None:
    async with Shop(app, make_gate(), desk, routes=[Route("/orders", required=True), "/*"]) as shop:
        answer = await shop.ann.post("/orders")
        problem(answer, "key-missing", 400)
        assert "describedby" in answer.headers["link"]
        assert (await shop.ann.post("/payments")).status_code == 201
    assert desk.runs["orders"] == 0


@pytest.mark.parametrize("bad", ["", '"', "a,b", '"a", "b"', "k" * 256, "é", '"k";=1', "two words"])
async def test_a_malformed_key_is_400(app: ASGIApp, make_gate: MakeGate, desk: Desk, bad: str) -> None:
    async with Shop(app, make_gate(), desk) as shop:
        answer = await shop.ann.post("/orders", headers=[(b"idempotency-key", bad.encode())])
    problem(answer, "key-malformed", 400)
    assert desk.runs["orders"] == 0


async def test_two_key_headers_are_400_even_when_they_agree(
    app: ASGIApp, make_gate: MakeGate, desk: Desk
) -> None:
    async with Shop(app, make_gate(), desk) as shop:
        answer = await shop.ann.post("/orders", headers=[("idempotency-key", "k"), ("idempotency-key", "k")])
    assert "send one" in problem(answer, "key-malformed", 400)["detail"]


async def test_a_key_that_has_not_the_published_format_is_400(
    app: ASGIApp, make_gate: MakeGate, desk: Desk
) -> None:
    async with Shop(app, make_gate(), desk, key_format=UUID) as shop:
        problem(await shop.ann.post("/orders", headers=key("k")), "key-malformed", 400)
        good = await shop.ann.post("/orders", headers=key('"8e03978e-40d5-43e8-bc93-6894a57f9324"'))
    assert good.status_code == 201


# In flight


async def test_a_duplicate_in_flight_is_409_with_retry_after(
    app: ASGIApp, make_gate: MakeGate, desk: Desk
) -> None:
    async with Shop(app, make_gate(), desk, retry_after=3.0) as shop:
        gate = desk.hold()
        first = asyncio.ensure_future(shop.ann.post("/orders", headers=key("k")))
        await desk.started.wait()
        duplicate = await shop.ann.post("/orders", headers=key("k"))
        problem(duplicate, "in-progress", 409)
        assert duplicate.headers["retry-after"] == "3"
        problem(await shop.ann.post("/orders", content=b"other", headers=key("k")), "key-reused", 422)
        gate.set()
        assert (await first).status_code == 201
        assert (await shop.ann.post("/orders", headers=key("k"))).content == (await first).content
    assert desk.runs["orders"] == 1


async def test_with_wait_a_crowd_of_duplicates_gets_the_first_response(
    app: ASGIApp, make_gate: MakeGate, desk: Desk
) -> None:
    async with Shop(app, make_gate(), desk, wait=30.0) as shop:
        gate = desk.hold()
        first = asyncio.ensure_future(shop.ann.post("/orders", headers=key("k")))
        await desk.started.wait()
        crowd = [asyncio.ensure_future(shop.ann.post("/orders", headers=key("k"))) for _ in range(10)]
        gate.set()
        answers = await asyncio.gather(first, *crowd)
    assert len({answer.content for answer in answers}) == 1
    assert sum("idempotency-replayed" in answer.headers for answer in answers) == 10
    assert desk.runs["orders"] == 1


async def test_the_handler_finds_its_claim_in_the_scope(
    app: ASGIApp, make_gate: MakeGate, desk: Desk
) -> None:
    async with Shop(app, make_gate(), desk) as shop:
        await shop.ann.post("/failing", headers=key("k"))
        await shop.ann.post("/failing", headers=key("k"))
        await shop.ann.post("/failing")
    claims = [claim_of(scope) for scope in desk.scopes]
    assert [claim.attempt for claim in claims if claim is not None] == [1, 2]
    assert 0 < claims[0].fence < claims[1].fence  # type: ignore[union-attr]
    assert claims[2] is None


async def test_handlers_in_threads_are_run_once_as_well(
    app: ASGIApp, make_gate: MakeGate, desk: Desk
) -> None:
    async with Shop(app, make_gate(), desk) as shop:
        first = await shop.ann.post("/sync/orders", headers=key("k"))
        again = await shop.ann.post("/sync/orders", headers=key("k"))
    assert first.status_code == 201
    assert again.content == first.content
    assert desk.runs["orders"] == 1


# Principals, fingerprints


async def test_a_principal_may_be_found_out_asynchronously_from_what_others_put_into_the_scope(
    app: ASGIApp, make_gate: MakeGate, desk: Desk
) -> None:
    async def principal(request: Request) -> str | None:
        await asyncio.sleep(0)
        return str(request.source["user"])

    async with Shop(app, make_gate(), desk, principal=principal) as shop:

        async def authenticated(scope: Any, receive: Any, send: Any) -> None:
            user = dict(scope["headers"])[b"x-account"].decode()
            await shop.app({**scope, "user": user}, receive, send)

        for user in ("ann", "bob", "ann"):
            await client(authenticated, x_account=user).post("/orders", headers=key("k"))
    assert desk.runs["orders"] == 2


async def test_a_fingerprint_of_selected_elements_lets_the_others_change(
    app: ASGIApp, make_gate: MakeGate, desk: Desk
) -> None:
    from fastdedup import fingerprint

    async with Shop(
        app, make_gate(), desk, fingerprint=lambda request: fingerprint(request.header("x-amount"))
    ) as shop:
        await shop.ann.post("/orders", content=b"1", headers={**key("k"), "x-amount": "5"})
        same = await shop.ann.post("/orders", content=b"2", headers={**key("k"), "x-amount": "5"})
        other = await shop.ann.post("/orders", content=b"2", headers={**key("k"), "x-amount": "6"})
    assert same.headers["idempotency-replayed"] == "true"
    problem(other, "key-reused", 422)


# Policy, lifespan


async def test_the_policy_is_published_beside_the_application(
    app: ASGIApp, make_gate: MakeGate, desk: Desk
) -> None:
    async with Shop(app, make_gate(), desk, methods=["GET", "POST"], ttl=60.0) as shop:
        page = await shop.ann.get("/idempotency", headers={"accept": "text/html,*/*"})
        facts = (await shop.ann.get("/idempotency")).json()
        assert page.headers["content-type"].startswith("text/html")
        assert facts["operations"][0]["lifetime_seconds"] == 60.0
        await shop.ann.post("/idempotency")  # another method is the application's
    assert desk.runs["idempotency"] == 1


async def test_without_lifespan_the_gate_is_opened_by_the_first_request(
    app: ASGIApp, make_gate: MakeGate, desk: Desk
) -> None:
    dedup = make_gate()
    async with Shop(app, dedup, desk, wait=30.0) as shop:
        assert not dedup.is_open
        answers = await asyncio.gather(
            *(shop.ann.post("/orders", headers=key(str(at % 2))) for at in range(6))
        )
        assert dedup.is_open
    assert {answer.status_code for answer in answers} == {201}
    assert desk.runs["orders"] == 2


async def test_everyone_shares_keys_where_that_is_said(app: ASGIApp, make_gate: MakeGate, desk: Desk) -> None:
    async with Shop(app, make_gate(), desk, principal=everyone) as shop:
        await shop.ann.post("/orders", headers=key("k"))
        assert (await shop.bob.post("/orders", headers=key("k"))).headers["idempotency-replayed"] == "true"
