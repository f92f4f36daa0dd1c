"""The scenarios, and the rounds in which all contestants play them; `contest` is the main path."""

import asyncio
import contextlib
from array import array
from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from statistics import median

from redis import RedisError

from fastdedup.cli.bench import Row, collector, fresh_keys, reason

from .model import Contestant, Ops, Plan, Scenario, Setting, Spent, Table, Turn
from .turn import drive

PROBE = 0.2  # the length of a warm-up, as a share of a turn
P99 = ", p99"  # follows the baseline's name where the ratio is of p99_ms
CURVE = (*(i / 100 for i in range(1, 100)), 0.995, 0.999)  # the quantiles of a latency curve


SCENARIOS = (
    Scenario("fresh-1000", "Fresh claims, 1000 callers", "claim", 1000),
    Scenario("fresh-64", "Fresh claims, 64 callers", "claim", 64, latency=True),
    Scenario("alone", "One caller alone", "claim", 1, main="p50_ms", latency=True, slices=3),
    Scenario("cycle-64", "Claim, then complete, 64 callers", "cycle", 64),
)


def turns(scenario: Scenario, contestants: Sequence[Contestant], rounds: int) -> int:
    """Return how often `contest` calls `Plan.on_turn`."""
    return len(contestants) * (1 + rounds * scenario.slices * len(scenario.modes))


async def contest(
    plan: Plan, scenario: Scenario, contestants: Sequence[Contestant], baselines: Sequence[str]
) -> Table:
    """Play one scenario: warm up all contestants, then play the rounds; each starts with another contestant.

    A contestant that fails gets a row without figures, which says why.
    """
    async with AsyncExitStack() as stack:
        players = [_Player(plan, scenario, contestant) for contestant in contestants]
        for player in players:
            stack.push_async_callback(player.end)
            await player.warm_up()
        for number in range(plan.rounds * scenario.slices):
            shift = number % len(players)
            for player in players[shift:] + players[:shift]:
                await player.play()
        return Table(
            scenario.name,
            scenario.title,
            scenario.main,
            tuple(
                player.row([each for each in players if each.contestant.name in baselines])
                for player in players
            ),
            {player.contestant.name: player.curve() for player in players if player.spent},
        )


@dataclass(slots=True)
class _Player:
    """A contestant in a scenario, and its figures so far."""

    plan: Plan
    scenario: Scenario
    contestant: Contestant
    ops: Ops = field(default_factory=Ops)
    width: int = 1
    count: int = 0
    failure: str = ""
    turns: list[Turn] = field(default_factory=list)
    spent: list[Sequence[int]] = field(default_factory=list)  # for each round its latencies in ns, sorted
    connected: AsyncExitStack = field(default_factory=AsyncExitStack)  # ends its connections

    async def warm_up(self) -> None:
        """Find the best width, connect, and set the size of a turn by the rate of a short turn."""
        self._tell()
        with self._surviving():
            self.width = await self._best_width()
            self.ops = await self.connected.enter_async_context(self._connect(self.width))
            rate = await self._probe(self.ops)
            count = int(rate * self.plan.seconds / self.scenario.slices)
            self.count = max(self.scenario.callers, min(self.plan.max_ops, count))

    async def play(self) -> None:
        """Play one round."""
        for timed in self.scenario.modes:
            self._tell()
            if self.failure:
                continue
            with self._surviving():
                spent = array("q", bytes(8 * self.count)) if timed else None
                turn = await self._turn(self.ops, self.count, spent)
                if spent is not None:
                    self.spent.append(sorted(spent))
                if not timed or len(self.scenario.modes) == 1:
                    self.turns.append(turn)

    async def end(self) -> None:
        """End its connections. What it has measured stands, even if it cancels its caller meanwhile."""
        try:
            await self.connected.aclose()
        except asyncio.CancelledError as error:
            # anyio names its scope. Any other cancellation is that of the run, by a signal.
            task = asyncio.current_task()
            if task is None or "via cancel scope" not in str(error):
                raise
            task.uncancel()

    def row(self, baselines: "Sequence[_Player]") -> Row:
        """Return the row: the medians of all rounds.

        A ratio is the median of the rounds' ratios, because a slow phase of the machine slows both turns of a round.
        """
        if self.failure:
            return Row(self.contestant.name, note=self.failure)
        series, ratios = self.series(), {}
        for name in (self.scenario.main, "p99_ms") if self.spent else (self.scenario.main,):
            for base in baselines:
                pairs = zip(series[name], base.series().get(name, ()), strict=False)
                if parts := [ours / theirs for ours, theirs in pairs]:
                    ratios[base.contestant.name + ("" if name == self.scenario.main else P99)] = median(parts)
        note = f"{self.contestant.unit}: {self.width or self.scenario.callers}"
        return Row(
            self.contestant.name, {name: median(found) for name, found in series.items()}, ratios, note
        )

    def series(self) -> dict[str, list[float]]:
        """Return the values of each figure, round by round."""
        if self.failure:
            return {}
        found = {"rate": [turn.rate for turn in self.turns]}
        if cpu := [turn.cpu / turn.ops * 1e6 for turn in self.turns if turn.cpu is not None]:
            found["cpu_us"] = cpu
        for name, quantile in (("p50_ms", 0.5), ("p99_ms", 0.99)) if self.spent else ():
            found[name] = self._latencies(quantile)
        return found

    def curve(self) -> tuple[tuple[float, float], ...]:
        """Return the latency in milliseconds at each quantile of CURVE."""
        return tuple((quantile, median(self._latencies(quantile))) for quantile in CURVE)

    async def _best_width(self) -> int:
        widths = [width for width in self.contestant.widths if width <= self.scenario.callers] or [1]
        if len(widths) == 1:
            return widths[0]
        rates = {}
        for width in widths:
            # A pool that is too large for this process or server is left out; that is not a failure.
            with contextlib.suppress(OSError, RedisError):
                async with self._connect(width) as ops:
                    rates[width] = await self._probe(ops)
        return max(rates, key=rates.__getitem__)

    async def _probe(self, ops: Ops) -> float:
        """Return the rate of a short turn, after connections are open and scripts loaded."""
        count = max(self.scenario.callers, 500)
        first = await self._turn(ops, count)
        return (await self._turn(ops, max(count, int(first.rate * self.plan.seconds * PROBE)))).rate

    async def _turn(self, ops: Ops, count: int, spent: "Spent[int] | None" = None) -> Turn:
        if self.plan.clean:
            await self.plan.clean()
        keys = fresh_keys(self.plan.namespace, count)  # made before the clock starts
        if self.scenario.deal:
            keys = await self.scenario.deal(ops, keys)
        with collector(tuned=self.contestant.tuned):
            return await drive(ops, self.scenario.verb, keys, self.scenario.callers, spent)

    def _connect(self, width: int) -> AbstractAsyncContextManager[Ops]:
        plan, callers = self.plan, self.scenario.callers
        return self.contestant.connect(Setting(plan.url, plan.namespace, callers, width, plan.private))

    def _latencies(self, quantile: float) -> list[float]:
        return [spent[int(quantile * len(spent))] / 1e6 for spent in self.spent]

    def _tell(self) -> None:
        self.plan.on_turn(f"{self.scenario.title}: {self.contestant.name}")

    @contextlib.contextmanager
    def _surviving(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 # a peer may fail in any way; its row shows how
            self.failure = f"n/a: {reason(error)}"
