"""A progress bar and the terminal that it draws on."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

_BAR = """
import asyncio, {loop}
from rich.progress import Progress
from fastdedup.cli.terminal import bar_console

async def wait():
    with Progress(console=bar_console()) as bar:
        bar.add_task("")
        while True:
            await asyncio.sleep(3600)

{loop}.run(wait())
"""
_TERMINATED_AS_IT_DRAWS = """
import signal
from rich.progress import Progress, ProgressColumn
from fastdedup.cli.terminal import bar_console

class Terminates(ProgressColumn):
    def render(self, task):
        return self

    def __rich_console__(self, console, options):
        signal.raise_signal(signal.SIGTERM)
        yield ""

with Progress(Terminates(), console=bar_console()) as bar:
    bar.add_task("")
"""
HIDDEN, SHOWN = b"\x1b[?25l", b"\x1b[?25h"


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_command_that_is_terminated_shows_the_cursor_again(loop: str) -> None:
    """The shell had none afterwards. The command still ends by the signal, for its supervisor."""
    with _on_a_terminal(_BAR.format(loop=loop)) as (program, terminal):
        text = b""
        while HIDDEN not in text:
            text += os.read(terminal, 4096)
        program.terminate()
        _is_terminated_with_a_cursor(program, terminal, text)


def test_a_command_that_is_terminated_while_its_bar_is_drawn_shows_the_cursor_again() -> None:
    """What rich prints within a drawing waits for its end, which never came."""
    with _on_a_terminal(_TERMINATED_AS_IT_DRAWS) as (program, terminal):
        _is_terminated_with_a_cursor(program, terminal, b"")


@contextmanager
def _on_a_terminal(code: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Run code on a terminal of its own; yield the program and our end of the terminal."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm"}
    command = [sys.executable, "-c", code]
    program = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    try:
        yield program, ours
    finally:
        program.kill()
        program.wait()
        os.close(ours)


def _is_terminated_with_a_cursor(program: subprocess.Popen[bytes], terminal: int, text: bytes) -> None:
    while SHOWN not in text.rpartition(HIDDEN)[2]:
        text += os.read(terminal, 4096)  # an error if the program has ended without it
    assert program.wait(30) == -signal.SIGTERM
