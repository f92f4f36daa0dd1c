"""`IdempotencyMiddleware` in Django: the same behaviour as in ASGI, under its WSGI and its ASGI handler."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.core.files.uploadedfile import SimpleUploadedFile
from django.core.handlers.asgi import ASGIHandler
from django.test import AsyncClient, Client, RequestFactory, override_settings
from django.urls import resolve

from fastdedup.integrations.django import Route, gate
from fastdedup.sync import Dedup

from ..fixtures import fixture_with
from ..servers import RedisServer
from ..waiting import cancel, wait_until
from . import django_project as django_project  # sets Django up
from .django_shop import SETTINGS, Browser, Desk, open_shop

KEY = {"Idempotency-Key": "k1"}
EMPTY: dict[str, Any] = {"data": b"", "content_type": "application/json", "headers": KEY}
MIDDLEWARE = [*SETTINGS["MIDDLEWARE"], "fastdedup.integrations.django.IdempotencyMiddleware"]
Open = Callable[..., AbstractContextManager[Desk]]


@pytest.fixture(params=["wsgi", "asgi"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def view(request: pytest.FixtureRequest, kind: str) -> str:
    """The views of a handler's own kind, unless a test asks for those of the other kind too."""
    usual = "/sync/" if kind == "wsgi" else "/async/"
    return str(getattr(request, "param", usual))


each_kind = pytest.mark.parametrize("view", ["/sync/", "/async/"], indirect=True)


@pytest.fixture
def open_api(redis_url: str) -> Open:
    """Opens the shop with these rules."""

    def opened(url: str = redis_url, gate: dict[str, Any] | None = None, **rules: Any) -> Any:
        return open_shop(
            ROOT_URLCONF="tests.integrations.django_api",
            MIDDLEWARE=MIDDLEWARE,
            FASTDEDUP={"url": url, "namespace": "t", "timeout": 5.0, **(gate or {})},
            FASTDEDUP_HTTP={"principal": "tests.integrations.django_api.visitor", **rules},
        )

    return opened


desk = fixture_with(lambda open_api: open_api())


@pytest.fixture
def browser(kind: str) -> Browser:
    return Browser(kind)


def facts(page: Any) -> tuple[int, str]:
    """A problem's status and name."""
    return page.status, json.loads(page.text)["type"].rpartition(":")[2]


class TestAKey:
    @each_kind
    def test_its_first_response_is_replayed(self, desk: Desk, browser: Browser, view: str) -> None:
        first, again = (browser.post(view + "ok", "tea", **KEY) for _ in range(2))

        assert (first.status, first.text, first.headers["x-order"]) == (201, "order 1", "é")
        assert (again.status, again.text, again.headers["x-order"]) == (201, "order 1", "é")
        assert "idempotency-replayed" not in first.headers
        assert again.headers["idempotency-replayed"] == "true"
        assert again.headers["content-type"] == first.headers["content-type"]
        assert desk.orders == ["tea"]

    def test_without_one_requests_run(self, desk: Desk, browser: Browser, view: str) -> None:
        assert [browser.post(view + "ok").text for _ in range(2)] == ["order 1", "order 2"]
        assert browser.get(view + "ok", **KEY).text == browser.get(view + "ok", **KEY).text[:-1] + "3"

    def test_each_user_has_their_own(self, desk: Desk, kind: str, view: str) -> None:
        ann, eve = Browser(kind), Browser(kind)
        ann.get("/in/ann")
        eve.get("/in/eve")

        assert [one.post(view + "ok", **KEY).text for one in (ann, eve, ann)] == [
            "order 1",
            "order 2",
            "order 1",
        ]

    def test_it_is_checked(self, open_api: Open, browser: Browser) -> None:
        routes = ["/sync/*", Route("/async/*", key_format="[a-z]+")]
        with open_api(required=True, docs="/rules", routes=routes):
            assert facts(browser.post("/sync/ok")) == (400, "key-missing")
            assert facts(browser.post("/sync/ok", **{"Idempotency-Key": '"a'})) == (400, "key-malformed")
            malformed = browser.post("/async/ok", **KEY)
            assert facts(malformed) == (400, "key-malformed")
            assert malformed.headers["link"] == '</rules>; rel="describedby"'

    def test_its_rules_are_published(self, open_api: Open, browser: Browser) -> None:
        with open_api(docs="/rules", max_request=10**9):
            (operation,) = json.loads(browser.get("/rules").text)["operations"]
            assert operation["path"] == "/*"
            assert operation["largest_request_bytes"] == 10**9  # Django's own limit is another one
            assert "<h1>" in browser.get("/rules", Accept="text/html").text


class TestAResponse:
    @each_kind
    def test_that_failed_is_not_kept(self, desk: Desk, browser: Browser, view: str) -> None:
        desk.fails = True
        assert browser.post(view + "ok", **KEY).status == 500
        desk.fails = False

        assert browser.post(view + "ok", **KEY).text == "order 1"

    def test_cookies_are_replayed_only_where_asked_to(self, open_api: Open, kind: str, view: str) -> None:
        for drop, replayed in ((["set-cookie"], []), ([], ["seen"])):
            with open_api(drop_headers=drop, gate={"namespace": f"t{len(drop)}"}):
                browser = Browser(kind)
                first, again = (browser.post(view + "ok", **KEY).response.cookies for _ in range(2))
                assert list(first) == ["seen"]
                assert list(again) == replayed
                if replayed:
                    assert again["seen"].OutputString() == first["seen"].OutputString()

    @each_kind
    def test_a_template_is_kept_as_it_was_rendered(self, desk: Desk, browser: Browser, view: str) -> None:
        assert [browser.post(view + "late", **KEY).text for _ in range(2)] == ["order 1", "order 1"]

    def test_of_a_view_that_has_settled_itself_is_not_stored(
        self, desk: Desk, browser: Browser, view: str
    ) -> None:
        assert browser.post(view + "lost", **KEY).headers["idempotency-stored"] == "false"

    def test_of_a_view_that_was_overtaken_is_not_sent(self, desk: Desk, browser: Browser, view: str) -> None:
        assert facts(browser.post(view + "overtaken", **KEY)) == (409, "claim-lost")


class TestAStream:
    @pytest.fixture
    def send(self, kind: str) -> Callable[..., Any]:
        """Sends a request, and returns the response, and its body or what broke it."""
        return _send if kind == "wsgi" else _asend_and_read

    def test_is_passed_on_and_sent_once(self, desk: Desk, send: Any, kind: str) -> None:
        url = "/sync/stream" if kind == "wsgi" else "/async/stream"
        response, body = send(url)

        assert body == b"order 1"
        assert response["idempotency-stored"] == "false"
        assert facts(Browser(kind).post(url, **KEY)) == (409, "response-not-stored")

    def test_of_a_file_is_one(self, desk: Desk) -> None:
        response, body = _send("/sync/file")

        assert body == b"a file"
        assert response["content-disposition"] == 'inline; filename="a.txt"'
        assert facts(Browser("wsgi").post("/sync/file", **KEY)) == (409, "response-not-stored")

    def test_makes_bytes_as_its_response_does(self, desk: Desk) -> None:
        assert _send("/sync/numbers")[1] == b"1;2;"

    def test_that_breaks_releases(self, desk: Desk, send: Any, kind: str) -> None:
        view = "/sync/" if kind == "wsgi" else "/async/"
        assert [type(send(view + "broken")[1]) for _ in range(2)] == [RuntimeError] * 2

    def test_of_events_whose_client_leaves_frees_its_key(self, desk: Desk, kind: str, send: Any) -> None:
        url = "/sync/events" if kind == "wsgi" else "/async/events"
        _leave(url, kind)

        assert send(url)[1] == b"order 1"
        assert facts(Browser(kind).post(url, **KEY)) == (409, "response-not-stored")

    def test_of_another_kind_counts_though_its_client_leaves(self, desk: Desk, kind: str) -> None:
        """As a large response does: its view has done its work."""
        url = "/sync/stream" if kind == "wsgi" else "/async/stream"
        _leave(url, kind)

        assert facts(Browser(kind).post(url, **KEY)) == (409, "response-not-stored")

    def test_of_no_kind_counts_where_a_client_that_leaves_cancels(self, open_api: Open) -> None:
        with open_api(on_disconnect="cancel"):
            _leave("/async/stream", "asgi")

            assert _asend_and_read("/async/stream")[1] == b"order 1"

    @pytest.mark.parametrize("view", ["/sync/", "/decorated/", "/class/"])
    def test_of_a_view_in_a_thread_counts_all_the_same(self, open_api: Open, kind: str, view: str) -> None:
        """It cannot be cancelled: when the client leaves, the work is done."""
        with open_api(on_disconnect="cancel"):
            _leave(view + "stream", kind)

            assert facts(Browser(kind).post(view + "stream", **KEY)) == (409, "response-not-stored")


def _leave(url: str, kind: str) -> None:
    """Hang up before the stream has begun."""
    if kind == "wsgi":
        Client().post(url, **EMPTY).close()
    else:
        asyncio.run(_aleave(url))


async def _aleave(url: str) -> None:
    response = await AsyncClient().post(url, **EMPTY)
    await sync_to_async(response.close)()


def _send(url: str) -> Any:
    response = Client().post(url, **EMPTY)
    try:
        return response, b"".join(response.streaming_content)
    except RuntimeError as error:
        return response, error
    finally:
        response.close()


def _asend_and_read(url: str) -> Any:
    async def send() -> Any:
        response = await AsyncClient().post(url, **EMPTY)
        try:
            return response, b"".join([chunk async for chunk in response.streaming_content])
        except RuntimeError as error:
            return response, error
        finally:
            await sync_to_async(response.close)()

    return asyncio.run(send())


class TestABody:
    def test_too_large_is_refused(self, open_api: Open, browser: Browser, view: str) -> None:
        with open_api(max_request=10) as desk:
            assert facts(browser.post(view + "ok", "x" * 11, **KEY)) == (413, "body-too-large")
            assert browser.post(view + "ok", "x" * 10, **KEY).status == 201
            assert len(desk.orders) == 1

    def test_of_a_form_with_files_counts_whatever_its_boundary(self, desk: Desk) -> None:
        def send(contents: bytes, boundary: str) -> Any:
            part = f'Content-Disposition: form-data; name="a"\r\n\r\n{contents.decode()}'
            body = f"--{boundary}\r\n{part}\r\n--{boundary}--\r\n"
            kind = f"multipart/form-data; boundary={boundary}"
            return Client().post("/sync/form", body, content_type=kind, headers=KEY)

        assert [send(b"tea", "x").content, send(b"tea", "y").content] == [b"order 1"] * 2
        assert send(b"coffee", "x").status_code == 422
        assert desk.orders == ["tea"]

    def test_of_a_decorated_form_that_was_read_before_counts(self, desk: Desk, browser: Browser) -> None:
        def send(contents: bytes) -> int:
            data = {"a": "tea", "file": SimpleUploadedFile("a.txt", contents)}
            client = Client()
            return client.post("/decorated/form", data, headers={**KEY, "X-Api-Key": "a"}).status_code

        assert [send(b"1"), send(b"1"), send(b"2")] == [201, 201, 422]


class TestTheStore:
    def test_down_is_answered_503(
        self, open_api: Open, own_redis: RedisServer, browser: Browser, view: str
    ) -> None:
        with open_api(own_redis.url, {"timeout": 0.25}) as desk:
            own_redis.kill()
            page = browser.post(view + "ok", **KEY)

            assert facts(page) == (503, "unavailable")
            assert int(page.headers["retry-after"]) >= 1
            assert desk.orders == []


async def leave(url: str, desk: Desk) -> None:
    """Send a request, and leave while its view runs."""
    desk.go_on.clear()
    left = asyncio.Event()
    messages = iter([{"type": "http.request", "body": b""}])

    async def receive() -> Any:
        for message in messages:
            return message
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        raise AssertionError("nobody is there")

    scope = {
        "type": "http",
        "method": "POST",
        "path": url,
        "query_string": b"",
        "headers": [(b"host", b"testserver"), (b"idempotency-key", b"k1")],
    }
    serving = asyncio.ensure_future(ASGIHandler()(scope, receive, send))
    await wait_until(lambda: desk.started.acquire(blocking=False), description="the view runs")
    left.set()
    await wait_until(
        lambda: serving.done() or any(task.cancelling() for task in asyncio.all_tasks()),
        description="Django gives up",
    )
    desk.go_on.set()
    await serving


class TestAClientThatLeaves:
    @pytest.mark.parametrize("view", ["/async/", "/adecorated/"])
    @pytest.mark.parametrize("name", ["slow", "slow-late"])
    async def test_does_not_end_its_view(self, desk: Desk, view: str, name: str) -> None:
        await leave(view + name, desk)

        again = await AsyncClient().post(view + name, **EMPTY)
        assert again.content == b"order 1"
        assert again["idempotency-replayed"] == "true"
        assert desk.orders == [name]

    async def test_frees_its_stream_of_events(self, desk: Desk) -> None:
        await leave("/async/slow-events", desk)

        assert (await AsyncClient().post("/async/slow-events", **EMPTY)).status_code == 200
        assert desk.orders == ["slow-events"] * 2

    async def test_was_sent_its_stream(self, desk: Desk) -> None:
        await leave("/async/slow-stream", desk)

        assert (await AsyncClient().post("/async/slow-stream", **EMPTY)).status_code == 409
        assert desk.orders == ["slow-stream"]

    @pytest.mark.parametrize(("name", "again"), [("stream", 409), ("events", 200)])
    async def test_before_its_stream_began_settles_too(
        self, redis_url: str, open_api: Open, name: str, again: int
    ) -> None:
        """While middleware outside is at work on it: Django drops the response, and does not close it."""
        with open_api(redis_url, wait=10.0) as desk:
            with override_settings(MIDDLEWARE=["tests.integrations.django_api.held_back", *MIDDLEWARE]):
                await leave(f"/async/{name}", desk)
            answer = await AsyncClient().post(f"/async/{name}", **EMPTY)
            assert answer.status_code == again
            assert again == 200 or b":response-not-stored" in answer.content
            await sync_to_async(answer.close)()

    async def test_may_end_it(self, open_api: Open) -> None:
        with open_api(on_disconnect="cancel") as desk:
            await leave("/async/slow", desk)
            assert desk.orders == []

            again = await AsyncClient().post("/async/slow", **EMPTY)
            assert again.content == b"order 1"
            assert "idempotency-replayed" not in again.headers

    @pytest.mark.parametrize("url", ["/sync/tea", "/ninja/tea"])
    async def test_does_not_end_a_view_in_a_thread(self, open_api: Open, url: str) -> None:
        """The thread goes on, so a retry would run a second time beside it."""
        with open_api(on_disconnect="cancel") as desk:
            await leave(url, desk)

            again = await AsyncClient().post(url, **EMPTY)
            assert (again.content, again["idempotency-replayed"]) == (b"order 1", "true")
            assert len(desk.orders) == 1


def test_the_work_of_a_page_that_django_drops_counts(open_api: Open) -> None:
    """As under ASGI, if the client of a view in a thread has left. A retry ran again once the lease had ended."""
    with open_api(wait=10.0) as desk, override_settings(MIDDLEWARE=[]):
        request = RequestFactory().post("/decorated/late", **EMPTY)
        request.resolver_match = match = resolve("/decorated/late")
        match.func(request, "late")
        del request
        gc.collect()
        assert b":response-not-stored" in Client().post("/decorated/late", **EMPTY).content
        assert len(desk.orders) == 1


def test_a_stream_can_be_closed_after_it_was_dropped(open_api: Open) -> None:
    """As Django's test client does, if its caller has read a part."""
    with open_api(), override_settings(MIDDLEWARE=[]):
        close = Client().post("/decorated/stream", **EMPTY).close
        gc.collect()
        close()


async def test_a_request_that_is_cancelled_while_it_waits_holds_nothing(open_api: Open) -> None:
    with open_api(wait=30.0):
        dedup: Dedup = gate().scoped("http")
        holder = dedup.claim("never", lease=30)
        assert holder.acquired
        call = gate().bind(lambda one: one)
        background, one = call.get()
        waiting = asyncio.ensure_future(
            background.arun(lambda: one.scoped("http").claim("never", wait=30.0), 60.0)
        )
        done, _ = await asyncio.wait([waiting], timeout=0.05)
        assert not done
        await cancel(waiting)
        holder.release()

        assert dedup.claim("never", lease=1).acquired
