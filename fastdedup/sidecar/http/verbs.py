"""The handlers of HTTP requests, for the routes that `routes.py` makes of the table of verbs.

A handler takes the namespaces, the checked request and its client, and returns the answer or raises an exception;
`problems.py` turns that into the client's answer.
"""

from __future__ import annotations

import asyncio
from binascii import hexlify
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, TypeVar

import orjson
from pydantic import ValidationError

from ...core.counters import outcome_of
from ...gateway import Dedup
from ...kernel.operations import ClaimOp, OwnerOp, RenewOp, Verdict
from ...kernel.owners import RANDOM_BYTES, owner_text
from ...keys import fingerprint as digest
from ...model import Outcome
from ...tasks import wait_then_stop
from ..counters import Counters, is_bad, outcome_found
from ..namespaces import Namespaces
from ..releases import Grant, Undoable
from ..verbs import BEGIN, as_json, claim_in, dedup_of, held_in, home_of, op_of, options_of
from ..wire_verbs import VERBS, WireVerb
from . import problems
from .problems import RequestProblem, problem_of
from .request import Gone, HttpRequest

T = TypeVar("T")

_CREATED = b"HTTP/1.1 201 Created\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
_ACQUIRED = Outcome.ACQUIRED
_SUCCEEDED = Outcome.SUCCEEDED
_FAILED = Outcome.FAILED
_IN_PROGRESS = Outcome.IN_PROGRESS
_WORDS = {outcome: outcome.value for outcome in Outcome}  # `value` itself costs 0.5 µs


@dataclass(slots=True, eq=False)
class Client:
    """The client that sent a request.

    Attributes:
        peer: its process; None if the system does not tell.
        request: the request.
        until_gone: returns when the client of a request hangs up; None for one request of a batch, which is given up
            as a whole.
    """

    peer: Any
    request: HttpRequest
    until_gone: Callable[[HttpRequest], Coroutine[Any, Any, None]] | None

    async def unless_gone(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what `work` returns. If the client hangs up first, cancel the work and raise Gone."""
        if self.until_gone is None:
            return await work
        loop = asyncio.get_running_loop()
        task = loop.create_task(work, name="fastdedup-request")
        watch = loop.create_task(self.until_gone(self.request), name="fastdedup-watch")
        if task not in await wait_then_stop((task, watch), asyncio.FIRST_COMPLETED):
            raise Gone
        return task.result()


@dataclass(slots=True, eq=False)
class HttpAnswer:
    """The answer to a request.

    Attributes:
        status: its status.
        facts: its body: values for JSON, or ready bytes.
        retry_ms: after how many ms another try makes sense.
        grants: what to take back if the client does not get the answer.
        headers: further headers.
        kind: the content type of a page (metrics, OpenAPI document, about a problem); None for any other answer.
    """

    status: int
    facts: Any
    retry_ms: int | None = None
    grants: Sequence[Grant] = ()
    headers: list[tuple[bytes, bytes]] | None = None
    kind: bytes | None = None

    @property
    def text(self) -> bytes:
        """The body."""
        return self.facts if type(self.facts) is bytes else orjson.dumps(self.facts)


# Claims


async def claim(namespaces: Namespaces, ask: Any, client: Client) -> HttpAnswer:
    """`POST /v1/claims`. The main path."""
    home = home_of(namespaces, ask, creates=True)
    dedup, named = dedup_of(home), ask.owner is not None
    if ask.wait or ask.remember is not None:
        if named:
            namespaces.ephemeral.claimed_again(await held_in(home, ask.key, ask.owner))
        call = claim_in(home, options_of(ask).but(wait=ask.wait / 1000), ask.key, _mark(ask))
        settlement = (await client.unless_gone(call)).settlement
        (wire, owner), verdict = settlement.held_key, settlement.verdict
    else:
        op = claim_op(dedup, ask)
        wire, owner = op.wire, op.owner
        if named:
            namespaces.ephemeral.claimed_again((dedup, wire, owner))
        verdict = await dedup.gate.claim(op)
    if named and verdict.outcome is _ACQUIRED:  # it does not end with another connection
        namespaces.ephemeral.won_again((dedup, wire, owner), None)
    return claimed(dedup, wire, owner, named, verdict)


def claim_op(dedup: Dedup, ask: Any) -> ClaimOp:
    """Return the operation of a claim that does not wait."""
    return op_of(dedup, ask.key.encode(), _mark(ask), ask)


def _mark(ask: Any) -> bytes | None:
    """Return the fingerprint of a claim."""
    return None if ask.fingerprint is None else digest(ask.fingerprint)


async def redeem(namespaces: Namespaces, ask: Any, client: Client) -> HttpAnswer:
    """`POST /v1/tokens/redeem`."""
    dedup = namespaces.dedup(ask.namespace)
    call = dedup.tokens.redeem_with(options_of(ask).but(wait=ask.wait / 1000), ask.token, ask.subject)
    settlement = (await (client.unless_gone(call) if ask.wait else call)).settlement
    return claimed(dedup, *settlement.held_key, False, settlement.verdict)


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

    Fresh claims of one batch to the store share a verdict, so they share most of the text: that saves 14 % of a
    claim's instructions.

    Args:
        before: the text before the answer's members.
        after: the text after the answer.

    Attributes:
        head: that of a response with the latest text.
    """

    __slots__ = ("_after", "_before", "_tail", "_verdict", "head")

    def __init__(self, before: bytes = b"", after: bytes = b"") -> None:
        self._before = before + b'{"outcome":"acquired","owner":"'
        self._after = after
        # Mutable: the latest verdict, and the text for it.
        self._verdict: Verdict | None = None
        self.head = self._tail = b""

    def text(self, verdict: Verdict, owner: bytes) -> bytes:
        """Return the answer."""
        if verdict is not self._verdict:
            self._turn_to(verdict)
        return self._before + hexlify(owner[1:]) + self._tail

    def _turn_to(self, verdict: Verdict) -> None:
        self._verdict = verdict
        truth = b"true" if verdict.degraded else b"false"
        self._tail = _TAIL % (verdict.fence, verdict.attempt, verdict.left_ms, truth) + self._after
        self.head = _CREATED % (len(self._before) + 2 * RANDOM_BYTES + len(self._tail))


# Faults and counts


def problem(fault: Exception, counters: Counters) -> HttpAnswer:
    """Return the answer for an exception, and count a request that could not be run."""
    facts, retry_ms = problem_of(fault)
    counters.bad_requests += isinstance(fault, RequestProblem | ValidationError) or is_bad(fault)
    headers = fault.headers if isinstance(fault, RequestProblem) else None
    return HttpAnswer(facts["status"], facts, retry_ms, headers=headers)


Handler = Callable[[Namespaces, Any, Client], Awaitable[HttpAnswer]]
"""A function that answers one kind of request."""


def counted(verb: str, handler: Handler) -> Handler:
    """Return a handler that counts its answers: a claim that names a ledger in the ledger's namespace."""

    async def count(namespaces: Namespaces, ask: Any, client: Client) -> HttpAnswer:
        dedup = dedup_of(home_of(namespaces, ask)) if verb == "claim" else namespaces.passing(ask.namespace)
        asked = handler(namespaces, ask, client)
        return await _count(namespaces, dedup, verb, asked, lambda answer: answer.facts.get("outcome", "ok"))

    return count


async def _count(
    namespaces: Namespaces, dedup: Dedup, verb: str, asked: Awaitable[T], outcome: Callable[[T], str]
) -> T:
    """Return what was asked for, and count it; `outcome`: returns its outcome in one word."""
    since, name = perf_counter(), dedup.settings.namespace
    try:
        found = await asked
    except Exception as fault:
        namespaces.counters.observe(name, verb, outcome_of(fault), perf_counter() - since)
        raise
    namespaces.counters.observe(name, verb, outcome(found), perf_counter() - since)
    return found


def _handler(verb: WireVerb) -> Handler:
    """Return the handler of a verb that both wires begin in the same way; it counts its answers.

    If the client hangs up, the work of some verbs is cancelled. Then no id stays remembered, no token stays used, and
    a read gives its turn to the next one.
    """
    begin, cancels = BEGIN[verb.name], verb.turns or verb.name in ("first", "consume")
    answer = _settled if verb.of_owner else _ANSWERS[verb.name]

    async def handle(namespaces: Namespaces, ask: Any, client: Client) -> HttpAnswer:
        home, begun = begin(namespaces, ask, client.peer)
        work = client.unless_gone(begun()) if cancels else begun()
        found = await _count(namespaces, dedup_of(home), verb.name, work, outcome_found)
        if verb.of_owner:
            namespaces.ephemeral.changed(dedup_of(home), found)
        if type(found) is not Undoable:
            return answer(found)
        told = answer(found.found)
        told.grants = found.grants
        return told

    return handle


# The answers


def facts_of(name: str | None = None, *, status: int = 200) -> Callable[[Any], HttpAnswer]:
    """Return what answers with what was found: it is the whole answer, or its member `name`."""
    return lambda found: HttpAnswer(status, found if name is None else {name: found})


def _changed(name: str) -> Callable[[Any], HttpAnswer]:
    """Return what `facts_of` returns, for a change of many ids: its answer is ready bytes, so it is never refused."""
    return lambda found: HttpAnswer(200, orjson.dumps({name: found}))


def _settled(op: OwnerOp) -> HttpAnswer:
    return HttpAnswer(200, {"lease": op.lease_ms} if isinstance(op, RenewOp) else {})


def _consumed(verdict: Verdict) -> HttpAnswer:
    outcome = verdict.outcome
    facts: dict[str, Any] = {"outcome": _WORDS[outcome], "degraded": verdict.degraded}
    if outcome is _ACQUIRED:
        return HttpAnswer(200, facts)
    known = problems.OF_OUTCOME.get(outcome, problems.TOKEN_USED)
    left = verdict.left_ms if outcome is _IN_PROGRESS else None
    return HttpAnswer(
        known.status, known.facts(**facts, retry_after=None if left is None else left / 1000), left
    )


def _shown(record: dict[str, Any] | None) -> HttpAnswer:
    known = problems.NO_RECORD
    return HttpAnswer(known.status, known.facts()) if record is None else HttpAnswer(200, record)


_ANSWERS: dict[str, Callable[[Any], HttpAnswer]] = {
    "issue": facts_of(status=201),
    "consume": _consumed,
    "get": _shown,
    "list": facts_of(),
    "forget": facts_of("forgotten"),
    "first": _changed("first"),
    "seen": facts_of("seen"),
    "forget_id": _changed("forgotten"),
    "ledger": facts_of(),
}
"""What answers the verbs that are not an owner's."""


HANDLERS: dict[str, Handler] = {
    **{verb.name: _handler(verb) for verb in VERBS if verb.name in BEGIN},
    "claim": counted("claim", claim),
    "redeem": counted("redeem", redeem),
}
"""The handlers of verbs, by name; each counts its answers."""
