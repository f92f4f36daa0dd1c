"""Translates errors of the driver and the server, in one place: some mean `unavailable`, others mean a mistake.

Nothing outside `stores/redis/` knows redis-py's exceptions or Redis's error codes. No text of a server is
repeated: if AUTH is renamed, Redis's error repeats the password that it was sent.
"""

from __future__ import annotations

import os
import re
import socket
import ssl
from collections.abc import Iterator

import hiredis
import redis.exceptions as driver

from ...errors import ConfigError, DedupError, UnavailableError


class MistakeError(UnavailableError):
    """While a gate opens, a mistake, which is raised as ConfigError; later an outage, which the policy answers."""


class LoginRefusedError(MistakeError):
    """The server answers, but it refuses the login, or the login may not run a command."""


class WrongPortError(MistakeError):
    """The port speaks TLS and the URL does not, or the reverse."""


_NEEDED = (
    "EVALSHA, EVAL, GETRANGE, SET, SETRANGE, PEXPIRE, PTTL, STRLEN, DEL and TIME on its keys, "
    "PUBLISH and SUBSCRIBE on the channel fastdedup:settled, CLIENT and SELECT; SCAN to list records"
)
FORBIDDEN = f"the Redis user may not do this: it needs {_NEEDED}"
_NO_PASSWORD_SET = "Redis has no password for this user: remove the one in the URL, or set it in Redis"
_WANTS_PASSWORD = "Redis wants a password: put it into the URL, redis://:password@host, or give credentials"
_WRONG_LOGIN = "Redis refused the user or password: check those in the URL, or those that credentials returns"

_LOGIN_PREFIXES = {
    "NOAUTH": _WANTS_PASSWORD,
    "WRONGPASS": _WRONG_LOGIN,
    "invalid password": "Redis refused the password: check the one in the URL, or that credentials returns",
    "invalid username-password pair": _WRONG_LOGIN,
    "Authentication required": _WANTS_PASSWORD,
    "AUTH <password> called without any password": _NO_PASSWORD_SET,
    "Client sent AUTH, but no password is set": _NO_PASSWORD_SET,
    "NOPERM": FORBIDDEN,
    "The user executing the script can't": FORBIDDEN,
    "ACL failure in script": FORBIDDEN,
    "DENIED": "Redis runs in protected mode: give it a password, or the address to listen on (bind)",
}

CLUSTER_IS_DOWN = "the cluster is down"
_UNAVAILABLE_PREFIXES = {
    "LOADING": "Redis is loading its data: try again when it has ended that",
    "READONLY": "this Redis is a read-only replica: write its primary into the URL (redis+sentinel:// finds it)",
    "OOM": "Redis is out of memory (maxmemory): raise that limit, or delete keys",
    "MASTERDOWN": "the replica has lost its primary",
    "Can not execute the command on a stale replica": "the replica has lost its primary",
    "CLUSTERDOWN": CLUSTER_IS_DOWN,
    "Script attempted to execute a": CLUSTER_IS_DOWN,
    "Lua script attempted to execute a": CLUSTER_IS_DOWN,
    "Script attempted to access a slot not served": CLUSTER_IS_DOWN,
    "Can not execute a command '": CLUSTER_IS_DOWN,
    "Can not execute a write command '": CLUSTER_IS_DOWN,
    "TRYAGAIN": "the slot is being moved",
    "BUSY": "Redis is busy running another script: SCRIPT KILL ends it",
    "Script killed by user": "an operator has ended the script (SCRIPT KILL), before it wrote",
    "MISCONF": "Redis refuses writes: it cannot persist; look at its disk and its log",
    "NOREPLICAS": "Redis refuses writes: too few replicas are connected (min-replicas-to-write)",
    "UNKILLABLE": "Redis is busy running another script",
    "max number of clients": "Redis has no connection left (maxclients): raise that limit, or close some",
}
"""The beginnings of refusals that mean "not now". Any other refusal is a mistake."""

_MISTAKES = {
    "DB index is out of range": "the database number in the URL does not exist on this Redis",
    "SELECT is not allowed in cluster mode": "a node of a cluster has only database 0: remove the number",
}

_PREFIXES: dict[type[DedupError], dict[str, str]] = {
    LoginRefusedError: _LOGIN_PREFIXES,
    UnavailableError: _UNAVAILABLE_PREFIXES,
    ConfigError: _MISTAKES,
}

NO_TLS = "this port does not speak TLS: write redis for rediss, or use the TLS port"
ONLY_TLS = "this port speaks TLS: write rediss for redis, or use the plain port"

Meaning = tuple[type[DedupError], str]
"""The type of the error to raise, and its text after the server's name."""
_KNOWN = "_fastdedup_meaning"

_CODES: dict[type[BaseException], str] = {
    driver.BusyLoadingError: "LOADING",
    driver.ReadOnlyError: "READONLY",
    driver.OutOfMemoryError: "OOM",
    driver.MasterDownError: "MASTERDOWN",
    driver.ClusterDownError: "CLUSTERDOWN",
    driver.TryAgainError: "TRYAGAIN",
    driver.NoPermissionError: "NOPERM",
}
"""The codes of redis-py's error classes: redis-py cuts a refusal's code off the text."""

_KNOWN_CODES = {
    *("ASK", "BUSYGROUP", "BUSYKEY", "CROSSSLOT", "ERR", "EXECABORT", "INPROG", "IOERR", "MOVED"),
    *("NOGOODSLAVE", "NOPROTO", "NOSCRIPT", "NOTBUSY", "WRONGTYPE"),
}
"""Further first words that may be shown. Any other first word may be a part of a secret."""
_COMMANDS = {
    *("AUTH", "CLIENT", "CLUSTER", "DEL", "EVAL", "EVALSHA", "GET", "HELLO", "INFO", "PEXPIRE", "PING"),
    *("PTTL", "PUBLISH", "ROLE", "SCRIPT", "SELECT", "SENTINEL", "SET", "SETRANGE", "SUBSCRIBE", "TIME"),
    "WAIT",
}

_IN_A_SCRIPT = re.compile(r"Error running script .*?: (?:@user_script: ?\d+: )+-?(?:ERR )?")
"""The text that Redis 6.2 puts before the refusal of a command in a script; 7.0 adds no text."""
_UNKNOWN_COMMAND = re.compile(r"unknown (?:redis )?command\b\W*(\w*)", re.IGNORECASE)
"""In a script the text has no command's name: "Unknown Redis command called from script" (Valkey: no "Redis")."""
_NO_TLS = frozenset({"WRONG_VERSION_NUMBER", "UNKNOWN_PROTOCOL", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG"})
"""OpenSSL's reasons for an answer that is not TLS."""

NETWORK_ERRORS = (
    OSError,
    EOFError,
    driver.ConnectionError,
    driver.TimeoutError,
)
"""The errors of a connection: refused, reset, timed out, half-open, no such socket, TLS that fails."""


def translate(error: Exception, where: str) -> DedupError:
    """Return this library's error for `error`; `where` names the server without its password.

    The server's text, and redis-py's frames, which hold the password, are removed from `error`, so that the chain of
    exceptions does not show them.

    Raises:
        Exception: `error` itself, if it comes neither from the driver nor from the network.
    """
    inner = error.__cause__
    # Over a Unix socket redis-py wraps the server's errors during the handshake.
    said = inner if isinstance(inner, driver.RedisError) else error
    text = refusal(said)
    meaning: Meaning | None = getattr(error, _KNOWN, None) or _meaning(said, text)
    if meaning is None:
        raise error
    setattr(error, _KNOWN, meaning)  # several callers may share one attempt to connect, and its error
    for each in (error, said):
        _conceal(each, text)
    kind, words = meaning
    return kind(f"{where}: {words}")


def _meaning(error: BaseException, text: str) -> Meaning | None:
    # Prefixes first, because redis-py reports some refusals (maxclients, a password) as connection errors.
    for kind, prefixes in _PREFIXES.items():
        for prefix, words in prefixes.items():
            if text.startswith(prefix):
                return kind, words
    if command := _UNKNOWN_COMMAND.match(text):
        return ConfigError, _missing(command[1].upper())
    if isinstance(error, driver.AuthenticationError):
        return (
            LoginRefusedError,
            "Redis refused the login: check user and password in the URL, or credentials",
        )
    if isinstance(error, NETWORK_ERRORS):
        if any(isinstance(each, ssl.SSLError) and reason_of(each) in _NO_TLS for each in causes(error)):
            return WrongPortError, NO_TLS
        return UnavailableError, in_words(error)
    if isinstance(error, hiredis.ProtocolError | driver.InvalidResponse):
        return ConfigError, (
            "the answer is not one of Redis: check host and port in the URL; this is a mistake, not an outage"
        )
    if isinstance(error, driver.RedisError | hiredis.ReplyError):
        return ConfigError, (
            f"Redis refused: {_code(text)}; this is a mistake, not an outage: "
            "look into the log of that server, or try the command with redis-cli"
        )
    return None


def _missing(command: str) -> str:
    if command not in _COMMANDS:
        return (
            "this server does not know a command that fastdedup needs: "
            "is it a Redis of version 6.2 or later, with no command renamed (rename-command)?"
        )
    return (
        f"this server does not know the command {command}, which fastdedup needs: "
        "is the command renamed (rename-command), or is this another kind of server?"
    )


def _code(text: str) -> str:
    word = text.split(maxsplit=1)[0] if text.strip() else ""
    return word if word in _KNOWN_CODES else "an error without a known code"


def _conceal(error: BaseException, text: str) -> None:
    """Remove from an error the server's text, except for its known beginning, and the errors that led to it."""
    error.__cause__ = error.__context__ = error.__traceback__ = None
    if isinstance(error, driver.RedisError | hiredis.ReplyError):
        known = (prefix for prefixes in _PREFIXES.values() for prefix in prefixes)
        error.args = (next((prefix for prefix in known if text.startswith(prefix)), None) or _code(text),)


def is_outage(error: BaseException) -> bool:
    """True if an error of redis-py means "not now": the network's, or a refusal that ends by itself."""
    if isinstance(error, driver.RedisClusterException):  # it names no node's error, except for its cause
        cause = error.__cause__
        return isinstance(error, driver.SlotNotCoveredError) or (cause is not None and is_outage(cause))
    return isinstance(error, NETWORK_ERRORS) or refusal(error).startswith(tuple(_UNAVAILABLE_PREFIXES))


def refusal(error: BaseException) -> str:
    """Return the server's text, with its code first. Drivers report it in several ways. Never show it in messages."""
    text = str(error).removeprefix("ERR ")
    text = _IN_A_SCRIPT.sub("", text, count=1)
    code = _CODES.get(type(error), "")
    return text if text.startswith(code) else f"{code} {text}"


def in_words(error: BaseException) -> str:
    """Return a connection's error in words. redis-py's text is not repeated: it may hold the server's text."""
    for each in causes(error):
        if isinstance(each, EOFError):  # IncompleteReadError is a subclass
            return "Redis closed the connection"
        if isinstance(each, ssl.SSLError):
            return _tls_in_words(each)
        if isinstance(each, TimeoutError | driver.TimeoutError):
            return "no answer in time"
        if isinstance(each, OSError):
            return _system_in_words(each)
    return "the connection failed, or Redis closed it"


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and the errors that led to it, the nearest first."""
    each: BaseException | None = error
    seen: set[int] = set()
    while each is not None and id(each) not in seen:
        seen.add(id(each))
        yield each
        each = each.__cause__ or each.__context__


def reason_of(error: ssl.SSLError) -> str:
    """Return OpenSSL's name of an error, or ""."""
    return getattr(error, "reason", None) or ""


def _tls_in_words(error: ssl.SSLError) -> str:
    if not isinstance(error, ssl.SSLCertVerificationError):
        return f"TLS failed: {(reason_of(error) or 'unknown reason').lower().replace('_', ' ')}"
    why = getattr(error, "verify_message", "unknown reason").rstrip(".")
    if "mismatch" in why:
        return (
            f"the server's certificate is for another host ({why}): connect by a name that the certificate "
            "holds, or write ssl_check_hostname=false into the URL"
        )
    return f"the server's certificate is not trusted ({why}): write ssl_ca_certs=/path/to/ca.pem into the URL"


def _system_in_words(error: OSError) -> str:
    if isinstance(error, socket.gaierror):
        return f"the host is not known: {error.strerror}"
    # asyncio puts several attempts into one text; its own words hold addresses only.
    numbers = [error.errno] if error.errno else [int(one) for one in re.findall(r"Errno (\d+)", str(error))]
    return ", ".join(dict.fromkeys(map(os.strerror, numbers))) or str(error) or type(error).__name__
