"""The steps of a caller at a ledger whose window is a second: ids, and lists of ids, of which some are sent twice."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from .caller import Caller
from .history import SECOND, Event
from .steps import Step

WINDOW = 1.0
CAPACITY = 20_000
LIST = 12
"""Ids of a list. A third of a list's ids are its caller's own, the others may be anybody's."""
BACK = (0, 0, 1, 2, 4, 6, 7, 8, 9, 10, 12, 16)
"""Generations (of 0.12 s) ago of which the id is."""


class LedgerCaller(Caller):
    """A caller that also asks a ledger. Another build of fastdedup may have none: then it asks nothing."""

    def __init__(self, *facts: Any) -> None:
        super().__init__(*facts)
        known = hasattr(self._dedup, "ledger")
        self._book = self._dedup.ledger("ids", window=WINDOW, capacity=CAPACITY) if known else None

    async def _ledger(self, step: Step) -> None:
        """Ask for an id, look, forget it, or ask for a list; in one of ten times twice, as after a lost reply."""
        if self._book is None:
            return
        which, ledger = int(step.use * 9973) % 20, self._book
        (one,) = self._ids(step, 1)
        owner = f"{self._name}-{self._count}" if which in (0, 1, 2, 3) else None
        if which == 19:
            await self._ask("forget", [one], lambda: as_list(ledger.forget(one)))
        elif which > 15:
            await self._ask("seen", [one], lambda: as_list(ledger.seen(one)))
        elif which > 9 or which < 2:
            await self._first([one], owner, lambda: as_list(ledger.first(one, owner=owner)), step)
        else:
            ids = self._ids(step, LIST)
            await self._first(ids, owner, lambda: ledger.first_many(ids, owner=owner), step)

    async def _first(
        self, ids: list[str], owner: str | None, call: Callable[[], Awaitable[list[bool]]], step: Step
    ) -> None:
        """Ask once; with an owner twice; one in ten of those without is cancelled at a random moment."""
        if owner is not None:
            await self._ask("first", ids, call, owner)
            await asyncio.sleep(step.hold)
            await self._ask("first", ids, call, owner)
            return
        asked = asyncio.ensure_future(self._ask("first", ids, call))
        if int(step.use * 997) % 10 == 0:
            await asyncio.wait([asked], timeout=step.hold)
            asked.cancel()
        await asyncio.wait([asked])
        if not asked.cancelled():
            asked.result()

    async def _ask(
        self,
        verb: str,
        ids: Sequence[str],
        call: Callable[[], Awaitable[list[bool]]],
        owner: str | None = None,
    ) -> None:
        """Make one call, and put each of its ids on record."""
        found: list[bool] = []

        async def go() -> None:
            found.extend(await call())

        recorder, window = self._shared.recorder, round(WINDOW * SECOND)
        facts = {"owner": owner or "", "named": owner is not None, "ttl": window}
        events = [recorder.ask(verb, self._key(f"ledger/{each}"), **facts) for each in ids]
        whole: Event | None = None
        try:
            whole, _ = await self._asked(f"{verb} of a ledger", f"calls/{self._label}", go)
        finally:
            for place, event in enumerate(events):
                event.outcome = "cancelled" if whole is None else whole.outcome
                if whole is not None:
                    event.degraded, event.note, event.confirmed = whole.degraded, whole.note, whole.confirmed
                    event.outcome = told(verb, found[place]) if whole.outcome == "ok" else whole.outcome
                recorder.answered(event)

    def _ids(self, step: Step, number: int) -> list[str]:
        """Return ids that others ask for, too, and in a list a third that nobody else asks for."""
        draw = int(step.use * 99_991)
        back = BACK[draw % len(BACK)]
        stem = f"g{self._shared.generation() - back}"
        shared = [f"{stem}-{(draw + each) % 40}" for each in range(number)]
        own = number // 3
        return [*(f"{self._label}-{each}" for each in range(own)), *shared[own:]]


def told(verb: str, answer: bool) -> str:
    """Return the word for an answer."""
    return {"first": ("known", "new"), "seen": ("unseen", "known"), "forget": ("absent", "gone")}[verb][
        answer
    ]


async def as_list(call: Awaitable[bool]) -> list[bool]:
    return [await call]
