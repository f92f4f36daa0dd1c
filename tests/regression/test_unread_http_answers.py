"""60 HTTP clients that asked for a large result and read nothing took 34 MB, where 12 MiB were allowed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from ..servers import RedisServer
from ..sidecar.attacks import RESULT, connect, peak, post, settle
from ..sidecar.running import Sidecar

WaitUntil = Callable[..., Any]
IN_ALL = 12 * 1024 * 1024
ASK = post("/v1/claims", b'{"key":"k"}')


@pytest.fixture
def sidecar(redis_server: RedisServer) -> Iterator[Sidecar]:
    """A sidecar whose store has a large result under a key."""
    options = ("--url", redis_server.url, "--namespace", "unread-http", "--ttl", "300", "--timeout", "5")
    with Sidecar(*options, config=f"[limits]\nreplies_in_all = {IN_ALL}\n") as sidecar:
        settle(sidecar.path, ["k"], RESULT)
        yield sidecar
    with redis_server.client() as raw:
        raw.flushdb()


async def test_unread_answers_over_http_stay_within_their_limit(
    sidecar: Sidecar, wait_until: WaitUntil
) -> None:
    """The bystander is refused for a moment, until the others have read nothing for a second."""
    before = peak(sidecar)
    statuses: list[int] = []
    with ExitStack() as stack, sidecar.http() as bystander:
        for _ in range(60):
            stack.enter_context(connect(sidecar.path)).sendall(ASK * 8)

        def is_served() -> bool:
            statuses.append(bystander.post("/v1/claims", json={"key": "k"}).status_code)
            return statuses[-1] == 200

        await wait_until(is_served, description="a client that reads is served")
        assert set(statuses) <= {503, 200}
        assert peak(sidecar) - before < IN_ALL // 2**20 + 10


def test_answers_behind_unread_ones_come_later_and_whole(sidecar: Sidecar) -> None:
    with connect(sidecar.path) as raw:
        raw.sendall(ASK * 40)
        read = bytearray()
        while read.count(b'"degraded":false}') < 40:
            more = raw.recv(1 << 20)
            assert more, bytes(read[-200:])
            read += more
    assert read.count(b"HTTP/1.1 200 OK\r\n") == 40
    assert read.count(b"x" * RESULT) == 40
