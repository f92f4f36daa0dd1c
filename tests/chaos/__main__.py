"""`python -m tests.chaos`: faults against fastdedup, about 10 minutes of them, and a table of what came of it.

Ends with 1 on any violation, hang or unhandled exception.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from .clock import library
from .crew import Crew
from .faults import FAULTS
from .guard import Guard
from .homes import Homes, Single
from .outage import outage, report
from .plan import plan
from .planted import BUGS
from .run import Result, perform
from .table import table, totals

PROBLEMS_SHOWN = 8


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument(
        "--seed",
        type=int,
        help="replay the plan of this seed: faults and operations (with the same --only, --workers)",
    )
    parser.add_argument(
        "--first", type=int, default=1, help="begin the plan at this run: replays a single one"
    )
    parser.add_argument("--minutes", type=float, default=10.0, help="how long (10)")
    parser.add_argument("--runs", type=int, help="how many faults, whatever it takes")
    parser.add_argument("--quick", action="store_true", help="one minute")
    parser.add_argument("--only", help=f"faults, separated by commas, of: {', '.join(FAULTS)}")
    parser.add_argument("--workers", type=int, default=3, choices=range(2, 5), help="processes (3)")
    parser.add_argument("--out", type=Path, help="write the table to this file, too")
    parser.add_argument("--keep", type=Path, help="keep the histories of bad runs in this folder")
    parser.add_argument(
        "--build", type=Path, help="workers run the fastdedup in this folder, as of a commit without a fix"
    )
    parser.add_argument("--planted", choices=BUGS, help="break the client on purpose; must end with 1")
    parser.add_argument(
        "--outage-minutes", type=float, help="instead: one outage at full load, and its memory"
    )
    options = parser.parse_args()
    options.seed = random.SystemRandom().randrange(1 << 31) if options.seed is None else options.seed
    options.minutes = 1.0 if options.quick else options.minutes
    options.faults = possible() if options.only is None else options.only.split(",")
    if unknown := set(options.faults) - set(FAULTS):
        parser.error(f"no such fault: {', '.join(sorted(unknown))}")
    return options


def possible() -> list[str]:
    """Return the faults that can be made here, and say which cannot."""
    if library() is not None:
        return list(FAULTS)
    left_out = [name for name, fault in FAULTS.items() if fault.home == "clock"]
    print(f"libfaketime is not installed, so this is left out: {', '.join(left_out)}", file=sys.stderr)
    return [name for name in FAULTS if name not in left_out]


async def chaos(options: argparse.Namespace, crew: Crew, homes: Homes, folder: Path) -> list[Result]:
    """Do the runs of the plan, as many as there is time for."""
    results: list[Result] = []
    started = time.monotonic()
    extra: dict[str, Any] = {"planted": options.planted, "keep": options.keep is not None}
    for run in plan(options.seed, options.faults, options.workers):
        if run.number < options.first:
            continue
        if enough(options, len(results), time.monotonic() - started):
            break
        result = await perform(run, homes, crew, folder, extra)
        results.append(result)
        print(line(result), flush=True)
        show_problems(result)
        if result.bad:
            print(f"  again: --seed {options.seed} --first {run.number} --runs 1", flush=True)
    return results


def enough(options: argparse.Namespace, done: int, passed: float) -> bool:
    """True where one more run is one too many."""
    if options.runs is not None:
        return bool(done >= options.runs)
    return bool(passed + passed / max(done, 1) > options.minutes * 60)


def line(result: Result) -> str:
    """One run in one line."""
    run = result.run
    state = "BAD" if result.bad else "ok"
    bad = max(result.to_503, default=0.0) * 1000
    back = max(result.to_recover, default=0.0) * 1000
    return (
        f"{run.number:4} {run.fault:32} {run.seconds:4.2f} s  {result.operations:6,} operations  "
        f"503 in {bad:5.0f} ms  back in {back:5.0f} ms  {state}"
    )


def show_problems(result: Result) -> None:
    problems = [*result.excerpts, *result.hangs[:PROBLEMS_SHOWN], *result.failures[:PROBLEMS_SHOWN]]
    for problem in problems:
        print("  " + problem.replace("\n", "\n  "), flush=True)


async def main(options: argparse.Namespace) -> int:
    """Everything, and what it started is ended whatever happens."""
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, asyncio.current_task().cancel)  # type: ignore[union-attr]
    print(f"seed {options.seed}", flush=True)
    guard = Guard()
    folder = options.keep or Path(tempfile.mkdtemp(prefix="fastdedup-chaos-"))
    folder.mkdir(parents=True, exist_ok=True)
    if options.keep is None:
        guard.folder(folder)
    crew, homes = Crew(options.workers, folder, guard, options.build), Homes(options.workers, guard)
    try:
        await crew.start()
        if options.outage_minutes:
            return await only_outage(options, crew, homes)
        started = time.monotonic()
        results = await chaos(options, crew, homes, folder)
        return conclude(options, results, time.monotonic() - started)
    finally:
        await crew.aclose()
        await homes.aclose()
        guard.close()


async def only_outage(options: argparse.Namespace, crew: Crew, homes: Homes) -> int:
    home = await homes.get("plain")
    assert isinstance(home, Single)
    memories = await outage(options.outage_minutes, crew, home)
    tell(options, report(options.outage_minutes, memories))
    return 0


def conclude(options: argparse.Namespace, results: list[Result], seconds: float) -> int:
    """Print the table; returns the exit code."""
    tell(options, f"{table(results)}\n\n{totals(results, seconds)} Seed {options.seed}.")
    return int(any(result.bad for result in results))


def tell(options: argparse.Namespace, text: str) -> None:
    print(f"\n{text}")
    if options.out is not None:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    try:
        sys.exit(asyncio.run(main(parse())))
    except (KeyboardInterrupt, asyncio.CancelledError):
        sys.exit(130)
