"""Pydantic models of the bodies of requests and answers. A request's model parses and checks it in one step.

Times are whole milliseconds. The models of requests come from the table of verbs. Those of answers are for the
OpenAPI document: the code writes answers by hand, and `tests/sidecar/test_openapi.py` holds them to these models.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Union

from pydantic import BaseModel, ConfigDict, Field, create_model

from ...model import Outcome, RecordKind, State
from ..wire_verbs import VERBS, WireVerb


class RequestModel(BaseModel):
    """A request's body: nothing unknown, no number for a text."""

    model_config = ConfigDict(strict=True, extra="forbid")

    both: ClassVar[str] = "a ledger remembers claims: leave token or remember out"
    """The error's text if a request names a token and a ledger."""


class QueryModel(BaseModel):
    """The parameters of a query: nothing unknown. By itself, that of a request that takes none."""

    model_config = ConfigDict(extra="forbid")


def _request(verb: WireVerb) -> Any:
    base = RequestModel if verb.method == "POST" else QueryModel
    fields: dict[str, Any] = {field.name: field.member for field in verb.fields}
    name = verb.model or f"{verb.name.capitalize()}Request"
    return create_model(name, __base__=base, __doc__=verb.about, **fields)


REQUESTS: dict[str, Any] = {verb.name: _request(verb) for verb in VERBS}
"""The models of bodies and queries, by the verb's name."""


# Under other names: mypy takes no type that is computed.
_list: Any = list
_literal: Any = Literal
_union: Any = Union


def _item(verb: WireVerb) -> Any:
    """Return a verb's model in a batch: that of its body, and the verb's name."""
    name, base, op = f"{verb.name.capitalize()}Item", REQUESTS[verb.name], (_literal[verb.name], ...)
    return create_model(name, __base__=base, __doc__=verb.item, op=op)


ITEMS: dict[str, Any] = {verb.name: _item(verb) for verb in VERBS if verb.item}
Items: Any = _list[Annotated[_union[tuple(ITEMS.values())], Field(discriminator="op")]]


class AnswerModel(BaseModel):
    """An answer's body."""

    model_config = ConfigDict(extra="forbid")


class ClaimAnswer(AnswerModel):
    """The answer to a claim."""

    outcome: Outcome
    owner: str = Field(description="This claimant's own name: send it to settle the claim.")
    fence: int = Field(ge=0, description="Rises from owner to owner of the key; 0 if it is unknown.")
    attempt: int = Field(ge=0, description="How often the key was acquired.")
    lease: int | None = Field(description="Milliseconds that the lease has left, if acquired.")
    result: Any = Field(description="The result that `complete` recorded, if succeeded.")
    error: Any = Field(description="The error that `fail` recorded, if failed.")
    retry_after: float | None = Field(
        description="Seconds until the present owner's lease ends at the latest, if in progress."
    )
    degraded: bool = Field(description="The fallback policy answered instead of the store.")


class GateAnswer(AnswerModel):
    """The request may go on. Headers say the same: FastDedup-Outcome, -Key, -Owner and so on."""

    outcome: Literal["acquired", "no-key"]
    key: str | None = Field(None, description="To settle the claim: send it with namespace, owner and fence.")
    namespace: str | None = None
    owner: str | None = None
    fence: int | None = None
    attempt: int | None = None
    lease: int | None = Field(None, description="Milliseconds.")
    result: None = None
    error: None = None
    retry_after: None = None
    degraded: bool | None = None


class SettledAnswer(AnswerModel):
    """Done."""


class RenewAnswer(AnswerModel):
    """The lease runs anew."""

    lease: int = Field(ge=1, description="Milliseconds.")


class TokenAnswer(AnswerModel):
    """A new token."""

    token: str
    ttl: int = Field(ge=1, description="Milliseconds in which it can be redeemed.")


class ConsumeAnswer(AnswerModel):
    """The first use: go on."""

    outcome: Literal[Outcome.ACQUIRED]
    degraded: bool


class RecordAnswer(AnswerModel):
    """The store's record of a key."""

    key: str
    state: State
    owner: str | None = Field(description="Null on a socket that does not show owners.")
    fence: int
    attempt: int
    lease: int | None = Field(description="Milliseconds until the lease ends, while processing.")
    ttl: int = Field(description="Milliseconds until the record vanishes.")
    fingerprint: str | None = Field(description="32 hexadecimal digits.")
    result: Any = Field(description="Of a machine the name of its state.")
    error: Any
    kind: RecordKind
    age: int | None = Field(description="Milliseconds since the key was acquired, if that is known.")
    version: int | None = Field(description="The number of a machine's changes.")
    holder: str | None = Field(description="Who holds it, or held it last, if the record says it.")
    trace: str | None = Field(
        description="The id of the trace in which it was claimed, if the record says it."
    )


class ListAnswer(AnswerModel):
    """Some of a namespace's records, without their results."""

    records: list[RecordAnswer]
    cursor: str | None = Field(description="Pass it to go on; null if all keys were looked at.")
    looked_at: int = Field(description="About how many keys the store has looked at.")


class ForgetAnswer(AnswerModel):
    """The key is new again."""

    forgotten: bool = Field(description="False if there was no record.")


class FirstAnswer(AnswerModel):
    """For each id whether this call is the first within the window."""

    first: list[bool]


class SeenAnswer(AnswerModel):
    """For each id whether it is remembered."""

    seen: list[bool]


class ForgottenAnswer(AnswerModel):
    """For each id whether it was remembered; it is new again."""

    forgotten: list[bool]


class LedgerAnswer(AnswerModel):
    """What a ledger holds, from at most 1,000 of its buckets."""

    ledger: str
    namespace: str
    ids: int
    capacity: int
    fill: float = Field(description="Ids by capacity.")
    window: int = Field(description="Milliseconds for which an id is remembered.")
    slots: int = Field(description="Parts of the window; an id is remembered for up to one part more.")
    width: int = Field(description="Bytes of an id's digest; 0 of a dense ledger.")
    bytes: int = Field(description="Memory in the store.")
    bytes_an_id: float
    false_duplicates: float = Field(
        description="New ids in a window that are expected to be taken for duplicates."
    )


class HealthAnswer(AnswerModel):
    """The process is alive."""

    status: Literal["ok"]
    version: str


class ReadyAnswer(AnswerModel):
    """Whether it can answer claims."""

    ready: bool
    breaker: Literal["closed", "partly_open", "open"]
    degraded: bool = Field(
        description="The policy answers for the store, a part of it, or keys in a journal."
    )


class BatchAnswer(AnswerModel):
    """One operation's answer: as if it had come by itself."""

    status: int
    body: dict[str, Any]


class Fault(AnswerModel):
    """One thing that is wrong in a body."""

    field: str
    message: str


class Problem(BaseModel):
    """A problem by RFC 9457."""

    type: str = Field(
        description="The kind of the problem, urn:fastdedup:problem:<name>; stable. GET /problems/<name> explains it."
    )
    title: str
    status: int
    detail: str | None = None
    errors: list[Fault] | None = Field(None, description="The fields that are wrong, if fields are.")


class ClaimProblem(Problem, ClaimAnswer):
    """A claim that was answered, and not with leave to work: the claim's answer as a problem."""

    model_config = ConfigDict(extra="forbid")


class ConsumeProblem(Problem):
    """A token that was not used: the outcome as a problem."""

    outcome: Outcome
    retry_after: float | None
    degraded: bool
