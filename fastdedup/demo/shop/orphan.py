"""The end of a worker whose parent was killed: it leaves nothing behind, as the parent would not have."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket

from .settings import ShopSettings

_PATIENCE = 2.0


def orphaned(settings: ShopSettings) -> None:
    """End Redis, remove the folder, and begin to end this process. Every worker does so; once is enough."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as redis:
        redis.settimeout(_PATIENCE)
        redis.connect(str(settings.redis_socket))
        redis.sendall(b"SHUTDOWN NOSAVE\r\n")
        redis.recv(1)  # the end, or an error
    shutil.rmtree(settings.folder, ignore_errors=True)
    os.kill(os.getpid(), signal.SIGTERM)
