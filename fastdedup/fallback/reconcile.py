"""Writes the records that a fallback made in an outage into the store when the store is back.

The reconciler runs only while a policy's journal has lines: the first degraded answer wakes it, it tries until the
store has every record, and ends. If two owners met, the store decides which record remains
(`lua/adopt.lua`), and the policy decides on the journal's line. The reconciler only sends.

Each part of the store, such as a node of a Cluster, has a lane of the journal, and each lane has a task and a pause
of its own. So a part that refuses or hangs holds up its own records alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from ..backoff import UNANSWERED
from ..errors import DedupError, ForeignRecordError, UnavailableError
from ..events import Conflict, Event, Replayed, Unreplayed
from ..failures import log
from ..kernel.codes import Code
from ..kernel.operations import AdoptOp, Op, Reply
from ..kernel.records import Stored
from ..kernel.replies import Adopted, StoredForm
from ..ledger.operations import FirstOp
from ..tasks import stop
from .base import JournalledPolicy, JournalOp, OrphanPolicy

_BATCH = 256

Submit = Callable[[Op], asyncio.Future[Reply]]
LaneOf = Callable[[bytes], bytes]
"""Returns the name of the part of the store that holds a key now; it must not raise."""


class LaneTask(NamedTuple):
    """The task of one lane. `is_back`: set when the task must try at once, without the rest of its pause."""

    task: asyncio.Task[None]
    is_back: asyncio.Event


class Reconciler:
    """Empties one policy's journal into one store.

    Args:
        submit: passes an operation to the engine; it raises the engine's errors.
        lane_of: see `LaneOf`.
        report: called with each event.
        done: called when a lane is empty.
        orphans: returns the key and owner of each claim that was sent, and that no caller waits for.
    """

    def __init__(
        self,
        policy: JournalledPolicy,
        submit: Submit,
        lane_of: LaneOf,
        report: Callable[[Event], None],
        done: Callable[[], None],
        orphans: Callable[[], list[tuple[bytes, bytes]]] = list,
    ) -> None:
        self.policy = policy
        self._submit = submit
        self._lane_of = lane_of
        self._report = report
        self._done = done
        self._orphans = orphans
        # Mutable: the tasks of the lanes that have lines; how many more operations of a lane to send one by one; the
        # lanes for which a ledger's form was too old last; the counts since the last `Replayed` event.
        self._running: dict[bytes, LaneTask] = {}
        self._alone: dict[bytes, int] = {}
        self._stale: set[bytes] = set()
        self._adopted = 0
        self._conflicts = 0
        self._is_puzzled = False

    @property
    def has_work(self) -> bool:
        """True while the store lacks records of the policy, or a lane has a task."""
        return bool(self.policy.lines or self._running)

    def wake(self) -> None:
        """Begin to empty each lane that has lines."""
        for lane in self._lanes():
            running = self._running.get(lane)
            if running is None or running.task.done():
                is_back = asyncio.Event()
                work = self._run(lane, is_back)
                task = asyncio.get_running_loop().create_task(work, name="fastdedup-reconcile")
                self._running[lane] = LaneTask(task, is_back)

    def store_is_back(self, lane: bytes) -> None:
        """Try a lane at once, without the rest of its pause."""
        running = self._running.get(lane)
        if running is not None:
            running.is_back.set()

    def cancel(self) -> None:
        """Stop at once, without waiting for the tasks to end. The journal keeps its lines."""
        for running in self._running.values():
            running.task.cancel()

    async def finish(self, timeout: float) -> None:
        """Try once more, for `timeout` seconds."""
        tasks = [running.task for running in self._running.values()]
        self._running.clear()
        for task in tasks:
            task.cancel()  # first cancel all of them: a lane that goes on meanwhile would wake the others
        for task in tasks:
            await stop(task)
        try:
            async with asyncio.timeout(timeout):
                await asyncio.gather(*(self._empty(lane) for lane in self._lanes()))
        except TimeoutError:
            pass
        self._tell()

    def _lanes(self) -> Sequence[bytes]:
        return self.policy.lanes(self._lane_of)

    async def _run(self, lane: bytes, is_back: asyncio.Event) -> None:
        pauses = 0
        while lane in self._lanes():
            lines = self.policy.lines
            goes_on = await self._round(lane)
            self.wake()  # the keys of refused lines may have moved to another part, and the lines to its lane
            # The form may be on a node with another clock: then it is always too old, and would be read without end.
            if goes_on and lane not in self._stale:
                pauses = 0 if self.policy.lines < lines else pauses
                continue
            await rest(is_back, UNANSWERED.pause(pauses))
            pauses += 1
        self._running.pop(lane, None)
        self._tell()
        self._done()

    async def _empty(self, lane: bytes) -> None:
        while lane in self._lanes() and (await self._round(lane) or lane in self._alone):
            pass

    async def _round(self, lane: bytes) -> bool:
        """Send the oldest operations of a lane; False if the lane must pause.

        A refused line goes to the end, so the lines behind a full batch need no pause, unless all of it was refused.
        If the store says that all of a batch is a mistake, as many operations are sent one by one: one may spoil all
        others. Each that is refused too halves how many still are: a whole namespace may be refused.
        """
        alone = self._alone.pop(lane, 0)
        self._stale.discard(lane)
        ops = self.policy.next_operations(1 if alone else _BATCH, lane)
        mistaken = False
        answered: set[Op] = set()
        asked = self._send(ops)
        try:
            replies = await asyncio.gather(*asked.values(), return_exceptions=True)
            if isinstance(self.policy, OrphanPolicy):  # it judges the replies by them
                for wire, owner in self._orphans():
                    self.policy.note_orphan(wire, owner)
            for op, answer in zip(asked, replies, strict=True):
                reply = Code.FOREIGN if isinstance(answer, ForeignRecordError) else answer
                if isinstance(reply, Adopted | Stored | StoredForm | Code):
                    try:
                        self._answered(op, reply)
                    except Exception as error:  # noqa: BLE001 -- one line's fault must not end the lane of all others
                        self._puzzled(error)
                    else:
                        answered.add(op)
                        if reply is Code.STALE:
                            self._stale.add(lane)
                elif not isinstance(reply, UnavailableError):
                    self._puzzled(reply)
                    mistaken = True
        finally:
            self._put_back([op for op in ops if op not in answered], asked)
        if alone > 1 and answered:
            self._alone[lane] = alone - 1
        elif alone != 1 and mistaken and not answered:
            self._alone[lane] = alone // 2 or len(ops)
        return bool(answered) and len(ops) in (len(answered), _BATCH)

    def _send(self, ops: Sequence[JournalOp]) -> dict[JournalOp, asyncio.Future[Reply]]:
        """Pass the engine each operation that it takes; it refuses those of a part that does not answer."""
        asked: dict[JournalOp, asyncio.Future[Reply]] = {}
        for op in ops:
            try:
                asked[op] = self._submit(op)
            except DedupError:
                continue
        return asked

    def _put_back(self, ops: Sequence[JournalOp], asked: Collection[JournalOp]) -> None:
        for op in ops:
            event = self.policy.put_back(op, asked=op in asked, lane=self._lane_of(op.wire))
            if event is not None:
                self._report(event)

    def _answered(self, op: JournalOp, reply: Adopted | Stored | StoredForm | Code) -> None:
        lines = self.policy.lines
        event = self.policy.adopted(op, reply)
        if event is not None:
            self._report(event)
        done = self.policy.lines < lines  # else the record has changed meanwhile, and is sent again
        self._adopted += done and isinstance(op, AdoptOp | FirstOp) and not isinstance(event, Unreplayed)
        self._conflicts += isinstance(event, Conflict)

    def _puzzled(self, answer: object) -> None:
        """Log, once, that the store cannot adopt. This is not an outage; the records are kept, and tried again."""
        if not self._is_puzzled:
            self._is_puzzled = True
            error = answer if isinstance(answer, BaseException) else None
            log.error("the store cannot adopt the records of an outage: %r", answer, exc_info=error)

    def _tell(self) -> None:
        if self._adopted or self._conflicts:
            self._report(Replayed(self._adopted, self._conflicts))
            self._adopted = self._conflicts = 0


async def rest(is_back: asyncio.Event, pause: float) -> None:
    """Pause for `pause` seconds, or until the event is set."""
    is_back.clear()
    try:
        async with asyncio.timeout(pause):
            await is_back.wait()
    except TimeoutError:
        pass
