"""Clients, stores and policies: as they should be, and broken on purpose so that the checker must say so.

The broken ones stand outside fastdedup and use only its protocols (`Store`, `FallbackPolicy`).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

from fastdedup import Outcome, UnavailableError
from fastdedup.kernel.codes import Code
from fastdedup.kernel.operations import ClaimOp, Op, ReadOp, ReleaseOp, Reply, TransitionOp, Verdict
from fastdedup.kernel.owners import draw_owner
from fastdedup.kernel.records import Stored
from fastdedup.kernel.replies import Adopted
from fastdedup.kernel.terms import Mode
from fastdedup.kernel.verbs import Verb
from fastdedup.ledger.ids import NONCE_BYTES
from fastdedup.ledger.operations import FirstOp
from fastdedup.stores import make_store
from fastdedup.stores.base import Store
from fastdedup.stores.memory import MemoryStore


class Wrapped:
    """A store that hands everything on."""

    def __init__(self, inner: Store) -> None:
        self.inner = inner

    async def open(self) -> None:
        await self.inner.open()

    async def aclose(self) -> None:
        await self.inner.aclose()

    async def listen(self, on_freed: Callable[[bytes | None], None]) -> None:
        await self.inner.listen(on_freed)

    async def execute(self, verb: Verb, ops: Sequence[Op]) -> Sequence[Reply]:
        return await self.inner.execute(verb, ops)


class UnownedRelease(Wrapped):
    """Planted: a release frees the key whoever owns it, as `DEL` by hand does."""

    async def execute(self, verb: Verb, ops: Sequence[Op]) -> Sequence[Reply]:
        if verb is Verb.RELEASE:
            ops = [await self._forged(op) for op in ops]
        return await self.inner.execute(verb, ops)

    async def _forged(self, op: Op) -> Op:
        (stored,) = await self.inner.execute(Verb.READ, [ReadOp(op.wire)])
        return ReleaseOp(op.wire, stored.owner, stored.fence) if isinstance(stored, Stored) else op


class NewOwnerRetry(Wrapped):
    """Planted: every fifth reply to a claim is lost, and the retry comes as a new owner.

    So the winner is told "duplicate" by its own claim, as a resent `SET NX` is.
    """

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self._count = 0

    async def execute(self, verb: Verb, ops: Sequence[Op]) -> Sequence[Reply]:
        replies = await self.inner.execute(verb, ops)
        if verb is not Verb.CLAIM:
            return replies
        return [await self._retried(op, reply) for op, reply in zip(ops, replies, strict=True)]

    async def _retried(self, op: Op, reply: Reply) -> Reply:
        self._count += 1
        if self._count % 5 or not isinstance(op, ClaimOp) or op.terms.mode is Mode.CONSUME:
            return reply
        again = ClaimOp(op.wire, op.terms, draw_owner(), op.fingerprint)
        return (await self.inner.execute(Verb.CLAIM, [again]))[0]


class PresumedWinner(NewOwnerRetry):
    """Planted: as above, and a retry that finds the key in progress takes that for its own first try."""

    async def _retried(self, op: Op, reply: Reply) -> Reply:
        again = await super()._retried(op, reply)
        if again is reply or not isinstance(again, Verdict) or again.outcome is not Outcome.IN_PROGRESS:
            return again
        return Verdict(
            Outcome.ACQUIRED, fence=again.fence, attempt=again.attempt, left_ms=again.left_ms, fresh=True
        )


class LostClaim(Wrapped):
    """Planted: every seventh batch of claims acts for owners whom nobody knows, and the reply is lost.

    So whatever undoes it by its owner finds nothing: keys stay held for nobody, tokens are burnt.
    """

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self._count = 0

    async def execute(self, verb: Verb, ops: Sequence[Op]) -> Sequence[Reply]:
        if verb is not Verb.CLAIM:
            return await self.inner.execute(verb, ops)
        self._count += 1
        if self._count % 7:
            return await self.inner.execute(verb, ops)
        strangers = [
            ClaimOp(op.wire, op.terms, draw_owner(), op.fingerprint) for op in ops if isinstance(op, ClaimOp)
        ]
        await self.inner.execute(verb, strangers)
        raise UnavailableError("planted: the reply was lost")


class MovedAgain(Wrapped):
    """Planted: a transition's reply is lost, others go on, and the resend moves the machine once more."""

    async def execute(self, verb: Verb, ops: Sequence[Op]) -> Sequence[Reply]:
        if verb is Verb.TRANSITION:
            lost = [self._as_another_call(op) for op in ops if isinstance(op, TransitionOp)]
            await self.inner.execute(verb, lost)
            await asyncio.sleep(0.002)
        return await self.inner.execute(verb, ops)

    def _as_another_call(self, op: TransitionOp) -> TransitionOp:
        return TransitionOp(
            op.wire,
            to=op.to,
            initial=op.initial,
            sources=op.sources,
            version=op.version,
            change=draw_owner()[1:],
            keep_ms=op.keep_ms,
        )


class SwallowedConflict(Wrapped):
    """Planted: whatever the store has by then, what was answered in an outage counts as adopted."""

    async def execute(self, verb: Verb, ops: Sequence[Op]) -> Sequence[Reply]:
        replies = await self.inner.execute(verb, ops)
        if verb is not Verb.ADOPT:
            return replies
        return [
            Adopted(Code.OK, reply.owner, reply.fence) if isinstance(reply, Adopted) else reply
            for reply in replies
        ]


class RenamedIds(Wrapped):
    """Planted: every fifth reply of a ledger is lost, and its ids are sent again as another call's.

    So a fresh batch is told "duplicate" by its own first try.
    """

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self._count = 0

    async def execute(self, verb: Verb, ops: Sequence[Op]) -> Sequence[Reply]:
        self._count += verb is Verb.FIRST
        if verb is Verb.FIRST and self._count % 5 == 0:
            lost = [self._as_another_call(op) for op in ops if isinstance(op, FirstOp)]
            await self.inner.execute(verb, lost)
        return await self.inner.execute(verb, ops)

    def _as_another_call(self, op: FirstOp) -> FirstOp:
        return FirstOp(op.wire, op.entry[: op.terms.width] + draw_owner()[1 : 1 + NONCE_BYTES], op.terms)


class EvictingLRU:
    """Planted: a fallback that forgets the oldest claim to make room, expired or not."""

    def __init__(self, maxsize: int = 3) -> None:
        self._maxsize = maxsize
        self._records: OrderedDict[bytes, MemoryStore] = OrderedDict()

    def answer(self, op: Op, error: UnavailableError) -> Reply:
        store = self._records.setdefault(op.wire, MemoryStore())
        while len(self._records) > self._maxsize:
            self._records.popitem(last=False)
        reply = store.apply(op)
        if hasattr(reply, "degraded"):
            reply.degraded = True  # type: ignore[union-attr]
        return reply

    def holds(self, wire: bytes) -> bool:
        return wire in self._records and self._records[wire].holds(wire)


STORES: dict[str, type[Wrapped]] = {
    "unowned-release": UnownedRelease,
    "new-owner-retry": NewOwnerRetry,
    "presumed-winner": PresumedWinner,
    "lost-claim": LostClaim,
    "moved-again": MovedAgain,
    "swallowed-conflict": SwallowedConflict,
    "renamed-ids": RenamedIds,
}
POLICIES: dict[str, Callable[[], Any]] = {"evicting-lru": EvictingLRU}
BUGS = (*STORES, *POLICIES)


def broken(bug: str, url: str, timeout: float, policy: Any) -> tuple[Store | str, Any]:
    """Return the store and the policy with one bug in them."""
    store = STORES[bug](make_store(url, timeout)) if bug in STORES else url
    return store, POLICIES[bug]() if bug in POLICIES else policy
