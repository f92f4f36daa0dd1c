"""How many connections the process may have open at once: the system limits its open files (RLIMIT_NOFILE).

Without a free file the system refuses connections without a word, and the way to Redis cannot be opened again. So the
sidecar raises its limit as far as it may, refuses connections before it is reached, and says why.
"""

from __future__ import annotations

import contextlib
import resource

from ...errors import ConfigError
from .logs import facts, log

RESERVE = 320
"""Files for all else: refused connections, places beyond the limit, metrics (128 + 64), the store, the log."""
_FEWEST = 32
"""Connections for which the files must do."""


def make_room(connections: int) -> int:
    """Raise the limit of open files to what so many connections need; return how many connections it allows.

    Raises:
        ConfigError: the limit allows next to no connection.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = connections + RESERVE
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = _raised(needed if hard == resource.RLIM_INFINITY else min(needed, hard), soft, hard)
    room = connections if soft == resource.RLIM_INFINITY else soft - RESERVE
    if room < _FEWEST:
        raise ConfigError(
            f"the system lets this process open {soft} files (ulimit -n, systemd: LimitNOFILE=): "
            f"raise that to {needed}, which {connections} connections need"
        )
    if room < connections:
        log.warning(
            "fewer connections than configured: raise the limit of open files (ulimit -n, systemd: LimitNOFILE=)",
            extra=facts(open_files=soft, needed=needed, connections=room, configured=connections),
        )
    return min(room, connections)


def _raised(wanted: int, soft: int, hard: int) -> int:
    """Raise the soft limit, and return what it is then: some systems allow less than the hard limit says."""
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return soft
