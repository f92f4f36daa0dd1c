"""A record of the memory store, and the rule which record wins when a policy's records are adopted."""

from __future__ import annotations

from ..kernel.codes import Code
from ..kernel.operations import OwnerOp, Verdict
from ..kernel.records import Holding, Stored
from ..model import Outcome

LIVE = "PW"
"""The states in which an owner holds the key."""
SETTLED = "SF"
"""The states that have an outcome."""


class Entry:
    """One record. `until`: when the lease ends; `expires`: when the record ends; both in ms of the store's clock."""

    __slots__ = ("attempt", "expires", "fence", "fingerprint", "owner", "payload", "state", "token", "until")

    def __init__(self, state: str, owner: bytes, fence: int, attempt: int, until: int, expires: int) -> None:
        self.state = state
        self.owner = owner
        self.fence = fence
        self.attempt = attempt
        self.until = until
        self.expires = expires
        self.fingerprint: bytes | None = None
        self.payload = b""
        self.token = False


def is_held(entry: Entry, now: int) -> bool:
    """True if an owner holds the key, and its lease is not over at `now`."""
    return entry.state in LIVE and entry.until > now


def is_of(entry: Entry, op: OwnerOp) -> bool:
    """True if the operation is for this acquisition, and not for an earlier one of its owner."""
    return entry.owner == op.owner and op.fence in (0, entry.fence)


def differs(entry: Entry, fingerprint: bytes | None) -> bool:
    """True if a claim with this fingerprint is a MISMATCH."""
    return bool(fingerprint and entry.fingerprint and fingerprint != entry.fingerprint)


def says(entry: Entry, state: str, payload: bytes) -> bool:
    """True if a settled entry has this outcome, and a result if one is given; the first result stays."""
    return entry.state == state and bool(entry.payload or not payload)


def is_free(entry: Entry | None, fingerprint: bytes | None, now: int) -> bool:
    """True if a claim with this fingerprint acquires the key anew, unless a ledger knows that the key is done.

    This is the rule of `claim.lua`: any other record says more than the ledger.
    """
    if entry is None:
        return True
    return not (differs(entry, fingerprint) or entry.state in SETTLED or is_held(entry, now))


def stored(entry: Entry, now: int) -> Stored:
    """Return an entry as a `Stored` record, with times counted from `now` (ms of the store's clock)."""
    return Stored(
        entry.state,
        owner=entry.owner,
        fence=entry.fence,
        attempt=entry.attempt,
        left_ms=entry.until - now,
        ttl_ms=entry.expires - now,
        fingerprint=entry.fingerprint,
        payload=entry.payload,
        token=entry.token,
    )


def verdict_on(outcome: Outcome, entry: Entry, now: int, *, fresh: bool = True) -> Verdict:
    """Return the verdict on a claim that met this entry at `now`; it has the result of a settled entry."""
    settled = outcome in (Outcome.SUCCEEDED, Outcome.FAILED)
    verdict = Verdict(
        outcome,
        fence=entry.fence,
        attempt=entry.attempt,
        left_ms=max(entry.until - now, 0),
        payload=entry.payload if settled else b"",
        fresh=fresh,
    )
    if outcome is not Outcome.ACQUIRED:
        verdict.present = entry.owner
    return verdict


def judge(ours: Stored, live: bool, base: Holding | None, former: Entry, now: int) -> tuple[Code, bool]:
    """Return an adoption's code and whether to write: the table in `fallback/adoption.py`, like `adopt.lua`."""
    if "M" in (former.state, ours.state):
        known = former.owner == ours.owner or (base is not None and former.owner == base.owner)
        return (Code.OK, True) if known else (Code.THEIRS_STANDS, False)
    success, settled = ours.state == "S", ours.state in SETTLED
    same = _is_same(ours, base, former)
    if former.state in SETTLED:
        if same and (not settled or says(former, ours.state, ours.payload)):
            return Code.OK, False
        return (Code.OURS_STANDS, True) if success and former.state == "F" else (Code.THEIRS_STANDS, False)
    if same or base == (former.owner, former.fence):
        return Code.OK, True
    lost = Code.THEIRS_STANDS if settled or live else Code.OK
    if is_held(former, now):
        return (Code.OURS_STANDS, True) if success else (lost, False)
    return (Code.OK, True) if settled or ours.fence > former.fence else (lost, False)


def _is_same(ours: Stored, base: Holding | None, former: Entry) -> bool:
    """True if both records are of one acquisition, judged by what they show."""
    if former.owner != ours.owner or former.fence == ours.fence:
        return former.owner == ours.owner
    if former.state in SETTLED:
        return _is_consumed(former) and _is_consumed(ours)
    # The former record is not settled and has another fence: it is its owner's own claim, whose reply was lost.
    # But if the store itself had given our holding, it has given the key to another owner since.
    return base != (ours.owner, ours.fence)


def _is_consumed(record: Entry | Stored) -> bool:
    """True for a token that was consumed in one step by an owner that the library generated.

    No other caller has that owner, so a use under another fence is the same use, whose reply was lost.
    """
    return record.token and record.state == "S" and not record.payload and not record.owner[0]
