"""Who makes a key new again is told in the log, each time: `forget` left no line."""

from __future__ import annotations

import json
import os

import pytest

from fastdedup import Dedup

from ..servers import RedisServer
from ..sidecar.running import Sidecar


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
