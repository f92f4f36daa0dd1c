"""Problems as application/problem+json (RFC 9457). To add a problem: a constant below.

A `type` never changes, and is not an address: a link (`rel="describedby"`) leads to the page that explains it. The
sidecar has the same types: it takes those that it shares from here, in its own words, and adds others
(`sidecar/http/problems.py`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import orjson

from .response import Response

TYPE = "urn:fastdedup:problem:"


@dataclass(frozen=True, slots=True)
class ProblemType:
    """A kind of problem. `about` tells a client's author what happened and what to do."""

    name: str
    status: int
    title: str
    about: str
    base: str = TYPE

    @property
    def type(self) -> str:
        """The URI of this type."""
        return self.base + self.name

    def worded(self, title: str, about: str) -> ProblemType:
        """Return this type in other words, for clients that know nothing of an Idempotency-Key header."""
        return replace(self, title=title, about=about)

    def facts(self, detail: str | None = None, **more: Any) -> dict[str, Any]:
        """Return the problem's body."""
        facts = {"type": self.type, "title": self.title, "status": self.status}
        return (facts if detail is None else {**facts, "detail": detail}) | more


KEY_MISSING = ProblemType(
    "key-missing",
    400,
    "Idempotency-Key is missing",
    "This operation requires an Idempotency-Key header. Send a new UUID with each new request, and the same one "
    "with each retry of it.",
)
KEY_MALFORMED = ProblemType(
    "key-malformed",
    400,
    "Idempotency-Key is malformed",
    'The header is one String of RFC 8941, such as "8e03978e-40d5-43e8-bc93-6894a57f9324" (the quotes may be '
    "left out), of the format that this operation publishes.",
)
PRINCIPAL_REQUIRED = ProblemType(
    "principal-required",
    400,
    "The caller of this Idempotency-Key is unknown",
    "A key belongs to its caller, so that no caller gets another's response, and this request does not say who "
    "calls. Nothing was processed. Sign in, or send the header that names you, and repeat the request.",
)
IN_PROGRESS = ProblemType(
    "in-progress",
    409,
    "A request is outstanding for this Idempotency-Key",
    "The first request with this key is still being processed. Repeat this one, as it is, after Retry-After seconds.",
)
CLAIM_LOST = ProblemType(
    "claim-lost",
    409,
    "Another request took over this Idempotency-Key",
    "This request no longer holds its key: its lease ended, the key was forgotten or settled elsewhere, or the store "
    "lost it. Another request with the same key may run, or have run. Repeat this one, as it is, for that one's "
    "response.",
)
LEASE_LOST = ProblemType(
    "lease-lost",
    503,
    "The lease of this Idempotency-Key could not be kept",
    "The store of idempotency keys did not answer while this request ran, and its lease ended. A part of it may have "
    "been processed; no other request is known to have taken over. Repeat it, as it is, with the same key, after "
    "Retry-After seconds.",
)
NOT_STORED = ProblemType(
    "response-not-stored",
    409,
    "The response was not stored",
    "The first request with this key was processed, and its response is not kept: it was a stream or too large, or a "
    "person completed the record. `original_status` and Location, if there are any, tell what became of it. Do not "
    "repeat it with another key.",
)
TOO_LARGE = ProblemType(
    "body-too-large",
    413,
    "The request is too large to be made idempotent",
    "`detail` has the limit. Nothing was processed.",
)
MISMATCH = ProblemType(
    "key-reused",
    422,
    "Idempotency-Key is already used",
    "The key came before with another request: another host, path, query or body. Nothing was processed. Use a new "
    "key for a new request, and repeat a request unchanged.",
)
UNAVAILABLE = ProblemType(
    "unavailable",
    503,
    "Duplicates cannot be ruled out at the moment",
    "The store of idempotency keys does not answer, and nothing was processed. Repeat the request, as it is, with "
    "the same key, after Retry-After seconds.",
)

PROBLEMS = [value for value in globals().values() if isinstance(value, ProblemType)]


def respond(
    problem: ProblemType,
    detail: str | None = None,
    *,
    docs: str | None = None,
    retry_after: float | None = None,
    location: bytes | None = None,
    **more: Any,
) -> Response:
    """Return the response for a problem. `retry_after` is in seconds; `docs` is the address of the policy."""
    body = orjson.dumps(problem.facts(detail or problem.about, **more))
    headers = [(b"content-type", b"application/problem+json"), (b"content-length", b"%d" % len(body))]
    if retry_after is not None:
        headers.append((b"retry-after", whole_seconds(retry_after)))
    if docs is not None:
        headers.append((b"link", f'<{docs}>; rel="describedby"'.encode()))
    if location is not None:
        headers.append((b"location", location))
    return Response(problem.status, headers, body)


def whole_seconds(seconds: float) -> bytes:
    """Return the value of a Retry-After header: whole seconds, rounded up, at least 1."""
    return b"%d" % max(1, math.ceil(seconds))
