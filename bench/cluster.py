"""A Cluster of three primaries beside a single Redis: what a fresh claim costs servers and client.

`cluster` is the main path. Both are asked over loopback TCP, and take turns: the same number of claims in each turn.
"""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial

from redis.asyncio import Redis

from bench.contest import Ops, Row, Setting, Table, collector, drive, fresh_keys, ours, reason
from bench.pairs import ABOVE, Figures, MakePair, Pair, play_pairs
from bench.run import Run
from bench.server import HOST, cluster_url, loopback_port, private_cluster, private_server

PRIMARIES = 3
CALLERS = (1000, 64)
TIMES = 2  # the factor of rounds: differences of a tenth must show
PROBE = 0.2  # the length of a warm-up, as a share of a turn
LEAST = 2_000  # claims of a warm-up
SERVER, CLIENT = f"{ABOVE}, server CPU", f"{ABOVE}, client CPU"
CARRYING = (1, PRIMARIES, 6, 12)  # primaries
NOTES = (
    f"One client process, loopback TCP. The Cluster has {PRIMARIES} primaries and no replicas. A turn has as many "
    "claims on the Cluster as on the single Redis.",
    "CPU is process time for each claim. `server CPU` is summed over all nodes. All processes of a turn share the "
    "machine's cores, so more nodes cannot raise the rate here.",
    "Calculated rows are not measured. They divide the time of a core by the server CPU of a claim, measured with "
    f"{CALLERS[0]} callers: on the single Redis for 1 primary, on the Cluster for {PRIMARIES} and more. They assume "
    "that each primary has a core of its own, and that client processes have the cores in the note. They also "
    "assume as many callers for each primary as here. With fewer callers batches are smaller, and a claim costs "
    "more.",
)


def single(callers: int) -> str:
    """Return the name of the single Redis's row."""
    return f"1 Redis, {callers} callers"


def three(callers: int) -> str:
    """Return the name of the Cluster's row."""
    return f"Cluster of {PRIMARIES} primaries, {callers} callers"


def calculated(primaries: int) -> str:
    """Return the name of a calculated row."""
    return f"calculated: {primaries} primar{'y' if primaries == 1 else 'ies'}"


def cluster_steps(run: Run) -> int:
    return 2 * TIMES * run.plan.rounds * len(CALLERS)


async def cluster(run: Run) -> Table:
    """Play the turns, and calculate what more primaries carry. A Cluster that fails is a row that says why."""
    try:
        measured = await _measured(run)
    except Exception as error:  # noqa: BLE001 # its servers may fail in any way; the other tables stand
        measured = [Row("Cluster", note=f"n/a: {reason(error)}")]
    table = Table(
        "cluster", "A Cluster beside a single Redis: fresh claims", "rate", tuple(measured), notes=NOTES
    )
    return replace(table, rows=(*measured, *(carries(table, primaries) for primaries in CARRYING)))


async def _measured(run: Run) -> list[Row]:
    plan = replace(run.plan, clean=None)  # each turn empties its own servers, which are not the run's
    with private_server() as url, private_cluster(PRIMARIES) as nodes:
        async with (
            loopback_port(url) as port,
            _side(run, f"redis://{HOST}:{port}", [url]) as alone,
            _side(run, cluster_url(nodes), [node.socket for node in nodes]) as several,
        ):
            return await play_pairs(plan, "cluster", _pairs(run, (alone, several)), times=TIMES)


def carries(measured: Table, primaries: int) -> Row:
    """Return the calculated row of what `primaries` carry if each has a core of its own."""
    callers = CALLERS[0]
    costs = measured.row(single(callers) if primaries == 1 else three(callers)).figures
    if not costs:
        return Row(calculated(primaries), note="n/a: the CPU of a claim was not measured")
    claims = primaries / costs["server_us"]  # in a microsecond: each core then gives a microsecond of CPU
    cores = claims * costs["client_us"]
    return Row(calculated(primaries), {"calculated": claims * 1e6}, note=f"from {cores:.1f} cores of clients")


@dataclass(frozen=True, slots=True)
class _Side:
    """The single Redis, or the Cluster. `servers`: a client of each server, which asks it for its CPU."""

    ops: Ops
    servers: Sequence[Redis]
    namespace: str

    async def probe(self, callers: int, seconds: float) -> float:
        """Connect, load the scripts, and return the rate of a short turn."""
        first = await self.turn(callers, LEAST)
        return (await self.turn(callers, max(LEAST, int(first["rate"] * seconds))))["rate"]

    async def turn(self, callers: int, count: int) -> Figures:
        """Claim fresh keys; return the rate, and the process time of servers and client for each claim."""
        for server in self.servers:
            await server.flushall()
        keys = fresh_keys(self.namespace, count)  # made before the clock starts
        with collector(tuned=True):
            before = await self._server_seconds()
            turn = await drive(self.ops, "claim", keys, callers)
            seconds = await self._server_seconds() - before
        assert turn.cpu is not None
        return {
            "rate": turn.rate,
            "server_us": seconds / count * 1e6,
            "client_us": turn.cpu / count * 1e6,
        }

    async def _server_seconds(self) -> float:
        found = [await server.info("cpu") for server in self.servers]
        return sum(float(each["used_cpu_user"]) + float(each["used_cpu_sys"]) for each in found)


@asynccontextmanager
async def _side(run: Run, url: str, sockets: Sequence[str]) -> AsyncIterator[_Side]:
    namespace = run.plan.namespace
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(Redis.from_url(each)) for each in sockets]
        ops = await stack.enter_async_context(ours(Setting(url, namespace, CALLERS[0])))
        yield _Side(ops, servers, namespace)


def _pairs(run: Run, sides: tuple[_Side, _Side]) -> Iterator[tuple[tuple[str, str], MakePair]]:
    for callers in CALLERS:
        names = single(callers), three(callers)
        yield names, partial(_pair, run, sides, names, callers)


async def _pair(run: Run, sides: tuple[_Side, _Side], names: tuple[str, str], callers: int) -> Pair:
    """Warm both up, and size a turn by the rate of the single Redis."""
    rate, _ = [await side.probe(callers, PROBE * run.plan.seconds) for side in sides]
    count = max(callers, min(run.plan.max_ops, int(rate * run.plan.seconds)))
    turns = partial(sides[0].turn, callers, count), partial(sides[1].turn, callers, count)
    return Pair(names, turns, f"{count:,} claims a turn", also={"server_us": SERVER, "client_us": CLIENT})
