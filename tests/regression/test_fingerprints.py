"""Fingerprints: nobody can choose a finished one, and a request is digested once."""

from __future__ import annotations

import enum
import math
import pickle
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from fastdedup import ConfigError, Dedup, Fingerprint, Outcome, fingerprint
from fastdedup.compiled import is_compiled
from fastdedup.web import request as requests
from fastdedup.web.fingerprints import bare_path, request_fingerprint
from fastdedup.web.request import Request, everyone, host_of
from fastdedup.web.rules import Rule

from ..servers import RedisServer
from ..sidecar.conftest import Running, Serve, serve  # noqa: F401 -- a fixture

# Fault 17: a client chose the bytes of a finished digest, and was given another request's result. Any 16
# bytes were taken as a digest, and any 32 hexadecimal digits in the sidecar. So a second body that *was*
# the fingerprint of the first one replayed its result.


BODY = b'{"pay": 10}'


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
async def test_bytes_that_equal_a_digest_are_another_request(
    redis_url: str, redis_server: RedisServer, kind: Callable[[bytes], Any]
) -> None:
    """The body of the second request is the fingerprint of the first."""
    async with Dedup(redis_url) as dedup:
        claim = await dedup.claim("order:7", fingerprint=BODY)
        await claim.complete("paid 10")
        again = await dedup.claim("order:7", fingerprint=fingerprint(BODY))
        assert (again.outcome, again.result) == (Outcome.SUCCEEDED, "paid 10")
        forged = await dedup.claim("order:7", fingerprint=kind(bytes(fingerprint(BODY))))
        assert (forged.outcome, forged.result) == (Outcome.MISMATCH, None)


@pytest.fixture
def sidecar(serve: Serve, redis_url: str, redis_server: RedisServer) -> Running:  # noqa: F811
    return serve(redis_url)


def test_hexadecimal_digits_that_equal_a_digest_are_another_request(sidecar: Running) -> None:
    """Over HTTP and over RESP."""
    forged = fingerprint(BODY.decode()).hex()
    with sidecar.http() as http, redis.Redis.from_url(sidecar.url) as client:
        first = {"key": "order:7", "fingerprint": BODY.decode()}
        assert http.post("/v1/claims", json=first).status_code == 201
        assert http.post("/v1/claims", json=first).status_code == 409
        assert http.post("/v1/claims", json={**first, "fingerprint": forged}).status_code == 422
        assert client.execute_command("FD.CLAIM", "order:7", "FP", forged)[0] == b"mismatch"
        raw = bytes.fromhex(forged)
        assert client.execute_command("FD.CLAIM", "order:7", "FP", raw)[0] == b"mismatch"


def test_http_resp_and_the_library_agree_about_a_text(sidecar: Running, redis_url: str) -> None:
    """The sidecar digests what was sent as `fingerprint()` does."""
    with sidecar.http() as http, redis.Redis.from_url(sidecar.url) as client:
        assert client.execute_command("FD.CLAIM", "order:8", "FP", "the body")[0] == b"acquired"
        answer = http.post("/v1/claims", json={"key": "order:8", "fingerprint": "the body"})
        assert answer.json()["outcome"] == "in_progress"
        stored = http.get("/v1/records", params={"key": "order:8"}).json()["fingerprint"]
        assert stored == fingerprint("the body").hex()


def test_a_body_that_equals_a_digest_is_another_http_request() -> None:
    """A route's own fingerprint function may return the body as it came."""
    rule = Rule("/", everyone, fingerprint=lambda request: request.body)
    first = Request("POST", "/", b"", [], BODY, {})
    second = Request("POST", "/", b"", [], bytes(rule.mark(first)), {})
    assert rule.mark(second) != rule.mark(first)
    assert type(request_fingerprint(first)) is Fingerprint


@given(data=st.binary(max_size=64))
def test_only_the_type_makes_a_digest_finished(data: bytes) -> None:
    """Any bytes are digested; the digest of a digest is itself."""
    mark = fingerprint(data)
    assert mark != data
    assert fingerprint(mark) is mark
    assert fingerprint(bytes(mark)) != mark
    assert fingerprint(mark.hex()) != mark


@given(data=st.binary(max_size=64), start=st.integers(0, 5), step=st.integers(1, 5))
def test_a_strided_view_is_its_bytes(data: bytes, start: int, step: int) -> None:
    """It was a BufferError."""
    assert fingerprint(memoryview(data)[start::step]) == fingerprint(data[start::step])


@given(data=st.binary(min_size=16, max_size=16))
def test_a_fingerprint_survives_pickling_and_shows_itself(data: bytes) -> None:
    mark = Fingerprint(data)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        again = pickle.loads(pickle.dumps(mark, protocol))
        assert (again, type(again)) == (mark, Fingerprint)
    assert eval(repr(mark)) == mark
    assert str(mark) == f"{mark}" == repr(mark)


@pytest.mark.parametrize("value", [b"", b"x" * 15, b"x" * 17, bytearray(16), "x" * 16, None, 16])
def test_a_fingerprint_has_16_bytes(value: Any) -> None:
    with pytest.raises(ConfigError, match="must have 16 bytes"):
        Fingerprint(value)


# NaN, whose JSON is null


class Rate(enum.Enum):
    UNKNOWN = math.nan
    LISTED = [math.inf]  # noqa: RUF012 -- an enum's value


class Half(float, enum.Enum):
    LOST = math.nan


@dataclass
class Offer:
    price: Any
    _hidden: float = 0.0


@dataclass(slots=True)
class Slotted:
    price: Any
    _hidden: float = 0.0


class Rows(list[Any]):
    """A subclass of a list, which orjson takes."""


def with_extra() -> Offer:
    offer = Offer(1.0)
    offer.extra = math.nan  # type: ignore[attr-defined] # orjson writes it too
    return offer


NANS = st.sampled_from([math.nan, math.inf, -math.inf, Rate.UNKNOWN, Rate.LISTED, Half.LOST, with_extra()])
WRAPPED = st.recursive(
    NANS,
    lambda inner: (
        inner.map(lambda item: [None, item])
        | inner.map(lambda item: (item,))
        | inner.map(lambda item: {"a": None, "b": item})
        | inner.map(Offer)
        | inner.map(Slotted)
        | inner.map(lambda item: Rows([item]))
    ),
    max_leaves=4,
)


@given(value=WRAPPED)
def test_nan_is_refused_in_every_disguise(value: Any) -> None:
    """`fingerprint([Enum NaN])` equalled `fingerprint([None])`."""
    with pytest.raises(ConfigError, match="NaN"):
        fingerprint(value)


@pytest.mark.parametrize("value", [Offer(None, math.nan), Slotted(None, math.nan)])
def test_a_nan_that_json_leaves_out_is_fine(value: Any) -> None:
    """Orjson writes no attribute whose name begins with "_"."""
    assert fingerprint(value) == fingerprint({"price": None})


def test_the_demo_speaks_of_requests_and_not_of_digests(sidecar: Running) -> None:
    """Its clients send what is asked; the sidecar digests it."""
    with sidecar.http() as http:
        asked = {"key": "order:9", "fingerprint": ["buyer", "token"]}
        assert http.post("/v1/claims", json=asked).status_code == 201
        assert http.post("/v1/claims", json={**asked, "fingerprint": ["buyer", "other"]}).status_code == 422


# A replay became a quarter slower as requests were digested twice, and host and route were brought into
# shape anew. What is prepared once must still tell every host, scheme, route, mount, method and path apart.


HOSTS = st.text("ab:.1 \n/", max_size=5)
PATHS = st.text("ab1 \n/", max_size=5).map(lambda name: f"/{name}")
PLACES = st.tuples(HOSTS, PATHS, PATHS)


def request_to(path: str, host: str = "", method: str = "POST", mount: str = "") -> Request:
    return Request(method, path, b"", [], b"{}", {}, mount, host)


def body_of(request: Request) -> Any:
    return request.body


@pytest.mark.skipif(is_compiled(), reason="calls of compiled functions are not seen")
def test_a_request_is_digested_once() -> None:
    rule, asked = Rule("/orders", everyone), request_to("/orders", "a.test")
    digests = 0

    def on_call(frame: FrameType, event: str, called: Any) -> None:
        nonlocal digests
        digests += event == "c_call" and "blake2b" in repr(called)

    sys.setprofile(on_call)
    try:
        rule.identify(asked, everyone(asked), "k")
    finally:
        sys.setprofile(None)
    assert digests == 1


@pytest.mark.parametrize("settings", [{}, {"fingerprint": body_of}])
@given(one=PLACES, other=PLACES)
def test_hosts_routes_and_paths_have_fingerprints_of_their_own(settings: Any, one: Any, other: Any) -> None:
    marks = [
        Rule(route, everyone, **settings).mark(request_to(path, host)) for host, route, path in (one, other)
    ]
    places = [(host, route, bare_path(path)) for host, route, path in (one, other)]
    assert (marks[0] == marks[1]) == (places[0] == places[1])


def test_methods_and_mounts_have_keys_of_their_own() -> None:
    rule = Rule("/orders", everyone)
    asked = [
        request_to("/orders"),
        request_to("/orders", method="PATCH"),
        request_to("/v1/orders", mount="/v1"),
        request_to("/v2/orders", mount="/v2"),
    ]
    keys = [rule.identify(one, "mary", "k")[0] for one in [*asked, *asked]]
    assert len(set(keys)) == len(asked)


def test_a_default_port_is_that_of_the_scheme() -> None:
    named = [(b"host", b"a.test:443")]
    schemes = ("https", "http", "https")
    assert [host_of(named, scheme) for scheme in schemes] == ["a.test", "a.test:443", "a.test"]


def test_two_host_headers_are_another_host() -> None:
    assert host_of([(b"host", b"a.test"), (b"x", b"1"), (b"host", b"b.test")], "http") == "a.test,b.test"


def test_a_long_host_is_not_kept_in_memory() -> None:
    before = requests._known_host.cache_info()
    assert host_of([(b"host", b"A" * 60_000)], "http") == "a" * 60_000
    assert requests._known_host.cache_info() == before
