"""A replay became a quarter slower as requests were digested twice, and host and route were brought into shape anew.

What is prepared once must still tell every host, scheme, route, mount, method and path apart.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastdedup.compiled import is_compiled
from fastdedup.web import request as requests
from fastdedup.web.fingerprints import bare_path
from fastdedup.web.request import Request, everyone, host_of
from fastdedup.web.rules import Rule

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
