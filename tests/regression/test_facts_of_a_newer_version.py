"""An older command line ended in a TypeError at a record with a fact that it did not know, from a newer sidecar."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from fastdedup import Dedup
from fastdedup.sidecar import client as asking
from fastdedup.stores.redis.connection import RedisConnection
from fastdedup.web.response import Response, ResponseCodec

from ..sidecar.running import Sidecar

ALL: dict[str, Any] = {
    **dict.fromkeys(("kind", "state", "cursor", "reason")),
    "prefix": "",
    "older": 0.0,
    "limit": 10,
    "within": 5.0,
}
"""Options that list the records of a namespace."""


def test_unknown_facts_of_a_record_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one record and of a list; a fact that an older sidecar does not tell is missing as well."""
    ask = asking._ask

    def newer(*words: Any) -> bytes:
        found = orjson.loads(ask(*words))
        for record in found.get("records", [found]):
            record["colour"] = "red"
            del record["trace"]
        return orjson.dumps(found)

    with Sidecar() as sidecar, sidecar.client() as client:
        client.execute_command("FD.CLAIM", "k", "OWNER", "ours")
        monkeypatch.setattr(asking, "_ask", newer)
        shown = asking.get_record(sidecar.path, "k", None)
        listed = asking.list_records(sidecar.path, None, **ALL)
    assert shown is not None
    assert (shown.key, shown.owner, shown.trace) == ("k", "ours", None)
    assert [record.key for record in listed.records] == ["k"]


async def test_a_page_of_records_may_say_more(monkeypatch: pytest.MonkeyPatch) -> None:
    send = RedisConnection.send

    async def newer(self: RedisConnection, packed: bytes) -> Any:
        reply = await send(self, packed)
        return [*reply, b"more"] if b"FD.PAGE" in packed else reply

    monkeypatch.setattr(RedisConnection, "send", newer)
    with Sidecar("--allow-stores") as sidecar:
        async with Dedup(f"sidecar://{sidecar.path}") as dedup:
            await dedup.claim("k")
            assert [record.key for record in (await dedup.records()).records] == ["k"]


def test_a_stored_response_may_say_more() -> None:
    codec = ResponseCodec()
    head, _, body = codec.dumps(Response(200, [], b"body", True, b"", "OK")).partition(b"\n")
    newer = orjson.dumps([*orjson.loads(head), "more"]) + b"\n" + body
    assert codec.loads(newer) == codec.loads(head + b"\n" + body)
