"""A name that stands twice in a body is refused: two parsers took one of the two each, so a key could be another.

A batch of bare claims goes by a fast parser, which took the last; the models took another.
"""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from ..servers import RedisServer
from ..sidecar.running import Sidecar


@pytest.fixture(scope="module")
def http(server: RedisServer) -> Iterator[httpx.Client]:
    with Sidecar("--url", server.url) as sidecar, sidecar.http() as http:
        yield http


TWICE = [
    '"key": "a", "key": "b"',
    '"key":"a","key":"b"',
    '"key":"a","k\\u0065y":"b"',
    '"key":"a","key"\t:"b"',
    '"key":"a","key"\r\n:"b"',
    '"key":"a","fingerprint":1,"fingerprint":{"x":1}',
]


@pytest.mark.parametrize("members", TWICE)
def test_a_claim_with_a_name_twice_is_refused(http: httpx.Client, members: str) -> None:
    answer = http.post("/v1/claims", content="{" + members + "}")
    assert (answer.status_code, answer.json()["type"].rpartition(":")[2]) == (422, "invalid-request")
    assert "is given twice" in answer.json()["detail"]


@pytest.mark.parametrize("members", TWICE)
@pytest.mark.parametrize("options", ["", ',"wait":0'])
def test_a_batch_with_a_name_twice_is_refused(http: httpx.Client, members: str, options: str) -> None:
    plain = '{"op":"claim","key":"plain"}'
    answer = http.post("/v1/batch", content=f'[{plain},{{"op":"claim",{members}{options}}}]')
    assert (answer.status_code, answer.json()["type"].rpartition(":")[2]) == (422, "invalid-request")
    assert http.get("/v1/records", params={"key": "plain"}).status_code == 404


@pytest.mark.parametrize(
    "members",
    ['"key" : "spaced"', '"key":"a\\":b"', '"key":"order:1","fingerprint":{"a":1,"b":[{"a":1}]}'],
)
def test_names_within_values_and_spaces_are_let_be(http: httpx.Client, members: str) -> None:
    assert http.post("/v1/claims", content="{" + members + "}").status_code == 201
    content = '[{"op":"claim","namespace":"batch",' + members + "}]"
    assert http.post("/v1/batch", content=content).json()[0]["status"] == 201
