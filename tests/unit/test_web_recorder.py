"""What becomes of a response under a claim, piece by piece as a driver feeds it: no server, no framework."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastdedup import ClaimLostError, UnavailableError
from fastdedup.web.answers import Settling
from fastdedup.web.recorder import Recorder
from fastdedup.web.request import everyone
from fastdedup.web.response import DEGRADED, UNSTORED, Response
from fastdedup.web.rules import Rule

TEXT = [(b"content-type", b"text/plain"), (b"set-cookie", b"a=1")]
EVENTS = [(b"Content-Type", b"text/event-stream")]
LIMIT = 10


def recorder(*, degraded: bool = False, outage: bool = False, **settings: Any) -> Recorder:
    claim: Any = SimpleNamespace(key="k", degraded=degraded, _lost_in_outage=outage, _warn=lambda *args: None)
    return Recorder(claim, Rule("/", everyone, max_response=LIMIT, **settings), "/docs", "/orders", b"m" * 16)


def ended(recorder: Recorder, status: int = 201, headers: Any = TEXT, body: bytes = b"done") -> Response:
    recorder.start(status, headers)
    recorder.body(body)
    return recorder.end()


@given(chunks=st.lists(st.binary(max_size=LIMIT), max_size=5), headers=st.sampled_from([TEXT, EVENTS]))
def test_the_client_gets_each_byte_and_the_store_all_or_nothing(chunks: list[bytes], headers: Any) -> None:
    one, sent = recorder(), []
    passing = one.start(200, headers)
    for chunk in chunks:
        passing = one.body(chunk)
        if passing:
            sent.append(one.taken())
    stored = one.end()
    sent.append(one.taken())
    body = b"".join(chunks)
    assert b"".join(sent) == body
    assert passing is one.passing is (headers is EVENTS or len(body) > LIMIT)
    assert (stored.body, stored.whole) == ((b"", False) if passing else (body, True))
    assert (UNSTORED in one.marks()) is passing


def test_a_whole_response_is_stored_without_its_cookies() -> None:
    one = recorder()
    assert not one.start(201, TEXT, "Made")
    assert not one.body(b"done")
    stored = one.end()
    assert stored == Response(201, TEXT[:1], b"done", reason="Made")
    assert stored.request == b"m" * 16
    assert (one.how, one.settled, one.marks()) == (Settling.COMPLETE, True, [])


def test_a_response_that_starts_anew_replaces_what_was_held_back() -> None:
    one = recorder()
    one.start(200, TEXT)
    one.body(b"half of it")
    stored = ended(one, 404, TEXT, b"error page")
    assert (stored.status, stored.body, one.how) == (404, b"error page", Settling.FAIL)


def test_a_stream_that_starts_anew_is_still_passed_on() -> None:
    one = recorder()
    assert one.start(200, EVENTS)
    assert one.start(500, TEXT)
    assert not one.end().whole


@pytest.mark.parametrize(
    ("headers", "stream", "passing"),
    [(EVENTS, None, True), (EVENTS, False, False), (TEXT, True, True), (TEXT, None, False)],
)
def test_a_driver_may_know_better_than_the_content_type(headers: Any, stream: Any, passing: bool) -> None:
    assert recorder().start(200, headers, stream=stream) is passing


@pytest.mark.parametrize(("unstored", "how"), [("refuse", Settling.COMPLETE), ("release", Settling.RELEASE)])
def test_a_rule_says_what_a_response_without_its_body_does(unstored: Any, how: Settling) -> None:
    one = recorder(unstored=unstored)
    ended(one, body=b"x" * (LIMIT + 1))
    assert one.how is how


def test_only_a_large_response_counts_in_part() -> None:
    whole, large, stream = recorder(), recorder(), recorder()
    for one, headers, body in (
        (whole, TEXT, b"a"),
        (large, TEXT, b"a" * (LIMIT + 1)),
        (stream, EVENTS, b"a"),
    ):
        one.start(200, headers)
        one.body(body)
    assert [one.counts_in_part for one in (whole, large, stream)] == [False, True, False]
    large.end()
    assert not large.counts_in_part


@pytest.mark.parametrize(
    ("flag", "status", "how"),
    [
        ("undone", 201, Settling.RELEASE),
        ("undone", 303, Settling.RELEASE),
        ("invalid", 200, Settling.RELEASE),
        ("invalid", 303, Settling.COMPLETE),
    ],
)
def test_a_handler_that_did_nothing_frees_the_key(flag: str, status: int, how: Settling) -> None:
    one = recorder()
    setattr(one, flag, True)
    ended(one, status)
    assert one.how is how


# What the client gets


@pytest.mark.parametrize(("degraded", "first"), [(False, []), (True, [DEGRADED])])
def test_marks_say_what_is_degraded_and_what_is_not_stored(degraded: bool, first: Any) -> None:
    one = recorder(degraded=degraded)
    assert one.marks(stored=False) == [*first, UNSTORED]
    ended(one)
    assert one.marks() == first


@pytest.mark.parametrize(("status", "marks"), [(201, [UNSTORED]), (500, [])])
def test_a_response_that_cannot_be_stored_is_sent(status: int, marks: Any) -> None:
    one = recorder()
    ended(one, status)
    assert one.failed(UnavailableError("down")) == marks


@pytest.mark.parametrize(
    ("outage", "status", "kind"), [(False, 409, "claim-lost"), (True, 503, "lease-lost")]
)
def test_a_response_whose_claim_was_lost_is_refused(outage: bool, status: int, kind: str) -> None:
    one = recorder(outage=outage)
    ended(one)
    assert one.failed(ClaimLostError("lost")) is None
    refusal = one.refusal()
    assert (refusal.status, orjson.loads(refusal.body)["type"].rpartition(":")[2]) == (status, kind)
    assert refusal.header(b"link") == b'</docs>; rel="describedby"'
