"""A running sidecar: in a thread of its own, so that clients of every kind, blocking ones too, can use it."""

from __future__ import annotations

import asyncio
import socket
import tempfile
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest
import uvloop

from fastdedup import Dedup
from fastdedup.sidecar.http.application import HttpApp
from fastdedup.sidecar.limits import Limits
from fastdedup.sidecar.namespaces import Namespaces, RawCodec
from fastdedup.sidecar.service.listener import bound
from fastdedup.sidecar.service.metrics import Exposition
from fastdedup.sidecar.service.server import SidecarServer

from ..killable import until
from ..ticks import Brisk

T = TypeVar("T")
DEADLINE = 20.0


class BriskServer(Brisk, SidecarServer):
    """The sidecar's server, which ends as soon as it is told to."""


class Running:
    """A sidecar that serves at `path` (a Unix socket) and `port` (of the loopback interface)."""

    def __init__(self, path: Path, store: str, limits: Limits, options: dict[str, Any]) -> None:
        self.path = str(path)
        self.url = f"unix://{path}"
        """For Redis clients; HTTP clients take `http()`."""
        self.namespaces: Namespaces
        self.server: SidecarServer
        self.loop = uvloop.new_event_loop()
        self._make = lambda: Namespaces(Dedup(store, codec=RawCodec(), **options), limits=limits)
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="sidecar")

    def start(self) -> None:
        self._thread.start()

        def has_started() -> bool:
            assert self._thread.is_alive(), self._error
            return hasattr(self, "server") and self.server.started

        until(has_started, "the sidecar has started", every=0.002)

    def stop(self) -> None:
        self.server.should_exit = True
        self._thread.join(DEADLINE)
        assert not self._thread.is_alive()
        assert self._error is None, self._error

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the sidecar's own loop: `sidecar.call(sidecar.namespaces.root.get("k"))`."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(DEADLINE)

    @contextmanager
    def http(self) -> Iterator[httpx.Client]:
        transport = httpx.HTTPTransport(uds=self.path)
        with httpx.Client(transport=transport, base_url="http://sidecar", timeout=DEADLINE) as client:
            yield client

    @contextmanager
    def raw(self) -> Iterator[socket.socket]:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(DEADLINE)
            connection.connect(self.path)
            yield connection

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
                runner.run(self._serve())
        except BaseException as error:  # noqa: BLE001 -- the test's thread reports it
            self._error = error

    async def _serve(self) -> None:
        self.namespaces = namespaces = self._make()
        namespaces.render_metrics = Exposition(namespaces).render
        with ExitStack() as stack:
            own = stack.enter_context(bound(Path(self.path))).socket
            loopback = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            self.port = loopback.getsockname()[1]
            async with namespaces.root:
                server = BriskServer(
                    namespaces, HttpApp(namespaces), allowed=lambda who: True, grace=2.0, stores=True
                )
                self.server = server
                await server.serve(sockets=[own, loopback])


Serve = Callable[..., Running]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start sidecars: `serve("memory://", limits=Limits(frame=100), on_unavailable=LocalLRU())`."""
    running: list[Running] = []
    with tempfile.TemporaryDirectory(prefix="fastdedup-sidecar-") as folder:

        def start(store: str = "memory://", *, limits: Limits | None = None, **options: Any) -> Running:
            sidecar = Running(Path(folder) / f"{len(running)}.sock", store, limits or Limits(), options)
            sidecar.start()
            running.append(sidecar)
            return sidecar

        yield start
        for sidecar in running:
            sidecar.stop()


@pytest.fixture
def sidecar(serve: Serve) -> Running:
    """A running sidecar, over a store in memory; those in processes of their own have a Redis."""
    return serve()
