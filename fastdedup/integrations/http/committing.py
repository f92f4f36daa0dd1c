"""A request whose row, work and response commit in one transaction, behind the gate. No framework is in here.

Main path: `CommittedWork.begin` → the handler → `CommittedWork.end` → the response is sent.

What happens after a failure, by the part that failed:

    before COMMIT                the transaction is rolled back and the key is free: a retry is a first run
    COMMIT's reply, or a hook    it is unknown whether it took effect: 503, and a retry gets what the row says
    after COMMIT                 a retry gets the row's response, which mends the gate's record
    the gate                     the row decides alone (`GateBypassed`)
    the database                 503
    a response without a place   refused before COMMIT: a stream, or one that is too large
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from ...arguments import CallRules
from ...claim import Claim
from ...errors import ConfigError, MismatchError, ResultError, ResultTooLargeError
from ...keys import Fingerprint
from ...sql.any_inbox import AnyInbox
from ...sql.drivers.base import is_connection_lost, is_of_database, is_outage, is_retryable
from ...sql.faults import layers
from ...sql.once import UNHEARD, AtGate
from ...sql.open_transaction import CommitUnknown, OnceRules, OpenTransaction
from ...web.answers import Settling, is_cut_short, replay, settling_of, storable
from ...web.problems import MISMATCH, ProblemType, respond
from ...web.recorder import Recorder
from ...web.response import Response, ResponseCodec
from ...web.rules import HEAD_ROOM

log = logging.getLogger("fastdedup.web")
T = TypeVar("T")
S = TypeVar("S")
Named = tuple[str, Fingerprint]
"""A request's key in the gate and in the inbox, and its fingerprint; see `Rule.identify`."""

DATABASE_UNAVAILABLE: Final = ProblemType(
    "database-unavailable",
    503,
    "The database does not answer",
    "Nothing was processed. Repeat the same request, with the same key, after Retry-After seconds.",
)
COMMIT_UNKNOWN: Final = ProblemType(
    "commit-unknown",
    503,
    "The database has not confirmed the commit",
    "It is unknown whether this request took effect. Repeat the same request, with the same key, after Retry-After "
    "seconds: it takes effect once in either case.",
)

_WITHOUT_KEY: Final = (
    "It is unknown whether this request took effect. It had no Idempotency-Key, so a repetition may take effect "
    "twice: find out first."
)


@dataclass(frozen=True, slots=True)
class Committed(Generic[S]):
    """What a handler gets whose work commits with its response."""

    session: S
    """The open transaction that `begin` yields: a session, or a connection. Leave commit and rollback to it."""
    key: str | None
    """The request's Idempotency-Key; None for a request without one."""
    claim: Any
    """The claim at the gate, of `fastdedup` or of `fastdedup.sync`; None without a key, and while the gate does not
    answer. The handler cannot complete or fail it: the transaction decides."""


class Steps:
    """How one kind of code runs a flow, see `fastdedup.flows`: here synchronous code, in the caller's thread.

    There is no other request in this thread, and no cancellation.
    """

    async def begin(self, flow: Coroutine[Any, Any, T]) -> T:
        """Run a flow that may wait for another request's transaction."""
        return await flow

    async def go_on(self, flow: Coroutine[Any, Any, T]) -> T:
        """Run a flow of a transaction that others may wait for."""
        return await flow

    async def finish(self, flow: Coroutine[Any, Any, T]) -> T:
        """Run a flow to its end, even if the caller is cancelled."""
        return await flow


class RouteCommits:
    """What one route commits with.

    Args:
        claims: the route's claims at the gate: `RouteClaims`, or those of synchronous code.
        gate: the `Dedup` of these claims.
        inbox: the inbox that keeps its rows.
        begin: begins a transaction; by default the inbox's.
        at_gate: the steps at this kind of gate.

    Raises:
        ConfigError: there is no `begin`.
    """

    def __init__(
        self,
        claims: Any,
        gate: Any,
        inbox: AnyInbox[Any],
        begin: Any,
        at_gate: Callable[[OnceRules], AtGate] = AtGate,
    ) -> None:
        self.claims = claims
        most: int = claims.rule.max_response
        limit = f"max_response={most} (with {HEAD_ROOM} bytes for the headers)"
        self.inbox = inbox.storing(ResponseCodec(), most + HEAD_ROOM, limit)
        self.rules = OnceRules(self.inbox, begin, CallRules(str), gate)
        self.at_gate = at_gate(self.rules)


def check_kinds(inbox: AnyInbox[Any], handler: Any, *, awaited: bool) -> None:
    """Check that a handler can use the transactions of an inbox; `awaited`: it does not run in a thread.

    Raises:
        ConfigError: a plain function would get an async session, whose statements it cannot await; or an async one a
            synchronous session, whose statements would stop the event loop.
    """
    if inbox.bridge.is_async == awaited:
        return
    name = getattr(handler, "__name__", type(handler).__name__)
    if awaited:
        raise ConfigError(
            f"{name}() is async, and its inbox is of fastdedup.sync.sql: use Inbox of fastdedup.sql and an async "
            "begin=, or make the handler a plain function (def)"
        )
    raise ConfigError(
        f"{name}() is a plain function, and its inbox is async: make the handler async, or use Inbox of "
        "fastdedup.sync.sql and a synchronous begin="
    )


class CommittedWork:
    """One request's transaction, from its claim at the gate to its end.

    Args:
        route: the request's route.
        docs: the address of the documentation, which every error links to.
        path: the request's path.
        method: its method.
        steps: how the code of `begin` runs.
    """

    def __init__(self, route: RouteCommits, docs: str | None, path: str, method: str, steps: Steps) -> None:
        self.rule = route.claims.rule
        self.transaction = OpenTransaction(route.rules)
        self._route = route
        self._docs = docs
        self._path = path
        self._is_head = method == "HEAD"
        self._steps = steps
        # Mutable: the request's key, with which it can be repeated, and its name; the claim that its handler gets;
        # what records the response at the gate, None if the gate does not learn of it.
        self._key: str | None = None
        self._named: Named | None = None
        self._claim: Any = None
        self._recorder: Recorder | None = None

    @property
    def too_large(self) -> str:
        """Why a response that is too large cannot be stored."""
        return f"its body has more than the {self.rule.max_response} bytes of max_response"

    @property
    def gate_wire(self) -> bytes | None:
        """The key in the gate's store; None for a request without a key."""
        return None if self._named is None else self._route.rules.gate_wire(self._named[0])

    async def claim(self, key: str, named: Named) -> Any:
        """Return the gate's claim, or None if it does not answer: then the row decides alone."""
        self._key, self._named = key, named
        try:
            return await self._route.claims.claim(*named)
        except UNHEARD as error:
            self._route.at_gate.bypass(error)
            return None

    def hold(self, claim: object, recorder: Recorder) -> None:
        """Let the gate learn of the response. `claim`: the one that the handler gets."""
        self._claim, self._recorder = claim, recorder
        recorder.claim.settlement.leave_to_row()

    async def begin(self) -> Committed[Any] | Response:
        """Begin the transaction and receive the request's row, if it has a key.

        Return what the handler gets, or the response in its place.

        Raises:
            Exception: any error that is not about the database's absence.
        """
        name, mark = (None, None) if self._named is None else self._named
        try:
            answer = await self._steps.begin(self.transaction.begin(name, mark))
        except Exception as error:
            self._undo()
            if any(isinstance(each, MismatchError) for each in layers(error)):
                return respond(MISMATCH, docs=self._docs)
            if not (is_retryable(error) or is_outage(error)):
                raise
            return self._unavailable(error)
        if answer is None:
            return Committed(self.transaction.transaction, self._key, self._claim)
        stored: Response | None = answer()
        if self._recorder is None or stored is None:
            return replay(stored, self._docs)
        self._recorder.committed = self._recorder.replayed = True  # the gate records it, and so is mended
        return stored

    async def run(self, handler: Callable[[], Awaitable[T]]) -> T | Response:
        """Run the handler in the transaction. Return its result, or a response if only the database is to blame."""
        try:
            result = await handler()
            await self.handled()
        except BaseException as error:
            answer = await self.raised(error)
            if answer is None:
                raise
            return answer
        return result

    async def handled(self) -> None:
        """Send the database what the handler has left in its session, so that its errors come as the handler's."""
        await self._steps.go_on(self.transaction.flush())

    async def raised(self, error: BaseException) -> Response | None:
        """Roll back because of the handler's error. Return a response if only the database is to blame for it.

        Raises:
            Exception: the error in the words of `begin`; see `OpenTransaction.roll_back`.
        """
        try:
            await self.roll_back(error)
        except Exception as told:
            if not (is_of_database(told) and self._is_to_blame(told)):
                raise
            return self._unavailable(told)
        if not isinstance(error, Exception) or not is_of_database(error):
            return None
        return self._unavailable(error) if self._is_to_blame(error) else None

    async def end(self, response: Response) -> Response:
        """Commit with the response, or roll back if the rule does not keep it. Return the response to send.

        Raises:
            ResultError: the response cannot be stored, so nothing was committed.
            Exception: any other error of `keep=`, of `begin=` or of the COMMIT: nothing was committed.
        """
        recorder = self._recorder
        if not self.transaction.is_open:  # the handler has raised an error, and this is the answer to it
            return response
        if recorder is not None and _is_lost(recorder.claim):
            await self.roll_back()
            return recorder.refusal()
        try:
            kept = self._keeps(response)
        except BaseException as error:
            # Here and not later: middleware within may answer the error, and that answer is kept.
            await self.roll_back(error)
            raise
        if not kept:
            await self.roll_back()
            return response
        if len(response.body) > self.rule.max_response:
            raise await self.refuse(self.too_large)
        if recorder is not None:
            recorder.claim.settlement.guard(None)  # from here on the row decides
            # Until it is committed: a cancelled request leaves while its COMMIT goes on.
            recorder.undone = True
        try:
            answer = await self._steps.finish(self.transaction.commit(storable(self.rule, response)))
        except CommitUnknown as unknown:
            log.error("%s: it is unknown whether a COMMIT took effect", self._path, exc_info=unknown.error)
            if self._key is None:
                return respond(COMMIT_UNKNOWN, _WITHOUT_KEY, docs=self._docs)
            return respond(COMMIT_UNKNOWN, docs=self._docs, retry_after=self.rule.retry_after)
        except Exception as error:
            if self._is_to_blame(error):
                return self._unavailable(error)
            if isinstance(error, ResultTooLargeError):
                raise await self.refuse(f"its headers have more than {HEAD_ROOM} bytes")
            raise
        if recorder is not None:
            assert answer is not None, "a request with a claim has a row"
            recorder.committed, recorder.undone, recorder.kept = True, False, answer.encoded
        return response

    async def refuse(self, why: str) -> ResultError:
        """Roll back because the response cannot be stored; return the error to raise."""
        await self.roll_back()
        error = ResultError(
            f"the response cannot be stored in the transaction of its work ({why}), so nothing was committed: "
            "return a response that fits, or use Claimed(), whose response may be a stream"
        )
        log.error("%s: %s", self._path, error)
        return error

    async def roll_back(self, error: BaseException | None = None) -> None:
        """Roll back if the transaction is still open: the key is free then, too."""
        if self.transaction.is_open:
            self._undo()
            await self._steps.finish(self.transaction.roll_back(error))

    def _keeps(self, response: Response) -> bool:
        length = response.header(b"content-length") or b""
        # Before `settling_of`, which keeps a response if the rule raises: here the work can still be undone.
        if not self.rule.keeps(response.status) or is_cut_short(response, length, may_be_empty=self._is_head):
            return False
        return settling_of(self.rule, response, self._path) is not Settling.RELEASE

    def _is_to_blame(self, error: Exception) -> bool:
        """True if the database has ended the transaction that an error has rolled back, or was lost."""
        return is_retryable(error) or is_connection_lost(error) or self.transaction.lost_connection

    def _undo(self) -> None:
        if self._recorder is not None:
            self._recorder.undone = True

    def _unavailable(self, error: Exception) -> Response:
        log.error("%s: the database does not answer, or ends transactions", self._path, exc_info=error)
        return respond(DATABASE_UNAVAILABLE, docs=self._docs, retry_after=self.rule.retry_after)


def _is_lost(claim: Claim) -> bool:
    """True if another owner may have the key. In an outage of the gate the row decides."""
    return claim.lost and not claim.settlement.lost_in_outage
