"""A `/v1/batch` of 1,000 claims that wait went past the quota of operations under way of its socket."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from ..servers import RedisServer
from ..sidecar.running import Sidecar

SOCKET = """
[[sockets]]
path = "{folder}/narrow.sock"
pending = 2
"""


@pytest.fixture
def narrow(redis_server: RedisServer, tmp_path: Path) -> Iterator[httpx.Client]:
    """A client of a socket with two operations under way at most."""
    options = ("--url", redis_server.url, "--namespace", "pending")
    with Sidecar(*options, config=SOCKET.format(folder=tmp_path)):
        transport = httpx.HTTPTransport(uds=str(tmp_path / "narrow.sock"))
        with httpx.Client(transport=transport, base_url="http://sidecar") as client:
            yield client
    with redis_server.client() as raw:
        raw.flushdb()


def test_a_batch_has_no_more_operations_under_way_than_allowed(narrow: httpx.Client) -> None:
    """The answers give their places back, so a further batch has as many again."""
    narrow.post("/v1/claims", json={"key": "held"})
    for batch in (
        [{"op": "claim", "key": "held", "wait": 1}] * 5,
        [{"op": "claim", "key": "held"}] * 5,
    ):
        answers = narrow.post("/v1/batch", json=batch).json()
        assert [each["status"] for each in answers] == [409, 409, 429, 429, 429]
        assert "pending" in answers[-1]["body"]["detail"]
