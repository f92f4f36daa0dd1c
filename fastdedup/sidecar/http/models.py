"""The bodies of requests and answers, as pydantic models. A request's model parses and checks it in one step.

Times are whole milliseconds. The models of answers are for the OpenAPI document: the code writes answers by hand, and
`tests/sidecar/test_openapi.py` holds them to these models.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from ...checks import MAX_SECONDS, MOST_REASON
from ...kernel.keyspace import MAX_KEY_BYTES
from ...kernel.owners import MAX_OWNER_BYTES
from ...ledger.ids import MAX_ID
from ...model import Outcome, RecordKind, State
from ..ledgers import MAX_IDS
from ..limits import MOST_LISTED, MOST_LISTING_MS

_MAX_MS = round(MAX_SECONDS * 1000)
_MAX_FENCE = 2**53 - 1


def _whole(value: object) -> object:
    """Return a float without fraction as an int: JSON has one kind of number, in which 5.0 is 5."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Key = Annotated[
    str,
    Field(min_length=1, max_length=MAX_KEY_BYTES, description=f"1 to {MAX_KEY_BYTES} bytes of UTF-8."),
]
Token = Annotated[str, Field(min_length=1, max_length=256, description="As `POST /v1/tokens` gave it.")]
Owner = Annotated[
    str,
    Field(
        min_length=1,
        max_length=MAX_OWNER_BYTES,
        description=f"Who claims: 1 to {MAX_OWNER_BYTES} bytes of UTF-8. The same owner gets its own claim back.",
    ),
]
Namespace = Annotated[
    str, Field(pattern=r"^[A-Za-z0-9_.:/-]{1,64}$", description="The sidecar's default one where missing.")
]
Milliseconds = Annotated[int, Field(ge=1, le=_MAX_MS), BeforeValidator(_whole)]
Wait = Annotated[
    int,
    Field(ge=0, le=_MAX_MS, description="Milliseconds to wait for a present owner to settle."),
    BeforeValidator(_whole),
]
Fence = Annotated[
    int,
    Field(ge=0, le=_MAX_FENCE, description="The claim's fence, to be sure that it is that very claim."),
    BeforeValidator(_whole),
]
Fingerprint = Annotated[
    Any,
    Field(
        description="The request under this key: any JSON. It is always digested, text as text. "
        "Another value under the same key is a mismatch."
    ),
]
Subject = Annotated[Any, Field(description="The user or thing that the token is for: any JSON.")]
Value = Annotated[Any, Field(description="Any JSON; every duplicate gets it.")]
LedgerId = Annotated[
    Annotated[str, Field(min_length=1, max_length=MAX_ID)] | int,
    Field(description=f"1 to {MAX_ID} bytes of UTF-8; a whole number is the same id as its decimal text."),
]
CallName = Annotated[
    str,
    Field(
        min_length=1,
        max_length=MAX_OWNER_BYTES,
        description="Your own name for this call: where its answer was lost, the same name gets it again.",
    ),
]


Remember = Annotated[
    str,
    Field(
        pattern=r"^[A-Za-z0-9_.:/-]{1,64}$",
        description="The ledger, of the sidecar's settings, that remembers the success. The requests that settle or "
        "renew the claim name it too.",
    ),
]


class RequestModel(BaseModel):
    """A request's body: nothing unknown, no number for a text."""

    model_config = ConfigDict(strict=True, extra="forbid")

    namespace: Namespace | None = None


class ClaimRequest(RequestModel):
    """Ask to be the first for a key."""

    key: Key
    fingerprint: Fingerprint = None
    owner: Owner | None = None
    lease: Milliseconds | None = None
    ttl: Milliseconds | None = None
    wait: Wait = 0
    remember: Remember | None = None


class HolderRequest(RequestModel):
    """Name a claim, and prove that it is the caller's own."""

    key: Key
    owner: Annotated[str, Field(min_length=1, max_length=MAX_OWNER_BYTES, description="As the claim said.")]
    fence: Fence = 0
    token: Annotated[bool, Field(description="The key is a token that was redeemed.")] = False
    remember: Remember | None = None


class CompleteRequest(HolderRequest):
    """Record success: every duplicate gets `result`."""

    result: Value = None
    ttl: Milliseconds | None = None


class FailRequest(HolderRequest):
    """Record a failure for good: every duplicate gets `error`."""

    error: Value = None
    ttl: Milliseconds | None = None


class ReleaseRequest(HolderRequest):
    """Free the key: nothing happened, the next claimant may try."""


class RenewRequest(HolderRequest):
    """Start the lease anew from now."""

    lease: Milliseconds | None = None


class IssueRequest(RequestModel):
    """Make a one-time token."""

    subject: Subject = None
    ttl: Milliseconds | None = None


class ConsumeRequest(RequestModel):
    """Use a token up in one step."""

    token: Token
    subject: Subject = None


class RedeemRequest(ConsumeRequest):
    """Claim a token: do the work, then complete it, and a second click gets that result."""

    lease: Milliseconds | None = None
    ttl: Milliseconds | None = None
    wait: Wait = 0


class ClaimItem(ClaimRequest):
    """A claim in a batch. Where it waits, so does the batch's answer."""

    op: Literal["claim"]


class CompleteItem(CompleteRequest):
    """A completion in a batch."""

    op: Literal["complete"]


class FailItem(FailRequest):
    """A failure in a batch."""

    op: Literal["fail"]


class ReleaseItem(ReleaseRequest):
    """A release in a batch."""

    op: Literal["release"]


class RenewItem(RenewRequest):
    """A renewal in a batch."""

    op: Literal["renew"]


class IssueItem(IssueRequest):
    """A token to issue in a batch."""

    op: Literal["issue"]


class ConsumeItem(ConsumeRequest):
    """A token to consume in a batch."""

    op: Literal["consume"]


class RedeemItem(RedeemRequest):
    """A token to redeem in a batch."""

    op: Literal["redeem"]


Item = Annotated[
    ClaimItem | CompleteItem | FailItem | ReleaseItem | RenewItem | IssueItem | ConsumeItem | RedeemItem,
    Field(discriminator="op"),
]


Items = list[Item]


Reason = Annotated[str, Field(max_length=MOST_REASON, description="Why, for the audit's line in the log.")]


class RecordQuery(BaseModel):
    """Which record is meant: the parameters of a query."""

    model_config = ConfigDict(extra="forbid")

    namespace: Namespace | None = None
    key: Key
    kind: RecordKind = Field(
        "claim", description='What the key is of; a machine\'s key is its name, "/" and the id.'
    )
    digest: bool = Field(
        False, description="The key is # and 32 hexadecimal digits, as a list shows a token or a long key."
    )


class ForgetQuery(RecordQuery):
    """Which record is to be removed, and why."""

    reason: Reason | None = None


class ListQuery(BaseModel):
    """Which records to list: the parameters of a query."""

    model_config = ConfigDict(extra="forbid")

    namespace: Namespace | None = None
    kind: Literal["claim", "lock", "token"] | None = None
    prefix: str = Field("", max_length=MAX_KEY_BYTES, description="How the keys begin.")
    state: State | None = None
    older: int = Field(0, ge=0, le=_MAX_MS, description="Milliseconds since the key was acquired, at least.")
    limit: int = Field(
        100, ge=1, le=MOST_LISTED, description="Stop at so many; the last step may bring some more."
    )
    within: int = Field(
        MOST_LISTING_MS, ge=1, le=MOST_LISTING_MS, description="Milliseconds, after which it stops."
    )
    cursor: str | None = Field(
        None, min_length=1, max_length=4096, description="Where an earlier list stopped."
    )
    reason: Reason | None = None


def _without_most(schema: dict[str, Any]) -> None:
    """Leave the bound out of the document: a body of more ids may be too large as well, which is another problem."""
    del schema["maxItems"]


class IdsRequest(BaseModel):
    """Ids of a ledger."""

    model_config = ConfigDict(strict=True, extra="forbid")

    ids: list[LedgerId] = Field(
        max_length=MAX_IDS,
        description=f"At most {MAX_IDS} ids.",
        json_schema_extra=_without_most,
    )


class ForgetIdsRequest(IdsRequest):
    """Make ids of a ledger new again."""

    reason: Reason | None = None


class FirstRequest(IdsRequest):
    """Ask which of these ids come for the first time, and remember them."""

    owner: CallName | None = None


class AnswerModel(BaseModel):
    """An answer's body."""

    model_config = ConfigDict(extra="forbid")


class ClaimAnswer(AnswerModel):
    """The answer to a claim."""

    outcome: Outcome
    owner: str = Field(description="This claimant's own name: send it to settle the claim.")
    fence: int = Field(ge=0, description="Rises from owner to owner of the key; 0 where it is unknown.")
    attempt: int = Field(ge=0, description="How often the key was acquired.")
    lease: int | None = Field(description="Milliseconds that the lease has left, where acquired.")
    result: Any = Field(description="The result that `complete` recorded, where succeeded.")
    error: Any = Field(description="The error that `fail` recorded, where failed.")
    retry_after: float | None = Field(
        description="Seconds until the present owner's lease ends at the latest, where in progress."
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
    age: int | None = Field(description="Milliseconds since the key was acquired, where that is known.")
    version: int | None = Field(description="The number of a machine's changes.")
    holder: str | None = Field(description="Who holds it, or held it last, where the record says it.")
    trace: str | None = Field(
        description="The id of the trace in which it was claimed, where the record says it."
    )


class ListAnswer(AnswerModel):
    """Some of a namespace's records, without their results."""

    records: list[RecordAnswer]
    cursor: str | None = Field(description="Pass it to go on; null where all keys were looked at.")
    looked_at: int = Field(description="About how many keys the store has looked at.")


class ForgetAnswer(AnswerModel):
    """The key is new again."""

    forgotten: bool = Field(description="False where there was no record.")


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
    degraded: bool = Field(description="The store, or a part of it, is answered for by the policy.")


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
    errors: list[Fault] | None = Field(None, description="Where fields are wrong, which ones.")


class ClaimProblem(Problem, ClaimAnswer):
    """A claim that was answered, and not with leave to work: the claim's answer as a problem."""

    model_config = ConfigDict(extra="forbid")


class ConsumeProblem(Problem):
    """A token that was not used: the outcome as a problem."""

    outcome: Outcome
    retry_after: float | None
    degraded: bool
