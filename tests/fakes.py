"""fakeredis behind the Redis store: the same store, scripts and engine, without a server."""

from __future__ import annotations

import asyncio
from typing import Any

import fakeredis
import hiredis
import redis.exceptions as driver

from fastdedup.stores.redis import RedisStore
from fastdedup.stores.redis.connection import RedisConnection
from fastdedup.stores.redis.scripts import pack

_PREFIXES = {
    driver.NoScriptError: "NOSCRIPT",
    driver.ReadOnlyError: "READONLY",
    driver.OutOfMemoryError: "OOM",
}


class FakeConnection(RedisConnection):
    """Answers packed commands by fakeredis, in order, as one connection would."""

    def __init__(self, server: fakeredis.FakeServer, on_push: Any = None) -> None:
        self._loop = asyncio.get_running_loop()
        self.closed = self._loop.create_future()
        self._lost = None
        self.on_unusable = None
        self._on_push = on_push
        self._client = fakeredis.FakeAsyncRedis(server=server, protocol=2)
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def usable(self) -> bool:
        return self._lost is None

    def call(self, packed: bytes, on_reply: Any) -> None:
        if self._lost is not None:
            raise ConnectionError(*self._lost.args)
        reader = hiredis.Reader()
        reader.feed(packed)
        task = self._loop.create_task(self._answer(reader.gets()))
        self._tasks.add(task)
        task.add_done_callback(lambda task: self._answered(task, on_reply))

    def call_many(self, packed: bytes, count: int, on_replies: Any) -> None:
        reader, replies = hiredis.Reader(), list[Any]()
        reader.feed(packed)
        for _ in range(count):
            command = reader.gets()
            self.call(pack(*command), lambda reply: self._one_more(replies, reply, count, on_replies))

    def _one_more(self, replies: list[Any], reply: Any, count: int, on_replies: Any) -> None:
        replies.append(reply)
        if len(replies) == count:
            on_replies(replies)

    def post(self, packed: bytes) -> None:
        self._loop.call_soon(self._on_push, [b"pong", b""])

    def _answered(self, task: asyncio.Task[Any], on_reply: Any) -> None:
        self._tasks.discard(task)
        failed = task.cancelled() or task.exception() is not None
        on_reply(ConnectionError("closed") if failed else task.result())

    async def _answer(self, command: list[bytes]) -> Any:
        async with self._turn:
            if command[0] == b"SUBSCRIBE":
                return await self._subscribe(command[1])
            if command[0] == b"INFO":
                return b"redis_version:7.0.0"
            try:
                return await self._client.execute_command(*command)
            except driver.ResponseError as error:
                return hiredis.ReplyError(f"{_PREFIXES.get(type(error), '')} {error}".strip())

    async def _subscribe(self, channel: bytes) -> Any:
        pubsub = self._client.pubsub()
        await pubsub.subscribe(channel)
        task = self._loop.create_task(self._listen(pubsub))
        self._tasks.add(task)
        return [b"subscribe", channel, 1]

    async def _listen(self, pubsub: Any) -> None:
        async for message in pubsub.listen():
            if message["type"] == "message":
                self._on_push([b"message", message["channel"], message["data"]])

    def abort(self, reason: str) -> None:
        self._lost = ConnectionError(reason)
        self._tell_unusable()
        for task in self._tasks:
            task.cancel()
        if not self.closed.done():
            self.closed.set_result(None)

    async def aclose(self) -> None:
        self.abort("closed")


def fake_store(server: fakeredis.FakeServer, timeout: float) -> RedisStore:
    async def connect(on_push: Any) -> FakeConnection:
        return FakeConnection(server, on_push)

    return RedisStore("redis://fake:6379/0", timeout=timeout, connect=connect)
