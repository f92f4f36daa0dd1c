"""Several simulated servers: each process has a way to each of them, over which redis-py's connections are made.

Handshakes and questions of the package to a server have no fate of their own, and no number among the packets.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, ClassVar, cast
from unittest.mock import patch

import hiredis

from fastdedup.stores.redis import url
from fastdedup.stores.redis.scripts import pack

from .far_end import Packet
from .network import LATENCY, LONGER, Network, Process, SimulatedTransport

PROMOTED = 0.4
"""Seconds until the replica of a primary that is down takes over."""
READONLY = b"-READONLY You can't write against a read only replica.\r\n"
_BULK = b"$%d\r\n%b\r\n"


class Server:
    """A server with a name of its own. `down`: it answers nothing, and refuses to be connected to."""

    def __init__(self, host: str) -> None:
        self.host = host
        self.down = False


class ServersNetwork(Network):
    """All connections of a run to several servers."""

    uncounted: ClassVar[tuple[bytes, ...]]
    """Commands of handshakes and questions: no packets of those that have a number."""

    @contextmanager
    def ways(
        self, name: str, loop: asyncio.AbstractEventLoop | None, servers: Iterable[Server]
    ) -> Iterator[None]:
        """Lead the store that is made in the body to these servers: all its connections are of one class."""
        ways = {each.host: Way(self, name, loop or self.loop, each) for each in servers}
        self._processes += ways.values()
        with patch.object(url, "Connection", type("LinkOfProcess", (Link,), {"ways": ways})):
            yield

    def carry(self, transport: SimulatedTransport, data: bytes) -> None:
        if name_of(data) in self.uncounted:
            self.loop.call_later(LATENCY + LONGER * self.sent, self._answer_question, transport, data)
        else:
            super().carry(transport, data)

    def _answer_question(self, transport: SimulatedTransport, data: bytes) -> None:
        transport.answer_later(self.told(server_of(transport), data))

    @abstractmethod
    def told(self, server: Server, data: bytes) -> bytes:
        """Return the answer to a command of a handshake, or to a question."""

    def take_down(self, server: Server) -> None:
        """Let a server end, with all connections to it."""
        server.down = True
        for way in self._processes:
            if cast(Way, way).server is server:
                way.refuse(0)

    def _execute(self, transport: SimulatedTransport, packet: Packet, numbers: list[int]) -> bytes:
        if server_of(transport).down:
            self._log(packet, "is lost")
            return b""
        return super()._execute(transport, packet, numbers)


class Way(Process):
    """The way of one process to one server."""

    def __init__(
        self, network: ServersNetwork, name: str, loop: asyncio.AbstractEventLoop, server: Server
    ) -> None:
        super().__init__(network, name, loop, server.host)
        self.network = network
        self.server = server

    def is_refused(self) -> bool:
        return self.server.down or super().is_refused()


class Link:
    """What redis-py's connection is to the package: it connects, and may ask before it has its protocol."""

    ways: ClassVar[Mapping[str, Way]]

    def __init__(self, *, host: str, port: int, **options: Any) -> None:
        self.host = host
        self.port = port
        self._way = self.ways[host]
        self._writer: Any = None
        self._reader = hiredis.Reader()
        self._asked = b""

    async def connect(self) -> None:
        transport = await self._way.open()
        transport.set_protocol(asyncio.Protocol())  # until there is a `RedisConnection`
        self._writer = SimpleNamespace(transport=transport)

    async def send_command(self, *command: str) -> None:
        await self.send_packed_command(pack(*command))

    async def send_packed_command(self, command: bytes) -> None:
        self._asked = command

    async def read_response(self, disable_decoding: bool) -> Any:
        if self._asked:
            await self._answered()
        answer = self._reader.gets()
        if isinstance(answer, hiredis.ReplyError):
            raise answer
        return answer

    async def _answered(self) -> None:
        answered = asyncio.Event()
        asyncio.get_running_loop().call_later(2 * LATENCY, answered.set)
        await answered.wait()
        if self._writer.transport.is_closing():
            raise ConnectionResetError(f"{self.host}: the connection broke")
        self._reader.feed(self._way.network.told(self._way.server, self._asked))
        self._asked = b""

    async def disconnect(self, nowait: bool) -> None:
        if self._writer is not None:
            self._way.forget(self._writer.transport)


def server_of(transport: SimulatedTransport) -> Server:
    """Return the server that a connection leads to."""
    return cast(Way, transport.process).server


def name_of(data: bytes) -> bytes:
    """Return the name of a packed command; empty for calls, which are numbers."""
    return data.split(b"\r\n", 3)[2] if data[:1] == b"*" else b""


def bulk(text: bytes) -> bytes:
    """Return a string as a server answers it."""
    return _BULK % (len(text), text)
