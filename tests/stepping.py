"""Redis-servers whose clocks a test sets, also while they run."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import redis

from .servers import RedisServer

SOURCE = Path(__file__).with_suffix(".c")
LIBRARY = "stepping.so"


class SteppingClock:
    """The wall clock of the processes that are started with `env`: a gettimeofday of our own is preloaded.

    The tests' machine keeps its time.
    """

    def __init__(self, folder: Path) -> None:
        compiler = shutil.which(os.environ.get("CC", "cc"))
        assert compiler, "there is no C compiler on the PATH: .ci/compiler.sh finds or installs one"
        library = folder / LIBRARY
        subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, SOURCE, "-ldl"], check=True)
        self._file = folder / "clock"
        self._file.write_bytes(bytes(16))
        self.env: Mapping[str, str] = {"LD_PRELOAD": str(library), "CLOCK_FILE": str(self._file)}

    def set_back(self, seconds: float) -> None:
        """Let the clock be so much behind this machine's."""
        self._write(0, round(-seconds * 1_000_000))

    def set_to(self, now_us: int) -> None:
        """Let the clock show exactly this time, in microseconds since 1970, and stand still."""
        self._write(8, now_us)

    def _write(self, at: int, number: int) -> None:
        with self._file.open("r+b") as clock:
            clock.seek(at)
            clock.write(number.to_bytes(8, "little", signed=True))


class SteppingServer(RedisServer):
    """A server whose clock can be set back, or set to a time at which it stands still."""

    def start(self, *, loading: bool = False) -> RedisServer:
        self.clock = SteppingClock(self.folder)
        self.env = self.clock.env
        return super().start(loading=loading)

    def set_back(self, seconds: float) -> None:
        """Let the server's clock be so much behind this machine's."""
        self.clock.set_back(seconds)

    def set_to(self, now_us: int) -> None:
        """Let the server's clock show exactly this time; what expires, expires by it."""
        self.clock.set_to(now_us)


def clock_us(server: RedisServer) -> int:
    """Return a server's time, as its scripts see it."""
    client: redis.Redis
    with server.client() as client:
        seconds, rest = client.time()
    return int(seconds) * 1_000_000 + int(rest)
