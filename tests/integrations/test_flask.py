"""Flask: `@idempotent` on views, and one-time forms, on a real Redis and in memory."""

from __future__ import annotations

import io
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import flask
import pytest

from fastdedup import ConfigError
from fastdedup.integrations.flask import FastDedup, by_session, claim_of, everyone, idempotent, one_time_form
from fastdedup.sync import Dedup

from ..fixtures import fixture_of
from .flask_shop import DEADLINE, FlaskShop
from .wsgi_apps import STORES, call, gate

memory = fixture_of(Dedup, "memory://", scope="module", namespace="t")


@pytest.fixture
def shop(memory: Dedup, request: pytest.FixtureRequest) -> FlaskShop:
    return FlaskShop(memory.scoped(f"n{abs(hash(request.node.name))}"))


def problem(answer: Any) -> tuple[int, str]:
    return answer.status_code, answer.json["type"].rpartition(":")[2]


@pytest.mark.parametrize("store", STORES)
def test_a_view_runs_once_for_its_key(store: str, request: pytest.FixtureRequest) -> None:
    request.param = store
    with gate(request) as dedup:
        shop = FlaskShop(dedup)
        client = shop.client()
        first, second = shop.post(client), shop.post(client)
        assert (first.status_code, first.json) == (second.status_code, second.json)
        assert (second.status_code, second.headers["Idempotency-Replayed"]) == (201, "true")
        assert shop.runs == {"order 1": 1}
        assert shop.post(client, path="/orders/2").json["name"] == "order 2"
        assert problem(shop.post(client, query_string={"a": "b"})) == (422, "key-reused")


def test_no_user_gets_anothers_response_or_session(shop: FlaskShop) -> None:
    ann, bob = shop.client(), shop.client("bob")
    assert shop.post(ann).json["run"] == 1
    assert shop.post(bob).json["run"] == 2
    other = shop.client("ann")  # of the same user, in another browser
    replayed = shop.post(other)
    assert replayed.json["run"] == 1
    assert "Set-Cookie" not in replayed.headers


@pytest.mark.parametrize("user", [None, ""])
def test_a_caller_without_a_name_is_refused(shop: FlaskShop, user: str | None) -> None:
    assert problem(shop.post(shop.client(user))) == (400, "principal-required")
    assert problem(shop.post(shop.client(user), "/t/pay")) == (400, "principal-required")
    assert not shop.runs


def test_the_principal_may_use_g_and_numbers_of_the_session(shop: FlaskShop) -> None:
    one, two = shop.client(1), shop.client("1")
    pays = [shop.post(one, "/t/pay", headers={"X-Tenant": name}).json["run"] for name in "aba"]
    assert pays == [1, 2, 1]
    assert problem(shop.post(one, "/t/pay", key=None)) == (400, "key-missing")
    assert shop.post(one).json == shop.post(two).json


@pytest.mark.parametrize("path", ["/listed", "/method", "/async"])
def test_classes_and_async_views_run_once(shop: FlaskShop, path: str) -> None:
    client = shop.client()
    assert [shop.post(client, path).json["run"] for _ in range(2)] == [1, 1]
    assert [shop.post(client, path, key=None).json["run"] for _ in range(2)] == [2, 3]


def test_after_request_functions_change_a_replay_once(shop: FlaskShop) -> None:
    """A second `Access-Control-Allow-Origin` would make browsers refuse the replay."""
    client = shop.client()
    for origin in ("https://a.test", "https://b.test"):
        answer = shop.post(client, headers={"Origin": origin})
        assert answer.headers.getlist("X-After") == ["yes"]
        assert answer.headers.getlist("Access-Control-Allow-Origin") == [origin]


def test_a_response_that_after_request_made_an_error_is_released(shop: FlaskShop) -> None:
    client = shop.client()
    for run in (1, 2):
        assert shop.post(client, query_string={"after": "fails"}).status_code == 500
        assert shop.runs["order 1"] == run


def test_an_error_is_settled_by_its_handlers_response(shop: FlaskShop) -> None:
    client = shop.client()
    for _ in range(2):
        assert shop.post(client, "/missing").get_data() == shop.post(client, "/missing", key="b").get_data()
        assert shop.post(client, "/broken").status_code == 500
    assert shop.runs == {"missing": 2, "broken": 2}


def test_an_exception_that_nobody_handles_releases_the_key(shop: FlaskShop) -> None:
    shop.app.testing = True
    client = shop.client()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="broken"):
            shop.post(client, "/broken")
    assert shop.runs["broken"] == 2


def test_a_body_that_was_read_before_the_view_counts(shop: FlaskShop) -> None:
    """Flask-WTF reads the form in a before_request function."""
    client = shop.client()
    first = shop.post(client, "/body", data={"a": "1"})
    assert first.json["form"] == {"a": "1"}
    assert shop.post(client, "/body", data={"a": "1"}).json == first.json
    assert problem(shop.post(client, "/body", data={"a": "2"})) == (422, "key-reused")
    assert problem(shop.post(client, "/body", data=b"x" * 101)) == (413, "body-too-large")
    assert shop.post(client, "/body", key=None, data=b"x" * 101).status_code == 200


def test_a_hidden_decorator_does_not_let_an_unread_body_count() -> None:
    shop = FlaskShop(Dedup("memory://", namespace="t"))
    view = idempotent()(lambda: "")
    shop.app.add_url_rule("/hidden", "hidden", lambda: view(), methods=["POST"])
    shop.app.testing = True
    with pytest.raises(ConfigError, match=r"functools\.wraps"):
        shop.post(shop.client(), "/hidden", data={"a": "1"})


def test_json_may_be_encoded_anew(shop: FlaskShop) -> None:
    client, kind = shop.client(), {"content_type": "application/json"}
    first = shop.post(client, "/json", data=b'{"a": 1, "b": 2}', **kind)
    assert shop.post(client, "/json", data=b'{"b":2,"a":1}', **kind).json == first.json
    assert problem(shop.post(client, "/json", data=b'{"b":2,"b":2,"a":1}', **kind)) == (422, "key-reused")


def test_a_stream_goes_through_and_is_not_replayed(shop: FlaskShop) -> None:
    client = shop.client()
    first = client.post("/stream", headers={"Idempotency-Key": "k"}, buffered=False)
    assert first.headers["Idempotency-Stored"] == "false"
    assert not shop.seen
    assert first.get_data() == b"data: 1\n\n"
    assert problem(shop.post(client, "/stream")) == (409, "response-not-stored")


def test_a_file_is_replayed(shop: FlaskShop) -> None:
    client = shop.client()
    first, second = shop.post(client, "/file"), shop.post(client, "/file")
    assert first.get_data() == second.get_data()
    assert len(first.get_data()) > 100
    first.close()
    assert shop.runs == {"file": 1}


@pytest.mark.parametrize("path", ["/t/pay", "/stream", "/missing"])
def test_it_keeps_to_the_rules_of_wsgi(memory: Dedup, path: str) -> None:
    shop = FlaskShop(memory.scoped(f"rules{path.replace('/', '-')}"), principal=everyone)
    for key in ("k", "k", None):
        assert call(shop.app, path, key=key, HTTP_X_TENANT="a").status in (200, 400, 404, 409)
    assert shop.runs.total() == (1 if path == "/t/pay" else 2)


def test_a_page_is_rendered_without_a_server(shop: FlaskShop) -> None:
    with shop.app.test_request_context("/form"):
        assert "one_time_token" in shop.app.ensure_sync(shop.app.view_functions["form"])()


def test_the_policy_lists_the_decorated_views(shop: FlaskShop) -> None:
    facts = shop.client().get("/idempotency").json
    paths = {one["path"]: one["methods"] for one in facts["operations"]}
    assert paths["/orders/{int:number}"] == ["POST"]
    assert {"/t/pay", "/listed", "/method"} <= set(paths)
    assert "/form" not in paths


def test_a_view_sees_its_claim(memory: Dedup) -> None:
    app = flask.Flask("claims")
    FastDedup(app, memory.scoped("claims"), principal=everyone)

    @app.post("/")
    @idempotent()
    def view() -> Any:
        claim = claim_of()
        return {"attempt": None if claim is None else claim.attempt}

    client = app.test_client()
    assert client.post("/", headers={"Idempotency-Key": "k"}).json == {"attempt": 1}
    assert client.post("/").json == {"attempt": None}


def test_a_factory_takes_its_gate_from_the_configuration() -> None:
    gate, app = FastDedup(principal=everyone), flask.Flask("factory")
    app.config["FASTDEDUP"] = {"url": "memory://", "namespace": "t"}
    gate.init_app(app)
    app.add_url_rule("/", "view", idempotent()(lambda: "x"), methods=["POST"])
    answers = [app.test_client().post("/", headers={"Idempotency-Key": "k"}) for _ in range(2)]
    assert [answer.headers.get("Idempotency-Replayed") for answer in answers] == [None, "true"]
    with pytest.raises(ConfigError, match="already"):
        gate.init_app(app)


def test_mistakes_are_told_where_they_are_made() -> None:
    wrong: Any = idempotent
    with pytest.raises(ConfigError, match="unknown setting 'waits'"):
        wrong(waits=1)
    with pytest.raises(ConfigError, match="in a MethodView"):
        idempotent()(FlaskShop)
    with pytest.raises(ConfigError, match=r"must be a fastdedup\.sync\.Dedup"):
        FastDedup(flask.Flask("none"))
    with pytest.raises(ConfigError, match="name of an entry"):
        by_session("")


@pytest.mark.parametrize(
    ("view", "said"),
    [
        (idempotent(principal=everyone)(lambda: ""), "need FastDedup|has no FastDedup"),
        (one_time_form(lambda: ""), "need FastDedup|has no FastDedup"),
    ],
)
def test_an_application_without_the_extension_is_told(view: Any, said: str) -> None:
    app = flask.Flask("bare")
    app.testing = True
    app.add_url_rule("/", "view", view, methods=["POST"])
    with pytest.raises(ConfigError, match=said):
        app.test_client().post("/", headers={"Idempotency-Key": "k"})


def test_a_view_under_both_decorators_is_refused(memory: Dedup) -> None:
    app = flask.Flask("both")
    app.testing, app.secret_key = True, "test"
    FastDedup(app, memory.scoped("both"), principal=everyone)
    app.add_url_rule("/", "view", idempotent()(one_time_form(lambda: "")), methods=["POST"])
    with pytest.raises(ConfigError, match="not both"):
        app.test_client().post("/", headers={"Idempotency-Key": "k"})


# One-time forms, also sent by htmx


BROWSER = {"Accept": "text/html"}


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


def test_in_an_outage_the_page_is_shown_and_the_form_refused() -> None:
    with Dedup("redis://127.0.0.1:1/0", namespace="t", timeout=0.1) as dedup:
        shop = FlaskShop(dedup)
        client = shop.client()
        token = token_of(client.get("/form"))
        assert token == ""
        assert send(client, token).status_code == 503
        assert send(client, "real").status_code == 503
        assert not shop.runs
