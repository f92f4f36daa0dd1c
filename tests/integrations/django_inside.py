"""Views of REST Framework and operations of Ninja, which authenticate inside of the view, by a token each.

Import `django_project` before this module: REST Framework and Ninja read the settings when they are imported.
"""

from __future__ import annotations

import asyncio
from decimal import Decimal
from types import SimpleNamespace
from typing import Annotated, Any

from django.http import HttpRequest, HttpResponse
from django.urls import include, path
from django.utils.decorators import method_decorator
from ninja import Form, NinjaAPI, Router, Schema
from ninja.errors import HttpError
from ninja.pagination import paginate as paginate
from ninja.security import HttpBearer
from rest_framework.authentication import BaseAuthentication
from rest_framework.decorators import action, api_view, authentication_classes
from rest_framework.exceptions import AuthenticationFailed, ValidationError
from rest_framework.parsers import BaseParser, FileUploadParser
from rest_framework.permissions import BasePermission
from rest_framework.response import Response
from rest_framework.routers import SimpleRouter
from rest_framework.views import APIView
from rest_framework.viewsets import ViewSet

from fastdedup.integrations import django as plain
from fastdedup.integrations import drf, ninja

from .django_shop import DESK

__all__ = ["SETTINGS", "APIView", "NinjaAPI", "Router", "View", "drf", "made", "ninja", "order"]
USERS = {"ann's": "ann", "bob's": "bob"}
SETTINGS: dict[str, Any] = {
    "ROOT_URLCONF": __name__,
    "MIDDLEWARE": [],
    "REST_FRAMEWORK": {"UNAUTHENTICATED_USER": None},  # the default is a model, and needs django.contrib.auth
}


# REST Framework


class TokenAuthentication(BaseAuthentication):
    def authenticate(self, request: Any) -> Any:
        token = request.headers.get("Authorization", "").removeprefix("Token ")
        if not token:
            return None
        if token not in USERS:
            raise AuthenticationFailed
        return SimpleNamespace(pk=USERS[token], is_authenticated=True), token


class Reader(BasePermission):
    """Reads the request's data before the handler does."""

    def has_permission(self, request: Any, view: Any) -> bool:
        return request.data is not None


class View(APIView):
    authentication_classes = (TokenAuthentication,)

    @drf.idempotent(principal=drf.by_user)
    def post(self, request: Any, name: str = "ok") -> Any:
        return answered(request, name)


class TextParser(BaseParser):
    """Reads the stream, so that the body cannot be had any more."""

    media_type = "text/plain"

    def parse(self, stream: Any, media_type: Any = None, parser_context: Any = None) -> Any:
        return {"item": stream.read().decode()}


class Parsed(View):
    permission_classes = (Reader,)
    parser_classes = (*View.parser_classes, TextParser)


class TaxParser(BaseParser):
    """Makes a decimal, as parsers of XML do."""

    media_type = "text/xml"

    def parse(self, stream: Any, media_type: Any = None, parser_context: Any = None) -> Any:
        return {"item": Decimal(stream.read().decode())}


class Uploaded(Parsed):
    parser_classes = (TaxParser, FileUploadParser)


class Wrapped(View):
    def finalize_response(self, request: Any, response: Any, *args: Any, **kwargs: Any) -> Any:
        """Send another response, as views do that put all data under one name."""
        if isinstance(response, Response):
            response = Response({"data": response.data})
        return super().finalize_response(request, response, *args, **kwargs)


class Lazy(View):
    def perform_authentication(self, request: Any) -> None:
        """As REST Framework's documentation advises for lazy authentication."""


@method_decorator(plain.idempotent(principal=plain.by_user), name="dispatch")
class Outside(APIView):
    authentication_classes = (TokenAuthentication,)

    def post(self, request: Any) -> Any:
        return answered(request, "ok")


class Orders(ViewSet):
    authentication_classes = (TokenAuthentication,)

    @drf.idempotent(principal=drf.by_user, required=True)
    def create(self, request: Any) -> Any:
        return answered(request, "ok")

    @action(detail=True, methods=["post"])
    @drf.idempotent(principal=drf.by_user)
    def refund(self, request: Any, pk: str) -> Any:
        return answered(request, "ok")


@api_view(["POST"])
@authentication_classes([TokenAuthentication])
@drf.idempotent(principal=drf.by_user)
def function(request: Any) -> Any:
    return answered(request, "ok")


def answered(request: Any, name: str) -> Any:
    number = DESK.order(str(request.data.get("item", "tea")))
    if name == "invalid":
        raise ValidationError({"item": "sold out"})
    if name == "plain":
        return HttpResponse(f"order {number}", status=201)
    assert drf.claim_of(request) is not None or "Idempotency-Key" not in request.headers
    return Response({"order": number}, status=201, headers={"X-Order": str(number)})


# Ninja


class Bearer(HttpBearer):
    def authenticate(self, request: HttpRequest, token: str) -> Any:
        return USERS.get(token)


class ABearer(HttpBearer):
    async def authenticate(self, request: HttpRequest, token: str) -> Any:
        return USERS.get(token)


class Order(Schema):
    item: str = "tea"
    count: int = 1


class Made(Schema):
    order: int


api = NinjaAPI(urls_namespace="inside", auth=Bearer())
post: Any = api.post  # its decorators are typed by the version


@post("/orders", response=Made)
@ninja.idempotent(principal=ninja.by_auth)
def order(request: HttpRequest, body: Order) -> Any:
    return made(request, body)


@post("/async", response=Made, auth=ABearer())
@ninja.idempotent(principal=ninja.by_auth)
async def aorder(request: HttpRequest, body: Order) -> Any:
    if body.item == "slow":
        DESK.started.release()
        await asyncio.to_thread(DESK.go_on.wait, 30)
    return made(request, body)


@post("/open", response=Made, auth=None)
@ninja.idempotent(principal=ninja.by_auth)
def open_order(request: HttpRequest, body: Order) -> Any:
    return made(request, body)


@post("/form", response=Made)
@ninja.idempotent(principal=ninja.by_auth)
def form_order(request: HttpRequest, item: Annotated[str, Form()]) -> Any:
    return made(request, Order(item=item))


def made(request: HttpRequest, body: Order) -> Any:
    number = DESK.order(body.item)
    match body.item:
        case "denied":
            raise HttpError(400, "not today")
        case "misshapen":
            return {"number": number}
        case "broken":
            raise RuntimeError("the printer is on fire")
    return {"order": number}


class OurPages:
    """A middleware that fills the context of each response that is rendered late, and answers all exceptions."""

    def __init__(self, get_response: Any) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> Any:
        return self.get_response(request)

    def process_template_response(self, request: HttpRequest, response: Any) -> Any:
        if response.context_data is not None:
            response.context_data["user"] = "ann"
        return response

    def process_exception(self, request: HttpRequest, exception: Exception) -> Any:
        return HttpResponse("sorry", status=500)


router = SimpleRouter()
router.register("orders", Orders, basename="orders")
urlpatterns = [
    path("drf/view", View.as_view()),
    path("drf/view/<name>", View.as_view()),
    path("drf/parsed", Parsed.as_view()),
    path("drf/uploaded", Uploaded.as_view()),
    path("drf/wrapped", Wrapped.as_view()),
    path("drf/lazy", Lazy.as_view()),
    path("drf/outside", Outside.as_view()),
    path("drf/function", function),
    path("drf/", include(router.urls)),
    path("ninja/", api.urls),
]
