"""One call of `first` or `first_many`: asks for its ids until each has an answer, or undoes all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import monotonic
from typing import Any, Final

from ..core.gate import Gate
from ..core.together import Together, parts_of
from ..errors import DedupError, UnavailableError
from ..kernel.codes import Code
from ..kernel.granted import GRANTED, LOOKS
from ..kernel.operations import Reply
from ..kernel.owners import owner_text
from .current_form import TRIES, CurrentForm
from .operations import FirstOp, LedgerTerms, SeenOp
from .orphan_ids import OrphanIds
from .views import FormerView, LedgerView

_NEED_NO_VERDICT: Final = (Code.OK, Code.ALREADY, Code.PENDING)
"""Replies for an id that need no verdict."""
_NOTHING_LEFT: Final = (Code.ALREADY, Code.PENDING, Code.FULL, Code.FOREIGN, Code.ELSEWHERE)
"""Replies that say that this call has not remembered the id."""


class ListedId(FirstOp):
    """One id of a list. It takes its answer itself: all of a list share one future."""

    __slots__ = ("_list",)

    def __init__(self, ids: Together, wire: bytes, entry: bytes, terms: LedgerTerms, id: bytes) -> None:
        self.wire = wire
        self.witness = None
        self.entry = entry
        self.terms = terms
        self.id = id
        self._list = ids
        self.answer: Any = None

    def take(self, reply: Reply) -> None:
        """Keep the store's reply."""
        self.answer = reply
        self._list.answered()

    def fail(self, error: BaseException) -> None:
        """Keep the error that came in the reply's place."""
        self.answer = error
        self._list.answered()


class FirstCall:
    """One call of `first` or `first_many`.

    Args:
        gate: the ledger's gate.
        form: the ledger's form.
        name: the call's owner field.
        nonce: the name in the form of its entries.
        named: the caller chose the name: the ids of the call are kept if it ends in an error.
    """

    def __init__(self, gate: Gate, form: CurrentForm, name: bytes, nonce: bytes, *, named: bool) -> None:
        self._gate = gate
        self._orphans = OrphanIds(gate.connection.orphans)
        self._form = form
        self._name = name
        self._nonce = nonce
        self._named = named
        # Mutable: all operations that were sent; those that took a given-up call's place; whether each id is new; how
        # often ids were sent, and how often they were sent again because another call might give them back.
        self._sent: list[FirstOp] = []
        self._in_its_place: list[FirstOp] = []
        self._is_new: dict[bytes, bool] = {}
        self._tries = 0
        self._pauses = 0

    async def answers(self, ids: Sequence[bytes], begun: FirstOp | None = None) -> dict[bytes, bool]:
        """Return whether each of some different ids is new.

        Args:
            ids: from `Ledger.bytes_of`.
            begun: the operation that was sent already for the only id, with its `answer`.

        Raises:
            any error of `Ledger.first`, after the ids of the call are forgotten.
        """
        try:
            await self._until_answered(ids, begun)
            # From now on `take_back` undoes these alone. Not before this point: until the last id of a list has its
            # answer, an error takes all of them back.
            self._sent = [op for op in self._sent if op.answer is Code.OK]
            GRANTED.update([op.place for op in self._sent])
            return self._is_new
        except BaseException as error:
            if isinstance(error, UnavailableError):
                error.owner = owner_text(self._name)
            if not self._named:
                self.take_back()
            if not isinstance(error, DedupError):
                raise
            fault = error
        try:
            await self._gate.until_taken_back(self._sent)
            raise fault
        finally:
            del fault  # it refers to this frame

    async def _until_answered(self, ids: Sequence[bytes], begun: FirstOp | None) -> None:
        if begun is None:
            pauses = await self._ask(ids)
        else:
            self._sent.append(begun)
            pauses = await self._judge([begun])
        while missing := [each for each in ids if each not in self._is_new]:
            if pauses:
                self._pauses += 1
                await asyncio.sleep(self._gate.connection.timeout / 2)
            else:
                self._tries += 1
            if self._tries == TRIES:
                raise self._form.changes_all_the_time()
            pauses = await self._ask(missing)

    async def _ask(self, ids: Sequence[bytes]) -> bool:
        """Ask once for each id. Return True if the caller must pause before it asks for those without an answer."""
        pauses = False
        for part in parts_of(ids):
            view = await self._form.present()
            if view.former is not None:
                absent = await self._look_into(view.former, part)
                if absent is None:
                    break
                pauses |= len(absent) < len([each for each in part if each not in self._is_new])
                part = absent
            pauses |= await self._judge(await self._send(view, part))
        return pauses

    async def _send(self, view: LedgerView, ids: Sequence[bytes]) -> Sequence[FirstOp]:
        """Ask the store for ids; the operations that return have their `answer`."""
        together, entry_of, terms, nonce = Together(), view.addresses.entry, view.terms, self._nonce
        ops = []
        for each in ids:
            wire, entry = entry_of(each, nonce)
            ops.append(ListedId(together, wire, entry, terms, each))
        if self._orphans:
            await self._orphans.until_free(ops)
            for op in ops:
                own = op.entry
                self._orphans.leave_to_call(op, named=self._named)
                if op.entry is not own:
                    self._in_its_place.append(op)
        self._sent += ops
        await together.send(ops, self._gate.begin)
        return ops

    # The store's answers

    async def _judge(self, ops: Sequence[FirstOp]) -> bool:
        """Take the answers that are final. Return True if the caller must pause before it asks for the others."""
        from_store = [op for op in ops if op.answer in _NEED_NO_VERDICT]
        for op in ops:
            if op.answer not in _NEED_NO_VERDICT:
                self._take_verdict(op)
        pauses = self._settle_pending(ops)
        if self._orphans:
            for op in await self._may_be_first([op for op in from_store if op.answer is Code.ALREADY]):
                op.answer = Code.STALE
        for op in ops:
            if op.answer is not Code.STALE:
                self._is_new[op.id] = op.answer is Code.OK
        return pauses

    def _take_verdict(self, op: FirstOp) -> None:
        """Put the verdict into the answer's place. It raises the errors of the verdict and of `CurrentForm.judge`."""
        if isinstance(op.answer, UnavailableError):
            self._form.distrust()
        op.answer = self._gate.verdict(op, op.answer)
        if op.answer is not Code.OK and op in self._in_its_place:
            self._orphans.add(op)  # it is not done: the given-up call's id must still be removed
        if op.answer not in _NEED_NO_VERDICT:
            self._form.judge(op.answer)

    def _settle_pending(self, ops: Sequence[FirstOp]) -> bool:
        """Answer the ids that another call may still undo.

        Such an id is ALREADY if this process knows it from the store, or undoes it itself, or if it was sent too
        often. Else it is STALE: it is sent again after a pause. Return True if there is such an id.
        """
        pauses = False
        # Such an entry is younger than two timeouts and a tick; an older one of this process is not the one there.
        young = 4 * self._gate.connection.timeout + 1.0
        for op in ops:
            if op.answer is Code.PENDING:
                stays = self._pauses >= LOOKS or GRANTED.lately(op.place, young) or self._orphans.knows(op)
                op.answer = Code.ALREADY if stays else Code.STALE
                pauses |= not stays
        return pauses

    async def _may_be_first(self, duplicates: Sequence[FirstOp]) -> Sequence[FirstOp]:
        """Return which duplicates must be sent again: a call that was given up may have remembered them.

        That call did not get True. A call without a name takes its place, see `OrphanIds.leave_to_call`.
        """
        again = [op for op in duplicates if self._orphans.knows(op)]
        if self._named and self._tries + 1 == TRIES:
            return []  # the given-up id is not there: the id is another call's
        for op in again:
            if self._named or self._orphans.is_removing(op):
                await self._orphans.free_now(op)
        return again

    def take_back(self) -> None:
        """Let the store forget this call's ids as soon as it answers, because no caller gets the call's answers.

        Each is removed from the place that it was sent to, even if the ledger has another form by now. An id that was
        refused, here or by the store, left nothing there. Such ids would drive out the others.
        """
        for op in self._sent:
            if op.answer not in _NOTHING_LEFT:
                GRANTED.discard(op.place)
                if op.may_be_there or op in self._in_its_place:
                    self._orphans.add(op)
                self._gate.took_back(op)

    # The ids that the ledger remembered before it was resized

    async def _look_into(self, former: FormerView, ids: Sequence[bytes]) -> list[bytes] | None:
        """Answer the ids that are remembered by the former form, unless another call may still undo that.

        Return the ids that are not remembered; None if the store has another form by now.

        From the switch on no id is remembered by the former form: the store's scripts refuse that, by the time of
        the same node that answers here. So an id that is not found here stays absent, and the present form decides.
        """
        ops = []
        for each in ids:
            wire, entry = former.addresses.entry(each, self._nonce)
            ops.append(FirstOp(wire, entry, former.terms, each))
        # The look does not tell how old an id is. The youngest came just before the switch.
        young = monotonic() < former.since + 2 * self._gate.connection.timeout and self._pauses < LOOKS
        absent = []
        for op, reply in zip(ops, await self._replies_of(ops), strict=True):
            if reply is Code.ABSENT:
                absent.append(op.id)
            elif reply is Code.OK or (reply is Code.ALREADY and (not young or GRANTED.lately(op.place))):
                self._is_new[op.id] = reply is Code.OK
            elif reply is not Code.ALREADY:
                self._form.judge(reply)
                return None
        return absent

    async def _replies_of(self, ops: Sequence[FirstOp]) -> Sequence[Reply]:
        """Return for each id ALREADY, ABSENT, or OK if this call has remembered it; or the error instead.

        The ids of a given-up call are forgotten before, because that call did not get True.
        """
        orphans = self._orphans
        if orphans:
            await orphans.until_free(ops)
        # A given-up id may be removed between the store's answer and the next line.
        suspects = {op.place for op in ops if orphans and orphans.knows(op)}
        replies = await self._looked(ops)
        again = []
        for number, op in enumerate(ops):
            if replies[number] is Code.OK:
                orphans.leave_to_call(op, named=True)
            elif replies[number] is Code.ALREADY and (op.place in suspects or orphans.knows(op)):
                again.append(number)
        if again:
            await orphans.until_free([ops[number] for number in again])
            for number in again:
                await orphans.free_now(ops[number])
            for number, reply in zip(
                again, await self._looked([ops[number] for number in again]), strict=True
            ):
                replies[number] = reply
        return replies

    async def _looked(self, ops: Sequence[FirstOp]) -> list[Reply]:
        looks = [SeenOp(op.wire, op.entry, op.terms, op.id) for op in ops]
        return list(await asyncio.gather(*map(self._gate.run, looks)))
