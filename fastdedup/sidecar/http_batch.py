"""Many requests at once: `POST /v1/batch`."""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import TYPE_CHECKING, Any

from ..model import Outcome
from ..stores.base import ClaimOp, Verdict
from .http_verbs import (
    OPS,
    AcquiredText,
    Answer,
    Client,
    Gone,
    Held,
    claim_op,
    count_failure,
    problem,
    told,
)
from .verbs import Asked

if TYPE_CHECKING:
    from ..gateway import Dedup
    from .gate import Gate

_ACQUIRED = Outcome.ACQUIRED


async def batch(gate: Gate, asks: list[Any], client: Client) -> Answer:
    """`POST /v1/batch`: all start together, so that they travel in the engine's batches."""
    return await Batch(gate, asks, client).run()


class Batch:
    """One batch under way. Plain claims, most of what comes, run without a task each."""

    def __init__(self, gate: Gate, asks: list[Any], client: Client) -> None:
        self._gate = gate
        self._asks = asks
        self._client = client
        # Mutable: the answers so far, and claims that they give; who waits for the last; is it given up.
        self.texts: list[Any] = [None] * len(asks)
        self.held: list[Held] = []
        self._left = len(asks)
        self._all: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.given_up = False
        # Shared by its claims.
        self.judged = gate.metrics.judged
        self.since = perf_counter()
        self.acquired = AcquiredText().text

    async def run(self) -> Answer:
        """Return the answers, in the order of the questions."""
        slow = [at for at, ask in enumerate(self._asks) if not self._begin(at, ask)]
        try:
            if slow:
                await asyncio.gather(*[self._one(at) for at in slow])
            if self._left:
                await self._all
        except BaseException:
            self.given_up = True
            self._take_back()
            raise
        return Answer(200, b"[%b]" % b",".join(self.texts), None, self.held)

    def put(self, at: int, answer: Answer) -> None:
        """Take one answer."""
        self.held += answer.held
        if self.given_up:
            self._take_back()
        self.put_text(at, b'{"status":%d,"body":%b}' % (answer.status, answer.text))

    def put_text(self, at: int, text: bytes) -> None:
        """Take one answer."""
        self.texts[at] = text
        self._left -= 1
        if not self._left and not self._all.done():
            self._all.set_result(None)

    def failed(self, at: int, scope: Dedup, fault: Exception) -> None:
        """Take a claim that got no verdict."""
        count_failure(self._gate.metrics, scope, fault, self.since)
        self.put(at, problem(fault))

    def _take_back(self) -> None:
        for scope, wire, owner in self.held:
            scope.release_later(wire, owner)
        self.held.clear()

    def _begin(self, at: int, ask: Any) -> bool:
        if ask.op != "claim" or ask.owner is not None or ask.wait:
            return False
        try:
            scope = self._gate.root if ask.namespace is None else self._gate.scope(ask.namespace)
            Item(scope, claim_op(scope, ask), self, at).begin()
        except Exception as fault:  # noqa: BLE001 -- whatever it is, the client is told
            self.put(at, problem(fault))
        return True

    async def _one(self, at: int) -> None:
        ask = self._asks[at]
        try:
            answer = await OPS[ask.op](self._gate, ask, self._client)
        except Gone:
            raise
        except Exception as fault:  # noqa: BLE001 -- whatever it is, the client is told
            answer = problem(fault)
        self.put(at, answer)


class Item(Asked):
    """A claim of a batch."""

    __slots__ = ("_at", "_batch")

    def __init__(self, scope: Dedup, op: ClaimOp, batch: Batch, at: int) -> None:
        self._scope = scope
        self._op = op
        self._error = None
        self._batch = batch
        self._at = at

    def done(self) -> bool:
        """As a future. Where nobody waits for the batch any more, the engine releases its claims."""
        return self._op is None or self._batch.given_up

    def answered(self, scope: Dedup, op: ClaimOp, verdict: Verdict) -> None:
        """Fill in."""
        batch = self._batch
        batch.judged(scope, verdict, batch.since)
        if verdict.outcome is _ACQUIRED:
            batch.held.append((scope, op.wire, op.owner))
            batch.put_text(self._at, b'{"status":201,"body":%b}' % batch.acquired(verdict, op.owner)[1])
        else:
            batch.put(self._at, told(scope, op, verdict))

    def failed(self, fault: Exception) -> None:
        """Fill in."""
        self._batch.failed(self._at, self._scope, fault)
