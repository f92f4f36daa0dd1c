"""``python -m bench`` measures everything; ``python -m bench check`` prints which targets are met."""

import asyncio
import resource
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click
import uvloop
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table as Grid

from bench.contest import GC_THRESHOLDS, Plan, cells
from bench.report import Report, from_json, machine, to_json, to_markdown
from bench.run import Job, Run
from bench.scenarios import JOBS
from bench.server import flush, private_server
from bench.targets import HEADINGS, SHORT, verdicts

RESULTS = Path(__file__).parent / "results"
SIZES = {
    # seconds of a turn, live keys that growth goes up to, claims of the soak, ids of the ledger, callers of the sweep
    "full": (0.5, 10_000_000, 10_000_000, 1_000_000, (1, 4, 16, 64, 256, 1000, 2000)),
    "quick": (0.1, 200_000, 500_000, 100_000, (1, 256)),
}
PRIVATE_MAX_OPS = 1_000_000
FILES = 4096  # files open at once: a pool may have a connection for each of 2000 callers
LIVE_KEYS, CLAIMS, IDS = (
    "live keys at most",
    "claims of the soak",
    "ids of the ledger",
)  # settings in a report
Command = Callable[..., Any]


def run_options(command: Command) -> Command:
    """Add the options that both commands have."""
    options = [
        click.option("--quick", is_flag=True, help="Short turns and small sizes: a trial."),
        click.option(
            "--only", multiple=True, type=click.Choice([job.name for job in JOBS]), help="Repeatable."
        ),
        click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True),
        click.option("--url", help="Your own Redis; the keys of the run expire within minutes."),
        click.option(
            "--live-keys", type=click.IntRange(min=20_000), help="Live keys of growth at most: 10 million."
        ),
        click.option("--claims", type=click.IntRange(min=200_000), help="Claims of the soak: 10 million."),
        click.option("--ids", type=click.IntRange(min=20_000), help="Ids of the ledger: 1 million."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


@click.group(invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@run_options
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="The folder to write to.")
@click.pass_context
def main(ctx: click.Context, /, out: Path | None, **options: Any) -> None:
    """Measure fastdedup and its peers in one run.

    A full run writes bench/results. A run that an option shortens only prints, unless --out is given.
    """
    if ctx.invoked_subcommand:
        return
    report = _measured(**options)
    _show(report)
    shortened = any(options[name] for name in ("quick", "only", "url", "live_keys", "claims", "ids"))
    if out or not shortened:
        _write(report, out or RESULTS)


@main.command()
@run_options
@click.option(
    "--from",
    "source",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The report of an earlier run.",
)
def check(source: Path | None, **options: Any) -> None:
    """Print each target with its figure; exit with 1 if a target is not met."""
    report = from_json(source.read_bytes()) if source else _measured(**options)
    lines = verdicts(report)
    _print("Targets", HEADINGS, lines, texts=2)
    sizes = dict(zip((LIVE_KEYS, CLAIMS, IDS), SIZES["full"][1:4], strict=True))
    told = {
        name: report.settings.get(name, size) for name, size in sizes.items()
    }  # older reports know no ids
    if any(told[name] < size for name, size in sizes.items()):
        click.echo(
            f"Shortened: {told[LIVE_KEYS]:,} live keys, {told[CLAIMS]:,} claims, {told[IDS]:,} ids of the ledger."
        )
    if any(line[-1] == SHORT for line in lines):
        raise SystemExit(1)


def _measured(
    *,
    quick: bool,
    only: Sequence[str],
    rounds: int,
    url: str | None,
    live_keys: int | None,
    claims: int | None,
    ids: int | None,
) -> Report:
    seconds, most_keys, most_claims, most_ids, sweep = SIZES["quick" if quick else "full"]
    with nullcontext(url) if url else private_server() as place:
        plan = Plan(place, rounds, seconds)
        if not url:
            plan = replace(plan, private=True, max_ops=PRIVATE_MAX_OPS, clean=partial(flush, place))
        run = Run(plan, live_keys or most_keys, claims or most_claims, sweep, ids or most_ids)
        jobs = [
            job for job in JOBS if (not only or job.name in only) and (plan.private or not job.needs_private)
        ]
        try:
            return uvloop.run(_play(run, jobs))
        except asyncio.CancelledError:
            raise click.Abort from None


async def _play(run: Run, jobs: Sequence[Job]) -> Report:
    _let_signals_stop_us()
    _allow_files()
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True)) as progress:
        bar = progress.add_task("", total=sum(job.steps(run) for job in jobs))

        def on_turn(label: str) -> None:
            progress.update(bar, advance=1, description=label)

        run = replace(run, plan=replace(run.plan, on_turn=on_turn))
        began, facts = time.monotonic(), await machine(run.plan)
        tables = tuple([await job.play(run) for job in jobs])
        return Report(facts, _settings(run) | {"seconds in all": round(time.monotonic() - began)}, tables)


def _let_signals_stop_us() -> None:
    """Let SIGTERM, too, unwind the blocks that stop servers and workers."""
    task = asyncio.current_task()
    assert task
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)


def _allow_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))


def _settings(run: Run) -> dict[str, Any]:
    return {
        "rounds": run.plan.rounds,
        "seconds of a turn": run.plan.seconds,
        LIVE_KEYS: run.live_keys,
        CLAIMS: run.claims,
        IDS: run.ids,
        "records of the memory mean": run.records,
        "gc thresholds": str(GC_THRESHOLDS),
    }


def _write(report: Report, folder: Path) -> None:
    from bench.plots import draw  # after the run, because its imports would slow the garbage collector

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "latest.json").write_bytes(to_json(report))
    (folder / "latest.md").write_text(to_markdown(report, HEADINGS, verdicts(report)))
    draw(report, folder)


def _show(report: Report) -> None:
    for table in report.tables:
        _print(table.title, *cells(table))
    played = {table.name for table in report.tables}
    if played == {job.name for job in JOBS}:
        _print("Targets", HEADINGS, verdicts(report), texts=2)


def _print(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]], *, texts: int = 1) -> None:
    """Print a table. Its first `texts` columns and its last column are text, the others figures."""
    table = Grid(title=title, title_justify="left")
    for i, heading in enumerate(headings):
        table.add_column(heading, justify="right" if texts <= i < len(headings) - 1 else "left")
    for row in rows:
        table.add_row(*row)
    Console().print(table)


if __name__ == "__main__":
    main()
