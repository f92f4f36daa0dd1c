"""The WSGI middleware while Redis does not answer, and when a lease is lost."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from fastdedup import LocalLRU, UnavailableError
from fastdedup.integrations import wsgi
from fastdedup.integrations.wsgi import by_header, claim_of
from fastdedup.keys import Fingerprint
from fastdedup.model import BreakerState
from fastdedup.sync import Claim, Dedup
from fastdedup.web.response import Response, ResponseCodec

from ..servers import RedisServer
from .shops import until
from .wsgi_apps import KINDS, Call, Reply
from .wsgi_shop import Shop

BOUND = 5.0
"""Seconds: far more than the one for which a response is held back, far less than the lease."""
STREAM = [("Content-Type", "text/event-stream")]


@pytest.fixture(params=list(KINDS))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def server() -> Iterator[RedisServer]:
    server = RedisServer().start()
    yield server
    server.stop()


def test_where_redis_does_not_answer_nothing_runs(kind: str, server: RedisServer) -> None:
    with Dedup(server.url, timeout=0.5) as dedup:
        shop = Shop(kind, dedup)
        assert shop.post(key="before").status == 201
        server.kill()
        answer = shop.post(key="after")
        assert (answer.status, answer.problem, answer.reason) == (503, "unavailable", "Service Unavailable")
        assert int(answer.header("retry-after") or 0) >= 1
        assert shop.runs == 1


def test_where_it_never_answered_nothing_runs_either(kind: str, server: RedisServer) -> None:
    server.kill()
    with Dedup(server.url, timeout=0.5) as dedup:
        shop = Shop(kind, dedup)
        assert shop.post().problem == "unavailable"
        server.start()
        until(lambda: shop.post().status == 201, description="Redis is seen to be back")


def test_a_local_answer_is_marked_as_degraded(kind: str, server: RedisServer) -> None:
    server.kill()
    with Dedup(server.url, timeout=0.5, on_unavailable=LocalLRU()) as dedup:
        shop = Shop(kind, dedup)
        first, second = shop.post(b"1"), shop.post(b"1")
        assert first.marks == {"idempotency-degraded"}
        assert second.marks == {"idempotency-degraded", "idempotency-replayed"}
        assert first.body == second.body
        assert shop.post(b"2").marks == {"idempotency-degraded"}
        assert shop.runs == 1
        shop.replies(Reply(200, STREAM, iter([b"a"])))
        assert shop.post(key="stream").marks == {"idempotency-degraded", "idempotency-stored"}


@pytest.mark.usefixtures("short_hold")
@pytest.mark.parametrize("headers", [Reply().headers, STREAM], ids=["whole", "stream"])
def test_a_response_is_sent_though_it_cannot_be_stored(kind: str, server: RedisServer, headers: Any) -> None:
    with Dedup(server.url, timeout=0.5) as dedup:
        shop = Shop(kind, dedup)

        def handler(call: Call) -> Reply:
            server.kill()
            return Reply(201, headers, b"done" if headers is not STREAM else iter([b"do", b"ne"]))

        shop.handler = handler
        started = time.monotonic()
        answer = shop.post()
        assert time.monotonic() - started < BOUND
        assert (answer.status, answer.body) == (201, b"done")
        assert answer.marks == {"idempotency-stored"}


@pytest.mark.usefixtures("short_hold")
def test_storing_goes_on_in_the_background(kind: str, server: RedisServer) -> None:
    with Dedup(server.url, timeout=0.5) as dedup:
        shop = Shop(kind, dedup)

        def handler(call: Call) -> Reply:
            server.freeze()
            return shop.numbered(call)

        shop.handler = handler
        first = shop.post()
        assert first.marks == {"idempotency-stored"}
        server.thaw()
        again = until(
            lambda: (answer := shop.post()).header("idempotency-replayed") and answer,
            description="the response is stored",
        )
        assert again.body == first.body
        assert shop.runs == 1


@pytest.mark.usefixtures("short_hold")
def test_a_response_that_was_sent_and_never_stored_is_told_in_the_log(
    kind: str, server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    with Dedup(server.url, timeout=0.2, lease=1.0) as dedup:
        shop = Shop(kind, dedup)

        def handler(call: Call) -> Reply:
            server.kill()
            return Reply()

        shop.handler = handler
        assert shop.post().marks == {"idempotency-stored"}
        until(
            lambda: "a response was not recorded" in caplog.text,
            description="it is told once the lease has ended",
        )


def test_an_outcome_whose_lease_ends_unstored_is_sent(server: RedisServer) -> None:
    with Dedup(server.url, timeout=0.5) as dedup:
        shop = Shop("bare", dedup, lease=0.3, renew=False)

        def handler(call: Call) -> Reply:
            server.kill()
            return Reply()

        shop.handler = handler
        answer = shop.post()
        assert (answer.status, answer.marks) == (201, {"idempotency-stored"})


def test_a_response_that_would_be_released_is_sent(kind: str, server: RedisServer) -> None:
    with Dedup(server.url, timeout=0.5) as dedup:
        shop = Shop(kind, dedup)

        def handler(call: Call) -> Reply:
            server.kill()
            return Reply(500, body=b"oops")

        shop.handler = handler
        answer = shop.post()
        assert (answer.status, answer.body, answer.marks) == (500, b"oops", set())


def test_the_applications_own_exception_matters_more(server: RedisServer) -> None:
    with Dedup(server.url, timeout=0.5) as dedup:
        shop = Shop("bare", dedup)

        def handler(call: Call) -> Reply:
            server.kill()
            raise LookupError("of the handler's")

        shop.handler = handler
        with pytest.raises(LookupError):
            shop.post()


def test_a_failure_to_release_does_not_hide_the_applications_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def stuck(*args: object) -> None:
        raise UnavailableError("the background thread is stuck")

    def handler(call: Call) -> Reply:
        monkeypatch.setattr(Claim, "_leave", stuck)
        raise LookupError("of the handler's")

    with Dedup() as dedup:
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


def test_an_interrupted_wait_loses_no_outcome(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
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

    monkeypatch.setattr(wsgi, "ResponseCodec", Codec)
    with Dedup(server.url, timeout=0.5) as dedup:
        shop = Shop("bare", dedup)

        def handler(call: Call) -> Reply:
            server.freeze()
            return shop.numbered(call)

        shop.handler = handler
        former = signal.signal(signal.SIGUSR1, interrupt)
        try:
            with pytest.raises(Interrupted):
                shop.post()
        finally:
            signal.signal(signal.SIGUSR1, former)
            server.thaw()
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
        mark = claim.asynchronous._call.fingerprint
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


def unseen(claim: Claim) -> Reply:
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


def test_a_response_under_a_lost_lease_is_not_sent(kind: str, redis_url: str) -> None:
    for shop in robbed(kind, redis_url, unseen, renew=False):
        check_lost(shop)


def test_a_stream_under_a_lost_lease_ends_as_it_is(kind: str, redis_url: str) -> None:
    def streamed(claim: Claim) -> Reply:
        return Reply(200, STREAM, iter([b"a", b"b"]))

    for shop in robbed(kind, redis_url, streamed):
        assert shop.post().body == b"ab"
        assert shop.post().body == b"another's"


def test_the_lease_is_kept_while_the_handler_works(kind: str, redis_url: str) -> None:
    with Dedup(redis_url, namespace="t", timeout=5.0) as dedup:
        shop = Shop(kind, dedup, lease=0.2)

        def handler(call: Call) -> Reply:
            claim = claim_of(call.environ)
            assert claim is not None
            ends = time.monotonic() + 0.6
            until(lambda: time.monotonic() > ends, description="three leases are over")
            assert not claim.lost
            return shop.numbered(call)

        shop.handler = handler
        first = shop.post()
        assert (first.status, first.marks) == (201, set())
        assert shop.post().body == first.body
        assert shop.runs == 1
        assert dedup.breaker is BreakerState.CLOSED
