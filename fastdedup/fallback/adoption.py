"""Records on their way between a fallback and the store: compared, removed, and reported."""

from __future__ import annotations

from ..events import Conflict, Unreplayed
from ..protocol.keyspace import names_of
from ..protocol.operations import AdoptOp, Code, ForgetOp, ReadOp, Stored
from ..protocol.owners import owner_text
from ..stores.memory import Entry
from .base import LineOp


class Former:
    """What a record was before an operation, which may change it in place."""

    __slots__ = ("expires", "mark", "owner", "until")

    def __init__(self, entry: Entry | None) -> None:
        self.mark = mark(entry)
        self.owner = b"" if entry is None else entry.owner
        self.until = 0 if entry is None else entry.until
        self.expires = 0 if entry is None else entry.expires


def removal(wire: bytes, found: Stored | None) -> LineOp:
    """Return how to remove a forgotten key's record: by looking first, as it may be another owner's by then."""
    if found is None:
        return ReadOp(wire)
    if found.state not in "PWIR":
        return ForgetOp(wire)
    # One that may change hands at any moment gives way to one that vanishes, if it is still the same.
    nothing = Stored(
        "R",
        owner=found.owner,
        fence=found.fence,
        attempt=found.attempt,
        left_ms=0,
        ttl_ms=1,
        fingerprint=None,
        payload=b"",
    )
    return AdoptOp(wire, nothing, found.owner)


def mark(entry: Entry | None) -> object:
    """Return what tells two states of a record apart. Being waited for is none: the store need not know."""
    if entry is None:
        return None
    state = "P" if entry.state == "W" else entry.state
    return state, entry.owner, entry.fence, entry.until, entry.payload


def report(line: AdoptOp, key: str, code: Code, theirs: bytes) -> Conflict | Unreplayed | None:
    """Return the event for a line that was not simply adopted."""
    namespace, ours = names_of(line.wire)[0], text_of(line.record.owner)
    if code is Code.FOREIGN:
        return Unreplayed(namespace, key, ours, "the store holds a value that fastdedup did not write")
    if code in (Code.OUTRANKED, Code.OVERRULED):
        kept = "theirs" if code is Code.OUTRANKED else "ours"
        return Conflict(namespace, key, ours, text_of(theirs), kept)
    return None


def text_of(owner: bytes) -> str:
    """Return an owner's text; of a machine, whose owner is its last change, that in hexadecimal."""
    if not owner:
        return ""
    return owner_text(owner) if owner[0] in (0, len(owner) - 1) else owner.hex()
