"""What lay in the system's send queue reached the server after its connection was given up, and was executed."""

from __future__ import annotations

import asyncio
import fcntl
import struct
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import uvloop

from fastdedup.stores.redis.connection import RedisConnection
from fastdedup.stores.redis.reconnect import check_single, dial
from fastdedup.stores.redis.scripts import pack
from fastdedup.stores.redis.url import ServerURL

from ..servers import RedisServer, free_port

WaitUntil = Callable[..., Any]
SIOCOUTQ = 0x5411
"""Linux: how many bytes the other side has not acknowledged."""
SIZE = 1024 * 1024
"""Bytes: more than the window of a connection that is new, less than the system keeps for sending."""


@pytest.fixture
def tcp() -> Iterator[tuple[RedisServer, str]]:
    port = free_port()
    server = RedisServer("--port", str(port))
    try:
        server.start()
        yield server, f"redis://127.0.0.1:{port}/0"
    finally:
        server.stop()


def unacknowledged(connection: RedisConnection) -> int:
    sock = connection._transport.get_extra_info("socket")
    answer = fcntl.ioctl(sock.fileno(), SIOCOUTQ, bytes(4))
    return int(struct.unpack("i", answer)[0])


def connections(raw: Any) -> int:
    return sum(client["addr"].startswith("127.0.0.1") for client in raw.client_list())


async def test_a_connection_that_is_given_up_sends_nothing_more(
    tcp: tuple[RedisServer, str], wait_until: WaitUntil
) -> None:
    """A command, larger than a frozen server's socket takes, is cut off there: so it is never executed."""
    server, url = tcp
    connection = await dial(ServerURL.of(url), 5.0, None, check_single)
    with server.client() as raw:
        number = connections(raw)
        server.freeze()
        connection.call(pack("SET", "late", b"x" * SIZE, "PX", 60_000), lambda reply: None)
        await wait_until(
            lambda: connection._transport.get_write_buffer_size() == 0, description="it was sent"
        )
        assert unacknowledged(connection) > 0, "else this test would test nothing"
        connection.abort("given up")
        await connection._gone  # the socket is closed a turn later
        server.thaw()
        await wait_until(lambda: connections(raw) < number, description="the server has ended the connection")
        assert raw.dbsize() == 0


@pytest.mark.parametrize("make_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
async def test_a_connection_that_has_ended_can_be_given_up(
    tcp: tuple[RedisServer, str], make_loop: Any
) -> None:
    """The server has closed it meanwhile: its socket is no more."""
    _, url = tcp

    async def give_up_twice() -> None:
        connection = await dial(ServerURL.of(url), 5.0, None, check_single)
        connection.abort("given up")
        await connection._gone
        connection.abort("given up again")

    def in_a_loop() -> None:
        with asyncio.Runner(loop_factory=make_loop) as runner:
            runner.run(give_up_twice())

    await asyncio.to_thread(in_a_loop)
