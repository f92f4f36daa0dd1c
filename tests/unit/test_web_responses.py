"""Responses as they are stored, requests as they are told apart, problems and the policy as they are shown."""

from __future__ import annotations

import gzip
import tracemalloc
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastdedup import ConfigError, Dedup, ForeignRecordError, ResultError
from fastdedup.web import problems
from fastdedup.web.answers import Settling, is_cut_short, replay, settling_of, storable, streams
from fastdedup.web.fingerprints import json_fingerprint, request_fingerprint
from fastdedup.web.policy import PublishedPolicy, statuses
from fastdedup.web.problems import PROBLEMS, respond, whole_seconds
from fastdedup.web.request import Request, everyone
from fastdedup.web.response import HeaderFilter, Response, ResponseCodec
from fastdedup.web.rules import Route, Rule, make_rules

CODEC = ResponseCodec(spelled=True)
RESPONSES = st.builds(
    Response,
    status=st.integers(100, 599),
    headers=st.lists(st.tuples(st.binary(min_size=1, max_size=20), st.binary(max_size=40)), max_size=6),
    body=st.binary(max_size=300),
    whole=st.booleans(),
    request=st.binary(max_size=16),
    reason=st.text(st.characters(max_codepoint=255), max_size=8),
)

# The codec


@given(response=RESPONSES)
def test_a_response_comes_back_byte_for_byte(response: Response) -> None:
    back = CODEC.loads(CODEC.dumps(response))
    assert back == response
    assert back.request == response.request


@given(data=st.binary(max_size=200))
def test_foreign_bytes_are_told_apart_whatever_they_are(data: bytes) -> None:
    try:
        CODEC.loads(data)
    except ForeignRecordError:
        return
    assert CODEC.dumps(CODEC.loads(data)) is not None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"{}",
        b'{"order": 1}',
        b'"text"',
        b"7",
        b"[]\nbody",
        b'[2,200,true,[],""]\n',
        b'[1,200,true,[["a"]],""]\n',
        b'[1,200,true,[[1,2]],""]\n',
        b'[1,200,true,[["\xe2\x82\xac","x"]],""]\n',
        b'[1,200,true,[],"zz"]\n',
        b'[1,200,true,null,""]\n',
        b"\x80\x04pickle",
    ],
)
def test_records_of_other_code_are_refused(data: bytes) -> None:
    with pytest.raises(ForeignRecordError, match="namespace of its own"):
        CODEC.loads(data)


def test_asgi_gets_the_names_of_headers_in_lower_case() -> None:
    stored = CODEC.dumps(Response(201, [(b"X-Order", b"A")], b"", reason="CREATED"))
    assert ResponseCodec().loads(stored) == Response(201, [(b"x-order", b"A")], b"", reason="CREATED")


def test_a_truncated_head_is_refused() -> None:
    data = CODEC.dumps(Response(200, [(b"a", b"b")], b""))
    for size in range(len(data) - 1):
        with pytest.raises(ForeignRecordError):
            CODEC.loads(data[:size])


@pytest.mark.parametrize("value", [{"a": 1}, b"bytes", "text", 7])
def test_only_responses_are_stored(value: Any) -> None:
    with pytest.raises(ResultError, match=r"must be its response, got .*: return it from the handler"):
        CODEC.dumps(value)


def test_a_stored_response_can_be_read_by_people() -> None:
    assert (
        CODEC.dumps(Response(201, [(b"location", b"/1")], b"ok"))
        == b'[1,201,true,[["location","/1"]],""]\nok'
    )


@pytest.mark.parametrize(
    ("keep", "drop", "kept"),
    [
        (None, ["Set-Cookie"], ["content-type", "x-a", "X-B"]),
        (["X-A", "Set-Cookie", "Authorization"], [], ["set-cookie", "x-a"]),
        (["X-A"], ["x-a"], []),
        (None, [], ["content-type", "set-cookie", "x-a", "X-B"]),
    ],
)
def test_headers_are_kept_by_list_and_some_never(keep: Any, drop: list[str], kept: list[str]) -> None:
    names = ["Connection", "content-type", "keep-alive", "set-cookie", "transfer-encoding", "x-a", "X-B"]
    names += ["Authorization", "WWW-Authenticate", "proxy-authenticate"]
    headers = [(name.encode(), b"1") for name in names]
    assert [name.decode() for name, _ in HeaderFilter(keep, drop)(headers)] == kept


# What becomes of a response

RULE = Rule("/", everyone)


@pytest.mark.parametrize(
    ("status", "location", "whole", "unstored", "settling"),
    [
        (200, None, True, "refuse", Settling.COMPLETE),
        (399, None, True, "refuse", Settling.COMPLETE),
        (404, None, True, "refuse", Settling.FAIL),
        (409, None, True, "refuse", Settling.RELEASE),
        (500, None, True, "refuse", Settling.RELEASE),
        (200, None, False, "refuse", Settling.COMPLETE),
        (404, None, False, "refuse", Settling.FAIL),
        (500, None, False, "refuse", Settling.RELEASE),
        (200, None, False, "release", Settling.RELEASE),
        # A redirect to the same path has the same key.
        (307, b"https://shop.test/caf%C3%A9", True, "refuse", Settling.RELEASE),
        (308, b"/caf%C3%A9/?page=1", True, "refuse", Settling.RELEASE),
        (307, b"caf%C3%A9/", True, "refuse", Settling.RELEASE),
        (307, b"/other", True, "refuse", Settling.COMPLETE),
        (307, b"http://[", True, "refuse", Settling.COMPLETE),
        (307, None, True, "refuse", Settling.COMPLETE),
        (303, b"/caf%C3%A9", True, "refuse", Settling.COMPLETE),  # the client sends a GET, which has no key
    ],
)
def test_what_a_response_makes_of_its_claim(
    status: int, location: bytes | None, whole: bool, unstored: Any, settling: Settling
) -> None:
    headers = [] if location is None else [(b"Location", location)]
    rule = Rule("/", everyone, unstored=unstored)
    assert settling_of(rule, Response(status, headers, b"", whole), "/café") is settling


def test_what_is_stored_has_no_cookies() -> None:
    stored = storable(RULE, Response(200, [(b"set-cookie", b"a"), (b"x", b"y")], b"z", request=b"r" * 16))
    assert stored == Response(200, [(b"x", b"y")], b"z")
    assert stored.request == b"r" * 16


@pytest.mark.parametrize(
    ("kind", "streamed"),
    [
        (b"text/event-stream", True),
        (b"Text/Event-Stream; charset=utf-8", True),
        (b"application/x-ndjson", True),
        (b"application/jsonl", True),
        (b"application/json-seq ;charset=utf-8", True),
        (b"multipart/x-mixed-replace; boundary=a", True),
        (b"application/jsonlogic+json", False),
        (b"application/json", False),
        (None, False),
    ],
)
def test_which_types_are_streams(kind: bytes | None, streamed: bool) -> None:
    assert streams(kind) is streamed


def test_a_claim_completed_without_a_response_is_told_as_one_that_was_not_stored() -> None:
    response = replay(None, "/docs")
    assert response.status == 409
    assert orjson.loads(response.body)["type"].endswith(":response-not-stored")


# Fingerprints


def mark(
    body: bytes = b"", *, method: str = "POST", path: str = "/", query: bytes = b"", kind: str = ""
) -> bytes:
    headers = [(b"content-type", kind.encode())] if kind else []
    return request_fingerprint(Request(method, path, query, headers, body, {}))


def test_a_body_that_is_compressed_anew_is_another_one() -> None:
    now, later = (gzip.compress(b"{}", mtime=seconds) for seconds in (1, 2))
    head = [(b"content-type", b"application/json"), (b"content-encoding", b"gzip")]
    marks = {json_fingerprint(Request("POST", "/", b"", head, body, {})) for body in (now, later)}
    assert len(marks) == 2


def test_method_path_query_and_body_tell_requests_apart() -> None:
    marks = [
        mark(),
        mark(b"x"),
        mark(method="PATCH"),
        mark(path="/a"),
        mark(query=b"a"),
        mark(path="/a", query=b"b"),
        mark(path="/", query=b"ab"),
        mark(b"b", query=b"a"),
    ]
    assert len(set(marks)) == len(marks)
    assert all(len(one) == 16 for one in marks)
    assert mark(b"x") == mark(b"x")


PIECES = st.binary(max_size=12)
REQUESTS = st.tuples(PIECES, st.sampled_from(["P", "PO", "POST"]), st.text(max_size=6), PIECES)


@given(one=REQUESTS, other=REQUESTS)
def test_no_two_requests_are_taken_for_each_other(one: Any, other: Any) -> None:
    marks = [mark(body, method=method, path=path, query=query) for body, method, path, query in (one, other)]
    assert (marks[0] == marks[1]) == (one == other)


def multipart(boundary: str, content: bytes) -> bytes:
    edge = b"--" + boundary.encode()
    return (
        edge + b'\r\nContent-Disposition: form-data; name="f"\r\n\r\n' + content + b"\r\n" + edge + b"--\r\n"
    )


@pytest.mark.parametrize(
    "form", ["multipart/form-data; boundary={}", 'Multipart/Form-Data; Boundary="{}"; charset=x']
)
def test_the_boundary_of_a_multipart_body_does_not_matter_its_content_does(form: str) -> None:
    one = mark(multipart("aaaa", b"content"), kind=form.format("aaaa"))
    assert mark(multipart("bbbbbb", b"content"), kind=form.format("bbbbbb")) == one
    assert mark(multipart("aaaa", b"contents"), kind=form.format("aaaa")) != one
    assert mark(multipart("aaaa", b"content"), kind="text/plain; boundary=aaaa") != one


@pytest.mark.parametrize(
    "kind", ["multipart/form-data", "multipart/form-data; boundary=", 'multipart/x; boundary=""']
)
def test_a_multipart_body_without_a_boundary_is_taken_as_it_is(kind: str) -> None:
    assert mark(b"--x", kind=kind) == mark(b"--x")


@pytest.mark.parametrize("path", ["/\udcff", "/\u00e9"])
def test_odd_paths_have_fingerprints_too(path: str) -> None:
    assert len(mark(path=path)) == 16


JSON = "application/json; charset=utf-8"


def json_mark(body: bytes, kind: str = JSON, path: str = "/") -> bytes:
    return json_fingerprint(Request("POST", path, b"", [(b"content-type", kind.encode())], body, {}))


def test_neither_order_nor_white_space_of_json_matters() -> None:
    one = json_mark(b'{"a": 1, "b": {"c": [1, "\\u0041"], "d": null}}')
    assert one == json_mark(b' {"b":{"d":null,"c":[1,"A"]},\n"a":1}')
    assert one == json_mark(b'{"b":{"d":null,"c":[1,"A"]},"a":1}', "application/vnd.shop+json")


APART = [
    b"{}",
    b"[]",
    b'""',
    b"null",
    b'{"a": 1}',
    b'\xef\xbb\xbf{"a": 1}',
    '{"a": 1}'.encode("utf-16"),
    b'{"a": 2}',
    b'{"a": 1, "a": 2}',
    b'{"a": 2, "a": 1}',
    b'{"a": "1"}',
    b'{"a": 1.0}',
    b'{"a": true}',
    b'{"a": NaN}',
    b'{"a": Infinity}',
    b'{"a": null}',
    b"[1, 2]",
    b"[2, 1]",
    b"12345678901234567890123",
    b"12345678901234567890124",
    b"1e400",
    b"1e401",
    b'{"a": {}}',
    b"-0",
    b"0",
    b"0.10",
    b"0.1",
    b'{"n": "1"}',
    b'{".n": "1"}',
    b"1",
    b"9" * 5000,
    b"[" * 100_000,
    b"[" * 100_001,
    b'"\\ud800"',
    b"\xff",
]


def test_json_bodies_with_other_values_never_collide() -> None:
    marks = {json_mark(body) for body in APART} | {json_mark(body, "text/plain") for body in APART}
    assert len(marks) == 2 * len(APART) - len([body for body in APART if not canonical(body)])
    assert json_mark(b"{}", path="/a") != json_mark(b"{}")


def test_json_of_numbers_takes_little_memory() -> None:
    """A megabyte of `1,1,1` is half a million numbers, and a hostile client may send it."""
    tracemalloc.start()
    try:
        json_mark(b"[" + b"1," * 20_000 + b"1]")
        assert tracemalloc.get_traced_memory()[1] < 4_000_000
    finally:
        tracemalloc.stop()


def canonical(body: bytes) -> bool:
    """Return whether the value counts, and not the bytes."""
    return json_mark(body) != mark(body)


# Problems


def test_types_are_stable() -> None:
    """Clients switch on them: a change here is a breaking change."""
    assert [(problem.type, problem.status) for problem in PROBLEMS] == [
        ("urn:fastdedup:problem:key-missing", 400),
        ("urn:fastdedup:problem:key-malformed", 400),
        ("urn:fastdedup:problem:principal-required", 400),
        ("urn:fastdedup:problem:in-progress", 409),
        ("urn:fastdedup:problem:claim-lost", 409),
        ("urn:fastdedup:problem:lease-lost", 503),
        ("urn:fastdedup:problem:response-not-stored", 409),
        ("urn:fastdedup:problem:body-too-large", 413),
        ("urn:fastdedup:problem:key-reused", 422),
        ("urn:fastdedup:problem:unavailable", 503),
    ]


def test_a_problem_is_rfc_9457() -> None:
    response = respond(problems.UNAVAILABLE, docs="/docs", retry_after=0.2)
    body = orjson.loads(response.body)
    assert set(body) == {"type", "title", "status", "detail"}
    assert dict(response.headers) == {
        b"content-type": b"application/problem+json",
        b"content-length": b"%d" % len(response.body),
        b"retry-after": b"1",
        b"link": b'</docs>; rel="describedby"',
    }


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, b"1"), (0.2, b"1"), (1.0, b"1"), (1.01, b"2"), (30, b"30")]
)
def test_retry_after_is_in_whole_seconds(seconds: float, text: bytes) -> None:
    assert whole_seconds(seconds) == text


# The policy


def policy(*routes: Any, docs: str | None = "/idempotency", **settings: Any) -> PublishedPolicy:
    return PublishedPolicy(
        make_rules(routes or ["/*"], {"principal": everyone, **settings}), Dedup("memory://").settings, docs
    )


def test_the_policy_says_how_long_keys_live_and_what_is_replayed() -> None:
    facts = orjson.loads(policy(Route("/orders", ttl=60.0, required=True, wait=2.0)).page(None).body)
    (operation,) = facts["operations"]
    assert operation["path"] == "/orders"
    assert operation["methods"] == ["POST", "PATCH"]
    assert operation["key"] == "required"
    assert operation["lifetime_seconds"] == 60.0
    assert operation["failure_lifetime_seconds"] == 3600.0
    assert operation["in_flight"] == "waits 2 s for the first response, then 409"
    assert "draft-ietf-httpapi-idempotency-key-header" in facts["specification"]
    assert {error["status"] for error in facts["errors"]} == {400, 409, 413, 422, 503}


def test_a_browser_gets_a_page_with_everything_escaped() -> None:
    page = policy("/<script>", key_format='[<>&"]+').page("text/html,application/xml")
    text = page.body.decode()
    assert "<script>" not in text
    assert "/&lt;script&gt;" in text
    assert "[&lt;&gt;&amp;&quot;]+" in text
    assert dict(page.headers)[b"vary"] == b"accept"


def test_statuses_are_shown_as_ranges() -> None:
    assert statuses(RULE)[:2] == ["200-400", "402"]
    assert statuses(Rule("/", everyone, keep=[200, 201, 404])) == ["200-201", "404"]
    assert statuses(Rule("/", everyone, keep=[])) == []


@pytest.mark.parametrize("docs", ["docs", "ftp://x", "/a b", "/a>", '/"', "/\n", "/é", ""])
def test_docs_that_cannot_stand_in_a_link_are_told(docs: str) -> None:
    with pytest.raises(ConfigError, match="docs"):
        policy(docs=docs)


def test_docs_may_be_a_url_of_ones_own() -> None:
    assert policy(docs="https://example.com/keys").path is None
    assert policy(docs=None).docs is None


@pytest.mark.parametrize(
    ("status", "body", "length", "may_be_empty", "cut"),
    [
        (200, b"hello", b"5", False, False),
        (200, b"hell", b"5", False, True),
        (200, b"hello", b"", False, False),
        (200, b"hello", b"five", False, False),
        (200, b"", b"5", False, True),
        (200, b"", b"5", True, False),
        (200, b"hell", b"5", True, True),
        (204, b"", b"5", False, False),
        (304, b"", b"5", False, False),
        (200, b"hello", b"9" * 5000, False, True),
    ],
)
def test_a_body_is_cut_short(status: int, body: bytes, length: bytes, may_be_empty: bool, cut: bool) -> None:
    """Also where the length has more digits than Python makes a number of."""
    response = Response(status, (), body)
    assert is_cut_short(response, length, may_be_empty=may_be_empty) is cut
    assert not is_cut_short(Response(status, (), body, whole=False), length, may_be_empty=False)
