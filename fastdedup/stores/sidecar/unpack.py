"""Turns the arguments of scripts, which `stores/redis/scripts.py` packs, into operations.

The arguments come from another process. Malformed arguments are refused here, because a script would write them into
a record.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, assert_never

from ...checks import MAX_SECONDS, MOST_REASON
from ...errors import ConfigError
from ...kernel.keyspace import start_beside
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
    TransitionOp,
)
from ...kernel.owners import RANDOM_BYTES
from ...kernel.records import (
    MAX_FENCE,
    Holding,
    Stored,
    is_state,
    read_holding,
    read_proof,
    read_record,
    read_tail,
)
from ...kernel.terms import Mode, terms
from ...kernel.verbs import UNREPEATED, RunForm, Verb
from ...ledger.forms import DENSE_WIDTH, SLOTS, LedgerForm
from ...ledger.ids import MAX_ID, NONCE_BYTES, without_patience
from ...ledger.operations import (
    FOREVER_MS,
    FirstOp,
    ForgetIdOp,
    LedgerOp,
    LedgerTerms,
    RememberedClaimOp,
    RememberedSettleOp,
    SeenOp,
    WeighOp,
)
from .wire import OF_IDS, PATIENT, WHY

Keys = Sequence[bytes]
Args = Sequence[bytes]
Runs = Iterator[tuple[Keys, Args, Args]]
"""The keys of each run, what it shares, and the arguments of its operations."""

_MAX_MS = round(MAX_SECONDS * 1000)
_MAX_WIDTH = 16
"""The most bytes of a digest in a ledger."""
_MAX_ENTRIES = 10_000
"""The bound of numbers of entries in a ledger's bucket."""
_MAX_FORM = 1024
"""The most bytes of a ledger's form."""
_FILLS = 1024
"""The ledgers whose fill is kept."""
_NAMES = rb"[A-Za-z0-9_.:/-]{1,64}:~[A-Za-z0-9_.:/-]{1,64}"
"""A namespace, and a ledger's name in it. Terms are kept by them before it is known whether they are allowed."""
_LEDGER = re.compile(_NAMES)
_BUCKET = re.compile(rb"(%s)\{[A-Za-z0-9_-]{4,7}\}" % _NAMES)
_DENSE_BUCKET = re.compile(rb"(%s)\{[A-P][A-Za-z0-9_-]?\}[A-Za-z0-9_-]{4}" % _NAMES)
_MAX_CELLS = 128
_COUNTS = ("no", "one", "two", "three", "four", "five", "six", "seven")
_MODES = {mode.value.encode(): mode for mode in Mode}


def unpack(verb: Verb, keys: Keys, args: Args) -> list[Op]:
    """Return the operations on these keys.

    Raises:
        ConfigError: the arguments are not those of the verb's script.
    """
    try:
        ids: Args = ()
        reasons: Args = ()
        if verb in UNREPEATED and args[:1] == [WHY]:
            reasons, args = args[1 : 1 + len(keys)], args[1 + len(keys) :]
            if len(reasons) < len(keys):
                raise ValueError("there must be a reason for each key")
        patient = verb is Verb.FIRST and args[:1] == [PATIENT]
        if patient:
            args = args[1:]
        if verb in OF_IDS:
            if len(args) < len(keys):
                raise ValueError("there must be an id for each key")
            args, ids = args[: -len(keys)], args[-len(keys) :]
        ops = list(_READERS[verb](_runs(verb.row.form, keys, args)))
        for op, name in zip(ops, ids, strict=False):  # the lengths are compared below
            _take_id(op, name)
        for op, reason in zip(ops, reasons, strict=False):
            _take_reason(op, reason)
        if verb is Verb.FIRST and not patient:
            _let_hurry(ops)
    except (LookupError, ValueError) as error:
        raise ConfigError(f"FD.RUN {verb}: malformed arguments: {error}") from None
    if len(ops) != len(keys):
        raise ConfigError(f"FD.RUN {verb}: the arguments are for {len(ops)} of {len(keys)} keys")
    return ops


def _let_hurry(ops: Sequence[Any]) -> None:
    """Let no operation wait for another call that may be taken back: its client does not know PENDING."""
    for op in ops:
        op.entry = op.entry[:-NONCE_BYTES] + without_patience(op.entry[-NONCE_BYTES:])


def _take_id(op: Any, id: bytes) -> None:
    """Let an operation know its id; that of a claim is the key."""
    if len(id) > MAX_ID:
        raise ValueError("an id is too long")
    if not isinstance(op, RememberedClaimOp):
        op.id = id
    elif id:
        op.key = id.decode()


def _take_reason(op: Any, reason: bytes) -> None:
    """Let an operation know why it is asked for."""
    text = reason.decode()
    if len(text) > MOST_REASON:
        raise ValueError("a reason is too long")
    op.reason = text


def _claims(runs: Runs) -> Iterator[Op]:
    for run, (lease, keep, mode, watch), tails in runs:
        shared = terms(_MODES[mode], _ms(lease), _both_ms(keep), watch == b"1")
        for wire, tail in zip(run, tails, strict=True):
            if (
                len(tail) == 1 + RANDOM_BYTES and not tail[0]
            ):  # nearly all: only a drawn owner; saves 9 % of a claim
                yield ClaimOp(wire, shared, tail, None)
            else:
                yield ClaimOp(wire, shared, *read_tail(tail))


def _settlings(runs: Runs) -> Iterator[Op]:
    for run, (state, keep), rest in runs:
        if state not in (b"S", b"F"):
            raise ValueError("a state must be S or F")
        keep_ms = _ms(keep)
        for wire, proof, payload in zip(run, rest[::2], rest[1::2], strict=True):
            owner, fence = read_proof(proof)
            yield SettleOp(wire, owner, fence, succeeded=state == b"S", keep_ms=keep_ms, payload=payload)


def _releases(runs: Runs) -> Iterator[Op]:
    for run, (consumed,), proofs in runs:
        if consumed not in (b"0", b"1"):
            raise ValueError("consumed is 0 or 1")
        for wire, proof in zip(run, proofs, strict=True):
            owner, fence = read_proof(proof)
            yield ReleaseOp(wire, owner, fence, consumed=consumed == b"1")


def _renewals(runs: Runs) -> Iterator[Op]:
    for run, (lease, keep), proofs in runs:
        lease_ms, keep_ms = _ms(lease), _both_ms(keep)
        for wire, proof in zip(run, proofs, strict=True):
            owner, fence = read_proof(proof)
            yield RenewOp(wire, owner, fence, lease_ms, keep_ms)


def _issues(runs: Runs) -> Iterator[Op]:
    for run, (ttl,), tails in runs:
        ttl_ms = _ms(ttl)
        for wire, tail in zip(run, tails, strict=True):
            yield IssueOp(wire, *read_tail(tail, token=True), ttl_ms)


def _transitions(runs: Runs) -> Iterator[Op]:
    for (wire,), _, (keep, change, version, to, initial, sources, again) in runs:
        if len(change) != RANDOM_BYTES or not sources.startswith(b"\n") or not sources.endswith(b"\n"):
            raise ValueError("a change must have ten bytes, and sources must stand between line feeds")
        states = [state.decode() for state in (to, initial, *sources[1:-1].split(b"\n"))]
        if not (is_state(to) and is_state(initial)):
            raise ValueError("a state must have 1 to 64 bytes")
        if again not in (b"", b"1"):
            raise ValueError("the mark of a resend must be 1 or empty")
        op = TransitionOp(
            wire,
            to=states[0],
            initial=states[1],
            sources=frozenset(filter(None, states[2:])),
            version=_number(version, 0, MAX_FENCE) if version else None,
            change=change,
            keep_ms=_ms(keep),
        )
        op.resent = again == b"1"
        yield op


def _reads(runs: Runs) -> Iterator[Op]:
    return (ReadOp(wire) for (wire,), _, _ in runs)


def _forgettings(runs: Runs) -> Iterator[Op]:
    return (ForgetOp(wire) for (wire,), _, _ in runs)


def _adoptions(runs: Runs) -> Iterator[Op]:
    for (wire,), _, (keep, left, base, record) in runs:
        stored = _record(record)
        stored.ttl_ms = _both_ms(keep)
        stored.left_ms = _number(left, -_MAX_MS, _MAX_MS)
        yield AdoptOp(wire, stored, _holding(base, stored.state == "M") if base else None)


def _firsts(runs: Runs) -> Iterator[Op]:
    for run, head, entries in runs:
        terms = _terms_of_first(_stem(run[0], head[2]), *head)
        for wire, entry in zip(run, entries, strict=True):
            _check_entry(wire, entry, terms.width, NONCE_BYTES)
            yield FirstOp(wire, entry, terms)


def _looks(runs: Runs) -> Iterator[Op]:
    for run, head, entries in runs:
        terms = _terms_of_look(*head)
        for wire, entry in zip(run, entries, strict=True):
            _check_entry(wire, entry, terms.width, NONCE_BYTES * (len(entry) > terms.width))
            yield SeenOp(wire, entry, terms)


def _remembered_claims(runs: Runs) -> Iterator[Op]:
    for run, (lease, keep, mode, watch, slot, width, until), rest in runs:
        if mode != b"claim":
            raise ValueError("the mode must be claim")
        shared = terms(Mode.CLAIM, _ms(lease), _both_ms(keep), watch == b"1", True)
        ledger = _terms_of_look(slot, width, until)
        for wire, tail, digest in zip(run, rest[::2], rest[1::2], strict=True):
            bucket = _bucket_of(wire)
            _check_entry(bucket, digest, ledger.width)
            owner, fingerprint = read_tail(tail)
            yield RememberedClaimOp(wire, shared, owner, fingerprint, (bucket, digest, ledger))


def _remembered_settlings(runs: Runs) -> Iterator[Op]:
    for run, head, rest in runs:
        stem = _stem(_bucket_of(run[0]), head[2])
        terms, keep_ms = _terms_of_first(stem, *head[:7]), _ms(head[7])
        for wire, proof, payload, entry in zip(run, rest[::3], rest[1::3], rest[2::3], strict=True):
            owner, fence = read_proof(proof)
            place = _bucket_of(wire), entry[: terms.width], terms
            op = RememberedSettleOp(wire, owner, fence, keep_ms=keep_ms, payload=payload, place=place)
            if op.entry != entry:
                raise ValueError("an entry must be a digest, and the nonce of completions")
            yield op


def _removals(runs: Runs) -> Iterator[Op]:
    for run, (slot, width, until), entries in runs:
        terms = _terms_of_look(slot, width, until)
        for wire, entry in zip(run, entries, strict=True):
            named = len(entry) > terms.width
            _check_entry(wire, entry, terms.width, NONCE_BYTES * named)
            yield ForgetIdOp(wire, entry, terms)


def _weighings(runs: Runs) -> Iterator[Op]:
    for (wire,), _, (slot, width) in runs:
        _stem(wire, width)
        yield WeighOp(wire, _terms_of_look(slot, width, b"0"))


def _foundings(runs: Runs) -> Iterator[Op]:
    for (wire,), _, (ttl, former, form, until) in runs:
        if _LEDGER.fullmatch(wire) is None:
            raise ValueError("the key must be a ledger's")
        if len(former) > _MAX_FORM or len(form) > _MAX_FORM or (form and LedgerForm.read(form) is None):
            raise ValueError("a ledger's form is malformed")
        ttl_ms = _number(ttl, 1 if form else 0, 3 * _MAX_MS)
        yield LedgerOp(wire, form, ttl_ms, former, _number(until, 1, FOREVER_MS))


def _reader_of(verb: Verb) -> Callable[[Runs], Iterator[Op]]:
    match verb:
        case Verb.CLAIM:
            return _claims
        case Verb.SETTLE:
            return _settlings
        case Verb.RELEASE:
            return _releases
        case Verb.RENEW:
            return _renewals
        case Verb.ISSUE:
            return _issues
        case Verb.TRANSITION:
            return _transitions
        case Verb.READ:
            return _reads
        case Verb.FORGET:
            return _forgettings
        case Verb.ADOPT:
            return _adoptions
        case Verb.LEDGER:
            return _foundings
        case Verb.FIRST:
            return _firsts
        case Verb.SEEN:
            return _looks
        case Verb.FORGET_ID:
            return _removals
        case Verb.WEIGH:
            return _weighings
        case Verb.CLAIM_REMEMBERED:
            return _remembered_claims
        case Verb.SETTLE_REMEMBERED:
            return _remembered_settlings
        case _:
            assert_never(verb)


_READERS = {verb: _reader_of(verb) for verb in Verb}


def _runs(form: RunForm, keys: Keys, args: Args) -> Runs:
    """Yield for each run its keys, its head without the count, and its arguments."""
    if form.head is None:
        yield from _alone(form.each, keys, args)
        return
    at = start = 0
    while at < len(args):
        count = _number(args[at], 1, len(keys) - start)
        begins = at + 1 + form.head
        ends = begins + count * form.each
        if ends > len(args):
            raise ValueError("a run is longer than its arguments")
        yield keys[start : start + count], args[at + 1 : begins], args[begins:ends]
        at, start = ends, start + count


def _alone(each: int, keys: Keys, args: Args) -> Runs:
    """Yield each operation as a run of its own, without a head."""
    if len(args) != each * len(keys):
        count = f"each key must have {_COUNTS[each]} arguments"
        raise ValueError(count if each else "there must be no arguments")
    for at, wire in enumerate(keys):
        yield (wire,), (), args[each * at : each * at + each]


def _holding(base: bytes, machine: bool) -> Holding:
    """Read the holding that an adoption is based on; for a machine the change takes the owner's place."""
    if not machine:
        return read_proof(base)
    holding = read_holding(base)
    if len(holding.owner) != RANDOM_BYTES:
        raise ValueError("a base of a version and a change")
    return holding


def _record(record: bytes) -> Stored:
    stored = read_record(record, 0)
    if not isinstance(stored, Stored):
        raise ValueError("a record is malformed")
    return stored


def _ms(data: bytes) -> int:
    return _number(data, 1, _MAX_MS)


def _both_ms(data: bytes) -> int:
    """Read how long a claim's record lives: its lease, and its ttl after that."""
    return _number(data, 1, 2 * _MAX_MS)


def _number(data: bytes, least: int, most: int) -> int:
    if len(data) > 17 or not least <= (number := int(data)) <= most:
        raise ValueError("a number is out of bounds")
    return number


# Ledgers

_latest: dict[bytes, LedgerTerms] = {}
"""The latest terms of a ledger, by the beginning of its keys: new ones go on with the same fill."""


@lru_cache(maxsize=4096)
def _terms_of_first(
    stem: bytes,
    slot: bytes,
    keep: bytes,
    width: bytes,
    young: bytes,
    named: bytes,
    most: bytes,
    until: bytes,
) -> LedgerTerms:
    terms = _new_terms(slot, width, until)
    terms.keep_ms = _both_ms(keep)
    terms.young = _number(young, 1, _MAX_CELLS if terms.width == DENSE_WIDTH else _MAX_ENTRIES)
    terms.named, terms.most = (_number(each, 1, _MAX_ENTRIES) for each in (named, most))
    former = _latest.pop(stem, None)
    if former is not None:
        terms.seen_fill = former.seen_fill
    _latest[stem] = terms
    if len(_latest) > _FILLS:
        del _latest[next(iter(_latest))]
    return terms


@lru_cache(maxsize=4096)
def _terms_of_look(slot: bytes, width: bytes, until: bytes, since: bytes = b"0") -> LedgerTerms:
    terms = _new_terms(slot, width, until)
    terms.from_ms = _number(since, 0, FOREVER_MS)
    return terms


def _new_terms(slot: bytes, width: bytes, until: bytes) -> LedgerTerms:
    """Return the terms that every operation on a bucket has; those of `first` have more."""
    slot_us = _number(slot, 1, _MAX_MS * 1000 // SLOTS)
    form = LedgerForm(
        capacity=1,
        width=_number(width, 1, _MAX_WIDTH),
        window_ms=slot_us * SLOTS // 1000,
        secret=b"",
    )
    terms = LedgerTerms(form, "set", _number(until, -FOREVER_MS, FOREVER_MS))
    terms.slot_us = slot_us
    terms.keep_ms = terms.young = terms.named = terms.most = 1
    return terms


def _bucket_of(wire: bytes) -> bytes:
    """Return the key of the bucket that a record's key begins with."""
    start = start_beside(wire)
    if not start:
        raise ValueError("the key must be that of a record beside a ledger's bucket")
    return wire[: wire.index(b"}") + 1]


def _stem(wire: bytes, width: bytes) -> bytes:
    """Return what the keys of a ledger begin with, by the key of one of its buckets."""
    found = (_DENSE_BUCKET if int(width) == DENSE_WIDTH else _BUCKET).fullmatch(wire)
    if found is None:
        raise ValueError("the key must be that of a ledger's bucket")
    return found[1]


def _check_entry(wire: bytes, entry: bytes, width: int, nonce: int = 0) -> None:
    _stem(wire, b"%d" % width)
    if len(entry) != width + nonce:
        raise ValueError("an entry must be as long as the ledger's width says")
