"""Issue 18.2: nothing of an outage, a wrong URL or a refused password was in any log.

One line tells that an incident begins, and one that it is over: never one line for each request.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

import pytest

from fastdedup import ConfigError, Dedup, LocalLRU, UnavailableError
from fastdedup.core.incidents import AT_ONCE, Incidents
from fastdedup.events import BreakerClosed, BreakerOpened, Conflict, Degraded, Event, GateBypassed, LeaseLost

from ..fixtures import fixture_of
from ..servers import RedisServer, free_port
from ..waiting import wait_until

PASSWORD = "s3cret"


server = fixture_of(RedisServer, scope="module", password=PASSWORD)


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.DEBUG, "fastdedup")
    return lambda: [record.getMessage() for record in caplog.records if record.name.startswith("fastdedup")]


async def ask(dedup: Dedup, times: int = 1) -> None:
    for number in range(times):
        with contextlib.suppress(UnavailableError):
            await dedup.claim(f"order:{number}")


async def test_an_outage_is_one_line_opened_and_one_closed(
    server: RedisServer, lines: Callable[[], list[str]]
) -> None:
    """Both gates of a process, of which one answers by its policy, have their own."""

    def told(part: str) -> list[str]:
        return [line for line in lines() if part in line]

    async with (
        Dedup(server.url, namespace="shop", timeout=1.0) as shop,
        Dedup(server.url, namespace="sms", timeout=1.0, on_unavailable=LocalLRU()) as sms,
    ):
        await ask(shop)
        server.kill()
        await ask(shop, 20)
        await ask(sms, 20)
        assert len(lines()) == 2, "one line each, however often the store was asked"
        server.start()
        home = "gate 'sms': the answers of the outage are in the store: 20 keys, 0 conflicts"
        await wait_until(
            lambda: home in lines() and len(told("answers again")) == 2,
            description="both breakers closed, and the journal is home",
        )
    opened, closed = told("does not answer"), told("answers again")
    assert [line[:12] for line in opened] == ["gate 'shop':", "gate 'sms': "]
    assert len(closed) == 2
    assert len(told("came back as another process")) == 2, "that it was restarted is an incident of its own"
    assert len(lines()) == 7
    assert any(line.endswith("the policy answered 0 operations and refused 20") for line in closed), closed
    assert any("the policy answered 20 operations and refused 0" in line for line in closed), closed
    assert PASSWORD not in "".join(lines())


async def test_a_wrong_address_is_one_line_at_opening(lines: Callable[[], list[str]]) -> None:
    async with Dedup(f"redis://:{PASSWORD}@127.0.0.1:{free_port()}", namespace="shop", timeout=0.2) as dedup:
        assert len(lines()) == 1, "before the first request"
        await ask(dedup, 5)
        assert len(lines()) == 1
    assert lines()[0].startswith("gate 'shop': the store does not answer: Redis at 127.0.0.1:")
    assert "it is closed, and the store did not answer" in lines()[1]
    assert PASSWORD not in "".join(lines())


async def test_a_refused_password_is_one_line(server: RedisServer, lines: Callable[[], list[str]]) -> None:
    dedup = Dedup(server.url.replace(PASSWORD, "wr0ng"), namespace="shop")
    for _ in range(3):
        with pytest.raises(ConfigError):
            await dedup.open()
    (line,) = lines()
    assert line.startswith("gate 'shop' cannot be opened: Redis at ")
    assert "refused the user or password" in line
    assert "wr0ng" not in line


# Without a server


def incidents(window: float = 60.0) -> Incidents:
    return Incidents("shop", window)


async def test_a_closed_gate_says_unsteady_where_no_breaker_opened(lines: Callable[[], list[str]]) -> None:
    """Nobody knows that the store is still away: the last operation that met it got no answer, that is all."""
    told = incidents()
    for _ in range(2):
        told(Degraded("shop", "claim", False, "down"))
    told.close()
    assert "does not answer: down" in lines()[0]
    assert lines()[1].startswith("gate 'shop': the store was unsteady for ")


async def test_many_events_of_a_kind_are_counted(lines: Callable[[], list[str]]) -> None:
    told = incidents(window=0.05)
    for number in range(100):
        told(LeaseLost("shop", f"order:{number}", "worker-1", 7))
    assert len(lines()) == AT_ONCE
    assert "the lease of 'order:0' in namespace 'shop' is lost (fence 7)" in lines()[0]
    assert lines()[0].endswith("another owner may have the key by now")
    more = f"gate 'shop': {100 - AT_ONCE} more of this within 0.05 s: lease lost"
    await wait_until(lambda: lines()[AT_ONCE:] == [more], description="the rest is one line")
    await asyncio.sleep(0)
    told.close()
    assert len(lines()) == AT_ONCE + 1
    assert "worker-1" not in "".join(lines()), "an owner settles its claim"


async def test_a_conflict_names_its_key_and_no_owner(lines: Callable[[], list[str]]) -> None:
    told = incidents()
    told(Conflict("shop", "order:7", "worker-1", "worker-2", kept="theirs"))
    told.close()
    (line,) = lines()
    assert "'order:7' in namespace 'shop' had two owners" in line
    assert "worker" not in line


async def test_few_unanswered_operations_end_by_themselves(lines: Callable[[], list[str]]) -> None:
    """No breaker opened, so no event says that it is over."""
    told = incidents(window=0.02)
    for _ in range(2):
        told(Degraded("shop", "claim", answered=False, reason="too slow"))
    await wait_until(lambda: len(lines()) == 2, description="it is over")
    assert lines()[0] == "gate 'shop': the store does not answer: too slow"
    assert "the policy answered 0 operations and refused 2" in lines()[1]
    told(Degraded("shop", "claim", answered=False, reason="too slow again"))
    assert lines()[2:] == ["gate 'shop': the store does not answer: too slow again"]
    told.close()


async def test_a_store_that_comes_and_goes_fills_no_log(lines: Callable[[], list[str]]) -> None:
    """A full one refuses, takes the next write, and refuses again: several outages a second."""
    told = incidents(window=0.2)
    for _ in range(100):
        told(Degraded("shop", "claim", answered=False, reason="out of memory"))
        told(BreakerOpened("Redis", "out of memory"))
        told(BreakerClosed("Redis", 0.1))
    assert len(lines()) == 2 * AT_ONCE
    more = f"gate 'shop': {100 - AT_ONCE} more of this within 0.2 s: the store does not answer"
    await wait_until(lambda: lines()[2 * AT_ONCE :] == [more], description="the rest is one line")
    # One that lasts has its lines all the same, and what nobody was told of is counted there.
    told(BreakerOpened("Redis", "connection refused"))
    begin = "gate 'shop': the store does not answer: connection refused"
    await wait_until(lambda: begin in lines(), description="it lasts")
    told(BreakerClosed("Redis", 0.3))
    assert lines()[-1].endswith(f"answered 0 operations and refused {100 - AT_ONCE}")
    told.close()


async def test_a_node_that_comes_and_goes_beside_another_fills_no_log(lines: Callable[[], list[str]]) -> None:
    told = incidents()
    told(BreakerOpened("a", "down"))
    for _ in range(50):
        told(BreakerOpened("b", "down"))
        told(BreakerClosed("b", 0.1))
    assert len(lines()) == 1 + 2 * AT_ONCE
    told(BreakerClosed("a", 9.0))
    assert "the store answers again after" in lines()[-1]
    told.close()
    assert lines()[-1] == f"gate 'shop': {50 - AT_ONCE} more of this within 60 s: b does not answer"


async def test_an_operation_is_no_incident_of_its_own(lines: Callable[[], list[str]]) -> None:
    told = incidents()
    for _ in range(50):
        told(GateBypassed("shop", "billing", "refused"))
    assert len(lines()) == 1
    told.close()
    assert lines()[1:] == ["gate 'shop': 49 more of this within 60 s: gate bypassed"]


async def test_a_lease_that_is_lost_in_an_outage_has_no_other_owner_yet(
    lines: Callable[[], list[str]],
) -> None:
    told = incidents(window=60)
    told(LeaseLost("shop", "order:7", "worker-1", 7, outage=True))
    told.close()
    (line,) = lines()
    assert line.endswith(
        "(fence 7): the store did not answer until it was over; another owner may get the key"
    )


async def test_a_broken_callback_is_logged_once(server: RedisServer, lines: Callable[[], list[str]]) -> None:
    def broken(event: Event) -> None:
        raise ValueError("my own bug")

    async with Dedup("memory://", namespace="shop", on_event=broken) as dedup:
        for _ in range(10):
            dedup.gate.lease_lost("order:7", "worker-1", 7, outage=False)
        assert len([line for line in lines() if "the on_event callback failed on LeaseLost" in line]) == 1


def test_warnings_are_seen_without_any_setting() -> None:
    """By logging's handler of last resort: a NullHandler would silence them."""
    for name in ("fastdedup", "fastdedup.store", "fastdedup.claims"):
        logger = logging.getLogger(name)
        assert not logger.handlers
        assert logger.propagate
        assert logger.level == logging.NOTSET
