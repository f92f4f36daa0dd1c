"""What fastdedup promises, as one pure function: `step(record, operation, now_us)` returns a record and a reply.

Read this file first; `words.py` has its nouns. A store is right if it does to a key what `step` does, whatever came
before: `closure.py` holds every store against it. The numbers in brackets are the guarantees of
`fastdedup/stores/base.py`; a line that holds a guarantee ends with its number. Two of them hold by the form of this
file. An operation is one step, so one of many claims is the first [1]. A step sees one key, so the operations of a
batch are independent [13].

The life of a record:

                issue              claim, redeem              complete
    (absent) ---------> ISSUED -------------------> WORKING ----------> SUCCEEDED
        |                                            ^  | |    fail
        +-------------------- claim -----------------+  | +-----------> FAILED
                                                        | release, or the lease ends
                                                        v
                                            free: attempt + 1, a higher fence

A lease starts at the end of the present millisecond and is compared with the beginning of it, so it never ends before
its full length.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from .words import (
    ABSENT,
    DAY_US,
    FAILED,
    FOREIGN,
    HELD,
    ISSUED,
    LOST,
    MACHINE,
    MAX_ATTEMPT,
    MAX_VERSION,
    OK,
    RELEASED,
    SETTLED,
    SUCCEEDED,
    WATCHED,
    WORKING,
    Adopt,
    Claim,
    Clock,
    Forget,
    Issue,
    Read,
    Record,
    Release,
    Renew,
    Reply,
    Settle,
    Touch,
    Transition,
)

Next = tuple[Record | None, Reply]


def step(record: Record | None, operation: Any, now_us: int) -> Next:
    """Return the record that stands after an operation, and the reply: the contract."""
    return RULE_OF[type(operation)](present(record, now_us), operation, clock(now_us))


@lru_cache(1000)
def clock(now_us: int) -> Clock:
    return Clock(now_us, now_us // 1000, -(-now_us // 1000))


def present(record: Record | None, now_us: int) -> Record | None:
    return None if record is None or record.expires <= now_us // 1000 else record  # [12]


# Claims and tokens


def claim(record: Record | None, ask: Claim, now: Clock) -> Next:
    if record is None:
        if ask.mode != "claim":
            return None, Reply("UNKNOWN")  # [10] only what was issued
        return acquire(None, ask, now)  # [1]
    if differ(record, ask.fingerprint):
        return record, met("MISMATCH", record, now)  # [9] [10] first of all, in every state
    mine, live = record.owner == ask.owner, is_live(record, now)
    if mine and ask.mode == "consume" and (live or is_consumed(record)):
        return consume_own(record, ask, now)  # [10] one use, whichever call began it
    if record.state in SETTLED:
        return record, met("SUCCEEDED" if record.state == SUCCEEDED else "FAILED", record, now)  # [7]
    if not live:
        return acquire(record, ask, now)  # [4] [8] [10]
    if mine:
        return own_claim_back(record, ask, now)  # [2]
    seen = record._replace(state=WATCHED) if ask.watch else record
    return seen, met("IN_PROGRESS", record, now)  # [3]


def acquire(former: Record | None, ask: Claim, now: Clock) -> Next:
    before, consumes = former or Record("", b""), ask.mode == "consume"
    record = Record(
        SUCCEEDED if consumes else WORKING,
        ask.owner,
        fence=max(now.us, before.fence + 1),  # [4] [8]
        attempt=min(before.attempt + 1, MAX_ATTEMPT),  # [4] [8]
        until=now.end + (ask.keep if consumes else ask.lease),
        expires=now.end + ask.keep,  # [12]
        fingerprint=ask.fingerprint or before.fingerprint,  # [9] that of an owner that died stays
        token=before.token,
    )
    return record, acquired(record, now)._replace(owner=before.owner, former=before.fence)


def own_claim_back(record: Record, ask: Claim, now: Clock) -> Next:
    """Return the same fence and attempt. The lease starts anew and is never shortened."""
    until, expires = max(record.until, now.end + ask.lease), max(record.expires, now.end + ask.keep)
    record = record._replace(until=until, expires=expires)
    return record, acquired(record, now)._replace(fresh=False)


def consume_own(record: Record, ask: Claim, now: Clock) -> Next:
    """End the owner's use of a token: what it redeemed becomes a success, what it consumed stays one."""
    if record.state == SUCCEEDED:
        return record, acquired(record, now)._replace(fresh=False)
    ends = now.end + ask.keep
    used = record._replace(state=SUCCEEDED, until=ends, expires=ends)
    return used, acquired(used, now)._replace(fresh=False, wakes=wakes(record))


def is_live(record: Record, now: Clock) -> bool:
    return record.state in HELD and record.until > now.ms


def is_consumed(record: Record) -> bool:
    return record.state == SUCCEEDED and not record.result


def differ(record: Record, fingerprint: bytes | None) -> bool:
    return bool(fingerprint and record.fingerprint and fingerprint != record.fingerprint)


def wakes(record: Record) -> bool:
    return record.state == WATCHED  # [14]


def acquired(record: Record, now: Clock) -> Reply:
    return Reply("ACQUIRED", record.fence, record.attempt, max(record.until - now.end, 0))


def met(code: str, record: Record, now: Clock) -> Reply:
    result = record.result if code in ("SUCCEEDED", "FAILED") else b""  # [9] never to another fingerprint
    left = max(record.until - now.end, 0)
    return Reply(code, record.fence, record.attempt, left, result, owner=record.owner)


# What an owner does with its claim


def is_owner(record: Record | None, ask: Settle | Release | Renew | Touch) -> bool:
    """True for the owner of this very acquisition: one that was overtaken and came back has another fence [5]."""
    return record is not None and record.owner == ask.owner and ask.fence in (0, record.fence)


def settle(record: Record | None, ask: Settle, now: Clock) -> Next:
    if not is_owner(record, ask):
        return record, LOST  # [5]
    if says(record, ask):
        return record, OK  # [6] the first result stays [7]
    if record.state not in HELD:
        return record, LOST  # [7] settled stays settled
    # The lease may be over: until another owner acquires the key, the claim is still this owner's.
    ends = now.end + ask.keep
    settled = record._replace(state=ask.state, until=ends, expires=ends, result=ask.result)
    return settled, OK._replace(wakes=wakes(record))


def says(record: Record, ours: Settle | Record) -> bool:
    """True if a settled record has this outcome, and a result if this outcome has one."""
    return record.state == ours.state and bool(record.result or not ours.result)


def release(record: Record | None, ask: Release, now: Clock) -> Next:
    if not is_owner(record, ask):
        return record, LOST  # [5]
    if record.state in (RELEASED, ISSUED):
        return record, OK  # [6]
    undone = ask.consumed and record.token and is_consumed(record)
    if record.state not in HELD and not undone:
        return record, LOST  # [7]
    if record.token:  # issued again, for the same subject
        freed = record._replace(state=ISSUED, until=0)
    else:  # its owner did nothing here, so the next request may differ
        freed = record._replace(state=RELEASED, until=0, fingerprint=None)  # [8]
    return freed, OK._replace(wakes=wakes(record))


def renew(record: Record | None, ask: Renew, now: Clock) -> Next:
    if not is_owner(record, ask) or record.state not in HELD:
        return record, LOST  # [5]
    renewed = kept(record, ask.keep, now)._replace(until=now.end + ask.lease)
    # Waiters know when the former lease ends, and would sleep beyond the end of a shorter one.
    return renewed, OK._replace(wakes=wakes(record) and renewed.until < record.until)


def touch(record: Record | None, ask: Touch, now: Clock) -> Next:
    if not is_owner(record, ask) or record.state not in HELD:
        return record, LOST  # [5]
    return kept(record, ask.keep, now), OK


def kept(record: Record, keep: int, now: Clock) -> Record:
    """Let the record live for at least a while: a renewal does not shorten what a touch has said [5]."""
    return record._replace(expires=max(record.expires, now.end + keep))


def issue(record: Record | None, ask: Issue, now: Clock) -> Next:
    if record is None:
        ends = now.end + ask.keep
        return Record(ISSUED, ask.issuer, now.us, 0, ends, ends, ask.subject, token=True), OK
    first = record.owner == ask.issuer and record.fingerprint == ask.subject and not record.result
    return record, OK if record.token and first else FOREIGN  # [6]


# Machines


def transition(record: Record | None, ask: Transition, now: Clock) -> Next:
    state, version = (record.result, record.fence) if record else (ask.initial, 0)

    def told(code: str) -> Next:
        return record, Reply(code, version, result=state)

    if record and record.owner == ask.change:
        return told("OK")  # [6] the reply to this call was lost
    if ask.again and version > (ask.version or 0) + 1:
        return told("UNSURE")  # a later change may hide this one
    behind = 0 if ask.version is None else version - ask.version
    if state == ask.to and behind in (0, 1):
        return told("ALREADY")
    if behind:
        return told("STALE")
    if state not in ask.sources:
        return told("ILLEGAL")  # [11] only along the definition
    moved = Record(MACHINE, ask.change, version + 1, expires=now.end + ask.keep, result=ask.to)
    return moved, Reply("OK", version + 1, result=ask.to)  # [11]


# Administration


def read(record: Record | None, ask: Read, now: Clock) -> Next:
    return record, OK._replace(record=record) if record else ABSENT


def forget(record: Record | None, ask: Forget, now: Clock) -> Next:
    return None, OK._replace(wakes=wakes(record)) if record else ABSENT


def adopt(record: Record | None, ask: Adopt, now: Clock) -> Next:
    ours, former = ask.record, record
    most = MAX_VERSION - 1 if ours.state == MACHINE else now.us + DAY_US
    if ours.fence > most:
        return record, FOREIGN  # no fastdedup has made it
    until = (now.end if ask.left > 0 else now.ms) + ask.left if ours.state != MACHINE else 0
    ours = ours._replace(until=until, expires=now.end + max(ask.keep, 1))  # [12]
    if former is None:
        return ours, OK  # [15]
    code, replaces = rank(ours, ask.base, former, now)  # [15]
    named = Reply(code, owner=former.owner, former=former.fence, settled=former.state in SETTLED)
    if not replaces:
        return former, named
    if ours.state in (*HELD, *SETTLED) and ours.owner == former.owner:
        # [9] The owner need not know it.
        ours = ours._replace(fingerprint=ours.fingerprint or former.fingerprint)
    if not is_live(ours, now) and ours.state not in (*SETTLED, MACHINE):
        ours = ours._replace(fence=max(ours.fence, former.fence))  # a free key's fence does not fall
    return ours, named._replace(wakes=wakes(former))


def rank(ours: Record, base: tuple[bytes, int] | None, former: Record, now: Clock) -> tuple[str, bool]:
    """Return the reply, and whether our record replaces the former one: see the table in `fallback/adoption.py`."""
    if MACHINE in (ours.state, former.state):
        known = former.owner == ours.owner or (base is not None and former.owner == base[0])
        return ("OK", True) if known else ("THEIRS_STANDS", False)
    same, success = is_same(ours, base, former), ours.state == SUCCEEDED
    if former.state in SETTLED:
        if same and (ours.state not in SETTLED or says(former, ours)):
            return "OK", False  # [6]
        return ("OURS_STANDS", True) if success and former.state == FAILED else ("THEIRS_STANDS", False)
    if same or base == (former.owner, former.fence):
        return "OK", True
    lost = "THEIRS_STANDS" if ours.state in SETTLED or is_live(ours, now) else "OK"
    if is_live(former, now):
        return ("OURS_STANDS", True) if success else (lost, False)
    if ours.state in SETTLED or ours.fence > former.fence:
        return "OK", True
    return lost, False


def is_same(ours: Record, base: tuple[bytes, int] | None, former: Record) -> bool:
    """True if both records are of one acquisition, as far as they show."""
    if ours.owner != former.owner:
        return False
    if ours.fence == former.fence:
        return True
    if former.state in SETTLED:  # one use of a token by an owner that the library drew: the reply was lost
        drawn = ours.owner[0] == 0
        return drawn and all(each.token and is_consumed(each) for each in (ours, former))
    return base != (ours.owner, ours.fence)


RULE_OF: dict[type, Callable[[Record | None, Any, Clock], Next]] = {
    Claim: claim,
    Settle: settle,
    Release: release,
    Renew: renew,
    Touch: touch,
    Issue: issue,
    Transition: transition,
    Read: read,
    Forget: forget,
    Adopt: adopt,
}
