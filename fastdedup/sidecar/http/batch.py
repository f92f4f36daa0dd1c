"""`POST /v1/batch`: many requests at once. Main path: `BatchRequest.run` → `BatchClaim.answered`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from math import inf
from time import perf_counter
from typing import Any, Final

import orjson

from ...core.counters import outcome_of
from ...gateway import Dedup
from ...kernel.keyspace import MAX_KEY_BYTES
from ...kernel.operations import ClaimOp, Verdict
from ...kernel.owners import draw_owner
from ...model import Outcome
from ..limits import LimitError
from ..namespaces import Namespaces
from ..releases import Grant
from ..reply_memory import LARGE
from ..turns import TaskLine
from ..verbs import Asked, needs_a_task
from .request import Gone
from .strict import are_unique, refuse_repeats
from .verbs import (
    HANDLERS,
    AcquiredText,
    Client,
    HttpAnswer,
    claim_op,
    problem,
    told,
)

_ACQUIRED: Final = Outcome.ACQUIRED
_WAITING: Final = ("claim", "redeem")
"""The requests that may wait for a key."""


def read(check: Callable[[bytes], list[Any]], most: int, body: bytes) -> list[Any]:
    """Return a batch's requests. If all are claims without options, return only their keys, without models.

    A model for each claim would add 82 % to the instructions of a claim in a batch.

    Args:
        check: parses and checks any batch, and raises an error for a mistake; no name may be given twice.
        most: how many requests the batch may have.
        body: the body of the batch.
    """
    try:
        asks = orjson.loads(body)
        keys = [ask["key"] for ask in asks if len(ask) == 2 and ask["op"] == "claim"]
        plain = type(asks) is list and 0 < len(keys) == len(asks) <= most and are_unique(body, 2 * len(asks))
        if plain and all(
            type(key) is str and 0 < len(key) <= MAX_KEY_BYTES and key.isascii() for key in keys
        ):
            return keys
    except (ValueError, KeyError, TypeError, IndexError):
        pass
    found = check(body)
    if not are_unique(body, sum(len(ask.__pydantic_fields_set__) for ask in found)):
        refuse_repeats(body)
    return found


class BatchRequest:
    """A batch under way: its requests start together, so that they share the engine's batches.

    Claims that neither wait nor name their owner run without a task each. Of those that need a task only a few start
    at once, and the others follow them.
    """

    def __init__(self, namespaces: Namespaces, asks: list[Any], client: Client) -> None:
        self._namespaces = namespaces
        self._asks = asks
        self._client = client
        self._one_client = Client(client.peer, client.request, None)
        # Mutable: a place for each answer, in order; the tasks of requests that need one, apart those that wait for a
        # key or consume a token; does a request end if the client hangs up; what was granted; the text of
        # those that the latest verdict grants.
        self._places: list[BatchClaim | Told] = []
        self._brief = TaskLine(namespaces.turns.brief, "fastdedup-batch")
        self._patient = TaskLine(namespaces.turns.waiting, "fastdedup-batch")
        self._consuming = TaskLine(namespaces.turns.brief, "fastdedup-batch")
        self._watches = False
        self.grants: list[Grant] = []
        self.acquired = AcquiredText(b'{"status":201,"body":', b"}")
        # Mutable: how many answers are missing; the bytes that large ones have reserved; the future that the last one
        # sets; did the client hang up.
        self.left = len(asks)
        self._reserved = 0
        self._all: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.given_up = False
        # Read by its claims.
        self.counters = namespaces.counters
        self.judged = namespaces.counters.judged
        self.since = perf_counter()
        self._access = namespaces.access
        self._has_rules = self._access.has_rules
        # Mutable: the operations that count as pending on the client's socket.
        self._pending = 0

    async def run(self) -> HttpAnswer:
        """Return the answers, in the order of the requests."""
        try:
            self._places = [self._begin(ask) for ask in self._asks]
            if self._watches:
                await self._unless_gone()
                if self._claims_again():
                    await self._unless_gone()
            elif self.left:
                await self._all
            text = b"[%b]" % b",".join([place.text for place in self._places])
            return HttpAnswer(200, text, None, self.grants)
        except BaseException:
            self._give_up()
            self._brief.clear()
            raise
        finally:
            self._namespaces.memory.free(self._reserved)
            self._reserved = 0
            self._access.pending -= self._pending
            self._places = []  # they refer to this object: no cycle is left behind

    def told(self, place: BatchClaim | Told, answer: HttpAnswer) -> None:
        """Take the answer to a request, unless that is a claim that was won."""
        self.grants += answer.grants
        if self.given_up:
            self._take_back()
        text = answer.text
        if len(text) > LARGE and not self._reserve(len(text)):
            answer = self._no_room()
            text = answer.text
        place.text = b'{"status":%d,"body":%b}' % (answer.status, text)
        self.left -= 1
        if not self.left:
            self.end()

    def refuse(self, place: BatchClaim, payload: bytes) -> bool:
        """Refuse an answer with a large result before it is made; return False if there is room for it."""
        if self._has_room(len(payload)):
            return False
        self.told(place, self._no_room())
        return True

    def _reserve(self, size: int) -> bool:
        if self.given_up or not self._has_room(size) or not self._namespaces.memory.reserve(size):
            return False
        self._reserved += size
        return True

    def _has_room(self, size: int) -> bool:
        return self._reserved + size <= self._namespaces.limits.replies

    def _no_room(self) -> HttpAnswer:
        most = self._namespaces.limits.replies
        refusal = LimitError(
            f"the results of this batch have more than {most} bytes (limits.replies), or all clients have too "
            "many: ask for this one by itself"
        )
        return problem(refusal, self.counters)

    def end(self) -> None:
        """Wake `run`: every answer has come."""
        if not self._all.done():
            self._all.set_result(None)

    def _give_up(self) -> None:
        self.given_up = True
        self._patient.clear()
        self._consuming.clear()
        self._take_back()

    def _take_back(self) -> None:
        self._namespaces.turns.untold.add(self.grants)
        self.grants = []

    def _begin(self, ask: Any) -> BatchClaim | Told:
        """Begin a request; return the place that its answer will take."""
        try:
            if self._has_rules:
                self._access.admit("claim" if type(ask) is str else ask.op)
                self._pending += 1
                self._access.pending += 1
            if type(ask) is str:  # the key of a claim without options, see `read`
                dedup = self._namespaces.root
                gate = dedup.gate
                wire = gate.claims.wire_of(ask.encode())
                op = ClaimOp(wire, gate.claim_terms, draw_owner(), None)
            elif ask.op != "claim" or needs_a_task(ask):
                return self._later(ask)
            else:
                dedup = self._namespaces.dedup(ask.namespace)
                op = claim_op(dedup, ask)
            claim = BatchClaim(dedup, op, self)
            claim.begin()
        except Exception as fault:  # noqa: BLE001 -- the client gets every error as an answer
            place = Told()
            self.told(place, problem(fault, self.counters))
            return place
        return claim

    def _later(self, ask: Any) -> Told:
        place = Told()
        waits = ask.op in _WAITING and ask.wait > 0
        consumes = ask.op == "consume"
        self._watches = self._watches or waits or consumes
        line = self._patient if waits else self._consuming if consumes else self._brief
        line.add(partial(self._one, ask, place))
        return place

    async def _unless_gone(self) -> None:
        """Wait for the answers. If the client hangs up, raise Gone once what neither waits nor consumes is done."""
        with suppress(Gone):
            return await self._client.unless_gone(self._until_answered())
        self._give_up()
        while self._brief.tasks:
            await asyncio.wait(self._brief.tasks)
        raise Gone

    async def _until_answered(self) -> None:
        if self.left:
            await self._all

    def _claims_again(self) -> bool:
        """Claim again, once, what was won with a lease that is over by now: another owner may have it.

        Not for an owner that the client has named: another request of the batch may have settled its claim. Return
        whether there is any.
        """
        now = perf_counter()
        over = [number for number, place in enumerate(self._places) if place.ends <= now]
        if not over:
            return False
        self.left, self._all = len(over), asyncio.get_running_loop().create_future()
        for number in over:
            ask = self._asks[number]
            if type(ask) is not str:
                ask.wait = 0  # else others would outlast their leases meanwhile
            self._places[number] = self._begin(ask)
        return True

    async def _one(self, ask: Any, place: Told) -> None:
        if ask.op in _WAITING and ask.wait:  # it counts from the batch's beginning
            ask.wait = max(0, ask.wait - round((perf_counter() - self.since) * 1000))
        try:
            answer = await HANDLERS[ask.op](self._namespaces, ask, self._one_client)
        except Exception as fault:  # noqa: BLE001 -- the client gets every error as an answer
            answer = problem(fault, self.counters)
        if answer.grants and ask.op in _WAITING:  # a claim that a drawn owner has won
            place.ends = perf_counter() + answer.facts["lease"] / 1000
        self.told(place, answer)


class Told:
    """The place of an answer that is written at once."""

    __slots__ = ("ends", "text")

    text: bytes

    def __init__(self) -> None:
        self.ends = inf
        """When the lease ends that the answer grants, by `perf_counter`; infinity without one."""


class BatchClaim(Asked):
    """A claim of a batch, and the place of its answer."""

    __slots__ = ("_batch", "ends", "text")

    text: bytes

    def __init__(self, dedup: Dedup, op: ClaimOp, batch: BatchRequest) -> None:
        super().__init__(dedup, op)
        self.ends = inf
        """See `Told`."""
        self._batch = batch

    def done(self) -> bool:
        """True once the claim is answered, or its batch given up; the engine then releases the claim."""
        return self._op is None or self._batch.given_up

    def answered(self, dedup: Dedup, op: ClaimOp, verdict: Verdict) -> None:
        """Take the verdict."""
        batch = self._batch
        batch.judged(dedup, verdict, batch.since)  # first: nothing after it can fail
        if verdict.outcome is not _ACQUIRED:
            if len(verdict.payload) > LARGE and batch.refuse(self, verdict.payload):
                return
            batch.told(self, told(dedup, op, verdict))
            return
        batch.grants.append((dedup, op.wire, op.owner))
        self.ends = batch.since + verdict.left_ms / 1000  # the lease began then, or a little later
        self.text = batch.acquired.text(verdict, op.owner)
        batch.left -= 1
        if not batch.left:
            batch.end()

    def failed(self, fault: Exception) -> None:
        """Take the exception that came instead of a verdict."""
        batch = self._batch
        batch.counters.claimed(self._dedup, outcome_of(fault), batch.since)
        batch.told(self, problem(fault, batch.counters))
