"""What an application's functions return or raise means the same on every face of the web."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import flask
import pytest
from asgiref.sync import async_to_sync
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import path
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from fastdedup import Dedup, sync
from fastdedup.integrations import asgi, fastapi, starlette, wsgi
from fastdedup.integrations import django as for_django
from fastdedup.integrations import flask as for_flask
from fastdedup.tasks import running_loop

from ..integrations import django_project as django_project  # sets Django up
from ..integrations.desk import client
from ..integrations.django_shop import open_shop

KEY = {"idempotency-key": "k"}
Answers = list[tuple[str, str | None]]
"""The text of each answer, and whether it was a replay."""


class Counting:
    """An endpoint that answers by its number of runs."""

    def __init__(self) -> None:
        self.runs = 0

    def __call__(self) -> str:
        self.runs += 1
        return str(self.runs)


@async_to_sync
async def with_asgi(kind: str, settings: dict[str, Any], work: Counting) -> Answers:
    async with Dedup("memory://", namespace="t") as dedup:

        async def endpoint(request: Request) -> PlainTextResponse:
            return PlainTextResponse(work())

        decorated = starlette.idempotent(dedup, **settings)(endpoint) if kind == "starlette" else endpoint
        app: Any = Starlette(routes=[Route("/", decorated, methods=["POST"])])
        if kind == "asgi":
            app = asgi.IdempotencyMiddleware(app, dedup, **settings)
        elif kind == "fastapi":
            app, principal = FastAPI(), settings["principal"]
            fastapi.Idempotency(app, dedup)
            given: Any = {**settings, "principal": lambda: principal(None)}
            app.post("/", dependencies=[fastapi.Claimed(**given)], response_class=PlainTextResponse)(
                lambda: work()
            )
        async with client(app, raises=True) as visitor:
            answers = [await visitor.post("/", headers=KEY) for _ in range(2)]
    return [(answer.text, answer.headers.get("idempotency-replayed")) for answer in answers]


def with_wsgi(kind: str, settings: dict[str, Any], work: Counting) -> Answers:
    shop = flask.Flask("shop")
    with sync.Dedup("memory://", namespace="t") as dedup:
        view: Any = lambda: work()  # noqa: E731
        if kind == "flask":
            for_flask.FastDedup(shop, dedup)
            view = for_flask.idempotent(**settings)(view)
        else:
            shop.wsgi_app = wsgi.IdempotencyMiddleware(shop.wsgi_app, dedup, **settings)  # type: ignore[method-assign]
        shop.post("/")(view)
        answers = [shop.test_client().post("/", headers=KEY) for _ in range(2)]
    return [(answer.text, answer.headers.get("idempotency-replayed")) for answer in answers]


def with_django(kind: str, settings: dict[str, Any], work: Counting) -> Answers:
    @for_django.idempotent(**settings)
    def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse(work())

    with open_shop(ROOT_URLCONF=(path("", view),), FASTDEDUP={"url": "memory://"}):
        answers: list[Any] = [Client(headers=KEY).post("/") for _ in range(2)]
    return [(answer.content.decode(), answer.headers.get("idempotency-replayed")) for answer in answers]


FACES = {
    **dict.fromkeys(["asgi", "starlette", "fastapi"], with_asgi),
    **dict.fromkeys(["wsgi", "flask"], with_wsgi),
    "django": with_django,
}


@pytest.mark.parametrize("face", list(FACES))
def test_a_response_is_kept_if_keep_raises(face: str, caplog: pytest.LogCaptureFixture) -> None:
    """The key was freed on one face, and held on another. A function that never works is refused at the start."""
    work, loops = Counting(), list[Any]()

    def keep(status: int) -> bool:
        if work.runs:
            loops.append(running_loop())
            raise LookupError("secret")
        return True

    answers = FACES[face](face, {"principal": lambda request: "ann", "keep": keep}, work)
    assert answers == [("1", None), ("1", "true")]
    (line,) = [record.getMessage() for record in caplog.records if record.name == "fastdedup.web"]
    assert "LookupError at keep" in line
    assert "secret" not in line
    assert loops.pop() is None or FACES[face] is with_asgi  # else a keep= that asks Django's database failed


@pytest.mark.parametrize("face", list(FACES))
@pytest.mark.parametrize("name", [7, UUID(int=7)])
def test_a_principal_may_be_a_number_or_a_uuid(face: str, name: Any) -> None:
    """It has the keys of its text. Most faces refused it."""
    work = Counting()
    answers = FACES[face](face, {"principal": lambda request: name if work.runs else str(name)}, work)
    assert answers == [("1", None), ("1", "true")]
