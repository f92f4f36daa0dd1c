"""The example application in Django: async views, and plain ones that Django runs in threads."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse, HttpResponseBase, StreamingHttpResponse
from django.urls import path

from .desk import Made, pieces


async def call(request: HttpRequest, name: str) -> HttpResponseBase:
    desk = request.scope["desk"]  # type: ignore[attr-defined]
    return response_of(await desk.work(name, request.body, request.scope))  # type: ignore[attr-defined]


async def upload(request: HttpRequest) -> HttpResponseBase:
    desk = request.scope["desk"]  # type: ignore[attr-defined]
    return response_of(await desk.work("upload", request.FILES["file"].read()))  # type: ignore[union-attr]


def call_in_thread(request: HttpRequest, name: str) -> HttpResponseBase:
    return response_of(request.scope["desk"].work_in_thread(name, request.body))  # type: ignore[attr-defined]


def response_of(made: Made) -> HttpResponseBase:
    streamed = not isinstance(made.body, bytes)
    kind: Any = StreamingHttpResponse if streamed else HttpResponse
    response = kind(pieces(made.body) if streamed else made.body, status=made.status, content_type=made.kind)
    for name, value in made.headers:
        if name == "set-cookie":
            response.set_cookie(*value.split("="))
        else:
            response[name] = value
    return response


urlpatterns = [
    path("upload", upload),
    path("sync/<str:name>", call_in_thread),
    path("<str:name>", call),
]
