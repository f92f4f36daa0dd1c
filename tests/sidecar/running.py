"""A sidecar in a process of its own, as users start it; and the least of a client of either wire."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import httpx
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from fastdedup import UnavailableError
from fastdedup.sidecar.client import UnixConnection, fetch

from .. import warm
from ..killable import Killable, until

DEADLINE = 60.0
"""Seconds that a sidecar may take on a machine that is busy with other work; a healthy one takes a tenth of one."""


def environment(**more: str) -> dict[str, str]:
    """This process's, without what configures a sidecar."""
    ours = ("FASTDEDUP_", "LISTEN_", "NOTIFY_SOCKET", "RUNTIME_DIRECTORY", "XDG_RUNTIME_DIR")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)} | more


class Sidecar(Killable):
    """`fastdedup serve` on a private socket; `with` starts it, waits until it serves, and ends it.

    Args:
        options: of `serve`.
        config: a TOML file's text; `{run}` in it is the folder of the sockets.
        more: environment variables.
    """

    program: Sequence[str] = ("fastdedup", "serve")
    deadline = DEADLINE

    def __init__(
        self, *options: str, config: str | None = None, own_socket: bool = True, **more: str
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="fastdedup-sidecar-"))
        self.path = self.folder / "run" / "fastdedup.sock"
        self.url = f"sidecar://{self.path}"
        self.options = [*(["--socket", str(self.path)] if own_socket else []), *options]
        if config is not None:
            (self.folder / "fastdedup.toml").write_text(config.replace("{run}", str(self.path.parent)))
            self.options += ["--config", str(self.folder / "fastdedup.toml")]
        self._more = more

    def begin(self, **options: Any) -> Self:
        """Start; return at once."""
        with (self.folder / "out").open("ab") as out, (self.folder / "log").open("ab") as log:
            self._process = warm.start(
                [*self.program, *self.options],
                environment=environment(**self._more),
                out=out,
                err=log,
                **options,
            )
        return self

    def until_up(self) -> Self:
        """Wait until it answers."""

        def answers() -> bool:
            assert self.alive, self.log
            fetch(self.path, "/healthz")
            return True

        until(
            answers,
            lambda: f"the sidecar comes up: {self.log}",
            deadline=self.deadline,
            unless=(UnavailableError,),
        )
        return self

    def start(self) -> Self:
        """Start; return once it answers."""
        try:
            return self.begin().until_up()
        except BaseException:
            self.stop()  # or it would run on after the tests
            raise

    @property
    def process(self) -> subprocess.Popen[bytes] | warm.Program:
        """Its process, once it was started."""
        assert self._process is not None
        return self._process  # type: ignore[no-any-return]

    def stop(self) -> None:
        """End it as an operator does, and remove its folder."""
        if self.alive:
            self.thaw()
            self.end()
        shutil.rmtree(self.folder, ignore_errors=True)

    def end(self, *, signals: int = 1) -> int:
        """Send SIGTERM; return its exit code."""
        for _ in range(signals):
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(DEADLINE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise

    @property
    def out(self) -> str:
        return (self.folder / "out").read_text()

    def client(self) -> redis.Redis:
        return client(self.path)

    def http(self) -> httpx.Client:
        transport = httpx.HTTPTransport(uds=str(self.path))
        return httpx.Client(transport=transport, base_url="http://sidecar", timeout=DEADLINE)

    def figures(self) -> str:
        """Return the text of /metrics."""
        status, body = fetch(self.path, "/metrics")
        assert status == 200
        return body.decode()


def client(path: Path) -> redis.Redis:
    """A plain redis-py client that does not try twice."""
    return redis.Redis(
        unix_socket_path=str(path), protocol=2, socket_timeout=DEADLINE, retry=Retry(NoBackoff(), 0)
    )


def figure(text: str, name: str, **labels: str) -> float:
    """Return the sum of a figure's lines that have these labels."""
    total = 0.0
    for line in text.splitlines():
        if line.startswith((f"{name}{{", f"{name} ")) and all(
            f'{label}="{value}"' in line for label, value in labels.items()
        ):
            total += float(line.rpartition(" ")[2])
    return total


def paste(line: str) -> str:
    """Run a line for a shell, and return what it prints. curl, which not every machine has, is played."""
    parts = shlex.split(line)
    if parts[0] != "curl":
        return subprocess.check_output(parts, timeout=DEADLINE, text=True)
    known = argparse.ArgumentParser(exit_on_error=False)
    known.add_argument("--unix-socket", required=True, type=Path)
    known.add_argument("--json", required=True)
    known.add_argument("url")
    said = known.parse_args(parts[1:])
    with closing(UnixConnection(said.unix_socket)) as connection:
        connection.request("POST", urlsplit(said.url).path, said.json, {"content-type": "application/json"})
        return connection.getresponse().read().decode()
