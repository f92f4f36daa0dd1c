"""The sidecar compared with Redis itself, a bare uvicorn, and the library. Main path: `sidecar`.

Each row stands below the row that it is compared with. All rows use Unix sockets and the run's own Redis.
"""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from redis.asyncio import Redis

from bench.contest import LEASE_MS, Table
from bench.load import Load
from bench.pairs import GENERATOR, STRETCH, Figures, MakePair, Pair, Turn, clean, generate, play_pairs
from bench.peers import CLIENTS, output
from bench.run import Run
from bench.server import listening

PIPELINED = 16
BATCH = 100
HOP_CALLERS = 64
PROBE = 5_000  # requests of a short run, by whose rate a turn of redis-benchmark gets its size
RANGE = 1_000_000_000  # the range of __rand_int__
FRESH = (
    0.99  # the share of redis-benchmark's keys that Redis must have afterwards: its random numbers may repeat
)
NOTES = (
    "A real `fastdedup serve` over the run's Redis; 50 connections where a row does not say otherwise.",
    f"The requests by HTTP come from {GENERATOR}: each has a fresh key, and each must win.",
    "At half load: half of what redis-benchmark gets from FD.CLAIM with 64 connections; what is due is let "
    "go once a millisecond, and its time runs from then.",
)


@dataclass(frozen=True, slots=True)
class Places:
    """The sockets of the three servers."""

    redis: Path
    sidecar: Path
    constant: Path


RESP = ("Redis, SET NX PX", "sidecar, FD.CLAIM")
RESP_PIPELINED = (f"Redis, SET NX PX, P = {PIPELINED}", f"sidecar, FD.CLAIM, P = {PIPELINED}")
HTTP = ("uvicorn, a constant", "sidecar, POST /v1/claims")
BATCHED = ("sidecar, a claim a request", f"sidecar, /v1/batch of {BATCH}")
HOP = (f"library, {HOP_CALLERS} callers, half load", f"sidecar, {HOP_CALLERS} connections, half load")
PAIRS = (RESP, RESP_PIPELINED, HTTP, BATCHED, HOP)


def sidecar_steps(run: Run) -> int:
    return 2 * run.plan.rounds * len(PAIRS)


async def sidecar(run: Run) -> Table:
    """Start the servers, and play pair after pair."""
    with _servers(run) as places:
        rows = await play_pairs(run.plan, "sidecar", _Bench(run, places).pairs())
    return Table("sidecar", "The sidecar: claims over its socket", "rate", tuple(rows), notes=NOTES)


@contextmanager
def _servers(run: Run) -> Iterator[Places]:
    with tempfile.TemporaryDirectory(prefix="fastdedup-bench-") as folder:
        redis = Path(urlsplit(run.plan.url).path)
        places = Places(redis, Path(folder) / "fastdedup.sock", Path(folder) / "constant.sock")
        bare = [
            sys.executable,
            "-m",
            "uvicorn",
            "bench.constant:app",
            "--uds",
            str(places.constant),
            "--loop",
            "uvloop",
        ]
        bare += ["--http", "httptools", "--ws", "none", "--lifespan", "off", "--log-level", "warning"]
        bare += ["--no-access-log", "--no-server-header", "--no-proxy-headers"]
        clean = clean_environment()
        with (
            listening(serve(run, places.sidecar), places.sidecar, clean),
            listening(bare, places.constant, clean),
        ):
            yield places


def serve(run: Run, where: Path, *more: str) -> list[str]:
    """Return the command that starts a sidecar over the run's Redis."""
    command = [sys.executable, "-m", "fastdedup", "serve", "--url", run.plan.url, "--socket", str(where)]
    command += ["--namespace", run.plan.namespace, "--lease", str(LEASE_MS / 1000), "--ttl", "60"]
    return [*command, "--timeout", "5", "--grace", "1", "--log-level", "warning", *more]


def clean_environment() -> dict[str, str]:
    """Return the environment without settings of a sidecar."""
    return {name: value for name, value in os.environ.items() if not name.startswith("FASTDEDUP_")}


class _Bench:
    """All pairs, over servers that run already."""

    def __init__(self, run: Run, places: Places) -> None:
        self._plan = run.plan
        self._places = places
        self._seconds = STRETCH * run.plan.seconds

    def pairs(self) -> Iterator[tuple[tuple[str, str], MakePair]]:
        """Yield each pair's names and the function that makes it, which may fail."""
        yield RESP, partial(self._resp, RESP, 1)
        yield RESP_PIPELINED, partial(self._resp, RESP_PIPELINED, PIPELINED)
        yield HTTP, self._http
        yield BATCHED, self._batched
        yield HOP, self._hop

    async def _resp(self, names: tuple[str, str], pipelined: int) -> Pair:
        shared = ["-c", str(CLIENTS), "-P", str(pipelined)]
        set_nx = ["SET", "key:__rand_int__", "v", "NX", "PX", str(LEASE_MS)]
        asked = ((self._places.redis, set_nx), (self._places.sidecar, ["FD.CLAIM", "key:__rand_int__"]))
        turns = [await self._redis_benchmark(where, shared, command) for where, command in asked]
        return Pair(names, (turns[0], turns[1]), "redis-benchmark")

    async def _redis_benchmark(self, where: Path, shared: list[str], command: list[str]) -> Turn:
        """Play a turn; a short run before it gives the number of its requests."""

        async def play(requests: int) -> Figures:
            size = ["-n", str(requests), "-r", str(RANGE), "--csv"]
            text = await output(["redis-benchmark", "-s", str(where), *shared, *size, *command])
            return {"rate": redis_benchmark_rate(text)}

        async def turn() -> Figures:
            figures = await play(requests)
            async with Redis.from_url(self._plan.url) as client:
                keys = await client.dbsize()
            if keys < FRESH * requests:
                raise RuntimeError(f"{keys} keys after {requests} claims")
            return figures

        await play(PROBE)
        requests = int((await play(4 * PROBE))["rate"] * self._seconds)
        return turn

    async def _http(self) -> Pair:
        places = self._places
        return Pair(HTTP, (self._claims(places.constant), self._claims(places.sidecar)), GENERATOR)

    async def _batched(self) -> Pair:
        where = self._places.sidecar
        return Pair(BATCHED, (self._claims(where), self._claims(where, BATCH)), GENERATOR)

    def _claims(self, where: Path, batch: int = 0) -> Turn:
        async def turn() -> Figures:
            answer = await generate(Load("http", str(where), self._seconds, CLIENTS, batch))
            return {"rate": answer["claims"] / answer["seconds"]}

        return turn

    async def _hop(self) -> Pair:
        shared = ["-c", str(HOP_CALLERS)]
        probe = await self._redis_benchmark(self._places.sidecar, shared, ["FD.CLAIM", "key:__rand_int__"])
        await clean(self._plan)
        rate = (await probe())["rate"] / 2
        at_half = partial(Load, seconds=self._seconds, callers=HOP_CALLERS, rate=rate)
        library = at_half("library", self._plan.url, namespace=self._plan.namespace)
        through = at_half("resp", str(self._places.sidecar))
        return Pair(HOP, (partial(generate, library), partial(generate, through)), GENERATOR, "p99_ms")


def redis_benchmark_rate(text: str) -> float:
    """Return the requests in a second from the output of ``redis-benchmark --csv``."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    if len(lines) < 2:
        raise ValueError(f"redis-benchmark gave no rate: {text[-60:]!r}")
    return float(lines[-1].split('","')[1])
