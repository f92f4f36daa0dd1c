"""Tells when the server, or the whole machine, was too slow to blame anybody else for a late answer."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path

from .history import MS

_PAUSE = 0.005
SLOW = 30 * MS
"""ns from one answer to the next, pause included, that still count as a healthy store."""


class Pulse:
    """Pings a server all the time, from a thread of its own. `slow` has the spans (ns, ns) without an answer."""

    def __init__(self, server: Path) -> None:
        self.slow: list[tuple[int, int]] = []
        self._over = threading.Event()
        self._line = socket.socket(socket.AF_UNIX)
        self._line.settimeout(5.0)
        self._line.connect(str(server))
        self._thread = threading.Thread(target=self._run, name="pulse", daemon=True)
        self._thread.start()

    def stop(self) -> list[tuple[int, int]]:
        """End it; returns the spans."""
        self._over.set()
        self._thread.join()
        self._line.close()
        return self.slow

    def _run(self) -> None:
        last = time.monotonic_ns()
        while not self._over.wait(_PAUSE):
            self._line.sendall(b"PING\r\n")
            try:
                self._line.recv(64)
            except OSError:
                return
            now = time.monotonic_ns()
            if now - last > SLOW:
                self.slow.append((last, now))
            last = now
