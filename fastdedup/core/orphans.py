"""Frees orphans: claims that no caller knows of. No other code frees them.

A claim that timed out, or whose caller was cancelled while the store did not answer, may still have taken effect. The
engine adds it here. As soon as the store answers, its record is read and, if this owner holds it, released with the
same fence, so that a repeated release never affects the next owner. A token that such a claim consumed is issued
again. A claim with an owner that the caller chose is not freed: the same name gets its own claim back. A key that
must be free later gets a lease that ends then.

If nothing is found, the key is looked at again, after pauses that double: a server that was frozen may find the old
command in its socket only after it has answered the new one, and a proxy may pass it on much later. The same is done
after an orphan was freed, because a claim that was sent twice may also arrive twice; and after the release of a claim
that was sent more than once: see `Orphans.watch`.

Abandoned ids of a ledger are orphans too; see `ledger/orphan_ids.py`.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import Any

from ..backoff import UNANSWERED, Backoff
from ..errors import DedupError, ShortfallError, UnavailableError, is_answer
from ..events import Event, UndoOverflow
from ..forking import InChild
from ..kernel.codes import Code
from ..kernel.keyspace import names_of
from ..kernel.operations import ClaimOp, Op, ReadOp, ReleaseOp, RenewOp, Reply
from ..kernel.owners import is_drawn
from ..kernel.records import Stored
from ..kernel.replies import RefusedAlone
from ..tasks import stop

MAX_ORPHANS = 10_000
"""The most orphans kept. The oldest is dropped first, with an event: its key is held until its lease ends."""
_BATCH = 256
_PAUSE = 0.02
"""Seconds between two tries while the gate closes."""
_SECOND_LOOK = 0.3
"""Seconds until a key is looked at again if nothing was found; each further pause is twice as long."""
_ANSWERED = Backoff(_SECOND_LOOK, 0.4)
"""The pauses between looks at a key after the store has answered for it once."""
_PENDING_LOOKS = 2
"""Looks that find nothing, after which an entry counts as over and is only watched."""
_LOOKS = 8
"""Looks that find nothing, after which a key is no longer watched: within 38 seconds."""
_SLACK = 1024
"""Places beyond twice the orphans that are kept, before those without an orphan are dropped."""

Submit = Callable[[Op], asyncio.Future[Reply]]
Asks = Callable[[bytes], bool]
HeldKey = tuple[bytes, bytes]
"""A store key and an owner field."""


class Orphan:
    """A claim that was given up: it may hold its key although no caller knows of it.

    Attributes:
        consumed: it consumed a token.
        fence: the fence of its holding; 0 if no answer had it.
        free_at: when its key must be free, in the loop's time; 0 for at once.
        kept_ms: how long its record outlives its lease.
        resent: a copy of its claim may come late, and no other caller knows its owner.
        again_at: when to look again, in the loop's time, after a look that found nothing; 0 before.
        looks: the number of looks that found nothing.
    """

    __slots__ = ("again_at", "consumed", "fence", "free_at", "kept_ms", "looks", "resent")

    def __init__(
        self,
        consumed: bool = False,
        fence: int = 0,
        free_at: float = 0.0,
        kept_ms: int = 0,
        resent: bool = False,
    ) -> None:
        self.consumed = consumed
        self.fence = fence
        self.free_at = free_at
        self.kept_ms = kept_ms
        self.resent = resent
        self.again_at = 0.0
        self.looks = 0

    @property
    def place(self) -> bytes:
        """The place at which another call looks for it; empty if none does, because it asks by key and owner."""
        return b""

    @property
    def is_pending(self) -> bool:
        """False once it is only watched, because it is likely that nothing is left."""
        return self.looks < _PENDING_LOOKS

    def look_later(self) -> None:
        """Set the time of the next look, after a look that found nothing: what is found later is a late copy's."""
        if self.resent:
            self.fence = 0
        self.again_at = asyncio.get_running_loop().time() + _SECOND_LOOK * 2**self.looks
        self.looks += 1

    def watch(self) -> None:
        """Count it as over, and only watch for the effect of a late copy, once its key should be free."""
        self.fence = 0  # a late copy has another one
        self.looks = max(self.looks, _PENDING_LOOKS)
        self.again_at = max(asyncio.get_running_loop().time() + _SECOND_LOOK, self.free_at)

    def renewed(self) -> Orphan:
        """Return a copy for another event loop, without the looks of this one."""
        return Orphan(self.consumed, self.fence, self.free_at, self.kept_ms, self.resent)

    def may_come_late(self, owner: bytes) -> bool:
        """True if a late copy of it may be freed too, after it was freed.

        False for a named owner, which may claim the key again, and for a holding whose fence is known and whose claim
        was sent once: its owner may have been passed on, and hold the key again. If the claim was sent twice, a late
        copy is likelier than a generated name that another process claims with.
        """
        return (not self.fence or self.resent) and is_drawn(owner)

    def look(self, wire: bytes) -> Op:
        """Return the operation that looks for its record. The reply Code.OK means that it is freed already."""
        return ReadOp(wire)

    def release(self, held_key: HeldKey, found: object) -> ReleaseOp | None:
        """Return the operation that frees the key now; None if it is not held.

        `found`: the reply to `look`.
        """
        wire, owner = held_key
        if not isinstance(found, Stored) or found.owner != owner or self.fence not in (0, found.fence):
            return None
        if found.state not in "PW" and not (self.consumed and found.state == "S"):
            return None
        return ReleaseOp(wire, owner, found.fence, consumed=self.consumed)

    def freeing(self, held_key: HeldKey, found: object) -> ReleaseOp | RenewOp | None:
        """Return the operation that frees the key at its time: `release`, or a lease that ends later."""
        release = self.release(held_key, found)
        if release is None:
            return None
        left_ms = math.ceil((self.free_at - asyncio.get_running_loop().time()) * 1000)
        if left_ms <= 0:
            return release
        return RenewOp(release.wire, release.owner, release.fence, left_ms, left_ms + self.kept_ms)


class Orphans:
    """The claims and ids that were given up after they were sent. While there are any, it has a task.

    Args:
        submit: passes an operation to the engine; it may raise the engine's errors.
        report: called with each event.
        asks: returns whether the engine would send an operation of that store key. If it would not, because a
            breaker is open, the key waits for its turn and costs nothing: 250 refusals block the loop for 2.5 ms.
        most: how many orphans are kept.
    """

    def __init__(
        self,
        submit: Submit,
        report: Callable[[Event], None],
        asks: Asks = lambda wire: True,
        *,
        most: int = MAX_ORPHANS,
    ) -> None:
        self._submit = submit
        self._report = report
        self._asks = asks
        self.most = most
        """How many orphans are kept; beyond that the oldest are left to the end of their leases."""
        self.of_waiters: dict[HeldKey, Orphan | None] = {}
        """The orphans of owners that still wait, which `while_it_waits` leaves alone; None if an owner has none."""
        self.under_way: frozenset[HeldKey] = frozenset()
        """The orphans that the store is asked about now."""
        # Mutable: the orphans, the oldest first; whether some are only watched; when the present round ends; the
        # pause before the next try, the timer that ends it, and the try itself.
        self._orphans: OrderedDict[HeldKey, Orphan] = OrderedDict()
        # Mutable: the orphans of each place, each once, in order; some of them are over.
        self._places: dict[bytes, dict[HeldKey, None]] = {}
        self._watches = False
        self._round_ended: asyncio.Future[None] | None = None
        self._backoff = UNANSWERED
        self._unanswered = 0
        self._alarm: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self.freed = 0
        """How many were freed in the store."""
        self._in_child = InChild(self._leave_to_parent)

    def __len__(self) -> int:
        return sum(orphan.is_pending for orphan in self._orphans.values())

    def __bool__(self) -> bool:
        return bool(self._orphans)

    @property
    def is_closed(self) -> bool:
        """True once `finish` was called: then nothing more is remembered."""
        return self._closed

    def add(self, op: ClaimOp, fence: int = 0, free_at: float = 0.0, *, asked: bool = False) -> None:
        """Free a claim that was sent without a reply, or whose release did not take effect.

        Args:
            op: the claim.
            fence: its holding's fence, if it is known: a later one of the same owner is another claim's.
            free_at: when its key must be free, in the loop's time; 0 for at once.
            asked: its owner has asked for its release, so it does not matter whether the caller chose the name.
        """
        if not asked and (op.named or not is_drawn(op.owner)):  # with its own name the caller gets it back
            return
        terms, held_key = op.terms, (op.wire, op.owner)
        resent = hasattr(op, "resent") and not op.named
        orphan = Orphan(terms.consumes, fence, free_at, terms.ttl_ms, resent)
        if held_key not in self.of_waiters:
            self.put(held_key, orphan)
        elif not self._closed:
            self.of_waiters[held_key] = orphan

    def watch(self, op: ClaimOp) -> None:
        """Look again and again, for 38 seconds, whether a late copy of a claim takes a key.

        This is for a claim that was sent more than once, and that was released or met another owner: an earlier
        sending may still be in a proxy or a socket.
        """
        if self._closed or op.named or not is_drawn(op.owner):
            return
        held_key, watched = (op.wire, op.owner), Orphan(op.terms.consumes)
        watched.watch()
        if held_key in self.of_waiters:
            self.of_waiters[held_key] = self.of_waiters[held_key] or watched
        else:
            self.put(held_key, watched)

    def free(
        self, op: ClaimOp, fence: int, send: Callable[[ReleaseOp], asyncio.Future[Any]], told: bool = False
    ) -> None:
        """Release the key of a claim that was acquired after its caller had gone; a consumed token is issued again.

        Args:
            op: the claim.
            fence: its holding's fence.
            send: sends the release before the operations that wait behind the claim.
            told: its caller has got an error instead, so an owner with a chosen name does not keep it either.
        """
        release = ReleaseOp(op.wire, op.owner, fence, consumed=op.terms.consumes)
        if hasattr(op, "witness") and op.witness is not None:
            release.let_witness(op.witness)  # it may have noted the claim
        send(release).add_done_callback(partial(self._note_released, op, fence if told else 0))

    def _note_released(self, op: ClaimOp, fence: int, future: asyncio.Future[Reply]) -> None:
        fault = None if future.cancelled() else future.exception()
        is_unanswered = not (fault is None or isinstance(fault, ShortfallError) or is_answer(fault))
        if future.cancelled() or is_unanswered or hasattr(op, "resent"):
            asked = op.named and fence > 0
            self.add(op, fence if asked else 0, asked=asked)

    def put(self, held_key: HeldKey, orphan: Orphan) -> None:
        """Free an orphan of any kind, unless `is_closed`."""
        if self._closed:
            return
        self._watches = self._watches or not orphan.is_pending
        self._orphans[held_key] = orphan
        self._note_place(held_key, orphan)
        if len(self._orphans) > self.most and self._watches:
            # Drop these first, because they are probably over.
            self._watches = False
            for each in [each for each, kept in self._orphans.items() if not kept.is_pending]:
                del self._orphans[each]
        if len(self._orphans) > self.most:
            (wire, _), _ = self._orphans.popitem(last=False)
            self._report(UndoOverflow(*names_of(wire)))
        if len(self._places) > 2 * len(self._orphans) + _SLACK:
            for place in [*self._places]:
                self.at(place)
        self._try_later()

    def _note_place(self, held_key: HeldKey, orphan: Orphan) -> None:
        if orphan.place:
            self._places.setdefault(orphan.place, {})[held_key] = None

    def at(self, place: bytes) -> list[tuple[HeldKey, Orphan]]:
        """Return the orphans at a place; those that are over are dropped from it."""
        kept = [(each, self._orphans[each]) for each in self._places.pop(place, ()) if each in self._orphans]
        if kept:
            self._places[place] = dict.fromkeys(held_key for held_key, _ in kept)
        return kept

    def get(self, held_key: HeldKey) -> Orphan | None:
        """Return an orphan; None if there is none."""
        return self._orphans.get(held_key)

    def pop(self, held_key: HeldKey) -> Orphan | None:
        """Remove an orphan, and return it; None if there is none."""
        return self._orphans.pop(held_key, None)

    def listed(self) -> list[tuple[HeldKey, Orphan]]:
        """Return each orphan with the store key and owner that it may hold."""
        return list(self._orphans.items())

    def held_keys(self) -> list[HeldKey]:
        """Return the store key and owner of each orphan."""
        return list(self._orphans)

    def leave_to_owner(self, op: ClaimOp) -> bool:
        """Remove a claim, because its owner knows of it, or asks for it again. True if it was an orphan."""
        held_key = (op.wire, op.owner)
        orphan = self._orphans.pop(held_key, None) if self._orphans else None
        if held_key in self.of_waiters:
            orphan = orphan or self.of_waiters[held_key]
            self.of_waiters[held_key] = None
        return orphan is not None

    @contextmanager
    def while_it_waits(self, op: ClaimOp) -> Iterator[None]:
        """Do not free an owner's claims of a key while it waits: its next look may get back the key of a lost one.

        Claims that are still orphans at the end are freed.
        """
        held_key = (op.wire, op.owner)
        if held_key in self.of_waiters:
            yield
            return
        self.of_waiters[held_key] = self._orphans.pop(held_key, None)
        try:
            yield
        finally:
            orphan = self.of_waiters.pop(held_key, None)
            if orphan is not None:
                self.put(held_key, orphan)

    def take_over(self, former: Orphans) -> None:
        """Free also the orphans of another event loop, which has ended."""
        for held_key, orphan in former.listed():
            self._orphans.setdefault(held_key, orphan.renewed())
            self._note_place(held_key, orphan)
        if self._orphans:
            self._try_later()

    async def until_asked(self, held_keys: Sequence[HeldKey], timeout: float) -> None:
        """Wait until the store has answered for each of these, for at most `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                while any(map(self._is_unasked, held_keys)):
                    await self.until_round_ends()
        except TimeoutError:
            pass

    def _is_unasked(self, held_key: HeldKey) -> bool:
        orphan = self._orphans.get(held_key)
        return orphan is not None and not orphan.again_at

    async def until_round_ends(self) -> None:
        """Wait until the store has answered the present round, or the next one."""
        if self._round_ended is None or self._round_ended.done():
            self._round_ended = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._round_ended)

    def retry_now(self) -> None:
        """Try without the rest of the pause, because the store is back."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._try_now()

    async def finish(self, timeout: float) -> None:
        """Try for `timeout` seconds more: the store may just be coming back."""
        self._closed = True
        if self._alarm is not None:
            self._alarm.cancel()
        if self._task is not None:
            await stop(self._task)
        try:
            async with asyncio.timeout(timeout):
                while self._orphans:
                    if not await self._round():
                        await asyncio.sleep(_PAUSE)
        except TimeoutError:
            pass

    def _leave_to_parent(self) -> None:
        """Forget everything in a forked child, and take nothing more: the parent frees its own orphans."""
        self._closed = True
        self._orphans.clear()
        self._places.clear()
        self.of_waiters.clear()

    def _try_later(self) -> None:
        # A timer, not a task that sleeps: a program that ends without closing leaves no task behind.
        if self._alarm is None and self._task is None:
            pause = self._backoff.pause(self._unanswered)
            self._alarm = asyncio.get_running_loop().call_later(pause, self._try_now)

    def _try_now(self) -> None:
        self._alarm = None
        self._task = asyncio.get_running_loop().create_task(self._try(), name="fastdedup-orphans")

    async def _try(self) -> None:
        answered = await self._round()
        while answered and self._due():
            answered = await self._round()
        if answered:
            self._backoff = _ANSWERED if self._orphans else UNANSWERED
        self._unanswered = 0 if answered else self._unanswered + 1
        self._task = None
        if self._orphans and not self._closed:
            self._try_later()

    def _due(self) -> list[tuple[HeldKey, Orphan]]:
        """Return the oldest orphans that need a look now; the last time, all of them."""
        now = asyncio.get_running_loop().time()
        due = (item for item in self._orphans.items() if self._closed or item[1].again_at <= now)
        return list(islice((item for item in due if self._asks(item[0][0])), _BATCH))

    async def _round(self) -> bool:
        """Look at the oldest orphans; False if the store did not answer for all of them."""
        looked_at = self._due()
        if not looked_at:
            return False
        self.under_way = frozenset(held_key for held_key, _ in looked_at)
        try:
            return await self._look(looked_at)
        finally:
            self.under_way = frozenset()
            if self._round_ended is not None and not self._round_ended.done():
                self._round_ended.set_result(None)

    async def _look(self, looked_at: list[tuple[HeldKey, Orphan]]) -> bool:
        """Look for the records of these orphans, and free them."""
        found = await self.ask([orphan.look(wire) for (wire, _), orphan in looked_at])
        held: list[tuple[HeldKey, Op]] = []
        for (held_key, orphan), reply in zip(looked_at, found, strict=True):
            if self._orphans.get(held_key) is not orphan:
                continue  # its owner has asked again meanwhile
            freeing = orphan.freeing(held_key, reply)
            if freeing is not None:
                held.append((held_key, freeing))
            elif is_unanswered(reply):
                # To the end, because in a store of nodes the other nodes need their turn.
                self._orphans.move_to_end(held_key)
            elif reply is Code.OK:
                self.freed += 1
                self.note_freed(held_key, orphan)
            else:
                self._nothing_found(held_key, orphan)
        answers = await self.ask([freeing for _, freeing in held])
        for (held_key, _), answer in zip(held, answers, strict=True):
            orphan_then = self._orphans.pop(held_key, None)
            self.freed += answer is Code.OK
            if orphan_then is not None and isinstance(answer, UnavailableError):
                self._orphans[held_key] = orphan_then  # to the end
            elif orphan_then is not None:
                self.note_freed(held_key, orphan_then)
        return not any(is_unanswered(reply) for reply in found) and not any(
            isinstance(answer, UnavailableError) for answer in answers
        )

    def note_freed(self, held_key: HeldKey, orphan: Orphan) -> None:
        """Note that an orphan is freed: only watch its key from now on, if a late copy of it may be freed too."""
        self._orphans.pop(held_key, None)
        if not self._closed and orphan.may_come_late(held_key[1]):
            orphan.watch()
            self._watches = True
            self._orphans[held_key] = orphan

    def _nothing_found(self, held_key: HeldKey, orphan: Orphan) -> None:
        if self._closed or orphan.looks + 1 >= _LOOKS:
            del self._orphans[held_key]
        else:
            orphan.look_later()
            self._watches = self._watches or not orphan.is_pending

    async def ask(self, ops: Sequence[Op]) -> list[object]:
        """Return a reply for each operation; UnavailableError if the store did not answer it."""
        futures = [self._asked(op) for op in ops]
        return await asyncio.gather(*futures, return_exceptions=True)

    def _asked(self, op: Op) -> asyncio.Future[Reply]:
        try:
            return self._submit(op)
        except DedupError as error:  # of this key alone, if a store is made of nodes
            refused: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
            refused.set_exception(
                error if isinstance(error, UnavailableError) else UnavailableError("not asked")
            )
            return refused


def is_unanswered(reply: object) -> bool:
    """True if the store did not answer; False if it answers that this key alone is refused."""
    return isinstance(reply, UnavailableError) and not isinstance(reply, RefusedAlone)
