"""The Idempotency-Key header: an Item of RFC 8941 whose value is a String (draft, section 2.1)."""

from __future__ import annotations

import re
from collections.abc import Sequence

DRAFT = "draft-ietf-httpapi-idempotency-key-header-07"
NAME = "Idempotency-Key"
MAX_KEY = 255
"""The characters that a key may have; Stripe's limit."""
_MAX_FIELD = 2048

# RFC 8941, sections 3.3 and 3.1.2. No two alternatives begin alike, so matching takes linear time.
_STRING = r'"((?:[ !#-\[\]-~]|\\["\\])*)"'
_TOKEN = r"[A-Za-z*][!#$%&'*+.^_`|~0-9A-Za-z:/-]*"
_VALUE = rf"{_STRING}|-?[0-9]{{1,15}}(?:\.[0-9]{{1,3}})?|{_TOKEN}|:[A-Za-z0-9+/=]*:|\?[01]"
_PARAMETERS = rf"(?:; *[a-z*][a-z0-9_.*-]*(?:=(?:{_VALUE}))?)*"
_ITEM = re.compile(rf"{_STRING}{_PARAMETERS}")
_BARE = re.compile(r"[!#-+\--:<-\[\]-~]+")
"""A key without quotes, which most clients send. It has no comma, by which proxies join two headers."""


class BadKey(ValueError):
    """The header cannot be read; its text says why."""


class KeyMissing(ValueError):
    """The request has no key, and the operation requires one."""


def parse(fields: Sequence[bytes]) -> str | None:
    """Return the key, or None without such a header. `"abc"` and `abc` are the same key.

    Args:
        fields: the value of each Idempotency-Key line of the request.

    Raises:
        BadKey: the request has more than one header (draft: clients MUST NOT), or the key is malformed, empty, or
            over 255 characters.
    """
    if not fields:
        return None
    if len(fields) > 1:
        raise BadKey(f"the request has {len(fields)} Idempotency-Key headers: send one")
    if len(fields[0]) > _MAX_FIELD:
        raise BadKey(f"the header has {len(fields[0])} bytes: a key must have at most {MAX_KEY} characters")
    key = _value_of(fields[0].decode("latin-1").strip(" \t"))  # some servers leave a tab at the end
    if not 0 < len(key) <= MAX_KEY:
        raise BadKey(f"a key must have 1 to {MAX_KEY} characters, this one has {len(key)}")
    return key


def _value_of(field: str) -> str:
    if _BARE.fullmatch(field) is not None:
        return field
    item = _ITEM.fullmatch(field)
    if item is None:
        raise BadKey('send a String of RFC 8941, such as "8e03978e-40d5-43e8-bc93-6894a57f9324"')
    return re.sub(r"\\(.)", r"\1", item[1])
