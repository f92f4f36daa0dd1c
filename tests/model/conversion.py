"""The contract's words for the library's operations and replies, and back.

`operation` and `told` go from the contract to the library, `asked` and `reply_of` come back.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from fastdedup import Outcome, UnavailableError
from fastdedup.kernel.codes import Code
from fastdedup.kernel.operations import (
    AdoptOp,
    ClaimOp,
    ForgetOp,
    IssueOp,
    Op,
    ReadOp,
    ReleaseOp,
    RenewOp,
    SettleOp,
    TouchOp,
    TransitionOp,
    Verdict,
)
from fastdedup.kernel.operations import Reply as LibraryReply
from fastdedup.kernel.records import Holding, Stored
from fastdedup.kernel.replies import Adopted, TransitionReply
from fastdedup.kernel.terms import Mode, terms
from fastdedup.ledger.forms import LedgerForm
from fastdedup.ledger.ids import CALL_BYTES
from fastdedup.ledger.operations import (
    FOREVER_MS,
    FirstOp,
    ForgetIdOp,
    LedgerPlace,
    LedgerTerms,
    SeenOp,
)

from . import spec, windows, words
from .words import Record, Reply

WINDOW = 200_000
"""A ledger's window: longer than the 256 ticks after which the number of a tick comes again."""
CALL, OTHER = b"cal1", b"cal2"


# From the contract to the library


@cache
def ledger(width: int) -> LedgerTerms:
    """Return what is known of a large ledger, so that its buckets are short."""
    form = LedgerForm(capacity=10_000_000, width=width, window_ms=WINDOW, secret=bytes(16))
    return LedgerTerms(form, "set", FOREVER_MS)


def operation(ask: Any, wire: bytes, width: int = 0) -> Op:
    """Return what the library sends for an operation of the spec. `width`: of a ledger's digests."""
    bucket, digest = b"ledger" + wire + b"last", bytes(width)
    match ask:
        case windows.First():
            return FirstOp(bucket, digest + ask.call + bytes([ask.patience]), ledger(width))
        case windows.Seen():
            return SeenOp(bucket, digest + nonce_of(ask), ledger(width))
        case windows.ForgetId():
            return ForgetIdOp(bucket, digest + nonce_of(ask), ledger(width))
        case windows.ClaimRemembered(claim=claim):
            shared = terms(Mode.CLAIM, claim.lease, claim.keep, claim.watch, True)
            place = LedgerPlace(bucket, digest, ledger(width))
            return ClaimOp(wire, shared, claim.owner, claim.fingerprint, unless=place)
        case windows.CompleteRemembered(settle=settle):
            return SettleOp(
                wire,
                settle.owner,
                settle.fence,
                succeeded=True,
                keep_ms=settle.keep,
                payload=settle.result,
                also=LedgerPlace(bucket, digest, ledger(width)),
            )
        case words.Claim():
            shared = terms(Mode(ask.mode), ask.lease, ask.keep, ask.watch)
            return ClaimOp(wire, shared, ask.owner, ask.fingerprint)
        case words.Settle():
            done = ask.state == words.SUCCEEDED
            return SettleOp(wire, ask.owner, ask.fence, succeeded=done, keep_ms=ask.keep, payload=ask.result)
        case words.Release():
            return ReleaseOp(wire, ask.owner, ask.fence, consumed=ask.consumed)
        case words.Renew():
            return RenewOp(wire, ask.owner, ask.fence, ask.lease, ask.keep)
        case words.Touch():
            return TouchOp(wire, ask.owner, ask.fence, ask.keep)
        case words.Issue():
            return IssueOp(wire, ask.issuer, ask.subject, ask.keep)
        case words.Transition():
            return transition(ask, wire)
        case words.Adopt():
            return AdoptOp(wire, stored(ask), None if ask.base is None else Holding(*ask.base))
        case words.Read():
            return ReadOp(wire)
        case words.Forget():
            return ForgetOp(wire)
    raise TypeError(ask)


def nonce_of(ask: windows.Seen | windows.ForgetId) -> bytes:
    return ask.call and ask.call + b"\0"


def transition(ask: words.Transition, wire: bytes) -> TransitionOp:
    op = TransitionOp(
        wire,
        to=ask.to.decode(),
        initial=ask.initial.decode(),
        sources=frozenset(state.decode() for state in ask.sources),
        version=ask.version,
        change=ask.change,
        keep_ms=ask.keep,
    )
    op.resent = ask.again
    return op


def stored(ask: words.Adopt) -> Stored:
    record = ask.record
    return Stored(
        record.state,
        owner=record.owner,
        fence=record.fence,
        attempt=record.attempt,
        left_ms=ask.left,
        ttl_ms=ask.keep,
        fingerprint=record.fingerprint,
        payload=record.result,
        token=record.token,
    )


def told(ask: Any, reply: Reply, now_us: int) -> LibraryReply:
    """Return the spec's reply to an operation as the library has it: the inverse of `reply_of`."""
    match ask:
        case words.Claim() | windows.ClaimRemembered():
            return verdict(reply)
        case words.Transition():
            return TransitionReply(Code[reply.code], reply.result.decode(), reply.fence)
        case words.Adopt():
            return Adopted(Code[reply.code], reply.owner, reply.former, settled=reply.settled)
        case words.Read() if reply.record is not None:
            record, now_ms = reply.record, spec.clock(now_us).end
            ends = record.expires if record.state == words.MACHINE else record.until
            return stored(words.Adopt(record, ends - now_ms, record.expires - now_ms))
    return Code[reply.code]


def verdict(reply: Reply) -> Verdict:
    made = Verdict(
        Outcome[reply.code],
        fence=reply.fence,
        attempt=reply.attempt,
        left_ms=reply.left,
        payload=reply.result,
        fresh=reply.fresh,
    )
    if made.outcome is Outcome.ACQUIRED and reply.owner:
        made.former = reply.former.to_bytes(7, "big") + reply.owner
    elif made.outcome is not Outcome.ACQUIRED and reply.owner:
        made.present = reply.owner
    return made


# From the library to the contract


def asked(op: Op) -> Any:
    """Return an operation of the library as the spec has it: the inverse of `operation`."""
    match op:
        case FirstOp():
            nonce = op.entry[op.terms.width :]
            return windows.First(nonce[:CALL_BYTES], op.terms.window_ms, nonce[CALL_BYTES])
        case SeenOp():
            return windows.Seen(op.entry[op.terms.width :][:CALL_BYTES])
        case ForgetIdOp():
            return windows.ForgetId(op.entry[op.terms.width :][:CALL_BYTES])
        case ClaimOp():
            return claim(op) if op.unless is None else windows.ClaimRemembered(claim(op))
        case SettleOp(also=LedgerPlace() as place):
            return windows.CompleteRemembered(settle(op), place.terms.window_ms)
        case SettleOp():
            return settle(op)
        case ReleaseOp():
            return words.Release(op.owner, op.fence, op.consumed)
        case RenewOp():
            return words.Renew(op.owner, op.fence, op.lease_ms, op.keep_ms)
        case TouchOp():
            return words.Touch(op.owner, op.fence, op.keep_ms)
        case IssueOp():
            return words.Issue(op.issuer, op.ttl_ms, op.fingerprint)
        case TransitionOp():
            to, initial = op.to.encode(), op.initial.encode()
            sources = frozenset(state.encode() for state in op.sources)
            return words.Transition(op.change, to, sources, initial, op.keep_ms, op.version, op.resent)
        case AdoptOp():
            base = None if op.base is None else (op.base.owner, op.base.fence)
            return words.Adopt(adopted(op.record), op.record.left_ms, op.record.ttl_ms, base)
        case ReadOp():
            return words.Read()
        case ForgetOp():
            return words.Forget()
    raise TypeError(op)


def claim(op: ClaimOp) -> words.Claim:
    each = op.terms
    return words.Claim(op.owner, each.lease_ms, each.keep_ms, op.fingerprint, each.mode.value, each.watch)


def settle(op: SettleOp) -> words.Settle:
    state = words.SUCCEEDED if op.succeeded else words.FAILED
    return words.Settle(op.owner, op.fence, op.keep_ms, state, op.payload)


def adopted(record: Stored) -> Record:
    """Return a record without its times, which an adoption has beside it."""
    return record_of(record, 0)._replace(until=0, expires=0)


def reply_of(answer: Any, now_us: int, wakes: bool) -> Reply:
    """Return a store's answer in the words of the spec."""
    match answer:
        case Verdict():
            former = answer.former
            met = former[7:] if former else getattr(answer, "present", b"")
            return Reply(
                answer.outcome.name,
                answer.fence,
                answer.attempt,
                answer.left_ms,
                answer.payload,
                answer.fresh,
                met if answer.outcome is not Outcome.UNKNOWN else b"",
                int.from_bytes(former[:7], "big"),
                wakes=wakes,
            )
        case TransitionReply():
            return Reply(answer.code.name, answer.version, result=answer.state.encode(), wakes=wakes)
        case Adopted():
            return Reply(
                answer.code.name,
                owner=answer.owner,
                former=answer.fence,
                settled=answer.settled,
                wakes=wakes,
            )
        case Stored():
            return Reply("OK", record=record_of(answer, spec.clock(now_us).end), wakes=wakes)
        case Code():
            return Reply(answer.name, wakes=wakes)
        case UnavailableError():
            return Reply("REFUSED", wakes=wakes)
    raise AssertionError(f"a store answered {answer!r}")


def record_of(found: Stored, now_ms: int) -> Record:
    return Record(
        found.state,
        found.owner,
        found.fence,
        found.attempt,
        0 if found.state == words.MACHINE else found.left_ms + now_ms,  # a machine has no lease
        found.ttl_ms + now_ms,
        found.fingerprint,
        found.payload,
        found.token,
    )
