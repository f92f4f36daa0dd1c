"""A long outage at full load: does memory stay bounded? Workers claim as fast as they can, nobody answers."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastdedup import Dedup, UnavailableError

from .crew import Crew
from .homes import Single

CALLERS = 64
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(slots=True)
class Memory:
    """RSS of one worker over time: (s since the start, bytes)."""

    name: str
    policy: str
    samples: list[tuple[float, int]]
    counts: dict[str, int]

    def line(self) -> str:
        sizes = [size / 1e6 for _, size in self.samples]
        counts = ", ".join(f"{count:,} {name}" for name, count in sorted(self.counts.items()))
        return (
            f"| {self.policy} | {sizes[0]:.1f} | {max(sizes):.1f} | {sizes[-1]:.1f} | "
            f"{self.half_growth():+.1f} | {counts} |"
        )

    def half_growth(self) -> float:
        """MB by which the peak of the second half exceeds that of the first: 0 where it is bounded."""
        sizes = [size / 1e6 for _, size in self.samples]
        middle = len(sizes) // 2
        return max(sizes[middle:]) - max(sizes[: middle or 1])


async def flood(dedup: Dedup, stop: asyncio.Event) -> dict[str, int]:
    """Claim fresh keys and complete them as fast as answers come, until stopped; returns counts of answers."""
    counts: Counter[str] = Counter()
    numbers = itertools.count()

    async def caller() -> None:
        while not stop.is_set():
            try:
                claim = await dedup.claim(f"flood-{next(numbers)}")
                counts["degraded" if claim.degraded else "good"] += 1
                await claim.complete("done")
            except UnavailableError:
                counts["refused"] += 1
                # Where refusing needs no turn of the loop, `stop` could not be heard.
                await asyncio.sleep(0)

    await asyncio.gather(*(caller() for _ in range(CALLERS)))
    return dict(counts)


async def outage(minutes: float, crew: Crew, home: Single) -> list[Memory]:
    """Let the server be gone for `minutes` at full load; the first worker has Reject, the second LocalLRU."""
    pairs = list(zip(crew.members, ("reject", "local"), strict=False))
    for member, policy in pairs:
        order: dict[str, Any] = {"url": home.server.url, "namespace": f"flood-{policy}", "timeout": 0.25}
        await member.ensure()
        await member.begin({**order, "flood": policy, "maxsize": 100_000})
    await asyncio.sleep(1.0)
    start = time.monotonic()
    samples: dict[str, list[tuple[float, int]]] = {member.name: [] for member, _ in pairs}
    await home.down()
    while (passed := time.monotonic() - start) < minutes * 60:
        for member, _ in pairs:
            samples[member.name].append((passed, rss(member.pid)))
        await asyncio.sleep(1.0)
    await home.up()
    await asyncio.sleep(3.0)
    for member, _ in pairs:
        samples[member.name].append((time.monotonic() - start, rss(member.pid)))
    answers = [await member.finish() for member, _ in pairs]
    return [
        Memory(member.name, policy, samples[member.name], answer.get("counts", {}))
        for (member, policy), answer in zip(pairs, answers, strict=True)
    ]


def rss(pid: int) -> int:
    """Bytes of memory that a process has resident."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE


def report(minutes: float, memories: Sequence[Memory]) -> str:
    """The table of an outage."""
    head = "| policy | start, MB | max, MB | end, MB | second half over first, MB | answers |"
    lines = [
        f"An outage of {minutes:g} minutes at full load ({CALLERS} callers a process):",
        "",
        head,
        "|---|---:|---:|---:|---:|---|",
    ]
    return "\n".join([*lines, *(memory.line() for memory in memories)])
