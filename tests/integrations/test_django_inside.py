"""`idempotent` of REST Framework and of Ninja: what it keeps, what it releases, when it settles."""

from __future__ import annotations

import asyncio
import json
import uuid
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction
from django.test import AsyncClient, Client, RequestFactory, override_settings

from fastdedup import ConfigError
from fastdedup.integrations.django import idempotent

from ..fixtures import fixture_of, fixture_with
from . import django_project as django_project  # sets Django up
from .django_inside import SETTINGS, Made, NinjaAPI, Router, View, drf, made, ninja, order, paginate
from .django_shop import DESK, Desk, atomic_requests, open_shop

OUR_PAGES = f"{SETTINGS['ROOT_URLCONF']}.OurPages"
GATE: dict[str, Any] = {"namespace": "t", "timeout": 5.0}


desk = fixture_with(lambda redis_url: open_shop(**SETTINGS, FASTDEDUP={"url": redis_url, **GATE}))


def post(url: str, key: str | None = "k", **item: Any) -> Any:
    headers = {"Authorization": "Token ann's" if url.startswith("/drf") else "Bearer ann's"}
    headers |= {} if key is None else {"Idempotency-Key": key}
    client = Client(raise_request_exception=False)
    return client.post(url, json.dumps(item), content_type="application/json", headers=headers)


def kind(answer: Any) -> str:
    return str(answer.json()["type"].rpartition(":")[2])


@pytest.mark.parametrize("url", ["/drf/view", "/drf/view/plain", "/drf/parsed", "/ninja/orders"])
def test_a_response_is_replayed_and_another_body_refused(url: str, desk: Desk) -> None:
    first, again = post(url, item="tea"), post(url, item="tea")
    assert first.status_code == again.status_code
    assert first.content == again.content
    assert first.headers.items() <= again.headers.items()
    assert again["Idempotency-Replayed"] == "true"
    assert kind(post(url, item="coffee")) == "key-reused"
    assert desk.orders == ["tea"]


def test_an_empty_form_that_rest_framework_has_parsed_is_compared(desk: Desk) -> None:
    """For a permission. It calls Django's parser itself, which leaves no sign of that on the request."""
    client = Client(headers={"Authorization": "Token ann's", "Idempotency-Key": "k"})
    first, again, other = [client.post("/drf/parsed", form) for form in ({}, {}, {"item": "tea"})]
    assert (first.content, again["Idempotency-Replayed"]) == (again.content, "true")
    assert kind(other) == "key-reused"


@pytest.mark.parametrize("url", ["/drf/view", "/ninja/orders"])
def test_without_a_key_requests_run(url: str, desk: Desk) -> None:
    for _ in range(2):
        post(url, key=None)
    assert len(desk.orders) == 2


def test_a_key_may_be_required(desk: Desk) -> None:
    assert kind(post("/drf/orders/", key=None)) == "key-missing"


def test_what_is_refused_by_rest_framework_is_released(desk: Desk) -> None:
    assert [post("/drf/view/invalid").status_code for _ in range(2)] == [400, 400]
    assert len(desk.orders) == 2


def test_input_that_ninja_refuses_claims_no_key(desk: Desk) -> None:
    assert post("/ninja/orders", item="tea", count="many").status_code == 422
    assert post("/ninja/orders", item="tea", count=2).json() == {"order": 1}


@pytest.mark.parametrize(("item", "status"), [("denied", 400), ("broken", 500), ("misshapen", 500)])
def test_a_failed_operation_of_ninja_is_released(item: str, status: int, desk: Desk) -> None:
    assert [post("/ninja/orders", item=item).status_code for _ in range(2)] == [status, status]
    assert desk.orders == [item, item]


@pytest.mark.parametrize(
    ("url", "scheme", "kind"),
    [
        ("/ninja/form", "Bearer", "multipart/form-data"),
        ("/drf/parsed", "Token", "multipart/form-data"),
        ("/drf/parsed", "Token", "text/plain"),
    ],
)
def test_a_body_that_was_parsed_before_is_digested_too(url: str, scheme: str, kind: str, desk: Desk) -> None:
    client = Client(headers={"Idempotency-Key": "k", "Authorization": f"{scheme} ann's"})

    def send(item: str) -> int:
        text = kind == "text/plain"
        answer = client.post(url, item, content_type=kind) if text else client.post(url, {"item": item})
        return int(answer.status_code)

    first, again, other = send("tea"), send("tea"), send("ice")
    assert (first, other) == (again, 422)
    assert desk.orders == ["tea"]


@pytest.mark.parametrize("kind", ["text/xml", "image/png"])
def test_parsed_data_that_json_cannot_hold_is_digested_too(kind: str, desk: Desk) -> None:
    headers = {"Idempotency-Key": "k", "Authorization": "Token ann's", "Content-Disposition": "x; filename=1"}
    client = Client(headers=headers)
    sent = [client.post("/drf/uploaded", body, content_type=kind) for body in ("1.5", "1.5", "2.5")]
    assert [answer.status_code for answer in sent] == [201, 201, 422]
    assert len(desk.orders) == 1


def test_djangos_own_decorator_is_refused_on_an_operation() -> None:
    decorated = idempotent(principal=ninja.everyone)(order)
    with pytest.raises(ConfigError, match=r"decorate it with fastdedup\.integrations\.ninja"):
        Router().post("/")(decorated)


async def test_an_operation_whose_client_leaves_is_finished_and_replayed(desk: Desk) -> None:
    desk.go_on.clear()
    leaving = asyncio.ensure_future(apost("slow"))
    assert await asyncio.to_thread(desk.started.acquire, timeout=30)
    leaving.cancel()
    desk.go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    replay = await apost("slow")
    assert (replay["Idempotency-Replayed"], replay.json()) == ("true", {"order": 1})


async def apost(item: str) -> Any:
    headers = {"Idempotency-Key": "k", "Authorization": "Bearer ann's"}
    body = json.dumps({"item": item})
    return await AsyncClient().post("/ninja/async", body, content_type="application/json", headers=headers)


# Transactions


atomic = fixture_of(atomic_requests)


@pytest.mark.parametrize("url", ["/drf/view", "/drf/view/plain", "/ninja/orders"])
def test_committed_work_is_kept_though_a_function_of_on_commit_fails(
    url: str, desk: Desk, atomic: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def order(item: str) -> int:
        transaction.on_commit(fail)
        desk.orders.append(item)
        return len(desk.orders)

    def fail() -> None:
        raise RuntimeError("the mail server is down")

    monkeypatch.setattr(DESK, "order", order)
    assert post(url).status_code == 500
    again = post(url)
    assert again.status_code < 300
    assert again["Idempotency-Replayed"] == "true"
    with override_settings(MIDDLEWARE=[OUR_PAGES]):  # answers the exception: Django does not know of it
        assert post(url, key="other").status_code == 500
        assert kind(post(url, key="other")) == "response-not-stored"
    assert len(desk.orders) == 2


@pytest.mark.parametrize("middleware", [[], [OUR_PAGES]])
@pytest.mark.parametrize("url", ["/drf/view", "/drf/view/plain", "/ninja/orders"])
def test_a_commit_that_fails_frees_the_key(
    url: str, middleware: list[str], desk: Desk, atomic: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if middleware answers the exception, so that Django does not know of it."""

    def commit() -> None:
        raise IntegrityError("a deferred constraint")

    post(url, key=None)  # connects
    with monkeypatch.context() as patch, override_settings(MIDDLEWARE=middleware):
        patch.setattr(connection, "commit", commit)
        assert post(url).status_code == 500
    assert post(url).status_code < 300
    assert len(desk.orders) == 3


def test_another_response_in_a_transaction_counts(desk: Desk, atomic: None) -> None:
    assert post("/drf/wrapped").status_code == 200
    assert kind(post("/drf/wrapped")) == "response-not-stored"
    assert len(desk.orders) == 1


@pytest.mark.parametrize("url", ["/drf/view", "/drf/view/plain", "/ninja/orders"])
def test_middleware_for_templates_gets_a_context(url: str, desk: Desk, atomic: None) -> None:
    """A response that settles after the transaction is rendered late, as a template is."""
    with override_settings(MIDDLEWARE=[OUR_PAGES]):
        assert post(url).content == post(url).content
    assert len(desk.orders) == 1


@pytest.mark.parametrize("url", ["/drf/view", "/drf/view/plain", "/drf/function", "/ninja/orders"])
def test_a_transaction_that_is_rolled_back_frees_the_key(
    url: str, desk: Desk, atomic: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def order(item: str) -> int:
        desk.orders.append(item)
        transaction.set_rollback(len(desk.orders) == 1)
        return len(desk.orders)

    monkeypatch.setattr(DESK, "order", order)
    first, second, third = (post(url) for _ in range(3))
    assert first.content != second.content == third.content
    assert "Idempotency-Replayed" not in second
    assert third["Idempotency-Replayed"] == "true"


# Whom a key belongs to


class Shop:
    def __init__(self, pk: Any, **facts: Any) -> None:
        self.pk = pk
        self.__dict__.update(facts)


class Till(Shop): ...


def of(**facts: Any) -> Any:
    """A request that a framework has authenticated so."""
    return SimpleNamespace(source={"django.request": SimpleNamespace(**facts)})


def test_by_auth_names_what_authentication_has_found() -> None:
    number = uuid.uuid4()
    found = [ninja.by_auth(of(auth=auth)) for auth in ("ann", 7, number, None)]
    assert found == ["ann", "7", str(number), None]
    assert ninja.by_auth(of()) is None


def test_two_models_with_one_primary_key_are_two_callers() -> None:
    for principal, name in ((ninja.by_auth, "auth"), (drf.by_user, "user")):
        shop, till = (principal(of(**{name: kind(1)})) for kind in (Shop, Till))
        assert shop
        assert till
        assert shop != till


@pytest.mark.parametrize("account", [Shop(None), Shop(""), Shop(7, is_authenticated=False)])
def test_an_account_that_is_nobody_names_no_caller(account: Shop) -> None:
    assert drf.by_user(of(user=account)) is None
    assert ninja.by_auth(of(auth=account)) is None


@pytest.mark.parametrize("auth", [True, object(), ["ann"]])
def test_authentication_that_names_nobody_is_a_mistake(auth: Any) -> None:
    with pytest.raises(ConfigError, match=r"by_auth needs an authenticate\(\)"):
        ninja.by_auth(of(auth=auth))


# Mistakes


def test_the_decorator_below_nothing_is_told() -> None:
    with pytest.raises(ConfigError, match="below Ninja's decorator"):
        ninja.idempotent(principal=ninja.everyone)(order)
    with pytest.raises(ConfigError, match="REST Framework's request"):
        drf.idempotent(principal=drf.everyone)(made)(RequestFactory().post("/"), None)


@pytest.mark.parametrize("handler", [View, None, "post"])
def test_rest_frameworks_decorator_takes_a_handler(handler: Any) -> None:
    with pytest.raises(ConfigError, match="must be decorated"):
        drf.idempotent(principal=drf.everyone)(handler)


def test_rest_frameworks_handlers_are_plain_functions() -> None:
    async def handler(request: Any) -> None: ...

    with pytest.raises(ConfigError, match="plain function"):
        drf.idempotent(principal=drf.everyone)(handler)


def test_pagination_is_below() -> None:
    """Above, it took a replayed response for a list, and the retry got a 500."""
    decorate, post = ninja.idempotent(principal=ninja.everyone), NinjaAPI(urls_namespace="pages").post

    def orders(request: Any) -> Any:
        return [{"order": 1}]

    post("/below", response=list[Made])(decorate(paginate(orders)))
    with pytest.raises(ConfigError, match=r"@paginate must be below @idempotent: orders\(\) has it above"):
        post("/above", response=list[Made])(paginate(decorate(orders)))


def test_an_operation_that_streams_is_refused() -> None:
    async def operation(request: Any) -> Any:
        yield b""

    with pytest.raises(ConfigError, match="streams"):
        ninja.idempotent(principal=ninja.everyone)(operation)


@pytest.mark.parametrize("settings", [{"requird": True}, {"ttl": -1.0}, {"on_disconnect": "cancel"}])
def test_a_setting_that_cannot_be_used_is_told_at_once(settings: Any) -> None:
    for decorator in (drf.idempotent, ninja.idempotent):
        with pytest.raises(ConfigError, match=next(iter(settings))):
            decorator(**settings)(made)
