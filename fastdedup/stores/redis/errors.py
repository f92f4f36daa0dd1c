"""Driver and server errors, translated once, here: what means `unavailable`, and what is a mistake.

Nothing outside `stores/redis/` knows redis-py's exceptions or Redis's error prefixes.
"""

from __future__ import annotations

import re

import hiredis
import redis.exceptions as driver

from ...errors import ConfigError, DedupError, UnavailableError


class LoginRefusedError(UnavailableError):
    """The server is there and refuses who asks, or what they ask: at opening a mistake, later an outage."""


_NEEDED = (
    "EVALSHA, EVAL, GET, SET, SETRANGE, PEXPIRE, PTTL, DEL, TIME and PUBLISH on its keys, CLIENT and SELECT"
)
_FORBIDDEN = f"the Redis user may not do this: it needs {_NEEDED}"

_LOGIN_PREFIXES = {
    "NOAUTH": "Redis wants a password: put it into the URL, redis://:password@host",
    "WRONGPASS": "Redis refused the user or password: check those in the URL",
    "invalid password": "Redis refused the password: check the one in the URL",
    "invalid username-password pair": "Redis refused the user or password: check those in the URL",
    "Authentication required": "Redis wants a password: put it into the URL, redis://:password@host",
    "NOPERM": _FORBIDDEN,
    "The user executing the script can't": _FORBIDDEN,
    "ACL failure in script": _FORBIDDEN,
    "DENIED": "Redis runs in protected mode: give it a password, or the address to listen on (bind)",
}

_UNAVAILABLE_PREFIXES = {
    "LOADING": "Redis is loading its data",
    "READONLY": "this Redis is a read-only replica",
    "OOM": "Redis is out of memory (maxmemory)",
    "MASTERDOWN": "the replica has lost its primary",
    "Can not execute the command on a stale replica": "the replica has lost its primary",
    "CLUSTERDOWN": "the cluster is down",
    "TRYAGAIN": "the slot is being moved",
    "BUSY": "Redis is busy running another script",
    "MISCONF": "Redis refuses writes: it cannot persist",
    "NOREPLICAS": "Redis refuses writes: too few replicas",
    "UNKILLABLE": "Redis is busy running another script",
    "max number of clients": "Redis has no connection left (maxclients)",
}
"""What Redis's refusals that mean `not now` begin with. All else is a mistake."""

_MISTAKES = {
    "DB index is out of range": "the database number in the URL does not exist on this Redis",
    "SELECT is not allowed in cluster mode": "a node of a cluster has only database 0",
    "unknown command": "this server does not know a command that fastdedup needs",
}

_CODES: dict[type[Exception], str] = {
    driver.BusyLoadingError: "LOADING",
    driver.ReadOnlyError: "READONLY",
    driver.OutOfMemoryError: "OOM",
    driver.MasterDownError: "MASTERDOWN",
    driver.ClusterDownError: "CLUSTERDOWN",
    driver.TryAgainError: "TRYAGAIN",
    driver.NoPermissionError: "NOPERM",
}
"""redis-py, which shakes hands, makes a class of a refusal's code and cuts it off the text."""

_IN_A_SCRIPT = re.compile(r"Error running script .*?: (?:@user_script: ?\d+: )+-?(?:ERR )?")
"""What Redis 6.2 puts before the refusal of a command that a script called; 7.0 leaves it as it is."""

NETWORK_ERRORS = (
    OSError,
    EOFError,
    driver.ConnectionError,
    driver.TimeoutError,
)
"""Refused, reset, timed out, half-open, no such socket, TLS that fails."""


def translate(error: Exception, where: str) -> DedupError:
    """Return the error of this library that `error` means; `where` names the server without its password."""
    if isinstance(error.__cause__, driver.RedisError):
        error = error.__cause__  # shaking hands over a Unix socket, redis-py wraps what the server said
    # Prefixes first: redis-py reports some refusals of a server (maxclients, a password) as connection errors.
    text = refusal(error)
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
        return UnavailableError(f"{where}: {in_words(error)}")
    if isinstance(error, driver.RedisError | hiredis.ReplyError | hiredis.ProtocolError):
        return ConfigError(f"{where}: Redis answered {text!r}; this is a fault, not an outage")
    raise error


def refusal(error: Exception) -> str:
    """Return what the server said, beginning with its code, whichever way it came here."""
    text = str(error).removeprefix("ERR ")
    text = _IN_A_SCRIPT.sub("", text, count=1)
    code = _CODES.get(type(error), "")
    return text if text.startswith(code) else f"{code} {text}"


def in_words(error: Exception) -> str:
    """Return what happened on the way, also where the error itself says nothing readable."""
    if isinstance(error, EOFError):  # IncompleteReadError is one
        return "Redis closed the connection"
    return str(error) or ("no answer in time" if isinstance(error, TimeoutError) else type(error).__name__)
