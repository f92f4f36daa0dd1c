"""A framework that authenticates inside of the view never replays one caller's response to another.

REST Framework and Ninja did: the principal was asked before they authenticated, and found nobody for everybody.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from django.test import AsyncClient, Client

from ..integrations import django_project as django_project  # sets Django up
from ..integrations.django_inside import SETTINGS
from ..integrations.django_shop import Desk, open_shop

REPLAYED = "Idempotency-Replayed"


@pytest.fixture
def desk(redis_url: str) -> Iterator[Desk]:
    with open_shop(**SETTINGS, FASTDEDUP={"url": redis_url, "namespace": "t", "timeout": 5.0}) as desk:
        yield desk


def post(url: str, token: str | None = None, item: str = "tea", key: str | None = "k") -> Any:
    scheme = "Token" if url.startswith("/drf") else "Bearer"
    headers = {} if token is None else {"Authorization": f"{scheme} {token}"}
    headers |= {} if key is None else {"Idempotency-Key": key}
    client = Client(raise_request_exception=False)
    return client.post(url, json.dumps({"item": item}), content_type="application/json", headers=headers)


async def apost(url: str, token: str | None) -> Any:
    headers = {"Idempotency-Key": "k"} | ({} if token is None else {"Authorization": f"Bearer {token}"})
    return await AsyncClient().post(url, b"{}", content_type="application/json", headers=headers)


DRF = ["/drf/view", "/drf/parsed", "/drf/lazy", "/drf/function", "/drf/orders/", "/drf/orders/7/refund/"]


@pytest.mark.parametrize("url", DRF)
def test_each_user_of_rest_framework_has_their_own_key(url: str, desk: Desk) -> None:
    ann, again, bob, nobody = (post(url, token) for token in ("ann's", "ann's", "bob's", None))
    assert [ann.status_code, again.status_code, bob.status_code] == [201, 201, 201]
    assert [ann.content, again.content, bob.content] == [b'{"order":1}', b'{"order":1}', b'{"order":2}']
    assert (ann.get(REPLAYED), again.get(REPLAYED), bob.get(REPLAYED)) == (None, "true", None)
    assert_refused(nobody)


def test_a_decorated_dispatch_of_rest_framework_refuses(desk: Desk) -> None:
    for token in ("ann's", "bob's", None):
        assert_refused(post("/drf/outside", token))
    assert post("/drf/outside", "ann's", key=None).status_code == 201


def test_the_middleware_in_front_of_rest_framework_refuses(redis_url: str) -> None:
    with open_shop(
        **{**SETTINGS, "MIDDLEWARE": ["fastdedup.integrations.django.IdempotencyMiddleware"]},
        FASTDEDUP={"url": redis_url, "namespace": "t", "timeout": 5.0},
        FASTDEDUP_HTTP={"principal": "fastdedup.integrations.django.by_user"},
    ) as desk:
        for token in ("ann's", "bob's", None):
            assert_refused(post("/drf/view", token))
        assert not desk.orders


def test_a_wrong_token_is_told_by_rest_framework(desk: Desk) -> None:
    post("/drf/view", "ann's")
    assert post("/drf/view", "eve's").status_code == 403
    assert post("/drf/lazy", "eve's").status_code == 403


def test_each_caller_of_ninja_has_their_own_key(desk: Desk) -> None:
    ann, again, bob = (post("/ninja/orders", token) for token in ("ann's", "ann's", "bob's"))
    assert [ann.json(), again.json(), bob.json()] == [{"order": 1}, {"order": 1}, {"order": 2}]
    assert (ann.get(REPLAYED), again.get(REPLAYED), bob.get(REPLAYED)) == (None, "true", None)
    assert [post("/ninja/orders", token).status_code for token in ("eve's", None)] == [401, 401]
    assert_refused(post("/ninja/open", "ann's"))


async def test_each_caller_of_an_async_operation_has_their_own_key(desk: Desk) -> None:
    ann, again, bob, nobody = [
        await apost("/ninja/async", token) for token in ("ann's", "ann's", "bob's", None)
    ]
    assert [ann.json(), again.json(), bob.json()] == [{"order": 1}, {"order": 1}, {"order": 2}]
    assert again[REPLAYED] == "true"
    assert nobody.status_code == 401


def assert_refused(answer: Any) -> None:
    assert answer.status_code == 400
    assert answer.json()["type"] == "urn:fastdedup:problem:principal-required"
