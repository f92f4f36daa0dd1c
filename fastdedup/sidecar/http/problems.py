"""The sidecar's problems in application/problem+json (RFC 9457). To add a problem, add a constant below.

Types are one catalogue with those of the web (`web/problems.py`): what both have is taken from there. The sidecar
serves a page about each type under `PAGES` and the type's name.
"""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from ...errors import (
    ClaimLostError,
    ConfigError,
    DedupError,
    ForeignRecordError,
    InvalidKeyError,
    LedgerFullError,
    ResultError,
    ResultTooLargeError,
    UnavailableError,
    UsageError,
)
from ...failures import log
from ...model import Outcome
from ...web import problems as web
from ...web.problems import ProblemType
from ..access import ForbiddenError, QuotaError
from ..ledgers import LedgerSettingsError, UnknownLedgerError
from ..verbs import without_addresses

_MAX_FAULTS = 20
_MAX_LISTED = 2000
_MAX_NAME = 100
_RETRY_MS = 1000
"""The Retry-After, in ms, of an error that has none of its own."""


PAGES = "/problems/"
"""The path below which the pages about the problems are."""

BAD_REQUEST = ProblemType(
    "bad-request",
    400,
    "The request is not HTTP",
    "Send HTTP/1.1, with one `host`, no upgrade, no transfer coding but chunked, and no `connection` in a trailer.",
)
MALFORMED = ProblemType("malformed-json", 400, "The body is not JSON", "Send one JSON value, in UTF-8.")
FORBIDDEN = ProblemType(
    "forbidden", 403, "This socket does not allow that", "Use a socket that does. `detail` names the rule."
)
NOT_FOUND = ProblemType("not-found", 404, "No such address", "GET /openapi.json lists all paths.")
UNKNOWN_TOKEN = ProblemType(
    "unknown-token",
    404,
    "The token is unknown",
    "It was never issued, or has expired. Issue another one.",
)
NO_RECORD = ProblemType("no-record", 404, "No record", "The store holds nothing under this key: it is new.")
UNKNOWN_LEDGER = ProblemType(
    "unknown-ledger",
    404,
    "No such ledger",
    "Write a table [ledgers.NAME] with window and capacity into the sidecar's settings, or use another socket.",
)
METHOD = ProblemType(
    "method-not-allowed", 405, "Not with this method", "The Allow header lists the methods of this address."
)
TIMEOUT = ProblemType(
    "request-timeout", 408, "The request did not arrive in time", "Send requests in one piece."
)
STOPPED = ProblemType(
    "stopped",
    403,
    "The gate stopped this request",
    "The header FastDedup-Outcome says why. With `deny=own` the status says it too.",
)
KEY_MISSING = web.KEY_MISSING.worded(
    "The request has no key",
    "Send a new key with each new request, and the same one with each retry of it; `detail` names the header.",
)
KEY_MALFORMED = web.KEY_MALFORMED.worded("The key cannot be read", "`detail` says how to send it.")
PRINCIPAL_REQUIRED = web.PRINCIPAL_REQUIRED.worded(
    "The caller is unknown", "A key belongs to its caller, and this request does not say who calls."
)
PASSED_BEFORE = ProblemType(
    "passed-before",
    409,
    "A request with this key has passed before",
    "Do not repeat it; `result` or `error` is what became of it, where that was recorded.",
)
IN_PROGRESS = web.IN_PROGRESS.worded(
    "Another owner is at work",
    "Ask again after Retry-After seconds, or ask with `wait`: the answer is then the first one's result.",
)
CLAIM_LOST = web.CLAIM_LOST.worded(
    "The claim is not, or no longer, this owner's",
    "Its lease ended and another may have taken over, it was settled or forgotten, or the store lost its data. "
    "Nothing was changed, unless the detail says that a reply was lost. Do not repeat this; claim anew.",
)
TOKEN_USED = ProblemType("token-used", 409, "The token was used before", "It acts once. Issue another one.")
FOREIGN = ProblemType(
    "foreign-record",
    409,
    "The store's key is not fastdedup's",
    "It holds a value that fastdedup did not write. Choose another namespace, or remove that key.",
)
TOO_LARGE = web.TOO_LARGE.worded("The body is too large", "The limit stands in `detail`.")
RESULT_TOO_LARGE = ProblemType(
    "result-too-large",
    413,
    "The result is too large",
    "The claim is still yours: store the result elsewhere, and complete with a reference.",
)
MEDIA = ProblemType(
    "unsupported-media-type",
    415,
    "The body is not application/json: send that content type (curl: --json), in UTF-8, not compressed",
    "Send JSON with the content type application/json; a body without a content type is read as JSON.",
)
INVALID = ProblemType(
    "invalid-request", 422, "A field of the request is wrong", "`errors` names each field that is wrong."
)
MISMATCH = web.MISMATCH.worded(
    "Known with another fingerprint",
    "Another request came under the same key, or the token is another subject's. Do not repeat this.",
)
QUOTA = ProblemType(
    "quota-exceeded",
    429,
    "The socket's quota is used up",
    "The clients of this socket ask for more than they may. Ask again after Retry-After seconds.",
)
HEADERS = ProblemType(
    "headers-too-large", 431, "The headers are too large", "Send at most 100 headers, of 32 KiB in all."
)
INTERNAL = ProblemType("internal-error", 500, "Internal error", "See the sidecar's log.")
LEDGER_SETTINGS = ProblemType(
    "ledger-settings",
    500,
    "The ledger cannot be served with its settings",
    "The request is a good one: somebody must change the sidecar's settings, or the store's. `detail` says what.",
)
LEDGER_FULL = ProblemType(
    "ledger-full",
    503,
    "The ledger is full",
    "It holds 12 to 18 times as many ids as planned, and remembered none of these. Resize it to a larger capacity.",
)
BUSY = ProblemType(
    "too-many-connections",
    503,
    "Too many connections",
    "The sidecar has as many connections as it may have. Close those that you do not use; connect again later.",
)
REQUESTS = ProblemType(
    "too-many-requests",
    503,
    "Requests take too much memory",
    "Too many bytes of requests wait, and most of them are yours. Connect again, and send fewer at once.",
)
UNAVAILABLE = web.UNAVAILABLE.worded(
    "The store does not answer",
    "Whether the operation took effect is unknown. Ask again after Retry-After seconds, with the same owner.",
)

PROBLEMS = [value for value in globals().values() if isinstance(value, ProblemType)]

OF_OUTCOME = {
    Outcome.IN_PROGRESS: IN_PROGRESS,
    Outcome.MISMATCH: MISMATCH,
    Outcome.UNKNOWN: UNKNOWN_TOKEN,
}
"""The problems of a claim that was not won, by its outcome."""

OF_CLAIM = (*OF_OUTCOME.values(), TOKEN_USED)
"""The problems that are an outcome: they carry the claim's answer as well."""

_OF_ERROR: list[tuple[type[DedupError], ProblemType]] = [
    (QuotaError, QUOTA),
    (LedgerFullError, LEDGER_FULL),
    (UnavailableError, UNAVAILABLE),
    (ForbiddenError, FORBIDDEN),
    (UnknownLedgerError, UNKNOWN_LEDGER),
    (LedgerSettingsError, LEDGER_SETTINGS),
    (ClaimLostError, CLAIM_LOST),
    (ResultTooLargeError, RESULT_TOO_LARGE),
    (ForeignRecordError, FOREIGN),
    (InvalidKeyError, INVALID),
    (ResultError, INVALID),
    (ConfigError, INVALID),
    (UsageError, UNAVAILABLE),  # the `Dedup` is closed: the sidecar is stopping
]


WITH_RETRY = (IN_PROGRESS, UNAVAILABLE, QUOTA, LEDGER_FULL)
"""The problems that say when another try makes sense."""


class RequestProblem(Exception):
    """A request that is refused before the store is asked; `headers` go into the answer."""

    def __init__(
        self,
        problem: ProblemType,
        detail: str | None = None,
        *,
        headers: list[tuple[bytes, bytes]] | None = None,
    ) -> None:
        super().__init__(problem.name)
        self.facts = problem.facts(detail)
        self.headers = headers


def problem_of(fault: Exception) -> tuple[dict[str, Any], int | None]:
    """Return the problem for an exception, and after how many ms another try makes sense."""
    if isinstance(fault, RequestProblem):
        return fault.facts, None
    if isinstance(fault, ValidationError):
        return _invalid(fault), None
    for kind, problem in _OF_ERROR:
        if isinstance(fault, kind):
            if problem in WITH_RETRY:
                ms = round(fault.retry_after * 1000) if isinstance(fault, UnavailableError) else _RETRY_MS
                return problem.facts(without_addresses(fault)), ms
            return problem.facts(str(fault)), None
    log.exception("a request failed", exc_info=fault)
    return INTERNAL.facts(), None


_WORDS = {
    "missing": "is missing",
    "extra_forbidden": "is not a field of this request",
    "string_type": "must be text",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "int_parsing_size": "has too many digits",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "list_type": "must be a list",
    "model_type": "must be an object",
    "dict_type": "must be an object",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
    "string_too_short": "must have at least {min_length} character",
    "string_too_long": "must have at most {max_length} characters",
    "string_pattern_mismatch": "must match {pattern}",
    "too_long": "must have at most {max_length} items, got {actual_length}",
    "literal_error": "must be {expected}",
    "enum": "must be {expected}",
    "union_tag_not_found": "is missing",
    "union_tag_invalid": "must be one of {expected_tags}",
}
"""The messages, by pydantic's type of the error: its own messages are in the words of Python."""
_OF_OP = ("union_tag_not_found", "union_tag_invalid")
"""The types of errors that are about a member `op`."""


def _invalid(fault: ValidationError) -> dict[str, Any]:
    """Return the problem for a body that a model refuses. It never shows the input, which may be a secret."""
    if fault.error_count() > _MAX_LISTED:
        return INVALID.facts(f"the request has {fault.error_count()} faults")
    faults = fault.errors(include_url=False, include_input=False)
    if faults[0]["type"] == "json_invalid":
        return MALFORMED.facts(faults[0]["msg"])
    messages: dict[str, str] = {}
    for one in faults:
        field, message = _path(one)[:_MAX_NAME], _message(one)
        former = messages.get(field)
        # A value of two allowed types has an error of each. If one of the types fits, the value itself is wrong.
        if former is None or former in _TYPE_WORDS:
            both = former is not None and message in _TYPE_WORDS
            messages[field] = f"{former} or {message.removeprefix('must be ')}" if both else message
    listed = [{"field": field, "message": message} for field, message in messages.items()][:_MAX_FAULTS]
    return INVALID.facts(f"{listed[0]['field'] or 'the request'}: {listed[0]['message']}", errors=listed)


_TYPE_WORDS = frozenset(_WORDS[name] for name in _WORDS if name.endswith("_type"))
"""The messages for a value of another type."""


def _path(error: ErrorDetails) -> str:
    """Return the path of a wrong value in the client's JSON.

    Behind an index pydantic names the model or the type that it tried: no list of a request has lists within.
    """
    location = error["loc"]
    parts = [part for at, part in enumerate(location) if not (at and type(location[at - 1]) is int)]
    return ".".join(map(str, [*parts, "op"] if error["type"] in _OF_OP else parts))


def _message(error: ErrorDetails) -> str:
    """Return what is wrong with a value, in the words of JSON."""
    words = _WORDS.get(error["type"])
    return error["msg"] if words is None else words.format_map(error.get("ctx", {}))


def retry_after(ms: int) -> bytes:
    """Return the value of a Retry-After header: whole seconds, rounded up, at least 1."""
    return b"%d" % max(1, -(-ms // 1000))
