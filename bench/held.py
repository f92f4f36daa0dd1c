"""Many connections to the sidecar, few of them active: the latency of the active ones. Main path: `held`.

``python -m bench.held SOCKET NUMBER`` holds connections until its standard input ends (internal).
"""

import resource
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import psutil  # type: ignore[import-untyped] # ships no types

from bench.contest import Table
from bench.load import Load
from bench.pairs import GENERATOR, STRETCH, Figures, Pair, generate, play_pairs
from bench.run import Run
from bench.server import ROOT, listening
from bench.sidecar import clean_environment, serve

ACTIVE, HELD = 100, 10_000
HOLDERS = 2  # processes, each of which holds its part of the silent connections
CONNECTIONS = HELD + 1_000  # the sidecar's limit
RATE = 5_000  # claims a second, far below what the sidecar carries
TIMES = 3  # the factor of rounds: a pause of the machine in one turn must not decide
LIMIT = 20.0  # seconds for a connection's first answer
OWN_FILES = 100  # of a holder, beside its connections
PING, PONG = b"*1\r\n$4\r\nPING\r\n", b"+PONG\r\n"
ROWS = (f"{ACTIVE} connections, all of them active", f"{HELD:,} connections, {ACTIVE} of them active")
NOTES = (
    f"Two sidecars over one Redis, {RATE:,} claims a second over {ACTIVE} connections to the one or to the other. "
    f"The second one holds {HELD - ACTIVE:,} further connections, which have said PING once and are silent since.",
    "What is due is let go once a millisecond, and its time runs from then.",
)


def held_steps(run: Run) -> int:
    return 2 * TIMES * run.plan.rounds


async def held(run: Run) -> Table:
    """Start two sidecars, fill one with connections, and play the turns."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fastdedup-bench-")))

        async def pair() -> Pair:
            places = folder / "alone.sock", folder / "crowded.sock"
            alone, crowded = (stack.enter_context(_sidecar(run, where)) for where in places)
            stack.enter_context(_crowd(places[1]))
            turns = partial(_turn, run, places[0], alone), partial(_turn, run, places[1], crowded)
            return Pair(ROWS, turns, GENERATOR, "p99_ms")

        rows = await play_pairs(run.plan, "held", [(ROWS, pair)], times=TIMES)
    return Table("held", "The sidecar with connections that are held", "p99_ms", tuple(rows), notes=NOTES)


async def _turn(run: Run, where: Path, sidecar: psutil.Process) -> Figures:
    seconds = STRETCH * run.plan.seconds
    figures = await generate(Load("resp", str(where), seconds, ACTIVE, rate=RATE))
    return {**figures, "resident_mb": sidecar.memory_info().rss / 1_000_000}


@contextmanager
def _sidecar(run: Run, where: Path) -> Iterator[psutil.Process]:
    """Run a sidecar, and yield its process. It raises its limit of open files by itself."""
    config = where.with_suffix(".toml")
    config.write_text(f"[limits]\nconnections = {CONNECTIONS}\n")
    with listening(serve(run, where, "--config", str(config)), where, clean_environment()) as process:
        yield psutil.Process(process.pid)


@contextmanager
def _crowd(where: Path) -> Iterator[None]:
    """Hold the silent connections, in processes of their own, until the block ends."""
    number = (HELD - ACTIVE) // HOLDERS
    command = [sys.executable, "-m", "bench.held", str(where), str(number)]
    pipe = subprocess.PIPE
    holders = [subprocess.Popen(command, stdin=pipe, stdout=pipe, cwd=ROOT) for _ in range(HOLDERS)]
    try:
        if any(each.stdout is None or each.stdout.readline() != b"ready\n" for each in holders):
            raise RuntimeError("connections could not be held; the error is printed above")
        yield
    finally:
        for each in holders:
            each.communicate()  # ends its standard input, and waits for its end


def hold(where: str, number: int) -> None:
    """Open the connections, each with one answer, and keep them until the standard input ends."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, number + OWN_FILES), hard))
    with ExitStack() as stack:
        for _ in range(number):
            connection = stack.enter_context(socket.socket(socket.AF_UNIX))
            connection.settimeout(LIMIT)
            connection.connect(where)
            connection.sendall(PING)
            answer = connection.recv(1000)
            if answer != PONG:
                raise RuntimeError(f"the sidecar answered PING with {answer!r}")
        print("ready", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    hold(sys.argv[1], int(sys.argv[2]))
