"""A server's clock that the driver sets: libfaketime in front of redis-server, told by a file.

Debian's redis-server gets its memory from jemalloc, which asks for the time as it starts: before
libfaketime is ready, so both wait for each other for ever. The C library's own allocator does not ask,
so it is put first. Only the wall clock is made up; CLOCK_MONOTONIC stays as it is.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

LIBC = "libc.so.6"
_PLACES = ("/usr/lib/*/faketime", "/usr/lib/faketime", "/usr/lib64/faketime", "/usr/local/lib/faketime")


def library() -> Path | None:
    """Return libfaketime, if it is installed; LIBFAKETIME names one explicitly."""
    if named := os.environ.get("LIBFAKETIME"):
        return Path(named)
    found = (path for place in _PLACES for path in Path("/").glob(f"{place[1:]}/libfaketime.so.1"))
    return next(found, None)


class Clock:
    """The wall clock of the processes that are started with `env`."""

    def __init__(self, file: Path) -> None:
        faketime = library()
        if faketime is None:
            raise RuntimeError("libfaketime is not installed; `make chaos` installs it (Debian: libfaketime)")
        self._file = file
        self.behind = 0.0
        self.reset()
        self.env: Mapping[str, str] = {
            "LD_PRELOAD": f"{faketime}:{LIBC}",
            "FAKETIME_TIMESTAMP_FILE": str(file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }

    def back(self, seconds: float) -> None:
        """Set it back."""
        self._set(self.behind + seconds)

    def reset(self) -> None:
        """Let it be right again."""
        self._set(0.0)

    def _set(self, behind: float) -> None:
        new = self._file.with_suffix(".new")
        new.write_text(f"-{behind:.3f}\n")
        new.replace(self._file)  # in one step: it is read at any moment
        self.behind = behind
