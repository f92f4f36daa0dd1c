"""`Ledger`: remembers ids for days in a tenth of the memory of records, and answers "seen before?", nothing else."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Sequence
from random import sample
from time import monotonic, perf_counter
from typing import Any, Final, Self, TypeVar

from ..checks import Seconds, check_count, check_seconds, milliseconds, shown
from ..core.audit import check_reason, tell_forgotten
from ..core.connection import Connection
from ..core.counters import outcome_of
from ..core.gate import Gate
from ..core.orphans import MAX_GIVEN_UP
from ..core.together import Together
from ..errors import ConfigError, DedupError, LedgerFullError, UnavailableError, UsageError, foreign
from ..events import LedgerFilling
from ..kernel.granted import GRANTED, LOOKS
from ..kernel.operations import Code, ForgetOp, ReadOp, Reply, StoredForm, Verb, Weight
from ..kernel.owners import draw_owner, owner_field, owner_text
from ..keys import check_namespace
from ..model import BreakerState, LedgerResize, LedgerStats, Record
from ..stores.base import NO_EVICTION, EvictingStore
from . import former_ids
from .forms import DENSE_WIDTH, FILLING, SLOTS, LedgerForm
from .ids import (
    NONCE_BYTES,
    IdPlaces,
    id_bytes,
    ledger_wire,
    listed_bytes,
    number_bytes,
    record_wire,
)
from .listed_ids import ListedId, settle_pending
from .operations import FOREVER_MS, FirstOp, ForgetIdOp, IdPlace, LedgerOp, LedgerTerms, SeenOp, WeighOp
from .views import (
    LEAST_WINDOW,
    MOST_CAPACITY,
    PACE,
    FormerView,
    LedgerView,
    Write,
    check_width,
    form_in,
    nonce_of,
    over_ms,
    patience_of,
)

_KEEP_MS: Final = 86_400_000
"""Milliseconds for which a form outlives two windows of which nobody asked for the ledger."""
_SAMPLE: Final = 1000
_SAMPLE_DENSE: Final = 2000
"""Buckets that are weighed to learn what a ledger holds; a dense one has most of its ids in a few neighbours."""
_AT_ONCE: Final = 2000
"""Ids of a list that are asked for together: more would wait beyond the deadline, and block the loop."""
_HOUR: Final = 3600.0
_LOOK_AGAIN: Final = 600.0
"""Seconds after which a ledger that seemed to fill, and did not, is counted again."""
_TRIES: Final = 5
_OK: Final = Code.OK  # naming an enum's member through its class costs 50 ns on Python 3.11
_ALREADY: Final = Code.ALREADY
_PENDING: Final = Code.PENDING
_TOLD: Final = (Code.OK, Code.ALREADY, Code.PENDING)
"""Answers to a call for an id that need no verdict."""

AnyFirst = TypeVar("AnyFirst", bound=FirstOp)


class Ledger:
    """Remembers ids for a window, as `dedup.ledger` makes it. Use it where only "seen before?" is asked.

    An id costs some 12 bytes of Redis memory, a record 145 to 190. There is no owner, no lease and no result: the id
    is remembered before the work is done. Where the work may fail half-way, claim instead. `first` does not see the
    claims (`remember=`) that are at work: for one effect take one of the two.

    Every process that uses the ledger names the same capacity, window and width. The first one founds it.

    While the store does not answer, the namespace's policy does. `Reject` raises UnavailableError. `LocalLRU` answers
    for this process alone, and reports a `Degraded` event for each answer, as a bool has no place for a mark.
    """

    def __init__(
        self,
        gate: Gate,
        name: str,
        *,
        window: Seconds,
        capacity: int,
        exact: bool = True,
        width: int | None = None,
        write: Write = "set",
        dense: bool = False,
        allow_eviction: bool = False,
    ) -> None:
        check_namespace(name, "a ledger's name")
        check_seconds(window, "window", least=LEAST_WINDOW)
        if check_count(capacity, "capacity") > MOST_CAPACITY:
            raise ConfigError(f"capacity must be at most {MOST_CAPACITY}, got {shown(capacity)}")
        if write not in ("set", "append"):
            raise ConfigError(f"write must be 'set' or 'append', got {shown(write)}")
        self._gate = gate
        gate.connections.common.expect(gate.settings.namespace, "first")
        self.name = name
        """The ledger's name."""
        self._window_ms = milliseconds(window, "window")
        self._capacity = capacity
        self._width = check_width(exact, width, dense, write)
        self._dense = self._width == DENSE_WIDTH
        self._write = write
        self._patience = patience_of(gate.connection.timeout)
        self.store_key = ledger_wire(gate.settings.namespace, name)
        """The key in the store of its form, which says capacity, width and window."""
        self._allows_eviction = bool(allow_eviction)
        self.view: LedgerView | None = None
        """The ledger's form as this process read it last, and what follows from it; None before the first use."""
        # Mutable: the task that reads the form; the text of a form that the store has called stale, and whether it
        # was thought to have switched; when its filling may next be told.
        self._opening: asyncio.Task[LedgerView] | None = None
        self._stale: tuple[bytes, bool] | None = None
        self._tell_from = 0.0

    def __repr__(self) -> str:
        return f"<Ledger {self.name!r} capacity={self._capacity} window={self._window_ms / 1000:g}>"

    @property
    def window(self) -> float:
        """Seconds for which an id is remembered; the truth is up to 1 % longer."""
        return self._window_ms / 1000

    @property
    def capacity(self) -> int:
        """Ids in one window that it is planned for."""
        return self._capacity

    async def open(self) -> Self:
        """Found the ledger, or check its form, now instead of at the first use, so that mistakes show at start-up.

        Errors as for `first`.
        """
        await self._look_again()
        return self

    async def first(self, id: Any, *, owner: str | None = None) -> bool:
        """Remember an id. Returns True where this call is the first within the window, else False.

        Args:
            id: text, bytes, an integer or a UUID, of 1 byte to 64 KiB. Text and its UTF-8 are one id, and so are an
                integer and its decimal text.
            owner: your own name for this call, of up to 63 bytes: the same name gets the same answer again. Without
                it, a call that ends in an error takes back what it remembered: before the error is raised, if the
                store answers within one further `timeout`.

        Raises:
            UnavailableError: the store did not answer and the policy does not either. Call again, with
                `owner=error.owner` or without.
            LedgerFullError: the ledger holds some 18 times its capacity.
            ConfigError: the ledger was founded with other settings, or the store evicts keys.
            InvalidKeyError: the id or the owner cannot be used.
            ForeignRecordError: its bucket holds a value that fastdedup did not write.
            UsageError: not open, closed, or another event loop.
        """
        data = self.bytes_of(id)
        name = draw_owner() if owner is None else owner_field(owner)
        nonce, named = nonce_of(name, self._patience), owner is not None
        gate = self._gate
        since = gate.now
        op: FirstOp | None = None
        try:
            tries, pauses = -1, 0
            while tries + 1 < _TRIES:
                tries += 1
                view = self.view
                if view is None or view.until <= monotonic():
                    view = await self._look_again()
                if view.former is not None:
                    known = await self._in_former(view.former, [data], nonce)
                    if known is None:
                        continue
                    if data in known:
                        self._count([known[data]], since)
                        return known[data]
                wire, entry = view.addresses.entry(data, nonce)
                op = FirstOp(wire, entry, view.terms, data)
                undo = gate.connection.undo
                if undo:
                    await undo.until_free([op])
                    undo.keep_id(op, named=named)
                # Awaited here and not in a coroutine of its own: that costs 15 % of a call.
                try:
                    reply: Any = await gate.begin(op)
                except (UnavailableError, asyncio.CancelledError) as error:
                    reply = self._without_reply(op, error, named=named)
                if reply is not _OK:
                    reply = self._verdict(op, entry, reply, name, named=named)
                if reply is _PENDING:
                    if pauses < LOOKS and op.place not in GRANTED and not (undo and undo.knows(op)):
                        pauses += 1
                        tries -= 1
                        await asyncio.sleep(gate.connection.timeout / 2)
                        continue
                    reply = _ALREADY
                if reply is _OK:
                    GRANTED.add(op.place)
                    if view.terms.seen_fill > view.form.filling_from:
                        self._is_filling(view)
                    self._count([True], since)
                    return True
                if reply is not _ALREADY:
                    self._judge(reply)
                elif not await self._may_be_first([op], tries, named=named):
                    self._count([False], since)
                    return False
            raise self._changes_all_the_time()
        except DedupError as error:
            fault = error
        try:
            await gate.until_taken_back([] if op is None else [op])
            self._count_error(fault, since)
            raise fault
        finally:
            del fault  # it refers to this frame

    async def first_many(self, ids: Iterable[Any], *, owner: str | None = None) -> list[bool]:
        """Remember ids, as `first` does each; of one that stands in the list twice the first is True.

        Either all are answered, or none is remembered: where one cannot be answered, what the others remembered is
        taken back, and the error raised. With `owner=` it is kept, and the same call gets the same answers again.

        A list has at most 10,000 ids; a longer one raises UsageError.
        """
        data = listed_bytes(ids, dense=self._dense)
        if len(data) > MAX_GIVEN_UP:
            raise UsageError(
                f"first_many takes at most {MAX_GIVEN_UP} ids, got {len(data)}: more cannot be taken back together "
                "after an error; pass them in several lists"
            )
        name = draw_owner() if owner is None else owner_field(owner)
        asked: list[ListedId] = []
        since = self._gate.now
        try:
            nonce = nonce_of(name, self._patience)
            answers = await self._answers(dict.fromkeys(data), nonce, asked, named=owner is not None)
        except BaseException as error:
            if isinstance(error, UnavailableError):
                error.owner = owner_text(name)
            if owner is None:
                self._take_back(asked)
            if not isinstance(error, DedupError):
                raise
            fault = error
        else:
            # The first of equal ids takes the answer away, so the others are duplicates.
            answered = [answers.pop(each, False) for each in data]
            self._count(answered, since)
            return answered
        try:
            await self._gate.until_taken_back(asked)
            self._count_error(fault, since)
            raise fault
        finally:
            del fault  # it refers to this frame

    def _count(self, answers: list[bool], since: float) -> None:
        observers, namespace = self._gate.observers, self._gate.settings.namespace
        if (facts := observers.facts) is not None:
            facts.asked_ledger(namespace, self.name, answers)
        if (counters := observers.counters) is not None:
            counters.observe(namespace, Verb.FIRST.value, "ok", perf_counter() - since)

    def _count_error(self, error: DedupError, since: float) -> None:
        counters = self._gate.observers.counters
        if counters is not None:
            namespace = self._gate.settings.namespace
            counters.observe(namespace, Verb.FIRST.value, outcome_of(error), perf_counter() - since)

    async def seen(self, id: Any) -> bool:
        """Return whether an id is remembered. Nothing is changed, so the answer may be outdated when it arrives.

        Errors as for `first`.
        """
        data = self.bytes_of(id)
        for _ in range(_TRIES):
            view = await self._present_view()
            reply: Reply = Code.ABSENT
            if view.former is not None:
                reply = await former_ids.seen(self._gate, view.former, data)
            if reply is Code.ABSENT:
                reply = await self._gate.run(SeenOp(*view.addresses.find(data), view.terms, data))
            if reply is Code.ALREADY or reply is Code.ABSENT:
                return reply is Code.ALREADY
            self._judge(reply)
        raise self._changes_all_the_time()

    async def forget(self, id: Any, *, reason: str | None = None) -> bool:
        """Remove an id, so that it is new again; False where it was not remembered. Errors as for `first`.

        Of a claim that was completed a moment ago (`remember=`) the record goes on answering, for a minute. It leaves
        a `KeyForgotten` event with who and why; `reason`: up to 256 characters.
        """
        why, data = check_reason(reason), self.bytes_of(id)
        shown_id = f"{self.name}/{data.decode(errors='backslashreplace')}"
        try:
            found = await self.forget_bytes(data, why)
        except BaseException:  # it may have taken effect
            tell_forgotten(self._gate, "id", shown_id, None, why)
            raise
        tell_forgotten(self._gate, "id", shown_id, found, why)
        return found

    async def forget_bytes(self, data: bytes, reason: str) -> bool:
        """Remove an id as `forget` does, but report no event: for an integration that reports it itself.

        Args:
            data: the id as `bytes_of` returns it.
            reason: goes with the operation, see `ForgetOp`; "" for none given.
        """
        for _ in range(_TRIES):
            view = await self._present_view()
            op = ForgetIdOp(*view.addresses.find(data), view.terms, data, reason)
            GRANTED.discard(op.place)
            reply = await self._gate.run(op)
            if view.former is not None and reply is Code.ABSENT:
                reply = await former_ids.forget(self._gate, view.former, data, reason)
            if reply is Code.OK or reply is Code.ABSENT:
                return reply is Code.OK
            self._judge(reply)
        raise self._changes_all_the_time()

    async def record_of(self, key: str) -> Record | None:
        """Return the record of a claim whose success this ledger remembers (`remember=`), or None. For inspection."""
        wire = await self._record_wire(key)
        reply = await self._gate.run(ReadOp(wire))
        return None if reply == Code.ABSENT else self._gate.record(key, reply)

    async def forget_record(self, key: str) -> bool:
        """Remove that record, whoever owns it; False where there was none. The ledger's entry stays: see `forget`."""
        return await self._gate.run(ForgetOp(await self._record_wire(key))) == Code.OK

    async def _record_wire(self, key: str) -> bytes:
        gate, (bucket, _, _) = self._gate, await self.place_of(key)
        return record_wire(bucket, gate.claims.wire(key), gate.settings.namespace)

    async def stats(self) -> LedgerStats:
        """Return what the ledger holds, from up to 1,000 buckets, 2,000 of a dense one. Errors as for `first`."""
        view = await self._present_view()
        form = view.form
        ids, size, a_bucket = await self._weighed(form, view.addresses, view.terms)
        if view.former is not None:
            former = view.former
            more, larger, _ = await self._weighed(former.form, former.addresses, former.terms)
            ids, size = ids + more, size + larger
        return LedgerStats(
            name=self.name,
            ids=round(ids),
            capacity=form.capacity,
            fill=ids / form.capacity,
            window=form.window_ms / 1000,
            slots=SLOTS,
            width=0 if form.dense else form.width,
            bytes=round(size),
            bytes_an_id=size / ids if ids else 0.0,
            false_duplicates=0.0 if form.dense else ids * a_bucket / 256.0**form.width,
        )

    async def _weighed(
        self, form: LedgerForm, addresses: IdPlaces, terms: LedgerTerms
    ) -> tuple[float, float, float]:
        """Return the ids of a form, the bytes of its buckets, and the entries in one."""
        looked_at = _some_buckets(form)
        entries, living, size = 0, 0, 0
        asked = [self._gate.run(WeighOp(addresses.bucket(number), terms)) for number in looked_at]
        for weight in await asyncio.gather(*asked):
            if isinstance(weight, Weight):
                entries += weight.entries
                living += weight.living
                size += weight.size
            elif weight is not Code.ABSENT:
                self._judge(weight)
        share = form.buckets / len(looked_at)
        return living * share, size * share, entries / len(looked_at)

    async def resize(self, *, capacity: int) -> LedgerResize:
        """Give the ledger another capacity, and keep all ids. Returns how far that is; call it again to learn more.

        It is announced for 45 seconds, so that each process learns of it; clients of both capacities go on. Then ids
        are remembered by the new capacity, and for one window both are asked, so `first` takes two round trips.

        A ledger that claims use (`remember=`) must not be resized: these are refused until it is over.

        Raises:
            ConfigError: the capacity is not valid, or the ledger is just being resized to another one.
            UnavailableError: the store did not answer; it may have been announced all the same.
        """
        if check_count(capacity, "capacity") > MOST_CAPACITY:
            raise ConfigError(f"capacity must be at most {MOST_CAPACITY}, got {shown(capacity)}")
        for _ in range(_TRIES):
            view = (
                await self._open()
            )  # not one that was known: the switch counts from the store's present time
            if not view.is_told:
                raise UnavailableError("the store alone can resize a ledger, and it does not answer")
            if view.whole.capacity == capacity:
                return _progress(self.name, view)
            if view.resizing:
                raise ConfigError(
                    f"the ledger {self.name!r} is being resized to {view.whole.capacity}: that must be over first, "
                    f"in {(over_ms(view.whole) - view.now_ms) / 1000:.0f} s"
                )
            wanted = view.whole.settled().resized(capacity, view.now_ms + PACE.announce_ms)
            await self._replace_form(view.text, wanted.text(), view.now_ms + PACE.skew_ms)
        raise self._changes_all_the_time()

    def bytes_of(self, id: Any) -> bytes:
        """Return an id as the operations have it. Raises InvalidKeyError if the ledger cannot keep such an id."""
        return number_bytes(id) if self._dense else id_bytes(id)

    @property
    def dense(self) -> bool:
        """True where the ids are integers, of which it keeps a bit each."""
        return self._dense

    def is_of(self, connection: Connection) -> bool:
        """True where its ids are in the store of this connection."""
        return self._gate.connection is connection

    async def place_of(self, id: Any, found: Code | None = None) -> IdPlace:
        """Return where an id's entry lies: its bucket's store key, its digest, and the ledger's terms.

        Claims with `remember=` ask this, because their record lies beside the entry.

        Args:
            id: as for `first`; a claim's key.
            found: the store's answer, if it refused the place that was returned before.

        Raises:
            ConfigError: the ledger is being resized, and takes no claims until that is over.
            any error of `first`.
        """
        data = self.bytes_of(id)
        if found is not None:
            self._judge(found)
        view = await self._present_view()
        if view.resizing:
            raise ConfigError(
                f"the ledger {self.name!r} is being resized, and takes no claims until that is over: a claim's "
                "record lies beside its id"
            )
        if view.terms.seen_fill > view.form.filling_from:
            self._is_filling(view)
        bucket, digest = view.addresses.find(data)
        return bucket, digest, view.terms

    def distrust(self) -> None:
        """Read the form again before the next call: the store may have come back without its data."""
        if self.view is not None:
            self.view.distrust()

    # To the store

    def _without_reply(self, op: FirstOp, error: BaseException, *, named: bool) -> UnavailableError:
        """Return the error for the policy to judge; a call that was cancelled is taken back, and raises."""
        if isinstance(error, UnavailableError):
            self.distrust()
            return error
        if not named:
            self._gate.take_back(op)
        raise error

    def _verdict(self, op: FirstOp, own: bytes, answer: Any, name: bytes, *, named: bool) -> Reply:
        """Return the verdict; where there is none, what the store may have remembered is taken back.

        `own`: the call's own entry; `op` has another one where it takes a given-up call's place.
        """
        try:
            reply = self._gate.verdict(op, answer)
        except UnavailableError as error:
            if not named:
                self._gate.take_back(op)
            error.owner = owner_text(name)
            raise
        if op.entry is not own and reply is not _OK and reply is not _ALREADY and reply is not _PENDING:
            # It was not done, so what that call has remembered is still to be taken back.
            self._gate.connection.undo.add_id(op)
        return reply

    async def _may_be_first(self, duplicates: list[AnyFirst], tries: int, *, named: bool) -> list[AnyFirst]:
        """Return which duplicates must be asked for again: a call that was given up may have remembered them.

        Nobody was told True then. A call without a name takes the given-up one's place, see `UndoList.keep_id`.
        """
        undo = self._gate.connection.undo
        again = [op for op in duplicates if undo.knows(op)] if undo else []
        if named and tries + 1 == _TRIES:
            return []  # what was given up is not there: the id is another call's
        for op in again:
            if named or undo.is_removing(op):
                await undo.take_back_id(op)
        return again

    async def _answers(
        self, ids: Iterable[bytes], nonce: bytes, asked: list[ListedId], *, named: bool
    ) -> dict[bytes, bool]:
        """Return an answer for each of some ids that differ. Whatever is sent is put into `asked` before."""
        answers: dict[bytes, bool] = {}
        missing = list(ids)
        tries, pauses = -1, 0
        while tries + 1 < _TRIES:
            tries += 1
            if not missing:
                return answers
            pending = False
            for start in range(0, len(missing), _AT_ONCE):
                view = await self._present_view()
                part = missing[start : start + _AT_ONCE]
                if view.former is not None:
                    known = await self._in_former(view.former, part, nonce)
                    if known is None:
                        break
                    answers |= known
                    part = [each for each in part if each not in known]
                ops = await self._ask_list(view, part, nonce, asked, named=named)
                undo = self._gate.connection.undo
                pending |= settle_pending(ops, undo, again=pauses < LOOKS)
                if undo:
                    duplicates = [op for op in ops if op.answer is Code.ALREADY]
                    for op in await self._may_be_first(duplicates, tries, named=named):
                        op.answer = Code.STALE
                for each, op in zip(part, ops, strict=True):
                    if op.answer is not Code.STALE:
                        answers[each] = op.answer is Code.OK
            missing = [each for each in missing if each not in answers]
            if pending:
                pauses += 1
                tries -= 1
                await asyncio.sleep(self._gate.connection.timeout / 2)
            if not missing and view.terms.seen_fill > view.form.filling_from:
                self._is_filling(view)
        if missing:
            raise self._changes_all_the_time()
        return answers

    async def _in_former(
        self, former: FormerView, ids: Sequence[bytes], nonce: bytes
    ) -> dict[bytes, bool] | None:
        """Return answers for the ids that are remembered since before the switch; None where the form is another."""
        replies = await former_ids.look(self._gate, former, ids, nonce)
        known: dict[bytes, bool] = {}
        for each, reply in zip(ids, replies, strict=True):
            if reply is Code.ALREADY or reply is Code.OK:
                known[each] = reply is Code.OK
            elif reply is not Code.ABSENT:
                self._judge(reply)
                return None
        return known

    async def _ask_list(
        self, view: LedgerView, ids: list[bytes], nonce: bytes, asked: list[ListedId], *, named: bool
    ) -> list[ListedId]:
        """Ask for ids that differ. The answer of each operation is then OK, ALREADY or STALE."""
        gate, shared = self._gate, Together()
        place, terms = view.addresses.entry, view.terms
        ops = []
        for each in ids:
            wire, entry = place(each, nonce)
            ops.append(ListedId(shared, wire, entry, terms, each))
        undo = gate.connection.undo
        if undo:
            await undo.until_free(ops)
            for op in ops:
                undo.keep_id(op, named=named)
        asked += ops
        await shared.send(ops, gate.begin)
        for op in ops:
            if op.answer not in _TOLD:
                if isinstance(op.answer, UnavailableError):
                    view.distrust()
                op.answer = gate.verdict(op, op.answer)
                if op.answer not in _TOLD:
                    if op.entry[-NONCE_BYTES:] != nonce:
                        undo.add_id(op)  # as in `_ask_first`
                    self._judge(op.answer)
        return ops

    def _take_back(self, asked: Iterable[ListedId]) -> None:
        """Let the store forget, as soon as it answers, what a call has remembered that ends in an error."""
        ask = self._gate
        for op in asked:
            if op.answer is not Code.ALREADY:
                ask.take_back(op)

    async def take_back_failed(self, ids: Sequence[bytes], owner: str) -> None:
        """Do what `take_back_call` does, and wait for the store as `Gate.until_taken_back` does.

        For a call that ends in an error, which is raised afterwards.
        """
        ops = self.take_back_call(ids, owner)
        connection = self._gate.connection
        if connection.breaker is not BreakerState.OPEN:
            await connection.undo.until_asked([(op.wire, op.entry) for op in ops], connection.timeout)

    def take_back_call(self, ids: Sequence[bytes], owner: str) -> list[FirstOp]:
        """Take back what a call of `first` or `first_many` has remembered, because its caller got no answer.

        Args:
            ids: the call's ids, as `bytes_of` returns them.
            owner: the call's `owner=`.

        Returns:
            the operations that are taken back, one for each id.
        """
        view, nonce = self.view, nonce_of(owner_field(owner))
        if view is None:
            return []
        ops = [FirstOp(*view.addresses.entry(each, nonce), view.terms, each) for each in ids]
        for op in ops:
            self._gate.take_back(op)
        return ops

    def _judge(self, reply: Reply) -> None:
        """Let a STALE operation be asked again; raise for any other reply that is no answer."""
        if reply is Code.STALE:
            if self.view is not None:
                self._stale = (self.view.text, self.view.switched)
            self.view = None
        elif reply is Code.ELSEWHERE:
            raise UnavailableError(
                f"a slot of the ledger {self.name!r} is being moved to another node; try again"
            )
        elif reply is Code.FULL and self._dense:
            raise LedgerFullError(
                f"the ids of the ledger {self.name!r} are too far apart: a dense ledger remembers integers that "
                "nearly follow each other; make it without dense=True, or with a greater capacity",
                retry_after=self.window / SLOTS,
            )
        elif reply is Code.FULL:
            raise LedgerFullError(
                f"a bucket of the ledger {self.name!r} is full: it holds far more ids than its capacity of "
                f"{self._capacity}; found it with a greater one",
                retry_after=self.window / SLOTS,
            )
        else:
            raise foreign(f"ledger {self.name}")

    def _changes_all_the_time(self) -> UnavailableError:
        return UnavailableError(f"the form of the ledger {self.name!r} changes all the time; try again")

    # Its form

    async def _present_view(self) -> LedgerView:
        view = self.view
        if view is None or view.until <= monotonic():
            return await self._look_again()
        return view

    async def _look_again(self) -> LedgerView:
        """Found the ledger, or read its form. Where that fails, what is known serves while the scripts take it."""
        if self._opening is None or self._opening.done():
            self._opening = self._gate.connection.keep(self._open())
        try:
            return await asyncio.shield(self._opening)
        except UnavailableError:
            if self.view is None:
                raise
            return self.view

    async def _open(self) -> LedgerView:
        former = self.view
        reply = await self._ask_form(b"")
        if reply is Code.ABSENT:
            wanted = LedgerForm.drawn(capacity=self._capacity, width=self._width, window_ms=self._window_ms)
            reply = await self._ask_form(wanted.text() if former is None else former.text)
        if not isinstance(reply, StoredForm):
            raise foreign(f"ledger {self.name}")
        await self._check_eviction()  # afterwards: a store that is down costs its caller one timeout, not two
        now = monotonic()
        form = form_in(reply, self.name)
        self._check(form)
        if form.former is not None and reply.now_ms >= over_ms(form):
            reply = await self._replace_form(reply.text, form.settled().text())
            if not isinstance(reply, StoredForm):
                raise self._changes_all_the_time()
            form = form_in(reply, self.name)
        view = LedgerView(self.store_key, form, reply, self._write, now, self._is_switched(form, reply))
        if former is not None and former.text == view.text:
            view.terms.seen_fill = former.terms.seen_fill
        self.view = view
        return view

    def _is_switched(self, form: LedgerForm, found: StoredForm) -> bool:
        """Return whether ids are remembered by the form, and not by its former one.

        The nodes of a Cluster differ in their clocks. So where a bucket's node has just contradicted, it is right.
        """
        by_time = found.now_ms >= form.switch_ms
        contradicted = self._stale == (found.text, by_time)
        self._stale = None
        return not by_time if contradicted else by_time

    async def _replace_form(self, former: bytes, text: bytes, until_ms: int = FOREVER_MS) -> Reply:
        """Put a form in the place of another; return what is there then. After `until_ms` nothing is done."""
        ttl_ms = 2 * self._window_ms + _KEEP_MS
        return await self._gate.run(LedgerOp(self.store_key, text, ttl_ms, former, until_ms))

    async def _ask_form(self, text: bytes) -> Reply:
        """Read the form, or with a text found the ledger. It has the secret, so it is sent only where it must."""
        return await self._gate.run(LedgerOp(self.store_key, text, 2 * self._window_ms + _KEEP_MS))

    def _check(self, form: LedgerForm) -> None:
        if form.dense != self._dense:
            raise ConfigError(
                f"the ledger {self.name!r} was founded with dense={form.dense}, this one has dense={self._dense}: "
                "with that it would forget all ids; use its settings, or another name"
            )
        ours_fits = self._capacity == form.capacity or self._capacity in form.capacities
        for name, ours, theirs in (
            ("capacity", self._capacity, self._capacity if ours_fits else form.capacity),
            ("width", self._width, form.width),
            ("window", self._window_ms / 1000, form.window_ms / 1000),
        ):
            if ours != theirs:
                raise ConfigError(
                    f"the ledger {self.name!r} was founded with {name}={theirs:g}, this one has {name}={ours:g}: "
                    "with that it would forget all ids; use its settings, or another name"
                    + ("; resize() gives it another capacity" if name == "capacity" else "")
                )

    async def _check_eviction(self) -> None:
        """Refuse a store that may evict keys. One that is silent is asked again with the next look at the form."""
        store = self._gate.connection.store
        if self._allows_eviction or not isinstance(store, EvictingStore):
            return
        try:
            policy = await store.eviction_policy()
        except UnavailableError:
            return
        if policy not in (None, NO_EVICTION):
            raise ConfigError(
                f"the store may evict keys (maxmemory-policy {policy}), so the ledger {self.name!r} would forget "
                "ids, and nobody would notice; set maxmemory-policy noeviction, or pass allow_eviction=True"
            )

    def _is_filling(self, view: LedgerView) -> None:
        now = asyncio.get_running_loop().time()
        if now < self._tell_from:
            return
        if view.form.dense:  # its strays count, and not its ids
            self._tell_filling(view.form.fill_of(view.terms.seen_fill))
            return
        self._tell_from = now + _LOOK_AGAIN
        self._gate.connection.keep(self._tell_if_filling())

    async def _tell_if_filling(self) -> None:
        """Count the ids, as the entries that were seen are more: a tenth of them may be over, and are cut later."""
        with contextlib.suppress(DedupError):  # the next call after a while looks again
            fill = (await self.stats()).fill
            if fill > FILLING:
                self._tell_filling(fill)

    def _tell_filling(self, fill: float) -> None:
        self._tell_from = asyncio.get_running_loop().time() + _HOUR
        self._gate.connection.report(LedgerFilling(self._gate.settings.namespace, self.name, round(fill, 3)))


def _progress(name: str, view: LedgerView) -> LedgerResize:
    """Return how far the resizing of a ledger is."""
    form, former = view.whole, view.whole.former
    left = (
        [max(at - view.now_ms, 0) / 1000 for at in (form.switch_ms, over_ms(form))] if former else [0.0, 0.0]
    )
    return LedgerResize(name, form.capacity, former.capacity if former else 0, *left)


def _some_buckets(form: LedgerForm) -> Sequence[int]:
    """Return the numbers of the buckets from which the ledger's ids are estimated."""
    most = _SAMPLE_DENSE if form.dense else _SAMPLE
    if form.buckets <= most:
        return range(form.buckets)
    if form.dense:  # evenly: its ids are in a stretch of the buckets
        return [place * form.buckets // most for place in range(most)]
    return sample(range(form.buckets), most)


async def read_form(gate: Gate, name: str) -> LedgerForm | None:
    """Return what a ledger was founded with; None where there is none. Nothing is changed.

    Raises:
        UnavailableError: the store did not answer.
        ForeignRecordError: its key holds a value that fastdedup did not write.
        ConfigError: the name, or the form, cannot be used.
    """
    check_namespace(name, "a ledger's name")
    reply = await gate.run(LedgerOp(ledger_wire(gate.settings.namespace, name), b"", 0))
    if reply is Code.ABSENT:
        return None
    if not isinstance(reply, StoredForm):
        raise foreign(f"ledger {name}")
    return form_in(reply, name)
