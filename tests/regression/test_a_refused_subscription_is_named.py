"""A waiter that may not subscribe logged the rights that a user needs without SUBSCRIBE, the missing one.

Behind a sidecar its line said that the store does not answer, though it did, and the sidecar's log said nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fastdedup import Dedup
from fastdedup.stores.redis.errors import FORBIDDEN

from ..servers import RedisServer
from ..sidecar.running import Sidecar
from .test_waiters_whose_subscription_is_lost import USER, waiter_of

LINE = "tells of no freed keys, so waiters look"


@pytest.fixture
def refusing(server: RedisServer) -> Iterator[str]:
    """The URL of a login that may do all but subscribe."""
    with server.client() as raw:
        raw.execute_command("ACL", "SETUSER", "app", *USER, "-subscribe")
        yield server.url.replace("://", "://app:pw@")
        raw.execute_command("ACL", "DELUSER", "app")


async def line_of(url: str, key: str, wait_until: Callable[..., Any], caplog: Any, server: Any) -> str:
    """Let a waiter wait until the log says that it is told of nothing; return that line."""
    async with Dedup(server.url, namespace="t") as owners, Dedup(url, namespace="t") as gate:
        held = await owners.claim(key, lease=60.0)
        waiter = await waiter_of(gate, key, wait_until)
        await wait_until(lambda: LINE in caplog.text, description="a line says so")
        await held.complete("done")
        assert (await waiter).result == "done"
    return next(each.getMessage() for each in caplog.records if LINE in each.getMessage())


async def test_the_line_names_the_missing_right(
    server: RedisServer, refusing: str, wait_until: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    line = await line_of(refusing, "direct", wait_until, caplog, server)
    assert FORBIDDEN in line
    assert "SUBSCRIBE on the channel fastdedup:settled" in line


async def test_behind_a_sidecar_its_log_names_it(
    server: RedisServer, refusing: str, wait_until: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    with Sidecar("--url", refusing, "--allow-stores") as sidecar:
        line = await line_of(f"sidecar://{sidecar.path}", "behind", wait_until, caplog, server)
        assert "its store tells it of no freed keys at present; the sidecar's log says why" in line
        assert "does not answer" not in line
        await wait_until(lambda: "no freed keys" in sidecar.log, description="the sidecar says why")
        assert "SUBSCRIBE on the channel fastdedup:settled" in sidecar.log
