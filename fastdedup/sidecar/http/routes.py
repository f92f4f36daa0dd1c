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
from . import gate, ledgers, models, openapi, problems, verbs
from .batch_turn import in_turn
from .problems import PAGES, RequestProblem
from .route import EACH, HttpRoute
from .verbs import OPS, Client, HttpAnswer, RawAnswer

_PROBE_KEY = "fastdedup:ready"
_TEXT = b"text/plain; charset=utf-8"
_METRICS = b"text/plain; version=0.0.4; charset=utf-8"


# Requests that are no operations


async def health(namespaces: Namespaces, ask: None, client: Client) -> HttpAnswer:
    """`GET /healthz`: the process lives."""
    return HttpAnswer(200, {"status": "ok", "version": __version__})


async def ready(namespaces: Namespaces, ask: None, client: Client) -> HttpAnswer:
    """`GET /readyz`: the store answers. It is asked, as an idle sidecar would not notice that it has gone.

    The policy is not asked: that would count each look as a degraded operation.
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
    degraded = not answered or breaker is not BreakerState.CLOSED
    return HttpAnswer(200 if able else 503, {"ready": able, "breaker": breaker, "degraded": degraded})


async def store_answers(root: Dedup) -> bool:
    """Ask the store, and not the policy; return False where it does not answer."""
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
    return RawAnswer(_METRICS, namespaces.render_metrics())


async def document(namespaces: Namespaces, ask: None, client: Client) -> HttpAnswer:
    """`GET /openapi.json`: this table as an OpenAPI document."""
    return RawAnswer(b"application/json", _document(namespaces.limits))


@lru_cache(maxsize=8)
def _document(limits: Limits) -> bytes:
    """Return the document for a socket's limits, made once: that takes the event loop for half a second."""
    return orjson.dumps(openapi.document(ROUTES, limits))


async def about(problem: ProblemType, namespaces: Namespaces, ask: None, client: Client) -> HttpAnswer:
    """`GET /problems/…`: the page about a type of problem."""
    return RawAnswer(_TEXT, f"{problem.status} {problem.title}\n\n{problem.about}\n".encode())


_CLAIM: dict[str, Any] = {
    "answers": ((201, models.ClaimAnswer), (200, models.ClaimAnswer)),
    "shaped": models.ClaimProblem,
}
_LEDGER_NAMED = (problems.UNKNOWN_LEDGER, problems.LEDGER_SETTINGS)
_SETTLED: dict[str, Any] = {
    "answers": ((200, models.SettledAnswer),),
    "problems": (problems.CLAIM_LOST, *_LEDGER_NAMED),
}
_OF_LEDGER = (*_LEDGER_NAMED, problems.FOREIGN)
_JUDGED = (problems.IN_PROGRESS, problems.MISMATCH)

OPERATORS_ROUTES: tuple[HttpRoute, ...] = (
    HttpRoute(
        "GET", "/healthz", health, "Is the process alive", None, ((200, models.HealthAnswer),), verb=""
    ),
    HttpRoute(
        "GET",
        "/readyz",
        ready,
        "Can it answer claims",
        None,
        ((200, models.ReadyAnswer), (503, models.ReadyAnswer)),
        verb="",
    ),
    HttpRoute("GET", "/metrics", metrics, "Metrics", None, ((200, None),), (problems.NOT_FOUND,), verb=""),
)
"""The requests of an operator's tools. `metrics_address` serves these, and no other ones."""

BELOW_GATE = HttpRoute(
    "GET", gate.BELOW, gate.gate_below, "The gate for Envoy, with any method", verb="claim"
)
"""All addresses below its path. The document does not name it, as it has the client's own path."""

ROUTES: tuple[HttpRoute, ...] = (
    HttpRoute(
        "POST",
        "/v1/claims",
        OPS["claim"],
        "Ask to be the first for a key",
        models.ClaimRequest,
        problems=(*_JUDGED, *_OF_LEDGER),
        **_CLAIM,
        verb="claim",
    ),
    HttpRoute(
        "POST",
        "/v1/claims/complete",
        OPS["complete"],
        "Record success",
        models.CompleteRequest,
        **_SETTLED,
        verb="complete",
    ),
    HttpRoute(
        "POST",
        "/v1/claims/fail",
        OPS["fail"],
        "Record a failure",
        models.FailRequest,
        verb="fail",
        **_SETTLED,
    ),
    HttpRoute(
        "POST",
        "/v1/claims/release",
        OPS["release"],
        "Free a key",
        models.ReleaseRequest,
        verb="release",
        **_SETTLED,
    ),
    HttpRoute(
        "POST",
        "/v1/claims/renew",
        OPS["renew"],
        "Start a lease anew",
        models.RenewRequest,
        ((200, models.RenewAnswer),),
        (problems.CLAIM_LOST, *_LEDGER_NAMED),
        verb="renew",
    ),
    HttpRoute(
        "POST",
        "/v1/tokens",
        OPS["issue"],
        "Make a one-time token",
        models.IssueRequest,
        ((201, models.TokenAnswer),),
        verb="issue",
    ),
    HttpRoute(
        "POST",
        "/v1/tokens/consume",
        OPS["consume"],
        "Use a token up",
        models.ConsumeRequest,
        ((200, models.ConsumeAnswer),),
        (*_JUDGED, problems.TOKEN_USED, problems.UNKNOWN_TOKEN),
        models.ConsumeProblem,
        verb="consume",
    ),
    HttpRoute(
        "POST",
        "/v1/tokens/redeem",
        OPS["redeem"],
        "Claim a token",
        models.RedeemRequest,
        problems=(*_JUDGED, problems.UNKNOWN_TOKEN),
        **_CLAIM,
        verb="redeem",
    ),
    HttpRoute(
        "POST",
        "/v1/batch",
        in_turn,
        "Do many things at once",
        models.Items,
        ((200, list[models.BatchAnswer]),),
        verb=EACH,
    ),
    HttpRoute(
        "GET",
        gate.PATH,
        gate.gate,
        "Ask for a proxy whether its client's request may go on",
        gate.GateQuery,
        ((200, models.GateAnswer),),
        (
            problems.STOPPED,
            problems.PASSED_BEFORE,
            problems.KEY_MISSING,
            problems.KEY_MALFORMED,
            problems.PRINCIPAL_REQUIRED,
            *_JUDGED,
        ),
        models.ClaimProblem,
        verb="claim",
    ),
    HttpRoute(
        "GET",
        "/v1/records",
        verbs.inspect,
        "Show a record",
        models.RecordQuery,
        ((200, models.RecordAnswer),),
        (problems.NO_RECORD, problems.FOREIGN),
        verb="get",
    ),
    HttpRoute(
        "DELETE",
        "/v1/records",
        verbs.forget,
        "Forget a key",
        models.ForgetQuery,
        ((200, models.ForgetAnswer),),
        (problems.FOREIGN,),
        verb="forget",
    ),
    HttpRoute(
        "GET",
        "/v1/records/list",
        verbs.list_records,
        "List records, to find what is stuck",
        models.ListQuery,
        ((200, models.ListAnswer),),
        verb="list",
    ),
    HttpRoute(
        "POST",
        ledgers.FIRST,
        ledgers.first,
        "Remember ids, and say which are the first",
        models.FirstRequest,
        ((200, models.FirstAnswer),),
        (*_OF_LEDGER, problems.LEDGER_FULL),
        verb="first",
    ),
    HttpRoute(
        "POST",
        ledgers.SEEN,
        ledgers.seen,
        "Look whether ids are remembered",
        models.IdsRequest,
        ((200, models.SeenAnswer),),
        _OF_LEDGER,
        verb="seen",
    ),
    HttpRoute(
        "POST",
        ledgers.FORGET,
        ledgers.forget,
        "Forget ids",
        models.ForgetIdsRequest,
        ((200, models.ForgottenAnswer),),
        _OF_LEDGER,
        verb="forget",
    ),
    HttpRoute(
        "GET",
        ledgers.LEDGER,
        ledgers.stats,
        "Show what a ledger holds",
        None,
        ((200, models.LedgerAnswer),),
        _OF_LEDGER,
        verb="ledger",
    ),
    *OPERATORS_ROUTES,
    HttpRoute("GET", "/openapi.json", document, "This document", None, ((200, dict[str, Any]),), verb=""),
    *(
        HttpRoute(
            "GET", PAGES + problem.name, partial(about, problem), problem.title, None, ((200, None),), verb=""
        )
        for problem in problems.PROBLEMS
    ),
)
