"""The fingerprints of requests: by their bytes, or by the value of a JSON body."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from hashlib import blake2b
from typing import Any, Final

from ..keys import Fingerprint
from .request import Request

_BOUNDARY: Final = re.compile(rb'boundary=(?:"([^"]+)"|([^";,\s]+))', re.IGNORECASE)


def bare_path(path: str) -> str:
    """Return a path as the most lenient framework reads it, so that no path that is served slips past its rule.

    Many serve `/orders/` as `/orders`; Litestar also serves `//orders`; and the `$` of Starlette's patterns matches
    before a line feed at the end.
    """
    if "//" in path or path.endswith(("/", "\n")):
        return re.sub("/+", "/", path).rstrip("/\n") or "/"
    return path


def request_fingerprint(request: Request) -> Fingerprint:
    """Digest method, path, query and body.

    `/orders` and `/orders/` are one path, just like in a rule: one may redirect to the other. A multipart body's
    boundary is left out, because a client draws a new boundary when it encodes a form again.
    """
    return fingerprint_at(request, b"")


def fingerprint_at(request: Request, place: bytes) -> Fingerprint:
    """Digest what `request_fingerprint` digests, and the place at which the request is served."""
    body, query = request.body, request.query
    path = bare_path(request.path).encode("utf-8", "surrogateescape")
    method = request.method.encode()
    if body.startswith(b"--"):
        kind = request.header("content-type")
        if kind is not None and kind[:10].lower() == "multipart/":
            body = _without_boundary(kind.encode("latin-1"), body)
    head = b"%d %d %d %d\n%b%b%b%b" % (
        len(place), len(method), len(path), len(query), place, method, path, query
    )  # fmt: skip
    return _fingerprint(head + body, b"http")


def _fingerprint(data: bytes, kind: bytes) -> Fingerprint:
    # Not by Fingerprint(), which checks the length.
    return bytes.__new__(Fingerprint, blake2b(data, digest_size=16, person=kind).digest())


def _without_boundary(kind: bytes, body: bytes) -> bytes:
    found = _BOUNDARY.search(kind)
    return body if found is None else body.replace(b"--" + (found[1] or found[2]), b"--")


def json_fingerprint(request: Request) -> Fingerprint:
    """Digest method, path, query and the value of a JSON body: neither the order of names nor white space counts.

    For `fingerprint=`, if clients encode a request anew for each retry. A number counts by its digits: `1` and `1.0`
    differ, and no digit is lost. A body without a single value is digested byte for byte: its content type is not
    JSON, it is malformed or too deep, or it has NaN, an infinity or a name twice in one object.
    """
    kind = (request.header("content-type") or "").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        return request_fingerprint(request)
    try:
        body = _canonical(request.body)
    except (ValueError, RecursionError):
        return request_fingerprint(request)
    mark = request_fingerprint(replace(request, body=body))
    # Told apart from a request whose body is this text byte for byte.
    return _fingerprint(mark, b"json")


def _canonical(body: bytes) -> bytes:
    """Return a JSON body with sorted names and without white space.

    A number becomes `{"n": "1.0"}` with its own digits, and each name of an object gets a dot before it, so that no
    object is taken for a number.

    Raises:
        ValueError: it is not JSON, has NaN or an infinity, or a name comes twice.
        RecursionError: it is too deep.
    """
    value = json.loads(
        body.decode(),  # strictly: bytes with a BOM, or in UTF-16, would be taken as well, which no JSON is
        object_pairs_hook=_object,
        parse_int=str.encode,  # bytes are the smallest that _number() is asked for: there may be a million
        parse_float=str.encode,
        parse_constant=_refuse,
    )
    return json.dumps(value, default=_number, sort_keys=True, separators=(",", ":")).encode()


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = {f".{name}": value for name, value in pairs}
    if len(found) < len(pairs):
        raise ValueError("a name comes twice, and readers differ in which one they take")
    return found


def _number(digits: bytes) -> dict[str, str]:
    return {"n": digits.decode()}


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")
