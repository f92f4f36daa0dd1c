"""The sidecar's answers to HTTP. Main path: `HttpApp.quick` → `Quick.answered` for claims, else `HttpApp.__call__`.

It uses no framework, whose router alone would cost more than a claim.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, Final

from ...core.counters import outcome_of
from ...gateway import Dedup
from ...kernel.operations import ClaimOp, Verdict
from ...model import Outcome
from ...web.problems import ProblemType
from ..namespaces import Namespaces
from ..reply_memory import LARGE
from ..verbs import Asked, needs_a_task
from . import problems
from .gate import PATH
from .models import QueryModel
from .problems import RequestProblem, retry_after
from .protocol import QUICK_PATH, HttpProtocol
from .request import STATUS_LINE, Gone, HttpRequest
from .route import HttpRoute, route_path
from .routes import BELOW_GATE, ROUTES
from .strict import parse_query
from .verbs import AcquiredText, Client, HttpAnswer, claim_op, problem, told

Headers = list[tuple[bytes, bytes]]

_JSON: Final = (b"content-type", b"application/json")
_PROBLEM: Final = (b"content-type", b"application/problem+json")
CLOSE: Final = (b"connection", b"close")
_ACQUIRED: Final = Outcome.ACQUIRED


class HttpApp:
    """Answers HTTP requests.

    Args:
        namespaces: the sidecar's namespaces.
        routes: the requests to answer; any other one is answered 404.
    """

    def __init__(self, namespaces: Namespaces, routes: Sequence[HttpRoute] = ROUTES) -> None:
        limits = namespaces.limits
        self._namespaces = namespaces
        self.counters = namespaces.counters
        self._most = limits.frame
        self._routes: dict[str, dict[str, tuple[HttpRoute, Callable[[bytes], Any] | None]]] = {}
        for route in routes:
            ruled = route.under(namespaces.access)
            self._routes.setdefault(route.path, {})[route.method] = (ruled, route.parser(limits.batch))
        self.acquired = AcquiredText()
        self._below_gate = BELOW_GATE.under(namespaces.access)
        quick = QUICK_PATH in self._routes and not namespaces.access.judges("claim")
        self._quick_path = QUICK_PATH if quick else ""
        self._parse_claim: Any = self._routes[QUICK_PATH]["POST"][1] if quick else None
        for methods in self._routes.values():
            if "GET" in methods:
                methods["HEAD"] = methods["GET"]

    async def __call__(self, connection: HttpProtocol, request: HttpRequest) -> None:
        """Answer one request (the connection calls this)."""
        await connection.flow.drain()  # before the work: no answer is made while earlier ones lie unread
        try:
            answer = await self._answer(connection, request)
        except Gone:
            return
        await connection.flow.drain()
        self.hand(connection, answer, bodiless=request.method == "HEAD")

    def hand(self, connection: HttpProtocol, answer: HttpAnswer, *, bodiless: bool = False) -> None:
        """Give a connection the answer to its request, or a refusal if memory has no room for a large result."""
        headers, body = _text(answer)
        # A request whose large answer is facts, or is a page, has changed nothing, so it may be refused.
        if (
            len(body) > LARGE
            and (type(answer.facts) is dict or answer.kind is not None)
            and not self._namespaces.memory.has_room(len(body))
        ):
            answer = problem(self._namespaces.memory.full(), self._namespaces.counters)
            headers, body = _text(answer)
        head = _head(answer.status, headers)
        connection.respond(head, b"" if bodiless else body, answer.grants, close=CLOSE in headers)

    async def _answer(self, connection: HttpProtocol, request: HttpRequest) -> HttpAnswer:
        try:
            route, parse = self._found(request)
        except KeyError:
            return problem(self._no_route(request.path), self._namespaces.counters)
        try:
            if parse is not None:
                if request.query:  # else a namespace in the address would be ignored
                    parse_query(request.query, QueryModel)
                ask = parse(await _body_of(connection, request, self._most))
            else:
                ask = None if route.asks is None else parse_query(request.query, route.asks)
            client = Client(connection.peer, request, connection.until_gone)
            return await route.handler(self._namespaces, ask, client)
        except Gone:
            raise
        except Exception as fault:  # noqa: BLE001 -- the client gets every error as an answer
            return problem(fault, self._namespaces.counters)

    def _found(self, request: HttpRequest) -> tuple[HttpRoute, Callable[[bytes], Any] | None]:
        if request.path.startswith(BELOW_GATE.path) and PATH in self._routes:
            return self._below_gate, None
        return self._routes[route_path(request.path)][request.method]

    def _no_route(self, path: str) -> RequestProblem:
        methods = self._routes.get(route_path(path))
        if methods is None:
            return RequestProblem(
                problems.NOT_FOUND, f"nothing is served at {path[:100]!r}: GET /openapi.json lists all paths"
            )
        allow = ", ".join(sorted(methods))
        return RequestProblem(problems.METHOD, f"allowed here: {allow}", headers=[(b"allow", allow.encode())])

    def turned_down(self, problem: ProblemType) -> None:
        """Count a connection that ends with a problem, before a request could be read (the connection calls this)."""
        self._namespaces.counters.bad_requests += problem.status < 500

    def quick(self, connection: HttpProtocol, request: HttpRequest) -> bool:
        """Answer a claim without a task; return False for a request that needs a task.

        A claim needs a task if it waits, names its owner or a ledger, has a query, or if the socket's rules judge
        claims. Every other request needs one. A task and its futures would add 68 % to a claim's instructions.
        """
        if request.path != self._quick_path or request.query or request.method != "POST":
            return False
        since = perf_counter()
        try:
            check_headers(request.headers, self._most)
            if len(request.body) > self._most:
                raise _too_large(self._most)
            ask = self._parse_claim(bytes(request.body))
            if needs_a_task(ask):
                return False
            namespaces = self._namespaces
            dedup = namespaces.root if ask.namespace is None else namespaces.dedup(ask.namespace)
            op = claim_op(dedup, ask)
            Quick(dedup, op, connection, self, since).begin()
        except Exception as fault:  # noqa: BLE001 -- the client gets every error as an answer
            self.hand(connection, problem(fault, self._namespaces.counters))
        return True


class Quick(Asked):
    """A claim without a task, which is answered as soon as its verdict comes."""

    __slots__ = ("_app", "_connection", "_since")

    def __init__(
        self, dedup: Dedup, op: ClaimOp, connection: HttpProtocol, app: HttpApp, since: float
    ) -> None:
        super().__init__(dedup, op)
        self._app = app
        self._connection = connection
        self._since = since

    def answered(self, dedup: Dedup, op: ClaimOp, verdict: Verdict) -> None:
        """Answer with the verdict."""
        self._app.counters.judged(dedup, verdict, self._since)
        if verdict.outcome is _ACQUIRED:
            acquired = self._app.acquired
            body = acquired.text(verdict, op.owner)
            self._connection.respond(acquired.head, body, ((dedup, op.wire, op.owner),))
        else:
            self._app.hand(self._connection, told(dedup, op, verdict))

    def failed(self, fault: Exception) -> None:
        """Answer with the problem."""
        counters = self._app.counters
        counters.claimed(self._dedup, outcome_of(fault), self._since)
        self._app.hand(self._connection, problem(fault, counters))

    def done(self) -> bool:
        """True once the claim is answered, or its client hung up; the engine then releases the claim."""
        return self._op is None or self._connection.gone


def _head(status: int, headers: Headers) -> bytes:
    return STATUS_LINE[status] + b"".join([b"%b: %b\r\n" % header for header in headers if header != CLOSE])


def _text(answer: HttpAnswer) -> tuple[Headers, bytes]:
    """Return an answer's headers and body."""
    body = answer.text
    headers = [_kind(answer), (b"content-length", b"%d" % len(body))]
    if answer.retry_ms is not None:
        headers.append((b"retry-after", retry_after(answer.retry_ms)))
    if answer.headers:
        headers += answer.headers
    return headers, body


async def _body_of(connection: HttpProtocol, request: HttpRequest, most: int) -> bytes:
    """Return a request's body, of at most `most` bytes.

    Raises:
        RequestProblem: the body is too large, or its headers say that it is not JSON.
        Gone: the client hung up before the body's end.
    """
    check_headers(request.headers, most)
    body = request.take()
    connection.body_taken = len(body)
    while not request.whole and len(body) <= most:
        await connection.wait_for(request)
        body += request.take()
        connection.body_taken = len(body)
    if len(body) > most:
        raise _too_large(most)
    return body


def _kind(answer: HttpAnswer) -> tuple[bytes, bytes]:
    if answer.kind is not None:
        return b"content-type", answer.kind
    shaped = type(answer.facts) is bytes or "type" in answer.facts
    return _PROBLEM if answer.status >= 400 and shaped else _JSON


# Checks of a body's headers


def check_headers(headers: Headers, most: int) -> None:
    """Check the headers of a body.

    Raises:
        RequestProblem: the body is too large, compressed, or not JSON.
    """
    for name, value in headers:
        if name in _CHECKS:
            _CHECKS[name](value, most)


def _check_type(value: bytes, most: int) -> None:
    if value != b"application/json" and value.partition(b";")[0].strip().lower() not in (
        b"application/json",
        b"",
    ):
        raise RequestProblem(problems.MEDIA)


def _check_encoding(value: bytes, most: int) -> None:
    if value.strip().lower() not in (b"identity", b""):
        raise RequestProblem(problems.MEDIA, "the body is compressed: send it without content-encoding")


def _check_length(value: bytes, most: int) -> None:
    if int(value) > most:
        raise _too_large(most)


_CHECKS: dict[bytes, Callable[[bytes, int], None]] = {
    b"content-type": _check_type,
    b"content-encoding": _check_encoding,
    b"content-length": _check_length,
}


def _too_large(most: int) -> RequestProblem:
    """Return the problem of a body that is too large. The connection closes: the body's rest stays unread."""
    return RequestProblem(problems.TOO_LARGE, f"a body takes at most {most} bytes", headers=[CLOSE])
