"""The key of a request's record: place, caller and key."""

from __future__ import annotations

from typing import Final

from ..keys import business_key
from .request import EVERYONE, PrincipalMissing, digest_of, name_of_caller

SCOPE: Final = "http"
"""The scope below a gate's namespace in which middlewares keep the records of web keys: `shop:http`."""
_LONGEST: Final = 128
"""The longest path or principal, in bytes, that is in a record's key (at most 1024 bytes) unchanged."""


def scope_key(place: str, principal: object, key: str, tenant: str = "") -> str:
    """Return the record's key, which is unique for a place, a tenant, a caller and a key.

    Errors as of `Rule.scope_key`.
    """
    owner = "-" if principal is EVERYONE else "=" + _owner(principal)
    if tenant:
        return business_key(place, "@" + shortened(tenant), owner, key)
    return business_key(place, owner, key)


def _owner(principal: object) -> str:
    """Return a principal's digest: it may be a secret, and keys are in Redis and in logs."""
    name = name_of_caller(principal, "principal")
    if name is None or name == "":
        raise PrincipalMissing("the principal function found no caller for this request")
    # Not by str(): that of an enum's member is its name.
    text = str.__str__(name) if isinstance(name, str) else str(name)
    return digest_of(text.encode("utf-8", "surrogatepass"))


def shortened(name: str) -> str:
    """Return a name, or a digest of a name that is long, cannot be encoded, or looks like a digest."""
    data = name.encode("utf-8", "surrogatepass")
    escaped = len(data) + name.count("|") + name.count("\\")
    if escaped <= _LONGEST and name.isprintable() and not name.startswith("#"):
        return name
    return "#" + digest_of(data)
