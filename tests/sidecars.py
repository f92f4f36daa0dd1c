"""Real sidecars for tests: each a process with a Unix socket of its own, killable and freezable.

`python -m tests.sidecars SOCKET URL TIMEOUT NAMESPACE=POLICY...` is one: the server alone, without its
command line's settings, which have tests of their own.
"""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import uvloop

from fastdedup import Dedup, FallbackPolicy, LocalLRU, Reject
from fastdedup.sidecar.http.application import HttpApp
from fastdedup.sidecar.namespaces import Namespaces, RawCodec
from fastdedup.sidecar.service.listener import bound
from fastdedup.sidecar.service.server import SidecarServer

from .sidecar import running


class Sidecar(running.Sidecar):
    """One that serves stores.

    Args:
        store: the URL that it serves.
        timeout: seconds that its store has.
        policies: by namespace, "local" or seconds of Retry-After; `Reject()` elsewhere.
    """

    program = ("tests.sidecars",)

    def __init__(self, store: str, *, timeout: float = 5.0, policies: dict[str, str] | None = None) -> None:
        named = [f"{name}={policy}" for name, policy in (policies or {}).items()]
        super().__init__(store, str(timeout), *named, own_socket=False)
        self.options.insert(0, str(self.path))


def policy(text: str) -> FallbackPolicy:
    return LocalLRU() if text == "local" else Reject(retry_after=float(text))


async def serve(path: Path, store: str, timeout: float, policies: dict[str, str]) -> None:
    async with Dedup(store, namespace="default", timeout=timeout, codec=RawCodec()) as root:
        namespaces = {name: {"on_unavailable": policy(text)} for name, text in policies.items()}
        with bound(path) as listener:
            gate = Namespaces(root, settings=namespaces)
            server = SidecarServer(gate, HttpApp(gate), allowed=lambda peer: True, stores=True)
            gc.collect()
            gc.freeze()  # as the sidecar's own main does
            await server.serve(sockets=[listener.socket])


if __name__ == "__main__":
    socket_path, store_url, seconds, *named = sys.argv[1:]
    uvloop.run(serve(Path(socket_path), store_url, float(seconds), dict(each.split("=") for each in named)))
