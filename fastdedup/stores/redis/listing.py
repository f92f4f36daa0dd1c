"""A page of a server's records: SCAN, then the head of each record that fits, in two round trips."""

from __future__ import annotations

from typing import Any

import hiredis

from ...errors import ConfigError
from ...kernel.keyspace import found_in, pattern_of
from ...kernel.records import LONGEST_HEAD, Stored, read_record
from ..base import Page, Query, without_result
from .connection import RedisConnection
from .scripts import pack

_MOST = 2**64 - 1
_DIGITS = len(str(_MOST))


async def read_page(connection: RedisConnection, query: Query, cursor: str, count: int) -> Page:
    """Return a page of the records that this server holds; see `AdminStore`.

    Raises:
        Exception: an error of the connection or of the server, for `translate`.
        ConfigError: the cursor is not a number.
    """
    if cursor and not (
        len(cursor) <= _DIGITS and cursor.isascii() and cursor.isdigit() and int(cursor) <= _MOST
    ):
        raise ConfigError("the cursor is not one of this store: begin without one")
    pattern = pattern_of(query.namespace, query.kinds, query.prefix)
    reply = answered(await connection.send(pack("SCAN", cursor or "0", "MATCH", pattern, "COUNT", count)))
    following, wires = reply
    fitting = [wire for wire in wires if found_in(wire, query.namespace, query.kinds, query.prefix)]
    commands = [pack("TIME")]
    for wire in fitting:
        commands += [pack("GETRANGE", wire, 0, LONGEST_HEAD - 1), pack("PTTL", wire)]
    replies = await connection.send_many(b"".join(commands), len(commands))
    seconds, micros = answered(replies[0])
    now_us = int(seconds) * 1_000_000 + int(micros)
    found = []
    for wire, head, ttl_ms in zip(fitting, replies[1::2], replies[2::2], strict=True):
        # An error means a list, a hash, or a key that has moved to another node: it is not a record here.
        if type(head) is bytes and type(ttl_ms) is int:
            record = read_record(head, -(-now_us // 1000), ttl_ms)
            if isinstance(record, Stored):
                found.append((wire, without_result(record)))
    return Page(found, "" if following == b"0" else following.decode(), count, now_us)


def answered(reply: Any) -> Any:
    """Return the reply; if it is an error, raise it."""
    if isinstance(reply, hiredis.ReplyError):
        raise reply
    return reply
