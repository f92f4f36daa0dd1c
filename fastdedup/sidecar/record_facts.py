"""A record in the sidecar's JSON: the facts of `Record` under their own names, times in milliseconds."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Final

from ..model import Record, State

_FACTS: Final = tuple(field.name for field in fields(Record))
_TIMES: Final = ("lease", "ttl", "age")


def facts_of(record: Record) -> dict[str, Any]:
    """Return what JSON says of a record."""
    facts = {name: getattr(record, name) for name in _FACTS}
    for name in _TIMES:
        if facts[name] is not None:
            facts[name] = round(facts[name] * 1000)
    facts["fingerprint"] = record.fingerprint.hex() if record.fingerprint else None
    return facts


def record_of(facts: dict[str, Any]) -> Record:
    """Return the record that a sidecar of any version has written; unknown facts are left out."""
    known = {name: facts[name] for name in _FACTS if name in facts}
    for name in _TIMES:
        if known.get(name) is not None:
            known[name] /= 1000
    if known["fingerprint"] is not None:
        known["fingerprint"] = bytes.fromhex(known["fingerprint"])
    known["state"] = State(known["state"])
    return Record(**known)
