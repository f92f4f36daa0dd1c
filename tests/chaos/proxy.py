"""A way to a server that can fail: a `Gate`, on a Unix socket or a loopback port; each worker of a run has one.

It runs in the driver's event loop and looks at no bytes; `mode` and `delay` may change at any moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
from collections.abc import Callable
from enum import Enum
from pathlib import Path

CHUNK = 65_536
LINGER_0 = struct.pack("ii", 1, 0)
"""SO_LINGER with no time left: closing sends RST."""


class Mode(Enum):
    """What becomes of connections and bytes."""

    OPEN = "everything passes"
    REFUSED = "connections end at once"
    RESET = "connections are reset at their first byte"
    STALLED = "nothing passes, and what was sent meanwhile arrives later"
    SILENT = "half-open: what is sent is gone, and so is the connection, though nobody says so"
    MUTE = "the server gets all, its replies are gone"
    TORN = "half of a reply passes, then the connection breaks"
    LATE = "some replies are held back, then they pass or the connection breaks"


class Gate:
    """Listens for one worker and connects on to the server's Unix socket, or to its loopback port."""

    def __init__(self, listens: Path | None, server: Path | int) -> None:
        self._listens = listens
        self.server = server
        self.url = ""
        self.port = 0
        # Mutable: what is done to bytes, the connections, and those that are half-open for good.
        self.mode = Mode.OPEN
        self.delay = 0.0
        """Seconds that each stretch of bytes waits, in either direction."""
        self.late: Callable[[], tuple[float, bool]] = lambda: (0.0, True)
        """In LATE: for how many seconds the next reply is held back, and whether it passes then."""
        self._changed = asyncio.Event()
        self._pairs: set[Pair] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> Gate:
        """Listen; without a path on a port of the loopback interface."""
        if self._listens is None:
            self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
            self.port = self._server.sockets[0].getsockname()[1]
            self.url = f"redis://127.0.0.1:{self.port}/0"
        else:
            self._server = await asyncio.start_unix_server(self._accept, str(self._listens))
            self.url = f"unix://{self._listens}?db=0"
        return self

    def set(self, mode: Mode) -> None:
        """Change what happens from now on, also on the connections that stand."""
        self.mode = mode
        if mode is Mode.REFUSED:
            self.cut()
        if mode is Mode.SILENT:
            for pair in self._pairs:
                pair.dead = True
        self._changed.set()
        self._changed = asyncio.Event()

    def cut(self) -> None:
        """Break every connection, as a reset does."""
        for pair in list(self._pairs):
            pair.abort()

    def reset(self) -> None:
        """Everything passes again."""
        self.delay = 0.0
        self.set(Mode.OPEN)

    async def aclose(self) -> None:
        if self._server is not None:
            self._server.close()
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def passable(self) -> None:
        """Wait while nothing passes."""
        while self.mode is Mode.STALLED:
            await self._changed.wait()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            if self.mode is not Mode.REFUSED:
                await self._carry(reader, writer)
        except OSError:
            pass  # the server is not there, or either side went away
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Like a network that lost its way: it is accepted by the kernel, and then nothing.
        await self.passable()
        if isinstance(self.server, int):
            onward = await asyncio.open_connection("127.0.0.1", self.server)
        else:
            onward = await asyncio.open_unix_connection(str(self.server))
        pair = Pair(self, (reader, writer), onward)
        pair.dead = self.mode is Mode.SILENT
        self._pairs.add(pair)
        try:
            await pair.carry()
        finally:
            self._pairs.discard(pair)
            pair.abort()


class Pair:
    """One connection through the gate. `dead`: half-open for good, whatever becomes of the gate."""

    def __init__(
        self,
        gate: Gate,
        client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        server: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        self._gate = gate
        self._client = client
        self._server = server
        self.dead = False
        self.deaf = False

    async def carry(self) -> None:
        """Carry both ways until one side is through."""
        ways = [
            asyncio.create_task(self._way(self._client[0], self._server[1], replies=False)),
            asyncio.create_task(self._way(self._server[0], self._client[1], replies=True)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    def abort(self) -> None:
        for _, writer in (self._client, self._server):
            writer.transport.abort()

    async def _way(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, replies: bool) -> None:
        gate = self._gate
        with contextlib.suppress(OSError):
            while data := await source.read(CHUNK):
                if gate.mode is Mode.RESET:
                    reset_at_end(self._client[1])
                    return
                if gate.delay:
                    await asyncio.sleep(gate.delay)
                if replies and gate.mode is Mode.LATE:
                    seconds, passes = gate.late()
                    await asyncio.sleep(seconds)
                    if not passes:
                        return
                await gate.passable()
                # A stream with a gap does not exist: whose reply was lost hears nothing until it breaks.
                self.deaf = self.deaf or (replies and gate.mode is Mode.MUTE)
                if self.dead or (replies and self.deaf):
                    continue
                torn = replies and gate.mode is Mode.TORN
                sink.write(data[: len(data) // 2] if torn else data)
                await sink.drain()
                if torn:
                    return


def reset_at_end(writer: asyncio.StreamWriter) -> None:
    """Let the end of a connection be a reset."""
    with socket.socket(fileno=os.dup(writer.get_extra_info("socket").fileno())) as end:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_0)
