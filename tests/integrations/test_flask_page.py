"""docs/flask.md: its Python runs, and its templates render."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import flask
import pytest

from fastdedup.integrations.flask import issue_token
from fastdedup.sync import Dedup

PAGE = (Path(__file__).parents[2] / "docs" / "flask.md").read_text()
SETTING_UP, KEYS, FORMS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
FORM, BUTTON, _ = re.findall(r"```html\n(.*?)```", PAGE, re.DOTALL)
USER = {"user_id": 7}


@pytest.fixture
def app(redis_url: str) -> Iterator[flask.Flask]:
    """The application that the page's first snippet makes, on this test's Redis."""
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(SETTING_UP.replace("redis://localhost:6379/0", redis_url), "docs/flask.md", "exec"), names)
    made = names["create_app"]()
    made.secret_key = "test"
    yield made
    dedup: Dedup = made.extensions["fastdedup"].dedup
    dedup.close()


def client_of(app: flask.Flask) -> Any:
    client = app.test_client()
    with client.session_transaction() as session:
        session.update(USER)
    return client


def test_its_keys_work(app: flask.Flask) -> None:
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(KEYS, "docs/flask.md", "exec"), names)
    app.register_blueprint(names["orders"])
    client = client_of(app)
    for path, status in (("/orders", 201), ("/c/1/pay", 200), ("/c/2/pay", 200), ("/refund", 200)):
        first, second = [client.post(path, headers={"Idempotency-Key": "k"}) for _ in range(2)]
        assert (first.status_code, first.get_data()) == (status, second.get_data())
        assert second.headers["Idempotency-Replayed"] == "true"
    paths = [one["path"] for one in client.get("/idempotency").json["operations"]]
    assert sorted(paths) == ["/c/{int:cart}/pay", "/orders", "/refund"]


def test_its_forms_work(app: flask.Flask) -> None:
    charged: list[str] = []

    def charge(item: str) -> bool:
        charged.append(item)
        return item != "coffee"

    exec(compile(FORMS, "docs/flask.md", "exec"), {"app": app, "request": flask.request, "charge": charge})
    app.jinja_loader = __import__("jinja2").DictLoader({"order.html": FORM})  # type: ignore[misc]
    client = client_of(app)
    token = token_in(client.get("/order").text)
    declined = client.post("/order", data={"one_time_token": token, "item": "coffee"})
    assert token_in(declined.text) == token
    answers = [client.post("/order", data={"one_time_token": token, "item": "tea"}) for _ in range(2)]
    assert [answer.location for answer in answers] == ["/thanks", "/thanks"]
    refused = client.post("/order", data={"one_time_token": "old", "item": "tea"})
    assert (refused.status_code, "This form has expired" in refused.text) == (410, True)
    assert charged == ["coffee", "tea"]


def test_its_button_works(app: flask.Flask) -> None:
    app.add_template_global(issue_token)
    app.add_url_rule("/", "page", lambda: flask.render_template_string(BUTTON))
    names: dict[str, Any] = {"app": app, "request": flask.request, "charge": lambda item: True}
    exec(compile(FORMS, "docs/flask.md", "exec"), names)
    client = client_of(app)
    found = re.search(r"""hx-headers='(\{.*?\})'""", client.get("/").text)
    assert found is not None
    headers = {**flask.json.loads(found[1]), "HX-Request": "true"}
    answers = [client.post("/order", data={"item": "tea"}, headers=headers) for _ in range(2)]
    assert [answer.headers.get("Idempotency-Replayed") for answer in answers] == [None, "true"]


def token_in(page: str) -> str:
    found = re.search(r'name="one_time_token" value="([^"]+)"', page)
    assert found is not None, page
    return found[1]
