"""The commands of operators: FD.GET shows a record, FD.FORGET removes it, FD.LIST finds those that are stuck."""

from __future__ import annotations

from typing import Any, Final, cast

import orjson

from ..limits import MOST_LISTED, MOST_LISTING_MS
from ..verbs import ListOptions, record_facts, records
from ..verbs import forget as forget_record
from .connection import Command, RespConnection
from .frames import encode
from .options import OperatorOptions, check_count, read_into, text_of
from .reply_places import Slot

_GET: Final = frozenset({"NS", "KIND", "DIGEST"})
_FORGET: Final = frozenset({"NS", "KIND", "DIGEST", "REASON"})
_LIST: Final = frozenset({"NS", "KIND", "PREFIX", "STATE", "OLDER", "LIMIT", "WITHIN", "CURSOR", "REASON"})


def get(connection: RespConnection, command: list[bytes]) -> Slot:
    """`FD.GET key [NS n] [KIND k] [DIGEST]`: the reply is the record as JSON, or null."""
    check_count(command, 2)
    options = read_into(OperatorOptions(), command, 2, _GET)
    dedup = connection.namespaces.passing(options.ns)

    async def work() -> bytes:
        key = text_of("the key", command[1])
        record = await dedup.get(key, cast(Any, options.kind or "claim"), digest=options.digest)
        return encode(
            None if record is None else orjson.dumps(record_facts(connection.namespaces, record)),
            connection.resp3,
        )

    return connection.spawn(work, dedup, "get", repeatable=True)


def forget(connection: RespConnection, command: list[bytes]) -> Slot:
    """`FD.FORGET key [NS n] [KIND k] [DIGEST] [REASON text]`: the reply is 1 where there was a record, else 0."""
    check_count(command, 2)
    options = read_into(OperatorOptions(), command, 2, _FORGET)
    dedup = connection.namespaces.passing(options.ns)

    async def work() -> bytes:
        key = text_of("the key", command[1])
        found = await forget_record(
            connection.namespaces,
            dedup,
            key,
            connection.peer,
            kind=cast(Any, options.kind or "claim"),
            digest=options.digest,
            reason=options.reason,
        )
        return encode(int(found))

    return connection.spawn(work, dedup, "forget")


def list_records(connection: RespConnection, command: list[bytes]) -> Slot:
    """`FD.LIST [NS n] [KIND k] [PREFIX p] [STATE s] [OLDER ms] [LIMIT n] [WITHIN ms] [CURSOR c] [REASON text]`.

    The reply is the list as JSON; its `cursor` goes into the next command, and is null at the end.
    """
    options = read_into(OperatorOptions(), command, 1, _LIST)
    dedup = connection.namespaces.passing(options.ns)
    wanted = ListOptions(
        kind=cast(Any, options.kind),
        prefix=options.prefix or "",
        state=options.state,
        older=options.older or 0,
        limit=min(options.limit or 100, MOST_LISTED),
        within=min(options.within or MOST_LISTING_MS, MOST_LISTING_MS),
        cursor=options.cursor,
        reason=options.reason,
    )

    async def work() -> bytes:
        found = await records(connection.namespaces, dedup, wanted, connection.peer)
        return encode(orjson.dumps(found), connection.resp3)

    return connection.spawn(work, dedup, "list", repeatable=True, reads=True)


COMMANDS: dict[bytes, Command] = {b"FD.GET": get, b"FD.FORGET": forget, b"FD.LIST": list_records}
