"""The handlers of HTTP requests. To add one: a model in `models.py`, a function here, a line in `ROUTES`.

A handler takes the namespaces, the checked request and its client, and returns the answer or raises an exception;
`problems.py` turns that into the client's answer.
"""

from __future__ import annotations

from binascii import hexlify
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from time import perf_counter
from typing import Any, Protocol, TypeVar

import orjson
import pydantic_core

from ...claim import Claim
from ...claiming import claim_call
from ...codec import has_nan
from ...core.options import PLAIN, ClaimOptions
from ...errors import ResultError, UnavailableError
from ...gateway import Dedup
from ...kernel.operations import ClaimOp, ReleaseOp, RenewOp, SettleOp, Verdict
from ...kernel.owners import RANDOM_BYTES, draw_owner, owner_field, owner_text
from ...kernel.terms import Mode
from ...keys import digest
from ...ledger.operations import IdPlace
from ...model import Outcome
from ...tokens import token_op
from ..counters import Counters, outcome_of_fault
from ..ledgers import ServedLedger
from ..namespaces import Namespaces
from ..verbs import (
    ListOptions,
    as_json,
    held,
    record_facts,
    records,
    releasing,
    renewing,
    seconds,
    settling,
)
from ..verbs import (
    forget as forget_key,
)
from . import models, problems
from .problems import RequestProblem, is_bad, problem_of
from .request import HttpRequest

T = TypeVar("T")
Held = tuple[Dedup, bytes, bytes]
"""A claim to release unless the client gets the answer: its `Dedup`, store key and owner field."""

_CREATED = b"HTTP/1.1 201 Created\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
_OPENING = len('{"outcome":"acquired","owner":"') + 2 * RANDOM_BYTES
_ACQUIRED = Outcome.ACQUIRED
_SUCCEEDED = Outcome.SUCCEEDED
_FAILED = Outcome.FAILED
_IN_PROGRESS = Outcome.IN_PROGRESS
_WORDS = {outcome: outcome.value for outcome in Outcome}  # `value` itself costs 0.5 µs


class Client(Protocol):
    """The client that sent a request."""

    @property
    def peer(self) -> Any:
        """Its process; None if the system does not tell."""

    @property
    def request(self) -> HttpRequest:
        """The request."""

    async def unless_gone(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what `work` returns. Where the client hangs up first, cancel it and raise Gone."""
        ...


class HttpAnswer:
    """The answer to a request: a status and JSON.

    Args:
        retry_ms: after how many ms another try makes sense.
        held: the claims to release where the client does not get the answer.
    """

    __slots__ = ("facts", "headers", "held", "retry_ms", "status")

    def __init__(
        self, status: int, facts: Any, retry_ms: int | None = None, held: Sequence[Held] = ()
    ) -> None:
        self.status = status
        self.facts = facts
        self.retry_ms = retry_ms
        self.held = held
        self.headers: list[tuple[bytes, bytes]] | None = None

    @property
    def text(self) -> bytes:
        """The body."""
        return self.facts if type(self.facts) is bytes else orjson.dumps(self.facts)


class RawAnswer(HttpAnswer):
    """An answer that is ready bytes of any content type."""

    __slots__ = ("kind",)

    def __init__(self, kind: bytes, content: bytes) -> None:
        super().__init__(200, content)
        self.kind = kind


# Claims


async def claim(namespaces: Namespaces, ask: models.ClaimRequest, client: Client) -> HttpAnswer:
    """`POST /v1/claims`. The main path."""
    if ask.remember is not None:
        return await _claim_remembered(namespaces, ask, ask.remember, client)
    dedup = namespaces.root if ask.namespace is None else namespaces.dedup(ask.namespace)
    if ask.wait:
        call = claim_call(dedup.gate, _options(ask), ask.key, _mark(ask))
        return _won(namespaces, dedup, await client.unless_gone(_wait(call)), ask.owner is not None)
    op = claim_op(dedup, ask)
    op.named = ask.owner is not None
    if op.named:
        namespaces.ephemeral.claimed_again((dedup, op.wire, op.owner))
    verdict = await dedup.gate.claim(op)
    if op.named and verdict.outcome is _ACQUIRED:
        namespaces.ephemeral.won_again((dedup, op.wire, op.owner), None)
    return claimed(dedup, op.wire, op.owner, op.named, verdict)


async def _claim_remembered(
    namespaces: Namespaces, ask: models.ClaimRequest, ledger: str, client: Client
) -> HttpAnswer:
    served = namespaces.ledgers.find(ledger, ask.namespace)
    call = served.claim(_options(ask), ask.key, _mark(ask))
    answer = await client.unless_gone(served.answered(call))
    return _won(namespaces, served.dedup, answer, ask.owner is not None)


def _options(ask: models.ClaimRequest) -> ClaimOptions:
    """Return the options of a claim that waits, or that a ledger remembers."""
    return ClaimOptions(ask.owner, seconds(ask.lease), seconds(ask.ttl), ask.wait / 1000)


def _mark(ask: models.ClaimRequest) -> bytes | None:
    """Return the fingerprint of a claim."""
    return None if ask.fingerprint is None else digest(ask.fingerprint)


def claim_op(dedup: Dedup, ask: models.ClaimRequest) -> ClaimOp:
    """Return the operation of a claim that does not wait."""
    owner = draw_owner() if ask.owner is None else owner_field(ask.owner)
    plain = ask.lease is None and ask.ttl is None
    terms = dedup.gate.claim_terms if plain else dedup.gate.terms_ms(ask.lease, ask.ttl)
    return ClaimOp(dedup.gate.claims.wire_of(ask.key.encode()), terms, owner, _mark(ask))


async def redeem(namespaces: Namespaces, ask: models.RedeemRequest, client: Client) -> HttpAnswer:
    """`POST /v1/tokens/redeem`."""
    dedup = namespaces.dedup(ask.namespace)
    options = ClaimOptions(None, seconds(ask.lease), seconds(ask.ttl), ask.wait / 1000)
    if ask.wait:
        call = dedup.tokens.redeem_with(options, ask.token, ask.subject)
        return _waited(dedup, await client.unless_gone(_wait(call)), False)
    op = token_op(dedup.gate, options, ask.token, ask.subject, Mode.REDEEM)
    gate = dedup.gate
    verdict = await gate.until_use_stays(op, await gate.claim(op))
    return claimed(dedup, op.wire, op.owner, op.named, verdict)


def claimed(dedup: Dedup, wire: bytes, owner: bytes, named: bool, verdict: Verdict) -> HttpAnswer:
    """Return the answer for a verdict."""
    outcome = verdict.outcome
    facts: dict[str, Any] = {
        "outcome": _WORDS[outcome],
        "owner": owner_text(owner),
        "fence": verdict.fence,
        "attempt": verdict.attempt,
        "lease": verdict.left_ms if outcome is _ACQUIRED else None,
        "result": as_json(verdict.payload) if outcome is _SUCCEEDED else None,
        "error": as_json(verdict.payload) if outcome is _FAILED else None,
        "retry_after": verdict.left_ms / 1000 if outcome is _IN_PROGRESS else None,
        "degraded": verdict.degraded,
    }
    if outcome is _ACQUIRED:
        return HttpAnswer(201, facts, None, () if named else ((dedup, wire, owner),))
    if outcome is _SUCCEEDED or outcome is _FAILED:
        return HttpAnswer(200, facts)
    known = problems.OF_OUTCOME[outcome]
    return HttpAnswer(
        known.status, known.facts(**facts), verdict.left_ms if outcome is _IN_PROGRESS else None
    )


async def _wait(call: Awaitable[Claim]) -> Claim:
    return await call


def _won(namespaces: Namespaces, dedup: Dedup, answer: Claim, named: bool) -> HttpAnswer:
    """Return the answer for a claim; one that a named owner has won does not end with another connection."""
    if named and answer.acquired:
        namespaces.ephemeral.won_again((dedup, *answer.settlement.held_key), None)
    return _waited(dedup, answer, named)


def _waited(dedup: Dedup, answer: Claim, named: bool) -> HttpAnswer:
    return claimed(dedup, *answer.settlement.held_key, named, answer.settlement.verdict)


_BUSY = (
    orjson.dumps(problems.IN_PROGRESS.facts(outcome="in_progress"))[:-1]
    + b',"owner":"%b","fence":%d,"attempt":%d,"lease":null,"result":null,"error":null'
    + b',"retry_after":%b,"degraded":%b}'
)


def told(dedup: Dedup, op: ClaimOp, verdict: Verdict) -> HttpAnswer:
    """Return what `claimed` returns, for a drawn owner that has not won.

    In a storm nearly every answer is IN_PROGRESS: one format for it saves 18 % of a claim's instructions.
    """
    if verdict.outcome is not _IN_PROGRESS:
        return claimed(dedup, op.wire, op.owner, False, verdict)
    truth = b"true" if verdict.degraded else b"false"
    left = orjson.dumps(verdict.left_ms / 1000)  # as the full answer writes it
    text = _BUSY % (hexlify(op.owner[1:]), verdict.fence, verdict.attempt, left, truth)
    return HttpAnswer(409, text, verdict.left_ms)


_TAIL = b'","fence":%d,"attempt":%d,"lease":%d,"result":null,"error":null,"retry_after":null,"degraded":%b}'


class AcquiredText:
    """The answer `acquired` as text, for a drawn owner.

    Fresh claims of one batch share a verdict, so they share most of the text: that saves 14 % of a claim's
    instructions.
    """

    __slots__ = ("_head", "_tail", "_verdict")

    def __init__(self) -> None:
        # Mutable: the latest verdict, and the text for it.
        self._verdict: Verdict | None = None
        self._head = self._tail = b""

    def text(self, verdict: Verdict, owner: bytes) -> tuple[bytes, bytes]:
        """Return the head and the body of the answer."""
        if verdict is not self._verdict:
            self._turn_to(verdict)
        return self._head, b'{"outcome":"acquired","owner":"%b%b' % (hexlify(owner[1:]), self._tail)

    def _turn_to(self, verdict: Verdict) -> None:
        self._verdict = verdict
        self._tail = acquired_tail(verdict)
        self._head = _CREATED % (_OPENING + len(self._tail))


def acquired_tail(verdict: Verdict) -> bytes:
    """Return the text after the owner in the answer `acquired`."""
    truth = b"true" if verdict.degraded else b"false"
    return _TAIL % (verdict.fence, verdict.attempt, verdict.left_ms, truth)


# Settling


async def complete(namespaces: Namespaces, ask: models.CompleteRequest, client: Client) -> HttpAnswer:
    """`POST /v1/claims/complete`."""
    return await _settle(namespaces, ask, True, ask.result, ask.ttl)


async def fail(namespaces: Namespaces, ask: models.FailRequest, client: Client) -> HttpAnswer:
    """`POST /v1/claims/fail`."""
    return await _settle(namespaces, ask, False, ask.error, ask.ttl)


async def _settle(
    namespaces: Namespaces, ask: models.HolderRequest, succeeded: bool, value: Any, ttl: int | None
) -> HttpAnswer:
    payload = _payload(value)
    if ask.remember is not None:
        served, field = _ledger(namespaces, ask), owner_field(ask.owner)
        if succeeded:
            done = served.completing(ask.key, field, fence=ask.fence, ttl=ttl, payload=payload)
            return await _changed_remembered(served, ask, done)
        return await _changed_remembered(
            served,
            ask,
            lambda wire, _: settling(
                served.dedup, wire, field, fence=ask.fence, succeeded=False, ttl=ttl, payload=payload
            ),
        )
    dedup, wire, owner = _held(namespaces, ask)
    op = settling(dedup, wire, owner, fence=ask.fence, succeeded=succeeded, ttl=ttl, payload=payload)
    return await _changed(dedup, op, {})


async def release(namespaces: Namespaces, ask: models.ReleaseRequest, client: Client) -> HttpAnswer:
    """`POST /v1/claims/release`."""
    if ask.remember is not None:
        served, field = _ledger(namespaces, ask), owner_field(ask.owner)
        return await _changed_remembered(served, ask, lambda wire, _: releasing(wire, field, ask.fence))
    dedup, wire, owner = _held(namespaces, ask)
    return await _changed(dedup, releasing(wire, owner, ask.fence), {})


async def renew(namespaces: Namespaces, ask: models.RenewRequest, client: Client) -> HttpAnswer:
    """`POST /v1/claims/renew`."""
    if ask.remember is not None:
        served, field = _ledger(namespaces, ask), owner_field(ask.owner)
        return await _changed_remembered(
            served, ask, lambda wire, _: renewing(served.dedup, wire, field, ask.fence, ask.lease)
        )
    dedup, wire, owner = _held(namespaces, ask)
    op = renewing(dedup, wire, owner, ask.fence, ask.lease)
    return await _changed(dedup, op, {"lease": op.lease_ms})


def _held(namespaces: Namespaces, ask: models.HolderRequest) -> tuple[Dedup, bytes, bytes]:
    dedup = namespaces.passing(ask.namespace)
    return dedup, *held(dedup, ask.key, ask.owner, token=ask.token)


def _ledger(namespaces: Namespaces, ask: models.HolderRequest) -> ServedLedger:
    served = namespaces.ledgers.find(ask.remember or "", ask.namespace)
    if ask.token:
        raise RequestProblem(problems.INVALID, "a ledger remembers claims: leave token or remember out")
    return served


async def _changed_remembered(
    served: ServedLedger,
    ask: models.HolderRequest,
    make: Callable[[bytes, IdPlace], SettleOp | ReleaseOp | RenewOp],
) -> HttpAnswer:
    op = await served.change(ask.key, make)
    return HttpAnswer(200, {"lease": op.lease_ms} if isinstance(op, RenewOp) else {})


async def _changed(dedup: Dedup, op: SettleOp | ReleaseOp | RenewOp, facts: dict[str, Any]) -> HttpAnswer:
    await dedup.gate.change(op)
    return HttpAnswer(200, facts)


def _payload(value: Any) -> bytes:
    """Return a result as JSON. orjson would not do: it has no numbers above 64 bits."""
    if value is None:
        return b""
    payload = pydantic_core.to_json(value)
    if (b"NaN" in payload or b"Infinity" in payload) and has_nan(value):
        raise ResultError("a result must be JSON, which has no NaN and no infinity")
    return payload


# Tokens


async def issue(namespaces: Namespaces, ask: models.IssueRequest, client: Client) -> HttpAnswer:
    """`POST /v1/tokens`."""
    dedup = namespaces.dedup(ask.namespace)
    token = await dedup.tokens.issue(ask.subject, seconds(ask.ttl))
    ttl = round(dedup.settings.token_ttl * 1000) if ask.ttl is None else ask.ttl
    return HttpAnswer(201, {"token": token, "ttl": ttl})


async def consume(namespaces: Namespaces, ask: models.ConsumeRequest, client: Client) -> HttpAnswer:
    """`POST /v1/tokens/consume`."""
    dedup = namespaces.dedup(ask.namespace)
    op = token_op(dedup.gate, PLAIN, ask.token, ask.subject, Mode.CONSUME)
    verdict = await dedup.gate.use(op)
    outcome = verdict.outcome
    facts: dict[str, Any] = {"outcome": _WORDS[outcome], "degraded": verdict.degraded}
    if outcome is _ACQUIRED:
        return HttpAnswer(200, facts)
    known = problems.OF_OUTCOME.get(outcome, problems.TOKEN_USED)
    left = verdict.left_ms if outcome is _IN_PROGRESS else None
    return HttpAnswer(
        known.status, known.facts(**facts, retry_after=None if left is None else left / 1000), left
    )


# Faults and counts


def problem(fault: Exception, counters: Counters) -> HttpAnswer:
    """Return the answer for an exception, and count a request that could not be run."""
    facts, retry_ms = problem_of(fault)
    counters.bad_requests += is_bad(facts)
    answer = HttpAnswer(facts["status"], facts, retry_ms)
    if isinstance(fault, RequestProblem):
        answer.headers = fault.headers
    return answer


def count_failure(counters: Counters, dedup: Dedup, fault: Exception, since: float) -> None:
    """Count a claim that ended in an exception."""
    outcome = "unavailable" if isinstance(fault, UnavailableError) else "error"
    counters.claimed(dedup, outcome, since)


Handler = Callable[[Namespaces, Any, Client], Awaitable[HttpAnswer]]
"""A function that answers one kind of request."""


def counted(verb: str, handler: Handler) -> Handler:
    """Return a handler that counts its answers."""

    async def count(namespaces: Namespaces, ask: Any, client: Client) -> HttpAnswer:
        since = perf_counter()
        name = namespaces.passing(ask.namespace).settings.namespace
        try:
            answer = await handler(namespaces, ask, client)
        except Exception as fault:
            namespaces.counters.observe(name, verb, outcome_of_fault(fault), perf_counter() - since)
            raise
        outcome = answer.facts.get("outcome", "ok")
        namespaces.counters.observe(name, verb, outcome, perf_counter() - since)
        return answer

    return count


OPS: dict[str, Handler] = {
    handler.__name__: counted(handler.__name__, handler)
    for handler in (claim, complete, fail, release, renew, issue, consume, redeem)
}
"""The handlers of operations, by name; each counts its answers."""


# Administration


async def inspect(namespaces: Namespaces, ask: models.RecordQuery, client: Client) -> HttpAnswer:
    """`GET /v1/records`."""
    dedup = namespaces.passing(ask.namespace)
    record = await dedup.get(ask.key, ask.kind, digest=ask.digest)
    if record is None:
        raise RequestProblem(problems.NO_RECORD)
    return HttpAnswer(200, record_facts(namespaces, record))


async def forget(namespaces: Namespaces, ask: models.ForgetQuery, client: Client) -> HttpAnswer:
    """`DELETE /v1/records`."""
    dedup = namespaces.passing(ask.namespace)
    how: dict[str, Any] = {"kind": ask.kind, "digest": ask.digest, "reason": ask.reason}
    return HttpAnswer(200, {"forgotten": await forget_key(namespaces, dedup, ask.key, client.peer, **how)})


async def list_records(namespaces: Namespaces, ask: models.ListQuery, client: Client) -> HttpAnswer:
    """`GET /v1/records/list`."""
    dedup = namespaces.passing(ask.namespace)
    wanted = ListOptions(**ask.model_dump(exclude={"namespace"}))
    # If the client hangs up, its read gives its turn to the next one.
    found = await client.unless_gone(records(namespaces, dedup, wanted, client.peer))
    return HttpAnswer(200, found)
