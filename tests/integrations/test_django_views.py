"""`@idempotent`, the template tags and the form mixin in Django; transactions; the settings."""

from __future__ import annotations

from typing import Any

import pytest
from django import forms
from django.core.exceptions import ImproperlyConfigured
from django.db import IntegrityError, connection, transaction
from django.http import HttpRequest, HttpResponse
from django.template import Context, Template
from django.test import AsyncRequestFactory, Client, RequestFactory, override_settings

from fastdedup import ConfigError, Outcome
from fastdedup.integrations.django import (
    OneTimeFormMixin,
    aissue_token,
    claim_of,
    everyone,
    gate,
    idempotent,
    issue_token,
    one_time_form,
)
from fastdedup.sync import Dedup

from ..fixtures import fixture_of, fixture_with
from . import django_project as django_project  # sets Django up
from .django_shop import APP, DESK, SETTINGS, Browser, Desk, atomic_requests, open_shop

KEY = {"Idempotency-Key": "k1"}
VIEWS = ["decorated", "adecorated", "class", "aclass"]


@pytest.fixture(params=["wsgi", "asgi"])
def browser(request: pytest.FixtureRequest) -> Browser:
    return Browser(request.param)


desk = fixture_with(
    lambda redis_url: open_shop(
        ROOT_URLCONF="tests.integrations.django_api",
        FASTDEDUP={"url": redis_url, "namespace": "t", "timeout": 5.0},
    )
)
atomic = fixture_of(atomic_requests)


def a_request(**data: str) -> Any:
    request = RequestFactory().post("/", data) if data else RequestFactory().get("/")
    request.session = gate_session()
    return request


def gate_session() -> Any:
    from django.contrib.sessions.backends.signed_cookies import SessionStore

    return SessionStore()


class TestIdempotent:
    @pytest.mark.parametrize("view", VIEWS)
    def test_a_view_runs_once_for_a_key(self, desk: Desk, browser: Browser, view: str) -> None:
        pages = [browser.post(f"/{view}/ok", **KEY) for _ in range(2)]

        assert [(page.status, page.text) for page in pages] == [(201, "order 1")] * 2
        assert pages[1].headers["idempotency-replayed"] == "true"
        assert len(desk.orders) == 1

    @pytest.mark.parametrize("view", VIEWS)
    def test_a_key_is_required(self, desk: Desk, browser: Browser, view: str) -> None:
        assert browser.post(f"/{view}/ok").status == 400
        assert desk.orders == []

    @pytest.mark.parametrize("view", VIEWS)
    def test_an_exception_releases(self, desk: Desk, browser: Browser, view: str) -> None:
        desk.fails = True
        assert browser.post(f"/{view}/ok", **KEY).status == 500
        desk.fails = False

        assert browser.post(f"/{view}/ok", **KEY).status == 201
        assert [browser.post(f"/{view}/absent", **KEY).status for _ in range(2)] == [422, 422]
        assert [browser.post(f"/{view}/absent", **{"Idempotency-Key": "k2"}).status for _ in range(2)] == [
            404,
            404,
        ]
        assert len(desk.orders) == 3

    @pytest.mark.parametrize("view", VIEWS)
    def test_a_template_is_kept_as_it_was_rendered(self, desk: Desk, browser: Browser, view: str) -> None:
        assert [browser.post(f"/{view}/late", **KEY).text for _ in range(2)] == ["order 1"] * 2

    @pytest.mark.parametrize(
        ("name", "again", "runs"),
        [("done", 409, 1), ("failed", 200, 2), ("stream", 409, 1), ("events", 200, 2)],
    )
    def test_a_response_that_is_never_sent_settles_by_its_status(
        self, desk: Desk, browser: Browser, name: str, again: int, runs: int
    ) -> None:
        """A decorator sends another response, so there is no body that a duplicate could get."""
        with override_settings(FASTDEDUP_HTTP={"wait": 10.0}):
            first = browser.post(f"/replaced/{name}", **KEY)
            pages = [first, browser.post(f"/replaced/{name}", **KEY)]
        assert [page.status for page in pages] == [200, again]
        assert len(desk.orders) == runs

    def test_a_replay_tells_the_language_of_its_body(self, desk: Desk, browser: Browser) -> None:
        """LocaleMiddleware would tell the language of the retry, which did not choose the text."""
        locale = {"MIDDLEWARE": ["django.middleware.locale.LocaleMiddleware", *SETTINGS["MIDDLEWARE"]]}
        with override_settings(**locale, LANGUAGES=[("de", "German"), ("en", "English")]):
            german = browser.post("/localized", **KEY, **{"Accept-Language": "de"})
            replay = browser.post("/localized", **KEY, **{"Accept-Language": "en"})
        assert [german.text, german.headers["content-language"]] == ["de", "de"]
        assert [replay.text, replay.headers["content-language"]] == ["de", "de"]

    @pytest.mark.parametrize("view", ["class", "aclass"])
    def test_other_methods_pass(self, desk: Desk, browser: Browser, view: str) -> None:
        assert browser.get(f"/{view}/ok").text == "shown"

    def test_settings_are_those_of_the_middleware(self, redis_url: str, browser: Browser) -> None:
        rules = {"principal": everyone, "key_format": "[a-z]+"}
        with open_shop(
            ROOT_URLCONF="tests.integrations.django_api",
            FASTDEDUP={"url": redis_url},
            FASTDEDUP_HTTP=rules,
        ):
            assert browser.post("/settings/ok", **KEY).status == 400
            assert browser.post("/settings/ok").status == 400

    def test_a_principal_is_asked_for(self, desk: Desk) -> None:
        with pytest.raises(ConfigError, match="by_user"):
            idempotent()(lambda request: HttpResponse())(a_request(a="1"))

    def test_mistakes_are_told_where_they_are_made(self, desk: Desk) -> None:
        for settings, told in (
            ({"wiat": 1.0}, "unknown setting 'wiat'"),
            ({"wait": -1.0}, "wait"),
            ({"on_disconnect": "cancel"}, "needs an async view"),
        ):
            with pytest.raises(ConfigError, match=told):
                idempotent(principal=everyone, **settings)(lambda request: HttpResponse())  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="a view must be decorated"):
            one_time_form("subject")  # type: ignore[type-var]

    def test_a_method_that_is_decorated_as_a_function_is_told(self, desk: Desk) -> None:
        from .django_api import Undecorated

        with pytest.raises(ConfigError, match="method_decorator"):
            Undecorated.as_view()(a_request(a="1"))

    def test_a_view_has_its_claim(self, desk: Desk) -> None:
        @idempotent(principal=everyone)
        def view(request: HttpRequest) -> HttpResponse:
            claim = claim_of(request)
            assert claim is not None
            assert claim.outcome is Outcome.ACQUIRED
            assert not claim.lost
            return HttpResponse(str(claim.fence))

        request = RequestFactory().post("/", headers=KEY)
        assert int(view(request).content) > 0
        assert claim_of(RequestFactory().post("/")) is None

    def test_a_view_that_returns_nothing_releases(self, desk: Desk) -> None:
        view = idempotent(principal=everyone)(lambda request: None)
        for _ in range(2):
            with pytest.raises(TypeError, match="must return an HttpResponse"):
                view(RequestFactory().post("/", headers=KEY))


class TestTransactions:
    def test_end_before_the_response_is_stored(
        self, desk: Desk, atomic: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Functions of `on_commit` are called after the COMMIT: the work is done, though one of them fails."""
        from django.core.handlers.base import BaseHandler

        def fail() -> None:
            raise IntegrityError("this fails")

        @idempotent(principal=everyone)
        def view(request: HttpRequest) -> HttpResponse:
            DESK.orders.append("tea")
            assert transaction.get_connection().in_atomic_block
            transaction.on_commit(fail)
            return HttpResponse(f"order {len(DESK.orders)}")

        run = BaseHandler().make_view_atomic(view)
        connection.ensure_connection()
        with monkeypatch.context() as patch:
            patch.setattr(connection, "commit", fail)
            with pytest.raises(IntegrityError, match="this fails"):
                run(RequestFactory().post("/", headers=KEY))
        with pytest.raises(IntegrityError, match="this fails"):
            run(RequestFactory().post("/"))
        assert run(RequestFactory().post("/", headers=KEY)).content == b"order 3"
        assert run(RequestFactory().post("/", headers=KEY)).content == b"order 3"

    @pytest.mark.parametrize(("status", "orders"), [(200, [b"order 1", b"order 2"]), (402, [b"order 1"] * 2)])
    def test_that_are_rolled_back_free_the_key_of_a_success(
        self, desk: Desk, atomic: None, caplog: pytest.LogCaptureFixture, status: int, orders: list[bytes]
    ) -> None:
        """A 402 tells that nothing was done, and is kept."""

        @idempotent(principal=everyone)
        def view(request: HttpRequest) -> HttpResponse:
            DESK.orders.append("tea")
            transaction.set_rollback(True)
            return HttpResponse(f"order {len(DESK.orders)}", status=status)

        assert [view(RequestFactory().post("/", headers=KEY)).content for _ in range(2)] == orders
        told = "its view answered 200, and its transaction is rolled back: the key is freed"
        assert (told in caplog.text) is (status == 200)

    def test_that_end_well_within_are_kept(self, desk: Desk, atomic: None) -> None:
        """A savepoint that was rolled back leaves the rest of the work."""

        @idempotent(principal=everyone)
        def view(request: HttpRequest) -> HttpResponse:
            DESK.orders.append("tea")
            with transaction.atomic():
                transaction.set_rollback(True)
            return HttpResponse(f"order {len(DESK.orders)}")

        assert [view(RequestFactory().post("/", headers=KEY)).content for _ in range(2)] == [b"order 1"] * 2

    def test_are_left_alone_where_the_view_says_so(self, desk: Desk, atomic: None) -> None:
        def view(request: HttpRequest) -> HttpResponse:
            assert not transaction.get_connection().in_atomic_block
            return HttpResponse()

        for one in (
            idempotent(principal=everyone)(transaction.non_atomic_requests(view)),
            transaction.non_atomic_requests(idempotent(principal=everyone)(view)),
        ):
            assert one(RequestFactory().post("/", headers=KEY)).status_code == 200


class TestTheTag:
    def render(self, **context: Any) -> str:
        return Template("{% load fastdedup %}{% one_time_notice %}{% one_time_token %}").render(
            Context(context)
        )

    def test_it_is_a_hidden_field_with_a_new_token(self, desk: Desk) -> None:
        request = a_request()
        first, second = (self.render(request=request) for _ in range(2))

        assert first.startswith('<input type="hidden" name="one_time_token" value="')
        assert first != second

    def test_its_name_is_escaped(self, redis_url: str) -> None:
        with open_shop(FASTDEDUP={"url": redis_url}, FASTDEDUP_HTTP={"field": 'a"b'}):
            assert 'name="a&quot;b"' in self.render(request=a_request())

    def test_it_needs_the_request(self, desk: Desk) -> None:
        from django.core.exceptions import ImproperlyConfigured

        with pytest.raises(ImproperlyConfigured, match="needs the request"):
            self.render()

    def test_it_needs_a_session(self, desk: Desk) -> None:
        from django.core.exceptions import ImproperlyConfigured

        with pytest.raises(ImproperlyConfigured, match="SessionMiddleware"):
            self.render(request=RequestFactory().get("/"))

    async def test_in_an_async_view_it_shows_what_was_issued_beforehand(self, desk: Desk) -> None:
        request = AsyncRequestFactory().get("/")
        request.session = gate_session()
        tokens = [await aissue_token(request) for _ in range(2)]

        rendered = [self.render(request=request) for _ in range(3)]

        assert tokens[0] in rendered[0]
        assert tokens[1] in rendered[1]
        assert not any(token in rendered[2] for token in tokens)

    def test_a_subject_is_ones_own(self, redis_url: str) -> None:
        with open_shop(FASTDEDUP={"url": redis_url}, FASTDEDUP_HTTP={"subject": lambda request: 7}):
            token = issue_token(RequestFactory().get("/"), ttl=60.0)
            assert gate().tokens.consume(token, subject="8") is Outcome.MISMATCH
            assert gate().tokens.consume(token, subject="7") is Outcome.ACQUIRED

    def test_a_subject_is_a_name(self, redis_url: str) -> None:
        with (
            open_shop(FASTDEDUP={"url": redis_url}, FASTDEDUP_HTTP={"subject": lambda request: 7.5}),
            pytest.raises(ConfigError, match="a subject must be text"),
        ):
            issue_token(RequestFactory().get("/"))


class TestTheMixin:
    class Form(OneTimeFormMixin, forms.Form):
        item = forms.CharField(initial="tea")

    def test_it_is_new_whenever_it_is_rendered(self, desk: Desk) -> None:
        form = self.Form(request=a_request())

        assert str(form["one_time_token"]) != str(form["one_time_token"])
        assert 'value="tea"' in str(form["item"])
        assert form.hidden_fields()[0].name == "one_time_token"

    def test_it_says_nothing_itself(self, desk: Desk) -> None:
        request = a_request(**{"a-item": "tea", "one_time_token": "t"})
        form = self.Form(request.POST, prefix="a", request=request, initial={"item": "tea"})

        assert form.is_valid()
        assert form.cleaned_data == {"item": "tea"}
        assert not form.has_changed()
        assert 'name="one_time_token"' in str(form["one_time_token"])

    def test_it_needs_the_request(self) -> None:
        with pytest.raises(TypeError, match="'request'"):
            self.Form()  # type: ignore[call-arg]


# `settings.FASTDEDUP` and `FASTDEDUP_HTTP`: mistakes are told when Django starts, each by its name


MEMORY: dict[str, Any] = {"url": "memory://", "namespace": "t"}
DEDUP = Dedup("memory://", namespace="mine")
EVERYONE = "fastdedup.web.request.everyone"


@pytest.mark.parametrize(
    ("gate", "rules", "told"),
    [
        (None, None, "settings.FASTDEDUP is missing: FASTDEDUP = {"),
        ("redis://localhost", None, "settings.FASTDEDUP cannot be imported"),
        (7, None, "is a dictionary such as"),
        ({"url": "nonsense://"}, None, "settings.FASTDEDUP cannot be used: "),
        ({"urll": "memory://"}, None, "'urll'"),
        ({"url": "memory://", "ttl": -1.0}, None, "ttl"),
        (MEMORY, [], "is a dictionary"),
        (MEMORY, {"principal": "no.such.function"}, "principal cannot be imported"),
        (MEMORY, {"principal": EVERYONE, "wiat": 1.0}, "unknown setting 'wiat'"),
        (MEMORY, {"principal": EVERYONE, "docs": "here"}, "docs must be a path"),
        (MEMORY, {"docs": "here"}, "docs must be a path"),
        (MEMORY, {"docs": "/a\r\n"}, "docs must fit"),
        (MEMORY, {"wiat": 1.0}, "unknown setting 'wiat'"),
        (MEMORY, {"routes": "/orders"}, "routes must be a list"),
        (MEMORY, {"subject": 7}, "subject"),
        (MEMORY, {"field": ""}, "field"),
    ],
)
def test_settings_that_cannot_be_used_are_told_at_the_start(gate: Any, rules: Any, told: str) -> None:
    settings = {"FASTDEDUP": gate} | ({} if rules is None else {"FASTDEDUP_HTTP": rules})
    with (
        override_settings(**settings),
        pytest.raises(ImproperlyConfigured, match=told),
        override_settings(INSTALLED_APPS=[APP]),
    ):
        pass


def test_the_middleware_asks_for_a_principal() -> None:
    middleware = [*SETTINGS["MIDDLEWARE"], "fastdedup.integrations.django.IdempotencyMiddleware"]
    with (
        open_shop(FASTDEDUP=MEMORY, MIDDLEWARE=middleware),
        pytest.raises(ImproperlyConfigured, match="principal= is missing"),
    ):
        Client().get("/")


@pytest.mark.parametrize("given", [DEDUP, f"{__name__}.DEDUP"])
def test_a_gate_of_ones_own_is_taken_as_it_is(given: Any) -> None:
    for _ in range(2):
        with override_settings(FASTDEDUP=given):
            assert gate() is DEDUP
    assert DEDUP.claim("key").acquired  # nobody has closed it
    DEDUP.forget("key")


def test_there_is_one_gate_and_an_override_has_another() -> None:
    with override_settings(FASTDEDUP=MEMORY):
        first = gate()
        assert gate() is first
        with override_settings(FASTDEDUP={"url": "memory://", "namespace": "other"}):
            assert gate().settings.namespace == "other"
        assert gate().settings.namespace == "t"
