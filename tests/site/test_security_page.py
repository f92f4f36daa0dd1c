"""docs/security.md: what SLOWLOG, MONITOR and keyspace events show, and what none of them shows, on a real server."""

from __future__ import annotations

import asyncio

import pytest
import redis

from fastdedup import Dedup, Outcome, UnavailableError

from ..fixtures import fixture_of
from ..servers import RedisServer
from ..sql_pages.pages import Page

LAST = b"the last command of this test"
SECRETS = {"subject": b"user:ann", "fingerprint": b"body-of-ann"}
SHOWN = {"key": b"order:42", "result": b"card-4711", "error": b"declined-13", "owner": b"worker-7"}


watched = fixture_of(
    RedisServer, "--slowlog-log-slower-than", "0", "--notify-keyspace-events", "KEA", scope="module"
)


def heard(monitor: redis.client.Monitor) -> bytes:
    """Everything up to the line that ends this test's commands."""
    lines: list[bytes] = []
    while not lines or LAST not in lines[-1]:
        line = monitor.connection.read_response()
        lines.append(line if isinstance(line, bytes) else line.encode("utf-8", "surrogateescape"))
    return b"\n".join(lines)


async def test_results_are_shown_and_tokens_and_subjects_are_not(watched: RedisServer) -> None:
    with watched.client() as raw, raw.monitor() as monitor, raw.pubsub() as events:
        events.psubscribe("__key*__:*")
        assert events.get_message(timeout=5.0) is not None
        async with Dedup(watched.url, namespace="shop", known_duplicates=0, timeout=5.0) as dedup:
            claim = await dedup.claim("order:42", owner="worker-7", fingerprint="body-of-ann")
            await claim.complete("card-4711")
            await (await dedup.claim("order:43")).fail("declined-13")
            token = await dedup.tokens.issue(subject="user:ann")
            await (await dedup.tokens.redeem(token, subject="user:ann")).complete()
        slow = b"".join(entry["command"] for entry in raw.slowlog_get(128))
        raw.echo(LAST)
        monitored = heard(monitor)
        told = b""
        while (event := events.get_message(timeout=0.05)) is not None:
            told += event["channel"] + event["data"]
    for value in SHOWN.values():
        assert value in monitored
        assert value in slow
    assert SHOWN["key"] in told
    for secret in (*SECRETS.values(), token.encode()):
        assert secret not in monitored + slow + told
    for value in ("result", "error", "owner"):
        assert SHOWN[value] not in told


async def test_the_page_s_user_may_do_what_a_gate_does(watched: RedisServer) -> None:
    (line,) = Page("security.md").blocks("Who may do what", "text")
    with watched.client() as raw:
        raw.execute_command(*line.split())
        async with Dedup(watched.url, namespace="shop", credentials=lambda: ("shop", "password")) as dedup:
            first = await dedup.claim("order:44")
            again = asyncio.ensure_future(dedup.claim("order:44", wait=5.0))
            await asyncio.sleep(0)
            await first.renew()
            await first.complete("done")
            assert (await again).result == "done"
            token = await dedup.tokens.issue()
            assert (await dedup.tokens.consume(token)) is Outcome.ACQUIRED
            async with dedup.lock("stock:9"), dedup.scoped("sms").claim("7"):
                pass
        async with Dedup(watched.url, namespace="other", credentials=lambda: ("shop", "password")) as dedup:
            with pytest.raises(UnavailableError, match="may not do this"):
                await dedup.claim("order:44")
        raw.acl_deluser("shop")
