"""What a request is told that shall not, or not again, run; and what becomes of a response."""

from __future__ import annotations

from enum import Enum
from typing import Any, Protocol

from ..errors import UnavailableError
from ..model import Outcome
from .header import BadKey, KeyMissing
from .problems import (
    IN_PROGRESS,
    KEY_MALFORMED,
    KEY_MISSING,
    MISMATCH,
    NOT_STORED,
    TOO_LARGE,
    UNAVAILABLE,
    respond,
)
from .request import RequestTooLarge
from .response import DEGRADED, REPLAYED, Response
from .rules import Rule

_STREAMS = (b"text/event-stream", b"application/x-ndjson", b"multipart/x-mixed-replace")
"""Content types that are sent on as they come: to hold them back until they end would break them."""


class AnsweredClaim(Protocol):
    """What a response needs to know of a claim: the members that `Claim` has in `fastdedup` and `fastdedup.sync`."""

    @property
    def outcome(self) -> Outcome:
        """What the claimant found."""

    @property
    def result(self) -> Any:
        """The first result where the outcome is SUCCEEDED."""

    @property
    def error(self) -> Any:
        """The recorded error where the outcome is FAILED."""

    @property
    def retry_after(self) -> float | None:
        """Seconds until the present owner's lease ends at the latest; None unless IN_PROGRESS."""

    @property
    def degraded(self) -> bool:
        """True where a fallback policy answered instead of the store."""


class Settling(Enum):
    """What a response makes of the claim."""

    COMPLETE = "complete"
    FAIL = "fail"
    RELEASE = "release"


def settling_of(rule: Rule, response: Response) -> Settling:
    """Return what a response makes of the claim: a kept 4xx is a failure, and kept as long as one."""
    if not rule.keeps(response.status) or not (response.whole or rule.unstored == "refuse"):
        return Settling.RELEASE
    return Settling.COMPLETE if response.status < 400 else Settling.FAIL


def storable(rule: Rule, response: Response) -> Response:
    """Return what is stored of a response."""
    headers = rule.stored_headers(response.headers)
    return Response(response.status, headers, response.body, response.whole, response.request)


def streams(content_type: bytes | None) -> bool:
    """Return whether a response of that type is passed on as it comes."""
    return content_type is not None and content_type.lower().startswith(_STREAMS)


def answer(claim: AnsweredClaim, rule: Rule, docs: str | None) -> Response:
    """Return what a request is told whose claim is not acquired."""
    match claim.outcome:
        case Outcome.SUCCEEDED:
            response = replay(claim.result, docs)
        case Outcome.FAILED:
            response = replay(claim.error, docs)
        case Outcome.MISMATCH:
            response = respond(MISMATCH, docs=docs)
        case _:
            after = (
                rule.retry_after if claim.retry_after is None else min(claim.retry_after, rule.retry_after)
            )
            response = respond(IN_PROGRESS, docs=docs, retry_after=after)
    return response.marked(DEGRADED) if claim.degraded else response


def replay(stored: Response | None, docs: str | None) -> Response:
    """Return the first response again; where that was not kept whole, say what it was.

    None is what a handler leaves that completes its claim by hand, or a token that was merely consumed.
    """
    if stored is None:
        return respond(NOT_STORED, docs=docs).marked(REPLAYED)
    if stored.whole:
        return stored.marked(REPLAYED)
    return respond(
        NOT_STORED, docs=docs, location=stored.header(b"location"), original_status=stored.status
    ).marked(REPLAYED)


REFUSALS = (KeyMissing, BadKey, RequestTooLarge, UnavailableError)
"""What ends a request before its handler runs."""


def refusal(error: Exception, rule: Rule, docs: str | None) -> Response:
    """Return what a request is told for one of `REFUSALS`."""
    match error:
        case KeyMissing():
            return respond(KEY_MISSING, docs=docs)
        case BadKey():
            return respond(KEY_MALFORMED, str(error), docs=docs)
        case RequestTooLarge():
            detail = f"this operation takes bodies of at most {rule.max_request} bytes"
            return respond(TOO_LARGE, detail, docs=docs)
        case UnavailableError():
            return respond(UNAVAILABLE, docs=docs, retry_after=error.retry_after)
    raise error
