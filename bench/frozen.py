"""The healthy nodes of a Cluster while another node is frozen: the latency of claims that come at a steady rate.

`frozen` is the main path.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial

from redis.crc import key_slot

from bench.contest import LEASE_MS, ClaimedTwiceError, Row, Table, collector, fresh_keys, reason
from bench.pairs import STRETCH, Figures, Pair, play_pairs
from bench.run import Run
from bench.server import Primary, cluster_url, private_cluster
from fastdedup import Dedup, UnavailableError
from fastdedup.kernel.keyspace import Keyspace, Kind

PRIMARIES = 3
RATE = 5_000  # claims a second, far below what the servers carry
TIMES = 2  # the factor of rounds: a pause of the machine in one turn must not decide
TICK = 0.001  # seconds
THAW_LIMIT = 10.0  # seconds; a node that goes on must answer within this time
HEALTHY = ("healthy nodes", "healthy nodes, another node is frozen")
NOTES = (
    f"A Cluster of {PRIMARIES} primaries, {RATE:,} claims a second of all nodes' keys. Each claim starts on time, "
    "whether earlier ones are answered or not. The timeout is the default.",
    "In the second row a node is frozen (SIGSTOP) for the whole turn. Both rows have only the claims on the other "
    "nodes. `refused` is the number of these that got no answer; their time counts.",
    "The time of a claim runs from the moment at which it was due. The loop's timer has a resolution of 1 ms.",
)

Won = Callable[[str], Awaitable[bool]]  # raises UnavailableError where the claim is refused


def frozen_steps(run: Run) -> int:
    return 2 * TIMES * run.plan.rounds


async def frozen(run: Run) -> Table:
    """Start a Cluster and play the turns. A Cluster that fails is a row that says why."""
    try:
        rows = await _measured(run)
    except Exception as error:  # noqa: BLE001 # its servers may fail in any way; the other tables stand
        rows = [Row(HEALTHY[1], note=f"n/a: {reason(error)}")]
    return Table(
        "frozen", "A Cluster with a frozen node: claims on the others", "p99_ms", tuple(rows), notes=NOTES
    )


async def _measured(run: Run) -> list[Row]:
    plan = replace(run.plan, clean=None)  # the servers are not the run's
    with private_cluster(PRIMARIES) as nodes:
        async with Dedup(
            cluster_url(nodes), namespace=plan.namespace, lease=LEASE_MS / 1000, ttl=60.0
        ) as dedup:
            neighbours = Neighbours(dedup, plan.namespace, nodes[0], STRETCH * plan.seconds)
            return await play_pairs(plan, "frozen", [(HEALTHY, neighbours.pair)], times=TIMES)


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a claim. `seconds` run from the moment at which the claim was due."""

    key: str
    seconds: float
    refused: bool


@dataclass(frozen=True, slots=True)
class Neighbours:
    """A Cluster whose first node is frozen in every second turn."""

    dedup: Dedup
    namespace: str
    node: Primary  # that is frozen
    seconds: float  # of a turn

    async def pair(self) -> Pair:
        """Warm up, and return both turns."""
        await self.turn(freeze=False)
        turns = partial(self.turn, freeze=False), partial(self.turn, freeze=True)
        return Pair(HEALTHY, turns, f"{RATE:,} claims a second", "p99_ms")

    async def turn(self, *, freeze: bool) -> Figures:
        """Claim keys of all nodes at the rate; return the figures of the healthy nodes' claims."""
        keys = fresh_keys(self.namespace, int(RATE * self.seconds))
        with collector(tuned=True), self.node.frozen() if freeze else nullcontext():
            answers = await steady(self._won, keys, RATE)
        if freeze:
            await self._thawed()
        held = [answer for answer in answers if self._is_held(answer.key)]
        if freeze and not all(answer.refused for answer in held):
            raise RuntimeError("the frozen node has answered")
        return healthy_figures([answer for answer in answers if not self._is_held(answer.key)])

    async def _won(self, key: str) -> bool:
        return (await self.dedup.claim(key)).acquired

    def _is_held(self, key: str) -> bool:
        """Return whether the node that is frozen holds the key."""
        return key_slot(Keyspace(self.namespace, Kind.CLAIM).wire(key)) in self.node.slots

    async def _thawed(self) -> None:
        """Wait until the node that was frozen answers again."""
        key = next(filter(self._is_held, fresh_keys(self.namespace, 1000)))
        async with asyncio.timeout(THAW_LIMIT):
            while True:
                try:
                    await self.dedup.claim(key)
                    return
                except UnavailableError:
                    await asyncio.sleep(10 * TICK)


async def steady(won: Won, keys: Sequence[str], rate: float) -> list[Answer]:
    """Claim the keys at a steady rate, whether earlier claims are answered or not.

    Once a millisecond, the resolution of a loop's timer, the claims that are due are started.
    """
    answers, now = [], time.perf_counter

    async def one(key: str, due: float) -> None:
        refused = False
        try:
            if not await won(key):
                raise ClaimedTwiceError(key)
        except UnavailableError:
            refused = True
        answers.append(Answer(key, now() - due, refused))

    began, started = now(), 0
    async with asyncio.TaskGroup() as group:
        while started < len(keys):
            await asyncio.sleep(TICK)
            due = min(len(keys), int((now() - began) * rate))
            for number in range(started, due):
                group.create_task(one(keys[number], began + number / rate))
            started = due
    return answers


def healthy_figures(answers: Sequence[Answer]) -> Figures:
    """Return the latency of claims, refused ones included, and how many were refused."""
    times = sorted(answer.seconds * 1000 for answer in answers)
    p50, p99 = (times[int(len(times) * quantile)] for quantile in (0.5, 0.99))
    return {"p50_ms": p50, "p99_ms": p99, "refused": sum(answer.refused for answer in answers)}
