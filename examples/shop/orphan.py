"""Ends a worker whose parent was killed, and cleans up as the parent would have done."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket

from .settings import ShopSettings

_TIMEOUT = 2.0


def orphaned(settings: ShopSettings) -> None:
    """Stop Redis, remove the folder, and begin to end this process. Every worker does so; the first succeeds."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as redis:
        redis.settimeout(_TIMEOUT)
        redis.connect(str(settings.redis_socket))
        redis.sendall(b"SHUTDOWN NOSAVE\r\n")
        redis.recv(1)  # returns when Redis has ended
    shutil.rmtree(settings.folder, ignore_errors=True)
    os.kill(os.getpid(), signal.SIGTERM)
