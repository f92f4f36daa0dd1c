"""The stores that are held against the spec.

A side puts records in place, executes operations, and shows what came of them. It gets many cases at once, each under
a key of its own: then a real server answers 100,000 of them in seconds.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import cache, lru_cache
from typing import Any, NamedTuple

import fakeredis
import hiredis
import pytest

from fastdedup import LocalLRU, UnavailableError
from fastdedup.kernel.operations import Op
from fastdedup.stores import entry as memory
from fastdedup.stores.memory import MemoryStore
from fastdedup.stores.redis.scripts import MAX_RECORD, pack
from fastdedup.stores.redis.verbs import all_scripts, load_scripts

from . import windows, words
from .conversion import CALL, OTHER, WINDOW, operation, reply_of
from .far_end import SpecFarEnd
from .server import Server
from .spec import present
from .windows import Entry, Place
from .words import Record, Reply


class Case(NamedTuple):
    """What stands at `NOW_US`, and an operation that comes `wait` milliseconds later."""

    place: Place
    wait: int
    name: str
    operation: Any


RecordImage = tuple[bytes, int] | None
"""A record's bytes, and when it expires."""
Image = tuple[RecordImage, bytes | None]
"""A record, and the name of the call that has remembered an id."""
Outcome = tuple[Image, Reply, Image, Reply]
"""What stands after the operation, and its reply; the same after it was sent again."""

NOW_US = 1_800_000_000_000_500
"""In the middle of a millisecond. At its very beginning Redis keeps a record 1 ms longer than the memory store."""
NOW_MS = NOW_US // 1000
BUCKET = b"ledgerklast"
"""Of the ledger, for a case whose key is `k`."""
NAMES = (CALL, OTHER, windows.COMPLETED)
"""Of what remembers an id."""
AWAY = UnavailableError("the store is away")


def image(place: Place) -> Image:
    return record_image(place.record), place.entry and place.entry.call


@lru_cache(50_000)
def record_image(record: Record | None) -> RecordImage:
    """Return a record as a store has it: the layout is described in `lua/_record.lua`."""
    if record is None:
        return None
    head = b"\1" + record.state.encode() + record.fence.to_bytes(7, "big")
    if record.state == words.MACHINE:
        return head + record.owner + record.result, record.expires
    shape = record.owner[0] + 64 * record.token + 128 * (record.fingerprint is not None)
    times = record.until.to_bytes(6, "big") + record.attempt.to_bytes(2, "big")
    tail = bytes((shape,)) + record.owner[1:] + (record.fingerprint or b"") + record.result
    return head + times + tail, record.expires


Step = Callable[[Place, Any, int], tuple[Place, Reply]]
"""Returns what stands after an operation, and the reply."""


def by_spec(case: Case, step: Step = windows.step) -> tuple[Place, Reply, Place, Reply]:
    now_us = NOW_US + case.wait * 1000
    first, reply = step(case.place, case.operation, now_us)
    if first == case.place:  # then the second step is the first one: it has the same arguments
        return first, reply, first, reply
    return first, reply, *step(first, case.operation, now_us)


def began(entry: Entry) -> int:
    """Return when the id was remembered, in microseconds."""
    return NOW_US + (entry.until - NOW_MS - WINDOW) * 1000


class MemorySide:
    """The memory store, with a clock of this test."""

    name = "memory"
    expires_early = False
    seen_us = 0
    """The latest fence that it has given, of any key."""

    def __init__(self) -> None:
        self._now_us = NOW_US
        self._store = self._made(lambda: self._now_us / 1_000_000)
        self._store._offset = NOW_US % 1000  # so that it gives the same fences as the others
        self._woken: list[bytes | None] = []
        asyncio.run(self._store.listen(self._woken.append))

    def _made(self, clock: Callable[[], float]) -> MemoryStore:
        return MemoryStore(clock=clock)

    def run(self, cases: Sequence[Case], width: int) -> Iterable[Outcome]:
        for case in cases:
            self._put(case.place, width)
            self._now_us = NOW_US + case.wait * 1000
            op = operation(case.operation, b"k", width)
            yield (*self._apply(op, width), *self._apply(op, width))
            self._store.drop(b"k")

    def _put(self, place: Place, width: int) -> None:
        self._store.ledgers.clear()
        if place.entry is not None:
            self._now_us = began(place.entry)
            self._store.apply(operation(windows.First(place.entry.call, 0), b"k", width))
        self._now_us = NOW_US
        if place.record is not None:
            self._store.put(b"k", entry(place.record), place.record.expires)
        self._store._fence = self.seen_us

    def _apply(self, op: Op, width: int) -> tuple[Image, Reply]:
        self._woken.clear()
        answer = self._answer(op)
        found = self._store.entry(b"k")
        held = self._store.ledgers.held(BUCKET, bytes(width))
        shown = record_image(found and record_in(found)), held and held[1][: len(CALL)]
        return shown, reply_of(answer, self._now_us, bool(self._woken))

    def _answer(self, op: Op) -> Any:
        return self._store.apply(op)


class PolicySide(MemorySide):
    """LocalLRU in an outage, with a record that it has made: see `outage.py`. It has no ledger."""

    name = "LocalLRU"

    def _made(self, clock: Callable[[], float]) -> MemoryStore:
        self._policy = LocalLRU(clock=clock)
        return self._policy.records

    def _put(self, place: Place, width: int) -> None:
        super()._put(place, width)
        self._policy._journal.strike(b"k")
        if place.record is not None:
            self._policy._journal.note(b"k", "k", None)

    def _answer(self, op: Op) -> Any:
        try:
            answer = self._policy.answer(op, AWAY)
        except UnavailableError as error:
            return error if error is AWAY else self._answer(op)  # its record has just expired
        assert getattr(answer, "degraded", True)
        return answer


class FarEndSide:
    """The spec as the simulation has it, with the library's operations and replies around it."""

    name = "far end"
    expires_early = False

    def __init__(self) -> None:
        self._now_us = NOW_US
        self._woken: list[bytes] = []
        self._end = SpecFarEnd(lambda: self._now_us / 1_000_000)
        self._end.on_freed(self._woken.append)

    def run(self, cases: Sequence[Case], width: int) -> Iterable[Outcome]:
        for case in cases:
            self._now_us = NOW_US + case.wait * 1000
            self._end.kept, self._end.ids = (
                {b"k": case.place.record},
                {BUCKET + bytes(width): case.place.entry},
            )
            op = operation(case.operation, b"k", width)
            yield (*self._apply(op, width), *self._apply(op, width))

    def _apply(self, op: Op, width: int) -> tuple[Image, Reply]:
        self._woken.clear()
        reply = reply_of(self._end.apply(op), self._now_us, bool(self._woken))
        # What is over is there until an operation on it comes.
        record, entry = self._end.kept.get(b"k"), self._end.ids.get(BUCKET + bytes(width))
        if entry is not None and entry.until < self._now_us // 1000:
            entry = None
        return image(Place(present(record, self._now_us), entry)), reply


def entry(record: Record) -> memory.Entry:
    made = memory.Entry(record.state, record.owner, record.fence, record.attempt, record.until, 0)
    made.fingerprint, made.payload, made.token = record.fingerprint, record.result, record.token
    return made


def record_in(found: memory.Entry) -> Record:
    return Record(
        found.state,
        found.owner,
        found.fence,
        found.attempt,
        found.until,
        found.expires,
        found.fingerprint,
        found.payload,
        found.token,
    )


def wires_of(count: int) -> list[bytes]:
    """Return the keys of so many cases."""
    return [b"k%d" % at for at in range(count)]


@cache
def look(count: int) -> bytes:
    """Return the packed commands that show what so many keys hold: their values, then the time of each."""
    wires = wires_of(count)
    commands = [("MGET", *wires), *(("PTTL", wire) for wire in wires)]
    return b"".join(map(hiredis.pack_command, commands))


class ScriptSide:
    """Redis's scripts, on whatever answers packed commands and has a clock that a test sets."""

    name = "redis"
    expires_early = False
    seen_us = 0
    """The latest time that its client has seen, of any server."""

    def __init__(
        self,
        ask_all: Callable[[bytes, int], list[Any]],
        set_to: Callable[[int], None],
        woken: Callable[[], set[bytes]],
    ) -> None:
        self._ask_all = ask_all
        self._set_to = set_to
        self._woken = woken
        self._scripts = load_scripts()
        for script in all_scripts():
            self._ask(pack("SCRIPT", "LOAD", script.text))

    def _ask(self, packed: bytes) -> Any:
        (reply,) = self._ask_all(packed, 1)
        return reply

    def run(self, cases: Sequence[Case], width: int) -> Iterable[Outcome]:
        wires = wires_of(len(cases))
        self._put_records(cases, wires)
        if width:
            self._put_entries(cases, wires, width)
        now_us = NOW_US + cases[0].wait * 1000
        self._set_to(now_us)
        ops = [operation(case.operation, wire, width) for case, wire in zip(cases, wires, strict=True)]
        tries = [(self._replies(ops, now_us), self._images(wires, now_us, width)) for _ in range(2)]
        (first, shown), (again, then) = tries
        return zip(shown, first, then, again, strict=True)

    def _put_records(self, cases: Sequence[Case], wires: Sequence[bytes]) -> None:
        commands: list[tuple[Any, ...]] = [("DEL", *wires)]
        for case, wire in zip(cases, wires, strict=True):
            if stands := record_image(case.place.record):
                value, expires = stands
                commands.append(("SET", wire, value, "PX", expires - 1 - NOW_MS + 1000))
        self._set_to(NOW_US - 1_000_000)
        self._ask_all(b"".join(map(hiredis.pack_command, commands)), len(commands))

    def _put_entries(self, cases: Sequence[Case], wires: Sequence[bytes], width: int) -> None:
        # A dense ledger keeps nonces beside its bucket, under the same key without the last four bytes.
        buckets = [b"ledger" + wire + end for wire in wires for end in (b"last", b"")]
        self._ask(pack("DEL", *buckets))
        began_at = defaultdict(list)
        for case, wire in zip(cases, wires, strict=True):
            if case.place.entry is not None:
                first = windows.First(case.place.entry.call, 0)
                began_at[began(case.place.entry)].append(operation(first, wire, width))
        for now_us, ops in began_at.items():
            self._set_to(now_us)
            self._replies(ops, now_us)

    def _replies(self, ops: Sequence[Op], now_us: int) -> list[Reply]:
        answers: dict[Op, Any] = {}
        for verb in dict.fromkeys(op.verb for op in ops):
            same, script = [op for op in ops if op.verb is verb], self._scripts[verb]
            reply = self._ask(script.command(same, self.seen_us, MAX_RECORD))
            answers |= zip(same, script.read(same, reply, self.seen_us), strict=True)
        woken = self._woken()
        return [reply_of(answers[op], now_us, op.wire in woken) for op in ops]

    def _images(self, wires: Sequence[bytes], now_us: int, width: int) -> list[Image]:
        values, *times = self._ask_all(look(len(wires)), 1 + len(wires))
        now_ms = now_us // 1000
        # PTTL counts down to the millisecond after which Redis removes the key.
        pairs = zip(values, times, strict=True)
        records = [None if value is None else (value, now_ms + left + 1) for value, left in pairs]
        return list(zip(records, self._names(wires, now_us, width), strict=True))

    def _names(self, wires: Sequence[bytes], now_us: int, width: int) -> list[bytes | None]:
        """Return by which call each id is remembered: each call of the alphabet asks for it."""
        found: list[bytes | None] = [None] * len(wires)
        asked = range(len(wires)) if width else ()
        for call in NAMES:
            replies = self._replies([operation(windows.Seen(call), wires[at], width) for at in asked], now_us)
            known = [(at, reply) for at, reply in zip(asked, replies, strict=True) if reply != words.ABSENT]
            for at, reply in known:
                found[at] = call if reply == words.OK else b"of no call"
            asked = [at for at, reply in known if reply != words.OK]
        return found


class ServerSide(ScriptSide):
    """A redis-server, or another program that is one: `binary`."""

    def __init__(self, name: str = "redis", binary: str | None = None) -> None:
        self.name = name
        self._server = Server(binary)
        super().__init__(self._server.ask_all, self._server.set_to, self._server.told)

    def close(self) -> None:
        self._server.close()


class FakeSide(ScriptSide):
    """fakeredis, which takes the time of this process."""

    name = "fakeredis"
    expires_early = True

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._now_us = NOW_US
        patch.setattr("time.time", lambda: self._now_us / 1_000_000)
        client = fakeredis.FakeRedis(protocol=2)
        channel = client.pubsub(ignore_subscribe_messages=True)
        channel.subscribe("fastdedup:settled")
        channel.get_message()  # the confirmation

        def ask_all(packed: bytes, count: int) -> list[Any]:
            reader = hiredis.Reader()
            reader.feed(packed)
            return [client.execute_command(*reader.gets()) for _ in range(count)]

        def told() -> set[bytes]:
            return {message["data"] for message in iter(channel.get_message, None)}

        def set_to(now_us: int) -> None:
            self._now_us = now_us

        super().__init__(ask_all, set_to, told)
