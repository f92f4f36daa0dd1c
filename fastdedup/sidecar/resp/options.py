"""The options of RESP commands: `NAME value` pairs and flags, in any order, after the positional arguments."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import TypeVar

from ...core.options import ClaimOptions
from ...errors import ConfigError
from ...keys import digest
from ..verbs import seconds

_TEXTS = {"OWNER", "SUBJECT", "REMEMBER", "KIND", "REASON", "PREFIX", "STATE", "CURSOR"}
_FLAGS = {"EPHEMERAL", "TOKEN", "DIGEST"}
Options = TypeVar("Options", bound="CommandOptions")
_MAX_MS = 10 * 365 * 86_400_000


class CommandOptions:
    """The options that a command has; None or False stands for an option that it does not have. Times in ms."""

    __slots__ = (
        "ephemeral",
        "fence",
        "fp",
        "lease",
        "ns",
        "owner",
        "remember",
        "subject",
        "token",
        "ttl",
        "wait",
    )

    def __init__(self) -> None:
        self.ns: bytes | None = None
        self.fp: bytes | None = None
        self.owner: str | None = None
        self.subject: str | None = None
        self.remember: str | None = None
        self.lease: int | None = None
        self.ttl: int | None = None
        self.wait: int | None = None
        self.fence: int | None = None
        self.ephemeral = False
        self.token = False

    def of_claim(self, wait: float) -> ClaimOptions:
        """Return them as a claim's or a token's; `wait`: the seconds that are left of WAIT, see `left_of`."""
        return ClaimOptions(self.owner, seconds(self.lease), seconds(self.ttl), wait)


class OperatorOptions(CommandOptions):
    """The options of the commands that show, list and forget records."""

    __slots__ = ("cursor", "digest", "kind", "limit", "older", "prefix", "reason", "state", "within")

    def __init__(self) -> None:
        super().__init__()
        self.kind: str | None = None
        self.digest = False
        self.reason: str | None = None
        self.prefix: str | None = None
        self.state: str | None = None
        self.older: int | None = None
        self.limit: int | None = None
        self.within: int | None = None
        self.cursor: str | None = None


def check_count(command: list[bytes], least: int) -> None:
    """Check that a command has at least `least` parts, its name included.

    Raises:
        ConfigError: it has fewer.
    """
    if len(command) < least:
        name = command[0][:32].decode(errors="replace").lower()
        raise ConfigError(f"wrong number of arguments for '{name}'")


def read_options(command: list[bytes], start: int, allowed: frozenset[str]) -> CommandOptions:
    """Read the options from `command[start:]`.

    Raises:
        ConfigError: an option is unknown, not allowed here, given twice, without value, or of a wrong kind.
    """
    return read_into(CommandOptions(), command, start, allowed)


def read_into(options: Options, command: list[bytes], start: int, allowed: frozenset[str]) -> Options:
    """Read the options from `command[start:]` into `options`; errors as of `read_options`."""
    seen: set[str] = set()
    at = start
    while at < len(command):
        name = command[at][:16].decode(errors="replace").upper()
        if name not in allowed:
            listed = ", ".join(sorted(allowed)) or "no options"
            raise ConfigError(f"unknown option '{name}' for {_name_of(command)}; it takes {listed}")
        if name in seen:
            raise ConfigError(f"{name} is given twice: give it once")
        seen.add(name)
        if name in _FLAGS:
            setattr(options, name.lower(), True)
            at += 1
            continue
        if at + 1 == len(command):
            raise ConfigError(f"{name} must be followed by a value")
        setattr(options, name.lower(), _value(name, command[at + 1]))
        at += 2
    return options


def _value(name: str, data: bytes) -> object:
    if name == "NS":
        return data
    if name == "FP":
        return fingerprint_of(data)
    if name in _TEXTS:
        return text_of(name, data)
    least = 1 if name in ("LEASE", "TTL", "LIMIT", "WITHIN") else 0
    return number_of(name, data, least)


def number_of(name: str, data: bytes, least: int = 0) -> int:
    """Return a whole number: milliseconds, or a fence.

    Raises:
        ConfigError: it is not a whole number, or is out of bounds.
    """
    if (
        not data.isdigit()
        or len(data) > 16
        or not least <= int(data) <= (_MAX_MS if name != "FENCE" else 2**53)
    ):
        raise ConfigError(
            f"{name} must be a whole number of milliseconds from {least} to ten years, got {_shown(data)}"
        )
    return int(data)


def text_of(name: str, data: bytes) -> str:
    """Return text from UTF-8.

    Raises:
        ConfigError: it is not UTF-8.
    """
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ConfigError(f"{name} must be UTF-8 text, got {_shown(data)}") from None


def left_of(wait: int | None) -> Callable[[], float]:
    """Return what tells how many seconds are left of a WAIT that begins now, also where its command begins later."""
    if not wait:
        return _nothing
    return partial(_left, monotonic() + wait / 1000)


def _left(ends: float) -> float:
    return max(0.0, ends - monotonic())


def _nothing() -> float:
    return 0.0


def fingerprint_of(data: bytes) -> bytes:
    """Digest what a client sent: as text where it is UTF-8, so that HTTP and RESP agree, else as bytes."""
    try:
        return digest(data.decode())
    except UnicodeDecodeError:
        return digest(data)


def _name_of(command: list[bytes]) -> str:
    return command[0][:32].decode(errors="replace").upper()


def _shown(data: bytes) -> str:
    return repr(data[:32].decode(errors="replace"))
