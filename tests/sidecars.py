"""Real sidecars for tests: each a process with a Unix socket of its own, killable and freezable.

`python -m tests.sidecars SOCKET URL TIMEOUT NAMESPACE=POLICY...` is one: the server alone, without its
command line's settings, which have tests of their own.
"""

from __future__ import annotations

import gc
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any

import uvloop

from fastdedup import Dedup, FallbackPolicy, LocalLRU, Reject
from fastdedup.sidecar.namespaces import Namespaces, RawCodec
from fastdedup.sidecar.service.listener import bound
from fastdedup.sidecar.service.server import SidecarServer

from . import warm
from .killable import DEADLINE, Killable, until
from .servers import unmeasured


class Sidecar(Killable):
    """One sidecar process with its own folder, which `stop` removes.

    Args:
        store: the URL that it serves.
        timeout: seconds that its store has.
        policies: by namespace, "local" or seconds of Retry-After; `Reject()` elsewhere.
    """

    def __init__(self, store: str, *, timeout: float = 5.0, policies: dict[str, str] | None = None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="fastdedup-sidecar-"))
        self.socket = self.folder / "fastdedup.sock"
        self.url = f"sidecar://{self.socket}"
        named = [f"{name}={policy}" for name, policy in (policies or {}).items()]
        self._command = ["tests.sidecars", str(self.socket), store, str(timeout), *named]

    def start(self) -> Sidecar:
        """Return once it accepts connections."""
        with (self.folder / "log").open("ab") as log:
            self._process = warm.start(self._command, environment=unmeasured(), out=log, err=log)
        try:
            self._wait_until_it_accepts()
        except BaseException:
            self.stop()  # or it would run on after the tests
            raise
        return self

    def _wait_until_it_accepts(self) -> None:
        def accepts() -> bool:
            assert self.alive, self.log
            with socket.socket(socket.AF_UNIX) as probe:
                probe.connect(str(self.socket))
            return True

        until(
            accepts,
            "the sidecar comes up",
            deadline=DEADLINE,
            unless=(FileNotFoundError, ConnectionRefusedError),
        )

    def terminate(self) -> None:
        """End it as an operator would."""
        self._process.terminate()
        self._process.wait(DEADLINE)


def policy(text: str) -> FallbackPolicy:
    return LocalLRU() if text == "local" else Reject(retry_after=float(text))


async def serve(path: Path, store: str, timeout: float, policies: dict[str, str]) -> None:
    async def no_http(scope: Any, receive: Any, send: Any) -> None:
        raise NotImplementedError

    async with Dedup(store, namespace="default", timeout=timeout, codec=RawCodec()) as root:
        namespaces = {name: {"on_unavailable": policy(text)} for name, text in policies.items()}
        with bound(path) as listener:
            gate = Namespaces(root, settings=namespaces)
            server = SidecarServer(gate, no_http, allowed=lambda peer: True, stores=True)
            gc.collect()
            gc.freeze()  # as the sidecar's own main does
            await server.serve(sockets=[listener.socket])


if __name__ == "__main__":
    socket_path, store_url, seconds, *named = sys.argv[1:]
    uvloop.run(serve(Path(socket_path), store_url, float(seconds), dict(each.split("=") for each in named)))
