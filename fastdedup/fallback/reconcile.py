"""Brings the records that a fallback made in an outage into the store when the store is back.

The reconciler runs only while a policy's journal has lines: the first degraded answer wakes it, it tries until the
store has every record, and ends. Where two owners met, the store decides whose record stands (`lua/adopt.lua`),
and the policy decides what becomes of the journal's line. The reconciler only asks.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence

from ..errors import DedupError, ForeignRecordError
from ..events import Conflict, Event, Replayed, Unreplayed, log
from ..protocol.operations import Adopted, AdoptOp, Code, Op, Reply, Stored
from ..tasks import stop
from .base import JournalledPolicy, JournalOp

_BATCH = 256
_FIRST_PAUSE = 0.02
_LONGEST_PAUSE = 0.4
_GROWTH = 1.6

Submit = Callable[[Op], asyncio.Future[Reply]]


class Reconciler:
    """Empties one policy's journal into one store.

    Args:
        submit: hands an operation to the engine; raises what the engine raises.
        report: called with each event.
        done: called when the journal is empty.
    """

    def __init__(
        self,
        policy: JournalledPolicy,
        submit: Submit,
        report: Callable[[Event], None],
        done: Callable[[], None],
    ) -> None:
        self.policy = policy
        self._submit = submit
        self._report = report
        self._done = done
        # Mutable: the task while the journal has lines; set when the task should try at once; what it counted.
        self._task: asyncio.Task[None] | None = None
        self._now = asyncio.Event()
        self._adopted = 0
        self._conflicts = 0
        self._is_puzzled = False

    def wake(self) -> None:
        """Begin, if the journal has lines."""
        if self.policy.lines and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self._run(), name="fastdedup-reconcile")

    def store_is_back(self) -> None:
        """Try at once, without waiting for the end of the pause."""
        self._now.set()

    async def finish(self, timeout: float) -> None:
        """Try once more, for `timeout` seconds."""
        if self._task is not None:
            await stop(self._task)
        try:
            async with asyncio.timeout(timeout):
                while self.policy.lines and await self._round():
                    pass
        except TimeoutError:
            pass
        self._tell()

    def give_up(self) -> None:
        """Report each record that the store never got."""
        for event in self.policy.give_up():
            self._report(event)

    async def _run(self) -> None:
        pause = _FIRST_PAUSE
        while self.policy.lines:
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
        """Send the oldest operations; False where the store did not answer them all."""
        ops = self.policy.next_operations(_BATCH)
        answered: set[Op] = set()
        futures = self._send(ops)
        try:
            replies = await asyncio.gather(*futures, return_exceptions=True)
            for op, answer in zip(ops, replies, strict=False):
                reply = Code.FOREIGN if isinstance(answer, ForeignRecordError) else answer
                if isinstance(reply, Adopted | Stored | Code):
                    answered.add(op)
                    self._answered(op, reply)
                elif not isinstance(reply, DedupError):
                    self._puzzled(reply)
        finally:
            for number, op in enumerate(ops):
                if op in answered:
                    continue
                event = self.policy.put_back(op, asked=number < len(futures))
                if event is not None:
                    self._report(event)
        return bool(ops) and len(answered) == len(ops)

    def _send(self, ops: Sequence[Op]) -> list[asyncio.Future[Reply]]:
        """Hand the engine as many operations as it takes, the first ones."""
        futures: list[asyncio.Future[Reply]] = []
        for op in ops:
            try:
                futures.append(self._submit(op))
            except DedupError:
                break
        return futures

    def _answered(self, op: JournalOp, reply: Adopted | Stored | Code) -> None:
        lines = self.policy.lines
        event = self.policy.adopted(op, reply)
        if event is not None:
            self._report(event)
        done = self.policy.lines < lines  # else the record has changed meanwhile, and is sent again
        self._adopted += done and isinstance(op, AdoptOp) and not isinstance(event, Unreplayed)
        self._conflicts += isinstance(event, Conflict)

    def _puzzled(self, answer: object) -> None:
        """Log, once, that the store cannot adopt. This is no outage; the records are kept, and tried again."""
        if not self._is_puzzled:
            self._is_puzzled = True
            error = answer if isinstance(answer, BaseException) else None
            log.error("the store cannot adopt the records of an outage: %r", answer, exc_info=error)

    def _tell(self) -> None:
        if self._adopted or self._conflicts:
            self._report(Replayed(self._adopted, self._conflicts))
            self._adopted = self._conflicts = 0
