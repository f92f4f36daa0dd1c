"""A `/v1/batch` of 1,000 claims that wait went past the quota of operations under way of its socket.

So did an FD.RUN, by up to 255 operations, and connections with one command each: they were counted at their next one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from ..servers import RedisServer
from ..sidecar.attacks import connect
from ..sidecar.fuzz import pack
from ..sidecar.running import Sidecar, client

SOCKET = """
[[sockets]]
path = "{folder}/narrow.sock"
pending = 2
allow_stores = true
"""


@pytest.fixture(scope="module")
def path(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A socket with two operations under way at most."""
    folder = tmp_path_factory.mktemp("narrow")
    options = ("--url", redis_server.url, "--namespace", "pending", "--grace", "0.1")
    with Sidecar(*options, config=SOCKET.format(folder=folder)):
        yield folder / "narrow.sock"
    with redis_server.client() as raw:
        raw.flushdb()


@pytest.fixture
def narrow(path: Path) -> Iterator[httpx.Client]:
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), base_url="http://sidecar") as client:
        yield client


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


def test_a_batch_of_a_store_has_no_more_operations_under_way_than_allowed(path: Path) -> None:
    """Nor has one that is sent beside others: what is beyond the quota is refused, each operation for itself."""
    run = pack(b"FD.RUN", b"read", b"5", *[b"pending:=k%d" % number for number in range(5)])
    with client(path) as asks:
        for _ in range(2):
            answers = asks.execute_command(
                "FD.RUN", "read", 5, *[f"pending:=k{number}" for number in range(5)]
            )
            assert sum(b"pending" in str(answer).encode() for answer in answers) == 3, answers
    with connect(path) as raw:
        raw.sendall(run * 2)
        data = b""
        while b"-UNAVAILABLE" not in data:
            data += raw.recv(1 << 16)
    assert data.count(b"may be (pending)") == 4  # three of the first, and the second as a whole


def test_connections_share_the_quota(path: Path) -> None:
    waits = pack(b"FD.CLAIM", b"shared", b"WAIT", b"20000")
    with ExitStack() as stack:
        first, *others = [stack.enter_context(connect(path)) for _ in range(4)]
        first.sendall(pack(b"FD.CLAIM", b"shared"))
        assert first.recv(1000).startswith(b"*7")
        for raw in others:
            raw.sendall(waits)
            raw.sendall(pack(b"PING"))
        answer = others[-1].recv(1000)
    assert answer.startswith(b"-UNAVAILABLE 100 2 operations are under way on this socket")
