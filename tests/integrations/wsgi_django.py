"""The handler of a test as a Django view. It is no project of its own: settings are those of `django_project`."""

from __future__ import annotations

from typing import Any

from django.core.handlers.wsgi import WSGIHandler, WSGIRequest
from django.http import HttpRequest, HttpResponse, HttpResponseBase, StreamingHttpResponse
from django.urls import re_path

from . import django_project as django_project  # sets Django up
from .wsgi_apps import App, Call, Handler, Reply

_HANDLER = "tests.handler"


class Request(WSGIRequest):  # type: ignore[misc]  # Django has no types
    """A request for the view below, whatever ROOT_URLCONF is."""

    urlconf = __name__


class Application(WSGIHandler):  # type: ignore[misc]
    request_class = Request


def application(handler: Handler) -> App:
    django = Application()

    def app(environ: dict[str, Any], start_response: Any) -> Any:
        return django(environ | {_HANDLER: handler}, start_response)

    return app


def view(request: HttpRequest) -> HttpResponseBase:
    return response_of(request.META[_HANDLER](Call(request.META, request.body)))


def response_of(reply: Reply) -> HttpResponseBase:
    whole = isinstance(reply.body, bytes)
    response = (HttpResponse if whole else StreamingHttpResponse)(reply.body, status=reply.status)
    del response["Content-Type"]  # the handler's own, if it has one
    for name, value in reply.headers:
        if name.lower() == "set-cookie":
            response.cookies.load(value)
        else:
            response[name] = value
    return response


urlpatterns = [re_path("", view)]
