"""Which request is answered by which function: the table behind both the application and `/openapi.json`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, Field, TypeAdapter

from ... import __version__
from ...errors import DedupError, UnavailableError
from ...fallback.reject import Reject
from ...model import BreakerState
from ...web.problems import Problem
from . import models, openapi, problems
from . import verbs as verbs
from .batch import batch, read
from .problems import RequestProblem
from .verbs import OPS, Answer, Client, Page

if TYPE_CHECKING:
    from ..gate import Gate

Handler = Callable[["Gate", Any, Client], Awaitable[Answer]]

_PROBE_KEY = "fastdedup:ready"
_TEXT = b"text/plain; charset=utf-8"
_METRICS = b"text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Route:
    """One kind of request.

    Attributes:
        asks: the model of its body, or of its query; a list stands for a batch of such.
        answers: the models of its good answers, by status; text where it is None.
        problems: what may go wrong beside what may with every request.
        shaped: problems that carry the members of this model, too.
    """

    method: str
    path: str
    handler: Handler
    summary: str
    asks: Any = None
    answers: tuple[tuple[int, Any], ...] = ()
    problems: tuple[Problem, ...] = ()
    shaped: type[BaseModel] = models.Problem

    def body(self, most: int) -> Any:
        """Return the type of its body: of a batch at most `most` operations."""
        return Annotated[self.asks, Field(max_length=most)] if self.asks is models.Items else self.asks

    def parser(self, most: int) -> Callable[[bytes], Any] | None:
        """Return what parses and checks its body in one step; None where it has none."""
        if self.method != "POST":
            return None
        check = TypeAdapter(self.body(most)).validator.validate_json
        return partial(read, check, most) if self.asks is models.Items else check


# What is no verb


async def health(gate: Gate, ask: None, client: Client) -> Answer:
    """`GET /healthz`: the process."""
    return Answer(200, {"status": "ok", "version": __version__})


async def ready(gate: Gate, ask: None, client: Client) -> Answer:
    """`GET /readyz`: the store. It is asked: in an idle sidecar nobody else would notice that it is gone."""
    root = gate.root
    able, answered = True, True
    try:
        await root.get(_PROBE_KEY)
    except UnavailableError:
        answered = False
        able = not isinstance(root.settings.on_unavailable, Reject)
    except DedupError:
        able = False
    breaker = root.breaker
    degraded = not answered or breaker is not BreakerState.CLOSED
    return Answer(200 if able else 503, {"ready": able, "breaker": breaker, "degraded": degraded})


async def metrics(gate: Gate, ask: None, client: Client) -> Answer:
    """`GET /metrics`: in Prometheus' format."""
    kept: Any = getattr(gate, "metrics", None)
    if kept is None:
        raise RequestProblem(problems.NOT_FOUND, "this sidecar keeps no metrics")
    return Page(_METRICS, kept.render())


async def document(gate: Gate, ask: None, client: Client) -> Answer:
    """`GET /openapi.json`: this table."""
    return Answer(200, openapi.document(ROUTES, gate.limits))


async def about(problem: Problem, gate: Gate, ask: None, client: Client) -> Answer:
    """`GET /problems/…`: the page that a problem's type leads to."""
    return Page(_TEXT, f"{problem.status} {problem.title}\n\n{problem.about}\n".encode())


_CLAIM: dict[str, Any] = {
    "answers": ((201, models.ClaimAnswer), (200, models.ClaimAnswer)),
    "shaped": models.ClaimProblem,
}
_SETTLED: dict[str, Any] = {"answers": ((200, models.SettledAnswer),), "problems": (problems.CLAIM_LOST,)}
_JUDGED = (problems.IN_PROGRESS, problems.MISMATCH)

ROUTES: tuple[Route, ...] = (
    Route(
        "POST",
        "/v1/claims",
        OPS["claim"],
        "Ask to be the first for a key",
        models.ClaimRequest,
        problems=(*_JUDGED, problems.FOREIGN),
        **_CLAIM,
    ),
    Route(
        "POST",
        "/v1/claims/complete",
        OPS["complete"],
        "Record success",
        models.CompleteRequest,
        **_SETTLED,
    ),
    Route("POST", "/v1/claims/fail", OPS["fail"], "Record a failure", models.FailRequest, **_SETTLED),
    Route("POST", "/v1/claims/release", OPS["release"], "Free a key", models.ReleaseRequest, **_SETTLED),
    Route(
        "POST",
        "/v1/claims/renew",
        OPS["renew"],
        "Start a lease anew",
        models.RenewRequest,
        ((200, models.RenewAnswer),),
        (problems.CLAIM_LOST,),
    ),
    Route(
        "POST",
        "/v1/tokens",
        OPS["issue"],
        "Make a one-time token",
        models.IssueRequest,
        ((201, models.TokenAnswer),),
    ),
    Route(
        "POST",
        "/v1/tokens/consume",
        OPS["consume"],
        "Use a token up",
        models.ConsumeRequest,
        ((200, models.ConsumeAnswer),),
        (*_JUDGED, problems.TOKEN_USED, problems.UNKNOWN_TOKEN),
        models.ConsumeProblem,
    ),
    Route(
        "POST",
        "/v1/tokens/redeem",
        OPS["redeem"],
        "Claim a token",
        models.RedeemRequest,
        problems=(*_JUDGED, problems.UNKNOWN_TOKEN),
        **_CLAIM,
    ),
    Route(
        "POST",
        "/v1/batch",
        batch,
        "Do many things at once",
        models.Items,
        ((200, list[models.BatchAnswer]),),
    ),
    Route(
        "GET",
        "/v1/records",
        verbs.inspect,
        "Show a record",
        models.RecordQuery,
        ((200, models.RecordAnswer),),
        (problems.NO_RECORD, problems.FOREIGN),
    ),
    Route(
        "DELETE",
        "/v1/records",
        verbs.forget,
        "Forget a key",
        models.RecordQuery,
        ((200, models.ForgetAnswer),),
        (problems.FOREIGN,),
    ),
    Route("GET", "/healthz", health, "Is the process alive", None, ((200, models.HealthAnswer),)),
    Route(
        "GET",
        "/readyz",
        ready,
        "Can it answer claims",
        None,
        ((200, models.ReadyAnswer), (503, models.ReadyAnswer)),
    ),
    Route("GET", "/metrics", metrics, "Metrics", None, ((200, None),), (problems.NOT_FOUND,)),
    Route("GET", "/openapi.json", document, "This document", None, ((200, dict[str, Any]),)),
    *(
        Route("GET", problem.type, partial(about, problem), problem.title, None, ((200, None),))
        for problem in problems.PROBLEMS
    ),
)
