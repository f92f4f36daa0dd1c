"""A progress bar and the terminal that it draws on."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys

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
HIDDEN, SHOWN = b"\x1b[?25l", b"\x1b[?25h"


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_command_that_is_terminated_shows_the_cursor_again(loop: str) -> None:
    """The shell had none afterwards. The command still ends by the signal, for its supervisor."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", _BAR.format(loop=loop)]
    environment = {**os.environ, "TERM": "xterm"}
    program = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    text = b""
    try:
        while HIDDEN not in text:
            text += os.read(ours, 4096)
        program.terminate()
        while SHOWN not in text.rpartition(HIDDEN)[2]:
            text += os.read(ours, 4096)  # an error if the program has ended without it
        assert program.wait(30) == -signal.SIGTERM
    finally:
        program.kill()
        program.wait()
        os.close(ours)
