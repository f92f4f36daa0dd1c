"""`/v1/gate`: a proxy asks here whether a request of its client may go on. Main path: `gate`.

The proxy's configuration says by parameters how to decide; the request's headers say whose request it is. nginx and
others send `GET /v1/gate?…`. Envoy puts a prefix before its client's own path and query, of which nothing can be
trusted: below `/v1/gate/` the parameters are those of the header FastDedup-Gate, which Envoy sets.
"""

from __future__ import annotations

import json
import re
from typing import Annotated, Any, Literal
from urllib.parse import quote, unquote

import orjson
from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from ...errors import UnavailableError
from ...web import header
from ...web.record_keys import scope_key, shortened
from ...web.request import EVERYONE, normal_host
from ..fields import Milliseconds, Namespace, Wait
from ..namespaces import Namespaces
from . import models, problems
from .problems import RequestProblem, problem_of
from .request import HttpRequest
from .strict import parse_query
from .verbs import Client, HttpAnswer, claim, counted

PATH = "/v1/gate"
BELOW = PATH + "/"
"""The beginning of the paths of Envoy's requests."""
_SETTINGS = b"fastdedup-gate"
_MAX_RESULT = 2048
"""Bytes of a result that a header may have: nginx has 4 KB for all headers of an answer."""
_PRINTABLE = "".join(map(chr, range(0x20, 0x7F)))
_ESCAPES = re.compile("(?:%[0-9A-Fa-f]{2})+")
_RESERVED = frozenset("%:/?#[]@!$&'()*+,;=")
"""Characters that mean something else in a URL than their escapes do (RFC 3986): /a%2Fb is another path than /a/b."""
_KEEPS_MS = 1000
"""How long the record of a key that passes `once` outlives its time."""

HeaderName = Annotated[str, Field(pattern="^[A-Za-z0-9-]{1,64}$")]


class GateQuery(models.QueryModel):
    """How to decide. Several parameters name the header of the request that has a value."""

    namespace: Namespace | None = None
    principal: HeaderName = Field(
        description="The header that says whose key it is, or `everyone` if callers share their keys."
    )
    key: HeaderName = Field(header.NAME, description="The header that has the key.")
    route: HeaderName | None = Field(
        None, description="A header that says what is asked for; each value has keys of its own."
    )
    fingerprint: HeaderName | None = Field(
        None, description="A header with a digest of the request: with another value a key is a mismatch."
    )
    lease: Milliseconds | None = None
    ttl: Milliseconds | None = None
    wait: Wait = 0
    once: Milliseconds | None = Field(
        None,
        description="Milliseconds in which a key passes once, if no caller completes or releases its claim.",
    )
    missing: Literal["refuse", "pass"] = Field(
        "refuse", description="What becomes of a request without a key; one that passes has no claim."
    )
    deny: Literal["403", "own"] = Field(
        "403", description="The status of a request that may not go on: always 403, or the outcome's own."
    )

    @model_validator(mode="after")
    def _once_is_all(self) -> GateQuery:
        if self.once is not None and (self.lease is not None or self.ttl is not None or self.wait):
            raise PydanticCustomError("once", "`once` stands for itself: leave out lease, ttl and wait")
        return self


# The decision


async def _gate(namespaces: Namespaces, ask: GateQuery, client: Client) -> HttpAnswer:
    """`GET /v1/gate`."""
    request = client.request
    try:
        key = _key_of(ask, request)
        if key is None:
            return _passed({"outcome": "no-key"}, [])
        wanted = _claim_of(ask, request, key)
    except RequestProblem as refused:
        return _stopped(ask, refused.facts["status"], str(refused), refused.facts)
    try:
        answer = await claim(namespaces, wanted, client)
    except UnavailableError as fault:
        facts, retry_ms = problem_of(fault)
        return _stopped(ask, facts["status"], "unavailable", facts, retry_ms)
    return _judged(ask, wanted, namespaces, answer)


gate = counted("gate", _gate)
"""Answers `GET /v1/gate`, and counts the answers."""


async def gate_below(namespaces: Namespaces, ask: None, client: Client) -> HttpAnswer:
    """`/v1/gate/…`, with any method: Envoy's requests. Their own method and path are the route."""
    request = client.request
    found = [value for name, value in request.headers if name == _SETTINGS]
    if len(found) != 1:
        raise RequestProblem(
            problems.INVALID, "let the proxy set the header FastDedup-Gate, such as: principal=X-Api-Key"
        )
    return await gate(namespaces, parse_query(found[0], GateQuery), client)


def _judged(ask: GateQuery, wanted: Any, namespaces: Namespaces, answer: HttpAnswer) -> HttpAnswer:
    facts = answer.facts
    outcome = facts["outcome"]
    if outcome == "acquired":
        name = ask.namespace or namespaces.root.settings.namespace
        return _passed(facts | {"key": wanted.key, "namespace": name}, answer.grants)
    if outcome == "in_progress" and ask.once is not None:  # its holder has passed, and never settles it
        facts = problems.PASSED_BEFORE.facts(**_claim_facts(facts) | {"outcome": "succeeded"})
        return _stopped(ask, problems.PASSED_BEFORE.status, "succeeded", facts | {"retry_after": None})
    if outcome in ("succeeded", "failed"):
        facts = problems.PASSED_BEFORE.facts(**facts)
        return _stopped(ask, problems.PASSED_BEFORE.status, outcome, facts)
    return _stopped(ask, answer.status, outcome, facts, answer.retry_ms)


def _claim_facts(facts: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if name in models.ClaimAnswer.model_fields}


# What is asked for


def _key_of(ask: GateQuery, request: HttpRequest) -> str | None:
    """Return the client's key, or None if the request has no key and needs none."""
    name = ask.key.lower()
    fields = [value.strip() for each, value in request.headers if each == name.encode()]
    if not any(fields):
        if ask.missing == "pass":
            return None
        raise RequestProblem(problems.KEY_MISSING, f"the header {ask.key} is missing")
    if name == header.NAME.lower():
        try:
            key = header.parse(fields) or ""
        except header.BadKey as error:
            raise RequestProblem(problems.KEY_MALFORMED, str(error)) from None
    else:
        key = (_one(request, ask.key) or b"").decode("latin-1")
    # It goes to the application in a header, which loses spaces at its end.
    if not (len(key) <= header.MAX_KEY and key.isascii() and key.isprintable()) or key[-1:] == " ":
        raise RequestProblem(
            problems.KEY_MALFORMED,
            f"{ask.key} must have 1 to {header.MAX_KEY} printable ASCII characters, the last one no space",
        )
    return key


def _claim_of(ask: GateQuery, request: HttpRequest, key: str) -> Any:
    mark = b"" if ask.fingerprint is None else _one(request, ask.fingerprint) or b""
    # A proxy that passes the client's Host on may serve another tenant under each name.
    host = normal_host((_one(request, "Host") or b"").decode("latin-1"), "http")
    return models.REQUESTS["claim"](
        key=scope_key(f"GATE {shortened(_route_of(ask, request))}", _principal_of(ask, request), key),
        namespace=ask.namespace,
        fingerprint=[host, mark.decode("latin-1")],
        lease=ask.lease if ask.once is None else ask.once,
        ttl=ask.ttl if ask.once is None else _KEEPS_MS,
        wait=ask.wait,
    )


def _principal_of(ask: GateQuery, request: HttpRequest) -> Any:
    if ask.principal.lower() == EVERYONE.value:
        return EVERYONE
    value = _one(request, ask.principal)
    if not value:
        raise RequestProblem(problems.PRINCIPAL_REQUIRED, f"the header {ask.principal} is missing")
    return value.decode("latin-1")


def _route_of(ask: GateQuery, request: HttpRequest) -> str:
    if ask.route is not None:
        return quote(_one(request, ask.route) or b"", safe=_PRINTABLE)
    if request.path.startswith(BELOW):
        path = _ESCAPES.sub(_unescaped, request.sent_path).removeprefix(PATH)
        return quote(f"{request.method} {path}", safe=_PRINTABLE)
    return "*"


def _unescaped(escapes: re.Match[str]) -> str:
    """Return escapes as the characters that they stand for, if the path stays the same one by that."""
    try:
        text = unquote(escapes[0], errors="strict")
    except UnicodeDecodeError:
        return escapes[0].upper()
    return "".join([f"%{ord(each):02X}" if each in _RESERVED else each for each in text])


def _one(request: HttpRequest, name: str) -> bytes | None:
    """Return the value of a header, or None without one. Of two, proxy and application might each take another."""
    found = [value for each, value in request.headers if each == name.lower().encode()]
    if len(found) > 1:
        raise RequestProblem(problems.INVALID, f"the header {name} is given {len(found)} times: send one")
    return found[0].strip() if found else None


# Answers


def _passed(facts: dict[str, Any], grants: Any) -> HttpAnswer:
    names = ("outcome", "key", "namespace", "owner", "fence", "attempt", "lease")
    told = [(name, str(facts[name])) for name in names if name in facts]
    if facts.get("degraded"):
        told.append(("degraded", "true"))
    return HttpAnswer(200, facts, None, grants, [_header(name, value.encode()) for name, value in told])


def _stopped(
    ask: GateQuery, status: int, outcome: str, facts: dict[str, Any], retry_ms: int | None = None
) -> HttpAnswer:
    """Return the answer for a request that may not go on; a fault of the store has its own status in any case."""
    if ask.deny == "403" and status < 500:
        known = {name: facts.get(name) for name in ("result", "error", "retry_after")}
        detail = facts.get("detail", facts["title"])
        answer = HttpAnswer(403, problems.STOPPED.facts(detail, outcome=outcome, **known), retry_ms)
    else:
        answer = HttpAnswer(status, facts, retry_ms)
    answer.headers = [_header("outcome", outcome.encode())]
    for name in ("result", "error"):
        text = _ascii(facts.get(name))
        if text:
            answer.headers.append(_header(name, text))
    return answer


def _header(name: str, value: bytes) -> tuple[bytes, bytes]:
    return b"fastdedup-" + name.encode(), value


def _ascii(value: Any) -> bytes:
    """Return a result as JSON that fits into a header, or no bytes if it is too long for that.

    JSON has other characters only inside strings, which can escape them, and line ends only outside of strings.
    """
    if value is None:
        return b""
    text = re.sub(r"[\t\r\n]", " ", orjson.dumps(value).decode())
    short = (
        re.sub(r"[^ -~]", lambda found: json.dumps(found[0])[1:-1], text) if len(text) <= _MAX_RESULT else ""
    )
    return short.encode() if len(short) <= _MAX_RESULT else b""
