"""The WSGI middleware while Redis does not answer, and when a lease is lost."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from fastdedup import UnavailableError
from fastdedup.integrations import wsgi
from fastdedup.integrations.wsgi import by_header, claim_of
from fastdedup.keys import Fingerprint
from fastdedup.sync import Claim, Dedup
from fastdedup.web.response import Response, ResponseCodec

from ..servers import RedisServer
from .shops import until
from .wsgi_apps import KINDS, Call, Reply
from .wsgi_shop import Shop

STREAM = [("Content-Type", "text/event-stream")]


@pytest.fixture(params=list(KINDS))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_an_outcome_whose_lease_ends_unstored_is_sent(own_redis: RedisServer) -> None:
    with Dedup(own_redis.url, timeout=0.5) as dedup:
        shop = Shop("bare", dedup, lease=0.3, renew=False)

        def handler(call: Call) -> Reply:
            own_redis.kill()
            return Reply()

        shop.handler = handler
        answer = shop.post()
        assert (answer.status, answer.marks) == (201, {"idempotency-stored"})


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

    monkeypatch.setattr(wsgi, "ResponseCodec", Codec)
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
