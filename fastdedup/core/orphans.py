"""Takes back what was given up: a claim whose reply never came may hold its key for nobody.

A claim that timed out, or whose caller was cancelled while the store was silent, may have taken effect all the
same. The engine names it here; as soon as the store answers, its record is read and, where this owner holds it,
released with that very fence, so that a repetition never hits the next holding. A token that such a claim consumed
is issued again. An owner that the caller chose is left alone: the same name gets its own claim back. A key that is to
be free later gets a lease that ends then.

If nothing is found, the key is looked at again, after pauses that double: a server that was frozen may find the old
command in its socket only after it has answered the new one, and a proxy may pass it on much later. So it is after
something was taken back, because what was sent twice may also arrive twice. So is the key of a claim that was sent
more than once, after its release: see `watch`.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice

from ..errors import DedupError, UnavailableError
from ..events import Event, UndoOverflow
from ..forking import InChild
from ..kernel.keyspace import names_of
from ..kernel.operations import ClaimOp, Op, ReadOp, ReleaseOp, RenewOp
from ..kernel.owners import is_drawn
from ..kernel.replies import Code, RefusedAlone, Reply, Stored
from ..ledger.ids import NONCE_BYTES
from ..ledger.operations import FirstOp, ForgetIdOp
from ..tasks import stop

MAX_GIVEN_UP = 10_000
"""Claims remembered at most. The oldest is dropped first, with an event: its key stays held until the lease ends."""
_BATCH = 256
_FIRST_PAUSE = 0.02
_LONGEST_PAUSE = 0.4
_GROWTH = 1.6
_SLACK = 1024
_SECOND_LOOK = 0.3
"""Seconds after which a key is looked at again under which nothing was found; each further pause is twice as long."""
_PENDING_LOOKS = 2
"""Looks that find nothing, after which an entry counts as over and is only watched."""
_LOOKS = 8
"""Looks that find nothing, after which a key is watched no longer: within 38 seconds."""

Submit = Callable[[Op], asyncio.Future[Reply]]
Asks = Callable[[bytes], bool]
Holding = tuple[bytes, bytes]
"""A store key and an owner field."""


class GivenUp:
    """One claim, or one id of a ledger, that was given up.

    Attributes:
        consumed: it consumed a token.
        fence: the fence of its holding; 0 where no answer has told it.
        id: what remembered an id; None for a claim.
        free_at: when its key shall be free, in the loop's time; 0 for at once.
        kept_ms: how long its record outlives its lease.
        again_at: when to look again, in the loop's time, once nothing was found; 0 before.
        looks: how often nothing was found.
        removed: the store was asked to remove an id; that may come late.
    """

    __slots__ = ("again_at", "consumed", "fence", "free_at", "id", "kept_ms", "looks", "removed")

    def __init__(
        self,
        consumed: bool,
        id: FirstOp | None = None,
        fence: int = 0,
        free_at: float = 0.0,
        kept_ms: int = 0,
    ) -> None:
        self.consumed = consumed
        self.fence = fence
        self.id = id
        self.free_at = free_at
        self.kept_ms = kept_ms
        self.again_at = 0.0
        self.looks = 0
        self.removed = False

    @property
    def is_pending(self) -> bool:
        """False once it is only watched, because it is likely that nothing is left."""
        return self.looks < _PENDING_LOOKS

    def look_later(self) -> None:
        """Set the time of the next look, after a look that found nothing."""
        self.again_at = asyncio.get_running_loop().time() + _SECOND_LOOK * 2**self.looks
        self.looks += 1

    def watch(self) -> None:
        """Look for whatever a late copy of it leaves from now on, and count it as over."""
        self.free_at = 0.0
        self.looks = max(self.looks, _PENDING_LOOKS)
        self.again_at = asyncio.get_running_loop().time() + _SECOND_LOOK

    def look(self, wire: bytes) -> Op:
        """Return the operation that finds out what it left; of an id, that removes it at once, by its nonce."""
        if self.id is None:
            return ReadOp(wire)
        self.removed = True
        return ForgetIdOp(wire, self.id.entry, self.id.terms)

    def freeing(self, holding: Holding, fence: int) -> ReleaseOp | RenewOp:
        """Return the operation that frees the key of a holding that was found: now, or by a lease that ends later."""
        wire, owner = holding
        left_ms = math.ceil((self.free_at - asyncio.get_running_loop().time()) * 1000)
        if left_ms <= 0:
            return ReleaseOp(wire, owner, fence, consumed=self.consumed)
        return RenewOp(wire, owner, fence, left_ms, left_ms + self.kept_ms)


class UndoList:
    """Claims that were given up after they were sent. It keeps a task only while there are any.

    Args:
        submit: hands an operation to the engine; may raise as that does.
        report: called with each event.
        asks: returns whether the engine would send an operation of that store key. Where it would not, because a
            breaker is open, the key waits for its turn and costs nothing: 250 refusals block the loop for 2.5 ms.
    """

    def __init__(
        self,
        submit: Submit,
        report: Callable[[Event], None],
        asks: Asks = lambda wire: True,
        *,
        most: int = MAX_GIVEN_UP,
    ) -> None:
        self._submit = submit
        self._report = report
        self._asks = asks
        self.most = most
        """How many orphans are kept; the oldest beyond it are left to the end of their leases."""
        self.looked_on: dict[Holding, GivenUp | None] = {}
        """The orphans of owners that look on, which `while_it_waits` leaves alone; None for an owner without one."""
        # Mutable: what was given up, by store key and owner, the oldest first; the entries of ids by place, some of
        # which are over; the places that the store is asked about now, and when that ends; whether some are only
        # watched; the pause before the next try, the timer that ends it, and the try itself.
        self._given_up: OrderedDict[Holding, GivenUp] = OrderedDict()
        self._places: dict[bytes, list[bytes]] = {}
        self._under_way: set[bytes] = set()
        self._watches = False
        self._round_ended: asyncio.Future[None] | None = None
        self._pause = _FIRST_PAUSE
        self._alarm: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self.undone = 0
        """Claims and ids that were taken back from the store."""
        self._in_child = InChild(self._leave_to_parent)

    def __len__(self) -> int:
        return sum(given_up.is_pending for given_up in self._given_up.values())

    def __bool__(self) -> bool:
        return bool(self._given_up)

    @property
    def is_closed(self) -> bool:
        """True once `finish` was called: then nothing more is remembered."""
        return self._closed

    def add(self, op: ClaimOp, fence: int = 0, free_at: float = 0.0, *, asked: bool = False) -> None:
        """Remember a claim that was sent and whose reply did not come, or whose release did not take effect.

        Args:
            op: the claim.
            fence: of the holding, where it is known: a later one of the same owner is another claim's.
            free_at: when its key shall be free, in the loop's time; 0 for at once.
            asked: its owner has asked for its release, so it does not matter whether the caller chose the name.
        """
        if self._closed:
            return
        if not asked and (op.named or not is_drawn(op.owner)):  # a name of the caller's own gets it back
            return
        terms = op.terms
        given_up = GivenUp(terms.consumes, None, fence, free_at, terms.keep_ms - terms.lease_ms)
        holding = op.wire, op.owner
        if holding in self.looked_on:
            self.looked_on[holding] = given_up
        else:
            self._put(holding, given_up)

    def watch(self, op: ClaimOp) -> None:
        """Look again and again, for 38 seconds, whether a late copy of a claim takes a key.

        For a claim that was sent more than once, and that was released or told of another owner: an earlier sending
        may still lie in a proxy or a socket.
        """
        if self._closed or op.named or not is_drawn(op.owner):
            return
        holding, watched = (op.wire, op.owner), GivenUp(op.terms.consumes)
        watched.watch()
        if holding in self.looked_on:
            self.looked_on[holding] = self.looked_on[holding] or watched
            return
        self._watches = True
        self._put(holding, watched)

    def add_id(self, op: FirstOp) -> None:
        """Remember an id that a call may have remembered, and of which nobody was told."""
        if not self._closed:
            self._places.setdefault(op.place, []).append(op.entry)
            self._put((op.wire, op.entry), GivenUp(False, op))
            if len(self._places) > 2 * len(self._given_up) + _SLACK:
                self._places = {place: kept for place in [*self._places] if (kept := self._entries(place))}

    async def until_free(self, ops: Sequence[FirstOp]) -> None:
        """Wait until none of these ids is just being taken back: that could come behind what is sent now."""
        while not self._under_way.isdisjoint([op.place for op in ops]):
            await self._end_of_round()

    async def until_asked(self, holdings: Sequence[Holding], timeout: float) -> None:
        """Wait until the store has answered what each of these has left, for `timeout` seconds at most."""
        try:
            async with asyncio.timeout(timeout):
                while any(map(self._is_unasked, holdings)):
                    await self._end_of_round()
        except TimeoutError:
            pass

    def _is_unasked(self, holding: Holding) -> bool:
        given_up = self._given_up.get(holding)
        return given_up is not None and not given_up.again_at

    async def _end_of_round(self) -> None:
        if self._round_ended is None or self._round_ended.done():
            self._round_ended = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._round_ended)

    def keep_id(self, op: FirstOp, *, named: bool) -> None:
        """Leave an id alone: the call that gave it up asks for it again.

        A call without a name takes the place of a call that was given up, and its nonce. So it is told True if that
        call has taken effect, or takes effect later because its command still lies in a socket. It takes no place
        that the store was asked to remove: the removal may come late, and would remove this call's id.
        """
        if self._given_up.pop((op.wire, op.entry), None) is None and not named and self._places:
            for entry in self._entries(op.place):
                if not self._given_up[op.wire, entry].removed:
                    del self._given_up[op.wire, entry]
                    op.entry = entry
                    break

    def is_removing(self, op: FirstOp) -> bool:
        """True if the store was asked to remove what a given-up call has remembered of this id."""
        return any(self._given_up[op.wire, entry].removed for entry in self._pending_entries(op.place))

    async def take_back_id(self, op: FirstOp) -> None:
        """Take back now what was given up of an id: another call asks for it, and cannot take that call's place.

        Raises UnavailableError where the store did not answer: whether the id is new is then not known.
        """
        holdings = [(op.wire, entry) for entry in self._pending_entries(op.place)]
        answers = await self._ask([self._given_up[holding].look(op.wire) for holding in holdings])
        for holding, answer in zip(holdings, answers, strict=True):
            if isinstance(answer, UnavailableError):
                raise answer
            if holding in self._given_up and (answer is Code.OK or answer is Code.ABSENT):
                self._taken_back(holding, self._given_up[holding])

    def knows(self, op: FirstOp) -> bool:
        """True where the id that a call asked for may be remembered for a call that was given up."""
        return bool(self._places) and bool(self._pending_entries(op.place))

    def _pending_entries(self, place: bytes) -> list[bytes]:
        """Return those of `_entries` of which it is not likely that nothing is left."""
        entries = self._entries(place)
        wires = place[: len(place) - len(entries[0]) + NONCE_BYTES] if entries else b""
        return [entry for entry in entries if self._given_up[wires, entry].is_pending]

    def _entries(self, place: bytes) -> list[bytes]:
        """Return the given-up entries of an id; what was given up meanwhile for good is dropped from the list."""
        listed = self._places.pop(place, None)
        if listed is None:
            return []
        entries = [
            entry
            for entry in listed
            if (place[: len(place) - len(entry) + NONCE_BYTES], entry) in self._given_up
        ]
        if entries:
            self._places[place] = entries
        return entries

    def all(self) -> list[Holding]:
        """Return what is to be taken back."""
        return list(self._given_up)

    def orphans(self) -> list[tuple[Holding, GivenUp]]:
        """Return the store key and owner of each claim or id that is to be freed, with what is known of it."""
        return list(self._given_up.items())

    def keep(self, op: ClaimOp) -> bool:
        """Leave a claim alone: its owner was told of it after all, or asks for it again. True if it was given up."""
        holding = (op.wire, op.owner)
        given_up = self._given_up.pop(holding, None) if self._given_up else None
        if holding in self.looked_on:
            given_up = given_up or self.looked_on[holding]
            self.looked_on[holding] = None
        return given_up is not None

    @contextmanager
    def while_it_waits(self, op: ClaimOp) -> Iterator[None]:
        """Leave an owner's claims of a key alone while it looks on: the next look may get back what a lost one took.

        What is still given up at the end is taken back.
        """
        holding = (op.wire, op.owner)
        if holding in self.looked_on:
            yield
            return
        self.looked_on[holding] = self._given_up.pop(holding, None)
        try:
            yield
        finally:
            given_up = self.looked_on.pop(holding, None)
            if given_up is not None and not self._closed:
                self._watches = self._watches or not given_up.is_pending
                self._put(holding, given_up)

    def _put(self, holding: Holding, given_up: GivenUp) -> None:
        self._given_up[holding] = given_up
        if len(self._given_up) > self.most and self._watches:
            # These first: nothing is likely to be left of them.
            self._watches = False
            for each in [each for each, kept in self._given_up.items() if not kept.is_pending]:
                del self._given_up[each]
        if len(self._given_up) > self.most:
            (wire, _), _ = self._given_up.popitem(last=False)
            self._report(UndoOverflow(*names_of(wire)))
        self._try_later()

    def take_over(self, former: UndoList) -> None:
        """Free also the orphans of another list, whose event loop has ended."""
        for holding, given_up in former.orphans():
            mine = GivenUp(given_up.consumed, given_up.id, given_up.fence, given_up.free_at, given_up.kept_ms)
            mine.removed = given_up.removed
            self._given_up.setdefault(holding, mine)
            if given_up.id is not None:
                self._places.setdefault(given_up.id.place, []).append(given_up.id.entry)
        if self._given_up:
            self._try_later()

    def store_is_back(self) -> None:
        """Try without waiting for the pause to end."""
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
                while self._given_up:
                    if not await self._round():
                        await asyncio.sleep(_FIRST_PAUSE)
        except TimeoutError:
            pass

    def _leave_to_parent(self) -> None:
        """Forget everything in a forked child: what the parent gave up, the parent takes back."""
        self._given_up.clear()
        self._places.clear()
        self.looked_on.clear()

    def _try_later(self) -> None:
        # A timer, not a task that sleeps: a program that ends without closing leaves no task behind.
        if self._alarm is None and self._task is None:
            pause = self._pause * (0.5 + 0.5 * random.random())
            self._alarm = asyncio.get_running_loop().call_later(pause, self._try_now)

    def _try_now(self) -> None:
        self._alarm = None
        self._task = asyncio.get_running_loop().create_task(self._try(), name="fastdedup-undo")

    async def _try(self) -> None:
        answered = await self._round()
        while answered and self._due():
            answered = await self._round()
        self._pause = _FIRST_PAUSE if answered else min(self._pause * _GROWTH, _LONGEST_PAUSE)
        if answered and self._given_up:
            self._pause = _SECOND_LOOK
        self._task = None
        if self._given_up and not self._closed:
            self._try_later()

    def _due(self) -> list[tuple[Holding, GivenUp]]:
        """Return the oldest that are to be looked at now; the last time, all of them."""
        now = asyncio.get_running_loop().time()
        due = (item for item in self._given_up.items() if self._closed or item[1].again_at <= now)
        return list(islice((item for item in due if self._asks(item[0][0])), _BATCH))

    async def _round(self) -> bool:
        """Look at the oldest; False where the store did not answer for all of them."""
        looked_at = self._due()
        if not looked_at:
            return False
        self._under_way = {given_up.id.place for _, given_up in looked_at if given_up.id is not None}
        try:
            return await self._look(looked_at)
        finally:
            self._under_way = set()
            if self._round_ended is not None and not self._round_ended.done():
                self._round_ended.set_result(None)

    async def _look(self, looked_at: list[tuple[Holding, GivenUp]]) -> bool:
        """Find out what these have left, and take it back."""
        found = await self._ask([given_up.look(wire) for (wire, _), given_up in looked_at])
        held: list[tuple[Holding, Op]] = []
        for (holding, given_up), record in zip(looked_at, found, strict=True):
            if self._given_up.get(holding) is not given_up:
                continue  # its owner has asked again meanwhile
            if isinstance(record, Stored) and is_held(record, holding[1], given_up):
                held.append((holding, given_up.freeing(holding, record.fence)))
            elif is_unanswered(record):
                # To the end: where a store is made of parts, the others' turn must come.
                self._given_up.move_to_end(holding)
            elif record is Code.OK:  # an id, which was removed just now
                self.undone += 1
                self._taken_back(holding, given_up)
            else:
                self._nothing_found(holding, given_up)
        answers = await self._ask([freeing for _, freeing in held])
        for (holding, _), answer in zip(held, answers, strict=True):
            given_up_then = self._given_up.pop(holding, None)
            self.undone += answer is Code.OK
            if given_up_then is not None and isinstance(answer, UnavailableError):
                self._given_up[holding] = given_up_then  # to the end
            elif given_up_then is not None:
                self._taken_back(holding, given_up_then)
        return not any(is_unanswered(record) for record in found) and not any(
            isinstance(answer, UnavailableError) for answer in answers
        )

    def _taken_back(self, holding: Holding, given_up: GivenUp) -> None:
        """Only watch a key from now on.

        Not that of an owner with a name, who may claim it again, nor of a holding that was known by its fence: its
        owner may have been handed on, and hold the key anew.
        """
        self._given_up.pop(holding, None)
        if not self._closed and not given_up.fence and (given_up.id is not None or is_drawn(holding[1])):
            given_up.watch()
            self._watches = True
            self._given_up[holding] = given_up

    def _nothing_found(self, holding: Holding, given_up: GivenUp) -> None:
        if self._closed or given_up.looks + 1 >= _LOOKS:
            del self._given_up[holding]
        else:
            given_up.look_later()
            self._watches = self._watches or not given_up.is_pending

    async def _ask(self, ops: list[Op]) -> list[object]:
        """Return a reply for each; an operation that the store did not answer has UnavailableError."""
        futures = [self._asked(op) for op in ops]
        return await asyncio.gather(*futures, return_exceptions=True)

    def _asked(self, op: Op) -> asyncio.Future[Reply]:
        try:
            return self._submit(op)
        except DedupError as error:  # of this key alone, where a store is made of parts
            refused: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
            refused.set_exception(
                error if isinstance(error, UnavailableError) else UnavailableError("not asked")
            )
            return refused


def is_unanswered(reply: object) -> bool:
    """True where the store did not answer; False where it answers that this key alone is refused."""
    return isinstance(reply, UnavailableError) and not isinstance(reply, RefusedAlone)


def is_held(record: Stored, owner: bytes, given_up: GivenUp) -> bool:
    """True where a record says that this owner holds the key as he gave it up, or consumed the token."""
    if record.owner != owner or given_up.fence not in (0, record.fence):
        return False
    return record.state in "PW" or (given_up.consumed and record.state == "S")
