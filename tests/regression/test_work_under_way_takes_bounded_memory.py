"""100 RESP clients with 1,000 waiting claims each took 970 MB, and a bystander waited for more than 5 s.

32 HTTP clients with a batch of 1,000 named claims of large results took 321 MB; such batches also opened the breaker.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import orjson
import pytest

from ..servers import RedisServer
from ..sidecar.attacks import RESULT, connect, peak, post, push, settle
from ..sidecar.fuzz import pack
from ..sidecar.running import Sidecar

WAITS = b"".join(pack(b"FD.CLAIM", b"held", b"WAIT", b"30000") for _ in range(1000))


@pytest.fixture
def fresh(redis_server: RedisServer) -> Iterator[Sidecar]:
    """A sidecar of its own, for tests of its memory."""
    options = (
        "--url",
        redis_server.url,
        "--namespace",
        "work",
        "--ttl",
        "60",
        "--timeout",
        "4",
        "--grace",
        "0.1",
    )
    with Sidecar(*options) as sidecar:
        longest_claim(sidecar.path, 1)
        yield sidecar
    with redis_server.client() as raw:
        raw.flushdb()


@pytest.fixture(scope="module")
def sidecar() -> Iterator[Sidecar]:
    with Sidecar("--grace", "0.1") as sidecar:
        yield sidecar


def longest_claim(path: Path, times: int) -> float:
    """Claim so many new keys one after another; return the longest time in seconds."""
    longest = 0.0
    with connect(path) as raw:
        for number in range(times):
            began = time.monotonic()
            raw.sendall(pack(b"FD.CLAIM", b"new %d %d" % (number, id(raw))))
            assert raw.recv(1000).startswith(b"*7\r\n$8\r\nacquired")
            longest = max(longest, time.monotonic() - began)
    return longest


def test_waiting_commands_take_bounded_memory_and_time(fresh: Sidecar) -> None:
    """20,000 of them took 190 MB."""
    before = peak(fresh)
    with ExitStack() as stack, connect(fresh.path) as holder:
        holder.sendall(pack(b"FD.CLAIM", b"held"))
        holder.recv(1000)
        for _ in range(20):
            push(stack.enter_context(connect(fresh.path)), WAITS)
        assert longest_claim(fresh.path, 20) < 5.0
        assert peak(fresh) - before < 60


def test_who_waits_keeps_nobody_from_completing(sidecar: Sidecar) -> None:
    """The completion stands behind 1,000 claims that wait for it, on the same connection."""
    with connect(sidecar.path) as raw:
        raw.sendall(pack(b"FD.CLAIM", b"mine"))
        owner = raw.recv(1000).split(b"\r\n")[4]
        waits = pack(b"FD.CLAIM", b"mine", b"WAIT", b"15000") * 1000
        raw.sendall(waits + pack(b"FD.COMPLETE", b"mine", owner, b"done"))
        read = b""
        while not read.endswith(b"+OK\r\n"):
            read += raw.recv(1 << 20)
    assert read.count(b"$4\r\ndone\r\n") == 1000


def test_a_wait_counts_from_its_arrival(sidecar: Sidecar) -> None:
    """Of 320 claims on one connection only 64 wait at once: in five rows of 0.5 s they would take 2.5 s."""
    with connect(sidecar.path) as raw:
        raw.sendall(pack(b"FD.CLAIM", b"late"))
        raw.recv(1000)
        began = time.monotonic()
        raw.sendall(pack(b"FD.CLAIM", b"late", b"WAIT", b"500") * 320)
        read = b""
        while read.count(b"in_progress") < 320:
            read += raw.recv(1 << 20)
    assert 0.5 <= time.monotonic() - began < 2.3


def test_batches_take_bounded_memory_and_time(fresh: Sidecar) -> None:
    """16 of them took 200 MB, and the store's silence of 2 s refused everybody."""
    settle(fresh.path, [f"k{number}" for number in range(60)], RESULT)
    before = peak(fresh)
    asks = [{"op": "claim", "key": f"k{number % 60}", "owner": f"o{number}"} for number in range(1000)]
    with ExitStack() as stack:
        for _ in range(16):
            push(stack.enter_context(connect(fresh.path)), post("/v1/batch", orjson.dumps(asks)))
        assert longest_claim(fresh.path, 5) < 5.0
        waiting = stack.enter_context(fresh.http())
        assert waiting.post("/v1/batch", json=[{"op": "claim", "key": "last"}]).json()[0]["status"] == 201
    assert peak(fresh) - before < 140
    assert "breaker opened" not in fresh.log


def test_waiting_batches_leave_room_for_others(sidecar: Sidecar) -> None:
    asks = [{"op": "claim", "key": "long", "wait": 20000}] * 1000
    with ExitStack() as stack, sidecar.http() as http:
        assert http.post("/v1/claims", json={"key": "long"}).status_code == 201
        for _ in range(20):
            push(stack.enter_context(connect(sidecar.path)), post("/v1/batch", orjson.dumps(asks)))
        began = time.monotonic()
        assert http.post("/v1/batch", json=[{"op": "claim", "key": "other"}]).json()[0]["status"] == 201
        assert time.monotonic() - began < 5.0


def test_commands_of_one_client_take_turns_with_others(sidecar: Sidecar) -> None:
    """They are answered in order, whole, and also where the client sends nothing more."""
    with connect(sidecar.path) as raw:
        raw.sendall(b"".join(pack(b"PING", b"%d" % number) for number in range(2000)))
        raw.shutdown(socket.SHUT_WR)
        read = b""
        while more := raw.recv(1 << 20):
            read += more
    assert [int(line) for line in read.split(b"\r\n")[1::2]] == list(range(2000))
