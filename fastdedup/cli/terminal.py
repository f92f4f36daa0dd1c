"""The output of the commands: other people's text made safe, the console of progress bars, and exit codes.

A key may hold characters that clear the screen or hide the rest of a line.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from typing import Any

import click
import orjson
from rich.console import Console
from rich.control import Control

Command = Callable[..., Any]


class AnsweringCommand(click.Command):
    """A command that answers by 0 or 1, such as 1 for "there is no record"; its epilog has the codes of errors."""

    def __init__(self, **attributes: Any) -> None:
        ends = "Exits with 3 if the server does not answer, with 2 after any other error."
        super().__init__(epilog=ends, **attributes)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Note that this is the command that runs, also for the groups that it is in."""
        ctx.meta[__name__] = True
        return super().parse_args(ctx, args)


def is_answering(ctx: click.Context) -> bool:
    """True if an `AnsweringCommand` runs in this group."""
    return __name__ in ctx.meta


def printable(text: str) -> str:
    """Return text whose control characters, also those that turn the direction of writing, are escaped."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape", "surrogatepass").decode()
        for char in text
    )


def as_json(facts: Any) -> str:
    """Return JSON without control characters: the same values, and no control character reaches a terminal.

    It uses repr for a result of another codec, which need not be JSON, because inspecting it must not fail.
    """
    try:
        text = orjson.dumps(facts, default=repr, option=orjson.OPT_NON_STR_KEYS).decode()
    except TypeError:  # an integer over 64 bits
        text = json.dumps(facts, default=repr, separators=(",", ":"))
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in text)


def with_options(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Return one decorator that adds these options to a command, in their order."""

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def json_option(shape: str) -> Callable[[Command], Command]:
    """Add the option `--json`; `shape`: describes the output with it."""
    return click.option("--json", "as_json", is_flag=True, help=f"Print JSON, for programs: {shape}.")


def print_json(facts: Any) -> None:
    """Print JSON, for programs, on one line."""
    click.echo(as_json(facts))


class BarConsole(Console):
    """A console whose cursor comes back if SIGTERM ends the command while a bar hides it."""

    def show_cursor(self, show: bool = True) -> bool:
        """See `Console`: rich calls it at the start and at the end of a bar."""
        if self.is_terminal and not self.is_dumb_terminal:
            signal.signal(signal.SIGTERM, signal.SIG_DFL if show else self._end)
        return super().show_cursor(show)

    def _end(self, number: int, frame: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        try:
            # Not by `show_cursor`: if the signal comes while the bar is drawn, that only fills rich's buffer.
            os.write(self.file.fileno(), str(Control.show_cursor(True)).encode())
        finally:
            signal.raise_signal(number)


def bar_console(*, quiet: bool = False) -> Console:
    """Return a progress bar's console, on stderr because stdout is for the figures.

    Quiet, because rich 13 and 14 print an empty line at the end of a bar that is disabled.
    """
    return BarConsole(stderr=True, quiet=quiet)
