"""The exchange with systemd: it passes a socket, and the sidecar tells it of states."""

from __future__ import annotations

import contextlib
import os
import socket

from ...errors import ConfigError

_FIRST = 3
"""The number of the first socket that systemd passes."""


def inherited() -> socket.socket | None:
    """Return the socket that systemd listens on for us (sd_listen_fds(3)), or None.

    Raises:
        ConfigError: it passed more than one socket, or one that is not a stream socket at a path.
    """
    if os.environ.get("LISTEN_PID") != str(os.getpid()):
        return None
    if os.environ.get("LISTEN_FDS") != "1":
        raise ConfigError(f"systemd passed {os.environ.get('LISTEN_FDS')} sockets, fastdedup serves one")
    try:
        listener = socket.socket(fileno=_FIRST)
    except OSError as error:
        raise ConfigError(
            f"LISTEN_FDS says that systemd passed a socket, but descriptor {_FIRST} is not one ({error.strerror}): "
            "start the sidecar by its socket unit, or without LISTEN_FDS"
        ) from None
    if listener.type != socket.SOCK_STREAM:
        raise ConfigError(
            "systemd passed a socket that is not a stream socket: use ListenStream= in the socket unit"
        )
    if listener.family != socket.AF_UNIX or not isinstance(listener.getsockname(), str):
        raise ConfigError(
            f"systemd passed a socket at {listener.getsockname()!r}, which is not a path: use ListenStream=/run/… in "
            "the socket unit"
        )
    for name in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"):
        os.environ.pop(name, None)
    return listener


def notify(state: str) -> None:
    """Tell systemd of a state (sd_notify(3)), if it has set $NOTIFY_SOCKET."""
    where = os.environ.get("NOTIFY_SOCKET", "")
    if not where:
        return
    address = "\0" + where[1:] if where.startswith("@") else where
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.connect(address)
        channel.send(state.encode())
