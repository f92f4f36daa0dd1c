"""The cost of a gate for a web application: FastAPI under uvicorn, with and without a gate. Main path: `web`.

Each row stands below the row that it is compared with. Every request has a fresh key; all rows use Unix sockets.
"""

import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from bench.load import Load
from bench.pairs import GENERATOR, Figures, MakePair, Pair, generate, play_pairs
from bench.run import Run
from bench.server import listening
from bench.sidecar import clean_environment
from fastdedup.bench import Table

CONNECTIONS = 64
TIMES = 3  # the factor of rounds, with turns half as long: differences of 1 % of a rate must show
ORDERS, OUTSIDE = "/orders", "/outside"
BARE = "FastAPI, POST"
MIDDLEWARE = (BARE, "… with IdempotencyMiddleware")
UNTOUCHED = (f"{BARE} outside", "… with IdempotencyMiddleware, outside its routes")
DEPENDENCY = (f"{BARE} (2)", "… with Claimed()")
ASGI_HEADER = (f"{BARE} (3)", "… with asgi-idempotency-header, Redis")
FASTAPI_PEER = (f"{BARE} (4)", "… with fastapi-idempotency, its memory")
PAIRS = {
    MIDDLEWARE: ("middleware", ORDERS),
    UNTOUCHED: ("middleware", OUTSIDE),
    DEPENDENCY: ("dependency", ORDERS),
    ASGI_HEADER: ("asgi_idempotency_header", ORDERS),
    FASTAPI_PEER: ("fastapi_idempotency", ORDERS),
}
NOTES = (
    f"{CONNECTIONS} connections, one request under way on each, uvicorn with uvloop and httptools, one process.",
    "asgi-idempotency-header keeps no fingerprint, no lease and no owner, and reads before it writes. "
    "fastapi-idempotency offers no Redis: its row asks nobody, and holds for one process.",
)


def web_steps(run: Run) -> int:
    return 2 * TIMES * run.plan.rounds * len(PAIRS)


async def web(run: Run) -> Table:
    """Start a server for each gate, and play pair after pair."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fastdedup-bench-")))
        rows = await play_pairs(run.plan, "web", _pairs(run, folder, stack), times=TIMES)
    return Table("web", "The web: a FastAPI POST with a fresh key", "rate", tuple(rows), notes=NOTES)


def _pairs(run: Run, folder: Path, stack: ExitStack) -> Iterator[tuple[tuple[str, str], MakePair]]:
    """Yield each pair. Servers are started when first needed; a peer that is not installed is a row that says so."""
    places: dict[str, Path] = {}

    def served(gate: str) -> Path:
        if gate not in places:
            place = folder / f"{gate}.sock"
            stack.enter_context(listening(_command(place), place, _environment(run, gate)))
            places[gate] = place
        return places[gate]

    async def pair(names: tuple[str, str], gate: str, path: str) -> Pair:
        turns = [partial(_turn, run, served(each), path) for each in ("bare", gate)]
        return Pair(names, (turns[0], turns[1]), GENERATOR)

    for names, (gate, path) in PAIRS.items():
        yield names, partial(pair, names, gate, path)


async def _turn(run: Run, place: Path, path: str) -> Figures:
    load = Load("web", str(place), run.plan.seconds, CONNECTIONS, path=path)
    answer = await generate(load)
    return {"rate": answer["claims"] / answer["seconds"]}


def _command(place: Path) -> list[str]:
    options = ["--uds", str(place), "--loop", "uvloop", "--http", "httptools", "--ws", "none"]
    options += ["--log-level", "warning", "--no-access-log", "--no-proxy-headers"]
    return [sys.executable, "-m", "uvicorn", "--factory", "bench.webapp:create", *options]


def _environment(run: Run, gate: str) -> dict[str, str]:
    return {
        **clean_environment(),
        "BENCH_GATE": gate,
        "BENCH_URL": run.plan.url,
        "BENCH_NAMESPACE": run.plan.namespace,
    }
