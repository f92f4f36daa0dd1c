"""The pages of the web: http-rules.md, django.md and flask.md. Their Python runs, and their templates render."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import flask
import httpx
import litestar
import pytest
import starlette.routing
from django.template import engines
from django.test import RequestFactory
from starlette.applications import Starlette
from starlette.authentication import AuthCredentials, AuthenticationBackend, AuthenticationError, SimpleUser
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import Route

from fastdedup import Dedup
from fastdedup.integrations.asgi import IdempotencyMiddleware, by_header
from fastdedup.integrations.flask import issue_token

from ..sql_pages.pages import Page
from ..sql_pages.pages import names_of as run
from . import django_project as django_project  # sets Django up
from .django_inside import SETTINGS
from .django_shop import SETTINGS as SHOP
from .django_shop import open_shop

PAGE = Page("http-rules.md")
FIRST, COMMITS, TENANTS, ENDPOINTS, CORS = PAGE.all_blocks("python")
GUARD = {"IdempotencyMiddleware": IdempotencyMiddleware, "by_header": by_header}
"""What the block of CORS takes from the blocks before it."""
ORIGIN = "https://shop.example"
TELLS_ROUTES = 'scope["route"]' in Path(starlette.routing.__file__).read_text()


def names_of(snippet: str, dedup: Dedup | None = None, **names: Any) -> dict[str, Any]:
    return run(snippet, "http-rules.md", __name__=__name__, dedup=dedup, **names)


def client_of(app: Any) -> httpx.AsyncClient:
    headers = {"origin": ORIGIN, "x-api-key": "ann"}
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop", headers=headers)


@pytest.fixture
def dedup() -> Dedup:
    return Dedup("memory://", namespace="t")


async def test_its_middleware_guards_and_publishes_the_rules() -> None:
    async def created(request: Request) -> Response:
        return Response(status_code=201)

    shop = Starlette(routes=[Route("/orders", created, methods=["POST"])])
    keys = {"ann": "ann"}

    class ApiKeys(AuthenticationBackend):
        async def authenticate(self, conn: HTTPConnection) -> tuple[AuthCredentials, SimpleUser]:
            key = conn.headers.get("x-api-key", "")
            if key not in keys:
                raise AuthenticationError("this key is not known")
            return AuthCredentials(), SimpleUser(keys[key])

    names = names_of(FIRST.replace("redis://localhost:6379/0", "memory://"), app=shop, ApiKeys=ApiKeys)
    async with names["dedup"], client_of(names["app"]) as client:
        answers = [await client.post("/orders", headers={"idempotency-key": "k"}) for _ in range(2)]
        assert answers[1].headers["idempotency-replayed"] == "true"
        refused = await client.post("/orders")
        assert (refused.status_code, refused.links["describedby"]["url"]) == (400, "/idempotency")
        assert (await client.get("/idempotency")).json()["operations"]
        del keys["ann"]
        revoked = await client.post("/orders", headers={"idempotency-key": "k"})
        assert revoked.status_code == 400, "what authenticates answers, and not the gate"


async def test_its_session_commits_before_the_response(dedup: Dedup) -> None:
    fails = iter([True, False])

    @asynccontextmanager
    async def begin() -> AsyncIterator[None]:
        yield
        if next(fails):
            raise OSError("the database has gone")

    names = names_of(COMMITS, dedup, begin=begin)
    transport = httpx.ASGITransport(names["books"], raise_app_exceptions=False)
    async with dedup, httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
        answers = [await client.post("/orders", headers={"idempotency-key": "k"}) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [500, 201, 201]
    assert "idempotency-replayed" in answers[2].headers


async def test_its_tenants_have_keys_of_their_own(dedup: Dedup) -> None:
    async def told(request: Request) -> Response:
        return Response(request.url.hostname)

    shop = Starlette(routes=[Route("/orders", told, methods=["POST"])])
    names = names_of(TENANTS, dedup, app=shop, IdempotencyMiddleware=IdempotencyMiddleware)
    async with dedup, client_of(names["shops"]) as client:
        hosts = ["a.test", "b.test", "a.test"]
        asked = [{"idempotency-key": "k", "host": host} for host in hosts]
        assert [(await client.post("/orders", headers=one)).text for one in asked] == hosts


async def test_its_endpoints_work(dedup: Dedup) -> None:
    names = names_of(ENDPOINTS, dedup)
    apps = [
        ("/c/1/pay", Starlette(routes=[Route("/c/{id}/pay", names["pay"], methods=["POST"])])),
        ("/orders", litestar.Litestar([names["order"]], openapi_config=None, logging_config=None)),
    ]
    async with dedup:
        for path, app in apps:
            async with client_of(app) as client:
                answers = [await client.post(path, headers={"idempotency-key": "k"}) for _ in range(2)]
                assert answers[0].is_success, answers[0].text
                assert answers[1].headers["idempotency-replayed"] == "true"


@pytest.mark.skipif(not TELLS_ROUTES, reason="this Starlette does not tell its route")
async def test_a_key_of_a_route_is_refused_at_another_path(dedup: Dedup) -> None:
    app = Starlette(routes=[Route("/c/{id}/pay", names_of(ENDPOINTS, dedup)["pay"], methods=["POST"])])
    async with dedup, client_of(app) as client:
        answers = [await client.post(f"/c/{cart}/pay", headers={"idempotency-key": "k"}) for cart in (1, 2)]
        assert [answer.status_code for answer in answers] == [200, 422]


async def test_a_browser_of_another_origin_may_use_keys(dedup: Dedup) -> None:
    routes = [Route("/c/{id}/pay", names_of(ENDPOINTS, dedup)["pay"].__wrapped__, methods=["POST"])]
    app = Starlette(routes=routes, middleware=names_of(CORS, dedup, **GUARD)["middleware"])
    asked = {
        "access-control-request-method": "POST",
        "access-control-request-headers": "content-type, idempotency-key, x-api-key",
    }
    async with dedup, client_of(app) as client:
        preflight = await client.options("/c/1/pay", headers=asked)
        assert preflight.status_code == 200, preflight.text
        first, second, reused = [
            await client.post(f"/c/1/pay{query}", headers={"idempotency-key": "k"})
            for query in ("", "", "?x")
        ]
        assert [first.status_code, second.status_code, reused.status_code] == [200, 200, 422]
        for answer in (first, second, reused):
            assert answer.headers.get_list("access-control-allow-origin") == [ORIGIN]
            exposed = answer.headers["access-control-expose-headers"].lower().split(", ")
            assert {"idempotency-replayed", "retry-after", "location"} <= set(exposed)


# docs/django.md: its Python runs, and its templates render


DJANGO = (Path(__file__).parents[2] / "docs" / "django.md").read_text()
PYTHON = re.findall(r"```python\n(.*?)```", DJANGO, re.DOTALL)
HTML = re.findall(r"```html\n(.*?)```", DJANGO, re.DOTALL)


@pytest.fixture
def shop(redis_url: str) -> Iterator[Any]:
    settings = {**SHOP, **SETTINGS, "MIDDLEWARE": SHOP["MIDDLEWARE"], "TEMPLATES": SHOP["TEMPLATES"]}
    with open_shop(**settings, FASTDEDUP={"url": redis_url, "namespace": "t", "timeout": 5.0}) as desk:
        yield desk


@pytest.mark.parametrize("snippet", PYTHON, ids=lambda text: text.splitlines()[0][:30])
def test_a_snippet_runs(snippet: str, shop: Any) -> None:
    run(snippet, "django.md")


def test_its_template_renders_the_token_of_its_form(shop: Any) -> None:
    (form,) = (text for text in PYTHON if "OneTimeFormMixin" in text)
    names = run(form, "django.md")
    request: Any = RequestFactory().get("/")
    request.session, request.user = SimpleNamespace(get=lambda name: None, session_key="s"), None
    (html,) = HTML
    page = engines["django"].from_string(html).render({"form": names["OrderForm"](request=request)}, request)
    assert 'name="one_time_token" value="' in page


def test_guests_are_told_apart_and_strangers_refused(shop: Any) -> None:
    (guests,) = (text for text in PYTHON if "by_visitor" in text)
    names = run(guests, "django.md")
    found = [
        names["by_visitor"](_request(key, user)) for key, user in (("a", None), ("b", None), (None, None))
    ]
    assert found == ["a", "b", None]
    assert names["by_visitor"](_request("a", "ann")).endswith(" ann")


def _request(session_key: str | None, user: str | None) -> Any:
    session, account = SimpleNamespace(session_key=session_key), SimpleNamespace(pk=user)
    return SimpleNamespace(source={"django.request": SimpleNamespace(session=session, user=account)})


# docs/flask.md


FLASK = (Path(__file__).parents[2] / "docs" / "flask.md").read_text()
SETTING_UP, KEYS, FORMS = re.findall(r"```python\n(.*?)```", FLASK, re.DOTALL)
FORM, BUTTON = re.findall(r"```html\n(.*?)```", FLASK, re.DOTALL)
USER = {"user_id": 7}


@pytest.fixture
def app(redis_url: str) -> Iterator[flask.Flask]:
    """The application that the page's first snippet makes, on this test's Redis."""
    made = run(SETTING_UP, "flask.md", redis_url)["create_app"]()
    made.secret_key = "test"
    yield made
    made.extensions["fastdedup"].dedup.close()


def flask_client(app: flask.Flask) -> Any:
    client = app.test_client()
    with client.session_transaction() as session:
        session.update(USER)
    return client


def test_its_keys_work(app: flask.Flask) -> None:
    app.register_blueprint(run(KEYS, "flask.md")["orders"])
    client = flask_client(app)
    for path, status in (("/orders", 201), ("/c/1/pay", 200), ("/c/2/pay", 200)):
        first, second = [client.post(path, headers={"Idempotency-Key": "k"}) for _ in range(2)]
        assert (first.status_code, first.get_data()) == (status, second.get_data())
        assert second.headers["Idempotency-Replayed"] == "true"
    paths = [one["path"] for one in client.get("/idempotency").json["operations"]]
    assert sorted(paths) == ["/c/{int:cart}/pay", "/orders"]


def test_its_forms_work(app: flask.Flask) -> None:
    charged: list[str] = []

    def charge(item: str) -> bool:
        charged.append(item)
        return item != "coffee"

    run(FORMS, "flask.md", app=app, request=flask.request, charge=charge)
    app.jinja_loader = __import__("jinja2").DictLoader({"order.html": FORM})  # type: ignore[misc]
    client = flask_client(app)
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
    run(FORMS, "flask.md", app=app, request=flask.request, charge=lambda item: True)
    client = flask_client(app)
    found = re.search(r"""hx-headers='(\{.*?\})'""", client.get("/").text)
    assert found is not None
    headers = {**flask.json.loads(found[1]), "HX-Request": "true"}
    answers = [client.post("/order", data={"item": "tea"}, headers=headers) for _ in range(2)]
    assert [answer.headers.get("Idempotency-Replayed") for answer in answers] == [None, "true"]


def token_in(page: str) -> str:
    found = re.search(r'name="one_time_token" value="([^"]+)"', page)
    assert found is not None, page
    return found[1]
