"""One-time forms in Django: each ends in one order, and a page that makes sense."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.test import Client

from fastdedup import LocalLRU

from ..fixtures import fixture_of
from ..servers import RedisServer
from . import django_project as django_project  # sets Django up
from .django_shop import Browser, Desk, Page, open_shop

Visit = Callable[..., Browser]


@pytest.fixture(
    params=[("wsgi", "/sync"), ("asgi", "/async"), ("wsgi", "/class")], ids=lambda each: each[1][1:]
)
def place(request: pytest.FixtureRequest) -> tuple[str, str]:
    """A handler of Django's, and a view of the kind that it calls itself."""
    found: tuple[str, str] = request.param
    return found


@pytest.fixture
def visit(place: tuple[str, str]) -> Visit:
    return lambda **headers: Browser(place[0], **headers)


@pytest.fixture
def view(place: tuple[str, str]) -> str:
    return place[1]


desk = fixture_of(open_shop, FASTDEDUP={"url": "memory://", "namespace": "t"})


@pytest.fixture
def browser(visit: Visit) -> Browser:
    return visit()


@pytest.fixture(params=["signed_cookies", "cache"])
def sessions(request: pytest.FixtureRequest) -> str:
    return f"django.contrib.sessions.backends.{request.param}"


class TestEachEndsInOneOrder:
    def test_a_double_click_gets_the_first_page_twice(self, desk: Desk, browser: Browser, view: str) -> None:
        form = browser.get(view)

        pages = browser.twice(view, form, item="tea")

        assert [(page.status, page.headers["Location"]) for page in pages] == [(302, "/orders/1")] * 2
        assert sorted("idempotency-replayed" in page.headers for page in pages) == [False, True]
        assert desk.orders == ["tea"]

    def test_back_and_sent_with_other_contents_is_told_that_the_first_was_done(
        self, desk: Desk, browser: Browser, view: str
    ) -> None:
        form = browser.get(view)
        browser.send(view, form, item="tea")

        page = browser.send(view, form, item="coffee")

        assert page.status == 422
        assert "sent before, with other contents" in page.text
        assert page.token not in ("", form.token)
        assert page.fields()["item"] == "coffee"  # what was typed is still there
        assert desk.orders == ["tea"]
        assert browser.send(view, page).status == 302  # that fresh form is another order
        assert desk.orders == ["tea", "coffee"]

    def test_an_expired_token_gets_a_fresh_form(self, desk: Desk, browser: Browser, view: str) -> None:
        form = browser.get(view)

        page = browser.send(view, form, token="expired", item="tea")

        assert page.status == 410
        assert "has expired" in page.text
        assert desk.orders == []
        assert browser.send(view, page).status == 302
        assert desk.orders == ["tea"]

    def test_another_users_token_is_refused(self, desk: Desk, visit: Visit, view: str) -> None:
        ann, eve = visit(), visit()
        ann.get("/in/ann")
        eve.get("/in/eve")
        theirs = ann.get(view)

        page = eve.send(view, eve.get(view), token=theirs.token, item="tea")

        assert page.status == 403
        assert "belongs to another session" in page.text
        assert desk.orders == []
        assert ann.send(view, theirs, item="tea").status == 302  # it is still hers

    def test_a_form_without_a_token_gets_one(self, desk: Desk, browser: Browser, view: str) -> None:
        fields = browser.get(view).fields()
        del fields["one_time_token"]
        bare = browser.get(view)
        bare.text = "".join(f'<input name="{name}" value="{value}">' for name, value in fields.items())

        page = browser.send(view, bare, item="tea")

        assert page.status == 400
        assert desk.orders == []
        assert browser.send(view, page).status == 302


def test_a_token_replayed_after_signing_out_is_refused(
    redis_url: str, sessions: str, visit: Visit, view: str
) -> None:
    with open_shop(FASTDEDUP={"url": redis_url, "timeout": 5.0}, SESSION_ENGINE=sessions) as desk:
        browser = visit()
        browser.get("/in/ann")
        used, unused = browser.get(view), browser.get(view)
        browser.send(view, used, item="tea")
        browser.get("/out")

        for form, status in ((used, 409), (unused, 403)):
            page = browser.send(view, browser.get(view), token=form.token, item="tea")
            assert page.status == status
            assert "/orders" not in page.text
        assert desk.orders == ["tea"]
        assert browser.send(view, page).status == 302


class TestAFormWithErrors:
    def test_it_is_shown_again_and_can_be_corrected(self, desk: Desk, browser: Browser, view: str) -> None:
        form = browser.get(view)

        page = browser.send(view, form, item="x" * 99)

        assert page.status == 200
        assert "at most 20 characters" in page.text
        assert browser.send(view, page, item="tea").status == 302
        assert desk.orders == ["tea"]

    def test_going_back_to_it_from_the_order_is_no_second_order(
        self, desk: Desk, browser: Browser, view: str
    ) -> None:
        form = browser.get(view)
        page = browser.send(view, form, item="")
        browser.send(view, page, item="tea")

        assert browser.send(view, form, item="tea").headers["Location"] == "/orders/1"
        assert browser.send(view, form, item="coffee").status == 422
        assert desk.orders == ["tea"]


class TestAPageThatIsKept:
    def test_one_that_is_rendered_late_is_kept_too(self, desk: Desk, browser: Browser) -> None:
        form = browser.get("/late")

        first, again = (browser.send("/late", form, item="tea") for _ in range(2))

        assert first.text == again.text
        assert first.token not in ("", form.token)  # a fresh form for another order
        assert again.headers["idempotency-replayed"] == "true"
        assert desk.orders == ["tea"]

    def test_one_that_cannot_be_rendered_gives_the_token_back(self, desk: Desk, browser: Browser) -> None:
        form = browser.get("/late")

        assert [browser.send("/late", form, item="broken").status for _ in range(2)] == [500, 500]
        assert desk.orders == ["broken", "broken"]

    def test_one_that_is_too_large_is_told_of(self, desk: Desk, browser: Browser) -> None:
        form = browser.get("/long")
        first, again = (browser.send("/long", form) for _ in range(2))

        assert (first.status, first.headers["idempotency-stored"]) == (200, "false")
        assert again.status == 409
        assert "What was sent first was done; its page cannot be shown again" in again.text
        assert again.token not in ("", form.token)
        assert desk.orders == ["tea"]

    def test_files_count_as_contents(self, desk: Desk, browser: Browser) -> None:
        from django.core.files.uploadedfile import SimpleUploadedFile

        form = browser.get("/upload")

        def send(contents: bytes) -> Page:
            return browser.send("/upload", form, file=SimpleUploadedFile("a.txt", contents))

        assert [send(b"a").text, send(b"a").text, send(b"b").status] == ["order 1", "order 1", 422]
        assert desk.orders == ["a"]


def test_a_form_still_being_worked_on_is_shown_with_the_same_token(
    desk: Desk, browser: Browser, visit: Visit
) -> None:
    form = browser.get("/tagged")
    desk.go_on.clear()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(browser.send, "/tagged", form, item="tea")
        assert desk.started.acquire(timeout=30)
        busy = browser.send("/tagged", form, item="tea")
        desk.go_on.set()
        assert first.result().text == "order 1"

    assert busy.status == 409
    assert busy.headers["Retry-After"] == "2"
    assert busy.token == form.token
    assert browser.send("/tagged", busy, item="tea").text == "order 1"  # though its CSRF token is another
    assert desk.orders == ["tea"]


def test_a_view_says_itself_that_nothing_was_done(desk: Desk, browser: Browser) -> None:
    form = browser.get("/declined")

    assert [browser.send("/declined", form).status for _ in range(2)] == [302, 302]
    assert len(desk.orders) == 2


def test_a_view_of_ones_own_tells_of_the_refusal(desk: Desk, browser: Browser) -> None:
    page = browser.send("/own", browser.get("/tagged"), token="nonsense")

    assert (page.status, page.text) == (418, "own page: expired")


def test_a_view_without_a_page_shows_a_short_one_that_leads_back(desk: Desk, visit: Visit) -> None:
    browser = visit(Accept="text/html", Referer="http://testserver/tagged")
    form = browser.get("/tagged")

    page = browser.send("/only-post", form, token="expired", item="tea")

    assert page.status == 410
    assert '<a href="/tagged">Open a fresh form</a>' in page.text


def test_a_script_sends_its_token_in_a_header_and_is_told_by_a_problem(desk: Desk) -> None:
    client = Client()
    token = Page(client.get("/tagged")).token

    def send(token: str) -> Page:
        return Page(client.post("/tagged", {"item": "tea"}, headers={"X-One-Time-Token": token}))

    assert [send(token).text, send(token).text] == ["order 1", "order 1"]
    refused = send("expired")
    assert (refused.status, refused.headers["content-type"]) == (410, "application/problem+json")
    assert desk.orders == ["tea"]


class TestWhileRedisIsDown:
    def test_rejected_forms_are_shown_again_and_work_later(
        self, own_redis: RedisServer, browser: Browser, view: str
    ) -> None:
        with open_shop(FASTDEDUP={"url": own_redis.url}) as desk:
            form = browser.get(view)
            own_redis.kill()
            refused = browser.send(view, form, item="tea")
            fresh = browser.get(view)
            own_redis.start()

            assert refused.status == 503
            assert int(refused.headers["Retry-After"]) >= 1
            assert "so nothing was done" in refused.text
            assert refused.token == form.token
            assert refused.fields()["item"] == "tea"
            assert fresh.status == 200
            assert fresh.token == ""
            later = _until_served(browser, view, fresh, item="tea")
            assert later.headers["Location"] == "/orders/1"
            assert desk.orders == ["tea"]

    def test_local_ones_go_on_and_say_so(self, own_redis: RedisServer, browser: Browser, view: str) -> None:
        with open_shop(FASTDEDUP={"url": own_redis.url, "on_unavailable": LocalLRU()}) as desk:
            own_redis.kill()
            form = browser.get(view)
            pages = browser.twice(view, form, item="tea")

            assert [page.headers["Location"] for page in pages] == ["/orders/1"] * 2
            assert [page.headers["idempotency-degraded"] for page in pages] == ["true"] * 2
            assert desk.orders == ["tea"]


def _until_served(browser: Browser, view: str, form: Page, **fields: Any) -> Page:
    """As a person would: send what is shown, until it goes through."""
    ends = threading.Event()
    timer = threading.Timer(30, ends.set)
    timer.start()
    try:
        while not ends.is_set():
            form = browser.send(view, form, **fields)
            if form.status != 503:
                return form
    finally:
        timer.cancel()
    raise AssertionError("it was never served")


@pytest.mark.parametrize("token", ["", "bogus", None])
def test_a_view_that_looks_at_nothing_is_not_called_for_the_page_of_a_refusal(
    desk: Desk, browser: Browser, token: str | None
) -> None:
    form = browser.get("/sync")
    if token is None:
        form.text = re.sub(r'<input[^>]*name="one_time_token"[^>]*>', "", form.text)
        page = browser.send("/careless", form, item="tea")
    else:
        page = browser.send("/careless", form, token=token, item="tea")
    assert page.status in (400, 410, 503)
    assert desk.orders == []


def test_a_person_without_a_name_does_not_redeem_somebodys_token(desk: Desk, browser: Browser) -> None:
    form = browser.get("/named?who=ann")
    assert browser.send("/named", form).status == 403
    assert desk.orders == []
    assert browser.send("/named?who=ann", form).status == 200
    assert desk.orders == ["tea"]
