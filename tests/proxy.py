"""A proxy between a client and a real redis-server: it loses what a test tells it to lose."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from enum import Enum, auto
from hashlib import sha1

from fastdedup.stores.redis.verbs import all_scripts

from .servers import RedisServer


class Fate(Enum):
    """What becomes of one request."""

    PASS = auto()
    CUT = auto()
    """The connection is cut before the request reaches Redis."""
    LOSE = auto()
    """Redis acts on it; then its reply is dropped, and the connection is cut."""


Plan = Callable[[str], Fate]


class Proxy:
    """Forwards, until told otherwise. Requests are called by their verb ("claim"), or command ("INFO").

    Attributes:
        url: where clients connect.
        seen: requests that went on to Redis, by name.
        lost: replies that came from Redis and were dropped, by name.
    """

    def __init__(self, server: RedisServer) -> None:
        self.path = server.folder / "proxy.sock"
        self.url = f"unix://{self.path}?db=0"
        self.seen: Counter[str] = Counter()
        self.lost: Counter[str] = Counter()
        self._server = server
        self._verbs = {script.sha: verb.value for script, verb in all_scripts().items()}
        # Mutable: whose reply is lost next; who decides on all others; the connections.
        self._losing: Counter[str] = Counter()
        self._plan: Plan | None = None
        self._pipes: set[Pipe] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._swallows = False
        self._released = asyncio.Event()
        self._released.set()

    # What a test tells it

    def lose(self, name: str, times: int = 1) -> None:
        """Drop the replies to the next `times` requests of this name, each with its connection."""
        self._losing[name] += times

    def follow(self, plan: Plan) -> None:
        """Let `plan` decide on each request by its name, until `forward`."""
        self._plan = plan

    def cut(self) -> None:
        """Cut every connection now."""
        for pipe in list(self._pipes):
            pipe.close()

    def hold(self) -> None:
        """Keep the replies back until `forward`."""
        self._released.clear()

    def swallow(self) -> None:
        """Be half-open: take what comes from either side, pass nothing on, close nothing."""
        self._swallows = True
        for pipe in self._pipes:
            pipe.swallows = True

    def forward(self) -> None:
        """Hand out what was held, and lose no more. A connection that swallowed stays as it is."""
        self._losing.clear()
        self._plan = None
        self._swallows = False
        self._released.set()

    # What its connections ask

    def name_of(self, request: bytes) -> str:
        """Return the verb of a script's call, else the command."""
        parts = request.split(b"\r\n", 5)
        command = parts[2].decode().upper()
        if command == "EVALSHA":
            return self._verbs[parts[4].decode()]
        if command == "EVAL":
            return self._verbs[sha1(parts[4]).hexdigest()]
        return command

    def fate_of(self, name: str) -> Fate:
        if self._losing[name]:
            self._losing[name] -= 1
            return Fate.LOSE
        return Fate.PASS if self._plan is None else self._plan(name)

    async def until_released(self) -> None:
        await self._released.wait()

    # Its life

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            redis_side = await asyncio.open_unix_connection(self._server.socket)
        except OSError:
            writer.transport.abort()
            return
        pipe = Pipe(self, (reader, writer), redis_side, swallows=self._swallows)
        self._pipes.add(pipe)
        try:
            await pipe.run()
        finally:
            self._pipes.discard(pipe)

    async def aclose(self) -> None:
        while self._tasks:  # not cancelled: asyncio's streams complain of that
            self.cut()
            await asyncio.wait(self._tasks, timeout=0.05)


class Pipe:
    """One client's connection and its own connection to Redis."""

    def __init__(
        self,
        proxy: Proxy,
        client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        redis_side: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        *,
        swallows: bool,
    ) -> None:
        self.swallows = swallows
        self._proxy = proxy
        self._client = client
        self._redis = redis_side
        # Mutable: the requests without a reply yet, in order.
        self._unanswered: deque[tuple[str, Fate]] = deque()

    async def run(self) -> None:
        pumps = [asyncio.create_task(self._requests()), asyncio.create_task(self._replies())]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.close()
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    def close(self) -> None:
        self._client[1].transport.abort()
        self._redis[1].close()  # not aborted: what went on to Redis arrives

    async def _requests(self) -> None:
        async for request in frames(self._client[0]):
            if self.swallows:
                continue
            name = self._proxy.name_of(request)
            fate = self._proxy.fate_of(name)
            if fate is Fate.CUT:
                return
            self._proxy.seen[name] += 1
            self._unanswered.append((name, fate))
            self._redis[1].write(request)

    async def _replies(self) -> None:
        async for reply in frames(self._redis[0]):
            # Without a request before it: the message of a subscription.
            name, fate = self._unanswered.popleft() if self._unanswered else ("", Fate.PASS)
            if fate is Fate.LOSE:
                self._proxy.lost[name] += 1
                return
            await self._proxy.until_released()
            if not self.swallows:
                self._client[1].write(reply)


async def frames(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Yield each whole request or reply, until the connection ends."""
    buffer = b""
    while True:
        try:
            data = await reader.read(65_536)
        except OSError:
            return
        if not data:
            return
        buffer += data
        at = 0
        while (end := frame_end(buffer, at)) > 0:
            yield buffer[at:end]
            at = end
        buffer = buffer[at:]


def frame_end(data: bytes, at: int) -> int:
    """Return where the RESP2 value that begins at `at` ends; -1 if that has not come yet."""
    line_end = data.find(b"\r\n", at)
    if line_end < 0:
        return -1
    end = line_end + 2
    kind = data[at : at + 1]
    if kind in b"$*" and (count := int(data[at + 1 : line_end])) >= 0:
        if kind == b"$":
            end += count + 2
            return end if end <= len(data) else -1
        for _ in range(count):
            if (end := frame_end(data, end)) < 0:
                return -1
    return end


@asynccontextmanager
async def proxied(server: RedisServer, name: str = "") -> AsyncIterator[Proxy]:
    """Run a proxy before `server`. With a `name` for its socket, there may be several."""
    proxy = Proxy(server)
    if name:
        proxy.path = server.folder / name
        proxy.url = f"unix://{proxy.path}?db=0"
    listening = await asyncio.start_unix_server(proxy.serve, proxy.path)
    try:
        yield proxy
    finally:
        listening.close()
        await proxy.aclose()
        proxy.path.unlink(missing_ok=True)
