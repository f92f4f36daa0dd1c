"""Runs the web demo: a redis-server and worker processes on one socket, and removes everything at the end.

Main path: `run` → `Demo.main`.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, closing
from dataclasses import dataclass, replace
from typing import Any

import anyio

from fastdedup import ConfigError, UnavailableError

from .control import answer
from .order_book import OrderBook
from .redis_server import ShopRedis, find_server
from .settings import ShopSettings

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_STARTING = 60.0
_ENDING = 10.0


@dataclass(frozen=True, slots=True)
class ShopOptions:
    """The options of the command line; see `__main__.py`."""

    port: int
    workers: int
    stock: int
    opens_in: float
    token_ttl: float


def run(options: ShopOptions, on_ready: Callable[[str], None]) -> None:
    """Run the demo until a signal. `on_ready` is called with the shop's address once it serves.

    Raises:
        ConfigError: redis-server is not installed, or the port is taken.
        UnavailableError: a worker did not start, or ended by itself.
    """
    binary = find_server()
    with tempfile.TemporaryDirectory(prefix="fastdedup-web-") as folder, _bound(options.port) as listener:
        settings = ShopSettings(
            folder=folder,
            secret=secrets.token_urlsafe(32),
            stock=options.stock,
            opens_at=time.time() + options.opens_in,
            token_ttl=options.token_ttl,
        )
        with closing(OrderBook(settings.order_book)) as order_book:
            order_book.set_up(options.stock)
        asyncio.run(Demo(settings, binary, listener, options.workers).main(on_ready))


def _bound(port: int) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
    except OSError as error:
        listener.close()
        raise ConfigError(f"cannot listen on 127.0.0.1:{port}: {error.strerror}") from None
    listener.listen(1024)
    return listener


class Demo:
    """The processes of the demo; starts them, and stops them in order."""

    def __init__(self, settings: ShopSettings, binary: str, listener: socket.socket, workers: int) -> None:
        self._settings = settings
        self._listener = listener
        self._count = workers
        self._redis = ShopRedis(binary, settings.redis_socket)
        # Mutable: the workers; how many are ready; an event that ends the demo.
        self._workers: list[asyncio.subprocess.Process] = []
        self._ready = anyio.Semaphore(0)
        self._end = anyio.Event()

    async def main(self, on_ready: Callable[[str], None]) -> None:
        """Start all processes, wait for the end, and stop all processes."""
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._end.set)
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._redis.stop)
            await self._redis.start()
            path = self._settings.control_socket
            control = await asyncio.start_unix_server(self._serve, path)
            stack.callback(control.close)
            stack.push_async_callback(self._stop_workers)
            await self._start_workers()
            if await self._until_ready():
                on_ready(f"http://127.0.0.1:{self._listener.getsockname()[1]}/")
                await self._until_end()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await answer(self._redis, self._ready.release, reader, writer)

    async def _start_workers(self) -> None:
        fd = self._listener.fileno()
        for number in range(1, self._count + 1):
            environment = replace(self._settings, number=number).environment()
            # In a session of its own, so that Ctrl-C reaches only the parent, which stops everything in order.
            worker = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", f"{__package__}.worker", str(fd)),
                env=os.environ | environment,
                pass_fds=[fd],
                stdin=asyncio.subprocess.DEVNULL,
                start_new_session=True,
            )
            self._workers.append(worker)

    async def _until_ready(self) -> bool:
        try:
            with anyio.fail_after(_STARTING):
                return await self._unless_ended(self._all_ready)
        except TimeoutError:
            raise UnavailableError(f"the shop did not open within {_STARTING:g} s") from None

    async def _all_ready(self) -> None:
        for _ in self._workers:
            await self._ready.acquire()

    async def _until_end(self) -> None:
        await self._unless_ended(anyio.sleep_forever)

    async def _unless_ended(self, wanted: Callable[[], Awaitable[Any]]) -> bool:
        """Wait for `wanted`; return False if the demo ends before.

        Raises:
            UnavailableError: a worker has ended by itself.
        """
        seen: list[str | int] = []
        async with anyio.create_task_group() as group:

            async def first(event: str, waiting: Callable[[], Awaitable[Any]]) -> None:
                code = await waiting()
                seen.append(event or code)
                group.cancel_scope.cancel()

            group.start_soon(first, "wanted", wanted)
            group.start_soon(first, "end", self._end.wait)
            for worker in self._workers:
                group.start_soon(first, "", worker.wait)
        if "end" in seen:
            return False
        for code in seen:
            if isinstance(code, int):
                raise UnavailableError(f"a worker of the shop ended by itself, with exit code {code}")
        return True

    async def _stop_workers(self) -> None:
        for worker in self._workers:
            if worker.returncode is None:
                worker.terminate()
        for worker in self._workers:
            with anyio.move_on_after(_ENDING) as scope:
                await worker.wait()
            if scope.cancelled_caught:
                worker.kill()
                await worker.wait()
