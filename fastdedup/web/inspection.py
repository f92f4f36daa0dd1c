"""Shows and forgets the record of a web request, for operators. The middlewares' rule gives its key."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from typing import Any, Final, NamedTuple, Protocol, TypeVar
from uuid import UUID

import orjson

from ..checks import named
from ..codec import Codec, JSONCodec
from ..core.settings import Settings
from ..errors import ConfigError, ForeignRecordError, InvalidKeyError
from ..model import Record
from . import header
from .record_keys import SCOPE, scope_key, shortened
from .request import EVERYONE, name_of_caller, principal_of_header
from .response import ResponseCodec
from .rules import Rule

__all__ = ["forget_request", "get_request", "principal_of_header"]

Found = TypeVar("Found", covariant=True)
Removed = TypeVar("Removed", covariant=True)

GATE: Final = "GATE"
"""Stands for the method of requests that a proxy asks the sidecar's gate about; the path is then the route."""
Caller = str | int | UUID | None
"""The value of a principal function: text, a number or a UUID; None stands for a route that is open to everyone."""


class RequestPlace(NamedTuple):
    """The place of a web request's record: its key, and whether it is of the sidecar's gate, and so has no scope."""

    key: str
    of_sidecar: bool

    def within(self, namespace: str) -> str:
        """Return the record's namespace. `namespace`: the gate's, or already the one of its web keys."""
        return namespace if self.of_sidecar else web_namespace(namespace)

    def scope_in(self, namespace: str) -> str | None:
        """Return the record's scope below a namespace; None if it is in the namespace itself."""
        return None if self.within(namespace) == namespace else SCOPE


def web_namespace(namespace: str) -> str:
    """Return the namespace of web keys below a gate's; given that of web keys already, the same."""
    below = f":{SCOPE}"
    return namespace if namespace.endswith(below) else namespace + below


class RecordGate(Protocol[Found, Removed]):
    """The part of a `Dedup` that finds and removes records: of `fastdedup`, to be awaited, or of `fastdedup.sync`."""

    @property
    def settings(self) -> Settings:
        """Its settings."""

    def scoped(self, name: str | None = None, *, codec: Codec | None = None) -> RecordGate[Found, Removed]:
        """Return a gate for a namespace below this one's."""

    def get(self, key: str) -> Found:
        """Return a record."""

    def forget(self, key: str, *, reason: str | None = None) -> Removed:
        """Remove a record."""


def place_of_request(
    method: str, path: str, principal: Caller, key: str, tenant: Caller = None
) -> RequestPlace:
    """Return the place of a request's record, by the rule of the middlewares, or of the sidecar's gate (GATE).

    Arguments and errors are those of `get_request`.
    """
    if not isinstance(key, str):
        raise InvalidKeyError(f"the key must be the text of an Idempotency-Key, got {named(key)}")
    try:
        name = header.parse([key.encode()]) or ""
    except (header.BadKey, UnicodeEncodeError) as error:
        raise InvalidKeyError(f"the key is no Idempotency-Key: {error}") from None
    caller = EVERYONE if principal is None else name_of_caller(principal, "principal")
    if caller == "":
        raise ConfigError(
            "the principal is empty, and no caller has an empty name: leave it out if the route is open to everyone"
        )
    if method.upper() == GATE:
        if tenant is not None:
            raise ConfigError("the sidecar's gate knows no tenants: leave out the tenant")
        return RequestPlace(scope_key(f"{GATE} {shortened(path)}", caller, name), of_sidecar=True)
    rule = Rule(path, principal=lambda request: None)
    whose = "" if tenant is None else name_of_caller(tenant, "tenant")
    return RequestPlace(rule.scope_key(method.upper(), path, caller, name, tenant=whose), of_sidecar=False)


def get_request(
    dedup: RecordGate[Found, Any],
    method: str,
    path: str,
    *,
    key: str,
    principal: Caller = None,
    tenant: Caller = None,
) -> Found:
    """Return the record of a web request, or None if it has no record.

    For example: `await get_request(dedup, "POST", "/orders/{id}", key="7f3c", principal="ann")`. With a gate of
    `fastdedup.sync`, leave out the `await`. The record's `result` is a dictionary with the response's `status`,
    `headers` and `body`; None while the request runs.

    Args:
        dedup: the gate that the application's middleware has, or its scope "http".
        method: the request's method; "GATE" for a proxy's requests through the sidecar, with `dedup` a gate in the
            namespace that they name.
        path: the route's declared path, with the prefixes of its routers and the mount of its application:
            `/shop/api/orders/{id}`. If its rule has `key_scope="path"`, the request's own path.
        key: the request's Idempotency-Key.
        principal: the value that the principal function returns for the caller. If that function is `by_header(…)`,
            `principal_of_header("the header's value")`. None if the route is open to everyone.
        tenant: what the function given as `tenant=` returns, such as the host; None if the route has no `tenant=`.

    Raises:
        InvalidKeyError: no request can have this key.
        ConfigError: the path is not one, or the principal is empty or of another type.
        UnavailableError: the store does not answer.
    """
    place = place_of_request(method, path, principal, key, tenant)
    return dedup.scoped(place.scope_in(dedup.settings.namespace), codec=AnyCodec()).get(place.key)


def forget_request(
    dedup: RecordGate[Any, Removed],
    method: str,
    path: str,
    *,
    key: str,
    principal: Caller = None,
    tenant: Caller = None,
    reason: str | None = None,
) -> Removed:
    """Remove the record of a web request, even while it is held, so that its next repeat runs.

    Return False if there was no record. The removal is reported by a `KeyForgotten` event that says who removed it
    and why. Arguments and errors are those of `get_request`; `reason` has up to 256 characters.
    """
    place = place_of_request(method, path, principal, key, tenant)
    return dedup.scoped(place.scope_in(dedup.settings.namespace)).forget(place.key, reason=reason)


class AnyCodec:
    """Shows results of any codec: JSON, the parts of a web response, or any other bytes as text."""

    stores_errors = True
    dumps = JSONCodec().dumps

    def loads(self, data: bytes) -> Any:
        """Decode JSON and web responses, and show any other bytes as text; never fails."""
        for decode in (_response_facts, _exact_json):
            with contextlib.suppress(ValueError, ForeignRecordError, RecursionError):
                return decode(data)
        return data.decode(errors="backslashreplace")


def with_parts(record: Record) -> Record:
    """Return the record with the parts that `AnyCodec` shows, if a sidecar has given a web response.

    The sidecar gives text; the list of the response's head if the response has no body.
    """
    return replace(record, result=_with_parts(record.result), error=_with_parts(record.error))


def _with_parts(given: Any) -> Any:
    if isinstance(given, str | list):
        data = given if isinstance(given, str) else json.dumps(given) + "\n"
        with contextlib.suppress(ValueError, ForeignRecordError):
            return _response_facts(data.encode())
    return given


def _exact_json(data: bytes) -> Any:
    """Decode JSON; an integer over 64 bits stays one. orjson would make it a float; but it refuses NaN."""
    orjson.loads(data)
    return json.loads(data)


def _response_facts(data: bytes) -> dict[str, Any]:
    if b"\n" not in data:
        raise ValueError("a list of JSON is no response, whatever is in it")
    response = ResponseCodec().loads(data)
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in response.headers}
    body = response.body.decode(errors="backslashreplace") if response.whole else None
    return {"status": response.status, "headers": headers, "body": body}
