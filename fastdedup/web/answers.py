"""The answers to requests that do not run their handler, and the effect of a response on its claim."""

from __future__ import annotations

import logging
from enum import Enum
from typing import Any, Final, Protocol
from urllib.parse import quote, unquote, urljoin, urlsplit

from ..errors import ForeignRecordError, UnavailableError
from ..failures import place_of
from ..model import Outcome
from .fingerprints import bare_path
from .header import BadKey, KeyMissing
from .problems import (
    CLAIM_LOST,
    IN_PROGRESS,
    KEY_MALFORMED,
    KEY_MISSING,
    LEASE_LOST,
    MISMATCH,
    NOT_STORED,
    PRINCIPAL_REQUIRED,
    TOO_LARGE,
    UNAVAILABLE,
    ProblemType,
    respond,
)
from .request import BadBody, PrincipalMissing, RequestTooLarge
from .response import DEGRADED, REPLAYED, Response
from .rules import Rule

log = logging.getLogger("fastdedup.web")
_STREAMS = frozenset(
    (
        b"text/event-stream",
        b"application/jsonl",  # FastAPI's, for a handler that yields
        b"application/jsonlines",
        b"application/x-jsonlines",
        b"application/ndjson",
        b"application/x-ndjson",
        b"application/json-seq",
        b"multipart/x-mixed-replace",
    )
)
"""The content types of streams. Each part is passed on at once: a stream that is held back breaks."""

_BAD_BODY = ProblemType(
    "blank", 400, "Bad Request", "The request's body cannot be read. Nothing was processed.", base="about:"
)
WITHOUT_BODY: Final = (204, 304)
"""The statuses of responses that have no body, whatever their Content-Length."""
_REPEATS = (307, 308)
"""The redirects after which a client sends the same method and body again. After others it sends a GET."""


class AnsweredClaim(Protocol):
    """The members of a claim that an answer depends on; `Claim` has them in `fastdedup` and in `fastdedup.sync`."""

    @property
    def outcome(self) -> Outcome:
        """The answer to a claim."""

    @property
    def result(self) -> Any:
        """The first result if the outcome is SUCCEEDED."""

    @property
    def error(self) -> Any:
        """The recorded error if the outcome is FAILED."""

    @property
    def retry_after(self) -> float | None:
        """Seconds until the present owner's lease ends at the latest; None unless IN_PROGRESS."""

    @property
    def degraded(self) -> bool:
        """True if a fallback policy answered instead of the store."""


class Settling(Enum):
    """The effect of a response on its claim."""

    COMPLETE = "complete"
    FAIL = "fail"
    RELEASE = "release"


def settling_of(rule: Rule, response: Response, path: str) -> Settling:
    """Return the effect of a response on its claim. A kept 4xx is a failure, with the failures' `failure_ttl`.

    `path` is the path of the request.
    """
    kept = _keeps(rule, response.status) and not _leads_back(response, path)
    if not kept or not (response.whole or rule.unstored == "refuse"):
        return Settling.RELEASE
    return Settling.COMPLETE if response.status < 400 else Settling.FAIL


def _keeps(rule: Rule, status: int) -> bool:
    """Return whether a rule keeps a status; True if its function raises, because the work is done."""
    try:
        return rule.keeps(status)
    except Exception as error:  # noqa: BLE001 -- logged; each face would settle its claim in another way
        told = "%s: keep= failed, so a response of status %d is kept: %s at %s"
        log.error(told, rule.path, status, type(error).__name__, place_of(error))
        return True


def _leads_back(response: Response, path: str) -> bool:
    """Return whether a response asks for the same request at the same path: on another host, or with other slashes.

    The redirected request has the same key, so a kept redirect would be replayed to it for ever, or answered 422.
    """
    location = response.header(b"location") if response.status in _REPEATS else None
    if location is None:
        return False
    try:
        target = urlsplit(urljoin(quote(path, errors="surrogateescape"), location.decode("latin-1"))).path
    except ValueError:  # such as http://[
        return False
    return bare_path(unquote(target, errors="surrogateescape")) == bare_path(path)


def is_cut_short(response: Response, length: bytes, *, may_be_empty: bool) -> bool:
    """Return whether a body ends before its Content-Length: its client gets an error, so a retry runs again.

    `length` is that header, or b"". `may_be_empty`: it may answer HEAD, which gets a length and no body.
    """
    if not response.whole or not length.isdigit() or response.status in WITHOUT_BODY:
        return False
    return not (reaches(len(response.body), length) or (may_be_empty and not response.body))


def reaches(size: int, length: bytes) -> bool:
    """Return whether `size` bytes reach a Content-Length; False if that tells no length."""
    return length.isdigit() and len(length) < 19 and size >= int(length)


def storable(rule: Rule, response: Response) -> Response:
    """Return the part of a response that is stored."""
    return response.with_headers(rule.stored_headers(response.headers))


def streams(content_type: bytes | None) -> bool:
    """Return whether each part of a response of this content type is passed on at once."""
    return content_type is not None and content_type.partition(b";")[0].strip().lower() in _STREAMS


def answer(claim: AnsweredClaim, rule: Rule, docs: str | None) -> Response:
    """Return the answer to a request whose claim was not acquired."""
    match claim.outcome:
        case Outcome.SUCCEEDED | Outcome.FAILED:
            response = replay(stored_by(claim), docs)
        case Outcome.MISMATCH:
            response = respond(MISMATCH, docs=docs)
        case _:
            after = (
                rule.retry_after if claim.retry_after is None else min(claim.retry_after, rule.retry_after)
            )
            response = respond(IN_PROGRESS, docs=docs, retry_after=after)
    return response.marked(DEGRADED) if claim.degraded else response


def stored_by(claim: AnsweredClaim) -> Response | None:
    """Return the stored response of a settled claim; None for the value of a person who settled it by hand."""
    try:
        stored: Response | None = claim.result if claim.outcome is Outcome.SUCCEEDED else claim.error
    except ForeignRecordError:
        return None
    return stored


def replay(stored: Response | None, docs: str | None) -> Response:
    """Return the stored response; if its body was not kept, a problem that names its status.

    `stored` is None if a handler or a person has completed the claim, or a token was only consumed.
    """
    if stored is None:
        return respond(NOT_STORED, docs=docs).marked(REPLAYED)
    if stored.whole:
        return stored.marked(REPLAYED)
    return respond(
        NOT_STORED, docs=docs, location=stored.header(b"location"), original_status=stored.status
    ).marked(REPLAYED)


def lost(rule: Rule, docs: str | None, *, outage: bool) -> Response:
    """Return the answer to a request that has lost its lease; `outage` as in ClaimLostError."""
    return respond(LEASE_LOST if outage else CLAIM_LOST, docs=docs, retry_after=rule.retry_after)


REFUSALS = (KeyMissing, BadKey, PrincipalMissing, RequestTooLarge, BadBody, UnavailableError)
"""The errors that end a request before its handler runs."""


def refusal(error: Exception, rule: Rule, docs: str | None) -> Response:
    """Return the answer for one of `REFUSALS`."""
    match error:
        case KeyMissing():
            return respond(KEY_MISSING, docs=docs)
        case BadKey():
            return respond(KEY_MALFORMED, str(error), docs=docs)
        case PrincipalMissing():
            return respond(PRINCIPAL_REQUIRED, docs=docs)
        case RequestTooLarge():
            detail = f"this operation takes bodies of at most {rule.max_request} bytes"
            return respond(TOO_LARGE, detail, docs=docs)
        case BadBody():
            return respond(_BAD_BODY, f"{error}; nothing was processed", docs=docs)
        case UnavailableError():
            return unavailable(error, docs)
    raise error


def unavailable(error: UnavailableError, docs: str | None, detail: str | None = None) -> Response:
    """Return the answer if neither the store nor the policy answers. `detail` replaces the problem's own."""
    return respond(UNAVAILABLE, detail, docs=docs, retry_after=error.retry_after)
