"""Views of Django that commit with their response, and their database."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connections, transaction
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.template import engines
from django.template.response import TemplateResponse
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View

from fastdedup.integrations.django import by_header, commits
from fastdedup.sync.sql import Inbox

from ..gated_inbox.times import WEEK
from .bank import tables

URLS = __name__
INBOX = Inbox("django", keep=WEEK)
once = commits(INBOX, principal=by_header("x-account"))


class Till:
    """What the views do after their work, and how often they ran."""

    def __init__(self) -> None:
        self.runs = 0
        self.act: Callable[[HttpRequest], Any] = self.usual

    def usual(self, request: HttpRequest) -> JsonResponse:
        return JsonResponse({"run": self.runs}, status=201)


TILL = Till()


def insert(note: str) -> None:
    """Leave an effect behind."""
    with connections["default"].cursor() as cursor:
        cursor.execute("INSERT INTO work VALUES (%s)", [note])


@once
def pay(request: HttpRequest, number: int) -> Any:
    """Pay."""
    TILL.runs += 1
    insert(json.loads(request.body)["note"])
    return TILL.act(request)


@method_decorator(once, name="dispatch")
class Payments(View):  # type: ignore[misc] # Django ships no types
    """Pay, in a class."""

    def put(self, request: HttpRequest) -> HttpResponse:
        TILL.runs += 1
        insert("put")
        return JsonResponse({"run": TILL.runs})


def late(request: HttpRequest) -> TemplateResponse:
    """Answer with a template that is rendered later, and asks the database."""
    template = engines["django"].from_string("{{ count }}")

    def count() -> int:
        return len(effects())

    return TemplateResponse(request, template, {"count": count})


def doomed(request: HttpRequest) -> JsonResponse:
    """Answer with success, and have the transaction rolled back."""
    transaction.set_rollback(True)
    return JsonResponse({})


urlpatterns = [path("payments/<int:number>", pay), path("class", Payments.as_view())]


def within_a_transaction(get_response: Callable[[HttpRequest], Any]) -> Callable[[HttpRequest], Any]:
    """Begin a transaction around each view: a middleware."""

    def middleware(request: HttpRequest) -> Any:
        with transaction.atomic():
            return get_response(request)

    return middleware


def effects() -> list[str]:
    """Return the notes of all work, in the view of this thread's connection."""
    with connections["default"].cursor() as cursor:
        cursor.execute("SELECT note FROM work")
        return [note for (note,) in cursor.fetchall()]


@contextmanager
def open_database(**database: Any) -> Iterator[None]:
    """Have a database as Django's default one; with the tables, if `dialect` names their kind."""
    dialect = database.pop("dialect", None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(connections.settings, "default", {**connections.settings["default"], **database})
        patch.delattr(connections._connections, "default", raising=False)
        if dialect is not None:
            with connections["default"].cursor() as cursor:
                for statement in tables(dialect):
                    cursor.execute(statement)
        yield
        connections["default"].close()
        del connections["default"]
