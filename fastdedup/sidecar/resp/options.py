"""The arguments of RESP commands: positional arguments, then options, in any order: `NAME value` pairs and flags."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from ...errors import ConfigError
from ..fields import FIELDS
from ..wire_verbs import Usage


class CommandOptions:
    """A command's arguments, by their names in `FIELDS`; times in ms. One not given is None, a flag False."""

    both = "REMEMBER and TOKEN exclude each other: a ledger remembers claims, not tokens"
    """The error's text if a command names a token and a ledger."""

    ledger: Any
    ids: Any

    if TYPE_CHECKING:  # while it runs, it would make each attribute slower

        def __getattr__(self, name: str) -> Any:
            """Return a field: every name of one is an attribute of the class."""


for _field in FIELDS.values():
    setattr(CommandOptions, _field.name, None if _field.read else False)


@cache
def kind_of(allowed: frozenset[str]) -> type[CommandOptions]:
    """Return a class for the arguments of commands with these options.

    An object takes more memory for each name that any object of its very class has ever had: of one class for all,
    an object takes 0.3 kB, and a client may have 1,000 commands that wait.
    """
    return type("CommandOptions", (CommandOptions,), {})


def read_command(usage: Usage, command: list[bytes]) -> CommandOptions:
    """Return a command's arguments.

    Raises:
        ConfigError: there are too few arguments, a positional one is wrong, or as `read_options` says.
    """
    check_count(command, usage.least, usage.text)
    start = usage.start
    if usage.ends_in_lease and not b"".join(command[start - 1 : start]).isdigit():
        start -= 1
    options = read_options(command, start, usage)
    for at, data in enumerate(command[1:start]):
        name, called, read = usage.readers[at]
        setattr(options, name, read(called, data))
    return options


def check_count(command: list[bytes], least: int, usage: str, *, most: int | None = None) -> None:
    """Check that a command has `least` to `most` parts, its name included. The error ends in `usage`.

    Raises:
        ConfigError: it has fewer, or more.
    """
    if len(command) < least or (most is not None and len(command) > most):
        name = command[0][:32].decode(errors="replace").lower()
        raise ConfigError(f"wrong number of arguments for '{name}': write {usage}")


def read_options(command: list[bytes], start: int, usage: Usage) -> CommandOptions:
    """Read the options from `command[start:]`.

    Raises:
        ConfigError: an option is unknown, not allowed here, given twice, without value, or of a wrong kind.
    """
    options: CommandOptions = kind_of(usage.options)()
    seen: set[str] = set()
    at = start
    while at < len(command):
        name = command[at][:16].upper().decode(errors="replace")  # text's upper() makes "NS" of "N\u017f"
        if name not in usage.options:
            sent = command[at][:16].decode(errors="replace")
            raise ConfigError(f"unknown option '{sent}': write {usage.text}")
        if name in seen:
            raise ConfigError(f"{name} is given twice: give it once")
        seen.add(name)
        field = usage.fields[name]
        if field.read is None:
            setattr(options, field.name, True)
            at += 1
            continue
        if at + 1 == len(command):
            raise ConfigError(f"{name} must be followed by a value")
        setattr(options, field.name, field.read(name, command[at + 1]))
        at += 2
    return options
