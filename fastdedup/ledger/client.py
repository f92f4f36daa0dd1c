"""`Ledger`: remembers ids for days in a tenth of the memory of records, and answers "seen before?", nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from time import monotonic, perf_counter
from typing import Any, Final, Self

from ..core.audit import check_reason, tell_forgotten
from ..core.connection import Connection
from ..core.counters import outcome_of
from ..core.gate import Gate
from ..core.orphans import MAX_ORPHANS
from ..errors import ConfigError, DedupError, UnavailableError, UsageError
from ..kernel.codes import Code
from ..kernel.granted import GRANTED
from ..kernel.keyspace import MAX_KEY_BYTES
from ..kernel.operations import ClaimOp, ForgetOp, Op, ReadOp, Reply, Verdict
from ..kernel.owners import draw_owner, owner_field
from ..kernel.terms import Mode, terms
from ..kernel.verbs import Verb
from ..model import LedgerResize, LedgerStats, Record
from .current_form import TRIES, CurrentForm
from .filling import Filling
from .first_call import FirstCall
from .ids import id_bytes, listed_bytes, nonce_of, number_bytes, patience_of, record_wire
from .operations import FirstOp, ForgetIdOp, LedgerPlace, LedgerTerms, SeenOp
from .settings import LedgerSettings, check_capacity
from .views import FormerView, LedgerView

_OK: Final = Code.OK  # naming an enum's member through its class costs 50 ns on Python 3.11
_ALREADY: Final = Code.ALREADY

MakesOp = Callable[[bytes, bytes, LedgerTerms, bytes], Op]
"""Makes an operation on one id, from its bucket's store key, its digest, the ledger's terms and the id itself."""


class Ledger:
    """Remembers ids for a window; `dedup.ledger` makes it. Use it if you only need to know "seen before?".

    An id costs some 12 bytes of Redis memory, a record of a claim 187. There is no owner, no lease and no result: the
    id is remembered before the work is done. If the work may fail half-way, claim instead. `first` does not see the
    claims (`remember=`) that are at work: for one effect use either `first` or claims.

    Every process that uses the ledger names the same capacity, window and width. The first one creates it.

    While the store does not answer, the namespace's policy does. `Reject` raises UnavailableError. `LocalLRU` answers
    for this process alone, and reports a `Degraded` event for each answer, because a bool has no place for a mark.
    """

    name: str
    """The ledger's name."""

    def __init__(self, gate: Gate, settings: LedgerSettings) -> None:
        gate.connections.common.expect(gate.settings.namespace, "first")
        self.name = settings.name
        self.namespace = gate.settings.namespace
        self.settings = settings
        """The caller's settings, checked."""
        self.form = CurrentForm(gate, settings)
        """The ledger's form, in this process's knowledge."""
        self._gate = gate
        self._filling = Filling(gate, self.form)
        self._bytes_of = number_bytes if settings.dense else id_bytes
        self._patience = patience_of(gate.connection.timeout)
        # Mutable: whether the store is known to look at `ClaimOp.unless`.
        self._composes = False

    def __repr__(self) -> str:
        return f"<Ledger {self.name!r} capacity={self.capacity} window={self.window:.15g}>"

    @property
    def window(self) -> float:
        """Seconds for which an id is remembered at least; it may be up to 1 % longer."""
        return self.settings.window_ms / 1000

    @property
    def capacity(self) -> int:
        """Ids in one window that it is planned for."""
        return self.settings.capacity

    @property
    def dense(self) -> bool:
        """True if the ids are integers, of which the ledger keeps a bit each."""
        return self.settings.dense

    @property
    def store_key(self) -> bytes:
        """The key in the store of the ledger's form, which says capacity, width and window."""
        return self.form.store_key

    @property
    def view(self) -> LedgerView | None:
        """The form that this process read last, and the values derived from it; None before the first use."""
        return self.form.view

    async def open(self) -> Self:
        """Create the ledger, or check its form, now instead of at the first use, so that mistakes show at start-up.

        Errors: see `first`.
        """
        await self.form.look_again()
        return self

    async def first(self, id: Any, *, owner: str | None = None) -> bool:
        """Remember an id. Returns True if this call is the first within the window, else False.

        Args:
            id: text, bytes, an integer or a UUID, of 1 byte to 64 KiB. Text and its UTF-8 are one id, and so are an
                integer and its decimal text.
            owner: your own name for this call, of up to 63 bytes: the same name gets the same answer again. Without
                it, a call that is cancelled or ends in an error forgets what it remembered: before the error is
                raised, if the store answers within one further `timeout`.

        Raises:
            UnavailableError: neither the store nor the policy answered. Call again, with
                `owner=error.owner` or without.
            LedgerFullError: the ledger holds 12 to 18 times its capacity.
            ConfigError: the ledger was created with other settings, or the store evicts keys.
            InvalidKeyError: the id or the owner cannot be used.
            ForeignRecordError: its bucket holds a value that fastdedup did not write.
            UsageError: not open, closed, or another event loop.
        """
        data = self._bytes_of(id)
        name = draw_owner() if owner is None else owner_field(owner)
        nonce, named = nonce_of(name, self._patience), owner is not None
        gate, view = self._gate, self.form.view
        since = gate.now
        op: FirstOp | None = None
        if view is not None and view.until > monotonic() and view.former is None:
            wire, entry = view.addresses.entry(data, nonce)
            op = FirstOp(wire, entry, view.terms, data)
            if (orphans := gate.connection.orphans) and orphans.at(op.place):
                op = None  # the id of a call that was given up: `FirstCall` takes its place
        if op is not None and view is not None:
            # Nearly every call is one operation that the store answers at once. It is awaited here and not in a
            # coroutine of its own, because that costs 15 % of a call. `FirstCall` does the rest.
            try:
                op.answer = await gate.begin(op)
            except (UnavailableError, asyncio.CancelledError) as error:
                op.answer = error
            except DedupError as error:
                self._count_error(error, since)
                raise
            if op.answer is _OK:
                GRANTED.add(op.place)
                if view.seems_to_fill:
                    self._filling.note(view)
                self._count([True], since)
                return True
            if op.answer is _ALREADY and not ((orphans := gate.connection.orphans) and orphans.at(op.place)):
                self._count([False], since)
                return False
        call = FirstCall(gate, self.form, name, nonce, named=named)
        answers = await self._answers(call, [data], since, op)
        self._count([answers[data]], since)
        return answers[data]

    async def first_many(self, ids: Iterable[Any], *, owner: str | None = None) -> list[bool]:
        """Remember ids, each like `first`; of equal ids in the list the first one is True.

        Either all are answered, or none is remembered: if one cannot be answered, the others are forgotten again,
        and the error is raised. With `owner=` it is kept, and the same call gets the same answers again.

        A list has at most 10,000 ids; a longer one raises UsageError.
        """
        answers, _ = await self.first_undoable(listed_bytes(ids, dense=self.dense), owner)
        return answers

    async def first_undoable(
        self, data: Sequence[bytes], owner: str | None = None
    ) -> tuple[list[bool], Callable[[], None]]:
        """Work like `first_many`, for synchronous code: its caller may stop waiting before it gets the answers.

        Args:
            data: the ids, from `bytes_of`.
            owner: the call's.

        Returns:
            the answers, and what forgets the ids again if no caller gets these.
        """
        name = draw_owner() if owner is None else owner_field(owner)
        if len(data) > MAX_ORPHANS:
            raise UsageError(
                f"first_many takes at most {MAX_ORPHANS} ids, got {len(data)}: more cannot be taken back together "
                "after an error; pass them in several lists"
            )
        nonce = nonce_of(name, self._patience)
        call = FirstCall(self._gate, self.form, name, nonce, named=owner is not None)
        since = self._gate.now
        answers = await self._answers(call, list(dict.fromkeys(data)), since)
        # The first of equal ids takes the answer away, so the others are duplicates.
        answered = [answers.pop(each, False) for each in data]
        self._count(answered, since)
        return answered, call.take_back

    async def _answers(
        self, call: FirstCall, ids: Sequence[bytes], since: float, begun: FirstOp | None = None
    ) -> dict[bytes, bool]:
        """Return a call's answers, see `FirstCall.answers`, and count its error."""
        try:
            answers = await call.answers(ids, begun)
        except DedupError as error:
            self._count_error(error, since)
            raise
        if self.form.view is not None and self.form.view.seems_to_fill:
            self._filling.note(self.form.view)
        return answers

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

        Errors: see `first`.
        """
        return await self._ask(SeenOp, self._bytes_of(id), _ALREADY)

    async def forget(self, id: Any, *, reason: str | None = None) -> bool:
        """Remove an id, so that it is new again; False if it was not remembered. Errors: see `first`.

        The record of a claim that was completed a moment ago (`remember=`) goes on answering, for a minute. It
        reports a `KeyForgotten` event with the user and the reason; `reason`: up to 256 characters.
        """
        why, data = check_reason(reason), self._bytes_of(id)
        shown_id = f"{self.name}/{data.decode(errors='backslashreplace')}"
        try:
            found = await self.forget_bytes(data, why)
        except BaseException:  # it may have taken effect
            tell_forgotten(self._gate, "id", shown_id, None, why)
            raise
        tell_forgotten(self._gate, "id", shown_id, found, why)
        return found

    async def forget_bytes(self, data: bytes, reason: str) -> bool:
        """Remove an id like `forget`, but report no event: for an integration that reports it itself.

        Args:
            data: the id, from `bytes_of`.
            reason: goes with the operation, see `ForgetOp`; "" if none was given.
        """
        return await self._ask(partial(_forgetting, reason), data, _OK)

    async def _ask(self, make: MakesOp, data: bytes, yes: Code) -> bool:
        """Return True for the reply `yes`, False for ABSENT. It asks again while the ledger's form changes.

        While a ledger is being resized, an id may also be at its place in the former form.
        """
        form = self.form
        for _ in range(TRIES):
            view = form.view
            if view is None or view.until <= monotonic():
                view = await form.look_again()
            op = make(*view.addresses.find(data), view.terms, data)
            reply: Reply = Code.ABSENT
            for each in (op,) if view.former is None else _in_order(op, view.former, make, data):
                reply = await self._gate.run(each)
                if reply is not Code.ABSENT:
                    break
            if reply is yes or reply is Code.ABSENT:
                return reply is yes
            form.judge(reply)
        raise form.changes_all_the_time()

    async def record_of(self, key: str) -> Record | None:
        """Return the record of a claim whose success this ledger remembers (`remember=`), or None. For inspection."""
        wire = await self._record_wire(key)
        reply = Code.ABSENT if wire is None else await self._gate.run(ReadOp(wire))
        return None if reply == Code.ABSENT else self._gate.record(key, reply)

    async def forget_record(self, key: str) -> bool:
        """Remove that record, no matter which owner has it; False if there was none.

        The ledger's entry stays: see `forget`.
        """
        wire = await self._record_wire(key)
        return wire is not None and await self._gate.run(ForgetOp(wire)) == Code.OK

    async def _record_wire(self, key: str) -> bytes | None:
        """Return the store key of a claim's record; None if the ledger takes no claim, or none with this key."""
        if self.dense or (await self.form.present()).resizing or len(self._bytes_of(key)) > MAX_KEY_BYTES:
            return None
        gate, place = self._gate, await self.place_of(key)
        return record_wire(place.bucket, gate.claims.wire(key), gate.settings.namespace)

    async def stats(self) -> LedgerStats:
        """Return the content of the ledger, from up to 1,000 buckets, 2,000 of a dense one. Errors: see `first`."""
        return await self._filling.stats()

    async def resize(self, *, capacity: int) -> LedgerResize:
        """Give the ledger another capacity, and keep all ids. Returns the progress; call it again to learn more.

        It is announced for 45 seconds, so that each process learns of it; clients of both capacities go on. Then ids
        are remembered by the new capacity, and for one window each call asks for older ids as well, so
        `first` takes two round trips.

        A ledger that claims use (`remember=`) must not be resized: these are refused until it is over.

        Raises:
            ConfigError: the capacity is not valid, or the ledger is just being resized to another one.
            UnavailableError: the store did not answer; it may still have been announced.
        """
        check_capacity(capacity)
        return await self.form.resize(capacity)

    def bytes_of(self, id: Any) -> bytes:
        """Return an id in the form of the operations. Raises InvalidKeyError if the ledger cannot keep such an id."""
        return self._bytes_of(id)

    def is_of(self, connection: Connection, namespace: str) -> bool:
        """True if its ids are in the store of this connection, and are those of this namespace."""
        return self._gate.connection is connection and self.namespace == namespace

    async def place_of(self, id: Any, found: Code | None = None) -> LedgerPlace:
        """Return the place of an id's entry.

        Claims with `remember=` need this, because their record is beside the entry.

        Args:
            id: see `first`; a claim's key.
            found: the store's answer, if it refused the place that was returned before.

        Raises:
            ConfigError: the ledger is being resized, and takes no claims until that is over; or the store ignores
                `ClaimOp.unless`.
            any error of `first`.
        """
        data = self._bytes_of(id)
        if found is not None:
            self.form.judge(found)
        view = await self.form.present()
        if view.resizing:
            raise ConfigError(
                f"the ledger {self.name!r} is being resized, and takes no claims until that is over: a claim's "
                "record lies beside its id"
            )
        if view.seems_to_fill:
            self._filling.note(view)
        place = LedgerPlace(*view.addresses.find(data), view.terms, data, self)
        if not self._composes:
            await self._check_store(place)
        return place

    async def _check_store(self, place: LedgerPlace) -> None:
        """Ask a user's own store once: if it does not look at `unless`, it forgets each success.

        The claim relies on a form that is too old. A store that looks at that answers STALE and does nothing.
        """
        gate = self._gate
        wire = record_wire(place.bucket, gate.claims.wire("unless"), gate.settings.namespace)
        if not type(gate.connection.store).__module__.startswith("fastdedup."):
            over = place._replace(terms=LedgerTerms(self.settings.new_form(), "set", -1))
            try:
                reply = await gate.begin(
                    ClaimOp(wire, terms(Mode.CLAIM, 1, 2, False, True), draw_owner(), None, over)
                )
            except UnavailableError:
                return  # the next claim asks it
            if isinstance(reply, Verdict):
                raise ConfigError(
                    f"{gate.connection.store!r} does not look at ClaimOp.unless, so it cannot take remember=: "
                    "see `fastdedup conformance`, guarantee 20"
                )
        self._composes = True

    def distrust(self) -> None:
        """Read the form again before the next call: the store may have come back without its data."""
        self.form.distrust()


def _forgetting(reason: str, wire: bytes, digest: bytes, terms: LedgerTerms, id: bytes) -> ForgetIdOp:
    """Return the operation that removes an id. The next call for the id is a new one in this process, too."""
    op = ForgetIdOp(wire, digest, terms, id, reason)
    GRANTED.discard(op.place)
    return op


def _in_order(op: Op, former: FormerView, make: MakesOp, data: bytes) -> tuple[Op, Op]:
    """Return the operations on an id by a ledger's present form (`op`) and its former one, in the order of sending.

    The former ids are looked up first. An id is removed first from its place in the present form.
    """
    before = make(*former.addresses.find(data), former.terms, data)
    return (op, before) if isinstance(op, ForgetIdOp) else (before, op)
