"""Fault: 500 pipelined FD.LEDGER of a client that may only read stopped the claims of all other tenants."""

from __future__ import annotations

import asyncio
import socket
from contextlib import ExitStack
from pathlib import Path

import hiredis
import pytest
import redis

from fastdedup.sidecar.client import fetch
from fastdedup.sidecar.limits import Limits
from fastdedup.sidecar.turns import Turns
from fastdedup.stores.redis.scripts import pack

from ..servers import RedisServer
from ..sidecar.running import DEADLINE, Sidecar, client

CONFIG = """
timeout = 5.0

[namespaces.other]

[ledgers.ids]
window = 3600
capacity = 1_000_000

[[sockets]]
path = "{path}"
namespaces = ["fastdedup"]
verbs = "read"
show_keys = true
claims_per_second = {rate}
"""
CLAIMS = 50
HTTP = b"GET /v1/ledgers/ids HTTP/1.1\r\nhost: s\r\n\r\n"
RESP = pack("FD.LEDGER", "ids")


@pytest.mark.parametrize(("clients", "sent"), [(1, 500 * RESP), (200, RESP), (200, HTTP)])
def test_claims_go_on_beside_them(server: RedisServer, tmp_path: Path, clients: int, sent: bytes) -> None:
    """The claims of one client, one by one, are done before a fraction of the reads is."""
    path = tmp_path / "read.sock"
    with ExitStack() as stack:
        config = CONFIG.format(path=path, rate=1000)
        sidecar = stack.enter_context(Sidecar("--url", server.url, "--grace", "0.5", config=config))
        ask = stack.enter_context(sidecar.client())
        ask.execute_command("FD.FIRST", "ids", *range(60))
        readers = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(clients)]
        for each in readers:
            each.settimeout(DEADLINE)
            each.connect(str(path))
            each.sendall(sent)
        readers[0].recv(1, socket.MSG_PEEK)  # they have begun
        for number in range(CLAIMS):
            assert (
                ask.execute_command("FD.CLAIM", f"{clients}:{sent[:4]!r}:{number}", "NS", "other")[0]
                == b"acquired"
            )
        answered = sum(answers(each) for each in readers)
        assert 0 < answered < CLAIMS
        assert b'"breaker":"closed"' in fetch(sidecar.path, "/readyz")[1]


def answers(connection: socket.socket) -> int:
    connection.setblocking(False)
    try:
        data = connection.recv(1 << 20)
    except BlockingIOError:
        return 0
    if data.startswith(b"HTTP"):
        return data.count(b"HTTP/1.1")
    reader, count = hiredis.Reader(), 0
    reader.feed(data)
    while reader.gets() is not False:
        count += 1
    return count


@pytest.mark.parametrize("command", [("FD.LEDGER", "ids"), ("FD.LIST",)])
def test_they_count_towards_the_quota(server: RedisServer, tmp_path: Path, command: tuple[str, ...]) -> None:
    path = tmp_path / "read.sock"
    with Sidecar("--url", server.url, config=CONFIG.format(path=path, rate=0.01)), client(path) as ask:
        ask.execute_command(*command)
        with pytest.raises(redis.ResponseError, match="claims_per_second"):
            ask.execute_command(*command)


async def test_one_runs_at_a_time_for_all_clients() -> None:
    turns, running = Turns(Limits()), 0

    async def read() -> None:
        nonlocal running
        async with turns.reads.turn("", None):
            running += 1
            assert running == 1
            await asyncio.sleep(0)
            running -= 1

    await asyncio.gather(*(read() for _ in range(5)))
