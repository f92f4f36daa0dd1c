"""Records as the log, a list and an older command line show them."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

import orjson
import pytest

from fastdedup import Dedup
from fastdedup.sidecar import client as asking
from fastdedup.stores.redis.connection import RedisConnection
from fastdedup.sync import Dedup as SyncDedup
from fastdedup.web.response import Response, ResponseCodec

from ..programs import ended
from ..servers import RedisServer
from ..sidecar.running import Sidecar

# The log's line on a forgotten record showed a digest by which nobody found the record that a list had
# shown.


LONG = "order:" + "7" * 60


async def test_a_forgotten_digest_is_the_listed_one(server: RedisServer) -> None:
    """However the client has named the record, and whoever forgets it; a readable key stays hidden."""
    with (
        Sidecar("--url", server.url, "--allow-stores", "--log-format", "json") as sidecar,
        sidecar.client() as ask,
        sidecar.http() as http,
    ):
        async with Dedup(f"sidecar://{sidecar.path}", timeout=5) as dedup:
            await dedup.claim("short")
            await dedup.claim(LONG)
            token = await dedup.tokens.issue()
            listed = {
                record.kind: record.key for record in (await dedup.records()).records if record.key[0] == "#"
            }
            ask.execute_command("FD.FORGET", LONG)
            http.delete(f"/v1/records?key={LONG}")
            await dedup.forget(LONG)
            digest = listed["token"]
            ask.execute_command("FD.FORGET", token, "KIND", "token")
            ask.execute_command("FD.FORGET", digest[1:].upper(), "KIND", "token", "DIGEST")
            ask.execute_command("FD.FORGET", "short")
        told = [json.loads(line) for line in sidecar.log.splitlines()]
    keys = [line["key"] for line in told if line["event"] == "a key was forgotten"]
    assert keys[:5] == [listed["claim"]] * 3 + [digest] * 2
    assert len(keys[5]) < 20, "a digest with a secret: a short key could be guessed"
    assert "short" not in keys[5]


# Who makes a key new again is told in the log, each time: `forget` left no line.


def lines(sidecar: Sidecar) -> list[dict[str, object]]:
    told = [json.loads(line) for line in sidecar.log.splitlines()]
    return [line for line in told if line["event"] == "a key was forgotten"]


async def test_every_way_to_forget_a_key_is_logged(server: RedisServer) -> None:
    with (
        Sidecar("--url", server.url, "--allow-stores", "--log-format", "json", "--log-keys") as sidecar,
        sidecar.client() as ask,
        sidecar.http() as http,
    ):
        async with Dedup(f"sidecar://{sidecar.path}", namespace="lib", timeout=5) as dedup:
            for key in ("a", "b", "c"):
                ask.execute_command("FD.CLAIM", key)
            await dedup.claim("c")
            ask.execute_command("FD.FORGET", "a")
            http.delete("/v1/records?key=b")
            await dedup.forget("c")
            ask.execute_command("FD.FORGET", "none")
        told = lines(sidecar)
    assert [(line["namespace"], line["key"], line["result"]) for line in told] == [
        ("fastdedup", "a", "forgotten"),
        ("fastdedup", "b", "forgotten"),
        ("lib", "c", "forgotten"),
        ("fastdedup", "none", "absent"),
    ]
    assert {(line["pid"], line["uid"]) for line in told} == {(os.getpid(), os.getuid())}


def test_no_line_is_left_out_and_no_key_is_shown(server: RedisServer) -> None:
    with Sidecar("--url", server.url, "--log-format", "json") as sidecar, sidecar.client() as ask:
        pipeline = ask.pipeline(transaction=False)
        for number in range(100):
            pipeline.execute_command("FD.FORGET", f"secret-{number}")
        pipeline.execute()
        assert len(lines(sidecar)) == 100
        assert "secret" not in sidecar.log


def test_a_forgetting_without_an_answer_is_logged() -> None:
    server = RedisServer().start()
    with (
        Sidecar("--url", server.url, "--log-format", "json", "--timeout", "0.5") as sidecar,
        sidecar.client() as ask,
    ):
        ask.execute_command("FD.CLAIM", "k")
        server.stop()
        with pytest.raises(Exception, match="UNAVAILABLE"):
            ask.execute_command("FD.FORGET", "k")
        assert [line["result"] for line in lines(sidecar)] == ["unknown"]


# An older command line ended in a TypeError at a record with a fact that it did not know, from a newer
# sidecar.


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


# Fault: `list` ended in a traceback on a key that stdout could not take; an outage was printed twice.


def printed(*arguments: str) -> subprocess.CompletedProcess[str]:
    ascii_only = os.environ | {"PYTHONIOENCODING": "ascii"}
    return ended("-m", "fastdedup", *arguments, environment=ascii_only, timeout=60)  # type: ignore[no-any-return]


def test_a_key_that_is_not_ascii_is_escaped(redis_url: str) -> None:
    with SyncDedup(redis_url) as dedup:
        dedup.claim("commande-\N{LATIN SMALL LETTER E WITH ACUTE}")
    shown = printed("list", "--url", redis_url, "--prefix", "commande")
    assert shown.returncode == 0, shown.stderr
    assert "commande-\\xe9" in shown.stdout


def test_an_outage_is_printed_once() -> None:
    shown = printed("list", "--url", "redis://127.0.0.1:1/0")
    assert shown.returncode == 3
    assert shown.stderr.count("Connection refused") == 1
