"""Puts what a fallback answered in an outage into the store, once that is back.

Runs only while a policy's journal has lines: it is woken by the first degraded answer, tries until
every line is adopted, and ends. Which record stands where two owners met is the store's to say
(`lua/adopt.lua`), what becomes of a line the policy's; here is only the asking.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence

from ..errors import DedupError
from ..events import Conflict, Event, Replayed, Unreplayed, log
from ..protocol.operations import Adopted, AdoptOp, Code, Op, Reply, Stored
from ..tasks import stop
from .base import JournalledPolicy, LineOp

_BATCH = 256
_FIRST_PAUSE = 0.02
_LONGEST_PAUSE = 0.4
_GROWTH = 1.6

Submit = Callable[[Op], asyncio.Future[Reply]]


class Reconciler:
    """One policy's way back into one store.

    Args:
        submit: hands an operation to the engine; may raise as that does.
        report: called with each event.
        done: called when every line has been adopted.
    """

    def __init__(
        self,
        policy: JournalledPolicy,
        submit: Submit,
        report: Callable[[Event], None],
        done: Callable[[], None],
    ) -> None:
        self._policy = policy
        self._submit = submit
        self._report = report
        self._done = done
        # Mutable: the task while there is something to do; set when it should look at once.
        self._task: asyncio.Task[None] | None = None
        self._now = asyncio.Event()
        self._adopted = 0
        self._conflicts = 0
        self._is_puzzled = False

    def wake(self) -> None:
        """There may be something to bring home."""
        if self._policy.lines and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self._run(), name="fastdedup-reconcile")

    def store_is_back(self) -> None:
        """Try without waiting for the pause to end."""
        self._now.set()

    async def finish(self, timeout: float) -> None:
        """Try once more, `timeout` seconds long."""
        if self._task is not None:
            await stop(self._task)
        try:
            async with asyncio.timeout(timeout):
                while self._policy.lines and await self._round():
                    pass
        except TimeoutError:
            pass
        self._tell()

    def give_up(self) -> None:
        """Report what is left."""
        for event in self._policy.give_up():
            self._report(event)

    async def _run(self) -> None:
        pause = _FIRST_PAUSE
        while self._policy.lines:
            if await self._round():
                pause = _FIRST_PAUSE
                continue
            await self._rest(pause * (0.5 + 0.5 * random.random()))
            pause = min(pause * _GROWTH, _LONGEST_PAUSE)
        self._tell()
        self._done()

    async def _rest(self, pause: float) -> None:
        self._now.clear()
        try:
            async with asyncio.timeout(pause):
                await self._now.wait()
        except TimeoutError:
            pass

    async def _round(self) -> bool:
        """Have the oldest lines adopted; False where the store did not take them all."""
        lines = self._policy.next_lines(_BATCH)
        answered: set[Op] = set()
        futures = self._send(lines)
        try:
            replies = await asyncio.gather(*futures, return_exceptions=True)
            for line, reply in zip(lines, replies, strict=False):
                if isinstance(reply, Adopted | Stored | Code):
                    answered.add(line)
                    self._judged(line, reply)
                elif not isinstance(reply, DedupError):
                    self._puzzled(reply)
        finally:
            for number, line in enumerate(lines):
                if line in answered:
                    continue
                event = self._policy.put_back(line, asked=number < len(futures))
                if event is not None:
                    self._report(event)
        return bool(lines) and len(answered) == len(lines)

    def _send(self, lines: Sequence[Op]) -> list[asyncio.Future[Reply]]:
        """As many as the engine takes; the rest stays."""
        futures: list[asyncio.Future[Reply]] = []
        for line in lines:
            try:
                futures.append(self._submit(line))
            except DedupError:
                break
        return futures

    def _judged(self, line: LineOp, reply: Adopted | Stored | Code) -> None:
        lines = self._policy.lines
        event = self._policy.adopted(line, reply)
        if event is not None:
            self._report(event)
        done = self._policy.lines < lines  # else it has changed meanwhile, and goes again
        self._adopted += done and isinstance(line, AdoptOp) and not isinstance(event, Unreplayed)
        self._conflicts += isinstance(event, Conflict)

    def _puzzled(self, answer: object) -> None:
        """No outage: a store that cannot adopt. Said once, and tried on: what was answered is not given up."""
        if not self._is_puzzled:
            self._is_puzzled = True
            error = answer if isinstance(answer, BaseException) else None
            log.error("the store does not adopt what was answered in an outage: %r", answer, exc_info=error)

    def _tell(self) -> None:
        if self._adopted or self._conflicts:
            self._report(Replayed(self._adopted, self._conflicts))
            self._adopted = self._conflicts = 0
