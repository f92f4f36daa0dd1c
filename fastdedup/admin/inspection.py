"""The operations of an operator on records: show one, forget one, list a namespace. Claims do not use them."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Any, Final, get_args

from ..checks import Seconds, check_count, check_seconds, shown
from ..core.gate import Gate
from ..errors import ConfigError, InvalidKeyError, UnavailableError
from ..kernel.codes import Code
from ..kernel.keyspace import Keyspace, Kind, found_in
from ..kernel.operations import ForgetOp, ReadOp
from ..model import Listing, Record, RecordKind, State
from ..stores.base import AdminStore, Page, Query
from ..tokens import token_bytes

KINDS: Final[dict[str, Kind]] = {
    "claim": Kind.CLAIM,
    "lock": Kind.LOCK,
    "token": Kind.TOKEN,
    "machine": Kind.MACHINE,
}
"""The kinds of records. An id of a ledger has no record, and the record of a web key is a claim's."""
LISTED: Final = ("claim", "lock", "token")
"""The kinds that a list can show: a machine's record has no owner and no age."""
_MOST_CURSOR: Final = 8192
_PAGE: Final = 512
"""About the number of keys that the store looks at in one step: 0.3 ms, between other clients' commands."""


def wire_of(gate: Gate, key: str, kind: RecordKind = "claim", *, digest: bool = False) -> bytes:
    """Return the store key of a record.

    Args:
        gate: the record's gate.
        key: the claim's or lock's key; the token; the machine's name, "/" and the id.
        kind: the kind of record.
        digest: `key` is "#" and 32 hexadecimal digits, the form of a token or a long key in a list.

    Raises:
        InvalidKeyError: no such record can have this key.
        ConfigError: there is no such kind.
    """
    return _wire_of(gate.keyspace(_kind(kind)), key, kind, digest=digest)


def wire_of_key(namespace: str, key: str, kind: RecordKind, *, digest: bool) -> bytes:
    """Return the store key of a record in a namespace without a gate. Errors: see `wire_of`."""
    return _wire_of(Keyspace(namespace, _kind(kind)), key, kind, digest=digest)


def _wire_of(keyspace: Keyspace, key: str, kind: RecordKind, *, digest: bool) -> bytes:
    if digest:
        if not isinstance(key, str):
            raise InvalidKeyError(f"a digest must be text, got {type(key).__name__}")
        return keyspace.wire_of_digest(key)
    return keyspace.wire_digest(token_bytes(key)) if kind == "token" else keyspace.wire(key)


async def read(gate: Gate, key: str, kind: RecordKind, *, digest: bool) -> Record | None:
    """Return a record, or None if there is none. Errors: see `Dedup.get`."""
    wire = wire_of(gate, key, kind, digest=digest)
    reply = await gate.run(ReadOp(wire))
    return None if reply == Code.ABSENT else gate.record(_shown(wire, key, kind), reply, kind)


def _shown(wire: bytes, key: str, kind: RecordKind) -> str:
    """Return the key in the form that may be shown: for a token, which is a secret, its digest."""
    return "#" + wire[-16:].hex() if kind == "token" else key


async def forget(
    gate: Gate,
    key: str,
    kind: RecordKind,
    *,
    digest: bool,
    reason: str,
    heard: Callable[[str, bool | None], None],
) -> bool:
    """Remove a record, and report the key and the result to `heard`. Errors: see `Dedup.forget`."""
    wire = wire_of(gate, key, kind, digest=digest)
    name = _shown(wire, key, kind)
    op, found = ForgetOp(wire, reason), None
    try:
        found = await gate.run(op) == Code.OK
    finally:
        gate.forgot(op)  # also if the answer is lost, because the removal may have taken effect
        heard(name, found)
    return found


async def listing(
    gate: Gate,
    *,
    kind: RecordKind | None,
    prefix: str,
    state: State | None,
    older: Seconds,
    limit: int,
    within: Seconds,
    cursor: str | None,
    reason: str,
) -> Listing:
    """Return some of the records, within a budget. See `Dedup.records`."""
    query = _query(gate, kind, prefix, reason)
    least, ends = check_seconds(older, "older", least=0.0), monotonic() + check_seconds(within, "within")
    check_count(limit, "limit")
    if cursor is not None and not (isinstance(cursor, str) and len(cursor) <= _MOST_CURSOR):
        given = f"{len(cursor)} characters" if isinstance(cursor, str) else shown(cursor)
        raise ConfigError(f"cursor must be the text that an earlier list returned, got {given}")
    gate.connection.running_engine()  # raises if it is not open
    store: Any = gate.connection.store
    if not isinstance(store, AdminStore):
        raise ConfigError(
            f"this store cannot list its records: {type(store).__name__} needs page() and eviction_policy(), see "
            "fastdedup.stores.base.AdminStore"
        )
    records: list[Record] = []
    looked_at, after = 0, cursor or ""
    while True:
        try:
            page = await store.page(query, after, _PAGE)
        except UnavailableError:
            if not records:
                raise
            break  # the cursor is the place to go on from
        after = page.cursor
        looked_at += page.seen
        records += [
            record
            for record in _records_of(gate, query, page)
            if (state is None or record.state is state) and (record.age or 0.0) >= least
        ]
        if not after or len(records) >= limit or monotonic() >= ends:
            break
    return Listing(records, after or None, looked_at)


def state_of(name: Any) -> State:
    """Return the state with a name.

    Raises:
        ConfigError: there is no such state.
    """
    try:
        return State(name)
    except ValueError:
        raise ConfigError(
            f"state must be one of {', '.join(state.value for state in State)}, got {shown(name)}"
        ) from None


def _query(gate: Gate, kind: RecordKind | None, prefix: str, reason: str) -> Query:
    if kind is not None and kind not in LISTED:
        raise ConfigError(
            f"kind must be one of {', '.join(LISTED)}, or None for all of these, got {shown(kind)}"
        )
    try:
        if not isinstance(prefix, str) or len(prefix.encode()) > 1024:
            raise InvalidKeyError("prefix must be text of at most 1024 bytes, with which a key begins")
    except UnicodeEncodeError as error:
        raise InvalidKeyError(f"prefix must be text that UTF-8 can encode: {error.reason}") from None
    names = LISTED if kind is None else (kind,)
    return Query(gate.settings.namespace, tuple(KINDS[name] for name in names), prefix, reason)


def _records_of(gate: Gate, query: Query, page: Page) -> list[Record]:
    records = []
    for wire, stored in page.found:
        found = found_in(wire, query.namespace, query.kinds, query.prefix)
        if found is not None and stored.state != "M":
            kind: Any = found.kind.name.lower()
            records.append(gate.record(found.key, stored, kind, page.now_us))
    return records


def _kind(kind: Any) -> Kind:
    if not isinstance(kind, str) or kind not in KINDS:
        raise ConfigError(f"kind must be one of {', '.join(get_args(RecordKind))}, got {shown(kind)}")
    return KINDS[kind]
