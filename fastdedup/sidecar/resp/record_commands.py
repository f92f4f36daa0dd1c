"""The commands of administrators: FD.GET shows a record, FD.FORGET removes it."""

from __future__ import annotations

from typing import Final

import orjson

from ..verbs import forget as forget_record
from ..verbs import record_facts
from .connection import Command, RespConnection
from .frames import encode
from .options import check_count, read_options, text_of
from .reply_places import Slot

_OPTIONS: Final = frozenset({"NS"})


def get(connection: RespConnection, command: list[bytes]) -> Slot:
    """`FD.GET key [NS n]`: the reply is the record as JSON, or null."""
    check_count(command, 2)
    dedup = connection.namespaces.passing(read_options(command, 2, _OPTIONS).ns)

    async def work() -> bytes:
        record = await dedup.get(text_of("the key", command[1]))
        return encode(
            None if record is None else orjson.dumps(record_facts(connection.namespaces, record)),
            connection.resp3,
        )

    return connection.spawn(work, dedup, "get", repeatable=True)


def forget(connection: RespConnection, command: list[bytes]) -> Slot:
    """`FD.FORGET key [NS n]`: the reply is 1 where there was a record, else 0."""
    check_count(command, 2)
    dedup = connection.namespaces.passing(read_options(command, 2, _OPTIONS).ns)

    async def work() -> bytes:
        key = text_of("the key", command[1])
        return encode(int(await forget_record(connection.namespaces, dedup, key, connection.transport)))

    return connection.spawn(work, dedup, "forget")


COMMANDS: dict[bytes, Command] = {b"FD.GET": get, b"FD.FORGET": forget}
