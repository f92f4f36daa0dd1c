"""Flask: one-time forms, on a real Redis and in memory, also sent by htmx."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from fastdedup.sync import Dedup

from .flask_shop import DEADLINE, FlaskShop
from .wsgi_shop import STORES, gate

BROWSER = {"Accept": "text/html"}


@pytest.fixture(scope="module")
def memory() -> Iterator[Dedup]:
    with Dedup("memory://", namespace="t") as dedup:
        yield dedup


@pytest.fixture
def shop(memory: Dedup) -> FlaskShop:
    return FlaskShop(memory)


def token_of(page: Any) -> str:
    found = re.search(
        r'name="one_time_token" value="([^"]*)" autocomplete="off"', page.get_data(as_text=True)
    )
    assert found is not None, page.get_data()
    return found[1]


def send(client: Any, token: str | None, path: str = "/form", **fields: Any) -> Any:
    sent = {"item": "tea", **fields} | ({} if token is None else {"one_time_token": token})
    return client.post(path, data=sent, headers=BROWSER)


@pytest.mark.parametrize("store", STORES)
def test_a_form_takes_effect_once(store: str, request: pytest.FixtureRequest) -> None:
    request.param = store
    with gate(request) as dedup:
        shop = FlaskShop(dedup)
        client = shop.client()
        token = token_of(client.get("/form"))
        first, second = send(client, token), send(client, token, csrf_token="anew")
        assert first.get_data() == second.get_data() == b"tea 1"
        assert second.headers["Idempotency-Replayed"] == "true"
        assert send(client, token, item="coffee").status_code == 422
        assert send(client, token_of(client.get("/form"))).get_data() == b"tea 2"


def test_no_session_can_use_anothers_token(shop: FlaskShop) -> None:
    ann, bob = shop.client(), shop.client("bob")
    token = token_of(ann.get("/form"))
    assert send(bob, token).status_code == 403
    assert send(ann, token).get_data() == b"tea 1"
    assert send(bob, token).status_code == 409  # it was done, and he does not see what


def test_an_ended_session_ends_its_tokens(shop: FlaskShop) -> None:
    client = shop.client()
    token = token_of(client.get("/form"))
    with client.session_transaction() as session:
        session.clear()
    assert send(client, token).status_code == 403


@pytest.mark.parametrize(("token", "status"), [(None, 400), ("made-up", 410), ("", 503)])
def test_a_form_that_cannot_be_accepted_gets_a_page(shop: FlaskShop, token: str | None, status: int) -> None:
    answer = send(shop.client(), token)
    assert answer.status_code == status
    assert b"Open a fresh form" in answer.get_data()
    assert not shop.runs


def test_a_second_click_waits_for_the_first_page(shop: FlaskShop) -> None:
    client, again = shop.client(), shop.app.test_client()
    token = token_of(client.get("/form"))
    again.set_cookie("session", client.get_cookie("session").value)
    shop.go.clear()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(send, client, token)
        assert shop.working.wait(DEADLINE)
        second = pool.submit(send, again, token)
        shop.go.set()
        assert first.result(DEADLINE).get_data() == second.result(DEADLINE).get_data() == b"tea 1"


def test_a_reopened_form_keeps_its_token(shop: FlaskShop) -> None:
    client = shop.client()
    token = token_of(client.get("/form"))
    declined = send(client, token, item="declined")
    assert (declined.status_code, token_of(declined)) == (402, token)
    assert send(client, token).get_data() == b"tea 2"


def test_a_handler_of_ones_own_shows_the_form_anew(shop: FlaskShop) -> None:
    client = shop.client()
    answer = send(client, "made-up", path="/own")
    assert answer.status_code == 410
    assert '<div class="one-time-notice" role="alert"><strong>This form has expired' in answer.text
    assert send(client, token_of(answer), path="/own").text == "1"


def test_files_of_a_form_count(shop: FlaskShop) -> None:
    client = shop.client()
    token = token_of(client.get("/form"))

    def upload(content: bytes) -> Any:
        data = {"one_time_token": token, "item": "tea", "file": (io.BytesIO(content), "a.txt")}
        return client.post("/form", data=data, headers=BROWSER)

    assert upload(b"one").text == upload(b"one").text == "tea 1"
    assert upload(b"two").status_code == 422


def test_htmx_sends_a_token_as_a_field_or_by_hx_headers(shop: FlaskShop) -> None:
    """Htmx sends a form's fields, and what `hx-headers` names; a refusal is a part of a page, to be swapped in."""
    client = shop.client()
    htmx = {"HX-Request": "true", "HX-Current-URL": "http://localhost/form"}
    for fields in (True, False):
        token = token_of(client.get("/form"))
        sent = {"one_time_token": token} if fields else {}
        headers = htmx if fields else {**htmx, "X-One-Time-Token": token}
        pages = [client.post("/form", data={"item": "tea", **sent}, headers=headers) for _ in range(2)]
        assert pages[0].text == pages[1].text
        other = client.post("/form", data={"item": "coffee", **sent}, headers=headers)
        assert (other.status_code, other.mimetype) == (422, "text/html")
        assert other.text.startswith('<div class="one-time-notice"')
    assert shop.runs == {"form": 2}


def test_htmx_may_send_a_key_by_hx_headers(shop: FlaskShop) -> None:
    client = shop.client()
    answers = [shop.post(client, headers={"HX-Request": "true"}) for _ in range(2)]
    assert answers[0].json == answers[1].json


def test_in_an_outage_the_page_is_shown_and_the_form_refused() -> None:
    with Dedup("redis://127.0.0.1:1/0", namespace="t", timeout=0.1) as dedup:
        shop = FlaskShop(dedup)
        client = shop.client()
        token = token_of(client.get("/form"))
        assert token == ""
        assert send(client, token).status_code == 503
        assert send(client, "real").status_code == 503
        assert not shop.runs
