"""Records on their way from a fallback into the store: compared, removed, and reported.

An owner and a fence together name one acquisition of a key (`Holding`). An owner alone does not: two processes may
use the same name. The store compares our record with its own record, and with the base: the holding that
the store last had, as far as this process knows. `lua/adopt.lua` and the memory store decide by this table:

    the record in the store                             our record
    --------------------------------------------------  -----------------------------------------------
    nothing                                             OK, written
    an outcome: same owner, same fence, and it is       OK, not written: the reply to our settling, or to
      ours, with a result if ours has one               our adoption, was lost
    a token's use: same drawn owner, another fence      OK, not written: the reply was lost
    any other outcome, of the same name included        a success over a failure: OURS_STANDS, written
                                                        else THEIRS_STANDS
    at work or idle: same owner, same fence             OK, written: acquired there, settled here
    at work or idle: same owner, another fence,         OK, written: the reply to our claim was lost, and
      and the base is not our holding                   the claim was given here
    at work or idle: the base                           OK, written: its owner gave way here
    at work, any other                                  our success: OURS_STANDS, written
                                                        our failure or live claim: THEIRS_STANDS
                                                        ours is idle: OK, not written
    idle, any other                                     our result: OK, written
                                                        our claim: the higher fence wins, and ours is
                                                        THEIRS_STANDS if it is live and the lower one
    a machine: our last change, or the base's           OK, written
    a machine after any other change                    THEIRS_STANDS

At work is PROCESSING within its lease. Idle is free to claim: released, issued, or the lease is over.

A record that is written over one of the same owner keeps that one's fingerprint if it has none.

THEIRS_STANDS and OURS_STANDS are conflicts, and are reported. The exception is a holding that gave way in this
process: then the record is sent again with that holding as its base.

A claim at work under a name that the caller chose, with a fence that this process does not know, counts as our own.
It may be our claim whose reply was lost, and the same owner gets its own claim back.
"""

from __future__ import annotations

from ..events import Conflict, Unreplayed
from ..kernel.codes import Code
from ..kernel.keyspace import names_of
from ..kernel.operations import AdoptOp, ForgetOp, ReadOp
from ..kernel.owners import owner_text
from ..kernel.records import Holding, Stored
from ..kernel.replies import Adopted
from ..stores.entry import Entry
from .base import JournalOp


class Former:
    """The facts of a record before an operation, which may change the record in place."""

    __slots__ = ("expires", "holding", "mark", "until")

    def __init__(self, entry: Entry | None) -> None:
        self.mark = mark(entry)
        self.holding = None if entry is None or not entry.owner else Holding(entry.owner, entry.fence)
        self.until = 0 if entry is None else entry.until
        self.expires = 0 if entry is None else entry.expires


def removal(wire: bytes, found: Stored | None) -> JournalOp:
    """Return the operation that removes a forgotten key's record, or looks at it first.

    `found` is the record that the look has found, which may be another owner's.
    """
    if found is None:
        return ReadOp(wire)
    if found.state not in "PWIR":
        return ForgetOp(wire)
    # This record may change hands at any moment. So it is replaced, if it is still the same, by one that expires.
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
    return AdoptOp(wire, nothing, holding_of(found))


def holding_of(record: Stored | Adopted) -> Holding:
    """Return the acquisition of a record."""
    return Holding(record.owner, record.fence)


def mark(entry: Entry | None) -> object:
    """Return a value that differs for two states of a record. W counts as P: the store need not know waiters here."""
    if entry is None:
        return None
    state = "P" if entry.state == "W" else entry.state
    return state, entry.owner, entry.fence, entry.until, entry.payload


def report(op: AdoptOp, key: str, code: Code, theirs: bytes) -> Conflict | Unreplayed | None:
    """Return the event for an adoption in which an owner lost; None if no owner lost."""
    namespace, ours = names_of(op.wire)[0], text_of(op.record.owner)
    if code is Code.FOREIGN:
        return Unreplayed(namespace, key, ours, "the store holds a value that fastdedup did not write")
    if code in (Code.THEIRS_STANDS, Code.OURS_STANDS):
        kept = "theirs" if code is Code.THEIRS_STANDS else "ours"
        return Conflict(namespace, key, ours, text_of(theirs), kept)
    return None


def text_of(owner: bytes) -> str:
    """Return an owner's text. A machine's owner is its last change, and is shown in hexadecimal."""
    if not owner:
        return ""
    return owner_text(owner) if owner[0] in (0, len(owner) - 1) else owner.hex()
