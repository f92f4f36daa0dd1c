"""A LocalLRU without a gate: the time, what a store says, and a store to bring its journal to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from fastdedup import LocalLRU, Outcome, UnavailableError
from fastdedup.events import Conflict, Unreplayed
from fastdedup.fallback.base import JournalOp
from fastdedup.kernel.codes import Code
from fastdedup.kernel.keyspace import Keyspace, Kind
from fastdedup.kernel.operations import (
    ClaimOp,
    ForgetOp,
    IssueOp,
    Op,
    ReleaseOp,
    RenewOp,
    Reply,
    SettleOp,
    TouchOp,
    Verdict,
)
from fastdedup.kernel.owners import owner_field
from fastdedup.kernel.terms import Mode, terms
from fastdedup.stores.entry import Entry
from fastdedup.stores.memory import MemoryStore

DOWN = UnavailableError("the store is down")
WIRE = Keyspace("t", Kind.CLAIM).wire
LEASE, TTL = 30_000, 86_400_000


class Lab:
    """A policy, the time, and what a store would say."""

    def __init__(self, maxsize: int = 100, **options: Any) -> None:
        self.now = 1_700_000_000.0
        self.policy = LocalLRU(maxsize, clock=lambda: self.now, **options)
        self.fence = int(self.now * 1e6)

    def claim(
        self, key: str, owner: str, *, mark: bytes | None = None, mode: Mode = Mode.CLAIM, lease: int = LEASE
    ) -> ClaimOp:
        keep = TTL if mode is Mode.CONSUME else lease + TTL
        op = ClaimOp(WIRE(key), terms(mode, lease, keep, False), owner_field(owner), mark)
        op.key = key
        return op

    def ask(self, op: Op) -> Any:
        return self.policy.answer(op, DOWN)

    def refuses(self, op: Op, match: str = "the store is down") -> None:
        with pytest.raises(UnavailableError, match=match):
            self.ask(op)

    # What the store says

    def acquires(
        self, key: str, owner: str, *, mode: Mode = Mode.CLAIM, lease: int = LEASE, **options: Any
    ) -> int:
        self.fence += 1
        self.verdict(self.claim(key, owner, mode=mode, lease=lease, **options), Outcome.ACQUIRED, left=lease)
        return self.fence

    def verdict(
        self, op: ClaimOp, outcome: Outcome, *, left: int = LEASE, payload: bytes = b"", fence: int = 0
    ) -> None:
        self.policy.saw(
            op, Verdict(outcome, fence=fence or self.fence, attempt=3, left_ms=left, payload=payload)
        )

    def says(self, op: Op, reply: Reply = Code.OK) -> None:
        self.policy.saw(op, reply)


def settle(key: str, owner: str, payload: bytes = b'"done"', *, fence: int = 0, keep: int = TTL) -> SettleOp:
    return SettleOp(WIRE(key), owner_field(owner), fence, succeeded=True, keep_ms=keep, payload=payload)


def release(key: str, owner: str, fence: int = 0) -> ReleaseOp:
    return ReleaseOp(WIRE(key), owner_field(owner), fence)


def renew(key: str, owner: str, lease: int = LEASE) -> RenewOp:
    return RenewOp(WIRE(key), owner_field(owner), 0, lease, lease + TTL)


def touch(key: str, owner: str, keep: int) -> TouchOp:
    return TouchOp(WIRE(key), owner_field(owner), 0, keep)


def forget(key: str) -> ForgetOp:
    return ForgetOp(WIRE(key))


def issue(key: str, ttl: int = 60_000) -> IssueOp:
    return IssueOp(WIRE(key), owner_field("issuer"), None, ttl)


class Home(Lab):
    """And a store that can be reached again."""

    def __init__(self, maxsize: int = 100, **options: Any) -> None:
        super().__init__(maxsize, **options)
        self.store = MemoryStore(clock=lambda: self.now)

    def in_store(self, op: Op) -> Any:
        """Somebody's operation that the store executes; this process does not hear of it."""
        return self.store.apply(op)

    def both(self, op: Op) -> Any:
        """An operation of this process that the store answers."""
        reply = self.store.apply(op)
        self.policy.saw(op, reply)
        return reply

    def sent(self) -> Sequence[JournalOp]:
        return self.policy.next_operations(100)

    def judged(self, lines: Sequence[JournalOp]) -> list[Conflict | Unreplayed]:
        """The store gets the lines, and its answers arrive."""
        events = [self.policy.adopted(line, self.store.apply(line)) for line in lines]  # type: ignore[arg-type]
        return [event for event in events if event is not None]

    def lost(self, lines: Sequence[JournalOp]) -> list[Unreplayed]:
        """The store gets the lines, and its answers are lost."""
        for line in lines:
            self.store.apply(line)
        return self.unasked(lines, asked=True)

    def unasked(self, lines: Sequence[JournalOp], *, asked: bool = False) -> list[Unreplayed]:
        events = [self.policy.put_back(line, asked=asked) for line in lines]
        return [event for event in events if event is not None]

    def comes_home(self) -> list[Conflict | Unreplayed]:
        """Until the journal is empty."""
        events: list[Conflict | Unreplayed] = []
        for _ in range(10):
            if not self.policy.lines:
                return events
            events += self.judged(self.sent())
        raise AssertionError("the journal does not empty")

    def stands(self, key: str) -> tuple[str, str, bytes] | None:
        """State, owner and payload in the store."""
        self.store.now()
        entry: Entry | None = self.store.entry(WIRE(key))
        return None if entry is None else (entry.state, entry.owner[1:].decode(), entry.payload)
