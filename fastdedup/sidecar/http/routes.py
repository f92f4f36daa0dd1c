"""The table of requests and their handlers, for the application and for `/openapi.json`."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any

import orjson

from ... import __version__
from ...errors import DedupError, UnavailableError
from ...fallback.reject import Reject
from ...gateway import Dedup
from ...kernel.operations import ReadOp
from ...model import BreakerState
from ...web.problems import ProblemType
from ..limits import Limits
from ..namespaces import Namespaces
from ..wire_verbs import VERBS, WireVerb
from . import gate, models, openapi, problems
from .problems import PAGES, RequestProblem
from .route import EACH, HttpRoute, in_turn, named
from .verbs import HANDLERS, Client, Handler, HttpAnswer

_PROBE_KEY = "fastdedup:ready"
_TEXT = b"text/plain; charset=utf-8"
_METRICS = b"text/plain; version=0.0.4; charset=utf-8"


# Requests that are no operations


async def health(namespaces: Namespaces, ask: None, client: Client) -> HttpAnswer:
    """`GET /healthz`: the process lives."""
    return HttpAnswer(200, {"status": "ok", "version": __version__})


async def ready(namespaces: Namespaces, ask: None, client: Client) -> HttpAnswer:
    """`GET /readyz`: does the store answer? Ask it: an idle sidecar would not notice that its store has gone.

    The policy is not asked: that would count each such request as a degraded operation.
    """
    root = namespaces.root
    able = True
    try:
        answered = await store_answers(root)
    except DedupError:
        answered, able = True, False
    if not answered:
        able = not isinstance(root.settings.on_unavailable, Reject)
    breaker = root.breaker
    # The policy still answers for keys in a journal.
    degraded = (
        not answered or breaker is not BreakerState.CLOSED or any(root.gate.connections.journals().values())
    )
    return HttpAnswer(200 if able else 503, {"ready": able, "breaker": breaker, "degraded": degraded})


async def store_answers(root: Dedup) -> bool:
    """Ask the store, and not the policy; return False if the store does not answer."""
    try:
        return not isinstance(await root.gate.begin(_probe(root)), UnavailableError)
    except UnavailableError:
        return False


def _probe(root: Dedup) -> ReadOp:
    return ReadOp(root.gate.claims.wire(_PROBE_KEY))


async def metrics(namespaces: Namespaces, ask: None, client: Client) -> HttpAnswer:
    """`GET /metrics`: the counters in Prometheus' format."""
    if namespaces.render_metrics is None:
        raise RequestProblem(problems.NOT_FOUND, "this socket shows no metrics")
    figures = await namespaces.turns.metrics.made_by(namespaces.render_metrics)
    return HttpAnswer(200, figures, kind=_METRICS)


async def document(namespaces: Namespaces, ask: None, client: Client) -> HttpAnswer:
    """`GET /openapi.json`: this table as an OpenAPI document."""
    return HttpAnswer(200, _document(namespaces.limits), kind=b"application/json")


@lru_cache(maxsize=8)
def _document(limits: Limits) -> bytes:
    """Return the document for a socket's limits, made once: that takes the event loop for half a second."""
    return orjson.dumps(openapi.document(ROUTES, limits))


async def about(problem: ProblemType, namespaces: Namespaces, ask: None, client: Client) -> HttpAnswer:
    """`GET /problems/…`: the page about a type of problem."""
    page = f"{problem.status} {problem.title}\n\n{problem.about}\n"
    return HttpAnswer(200, page.encode(), kind=_TEXT)


def _route(verb: WireVerb) -> HttpRoute:
    """Return the route of a verb."""
    handler = HANDLERS[verb.name]
    return HttpRoute(
        verb.method,
        verb.path,
        named(handler) if verb.of_ledger else handler,
        verb.summary,
        verb.rule,
        models.REQUESTS[verb.name],
        tuple((status, getattr(models, verb.answer)) for status in verb.statuses),
        tuple(_PROBLEMS[name] for name in verb.problems),
        getattr(models, verb.shaped),
    )


def _shown(path: str, handler: Handler, summary: str, answer: Any, **more: Any) -> HttpRoute:
    """Return the route of what every client may see."""
    more = {"answers": ((200, answer),)} | more
    return HttpRoute("GET", path, handler, summary, "", **more)


_PROBLEMS = {problem.name: problem for problem in problems.PROBLEMS}
_OF_GATE = (
    problems.STOPPED,
    problems.PASSED_BEFORE,
    problems.KEY_MISSING,
    problems.KEY_MALFORMED,
    problems.PRINCIPAL_REQUIRED,
    problems.IN_PROGRESS,
    problems.MISMATCH,
)

OPERATORS_ROUTES: tuple[HttpRoute, ...] = (
    _shown("/healthz", health, "Is the process alive", models.HealthAnswer),
    _shown(
        "/readyz",
        ready,
        "Can it answer claims",
        models.ReadyAnswer,
        answers=((200, models.ReadyAnswer), (503, models.ReadyAnswer)),
    ),
    _shown("/metrics", metrics, "Metrics", None, problems=(problems.NOT_FOUND,)),
)
"""The requests of an operator's tools. `metrics_address` serves these, and no other ones."""

BELOW_GATE = HttpRoute("GET", gate.BELOW, gate.gate_below, "The gate for Envoy, with any method", "claim")
"""The route of all paths below the gate's. The document does not name it: its path is the client's own."""

ROUTES: tuple[HttpRoute, ...] = (
    *map(_route, VERBS),
    HttpRoute(
        "POST",
        "/v1/batch",
        in_turn,
        "Do many things at once",
        EACH,
        models.Items,
        ((200, list[models.BatchAnswer]),),
    ),
    HttpRoute(
        "GET",
        gate.PATH,
        gate.gate,
        "Ask for a proxy whether its client's request may go on",
        "claim",
        gate.GateQuery,
        ((200, models.GateAnswer),),
        _OF_GATE,
        models.ClaimProblem,
    ),
    *OPERATORS_ROUTES,
    _shown("/openapi.json", document, "This document", dict[str, Any]),
    *(_shown(PAGES + each.name, partial(about, each), each.title, None) for each in problems.PROBLEMS),
)
