"""The cost of a gate for a web application: FastAPI under uvicorn, with and without a gate. Main path: `web`.

Each row stands below the row that it is compared with. Every request has a fresh key; all rows use Unix sockets.
"""

import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.contest import Table
from bench.load import Load
from bench.pairs import GENERATOR, Figures, MakePair, Pair, generate, play_pairs
from bench.run import Run
from bench.server import listening
from bench.sidecar import clean_environment

CONNECTIONS = 64
TIMES = 3  # the factor of rounds, with turns half as long: differences of 1 % of a rate must show
CPU = "CPU of the row above"  # a ratio
ORDERS, OUTSIDE = "/orders", "/outside"
BARE = "FastAPI, POST"
MIDDLEWARE = (BARE, "… with IdempotencyMiddleware")
DEFAULT_GC = (f"{BARE}, default gc", "… with IdempotencyMiddleware, default gc")
UNTOUCHED = (f"{BARE} outside", "… with IdempotencyMiddleware, outside its routes")
PASS_THROUGH = (f"{BARE} outside (2)", "… with a middleware that does nothing")
DEPENDENCY = (f"{BARE} (2)", "… with Claimed()")
REDIS_PY = (f"{BARE} (5)", "… by hand: redis-py, SET NX PX before, SET after")
ASGI_HEADER = (f"{BARE} (3)", "… with asgi-idempotency-header, Redis")
FASTAPI_PEER = (f"{BARE} (4)", "… with fastapi-idempotency, its memory")
IDEMKIT_WEB = (f"{BARE} (6)", "… with idemkit's IdempotencyMiddleware, Redis")
PAIRS = {
    MIDDLEWARE: ("middleware", ORDERS),
    DEFAULT_GC: ("middleware", ORDERS),
    UNTOUCHED: ("middleware", OUTSIDE),
    PASS_THROUGH: ("pass_through", OUTSIDE),
    DEPENDENCY: ("dependency", ORDERS),
    REDIS_PY: ("by_hand", ORDERS),
    ASGI_HEADER: ("asgi_idempotency_header", ORDERS),
    FASTAPI_PEER: ("fastapi_idempotency", ORDERS),
    IDEMKIT_WEB: ("idemkit", ORDERS),
}
NOTES = (
    "The servers have the collector's thresholds that every contestant has, but for the rows that say otherwise: "
    "while their responses are stored, 64 requests keep more objects than Python's own threshold allows.",
    f"{CONNECTIONS} connections, one request under way on each, uvicorn with uvloop and httptools, one process.",
    "CPU is the server's, for a request. A middleware that does nothing is the least that any middleware costs.",
    "By hand: the least that a middleware with redis-py does. It keeps no fingerprint, no owner and no headers, and "
    "replays nothing: it shows how much of the cost is two round trips to Redis, without any rule.",
    "asgi-idempotency-header keeps no fingerprint, no lease and no owner, and reads before it writes. "
    "fastapi-idempotency offers no Redis: its row asks nobody, and holds for one process. "
    "idemkit keeps a fingerprint, a lease that it does not renew, and an owner.",
)


@dataclass(frozen=True, slots=True)
class Server:
    """A uvicorn server: its socket and its process."""

    place: Path
    pid: int

    def cpu(self) -> float:
        """Return the seconds of CPU time that its one thread has used."""
        return int(Path(f"/proc/{self.pid}/schedstat").read_text().split()[0]) / 1e9


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
    servers: dict[tuple[str, bool], Server] = {}

    def served(gate: str, tuned: bool) -> Server:
        if (gate, tuned) not in servers:
            place = folder / f"{gate}{tuned:d}.sock"
            process = stack.enter_context(listening(command(place), place, _environment(run, gate, tuned)))
            servers[gate, tuned] = Server(place, process.pid)
        return servers[gate, tuned]

    async def pair(names: tuple[str, str], gate: str, path: str) -> Pair:
        turns = [partial(turn, run, served(each, names != DEFAULT_GC), path) for each in ("bare", gate)]
        return Pair(names, (turns[0], turns[1]), GENERATOR, also={"cpu_us": CPU})

    for names, (gate, path) in PAIRS.items():
        yield names, partial(pair, names, gate, path)


async def turn(run: Run, server: Server, path: str) -> Figures:
    """Ask a server as fast as it answers; return the rate, and the server's CPU time for a request."""
    load = Load("web", str(server.place), run.plan.seconds, CONNECTIONS, path=path)
    began = server.cpu()
    answer = await generate(load)
    spent = server.cpu() - began
    return {"rate": answer["claims"] / answer["seconds"], "cpu_us": 1e6 * spent / answer["answered"]}


def command(place: Path, factory: str = "bench.webapp:create") -> list[str]:
    """Return the command of a uvicorn server at a socket."""
    # uvicorn puts its --app-dir, the working directory by default, before all other places of modules. That is the
    # checkout, so the servers would run its interpreted package in place of the build that is measured.
    options = ["--app-dir", str(place.parent)]
    options += ["--uds", str(place), "--loop", "uvloop", "--http", "httptools", "--ws", "none"]
    options += ["--log-level", "warning", "--no-access-log", "--no-proxy-headers"]
    return [sys.executable, "-m", "uvicorn", "--factory", factory, *options]


def _environment(run: Run, gate: str, tuned: bool) -> dict[str, str]:
    collector = {} if tuned else {"BENCH_DEFAULT_GC": "1"}
    return {
        **clean_environment(),
        **collector,
        "BENCH_GATE": gate,
        "BENCH_URL": run.plan.url,
        "BENCH_NAMESPACE": run.plan.namespace,
    }
