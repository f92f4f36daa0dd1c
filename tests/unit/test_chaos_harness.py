"""The chaos harness itself: its plan, histories and gates, its table, and what it leaves behind."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.chaos.crew import ROOT
from tests.chaos.faults import FAULTS
from tests.chaos.guard import started
from tests.chaos.history import MS, Event, Recorder, load
from tests.chaos.plan import plan
from tests.chaos.proxy import Gate, Mode
from tests.chaos.run import Result, times
from tests.chaos.steps import draw_step
from tests.chaos.table import table, totals

from ..fixtures import async_fixture
from ..waiting import wait_until

gate = async_fixture(lambda tmp_path: gate_to_echo(tmp_path))


def test_a_seed_replays_the_plan_and_the_steps() -> None:
    names = list(FAULTS)
    first, again = ([*itertools.islice(plan(7, names, 3), 60)] for _ in range(2))
    assert first == again
    assert first != [*itertools.islice(plan(8, names, 3), 60)]
    steps, same = ([draw_step(draw) for _ in range(50)] for draw in (random.Random("a"), random.Random("a")))
    assert steps == same


def test_a_history_survives_its_worker(tmp_path: Path) -> None:
    path = tmp_path / "w0.jsonl"
    recorder = Recorder("w0", path)
    asked = recorder.ask("claim", "k", owner="o", lease=5)
    asked.outcome, asked.fence = "acquired", 3
    recorder.answered(asked)
    recorder.ask("complete", "k", owner="o", fence=3, value="x")
    recorder.close()
    with path.open("ab") as file:
        file.write(b'{"worker": "w0", "n')  # killed while writing
    claim, complete = load([path])
    assert claim == asked
    assert (complete.end, complete.outcome) == (None, None)


def test_times_count_from_the_fault_and_from_its_end() -> None:
    def event(start: int, end: int, outcome: str) -> Event:
        return Event("w0", start, "claim", "reject/claim/k", start * MS, end * MS, outcome=outcome)

    events = [event(0, 5, "unavailable"), event(90, 120, "unavailable"), event(310, 340, "acquired")]
    assert times(events, 100 * MS, 300 * MS) == ([0.02], [0.04])
    assert times(events[2:], 100 * MS, 300 * MS) == ([], [])


def test_the_table_has_a_row_for_each_fault_that_was_run() -> None:
    runs = [*itertools.islice(plan(1, ["freeze", "kill -9 without AOF"], 2), 2)]
    results = [Result(run, operations=1234, to_503=[0.15], to_recover=[0.02, 0.04]) for run in runs]
    text = table(results)
    assert "| freeze | 1 | 1,234 | 0 | 150 / 150 | 30 / 40 | 0 | 0 | no |" in text
    assert "| may be; none seen |" in text
    assert "| **all** | 2 | 2,468 |" in text
    assert "0 violations, 0 hangs, 0 unhandled exceptions" in totals(results, 60.0)


@asynccontextmanager
async def gate_to_echo(folder: Path) -> AsyncIterator[Gate]:
    """A gate before a server that answers each line with itself."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(line)
        writer.close()

    server = await asyncio.start_unix_server(echo, str(folder / "echo.sock"))
    gate = await Gate(folder / "gate.sock", folder / "echo.sock").start()
    try:
        yield gate
    finally:
        await gate.aclose()
        server.close()


async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seconds: float = 5.0) -> bytes:
    """Return the answer to a line, b"" where the connection ended; TimeoutError where nobody answers."""
    writer.write(b"hello\n")
    async with asyncio.timeout(seconds):
        try:
            return await reader.readline()
        except ConnectionError:
            return b""


@pytest.mark.parametrize(("mode", "heard"), [(Mode.REFUSED, b""), (Mode.TORN, b"hel")])
async def test_a_gate_that_breaks_connections(gate: Gate, tmp_path: Path, mode: Mode, heard: bytes) -> None:
    gate.set(mode)
    line = await asyncio.open_unix_connection(str(tmp_path / "gate.sock"))
    assert await say(*line) == heard
    line[1].close()


@pytest.mark.parametrize("mode", [Mode.SILENT, Mode.MUTE, Mode.STALLED])
async def test_a_gate_that_says_nothing(gate: Gate, tmp_path: Path, mode: Mode) -> None:
    line = await asyncio.open_unix_connection(str(tmp_path / "gate.sock"))
    assert await say(*line) == b"hello\n"
    gate.set(mode)
    with pytest.raises(TimeoutError):
        await say(*line, seconds=0.05)
    gate.reset()
    if mode is Mode.STALLED:  # what was held arrives, however late
        assert await line[0].readline() == b"hello\n"
    if mode is Mode.SILENT:  # half-open for good
        with pytest.raises(TimeoutError):
            await say(*line, seconds=0.05)
    line[1].close()


async def test_a_driver_that_is_killed_leaves_nothing_behind() -> None:
    # Not tmp_path: a socket in there may get a path longer than the 107 bytes that a socket can have.
    folder = Path(tempfile.mkdtemp(prefix="fd-"))
    driver = subprocess.Popen(  # noqa: ASYNC220 -- it only starts it
        [sys.executable, "-u", "-m", "tests.chaos", "--runs", "9", "--only", "freeze", "--workers", "2"],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
    )
    try:
        await wait_until(lambda: servers_in(folder), description="a server runs", deadline=30.0)
        (server,) = servers_in(folder)
        began = started(server)
        os.kill(server, signal.SIGSTOP)  # the hardest to end
    finally:
        driver.kill()
        driver.communicate()
    await wait_until(lambda: started(server) != began, description="the guard ends the server")
    await wait_until(lambda: not list(folder.iterdir()), description="and removes its folder")
    os.rmdir(folder)


def servers_in(folder: Path) -> list[int]:
    """The redis-servers that work in a folder; before it goes there the guard would not find one."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            name = (process / "cmdline").read_bytes().split(b"\0")[0]
            place = os.readlink(process / "cwd")
        except OSError:
            continue
        if b"redis-server" in name and place.startswith(str(folder)):
            found.append(int(process.name))
    return found
