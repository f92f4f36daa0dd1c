"""The embedded store: behind `memory://`, and behind `LocalLRU`. One process; nothing is kept on disk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import nsmallest
from typing import Any, Final, assert_never, cast

from ..errors import ConfigError, UnavailableError
from ..kernel.codes import Code
from ..kernel.keyspace import Kind, found_in
from ..kernel.operations import (
    AdoptOp,
    ClaimOp,
    ForgetOp,
    IssueOp,
    Op,
    OwnerOp,
    ReadOp,
    ReleaseOp,
    RenewOp,
    Reply,
    SettleOp,
    TouchOp,
    TransitionOp,
    Verdict,
)
from ..kernel.records import MAX_FENCE, Stored, holding_bytes
from ..kernel.replies import Adopted, TransitionReply
from ..kernel.terms import Mode
from ..kernel.verbs import Verb
from ..ledger.operations import FirstOp, ForgetIdOp, LedgerPlace
from ..model import Outcome
from .base import Page, Query, without_result
from .bounded import FAR_US, BoundedRecords
from .entry import LIVE, SETTLED, Entry, differs, is_free, is_held, is_of, judge, says, stored, verdict_on

_STATES = ("I", "P", "W", "S", "F", "R", "M")
_MAX_ATTEMPT = 65_535


class MemoryStore(BoundedRecords):
    """A store in this process, with the guarantees of `Store` and the arguments of `BoundedRecords`."""

    def __init__(
        self,
        *,
        maxsize: int = 1_000_000,
        max_bytes: int = 1024 * 1024 * 1024,
        clock: Callable[[], float] | None = None,
        make_room: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__(maxsize=maxsize, max_bytes=max_bytes, clock=clock, make_room=make_room)
        self._listeners: list[Callable[[bytes | None], None]] = []
        # The start of a lease that is given now, in ms: set for each operation.
        self._from = 0

    async def open(self) -> None:
        """Do nothing: the memory store needs no connection."""

    async def aclose(self) -> None:
        """Forget all records and listeners."""
        self.clear()
        self._listeners.clear()

    async def execute(self, verb: Verb, ops: Sequence[Op]) -> Sequence[Reply]:
        """Execute the operations at once. If there is no room for a key, only that key is refused."""
        replies: list[Reply] = []
        for op in ops:
            try:
                replies.append(self.apply(op))
            except UnavailableError as error:
                replies.append(error)
        return replies

    async def listen(self, on_freed: Callable[[bytes | None], None]) -> None:
        """Call `on_freed` from now on for each watched key that is freed or settled."""
        if on_freed not in self._listeners:
            self._listeners.append(on_freed)

    def apply(self, op: Op) -> Reply:
        """Execute one operation. It is atomic, because nothing here awaits."""
        now_us = round(self._clock() * 1_000_000)
        now = now_us // 1000
        # A lease starts at the end of this millisecond, and its end is compared with the millisecond's beginning:
        # so it never ends early.
        self._from = -(-now_us // 1000)
        self._expire(now)
        return _METHODS[op.verb](self, op, now)

    @classmethod
    def method_of(cls, verb: Verb) -> Callable[[MemoryStore, Any, int], Reply]:
        """Return the method that executes a verb's operations at a time in ms."""
        match verb:
            case Verb.CLAIM:
                return cls._claim
            case Verb.SETTLE:
                return cls._settle
            case Verb.RELEASE:
                return cls._release
            case Verb.RENEW:
                return cls._renew
            case Verb.TOUCH:
                return cls._touch
            case Verb.ISSUE:
                return cls._issue
            case Verb.TRANSITION:
                return cls._transition
            case Verb.READ:
                return cls._read
            case Verb.FORGET:
                return cls._forget
            case Verb.ADOPT:
                return cls._adopt
            case Verb.LEDGER:
                return lambda store, op, now: store.ledgers.create(op, now)
            case Verb.FIRST | Verb.SEEN | Verb.FORGET_ID | Verb.WEIGH:
                return lambda store, op, now: store.ledgers.apply(op, now)
            case _:
                assert_never(verb)

    async def page(self, query: Query, cursor: str, count: int) -> Page:
        """List records in the order of their keys: see `AdminStore`. The cursor is the last key, in hexadecimal."""
        now = self.now()
        try:
            after = bytes.fromhex(cursor)
        except ValueError:
            raise ConfigError("the cursor is not one of memory://: begin without one") from None
        # The cursor must not be a key of another namespace. `found_in` for each key would take twice the time.
        own = tuple(query.namespace.encode() + b":" + mark for kind in Kind for mark in kind.value)
        # A page has to look at all keys to find its place, so it takes at least a tenth of them.
        count = max(count, len(self._entries) // 10)
        wires = nsmallest(count, (wire for wire in self._entries if wire > after and wire.startswith(own)))
        found = [
            (wire, without_result(stored(self._entries[wire], now)))
            for wire in wires
            if found_in(wire, query.namespace, query.kinds, query.prefix) is not None
        ]
        return Page(found, wires[-1].hex() if len(wires) == count else "", len(wires), self.time_us)

    async def eviction_policy(self) -> None:
        """Return None: it has no such setting, and forgets nothing."""

    # Claims

    def _claim(self, op: ClaimOp, now: int) -> Reply:
        entry = self._entries.get(op.wire)
        if op.unless is not None:
            known = self.ledgers.apply(op.unless.seen(), now)
            if known is Code.STALE:
                return Code.STALE
            if known is Code.ALREADY and is_free(entry, op.fingerprint, now):
                return Verdict(Outcome.SUCCEEDED)
        if entry is None:
            if op.terms.mode is not Mode.CLAIM:
                return Verdict(Outcome.UNKNOWN)
            return self._take(op, now, None)
        if differs(entry, op.fingerprint):
            return verdict_on(Outcome.MISMATCH, entry, self._from)
        return self._contend(op, entry, now)

    def _contend(self, op: ClaimOp, entry: Entry, now: int) -> Verdict:
        held = is_held(entry, now)
        own = entry.owner == op.owner
        if op.terms.consumes and own and (held or (entry.state == "S" and not entry.payload)):
            if held:
                entry.until = self._from + op.terms.keep_ms
                self.keep(op.wire, entry, entry.until)
                self._free(op.wire, entry, "S")
            return verdict_on(Outcome.ACQUIRED, entry, self._from, fresh=False)
        if entry.state == "S":
            return verdict_on(Outcome.SUCCEEDED, entry, self._from)
        if entry.state == "F":
            return verdict_on(Outcome.FAILED, entry, self._from)
        if not held:
            return self._take(op, now, entry)
        if own:
            entry.until = max(entry.until, self._from + op.terms.lease_ms)
            self._keep_for(op.wire, entry, op.terms.keep_ms)
            return verdict_on(Outcome.ACQUIRED, entry, self._from, fresh=False)
        if op.terms.watch:
            entry.state = "W"
        return verdict_on(Outcome.IN_PROGRESS, entry, self._from)

    def _take(self, op: ClaimOp, now: int, former: Entry | None) -> Verdict:
        consume = op.terms.mode is Mode.CONSUME
        until = self._from + (op.terms.keep_ms if consume else op.terms.lease_ms)
        self._fence = max(self._fence + 1, now * 1000 + self._offset + self._lead_us)
        fence = self._fence if former is None else max(self._fence, former.fence + 1)
        entry = Entry("S" if consume else "P", op.owner, fence, 1, until, 0)
        entry.fingerprint = op.fingerprint
        if former is not None:
            entry.attempt = min(former.attempt + 1, _MAX_ATTEMPT)
            entry.token = former.token
            entry.fingerprint = op.fingerprint or former.fingerprint
        self._put(op.wire, entry, self._from + op.terms.keep_ms)
        verdict = verdict_on(Outcome.ACQUIRED, entry, self._from)
        if former is not None and former.owner:  # a policy may not know the owner
            verdict.former = holding_bytes(former.owner, former.fence)
        return verdict

    def _settle(self, op: SettleOp, now: int) -> Reply:
        entry = self._held(op)
        state = "S" if op.succeeded else "F"
        if entry is None:
            return Code.LOST
        if says(entry, state, op.payload):
            return Code.OK
        if entry.state not in LIVE:
            return Code.LOST
        if op.also is None:
            self._set_payload(op.wire, entry, op.payload)
        else:
            place = cast(LedgerPlace, op.also)
            code = self.ledgers.apply(FirstOp(place.bucket, place.entry, place.terms), now)
            if code is not Code.OK and code is not Code.ALREADY:
                return code
            try:
                self._set_payload(op.wire, entry, op.payload)
            except UnavailableError:  # no room for the result
                self.ledgers.apply(ForgetIdOp(place.bucket, place.entry, place.terms), now)
                raise
        entry.until = self._from + op.keep_ms
        self.keep(op.wire, entry, entry.until)
        self._free(op.wire, entry, state)
        return Code.OK

    def _release(self, op: ReleaseOp, now: int) -> Code:
        entry = self._held(op)
        if entry is None:
            return Code.LOST
        if entry.state in "RI":
            return Code.OK
        undone = op.consumed and entry.state == "S" and entry.token and not entry.payload
        if entry.state not in LIVE and not undone:
            return Code.LOST
        entry.until = 0
        if not entry.token:
            entry.fingerprint = None
        self._free(op.wire, entry, "I" if entry.token else "R")
        return Code.OK

    def _renew(self, op: RenewOp, now: int) -> Code:
        entry = self._live(op)
        if entry is None:
            return Code.LOST
        shortened = entry.until > self._from + op.lease_ms
        entry.until = self._from + op.lease_ms
        self._keep_for(op.wire, entry, op.keep_ms)
        if shortened and entry.state == "W":
            self._tell(op.wire)
        return Code.OK

    def _touch(self, op: TouchOp, now: int) -> Code:
        entry = self._live(op)
        if entry is None:
            return Code.LOST
        self._keep_for(op.wire, entry, op.keep_ms)
        return Code.OK

    def _keep_for(self, wire: bytes, entry: Entry, keep_ms: int) -> None:
        """Keep a record for at least so long, and never for less time than before."""
        self.keep(wire, entry, max(entry.expires, self._from + keep_ms))

    def _live(self, op: OwnerOp) -> Entry | None:
        entry = self._held(op)
        return entry if entry is not None and entry.state in LIVE else None

    def _held(self, op: OwnerOp) -> Entry | None:
        entry = self._entries.get(op.wire)
        return entry if entry is not None and is_of(entry, op) else None

    def _free(self, wire: bytes, entry: Entry, state: str) -> None:
        watched = entry.state == "W"
        entry.state = state
        if watched:
            self._tell(wire)

    # Tokens, machines, administration

    def _issue(self, op: IssueOp, now: int) -> Code:
        entry = self._entries.get(op.wire)
        if entry is not None:
            said_twice = (
                entry.owner == op.issuer and entry.fingerprint == op.fingerprint and not entry.payload
            )
            return Code.OK if entry.token and said_twice else Code.FOREIGN
        entry = Entry("I", op.issuer, max(self._fence_time(), self._fence + 1), 0, self._from + op.ttl_ms, 0)
        entry.fingerprint = op.fingerprint
        entry.token = True
        self._put(op.wire, entry, self._from + op.ttl_ms)
        return Code.OK

    def _transition(self, op: TransitionOp, now: int) -> TransitionReply:
        entry = self._entries.get(op.wire)
        state, version = (entry.payload.decode(), entry.fence) if entry else (op.initial, 0)
        if entry is not None and entry.owner == op.change:
            return TransitionReply(Code.OK, state, version)
        if op.resent and version > (op.version or 0) + 1:
            # Another change may hide this one: see `transition.lua`.
            return TransitionReply(Code.UNSURE, state, version)
        behind = 0 if op.version is None else version - op.version
        if state == op.to and behind in (0, 1):
            return TransitionReply(Code.ALREADY, state, version)
        if behind:
            return TransitionReply(Code.STALE, state, version)
        if state not in op.sources:
            return TransitionReply(Code.ILLEGAL, state, version)
        entry = Entry("M", op.change, version + 1, 0, 0, 0)
        entry.payload = op.to.encode()
        self._put(op.wire, entry, self._from + op.keep_ms)
        return TransitionReply(Code.OK, op.to, version + 1)

    def _read(self, op: ReadOp, now: int) -> Reply:
        entry = self._entries.get(op.wire)
        if entry is None:
            return Code.ABSENT
        return stored(entry, self._from)

    def _forget(self, op: ForgetOp, now: int) -> Code:
        entry = self._entries.get(op.wire)
        if entry is None:
            return Code.ABSENT
        self.drop(op.wire)
        if entry.state == "W":
            self._tell(op.wire)
        return Code.OK

    def _adopt(self, op: AdoptOp, now: int) -> Adopted:
        ours, former = op.record, self._entries.get(op.wire)
        if not self._may_adopt(ours, now):
            return Adopted(Code.FOREIGN, b"", 0)
        until = self._ends(ours, now)
        if former is None:
            self._place(op, now, ours.fence)
            return Adopted(Code.OK, b"", 0)
        live = ours.state in LIVE and until > now
        code, writes = judge(ours, live, op.base, former, now)
        if writes:
            # The fence identifies the record's acquisition, so it stays. But the fence of a key that is free to
            # claim must not fall.
            free = not live and ours.state not in "SFM"
            self._place(op, now, max(ours.fence, former.fence) if free else ours.fence, former)
            if former.state == "W":
                self._tell(op.wire)
        return Adopted(code, former.owner, former.fence, settled=former.state in SETTLED)

    def _may_adopt(self, ours: Stored, now: int) -> bool:
        """False for a record that fastdedup cannot have made."""
        if ours.state not in _STATES or not ours.owner:
            return False
        if ours.state == "M":
            return 0 <= ours.fence < MAX_FENCE
        latest = max(self._fence, self._fence_time())
        return 0 <= ours.fence <= latest + FAR_US and 0 <= ours.attempt <= _MAX_ATTEMPT

    def _place(self, op: AdoptOp, now: int, fence: int, former: Entry | None = None) -> None:
        record = op.record
        entry = Entry(record.state, record.owner, fence, record.attempt, self._ends(record, now), 0)
        entry.fingerprint, entry.payload, entry.token = record.fingerprint, record.payload, record.token
        holds = record.state in LIVE + SETTLED
        if holds and former is not None and former.owner == record.owner:
            entry.fingerprint = record.fingerprint or former.fingerprint  # see `adopt.lua`
        self.put(op.wire, entry, self._from + max(record.ttl_ms, 1))

    def _ends(self, record: Stored, now: int) -> int:
        return (self._from if record.left_ms > 0 else now) + record.left_ms

    def _tell(self, wire: bytes) -> None:
        for on_freed in self._listeners:
            on_freed(wire)


_METHODS: Final = {verb: MemoryStore.method_of(verb) for verb in Verb}
