"""A problem has one type and one status wherever it is met, and a time of the wire names its unit.

The sidecar's `retry_after` was milliseconds, Python's is seconds; the same problem had another type in the web and in
the sidecar, `key-reused` another name as well.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import httpx
import pytest

from fastdedup.sidecar.http import problems as sidecars
from fastdedup.sync import Dedup
from fastdedup.web import problems as webs

from ..servers import RedisServer
from ..sidecar.running import Sidecar

URN = "urn:fastdedup:problem:"


@pytest.fixture(scope="module")
def http(server: RedisServer) -> Iterator[httpx.Client]:
    with Sidecar("--url", server.url) as sidecar, sidecar.http() as http:
        yield http


def test_a_type_has_one_status_in_web_and_sidecar() -> None:
    web = {problem.type: problem.status for problem in webs.PROBLEMS}
    sidecar = {problem.type: problem.status for problem in sidecars.PROBLEMS}
    shared = web.keys() & sidecar.keys()
    assert {name.removeprefix(URN) for name in shared} == {
        "in-progress",
        "claim-lost",
        "body-too-large",
        "key-reused",
        "key-missing",
        "key-malformed",
        "principal-required",
        "unavailable",
    }
    assert all(web[name] == sidecar[name] for name in shared)
    assert all(name.startswith(URN) for name in web.keys() | sidecar.keys())


def test_the_wire_counts_seconds_as_python_and_the_header_do(http: httpx.Client, server: RedisServer) -> None:
    http.post("/v1/claims", json={"key": "k", "lease": 90_000})
    answer = http.post("/v1/claims", json={"key": "k"})
    facts = answer.json()
    assert 60 < facts["retry_after"] <= 90
    assert int(answer.headers["retry-after"]) == math.ceil(facts["retry_after"])
    with Dedup(server.url) as dedup:
        claim = dedup.claim("k")
        assert claim.retry_after is not None
        assert 60 < claim.retry_after <= 90


def test_another_fingerprint_is_a_reused_key(http: httpx.Client) -> None:
    http.post("/v1/claims", json={"key": "m", "fingerprint": 1})
    facts = http.post("/v1/claims", json={"key": "m", "fingerprint": 2}).json()
    assert (facts["type"], facts["outcome"], facts["retry_after"]) == (
        webs.MISMATCH.type,
        "mismatch",
        None,
    )


def test_the_document_names_the_unit(http: httpx.Client) -> None:
    schemas = http.get("/openapi.json").json()["components"]["schemas"]
    told = schemas["ClaimProblem"]["properties"]["retry_after"]["description"]
    assert told.startswith("Seconds")
