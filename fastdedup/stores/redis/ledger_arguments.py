"""The arguments of the ledgers' scripts, and of those for claims whose success a ledger remembers."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from operator import attrgetter
from typing import Any, Final

from ...checks import NAME
from ...kernel.keyspace import start_beside
from ...kernel.operations import ClaimOp, Op, SettleOp
from ...kernel.records import Holding
from ...kernel.terms import Mode, Terms, terms
from ...kernel.verbs import Verb
from ...ledger.forms import DENSE_WIDTH, SLOTS, LedgerForm
from ...ledger.ids import NONCE_BYTES
from ...ledger.operations import (
    FOREVER_MS,
    FirstOp,
    ForgetIdOp,
    IdOp,
    LedgerOp,
    LedgerPlace,
    LedgerTerms,
    SeenOp,
    WeighOp,
)
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
    millis,
    plain,
)

_MAX_WIDTH: Final = 16
"""The most bytes of a digest in a ledger."""
_MAX_ENTRIES: Final = 10_000
"""The bound of numbers of entries in a ledger's bucket."""
_MAX_CELLS: Final = 128
_MAX_FORM: Final = 1024
"""The most bytes of a ledger's form."""
_FILLS: Final = 1024
"""The ledgers whose fill is kept."""
_NAMES: Final = f"{NAME}:~{NAME}".encode()
"""A namespace, and a ledger's name in it. Terms are kept by them before it is known whether they are allowed."""
_LEDGER: Final = re.compile(_NAMES)
_BUCKET: Final = re.compile(rb"(%s)\{[A-Za-z0-9_-]{4,7}\}" % _NAMES)
_DENSE_BUCKET: Final = re.compile(rb"(%s)\{[A-P][A-Za-z0-9_-]?\}[A-Za-z0-9_-]{4}" % _NAMES)
_entries: Final = between(1, _MAX_ENTRIES)
_until: Final = between(-FOREVER_MS, FOREVER_MS)
_ENTRY: Final = plain("entry")


def _form(data: bytes) -> bytes:
    if len(data) > _MAX_FORM:
        raise ValueError("a ledger's form is malformed")
    return data


def _claim_mode(data: bytes) -> Mode:
    if data != b"claim":
        raise ValueError("the mode must be claim")
    return Mode.CLAIM


def _bucket(of: str, *names: str) -> list[Argument]:
    """Return arguments that say what operations on a bucket share, which they know by the name `of`."""
    reads = {
        "slot_us": between(1, MAX_MS * 1000 // SLOTS),
        "keep_ms": both_millis,
        "width": between(1, _MAX_WIDTH),
        "until_ms": _until,
        "from_ms": between(0, FOREVER_MS),
    }
    return [plain(f"{of}.{name}", reads.get(name, _entries)) for name in names]


_LOOKS: Final = ("slot_us", "width", "until_ms")
_WRITES: Final = ("slot_us", "keep_ms", "width", "young", "named", "most", "until_ms")


# Makers of operations


def _founding(wire: bytes, ttl_ms: int, former: bytes, form: bytes, until_ms: int) -> Op:
    if _LEDGER.fullmatch(wire) is None:
        raise ValueError("the key must be a ledger's")
    if form and LedgerForm.read(form) is None:
        raise ValueError("a ledger's form is malformed")
    if form and not ttl_ms:
        raise ValueError("a number is out of bounds")
    return LedgerOp(wire, form, ttl_ms, former, until_ms)


def _on_id(kind: type[IdOp], terms: LedgerTerms, wire: bytes, entry: bytes) -> Op:
    """Return an operation on an id: to remember it, the entry must have a nonce."""
    named = kind is FirstOp or len(entry) > terms.width
    _check_entry(wire, entry, terms.width, NONCE_BYTES * named)
    return kind(wire, entry, terms)


def _weighing(wire: bytes, slot_us: int, width: int) -> Op:
    _stem(wire, width)
    return WeighOp(wire, _terms_of_look(slot_us, width, 0))


def _remembered_claim(
    shared: Terms, ledger: LedgerTerms, wire: bytes, tail: tuple[bytes, bytes | None], digest: bytes
) -> Op:
    bucket = _bucket_of(wire)
    _check_entry(bucket, digest, ledger.width)
    return ClaimOp(wire, shared, *tail, LedgerPlace(bucket, digest, ledger))


def _remembered_settle(
    terms: LedgerTerms, keep_ms: int, wire: bytes, holding: Holding, payload: bytes, entry: bytes
) -> Op:
    place = LedgerPlace(_bucket_of(wire), entry[: terms.width], terms)
    op = SettleOp(wire, *holding, succeeded=True, keep_ms=keep_ms, payload=payload, also=place)
    if place.entry != entry:
        raise ValueError("an entry must be a digest, and the nonce of completions")
    return op


# What operations on a ledger share

_latest: dict[bytes, LedgerTerms] = {}
"""The latest terms of a ledger, by the beginning of its keys: new ones go on with the same fill."""


@lru_cache(maxsize=4096)
def _terms_of_first(
    stem: bytes, slot_us: int, keep_ms: int, width: int, young: int, named: int, most: int, until_ms: int
) -> LedgerTerms:
    if width == DENSE_WIDTH and young > _MAX_CELLS:
        raise ValueError("a number is out of bounds")
    terms = _new_terms(slot_us, width, until_ms)
    terms.keep_ms, terms.young, terms.named, terms.most = keep_ms, young, named, most
    former = _latest.pop(stem, None)
    if former is not None:
        terms.seen_fill = former.seen_fill
    _latest[stem] = terms
    if len(_latest) > _FILLS:
        del _latest[next(iter(_latest))]
    return terms


@lru_cache(maxsize=4096)
def _terms_of_look(slot_us: int, width: int, until_ms: int, from_ms: int = 0) -> LedgerTerms:
    terms = _new_terms(slot_us, width, until_ms)
    terms.from_ms = from_ms
    return terms


def _new_terms(slot_us: int, width: int, until_ms: int) -> LedgerTerms:
    """Return the terms that every operation on a bucket has; those of `first` have more."""
    form = LedgerForm(capacity=1, width=width, window_ms=slot_us * SLOTS // 1000, secret=b"")
    terms = LedgerTerms(form, "set", until_ms)
    terms.slot_us = slot_us
    terms.keep_ms = terms.young = terms.named = terms.most = 1
    return terms


def _share_first(key: bytes, slot_us: int, keep_ms: int, width: int, *more: int) -> Sequence[LedgerTerms]:
    return (_terms_of_first(_stem(key, width), slot_us, keep_ms, width, *more),)


def _share_remembered_claim(
    _: bytes, lease_ms: int, keep_ms: int, mode: Mode, watch: bool, *ledger: int
) -> Sequence[Terms | LedgerTerms]:
    return terms(mode, lease_ms, keep_ms, watch, True), _terms_of_look(*ledger)


def _bucket_of(wire: bytes) -> bytes:
    """Return the key of the bucket that a record's key begins with."""
    if not start_beside(wire):
        raise ValueError("the key must be that of a record beside a ledger's bucket")
    return wire[: wire.index(b"}") + 1]


def _stem(wire: bytes, width: int) -> bytes:
    """Return what the keys of a ledger begin with, by the key of one of its buckets."""
    found = (_DENSE_BUCKET if width == DENSE_WIDTH else _BUCKET).fullmatch(wire)
    if found is None:
        raise ValueError("the key must be that of a ledger's bucket")
    return found[1]


def _check_entry(wire: bytes, entry: bytes, width: int, nonce: int = 0) -> None:
    _stem(wire, width)
    if len(entry) != width + nonce:
        raise ValueError("an entry must be as long as the ledger's width says")


LEDGER_ARGUMENTS: Final = {
    Verb.LEDGER: Arguments(
        _founding,
        plain("ttl_ms", between(0, 3 * MAX_MS)),
        plain("former", _form),
        plain("form", _form),
        plain("until_ms", between(1, FOREVER_MS)),
    ),
    Verb.FIRST: Arguments(
        partial(_on_id, FirstOp),
        _ENTRY,
        shared=_bucket("terms", *_WRITES),
        by=attrgetter("terms"),
        share=_share_first,
    ),
    Verb.SEEN: Arguments(
        partial(_on_id, SeenOp),
        _ENTRY,
        shared=_bucket("terms", *_LOOKS, "from_ms"),
        by=attrgetter("terms"),
        share=lambda _, *values: (_terms_of_look(*values),),
    ),
    Verb.FORGET_ID: Arguments(
        partial(_on_id, ForgetIdOp),
        _ENTRY,
        shared=[*_bucket("terms", "slot_us", "width"), plain("until_ms", _until)],
        by=attrgetter("terms", "until_ms"),
        share=lambda _, *values: (_terms_of_look(*values),),
    ),
    Verb.WEIGH: Arguments(_weighing, *_bucket("terms", "slot_us", "width")),
}
"""The arguments of the verbs on ledgers."""


def _unless(mode: Callable[[Any], str]) -> Arguments:
    """Return the arguments of claims with a ledger; `mode` returns the name of their mode."""
    return Arguments(
        _remembered_claim,
        TAIL,
        plain("unless.digest"),
        shared=[*TERMS[:2], Argument(mode, _claim_mode), TERMS[3], *_bucket("unless.terms", *_LOOKS)],
        by=attrgetter("terms", "unless.terms"),
        share=_share_remembered_claim,
    )


def _also(*heads: Argument, tails: Sequence[Argument] = ()) -> Arguments:
    """Return the arguments of completions with a ledger; `heads` and `tails` stand around what a run says of it."""
    return Arguments(
        _remembered_settle,
        HOLDING,
        PAYLOAD,
        plain("also.entry"),
        shared=[*heads, *_bucket("also.terms", *_WRITES), *tails],
        by=attrgetter("also.terms", "keep_ms"),
        share=lambda key, *values: (*_share_first(_bucket_of(key), *values[:-1]), values[-1]),
    )


UNLESS: Final = _unless(lambda op: "unless")
"""The arguments of a run of `claim.lua` whose keys are claimed unless a ledger knows their ids."""
ALSO: Final = _also(Argument(lambda op: "also", bytes), plain("keep_ms", millis))
"""The arguments of a run of `settle.lua` whose ids a ledger also remembers."""
CLAIM_REMEMBERED: Final = _unless(attrgetter("terms.mode"))
SETTLE_REMEMBERED: Final = _also(tails=[plain("keep_ms", millis)])
"""The arguments of the same operations between a store and a sidecar. Version 0.1.0 has the same."""
