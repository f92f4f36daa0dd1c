"""A program that serves HTTP on a Unix socket of its own, and a client of it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx

from ..killable import until


def gunicorn(app: str, *options: str, **env: str) -> contextlib.AbstractContextManager[httpx.Client]:
    """Run an application under gunicorn; yield a client of it."""
    return _serving(["gunicorn", *options, "--no-control-socket", "--bind", "unix:{}", app], env)


def uvicorn(app: str, *options: str, **env: str) -> contextlib.AbstractContextManager[httpx.Client]:
    """Run an application under uvicorn; yield a client of it."""
    return _serving(["uvicorn", *options, "--uds", "{}", app], env)


@contextlib.contextmanager
def _serving(arguments: list[str], env: dict[str, str]) -> Iterator[httpx.Client]:
    with tempfile.TemporaryDirectory(prefix="fastdedup-server-") as folder:
        path = Path(folder) / "http.sock"
        command = [sys.executable, "-m", *(argument.format(path) for argument in arguments)]
        with (Path(folder) / "log").open("wb") as log:
            server = subprocess.Popen(
                command, env={**os.environ, **env}, stdout=log, stderr=log, start_new_session=True
            )
        try:
            _wait_until_it_listens(path, server)
            transport = httpx.HTTPTransport(uds=str(path))
            with httpx.Client(transport=transport, base_url="http://shop.test", timeout=20.0) as client:
                yield client
        finally:
            # Not SIGQUIT: gunicorn's gthread worker at times waits for a lock that it holds itself then.
            os.killpg(server.pid, signal.SIGKILL)
            server.wait(20.0)


def _wait_until_it_listens(path: Path, server: subprocess.Popen[bytes]) -> None:
    def listens() -> bool:
        assert server.poll() is None, "the server has ended"
        with socket.socket(socket.AF_UNIX) as probe:
            probe.connect(str(path))
        return True

    until(listens, "the server listens", unless=(OSError,))
