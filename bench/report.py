"""The report of a run: facts about the machine, the tables, and their forms as JSON and Markdown."""

import os
import platform
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import orjson
from redis.asyncio import Redis

from bench.contest import GC_THRESHOLDS, Plan, Row, Table, cells
from fastdedup.compiled import build

CODE = Path(__file__).parents[1]
PACKAGES = (
    *("fastdedup", "redis", "hiredis", "uvloop", "orjson", "uvicorn", "httptools"),
    *("coredis", "valkey-glide", "idempotency-kit", "idemkit", "aws-lambda-powertools"),
)
CAVEATS = (
    "Compare ratios within this run. Absolute figures belong to this machine, and vary from run to run.",
    "Client and server share the machine's cores; on two cores redis-benchmark, redis-server and any threads of a "
    "peer compete.",
    "uvloop, one process; one connection where a row does not say otherwise. A row's note names what was best of "
    "those tried: pool sizes, threads, pipelining depths.",
    "A lone caller mostly waits for two wake-ups by the kernel. On a virtual machine they take turns at being fast "
    "and slow, for seconds at a time: its milliseconds vary by a factor of two, its ratios less.",
    "Callers are closed loops: each has one operation under way and starts the next when it is answered.",
    "fastdedup's claims have an owner, a fence and a lease that the server checks; SET NX PX has none of them. "
    "It is the default Dedup but for expiry and deadline; its local cache of known duplicates is on but where a "
    "row says so.",
    f"Every contestant has the benefit of gc.freeze() and gc.set_threshold{GC_THRESHOLDS}, but the row that says "
    "otherwise, which pays for all that this process has imported.",
    "valkey-glide knows no Unix socket and is asked over loopback TCP; its CPU includes its threads.",
    "aws-lambda-powertools blocks and is asked from threads: for the rate as many as suit it best, for the "
    "latency one a caller.",
    "The sidecar's rows have a client, the sidecar and Redis at work at once: on two cores they compete, while "
    "Redis itself, or a bare uvicorn, shares them with its client alone.",
    "redis-benchmark waits for no single answer: it is a ceiling, not a client. Batches by hand answer no single "
    "caller either, and check nothing but SET NX.",
)


@dataclass(frozen=True, slots=True)
class Report:
    """The contents of the files in results/."""

    machine: Mapping[str, str]
    settings: Mapping[str, Any]
    tables: tuple[Table, ...]

    def table(self, name: str) -> Table:
        """Return a scenario's table; an empty table where it was not played."""
        return next((table for table in self.tables if table.name == name), Table(name, name, "", ()))


async def machine(plan: Plan) -> dict[str, str]:
    """Return the facts that figures depend on, without names of hosts or folders."""
    async with Redis.from_url(plan.url) as client:
        server = await client.info("server") | await client.info("memory")
    return (
        {
            "cores": str(
                len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
            ),
            "cpu": _cpu_model(),
            "system": f"{platform.system()} {platform.release()} {platform.machine()}",
            "python": f"{platform.python_implementation()} {platform.python_version()}",
            "server": f"Redis {server['redis_version']}, {server.get('mem_allocator', 'unknown allocator')}",
            "transport": "Unix socket, private server" if plan.private else "a server of the user's",
        }
        | {package: _version(package) for package in PACKAGES}
        | {"fastdedup": f"{_version('fastdedup')}, {build()}"}
        | {"date": datetime.now(UTC).date().isoformat(), "commit": _commit()}
    )


def _commit() -> str:
    """Return the commit that is measured; "" outside of a clone, or if its code was changed after it."""

    def git(*arguments: str) -> str:
        command = ["git", *arguments]
        done = subprocess.run(command, cwd=CODE, capture_output=True, text=True, check=False)
        return "changed" if done.returncode else done.stdout.strip()

    return "" if git("status", "--porcelain", "fastdedup", "lua") else git("rev-parse", "--short=8", "HEAD")


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    found = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(found, platform.processor() or "unknown")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def to_json(report: Report) -> bytes:
    document = asdict(report) | {"caveats": CAVEATS}
    return orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def from_json(data: bytes) -> Report:
    document = orjson.loads(data)
    tables = tuple(
        Table(**(table | {"rows": tuple(Row(**row) for row in table["rows"])}))
        for table in document["tables"]
    )
    return Report(document["machine"], document["settings"], tables)


def to_markdown(report: Report, headings: Sequence[str], verdicts: Sequence[Sequence[str]]) -> str:
    parts = ["# fastdedup beside its peers", "One run; every ratio is within it."]
    parts += ["## Targets", grid(headings, verdicts, texts=2)]
    for table in report.tables:
        parts += [f"## {table.title}", grid(*cells(table)), _list(table.notes)]
    parts += ["## Machine", _list(f"{name}: {fact}" for name, fact in report.machine.items())]
    parts += ["## Settings", _list(f"{name}: {fact}" for name, fact in report.settings.items())]
    parts += ["## Caveats", _list(CAVEATS)]
    return "\n\n".join(filter(None, parts)) + "\n"


def _list(items: Iterable[str]) -> str:
    return "\n".join(f"- {item}" for item in items)


def grid(headings: Sequence[str], rows: Sequence[Sequence[str]], *, texts: int = 1) -> str:
    """Return a Markdown table: the first `texts` columns and the last to the left, the figures to the right."""
    rule = [*["---"] * texts, *["---:"] * (len(headings) - 1 - texts), "---"]
    return "\n".join(f"| {' | '.join(line)} |" for line in (headings, rule, *rows))
