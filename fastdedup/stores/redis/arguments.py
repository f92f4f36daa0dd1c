"""The arguments of the verbs' scripts, a row of fields each: by it a store packs them, and a sidecar reads them back.

The headers in `lua/` name the same fields.
"""

from __future__ import annotations

from functools import partial
from operator import attrgetter
from typing import Final

from ...kernel.operations import (
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
)
from ...kernel.owners import RANDOM_BYTES
from ...kernel.records import (
    MAX_FENCE,
    Holding,
    Stored,
    encode,
    holding_bytes,
    is_state,
    read_holding,
    read_proof,
    read_record,
    read_tail,
    tail_of,
)
from ...kernel.terms import Terms, terms
from ...kernel.verbs import Verb
from .argument_types import (
    HOLDING,
    MAX_MS,
    PAYLOAD,
    TAIL,
    TERMS,
    Argument,
    Arguments,
    between,
    both_millis,
    either,
    millis,
    number,
    plain,
)
from .ledger_arguments import LEDGER_ARGUMENTS

_OF_CHANGES: Final = "a change must have ten bytes, and sources must stand between line feeds"


# Types of arguments


def _change(data: bytes) -> bytes:
    if len(data) != RANDOM_BYTES:
        raise ValueError(_OF_CHANGES)
    return data


def _state(data: bytes) -> str:
    text = data.decode()
    if not is_state(data):
        raise ValueError("a state must have 1 to 64 bytes")
    return text


def _sources(data: bytes) -> frozenset[str]:
    if not data.startswith(b"\n") or not data.endswith(b"\n"):
        raise ValueError(_OF_CHANGES)
    return frozenset(filter(None, [state.decode() for state in data[1:-1].split(b"\n")]))


def _record(data: bytes) -> Stored:
    stored = read_record(data, 0)
    if not isinstance(stored, Stored):
        raise ValueError("a record is malformed")
    return stored


# Makers of operations


def _claim(shared: Terms, wire: bytes, tail: tuple[bytes, bytes | None]) -> Op:
    return ClaimOp(wire, shared, *tail)


def _settle(succeeded: bool, keep_ms: int, wire: bytes, holding: Holding, payload: bytes) -> Op:
    return SettleOp(wire, *holding, succeeded=succeeded, keep_ms=keep_ms, payload=payload)


def _transition(
    wire: bytes,
    keep_ms: int,
    change: bytes,
    version: int | None,
    to: str,
    initial: str,
    sources: frozenset[str],
    resent: bool,
) -> Op:
    op = TransitionOp(
        wire, to=to, initial=initial, sources=sources, version=version, change=change, keep_ms=keep_ms
    )
    op.resent = resent
    return op


def _adoption(wire: bytes, ttl_ms: int, left_ms: int, base: bytes, record: Stored) -> Op:
    record.ttl_ms, record.left_ms = ttl_ms, left_ms
    if record.state != "M" or not base:
        return AdoptOp(wire, record, read_proof(base) if base else None)
    holding = read_holding(base)
    if len(holding.owner) != RANDOM_BYTES:
        raise ValueError("a base of a version and a change")
    return AdoptOp(wire, record, holding)


ARGUMENTS: Final = LEDGER_ARGUMENTS | {
    Verb.CLAIM: Arguments(
        _claim,
        TAIL,
        shared=TERMS,
        by=attrgetter("terms"),
        share=lambda _, lease_ms, keep_ms, mode, watch: (terms(mode, lease_ms, keep_ms, watch),),
    ),
    Verb.SETTLE: Arguments(
        _settle,
        HOLDING,
        PAYLOAD,
        shared=(
            Argument(
                lambda op: "S" if op.succeeded else "F",
                either(b"S", b"F", "a state must be S or F"),
            ),
            plain("keep_ms", millis),
        ),
        by=attrgetter("succeeded", "keep_ms"),
    ),
    Verb.RELEASE: Arguments(
        lambda consumed, wire, holding: ReleaseOp(wire, *holding, consumed=consumed),
        HOLDING,
        shared=(Argument(lambda op: int(op.consumed), either(b"1", b"0", "consumed is 0 or 1")),),
        by=attrgetter("consumed"),
    ),
    Verb.RENEW: Arguments(
        lambda lease_ms, keep_ms, wire, holding: RenewOp(
            wire, holding.owner, holding.fence, lease_ms, keep_ms
        ),
        HOLDING,
        shared=(plain("lease_ms", millis), plain("keep_ms", both_millis)),
        by=attrgetter("lease_ms", "keep_ms"),
    ),
    Verb.TOUCH: Arguments(
        lambda keep_ms, wire, holding: TouchOp(wire, holding.owner, holding.fence, keep_ms),
        HOLDING,
        shared=(plain("keep_ms", millis),),
        by=attrgetter("keep_ms"),
    ),
    Verb.ISSUE: Arguments(
        lambda ttl_ms, wire, tail: IssueOp(wire, tail[0], tail[1], ttl_ms),
        Argument(lambda op: tail_of(op.issuer, op.fingerprint, token=True), partial(read_tail, token=True)),
        shared=(plain("ttl_ms", millis),),
        by=attrgetter("ttl_ms"),
    ),
    Verb.TRANSITION: Arguments(
        _transition,
        plain("keep_ms", millis),
        plain("change", _change),
        Argument(
            lambda op: "" if op.version is None else op.version,
            lambda data: number(data, 0, MAX_FENCE) if data else None,
        ),
        plain("to", _state),
        plain("initial", _state),
        Argument(lambda op: "\n" + "".join(f"{state}\n" for state in sorted(op.sources)), _sources),
        Argument(
            lambda op: "1" if op.resent else "",
            either(b"1", b"", "the mark of a resend must be 1 or empty"),
        ),
    ),
    Verb.READ: Arguments(ReadOp),
    Verb.FORGET: Arguments(ForgetOp),
    Verb.ADOPT: Arguments(
        _adoption,
        Argument(lambda op: max(op.record.ttl_ms, 1), both_millis),
        # The deadline of a released key or a machine is 0, so its distance from now is out of bounds.
        Argument(lambda op: max(op.record.left_ms, -MAX_MS), between(-MAX_MS, MAX_MS)),
        Argument(lambda op: b"" if op.base is None else holding_bytes(op.base.owner, op.base.fence), bytes),
        Argument(lambda op: encode(op.record), _record),
    ),
}
"""The arguments of each verb's script."""
