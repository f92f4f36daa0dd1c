"""A sidecar that refused for a limit or a rule was taken for one that is down: policies granted its keys."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastdedup import Claim, ConfigError, Dedup, LocalLRU, Outcome, UnavailableError

from ..otel import Otel
from ..servers import RedisServer
from ..sidecar.running import Sidecar

CONFIG = """
allow_stores = true

[namespaces.mail]

[limits]
replies = 65536

[[sockets]]
path = "{run}/mail.sock"
namespaces = ["mail"]
allow_stores = true
"""


@pytest.fixture(scope="module")
def sidecar(redis_server: RedisServer) -> Iterator[Sidecar]:
    """A sidecar with little room for replies, and a socket that serves one namespace."""
    with Sidecar("--url", redis_server.url, "--timeout", "5", "--grace", "0.1", config=CONFIG) as sidecar:
        yield sidecar
    with redis_server.client() as raw:
        raw.flushdb()


def url_of(path: Path) -> str:
    return f"sidecar://{path}"


async def test_results_that_have_no_room_at_once_come_one_after_the_other(sidecar: Sidecar) -> None:
    """LocalLRU granted keys that had succeeded. Traced claims also learn whose record they have met."""
    keys = [f"large-{number}" for number in range(12)]
    otel = Otel()
    async with (
        otel.instrument(Dedup(url_of(sidecar.path), timeout=10)) as first,
        otel.instrument(
            Dedup(url_of(sidecar.path), timeout=10, known_duplicates=0, on_unavailable=LocalLRU())
        ) as other,
    ):
        for spans in (contextlib.nullcontext(), otel.tracer.start_as_current_span("caller")):
            with spans:
                for key in keys:
                    await first.forget(key)
                    await (await first.claim(key)).complete("x" * 20_000)
                claims = await asyncio.gather(*map(other.claim, keys))
            assert {claim.outcome for claim in claims} == {Outcome.SUCCEEDED}


async def test_a_result_that_never_has_room_is_refused(sidecar: Sidecar) -> None:
    async with (
        Dedup(url_of(sidecar.path), timeout=10) as first,
        Dedup(url_of(sidecar.path), timeout=10, on_unavailable=LocalLRU()) as other,
    ):
        await (await first.claim("larger")).complete("x" * 70_000)
        with pytest.raises(UnavailableError, match=r"limits\.replies"):
            await other.claim("larger")


async def test_a_refused_namespace_is_refused_alone(sidecar: Sidecar) -> None:
    """It failed all operations of its batch."""
    path = sidecar.path.parent / "mail.sock"
    async with Dedup(url_of(path), timeout=5, namespace="mail", on_unavailable=LocalLRU()) as mail:
        payments = mail.scoped("payments")
        one, refused, two = await asyncio.gather(
            mail.claim("one"), payments.claim("key"), mail.claim("two"), return_exceptions=True
        )
        assert isinstance(refused, ConfigError)
        assert "serves mail only" in str(refused)
        assert isinstance(one, Claim)
        assert isinstance(two, Claim)
        assert one.acquired
        assert two.acquired
        assert not one.degraded
