"""Django under a real WSGI server, which does not tell that a client has left within its body."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fastdedup.sync import Dedup

from . import django_project as django_project  # sets Django up
from .test_wsgi_server import running, werkzeug_server

from django.core.handlers.wsgi import WSGIHandler  # isort: skip
from django.http import HttpRequest, HttpResponse  # isort: skip
from django.test import override_settings  # isort: skip
from django.urls import path  # isort: skip
from fastdedup.integrations.django import everyone, idempotent, one_time_form  # isort: skip

ITEMS = list[str]()


def order(request: HttpRequest) -> HttpResponse:
    ITEMS.append(request.POST["item"])
    return HttpResponse("ordered")


def after_parsing(view: Any) -> Callable[[HttpRequest], Any]:
    """Read the form before the view, as CsrfViewMiddleware does."""
    return lambda request: view(request) if len(request.POST) else HttpResponse(status=418)


keyed = idempotent(principal=everyone)(order)
one_time = one_time_form(subject=lambda request: "ann")(order)
VIEWS = {
    "keyed": keyed,
    "keyed-parsed": after_parsing(keyed),
    "form": one_time,
    "form-parsed": after_parsing(one_time),
}
urlpatterns = [path(name, view) for name, view in VIEWS.items()]


@pytest.fixture
def dedup(redis_url: str) -> Iterator[Dedup]:
    with (
        Dedup(redis_url, namespace="t") as dedup,
        override_settings(FASTDEDUP=dedup, FASTDEDUP_HTTP={}, ROOT_URLCONF=__name__),
    ):
        ITEMS.clear()
        yield dedup


def post(port: int, path: str, kind: str, body: bytes, length: int) -> bytes:
    """Send a request and no more, and return the answer's first line."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        head = (
            f"POST /{path} HTTP/1.0\r\nHost: a\r\nIdempotency-Key: k\r\n"
            f"Content-Type: {kind}\r\nContent-Length: {length}\r\n\r\n"
        )
        client.sendall(head.encode() + body)
        client.shutdown(socket.SHUT_WR)
        with client.makefile("rb") as answer:
            return answer.readline()


def urlencoded(token: str) -> tuple[str, bytes]:
    return "application/x-www-form-urlencoded", f"one_time_token={token}&item=green+tea".encode()


def multipart(token: str) -> tuple[str, bytes]:
    parts = {"one_time_token": token, "item": "green tea"}
    lines = [
        f'--b\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in parts.items()
    ]
    return "multipart/form-data; boundary=b", "".join([*lines, "--b--\r\n"]).encode()


@pytest.mark.parametrize("encode", [urlencoded, multipart])
@pytest.mark.parametrize("view", VIEWS)
def test_half_a_body_takes_no_key(
    dedup: Dedup, view: str, encode: Callable[[str], tuple[str, bytes]]
) -> None:
    """Else its half would be ordered, and the retry with the whole refused as another request."""
    kind, body = encode(dedup.tokens.issue(subject="ann"))
    half = body[: body.index(b"tea")]
    with running(werkzeug_server, WSGIHandler()) as port:
        assert b" 400 " in post(port, view, kind, half, len(body))
        assert ITEMS == []
        assert [b" 200 " in post(port, view, kind, body, len(body)) for _ in range(2)] == [True, True]
    assert ITEMS == ["green tea"]
