"""What a client sees of `IdempotencyMiddleware`, beyond test_draft.py, in each framework."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fastdedup.integrations.asgi import Route, everyone
from fastdedup.web.request import Request

from .conftest import MakeShop
from .desk import BIG, client, key, problem
from .middleware_shop import ASGI, WSGI, Shop, of_asgi


@pytest.fixture
def url(redis_url: str) -> str:
    """Of this worker's own Redis: test_draft.py asks of both kinds of store."""
    return redis_url


async def test_requests_without_a_key_or_of_other_methods_run_each_time(shop: Shop) -> None:
    for _ in range(2):
        await shop.post(sent=None)
        await shop.request("GET", "/orders")
        answer = await shop.request("PUT", "/orders")
        assert "idempotency-replayed" not in answer.headers
    assert shop.runs["orders"] == 6


async def test_methods_and_routes_have_keys_of_their_own(make_shop: MakeShop) -> None:
    async with make_shop(methods=["POST", "PATCH"]) as shop:
        answers = [
            await shop.post(),
            await shop.request("PATCH", "/orders"),
            await shop.post("/payments"),
        ]
    assert all("idempotency-replayed" not in answer.headers for answer in answers)
    assert (shop.runs["orders"], shop.runs["payments"]) == (2, 1)


async def test_a_rule_may_keep_other_statuses(make_shop: MakeShop) -> None:
    async with make_shop(keep=[500]) as shop:
        for _ in range(2):
            await shop.post("/failing")
            await shop.post("/orders")
    assert (shop.runs["failing"], shop.runs["orders"]) == (1, 2)


async def test_only_allowed_headers_are_replayed(make_shop: MakeShop) -> None:
    async with make_shop(keep_headers=["X-Run", "Content-Type"]) as shop:
        first, again = await shop.post("/redirect"), await shop.post("/redirect")
    assert first.headers["location"] == "/orders/1"
    assert again.headers["x-run"] == "1"
    assert "location" not in again.headers


@pytest.mark.parametrize("face", [*ASGI, *WSGI])  # aiohttp: see test_aiohttp.py
async def test_a_short_streamed_response_is_replayed_whole(shop: Shop) -> None:
    first, again = await shop.post("/chunks"), await shop.post("/chunks")
    assert first.content == again.content == b"one,two,three"
    assert shop.runs["chunks"] == 1


async def test_a_response_as_large_as_the_limit_is_kept(make_shop: MakeShop) -> None:
    async with make_shop(routes=[Route("/big", max_response=BIG), "/*"]) as shop:
        assert "idempotency-stored" not in (await shop.post("/big")).headers
        assert len((await shop.post("/big")).content) == BIG
    assert shop.runs["big"] == 1


@pytest.mark.parametrize(("size", "status"), [(1000, 201), (1001, 413)])
async def test_a_request_body_over_the_limit_is_413_and_nothing_runs(
    make_shop: MakeShop, size: int, status: int
) -> None:
    async with make_shop(max_request=1000) as shop:
        answer = await shop.post(content=b"x" * size)
        assert answer.status_code == status
        if status == 413:
            assert "1000 bytes" in problem(answer, "body-too-large", 413)["detail"]
        assert shop.runs["orders"] == (status == 201)
        free = await shop.post(sent=None, content=b"x" * 5000)  # without a key there is no limit
        assert free.json()["size"] == 5000


async def test_the_handler_finds_its_claim(shop: Shop) -> None:
    for sent in ("k", "k", None):
        await shop.post("/failing", sent)
    first, second, without = [shop.claim(run) for run in range(3)]
    assert (first.attempt, second.attempt) == (1, 2)
    assert 0 < first.fence < second.fence
    assert not second.lost
    assert without is None


@of_asgi
async def test_handlers_in_threads_are_run_once_as_well(shop: Shop) -> None:
    first, again = await shop.post("/sync/orders"), await shop.post("/sync/orders")
    assert first.status_code == 201
    assert again.content == first.content
    assert shop.runs["orders"] == 1


@of_asgi
async def test_a_principal_may_be_found_out_asynchronously_from_what_others_put_into_the_scope(
    make_shop: MakeShop,
) -> None:
    async def principal(request: Request) -> str | None:
        await asyncio.sleep(0)
        return str(request.source["user"])

    async with make_shop(principal=principal) as shop:

        async def authenticated(scope: Any, receive: Any, send: Any) -> None:
            user = dict(scope["headers"])[b"x-account"].decode()
            await shop.app({**scope, "user": user}, receive, send)

        for user in ("ann", "bob", "ann"):
            await client(authenticated, x_account=user).post("/orders", headers=key("k"))
    assert shop.runs["orders"] == 2


async def test_the_policy_is_published_beside_the_application(make_shop: MakeShop) -> None:
    async with make_shop(methods=["GET", "POST"], ttl=60.0) as shop:
        page = await shop.request("GET", "/idempotency", headers={"accept": "text/html,*/*"})
        facts = (await shop.request("GET", "/idempotency")).json()
        assert page.headers["content-type"].startswith("text/html")
        assert facts["operations"][0]["lifetime_seconds"] == 60.0
        await shop.post("/idempotency")  # another method is the application's
    assert shop.runs["idempotency"] == 1


@of_asgi
async def test_without_lifespan_the_gate_is_opened_by_the_first_request(make_shop: MakeShop) -> None:
    async with make_shop(wait=30.0) as shop:
        assert not shop.dedup.is_open
        answers = await asyncio.gather(*(shop.post(sent=str(at % 2)) for at in range(6)))
        assert shop.dedup.is_open
    assert {answer.status_code for answer in answers} == {201}
    assert shop.runs["orders"] == 2


async def test_everyone_shares_keys_where_that_is_said(make_shop: MakeShop) -> None:
    async with make_shop(principal=everyone) as shop:
        await shop.post()
        assert (await shop.post(account="bob")).headers["idempotency-replayed"] == "true"
