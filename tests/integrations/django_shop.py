"""A small shop in Django for `test_django_*`: its settings, its views, and a browser that stands in front of it."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from html import unescape
from types import SimpleNamespace
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django import forms
from django.db import connections
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.template.response import TemplateResponse
from django.test import AsyncClient, Client, override_settings
from django.urls import path
from django.utils.decorators import method_decorator
from django.views.decorators.http import require_POST
from django.views.generic import FormView

from fastdedup.integrations.django import OneTimeFormMixin, claim_of, everyone, one_time_form, reopen

_PAGE = """{% load fastdedup %}{% one_time_notice %}<form method="post">{% csrf_token %}
{% block form %}{{ form.as_p }}{% endblock %}</form>"""
_TAG = """{% extends "page.html" %}{% load fastdedup %}{% block form %}{% one_time_token %}{% endblock %}"""

APP = "fastdedup.integrations.django"
SETTINGS: dict[str, Any] = {
    "ROOT_URLCONF": __name__,
    "SESSION_ENGINE": "django.contrib.sessions.backends.signed_cookies",
    "MIDDLEWARE": [
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.middleware.csrf.CsrfViewMiddleware",
        f"{__name__}.signed_in",
    ],
    "TEMPLATES": [
        {
            "BACKEND": "django.template.backends.django.DjangoTemplates",
            "OPTIONS": {
                "context_processors": ["django.template.context_processors.request"],
                "loaders": [
                    (
                        "django.template.loaders.locmem.Loader",
                        {"page.html": _PAGE, "tag.html": _TAG},
                    )
                ],
            },
        }
    ],
}


@dataclass
class Desk:
    """What the views do, and how a test holds them up."""

    orders: list[str] = field(default_factory=list)
    fails: bool = False
    started: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    go_on: threading.Event = field(default_factory=threading.Event)

    def order(self, item: str) -> int:
        self.started.release()
        assert self.go_on.wait(30)
        if self.fails:
            raise RuntimeError("the printer is on fire")
        self.orders.append(item)
        return len(self.orders)

    def reset(self) -> None:
        self.__init__()  # type: ignore[misc]
        self.go_on.set()


DESK = Desk()


@contextmanager
def atomic_requests() -> Iterator[None]:
    """Within the block: ATOMIC_REQUESTS, over a database in memory."""
    database = {**connections.settings["default"], "ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(connections.settings, "default", {**database, "ATOMIC_REQUESTS": True})
        patch.delattr(connections._connections, "default", raising=False)
        yield
        opened = connections["default"].connection
        if opened is not None:
            opened.close()  # Django leaves a database in memory open; Python 3.13 warns of that
        del connections["default"]


@contextmanager
def open_shop(**settings: Any) -> Iterator[Desk]:
    """The shop, with these settings as well; its gate is closed at the end."""
    DESK.reset()
    # In two steps: what is installed looks at the settings when it is.
    with override_settings(**{**SETTINGS, **settings}), override_settings(INSTALLED_APPS=[APP]):
        yield DESK


def behind_middleware(
    url: str, rules: Mapping[str, Any] | None = None, **settings: Any
) -> AbstractContextManager[Desk]:
    """The shop behind the middleware alone, where everyone shares keys unless `rules` say who a caller is."""
    return open_shop(
        MIDDLEWARE=[f"{APP}.IdempotencyMiddleware"],
        FASTDEDUP={"url": url, "namespace": "t", "timeout": 5.0},
        FASTDEDUP_HTTP={"principal": everyone, **(rules or {})},
        **settings,
    )


# Middleware and views


def signed_in(get_response: Callable[[HttpRequest], Any]) -> Callable[[HttpRequest], Any]:
    """As AuthenticationMiddleware, without a database."""

    def middleware(request: Any) -> Any:
        request.user = SimpleNamespace(pk=request.session.get("user"))
        return get_response(request)

    return middleware


def sign_in(request: Any, name: str) -> HttpResponse:
    request.session.cycle_key()
    request.session["user"] = name
    return HttpResponse()


def sign_out(request: Any) -> HttpResponse:
    request.session.flush()
    return HttpResponse()


class OrderForm(OneTimeFormMixin, forms.Form):
    item = forms.CharField(max_length=20)
    note = forms.CharField(required=False)


@one_time_form
def order(request: Any) -> HttpResponse:
    form = OrderForm(request.POST or None, request=request)
    if request.method == "POST" and form.is_valid():
        assert set(form.cleaned_data) == {"item", "note"}
        return redirect(f"/orders/{DESK.order(form.cleaned_data['item'])}")
    return render(request, "page.html", {"form": form})


@one_time_form()
async def aorder(request: Any) -> HttpResponse:
    form = OrderForm(request.POST or None, request=request)
    if request.method == "POST" and form.is_valid():
        return redirect(f"/orders/{DESK.order(form.cleaned_data['item'])}")
    return render(request, "page.html", {"form": form})


@method_decorator(one_time_form, name="dispatch")
class OrderView(FormView):  # type: ignore[misc]
    """Renders late: FormView answers with a TemplateResponse."""

    form_class = OrderForm
    template_name = "page.html"

    def get_form_kwargs(self) -> dict[str, Any]:
        return {**super().get_form_kwargs(), "request": self.request}

    def form_valid(self, form: OrderForm) -> HttpResponse:
        return redirect(f"/orders/{DESK.order(form.cleaned_data['item'])}")


@one_time_form(wait=0.0)
def tagged(request: Any) -> HttpResponseBase:
    """A form by hand, answered by a page, not a redirect."""
    if request.method != "POST":
        return render(request, "tag.html")
    number = DESK.order(request.POST["item"])
    claim = claim_of(request)
    assert claim is not None
    assert claim.fence > 0
    return HttpResponse(f"order {number}")


@one_time_form
def late(request: Any) -> HttpResponseBase:
    """Answers by a TemplateResponse, rendered after the view; its form fails while it is rendered, where asked to."""
    if request.method == "POST":
        DESK.order(request.POST["item"])
    extra = {"form": _Broken()} if request.POST.get("item") == "broken" else {}
    return TemplateResponse(request, "page.html" if extra else "tag.html", extra)


class _Broken:
    def as_p(self) -> str:
        raise RuntimeError("cannot be rendered")


@one_time_form
def declined(request: Any) -> HttpResponse:
    if request.method == "POST":
        DESK.order("declined card")
        reopen(request)
        return redirect("/declined")
    return render(request, "tag.html")


@one_time_form(refused=lambda request, error: HttpResponse(f"own page: {error.reason}", status=418))
def own_page(request: Any) -> HttpResponse:
    return HttpResponse("never")


@one_time_form
@require_POST
def only_post(request: Any) -> HttpResponse:
    return HttpResponse(f"order {DESK.order(request.POST['item'])}")


@require_POST
@one_time_form
def careless(request: Any) -> HttpResponse:
    return HttpResponse(f"order {DESK.order('tea')}")  # looks at nothing: require_POST has let it through


@one_time_form(subject=lambda request: request.GET.get("who"))
def named(request: Any) -> HttpResponse:
    if request.method == "POST":
        return HttpResponse(f"order {DESK.order('tea')}")
    return render(request, "tag.html")


@one_time_form(max_response=10)
def long(request: Any) -> HttpResponse:
    if request.method == "POST":
        return HttpResponse(f"order {DESK.order('tea')}" + "!" * 10)
    return render(request, "tag.html")


@one_time_form
def upload(request: Any) -> HttpResponse:
    if request.method == "POST":
        return HttpResponse(f"order {DESK.order(request.FILES['file'].read().decode())}")
    return render(request, "tag.html")


urlpatterns = [
    path("in/<name>", sign_in),
    path("out", sign_out),
    path("sync", order),
    path("async", aorder),
    path("class", OrderView.as_view()),
    path("tagged", tagged),
    path("late", late),
    path("declined", declined),
    path("own", own_page),
    path("only-post", only_post),
    path("careless", careless),
    path("named", named),
    path("long", long),
    path("upload", upload),
]


# In front of it


class Page:
    """A response as a browser has it: its form can be sent, again and again."""

    def __init__(self, response: Any) -> None:
        self.response = response
        self.status = response.status_code
        self.headers = response.headers
        self.text = "" if response.streaming else response.content.decode()

    def fields(self) -> dict[str, str]:
        inputs = re.findall(r"<input[^>]*>", self.text)
        pairs = [(_attribute("name", one), _attribute("value", one)) for one in inputs]
        return {name: value for name, value in pairs if name}

    @property
    def token(self) -> str:
        return self.fields()["one_time_token"]


def _attribute(name: str, tag: str) -> str:
    found = re.search(rf'\b{name}="([^"]*)"', tag)
    return unescape(found[1]) if found else ""


class Browser:
    """A visitor with cookies, in front of Django's WSGI or ASGI handler; CSRF is checked."""

    def __init__(self, kind: str, **headers: str) -> None:
        self._async = kind == "asgi"
        make = AsyncClient if self._async else Client
        self.client = make(enforce_csrf_checks=True, raise_request_exception=False)
        self._headers = headers

    def get(self, url: str, **headers: str) -> Page:
        return Page(self._call(self.client.get)(url, headers=headers))

    def send(self, url: str, form: Page, *, token: str | None = None, **fields: Any) -> Page:
        """Fill in a form, and send it."""
        values: dict[str, Any] = {**form.fields(), **fields}
        if token is not None:
            values["one_time_token"] = token
        return Page(self._call(self.client.post)(url, values, headers=self._headers))

    def post(self, url: str, data: Any = "", **headers: str) -> Page:
        post = self._call(self.client.post)
        return Page(post(url, data, content_type="application/json", headers=headers))

    def twice(self, url: str, form: Page, **fields: Any) -> list[Page]:
        """A double click: both at once."""
        with ThreadPoolExecutor(2) as pool:
            return list(pool.map(lambda _: self.send(url, form, **fields), range(2)))

    def _call(self, method: Any) -> Callable[..., Any]:
        async def call(*args: Any, **kwargs: Any) -> Any:
            return await method(*args, **kwargs)

        return async_to_sync(call) if self._async else method
