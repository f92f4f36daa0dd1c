"""A redis-server whose clock stands where a test sets it, and which can be the far end of the simulation."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable
from typing import Any

import hiredis

from fastdedup.kernel.operations import Op, ReadOp, Reply
from fastdedup.kernel.records import Stored
from fastdedup.stores.redis.scripts import MAX_RECORD, pack
from fastdedup.stores.redis.verbs import all_scripts, load_scripts

from ..servers import DEBUG_OPTION
from ..stepping import SteppingServer


class Connection:
    """A connection to a server that answers one packed command after the other."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(60)
        self._socket.connect(path)
        self._reader = hiredis.Reader()

    def ask(self, packed: bytes) -> Any:
        (reply,) = self.ask_all(packed, 1)
        return reply

    def ask_all(self, packed: bytes, count: int) -> list[Any]:
        self._socket.sendall(packed)
        return [self.next() for _ in range(count)]

    def next(self) -> Any:
        while (reply := self._reader.gets()) is False:
            self._reader.feed(self._socket.recv(1 << 20))
        if isinstance(reply, hiredis.ReplyError):
            raise reply
        return reply

    def close(self) -> None:
        self._socket.close()


class Server:
    """A server, with a connection for calls and one for the news of freed keys.

    Args:
        binary: the program; by default the redis-server on the PATH.
    """

    def __init__(self, binary: str | None = None) -> None:
        self._server = SteppingServer(DEBUG_OPTION, "yes", binary=binary)
        self._server.start()
        self.set_to = self._server.set_to
        self._calls, self._channel = (Connection(str(self._server.socket)) for _ in range(2))
        self.ask, self.ask_all = self._calls.ask, self._calls.ask_all
        # Since Redis 8 the server removes keys by itself 1 ms before a command would.
        self.ask(pack("DEBUG", "SET-ACTIVE-EXPIRE", "0"))
        self._channel.ask(pack("SUBSCRIBE", "fastdedup:settled"))

    def told(self) -> set[bytes]:
        """Return the keys of the messages until now: the server sends each before the reply of its script."""
        told = set()
        reply = self._channel.ask(pack("PING"))
        while reply[0] == b"message":
            told.add(reply[2])
            reply = self._channel.next()
        return told

    def close(self) -> None:
        self._calls.close()
        self._channel.close()
        self._server.stop()


class ServerFarEnd:
    """A real server as the far end, at the time of the simulation. Nothing is left of the run before.

    It is asked for each operation alone, so its floor for fences is not part of the simulation.
    """

    def __init__(self, server: Server, clock: Callable[[], float]) -> None:
        self._server = server
        self._clock = clock
        self._scripts = load_scripts()
        self._listeners: list[Callable[[bytes], None]] = []
        # Mutable: the store keys that were asked about.
        self._wires: dict[bytes, None] = {}
        server.ask(pack("FLUSHALL"))
        for script in all_scripts():
            server.ask(pack("SCRIPT", "LOAD", script.text))

    def apply(self, op: Op) -> Reply:
        self._wires[op.wire] = None
        self._server.set_to(round(self._clock() * 1_000_000))
        script = self._scripts[op.verb]
        (reply,) = script.read([op], self._server.ask(script.command([op], 0, MAX_RECORD)))
        for wire in self._server.told():
            for tell in self._listeners:
                tell(wire)
        return reply

    def records(self) -> Iterable[tuple[bytes, Stored]]:
        for wire in tuple(self._wires):
            found = self.apply(ReadOp(wire))
            if isinstance(found, Stored):
                yield wire, found

    def on_freed(self, tell: Callable[[bytes], None]) -> None:
        self._listeners.append(tell)
