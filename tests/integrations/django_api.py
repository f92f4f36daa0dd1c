"""Views for keys in Django: one that answers in many ways, plain and async, decorated and not."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Iterator
from io import BytesIO
from typing import Any

from asgiref.sync import sync_to_async
from django.core.exceptions import PermissionDenied
from django.http import FileResponse, Http404, HttpResponse, HttpResponseBase, StreamingHttpResponse
from django.template import engines
from django.template.response import TemplateResponse
from django.urls import path
from django.utils.decorators import async_only_middleware, method_decorator
from django.utils.translation import get_language
from django.views import View
from ninja import NinjaAPI

from fastdedup.integrations.django import by_header, by_user, claim_of, gate, idempotent

from .django_shop import DESK, sign_in


def exempt(view: Any) -> Any:
    """As csrf_exempt, which knows async views only since Django 5.0."""
    view.csrf_exempt = True
    return view


class Numbers(StreamingHttpResponse):
    """Makes the bytes of its parts in its own way."""

    def make_bytes(self, value: Any) -> bytes:
        return value if isinstance(value, bytes) else b"%d;" % value


def answer(request: Any, name: str) -> HttpResponseBase:
    """Make an order, and answer in the way that the path names."""
    number = DESK.order(request.body.decode("utf-8", "replace")[:20] if name != "form" else request.POST["a"])
    match name:
        case "absent":
            raise Http404
        case "denied":
            raise PermissionDenied
        case "large":
            return HttpResponse(b"x" * 5000)
        case "file":
            return FileResponse(BytesIO(b"a file"), filename="a.txt")
        case "numbers":
            return Numbers([1, 2])
        case "late":
            return TemplateResponse(request, engines["django"].from_string("order {{ n }}"), {"n": number})
        case "lost":
            claim = claim_of(request)
            assert claim is not None
            claim.release()
        case "overtaken":
            claim = claim_of(request)
            assert claim is not None
            http = gate().scoped("http")
            http.forget(claim.key)
            assert http.claim(claim.key).acquired
    response = HttpResponse(f"order {number}", status=201, headers={"X-Order": "é"})
    response.set_cookie("seen", "yes", httponly=True, samesite="Lax", path="/x")
    return response


def plain(request: Any, name: str) -> HttpResponseBase:
    if name in ("stream", "broken", "events"):
        return StreamingHttpResponse(_chunks(name), content_type=_kind(name))
    return answer(request, name)


async def awaited(request: Any, name: str) -> HttpResponseBase:
    if name in ("stream", "broken", "events"):
        return StreamingHttpResponse(_achunks(name), content_type=_kind(name))
    if name.startswith("slow"):
        return await slow(request, name)
    return await sync_to_async(answer)(request, name)


async def slow(request: Any, name: str) -> HttpResponseBase:
    """Waits without blocking the loop; then answers whole, late, or by a stream."""
    DESK.started.release()
    await asyncio.to_thread(DESK.go_on.wait, 30)
    DESK.orders.append(name)
    text = f"order {len(DESK.orders)}"
    match name:
        case "slow-late":
            return TemplateResponse(request, engines["django"].from_string(text))
        case "slow-stream" | "slow-events":
            return StreamingHttpResponse(_achunks("stream"), content_type=_kind(name))
    return HttpResponse(text)


def _kind(name: str) -> str | None:
    return "text/event-stream" if name.endswith("events") else None


def _chunks(name: str) -> Iterator[bytes]:
    yield b"order "
    if name == "broken":
        raise RuntimeError("the line broke")
    yield b"%d" % DESK.order(name)


async def _achunks(name: str) -> AsyncIterator[bytes]:
    for chunk in _chunks(name):
        yield chunk


def visitor(request: Any) -> str:
    """The signed-in user; all visitors who are not signed in are one guest, which a shop may decide."""
    return by_user(request) or "guest"


def keyholder(request: Any) -> str:
    return by_header("x-api-key")(request) or "guest"


@exempt
@idempotent(principal=keyholder, required=True)
def decorated(request: Any, name: str) -> HttpResponseBase:
    return plain(request, name)


@exempt
@idempotent(principal="tests.integrations.django_api.async_user", required=True, wait=5.0)
async def adecorated(request: Any, name: str) -> HttpResponseBase:
    return await awaited(request, name)


async def async_user(request: Any) -> str:
    await asyncio.sleep(0)
    return visitor(request)


@method_decorator([exempt, idempotent(principal=visitor, required=True)], name="dispatch")
class Decorated(View):  # type: ignore[misc]
    def post(self, request: Any, name: str) -> HttpResponseBase:
        return plain(request, name)

    def get(self, request: Any, name: str) -> HttpResponseBase:
        return HttpResponse("shown")


@method_decorator([exempt, idempotent(principal=visitor, required=True)], name="dispatch")
class AsyncDecorated(View):  # type: ignore[misc]
    async def post(self, request: Any, name: str) -> HttpResponseBase:
        return await awaited(request, name)

    async def get(self, request: Any, name: str) -> HttpResponseBase:
        return HttpResponse("shown")


@exempt
@idempotent(required=True)
def by_settings(request: Any, name: str) -> HttpResponseBase:
    return plain(request, name)


@async_only_middleware  # type: ignore[untyped-decorator] # Django ships no types
def held_back(get_response: Any) -> Any:
    """A middleware that works on a response for a while before it is sent."""

    async def middleware(request: Any) -> Any:
        response = await get_response(request)
        DESK.started.release()
        await asyncio.to_thread(DESK.go_on.wait, 30)
        return response

    return middleware


def answering_itself(view: Any) -> Any:
    """Decorates a view with one that sends a response of its own in the place of one that has still to come."""

    @functools.wraps(view)
    def other(request: Any, name: str) -> HttpResponse:
        made = view(request, name)
        return HttpResponse("another") if made.streaming or hasattr(made, "render") else made

    return other


@exempt
@answering_itself
@idempotent(principal=visitor)
def replaced(request: Any, name: str) -> HttpResponseBase:
    answer(request, "late")
    if name in ("stream", "events"):
        return StreamingHttpResponse(iter([b"never"]), content_type=_kind(name))
    status = 500 if name == "failed" else 200
    return TemplateResponse(request, engines["django"].from_string("never"), status=status)


@exempt
@idempotent(principal=visitor)
def localized(request: Any) -> HttpResponse:
    return HttpResponse(get_language())


ninja = NinjaAPI(urls_namespace="mixed")
"""Has a plain and an async operation at one path, so that Ninja's view of that path is async."""


@ninja.post("/{name}")  # type: ignore[untyped-decorator]
def ninja_order(request: Any, name: str) -> HttpResponseBase:
    return answer(request, name)


@ninja.get("/{name}")  # type: ignore[untyped-decorator]
async def ninja_page(request: Any, name: str) -> HttpResponse:
    return HttpResponse("shown")


class Undecorated(View):  # type: ignore[misc]
    @idempotent(principal=by_user)
    def post(self, request: Any) -> HttpResponse:
        return HttpResponse()


urlpatterns = [
    path("in/<name>", sign_in),
    path("sync/<name>", exempt(plain)),
    path("async/<name>", exempt(awaited)),
    path("decorated/<name>", decorated),
    path("adecorated/<name>", adecorated),
    path("class/<name>", Decorated.as_view()),
    path("aclass/<name>", AsyncDecorated.as_view()),
    path("settings/<name>", by_settings),
    path("replaced/<name>", replaced),
    path("ninja/", ninja.urls),
    path("localized", localized),
    path("undecorated", exempt(Undecorated.as_view())),
]
