"""1,024 pipelined claims of a key with a large result, unread, took 770 MB; one batch of 1,000 of them 810 MB."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import orjson
import pytest

from ..servers import RedisServer
from ..sidecar.attacks import RESULT, connect, peak, post, settle
from ..sidecar.fuzz import pack
from ..sidecar.running import Sidecar, figure

WaitUntil = Callable[..., Any]
KEYS = [f"key:{number}" for number in range(12)]
IN_ALL = 12 * 1024 * 1024


@pytest.fixture(scope="module")
def sidecar(redis_server: RedisServer) -> Iterator[Sidecar]:
    """A sidecar whose store has a large result under each of the keys."""
    config = f"allow_stores = true\n[limits]\nreplies_in_all = {IN_ALL}\n"
    options = ("--url", redis_server.url, "--namespace", "unread", "--ttl", "300", "--timeout", "5")
    with Sidecar(*options, config=config) as sidecar:
        settle(sidecar.path, KEYS, RESULT)
        yield sidecar
    with redis_server.client() as raw:
        raw.flushdb()


def answered(sidecar: Sidecar) -> float:
    return figure(sidecar.figures(), "fastdedup_operations_total", outcome="succeeded")


def read_results(raw: Any, count: int) -> bytes:
    """Read as many results as there are; return all that was read."""
    data = bytearray()
    while len(data) < count * RESULT:
        more = raw.recv(1 << 20)
        assert more, bytes(data[-200:])
        data += more
    return bytes(data)


async def test_unread_replies_take_no_memory(sidecar: Sidecar, wait_until: WaitUntil) -> None:
    before, so_far = peak(sidecar), answered(sidecar)
    with connect(sidecar.path) as raw:
        raw.sendall(pack(b"FD.CLAIM", KEYS[0].encode()) * 300)
        await wait_until(lambda: answered(sidecar) == so_far + 300, description="all are answered")
        assert peak(sidecar) - before < 16
        assert read_results(raw, 300).count(b"succeeded") == 300
        assert peak(sidecar) - before < 16


async def test_replies_without_room_come_later_and_in_order(sidecar: Sidecar) -> None:
    asked = KEYS * 6
    with connect(sidecar.path) as raw:
        for command in (b"FD.CLAIM", b"FD.GET"):
            raw.sendall(b"".join(pack(command, key.encode()) for key in asked) + pack(b"PING"))
            read = read_results(raw, len(asked))
            while not read.endswith(b"+PONG\r\n"):
                read += raw.recv(1 << 20)
            assert read.count(b"succeeded") == len(asked)
            if command == b"FD.GET":
                assert [key.decode() for key in re.findall(rb'"key":"([^"]+)', read)] == asked


async def test_clients_that_read_nothing_make_room_for_others(
    sidecar: Sidecar, wait_until: WaitUntil
) -> None:
    """The bystander is refused for a moment, until the others have read nothing for a second.

    The others' replies wait where there is no room for them. Before, the sidecar closed 20 of their connections in
    one turn of the loop, and their bytes were freed in a later turn.
    """
    before = peak(sidecar)
    with ExitStack() as stack:
        for _ in range(60):
            stack.enter_context(connect(sidecar.path)).sendall(pack(b"FD.CLAIM", KEYS[0].encode()) * 8)

        def is_served() -> bool:
            with connect(sidecar.path) as raw:
                raw.sendall(pack(b"FD.CLAIM", KEYS[1].encode()))
                return raw.recv(100).startswith(b"*7\r\n$9\r\nsucceeded")

        await wait_until(is_served, description="a client that reads is served")
        assert peak(sidecar) - before < IN_ALL // 2**20 + 24
        assert sidecar.log.count("hung up on a client") < 10


def test_a_batch_refuses_the_results_that_have_no_room(sidecar: Sidecar) -> None:
    before = peak(sidecar)
    asks = orjson.dumps(
        [{"op": "claim", "key": KEYS[0]}] * 300 + [{"op": "claim", "key": "fresh", "lease": 1}]
    )
    with connect(sidecar.path) as raw:
        raw.sendall(post("/v1/batch", asks).replace(b"host: x", b"host: x\r\nconnection: close"))
        answer = b"".join(iter(lambda: raw.recv(1 << 20), b""))
    items = orjson.loads(answer.partition(b"\r\n\r\n")[2])
    statuses = [item["status"] for item in items]
    assert statuses == [200] * 31 + [503] * 269 + [201]
    assert "limits.replies" in items[100]["body"]["detail"]
    assert peak(sidecar) - before < 48


def test_a_batch_of_a_store_refuses_what_has_no_room(sidecar: Sidecar) -> None:
    before = peak(sidecar)
    wires = [f"unread:={key}".encode() for key in KEYS] * 6
    with connect(sidecar.path) as raw:
        raw.sendall(pack(b"FD.RUN", b"read", b"%d" % len(wires), *wires) + pack(b"PING"))
        read = read_results(raw, 31)
        while not read.endswith(b"+PONG\r\n"):
            read += raw.recv(1 << 20)
    assert read.count(b"limits.replies") == len(wires) - 32
    assert peak(sidecar) - before < 64
