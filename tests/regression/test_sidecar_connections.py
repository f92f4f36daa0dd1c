"""Silent connections of a sidecar, and the quota of operations under way."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import hiredis
import httpx
import pytest

from fastdedup import BreakerState, Dedup, LocalLRU, UnavailableError
from fastdedup.sidecar.limits import Limits
from fastdedup.sidecar.service.admission import Admission
from fastdedup.stores.sidecar.answers import read
from fastdedup.testing import Clock

from ..fixtures import fixture_with
from ..servers import DEADLINE, RedisServer
from ..sidecar.attacks import connect
from ..sidecar.fuzz import pack
from ..sidecar.running import Sidecar, client, figure
from ..waiting import wait_until

# 1,024 connections that sent nothing locked everybody out, also health checks and metrics.


PING = pack(b"PING")
OPERATORS = 8
ANN, BOB, ROOT = 1001, 1002, 0


LIMITS = "[limits]\nconnections = 20\n"
sidecar = fixture_with(lambda redis_server: Sidecar("--url", redis_server.url, config=LIMITS), scope="module")


@pytest.fixture
def crowd(sidecar: Sidecar) -> Iterator[list[Any]]:
    """As many connections as we may have, each of which has said something."""
    while figure(sidecar.figures(), "fastdedup_connections", wire="resp"):
        pass  # those of the test before
    with ExitStack() as stack:
        raws = []
        for _ in range(20 + OPERATORS):
            raws.append(stack.enter_context(connect(sidecar.path)))
            talk(raws[-1])
        yield raws


def talk(raw: Any) -> None:
    raw.sendall(PING)
    assert raw.recv(100) == b"+PONG\r\n"


def ask(sidecar: Sidecar, data: bytes) -> bytes:
    """Return everything that a new connection is told."""
    with connect(sidecar.path) as raw:
        raw.sendall(data)
        return b"".join(iter(lambda: raw.recv(65_536), b""))


async def test_the_oldest_silent_connection_makes_room(sidecar: Sidecar) -> None:
    with ExitStack() as stack:
        silent = [stack.enter_context(connect(sidecar.path)) for _ in range(20 + OPERATORS)]

        def is_let_in() -> bool:
            raw = stack.enter_context(connect(sidecar.path))
            raw.sendall(PING)
            return raw.recv(100) == b"+PONG\r\n"

        await wait_until(is_let_in, description="the silent ones have been silent for a while")
        assert silent[0].recv(1) == b""
        talk(silent[-1])
        await wait_until(is_let_in, description="the next one makes room")


@pytest.mark.usefixtures("crowd")
def test_a_refusal_says_so_on_either_wire(sidecar: Sidecar) -> None:
    why = b"28 connections are open, the limit (limits.connections)"
    assert ask(sidecar, PING) == b"-ERR max number of clients reached: " + why + b"\r\n"
    told = ask(sidecar, b"POST /v1/claims HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n")
    assert told.startswith(b"HTTP/1.1 503 ")
    assert b"\r\nretry-after: 1\r\n" in told
    assert b"too-many-connections" in told
    assert why in told


@pytest.mark.usefixtures("crowd")
async def test_a_full_sidecar_is_an_outage_and_no_mistake(sidecar: Sidecar) -> None:
    """Its clients were told that their settings were wrong, and no policy was asked."""
    async with Dedup(f"sidecar://{sidecar.path}", timeout=5) as dedup:
        told = await asyncio.gather(dedup.claim("k"), dedup.claim("other"), return_exceptions=True)
        assert [type(each) for each in told] == [UnavailableError] * 2
        assert "limits.connections" in str(told[0])
        for _ in range(3):
            with pytest.raises(UnavailableError):
                await dedup.claim("k")
        assert dedup.breaker is BreakerState.OPEN
    async with Dedup(f"sidecar://{sidecar.path}", timeout=5, on_unavailable=LocalLRU()) as dedup:
        assert (await dedup.claim("k")).degraded


@pytest.mark.usefixtures("crowd")
def test_health_and_metrics_answer_where_all_else_is_refused(sidecar: Sidecar) -> None:
    for address in (b"/healthz", b"/readyz", b"/metrics"):
        told = ask(sidecar, b"GET %b HTTP/1.1\r\nhost: x\r\n\r\n" % address)
        assert told.startswith(b"HTTP/1.1 200 ")
        assert b"connection: close" in told
    assert figure(sidecar.figures(), "fastdedup_connections_refused_total") >= 3


def test_a_connection_that_ends_makes_room(sidecar: Sidecar, crowd: list[Any]) -> None:
    assert ask(sidecar, PING).startswith(b"-ERR")
    crowd[0].sendall(pack(b"QUIT"))
    assert crowd[0].recv(100) == b"+OK\r\n"
    assert crowd[0].recv(100) == b""
    with connect(sidecar.path) as raw:
        talk(raw)


def test_one_user_has_no_more_than_its_limit(redis_server: RedisServer) -> None:
    config = "[limits]\nconnections_per_uid = 3\n"
    with Sidecar("--url", redis_server.url, config=config) as sidecar, ExitStack() as stack:
        for _ in range(3 + OPERATORS):
            talk(stack.enter_context(connect(sidecar.path)))
        why = f"user {os.getuid()} has 11 connections, the limit for one user (limits.connections_per_uid)"
        assert why.encode() in ask(sidecar, PING)


# Of several users


class Connection:
    """A connection that knows whether it was closed."""

    closed = False

    def cut(self) -> None:
        self.closed = True


def let_in(admission: Admission, uid: int, *, speaks: bool = True) -> Connection | None:
    connection = Connection()
    if admission.admit(connection, uid):
        return None
    if speaks:
        admission.spoke(connection)
    return connection


def test_a_crowd_of_one_user_leaves_room_for_another() -> None:
    admission = Admission(Limits(connections=100))
    assert all(let_in(admission, ANN) for _ in range(100))
    assert not let_in(admission, ANN)
    assert all(let_in(admission, BOB) for _ in range(8))
    assert not let_in(admission, BOB)
    assert all(let_in(admission, ROOT) for _ in range(8))


def test_silent_connections_of_the_crowd_are_closed_first() -> None:
    clock = Clock(100.0)
    admission = Admission(Limits(connections=10), clock)
    bob = let_in(admission, BOB, speaks=False)
    ann = [let_in(admission, ANN, speaks=False) for _ in range(9)]
    assert not let_in(admission, ANN), "they may just have connected"
    clock.advance(1.0)
    assert let_in(admission, BOB)
    assert bob is not None
    assert not bob.closed
    assert [each.closed for each in ann if each] == [True] + [False] * 8


# A `/v1/batch` of 1,000 claims that wait went past the quota of operations under way of its socket. So did
# an FD.RUN, by up to 255 operations, and connections with one command each: they were counted at their next
# one.


SOCKET = """
[[sockets]]
path = "{run}/narrow.sock"
pending = 2
allow_stores = true
"""


@pytest.fixture(scope="module")
def path(redis_server: RedisServer) -> Iterator[Path]:
    """A socket with two operations under way at most."""
    options = ("--url", redis_server.url, "--namespace", "pending", "--grace", "0.1")
    with Sidecar(*options, config=SOCKET) as sidecar:
        yield sidecar.path.parent / "narrow.sock"
    with redis_server.client() as raw:
        raw.flushdb()


@pytest.fixture
def narrow(path: Path) -> Iterator[httpx.Client]:
    transport = httpx.HTTPTransport(uds=str(path))
    with httpx.Client(transport=transport, base_url="http://sidecar", timeout=DEADLINE) as client:
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
    wires = [b"pending:=k%d" % number for number in range(5)]
    reader = hiredis.Reader()
    with client(path) as asks:
        for _ in range(2):
            assert refused(asks.execute_command("FD.RUN", "read", 5, *wires)) == [False] * 2 + [True] * 3
    with connect(path) as raw:
        raw.sendall(pack(b"FD.RUN", b"read", b"5", *wires) * 2)
        replies: list[Any] = []
        while len(replies) < 2:
            reader.feed(raw.recv(1 << 16))
            replies += iter(reader.gets, False)
    assert [refused(reply) for reply in replies] == [[False] * 2 + [True] * 3, [True] * 5]


def refused(reply: list[Any]) -> list[bool]:
    """Return for each operation of an FD.RUN whether the quota refuses it."""
    return ["may be (pending)" in str(answer) for answer in read(reply, 5)]


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
