"""Driver and server errors, translated once, here: what means `unavailable`, and what is a mistake.

Nothing outside `stores/redis/` knows redis-py's exceptions or Redis's error prefixes.
"""

from __future__ import annotations

import asyncio

import hiredis
import redis.exceptions as driver

from ...errors import ConfigError, DedupError, UnavailableError


class LoginRefusedError(UnavailableError):
    """The server is there and refuses the user or password: at opening a mistake, later an outage."""


_LOGIN_PREFIXES = {
    "NOAUTH": "Redis wants a password: put it into the URL, redis://:password@host",
    "WRONGPASS": "Redis refused the user or password: check those in the URL",
    "invalid password": "Redis refused the password: check the one in the URL",
    "invalid username-password pair": "Redis refused the user or password: check those in the URL",
    "Authentication required": "Redis wants a password: put it into the URL, redis://:password@host",
}

_UNAVAILABLE_PREFIXES = {
    "LOADING": "Redis is loading its data",
    "READONLY": "this Redis is a read-only replica",
    "OOM": "Redis is out of memory (maxmemory)",
    "MASTERDOWN": "the replica has lost its primary",
    "CLUSTERDOWN": "the cluster is down",
    "TRYAGAIN": "the slot is being moved",
    "BUSY": "Redis is busy running another script",
    "MISCONF": "Redis refuses writes: it cannot persist",
    "NOREPLICAS": "Redis refuses writes: too few replicas",
    "UNKILLABLE": "Redis is busy running another script",
    "NOPERM": "the Redis user may not do this: it needs EVALSHA, EVAL, GET, SET, SETRANGE, PEXPIRE, PTTL, "
    "DEL, TIME and PUBLISH on its keys",
    "max number of clients": "Redis has no connection left (maxclients)",
}
"""Redis's error prefixes that mean: not now, or not with this login. All else is a mistake."""

_MISTAKES = {
    "DB index is out of range": "the database number in the URL does not exist on this Redis",
    "unknown command": "this server does not know a command that fastdedup needs",
}

NETWORK_ERRORS = (
    OSError,
    EOFError,
    asyncio.IncompleteReadError,
    driver.ConnectionError,
    driver.TimeoutError,
    driver.BusyLoadingError,
)
"""Refused, reset, timed out, half-open, no such socket, TLS that fails."""


def translate(error: Exception, where: str) -> DedupError:
    """Return the error of this library that `error` means; `where` names the server without its password."""
    # Prefixes first: redis-py reports some refusals of a server (LOADING, a password) as connection errors.
    text = str(error).removeprefix("ERR ")
    for prefix, meaning in _LOGIN_PREFIXES.items():
        if text.startswith(prefix):
            return LoginRefusedError(f"{where}: {meaning}")
    for prefix, meaning in _UNAVAILABLE_PREFIXES.items():
        if text.startswith(prefix):
            return UnavailableError(f"{where}: {meaning}")
    for prefix, meaning in _MISTAKES.items():
        if text.startswith(prefix):
            return ConfigError(f"{where}: {meaning} ({text})")
    if isinstance(error, driver.AuthenticationError):
        return LoginRefusedError(
            f"{where}: Redis refused the login: check user and password in the URL ({text})"
        )
    if isinstance(error, NETWORK_ERRORS):
        return UnavailableError(f"{where}: {text or type(error).__name__}")
    if isinstance(error, driver.RedisError | hiredis.ReplyError | hiredis.ProtocolError):
        return ConfigError(f"{where}: Redis answered {text!r}; this is a fault, not an outage")
    raise error
