"""The WSGI middleware in front of a bare application, Flask and Django: what WSGI alone has; outages, lost leases."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import orjson
import pytest

from fastdedup import ConfigError, UnavailableError
from fastdedup import Dedup as AsyncDedup
from fastdedup.integrations.http import background_claims
from fastdedup.integrations.wsgi import IdempotencyMiddleware, Route, by_header, claim_of, everyone
from fastdedup.keys import Fingerprint
from fastdedup.sync import Claim, Dedup
from fastdedup.web.request import Request
from fastdedup.web.response import Response, ResponseCodec

from ..fixtures import fixture_of
from ..servers import RedisServer
from .desk import behind
from .shops import until
from .wsgi_apps import KINDS, Call, Reply, Shop, bare, call

TEXT = [("Content-Type", "text/plain")]
MakeShop = Callable[..., Shop]


dedup = fixture_of(Dedup, "memory://", namespace="t")


@pytest.fixture(params=list(KINDS))
def make(request: pytest.FixtureRequest, dedup: Dedup) -> MakeShop:
    """Makes a shop in each framework."""
    return lambda **settings: Shop(request.param, dedup, **settings)


@pytest.fixture
def shop(make: MakeShop) -> Shop:
    return make()


# One run for one key


def test_a_duplicate_gets_the_first_response_byte_for_byte(shop: Shop) -> None:
    body = bytes(range(256)) * 4
    headers = [("Content-Type", "application/octet-stream"), ("X-Order", "7"), ("X-Name", "Zo\xeb")]
    shop.replies(Reply(201, headers[:2] if shop.kind == "django" else headers, body))
    first, second = shop.post(b"{}"), shop.post(b"{}")
    assert shop.runs == 1
    assert first.status == second.status == 201
    assert first.body == second.body == body
    assert first.fields == second.fields
    assert first.marks == set()
    assert second.header("idempotency-replayed") == "true"
    assert second.reason == first.reason


def test_a_principal_sees_what_middleware_outside_has_found(make: MakeShop) -> None:
    shop = make(principal=lambda request: request.source.get("REMOTE_USER"))
    assert shop.post(REMOTE_USER="ada").body == shop.post(REMOTE_USER="ada").body
    assert shop.post(REMOTE_USER="bob").header("idempotency-replayed") is None


def test_each_mount_has_keys_of_its_own(make: MakeShop) -> None:
    """Also for the root of a mount, whose path is empty."""
    shop = make(principal=everyone)
    for path in ("/orders", ""):
        first, mounted = shop.post(path=path), shop.post(path=path, SCRIPT_NAME="/v2")
        assert first.body != mounted.body
        assert shop.post(path=path, SCRIPT_NAME="/v2").body == mounted.body


def test_paths_are_text(make: MakeShop) -> None:
    shop = make(routes=["/caf\xe9/{id}"])
    assert shop.post(path="/caf\xe9/7").body == shop.post(path="/caf\xe9/7").body
    assert shop.post(path="/cafe/7").body != shop.post(path="/cafe/7").body


# Requests' bodies


def test_the_handler_reads_the_body(shop: Shop) -> None:
    shop.post(b"a body")
    assert shop.calls[0].body == b"a body"
    assert shop.calls[0].environ["CONTENT_LENGTH"] == "6"


def test_a_request_without_a_body(shop: Shop) -> None:
    answers = [shop.post(CONTENT_LENGTH=length, CONTENT_TYPE=None) for length in (None, "", "0")]
    assert len({answer.body for answer in answers}) == 1
    assert shop.calls[0].body == b""


@pytest.mark.parametrize("chunked", [{"HTTP_TRANSFER_ENCODING": "chunked"}, {}])
def test_a_body_of_unknown_length_is_read_to_its_end(shop: Shop, chunked: dict[str, Any]) -> None:
    more = {"wsgi.input_terminated": True, **chunked}
    assert shop.post(b"a body", CONTENT_LENGTH=None, **more).status == 201
    assert shop.calls[0].body == b"a body"
    assert shop.calls[0].environ["CONTENT_LENGTH"] == "6"
    assert shop.post(b"other", CONTENT_LENGTH=None, **more).status == 422
    assert shop.post(b"a body").header("idempotency-replayed") == "true"


@pytest.mark.parametrize(
    "more", [{}, {"CONTENT_LENGTH": None, "wsgi.input_terminated": True}, {"CONTENT_LENGTH": "9" * 18}]
)
def test_a_request_that_is_too_large_is_413(make: MakeShop, more: dict[str, Any]) -> None:
    shop = make(max_request=5)
    answer = shop.post(b"123456", **more)
    assert (answer.status, answer.problem) == (413, "body-too-large")
    assert shop.runs == 0
    assert shop.post(b"12345").status == 201


@pytest.mark.parametrize("length", ["-1", "x", "1.0", "\xb2", "9" * 5000, "7"])
def test_a_body_that_cannot_be_read_is_400(shop: Shop, length: str) -> None:
    answer = call(shop.app, "/orders", b"123456", key="k", checked=False, CONTENT_LENGTH=length)
    assert (answer.status, answer.problem, answer.reason) == (400, "blank", "Bad Request")
    assert shop.runs == 0


# Which responses are kept


def test_an_unknown_status_is_replayed(shop: Shop) -> None:
    shop.replies(Reply(299, TEXT, b"a"))
    first, again = shop.post(), shop.post()
    assert (again.status, again.reason, again.body) == (299, first.reason, b"a")


# Large responses, and streams


def test_a_response_with_large_headers_is_sent_once(make: MakeShop) -> None:
    shop = make()
    shop.replies(Reply(201, [*TEXT, *((f"X-{at}", "v" * 1000) for at in range(400))], b"x"))
    assert shop.post().body == b"x"
    assert shop.post().problem == "response-not-stored"


# Around it


def test_the_policy_is_published(make: MakeShop) -> None:
    shop = make(docs="/idempotency", routes=["/orders", Route("/refunds/{id}", required=True)])
    plain = call(shop.app, "/idempotency", method="GET")
    assert (plain.status, plain.reason, plain.header("content-type")) == (200, "OK", "application/json")
    paths = [operation["path"] for operation in orjson.loads(plain.body)["operations"]]
    assert paths == ["/orders", "/refunds/{id}"]
    html = call(shop.app, "/idempotency", method="GET", HTTP_ACCEPT="text/html,*/*")
    assert html.header("content-type") == "text/html; charset=utf-8"
    assert html.body.startswith(b"<!doctype html>")
    head = call(shop.app, "/idempotency", method="HEAD")
    assert (head.status, head.body, head.header("content-length")) == (200, b"", str(len(plain.body)))


def test_the_policy_is_below_where_the_application_is_mounted(make: MakeShop) -> None:
    shop = make(docs="/idempotency", required=True, methods=["GET", "POST"])
    assert call(shop.app, "/idempotency", method="GET", SCRIPT_NAME="/v2").status == 200
    for mount, link in {"": "", "/v2": "/v2", "/caf\xc3\xa9 x": "/caf%C3%A9%20x"}.items():
        assert shop.post(key=None, SCRIPT_NAME=mount).header("link") == (
            f'<{link}/idempotency>; rel="describedby"'
        )
    shop = make(docs="https://docs.test/keys", required=True)
    assert shop.post(key=None, SCRIPT_NAME="/v2").header("link") == (
        '<https://docs.test/keys>; rel="describedby"'
    )


def test_a_principal_that_is_async_is_refused(make: MakeShop) -> None:
    async def principal(request: Request) -> str:
        return "ada"

    with pytest.raises(ConfigError, match="async"):
        make(principal=principal).post()
    with pytest.raises(ConfigError, match="async"):
        make(principal=lambda request: principal(request)).post()
    loop = asyncio.new_event_loop()
    with pytest.raises(ConfigError, match="async"):
        make(principal=lambda request: loop.create_future()).post()
    loop.close()


def test_mistakes_are_told_at_once(dedup: Dedup) -> None:
    app = bare(lambda call: Reply())
    make: Any = IdempotencyMiddleware
    with pytest.raises(ConfigError, match="cannot be cancelled"):
        make(app, dedup, principal=everyone, on_disconnect="cancel")
    with pytest.raises(ConfigError, match=r"fastdedup\.sync"):
        make(app, AsyncDedup("memory://"), principal=everyone)
    with pytest.raises(ConfigError, match="principal= is missing"):
        make(app, dedup)
    with pytest.raises(ConfigError, match="unknown setting"):
        make(app, dedup, principal=everyone, tll=1.0)


async def test_asgi_and_wsgi_serve_the_same_records(redis_url: str) -> None:
    async def no_app(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("this ran")

    with Dedup(redis_url, namespace="t") as dedup:
        first = Shop("bare", dedup).post(b"{}", path="/caf\xe9/1", query="a=1")
    headers = {"idempotency-key": "k", "x-api-key": "ada", "content-type": "application/json"}
    async with behind(AsyncDedup(redis_url, namespace="t"), no_app, principal=by_header("x-api-key")) as http:
        second = await http.post("http://127.0.0.1/caf\xe9/1?a=1", content=b"{}", headers=headers)
    assert (second.status_code, second.content) == (first.status, first.body)
    assert second.headers["idempotency-replayed"] == "true"


# Outages


STREAM = [("Content-Type", "text/event-stream")]


@pytest.fixture(params=list(KINDS))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_the_applications_own_exception_matters_more(own_redis: RedisServer) -> None:
    with Dedup(own_redis.url, timeout=0.5) as dedup:
        shop = Shop("bare", dedup)

        def handler(call: Call) -> Reply:
            own_redis.kill()
            raise LookupError("of the handler's")

        shop.handler = handler
        with pytest.raises(LookupError):
            shop.post()


def test_a_failure_to_release_does_not_hide_the_applications_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def stuck(*args: object) -> None:
        raise UnavailableError("the background thread is stuck")

    def handler(call: Call) -> Reply:
        monkeypatch.setattr(Claim, "leave", stuck)
        raise LookupError("of the handler's")

    with Dedup("memory://") as dedup:
        shop = Shop("bare", dedup)
        shop.handler = handler
        with pytest.raises(LookupError):
            shop.post()


@pytest.mark.parametrize("status", [201, 500])
def test_a_response_is_stored_though_the_gate_was_closed(redis_url: str, status: int) -> None:
    with Dedup(redis_url, namespace="t", timeout=5.0) as dedup:
        shop = Shop("bare", dedup)

        def handler(call: Call) -> Reply:
            dedup.close()
            return Reply(status)

        shop.handler = handler
        answer = shop.post()
        assert (answer.status, answer.marks) == (status, set())


class Interrupted(BaseException):
    """What a server's watchdog raises in a worker that it gives up."""


def test_an_interrupted_wait_loses_no_outcome(
    own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*args: object) -> None:
        raise Interrupted

    class Codec(ResponseCodec):
        """Called in the background thread, while the worker's own waits."""

        interrupts = True

        def dumps(self, value: Any) -> bytes:
            if self.interrupts:
                self.interrupts = False
                os.kill(os.getpid(), signal.SIGUSR1)
            return super().dumps(value)

    monkeypatch.setattr(background_claims, "ResponseCodec", Codec)
    with Dedup(own_redis.url, timeout=0.5) as dedup:
        shop = Shop("bare", dedup)

        def handler(call: Call) -> Reply:
            own_redis.freeze()
            return shop.numbered(call)

        shop.handler = handler
        former = signal.signal(signal.SIGUSR1, interrupt)
        try:
            with pytest.raises(Interrupted):
                shop.post()
        finally:
            signal.signal(signal.SIGUSR1, former)
            own_redis.thaw()
        stored = until(
            lambda: (answer := shop.post()).status == 201 and answer, description="the response is stored"
        )
        assert stored.header("idempotency-replayed") == "true"
        assert shop.runs == 1


# Lost leases


class Thief:
    """Takes the key of a request that is at work, as another owner would whose clock says that its lease is over."""

    def __init__(self, dedup: Dedup) -> None:
        self._records = dedup.scoped("http", codec=ResponseCodec())

    def take(self, call: Call) -> Claim:
        """Return the claim of the request that is robbed; the other one's response is stored."""
        claim = claim_of(call.environ)
        assert claim is not None
        assert not claim.lost
        assert self._records.forget(claim.key)
        mark = claim.asynchronous.settlement.op.fingerprint
        assert mark is not None
        other = self._records.claim(claim.key, fingerprint=Fingerprint(mark))
        assert other.acquired
        other.complete(Response(201, [(b"content-type", b"text/plain")], b"another's"))
        return claim


def robbed(kind: str, url: str, reply: Any, **settings: Any) -> Iterator[Shop]:
    """A shop whose handler loses its lease, and says `reply(claim)`."""
    with Dedup(url, namespace="t", timeout=5.0) as dedup:
        thief = Thief(dedup)
        settings = {"principal": by_header("x-api-key"), **settings}
        shop = Shop(kind, dedup, **settings)
        shop.handler = lambda call: reply(thief.take(call))
        yield shop


def see(claim: Claim) -> None:
    """Look, until the renewal has told."""
    until(lambda: claim.lost, description="the lease is seen to be lost")


def seen(claim: Claim) -> Reply:
    see(claim)
    return Reply(201, body=b"mine")


def failing(claim: Claim) -> Reply:
    see(claim)
    return Reply(500, body=b"I had to stop")


def raising(claim: Claim) -> Reply:
    see(claim)
    claim.renew()
    raise AssertionError("it is lost")


def check_lost(shop: Shop) -> None:
    answer = shop.post()
    assert (answer.status, answer.problem) == (409, "claim-lost")
    assert answer.header("retry-after") == "1"
    assert orjson.loads(answer.body)["title"]
    assert shop.post().body == b"another's"
    assert shop.runs == 1


@pytest.mark.parametrize("reply", [seen, failing, raising])
def test_a_handler_sees_that_its_lease_is_lost(kind: str, redis_url: str, reply: Any) -> None:
    for shop in robbed(kind, redis_url, reply, lease=0.3):
        check_lost(shop)


def test_a_stream_under_a_lost_lease_ends_as_it_is(kind: str, redis_url: str) -> None:
    def streamed(claim: Claim) -> Reply:
        return Reply(200, STREAM, iter([b"a", b"b"]))

    for shop in robbed(kind, redis_url, streamed):
        assert shop.post().body == b"ab"
        assert shop.post().body == b"another's"
