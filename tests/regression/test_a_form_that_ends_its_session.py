"""The second click of a form whose view signs in or out was told "Nothing was done", and so people did it twice."""

from __future__ import annotations

import re
import secrets
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Annotated, Any

import flask
import pytest
from django.conf import settings
from django.contrib.sessions.backends.db import SessionStore
from django.core.handlers.wsgi import WSGIHandler
from django.db import connections
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.test import Client, override_settings
from django.urls import path
from fastapi import FastAPI, Form, Request
from fastapi.responses import PlainTextResponse
from playwright.sync_api import expect
from starlette.middleware.sessions import SessionMiddleware

from fastdedup import Claim, Dedup
from fastdedup.integrations.django import one_time_form
from fastdedup.integrations.django.tokens import token_for
from fastdedup.integrations.fastapi import Idempotency, OneTimeToken
from fastdedup.integrations.flask import FastDedup
from fastdedup.integrations.flask import issue_token as issue_in_flask
from fastdedup.integrations.flask import one_time_form as one_time_form_of_flask
from fastdedup.sync import Dedup as SyncDedup

from ..integrations import django_project as django_project  # sets Django up
from ..integrations.browser import chromium
from ..integrations.desk import client
from ..integrations.django_shop import atomic_requests
from ..integrations.test_wsgi_server import running, werkzeug_server

ACTIONS = ("in", "out", "rotate")
HTML = {"Accept": "text/html"}
SECRET = "the account of ann"
TOLD = "What was sent first was done"


class Desk:
    """What was done, and how a test holds a view up once it has changed the session."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.changed, self.go = threading.Event(), threading.Event()
        self.go.set()

    def did(self, action: str) -> None:
        self.done.append(action)
        self.changed.set()
        assert self.go.wait(30)


DESK = Desk()


@pytest.fixture(autouse=True)
def _desk() -> None:
    DESK.__init__()  # type: ignore[misc]


# Django


@one_time_form
def door(request: HttpRequest) -> HttpResponse:
    session = request.session
    if request.method != "POST":
        token = token_for(request)  # as {% one_time_token %} does
        refused = getattr(request, "form_refused", None)
        title = "" if refused is None else refused.title
        return HttpResponse(
            f"<p>{title}</p><form method=post><button name=do value=in>Go</button>"
            f'<input type=hidden name=one_time_token value="{token}"></form>'
        )
    action = request.POST["do"]
    if action == "in":
        session.cycle_key()
        session["user"] = "ann"
    elif action == "out":
        session.flush()
    else:
        session.cycle_key()
    session.save()
    DESK.did(action)
    return HttpResponse(SECRET) if action == "rotate" else redirect("/account")


def account(request: HttpRequest) -> HttpResponse:
    return HttpResponse(f"<p>{request.session.get('user', 'nobody')}</p>")


urlpatterns = [path("door", door), path("account", account)]


@contextmanager
def shop(backend: str, *, save_always: bool = False) -> Iterator[None]:
    given = {
        "ROOT_URLCONF": __name__,
        "MIDDLEWARE": ["django.contrib.sessions.middleware.SessionMiddleware"],
        "SESSION_ENGINE": f"django.contrib.sessions.backends.{backend}",
        "SESSION_SAVE_EVERY_REQUEST": save_always,
        "FASTDEDUP": {"url": "memory://", "namespace": "t", "timeout": 5.0},
    }
    apps = ["fastdedup.integrations.django", "django.contrib.sessions"]
    with override_settings(**given), override_settings(INSTALLED_APPS=apps), atomic_requests():
        connections.settings["default"]["ATOMIC_REQUESTS"] = False
        if backend == "db":
            with connections["default"].schema_editor() as editor:
                editor.create_model(SessionStore.get_model_class())
        yield


def token_in(text: str) -> str:
    found = re.search(r'name=one_time_token value="([^"]+)"', text)
    assert found is not None, text
    return found[1]


def click(client: Any, token: str, action: str) -> Any:
    return client.post("/door", {"one_time_token": token, "do": action}, headers=HTML)


def sets_session(response: Any) -> bool:
    return settings.SESSION_COOKIE_NAME in response.cookies


@pytest.mark.parametrize("save_always", [False, True], ids=["", "save-always"])
@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("backend", ["db", "cache", "signed_cookies"])
class TestDjango:
    @pytest.mark.parametrize("cookie", ["old", "new"])
    def test_a_second_click_is_told_that_it_was_done(
        self, backend: str, action: str, save_always: bool, cookie: str
    ) -> None:
        with shop(backend, save_always=save_always):
            client, late = Client(), Client()
            token = token_in(client.get("/door").content.decode())
            late.cookies.update(client.cookies)
            first = click(client, token, action)
            second = click(late if cookie == "old" else client, token, action)
            assert not sets_session(second)
            replayed = (second.status_code, second.content) == (first.status_code, first.content)
            assert replayed or (second.status_code == 409 and TOLD in second.content.decode())
            user = "ann" if action == "in" else "nobody"
            assert user in client.get("/account").content.decode()
            assert DESK.done == [action]

    def test_a_stranger_learns_no_more_than_that_it_was_done(
        self, backend: str, action: str, save_always: bool
    ) -> None:
        with shop(backend, save_always=save_always):
            client, stranger = Client(), Client()
            token = token_in(client.get("/door").content.decode())
            stranger.get("/door")
            before = click(stranger, token, action)
            assert before.status_code == 403
            assert DESK.done == []
            click(client, token, action)
            after = click(stranger, token, action)
            assert (after.status_code, after.headers.get("Location")) == (409, None)
            assert SECRET not in after.content.decode()


@pytest.mark.parametrize("action", ACTIONS)
def test_a_second_click_while_the_first_works_is_told_so(action: str) -> None:
    with shop("cache"), ThreadPoolExecutor(1) as pool:
        client, late = Client(), Client()
        token = token_in(client.get("/door").content.decode())
        late.cookies.update(client.cookies)
        DESK.go.clear()
        first = pool.submit(click, client, token, action)
        try:
            assert DESK.changed.wait(30)
            second = click(late, token, action)
        finally:
            DESK.go.set()
        assert second.status_code == 409
        assert "still being processed" in second.content.decode()
        assert not sets_session(second)
        assert first.result(30).status_code in (200, 302)


@pytest.mark.parametrize("action", ACTIONS)
def test_a_browser_that_clicks_again_learns_what_was_done(action: str) -> None:
    with (
        shop("cache"),
        running(werkzeug_server, WSGIHandler()) as port,
        chromium() as browser,
        browser.new_context() as context,
    ):
        page = context.new_page()
        page.goto(f"http://127.0.0.1:{port}/door")
        page.get_by_role("button").evaluate("(button, action) => { button.value = action }", action)
        box = page.get_by_role("button").bounding_box()
        assert box is not None
        place = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        DESK.go.clear()
        try:
            page.mouse.click(*place)
            assert DESK.changed.wait(30)
            page.mouse.click(*place)
            expect(page.locator("body")).to_contain_text("still being processed")
        finally:
            DESK.go.set()
        page.get_by_role("button").click()  # as that page asks for
        expect(page.locator("body")).to_contain_text(TOLD)
    assert DESK.done == [action]


# Flask


def door_of_flask(dedup: SyncDedup) -> flask.Flask:
    app = flask.Flask(__name__)
    app.secret_key = "only for tests"
    FastDedup(app, dedup)

    @app.route("/door", methods=["GET", "POST"])
    @one_time_form_of_flask
    def door() -> Any:
        if flask.request.method != "POST":
            flask.session.permanent = True  # its cookie is sent with each response
            return f'<input name=one_time_token value="{issue_in_flask()}">'
        action = flask.request.form["do"]
        flask.session.clear()
        if action == "in":
            flask.session["user"] = "ann"
            flask.session.permanent = True
        DESK.did(action)
        return SECRET

    return app


@pytest.mark.parametrize("action", ["in", "out"])
@pytest.mark.parametrize("cookie", ["old", "new"])
def test_flask_says_that_it_was_done(action: str, cookie: str) -> None:
    with SyncDedup("memory://", namespace="t") as dedup:
        client = door_of_flask(dedup).test_client()
        token = token_in(client.get("/door").text)
        old = client.get_cookie("session")
        assert old is not None
        data = {"one_time_token": token, "do": action}
        client.post("/door", data=data, headers=HTML)
        if cookie == "old":
            client.set_cookie("session", old.value)
        second = client.post("/door", data=data, headers=HTML)
    assert (second.status_code, SECRET in second.text) == ((200, True) if cookie == "old" else (409, False))
    assert cookie == "old" or TOLD in second.text
    assert "session=" not in second.headers.get("Set-Cookie", "")
    assert DESK.done == [action]


# FastAPI


async def session_id(request: Request) -> str:
    return str(request.session.setdefault("id", secrets.token_urlsafe(16)))


def door_of_fastapi(dedup: Dedup) -> FastAPI:
    app = FastAPI()
    Idempotency(app, dedup)
    app.add_middleware(SessionMiddleware, secret_key="only for tests")

    @app.get("/door")
    async def form(request: Request) -> PlainTextResponse:
        token = await dedup.tokens.issue(subject=await session_id(request))
        return PlainTextResponse(f'name=one_time_token value="{token}"')

    @app.post("/door")
    async def door(
        request: Request,
        claim: Annotated[Claim, OneTimeToken(subject=session_id)],
        do: Annotated[str, Form()],
    ) -> PlainTextResponse:
        request.session.clear()
        if do == "in":
            request.session["user"] = "ann"
        DESK.did(do)
        return PlainTextResponse(SECRET)

    return app


@pytest.mark.parametrize("action", ["in", "out"])
@pytest.mark.parametrize("cookie", ["old", "new"])
async def test_fastapi_says_that_it_was_done(action: str, cookie: str) -> None:
    dedup = Dedup("memory://", namespace="t")
    async with dedup, client(door_of_fastapi(dedup), raises=True, **HTML) as http:
        data = {"one_time_token": token_in((await http.get("/door")).text), "do": action}
        old = http.cookies["session"]
        await http.post("/door", data=data)
        if cookie == "old":
            http.cookies.clear()
            http.cookies.set("session", old)
        second = await http.post("/door", data=data)
    assert (second.status_code, SECRET in second.text) == ((200, True) if cookie == "old" else (409, False))
    assert cookie == "old" or TOLD in second.text
    assert "set-cookie" not in second.headers
    assert DESK.done == [action]
