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
    settlement = SimpleNamespace(lost_in_outage=outage, warn=lambda *args: None)
    claim: Any = SimpleNamespace(key="k", degraded=degraded, settlement=settlement)
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
    one = recorder()
    assert one.start(200, headers, stream=stream) is passing
    assert one.counts_in_part is (
        passing and headers is TEXT
    )  # what a stream is, only its content type tells


@pytest.mark.parametrize(("unstored", "how"), [("refuse", Settling.COMPLETE), ("release", Settling.RELEASE)])
def test_a_rule_says_what_a_response_without_its_body_does(unstored: Any, how: Settling) -> None:
    one = recorder(unstored=unstored)
    ended(one, body=b"x" * (LIMIT + 1))
    assert one.how is how


@pytest.mark.parametrize(
    ("headers", "size", "on_disconnect", "passing", "counts"),
    [
        (TEXT, 1, "finish", False, False),
        (TEXT, LIMIT + 1, "finish", True, True),
        (TEXT, LIMIT + 1, "cancel", True, False),
        (EVENTS, 1, "finish", True, False),
    ],
)
def test_only_a_large_response_counts_in_part_unless_a_client_that_leaves_cancels(
    headers: Any, size: int, on_disconnect: Any, passing: bool, counts: bool
) -> None:
    one = recorder(on_disconnect=on_disconnect)
    one.start(200, headers)
    assert (one.body(b"a" * size), one.counts_in_part) == (passing, counts)
    one.end()
    assert not one.counts_in_part


@pytest.mark.parametrize("stream", [None, True])
def test_what_is_passed_on_ends_with_the_length_that_it_tells(stream: Any) -> None:
    one, untold = recorder(), recorder()
    one.start(200, [*EVENTS, (b"content-length", b"5")], stream=stream)
    assert [one.passes(size) for size in (4, 0, 1, 1)] == [False, False, True, True]
    one.end()
    assert not one.passes(1)
    for length in (b"", b"five", b"1" * 19):
        untold.start(200, [*EVENTS, (b"content-length", length)], stream=stream)
        assert not untold.passes(5)


def test_a_head_that_was_replaced_says_what_counts() -> None:
    one = recorder()
    assert one.start(200, EVENTS)
    one.passing = False  # as WSGI does: the server has refused that head
    one.start(500, TEXT)
    assert one.body(b"a" * (LIMIT + 1))
    assert one.counts_in_part


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
