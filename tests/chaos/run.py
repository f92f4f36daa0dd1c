"""One run: workers under load, a fault, its end, recovery; then the history is held against the promises."""

from __future__ import annotations

import asyncio
import random
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from redis.exceptions import RedisError

from .board import GOOD, SKEW
from .checker import Conflict, Findings, check
from .crew import Crew, Member
from .faults import FAULTS, Fault, Scene
from .history import MS, SECOND, Event, History, load
from .homes import Home, Homes
from .plan import Run
from .pulse import Pulse

TIMEOUT = 0.15
"""Seconds, the deadline that the workers' operations have."""
BOUND = TIMEOUT + 0.4 + 0.1 + 1.0
"""Seconds: timeout, the longest lease and wait, and what a busy machine may add. Longer is a hang."""
WARM, AFTER, AUDIT = 0.3, 0.25, 1.4
"""Seconds; AUDIT is what `facts.GRACE` gives, and what the last of those who gave up may still take."""
RECOVERY = 8.0
"""Seconds that all workers have to get good answers again."""
CANARIES = 20
LONGEST_LEASE = round(0.4 * SECOND)
"""Of the claims that are settled; the others' keys nobody else asks for."""
FIND, FEW = 1.0, 20
"""Seconds in which a replacement must be found; operations that may be refused later, as by a busy machine."""
LONGEST = 90.0
"""Seconds that a run may take, whatever happens."""


@dataclass(slots=True)
class Result:
    """What a run gave. Times in seconds."""

    run: Run
    operations: int = 0
    findings: Findings = field(default_factory=Findings)
    to_503: list[float] = field(default_factory=list)
    """From the fault to each worker's first refused or degraded answer."""
    to_recover: list[float] = field(default_factory=list)
    """From the fault's end to the first good answer, of each worker and policy that was hit."""
    failures: list[str] = field(default_factory=list)
    hangs: list[str] = field(default_factory=list)
    events: Counter[str] = field(default_factory=Counter)
    canaries_lost: int = 0
    excerpts: list[str] = field(default_factory=list)

    @property
    def bad(self) -> bool:
        return bool(self.findings.violations or self.failures or self.hangs)


class Performance:
    """One run under way."""

    def __init__(self, run: Run, home: Home, crew: Crew, folder: Path, options: dict[str, Any]) -> None:
        self._run = run
        self._home = home
        self._crew = crew
        self._folder = folder
        self._options = options
        self._fault: Fault = FAULTS[run.fault]()
        self._origin = time.monotonic_ns()
        self._files: list[Path] = []
        self._result = Result(run)
        self._namespace = f"run{run.number}"
        draw = random.Random(run.seed)
        self._scene = Scene(home, crew, self._namespace, run.seconds, TIMEOUT, draw, self._restart)
        self._slow: list[tuple[int, int]] | None = None

    async def go(self) -> Result:
        """Perform it; whatever goes wrong in the harness itself is raised."""
        await self._home.reset()
        pulse = Pulse(self._home.server.socket) if self._fault.healthy else None
        for member, skew in zip(self._crew.members, self._run.skews, strict=True):
            self._crew.board[member.slot, SKEW] = skew * SECOND
        await asyncio.gather(*(self._begin(member) for member in self._crew.members))
        await self._all_good_since(self._origin)
        await asyncio.sleep(WARM)
        await self._canaries()
        injected, healed = await self._trouble()
        await self._all_good_since(healed)
        await asyncio.sleep(AUDIT if self._fault.audited else AFTER)
        await self._finish()
        self._slow = None if pulse is None else pulse.stop()
        self._conclude(injected, healed)
        return self._result

    async def _begin(self, member: Member) -> None:
        await member.ensure()
        file = self._folder / f"{self._run.number}-{member.name}.jsonl"
        file.unlink(missing_ok=True)  # of a driver before this one, where --keep names the same folder
        self._files.append(file)
        await member.begin(
            {
                "url": self._home.url(member.slot, proxied=self._fault.proxied),
                "namespace": self._namespace,
                "timeout": TIMEOUT,
                "known": self._run.known,
                "seed": self._run.seed,
                "origin": self._origin,
                "file": str(file),
                "tokens": str(self._folder / f"{self._run.number}-tokens"),
                "options": self._fault.options,
                "mix": dict(self._fault.mix),
                "audited": self._fault.audited,
                **self._options,
            }
        )

    async def _restart(self, member: Member) -> None:
        await self._begin(member)

    async def _canaries(self) -> None:
        if not self._fault.keeps_data:
            await self._home.put_canaries(str(self._run.number), CANARIES)

    async def _trouble(self) -> tuple[int, int]:
        injected = time.monotonic_ns()
        await self._fault.inject(self._scene)
        passed = (time.monotonic_ns() - injected) / SECOND
        await asyncio.sleep(max(self._run.seconds - passed, 0.0))
        await self._fault.heal(self._scene)
        return injected, time.monotonic_ns()

    async def _all_good_since(self, moment: int) -> None:
        """Wait until the store itself has answered every worker and policy something asked after `moment`."""
        ends = time.monotonic() + RECOVERY
        missing: list[str] = []
        while time.monotonic() < ends:
            missing = [
                f"{member.name} {policy}"
                for member in self._crew.members
                for policy, word in GOOD.items()
                if self._crew.board[member.slot, word] < moment
            ]
            if not missing:
                return
            await asyncio.sleep(0.005)
        self._result.hangs.append(f"no good answer within {RECOVERY:g} s: {', '.join(missing)}")

    async def _finish(self) -> None:
        answers = await asyncio.gather(*(member.finish() for member in self._crew.members))
        for member, answer in zip(self._crew.members, answers, strict=True):
            self._result.failures += [f"{member.name}: {text}" for text in answer["failures"]]
            self._result.hangs += [f"{member.name}: {text}" for text in answer["hangs"]]
            self._result.events += Counter(answer["events"])
        if not self._fault.keeps_data:
            self._result.canaries_lost = await self._home.lost_canaries(str(self._run.number), CANARIES)

    def _conclude(self, injected: int, healed: int) -> None:
        result, events = self._result, load(self._files)
        # A claim that was lost may be settled for as long as its lease lasts; that is told OK where a reply was lost.
        losses = [] if self._fault.keeps_data else [(injected, healed + LONGEST_LEASE)]
        result.operations = len(events)
        result.findings = check(History(events, losses, self._scene.steps, self._slow))
        result.to_503, result.to_recover = times(events, injected, self._scene.usable or healed)
        result.hangs += [f"took too long: {event.line(injected)}" for event in self._too_long(events)]
        refused = self._refused_by_the_replaced(events, healed)
        if refused > FEW:
            result.hangs.append(f"{refused} operations refused later than {FIND:g} s after the replacement")
        result.excerpts = [excerpt(item, events, injected, healed) for item in result.findings.violations[:3]]
        for file in (*self._files, self._folder / f"{self._run.number}-tokens"):
            if not (result.bad and self._options.get("keep")):
                file.unlink(missing_ok=True)

    def _refused_by_the_replaced(self, events: Sequence[Event], healed: int) -> int:
        late = healed + round(FIND * SECOND)
        return self._fault.replaced * sum(
            event.outcome == "unavailable" and event.start > late for event in events
        )

    def _too_long(self, events: Sequence[Event]) -> list[Event]:
        """Operations beyond their bound. Those that a killed worker left behind were never answered at all."""
        extra = {member.name: self._scene.stalled.get(member.slot, 0.0) for member in self._crew.members}
        return [
            event
            for event in events
            if event.end is not None
            and (event.end - event.start) / SECOND > BOUND + extra.get(event.worker, 0.0)
        ]


def times(events: Sequence[Event], injected: int, healed: int) -> tuple[list[float], list[float]]:
    """Return the times to the first 503 (or degraded answer), and those from the end to a good answer, in s."""
    first_bad: dict[str, int] = {}
    hit: set[tuple[str, str]] = set()
    first_good: dict[tuple[str, str], int] = {}
    for event in sorted(events, key=lambda event: event.over):
        who = (event.worker, event.key.partition("/")[0])
        if event.end is None or event.end < injected:
            continue
        if event.outcome == "unavailable" or event.degraded:
            if event.start < healed:
                first_bad.setdefault(event.worker, event.end - injected)
                hit.add(who)
        elif event.outcome in ("acquired", "ok") and event.end >= healed:
            first_good.setdefault(who, event.end - healed)
    recovered = [first_good[who] / SECOND for who in hit if who in first_good]
    return [moment / SECOND for moment in first_bad.values()], recovered


def excerpt(conflict: Conflict, events: Sequence[Event], injected: int, healed: int) -> str:
    """The conflict, and what else happened to its key about then; times in ms since the fault."""
    near = 50 * MS
    points = [event for event in (conflict.earlier, conflict.later) if event is not None]
    lines = [
        event.line(injected)
        for event in events
        if event.key == conflict.key
        and any(event.start <= it.over + near and event.over >= it.start - near for it in points)
    ]
    told = "\n      ".join(lines[-30:])
    return f"{conflict.text(injected)}\n    fault 0..{(healed - injected) / MS:.0f} ms; then:\n      {told}"


async def perform(run: Run, homes: Homes, crew: Crew, folder: Path, options: dict[str, Any]) -> Result:
    """Do one run. Where the harness itself does not get on, that is the run's failure."""
    try:
        home = await homes.get(FAULTS[run.fault].home)
        async with asyncio.timeout(LONGEST):
            return await Performance(run, home, crew, folder, options).go()
    except (TimeoutError, OSError, RedisError, RuntimeError):
        for member in crew.members:
            await member.kill()  # the next run has new ones
        return Result(run, failures=[f"the harness failed: {traceback.format_exc()}"])
