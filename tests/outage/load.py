"""Claims under way while servers fail: who won which key, what was unavailable, and nothing else."""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self

from fastdedup import Claim, ClaimLostError, Dedup, Outcome, UnavailableError

WIDTH = 10
"""Claimants at work at once, for each gate."""
PACE = 0.002
"""Seconds from a refusal to the next attempt: an open breaker refuses at once."""


TIMEOUT = 0.3
"""Seconds that an operation of these gates may take."""


@asynccontextmanager
async def gates(url: str, count: int = 2, **options: Any) -> AsyncIterator[list[Dedup]]:
    """Open gates of one namespace."""
    opened = [Dedup(url, namespace="t", **{"timeout": TIMEOUT, **options}) for _ in range(count)]
    for gate in opened:
        await gate.open()
    try:
        yield opened
    finally:
        for gate in opened:
            await gate.aclose()


class Load:
    """Two or more gates race for the same keys, one new key after another, until the body ends.

    Attributes:
        winners: the fences that were acquired, by key; more than one is a doubled winner.
        answered: how many claims were answered.
        errors: what else came, by key.
    """

    def __init__(self, gates: Sequence[Dedup], name: Callable[[int], str]) -> None:
        self.winners: dict[str, list[Claim]] = defaultdict(list)
        self.answered = 0
        self.errors: dict[str, list[str]] = defaultdict(list)
        self._gates = gates
        self._name = name
        self._tasks: list[asyncio.Task[None]] = []
        self._ends = False

    async def __aenter__(self) -> Self:
        for gate in self._gates:
            numbers = itertools.count()
            self._tasks += [asyncio.create_task(self._work(gate, numbers)) for _ in range(WIDTH)]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ends = True
        await asyncio.gather(*self._tasks)

    @property
    def doubled(self) -> list[str]:
        """Keys that two owners got."""
        return [key for key, claims in self.winners.items() if len({claim.owner for claim in claims}) > 1]

    async def _work(self, gate: Dedup, numbers: itertools.count[int]) -> None:
        while not self._ends:
            key = self._name(next(numbers))
            try:
                claim = await gate.claim(key)
                if claim.acquired:
                    self.winners[key].append(claim)
                    await claim.complete(claim.owner)
                elif claim.outcome is Outcome.SUCCEEDED:
                    owners = {winner.owner for winner in self.winners[key]}
                    assert claim.result in owners or self.errors[key], (key, claim, owners)
                self.answered += 1
            except (UnavailableError, ClaimLostError) as error:
                # Lost: acquired on a primary that was replaced before its replicas had it, and told.
                self.errors[key].append(str(error))
                await asyncio.sleep(PACE)
