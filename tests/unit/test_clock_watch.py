"""The clocks of a Cluster's servers are compared: which of them is off, and that it is said once. No server."""

from __future__ import annotations

import pytest

from fastdedup.stores.redis.cluster.clocks import ClockWatch, Reading, offsets
from fastdedup.stores.redis.url import Address

from ..waiting import wait_until

A, B, C, D = ("a", 1), ("b", 2), ("c", 3), ("d", 4)


@pytest.mark.parametrize(
    ("ahead", "own", "expected"),
    [
        ((5.0, 5.0, 15.0), 0.0, (0.0, 0.0, 10.0)),
        ((5.0, -5.0, 5.0), -5.0, (0.0, -10.0, 0.0)),
        ((5.0, 15.0), 5.0, (0.0, 10.0)),
        ((5.0, 15.0), 15.0, (-10.0, 0.0)),
        ((5.0, 5.0, 5.0, 15.0), 99.0, (0.0, 0.0, 0.0, 10.0)),
        ((5.0,), 99.0, ()),
        ((), 99.0, ()),
    ],
)
def test_a_clock_is_compared_with_the_median(
    ahead: tuple[float, ...], own: float, expected: tuple[float, ...]
) -> None:
    """Of an even number of servers this process's own clock decides; a single server is right by itself."""
    readings = {address: Reading(value) for address, value in zip((A, B, C, D), ahead, strict=False)}
    assert tuple(offset.ahead for offset in offsets(readings, Reading(own)).values()) == expected


def test_a_slow_answer_makes_an_offset_uncertain() -> None:
    readings = {A: Reading(0.0, 0.1), B: Reading(0.0, 0.2), C: Reading(4.0, 0.3)}
    assert offsets(readings, Reading(0.0))[C] == Reading(4.0, pytest.approx(0.5))


class Lab:
    """A watch over clocks that a test sets."""

    def __init__(self) -> None:
        self.ahead: dict[Address, float] = {A: 0.0, B: 0.0, C: 0.0}
        self.error = 0.0
        self.read: list[Address] = []
        self.told: list[tuple[Address, float]] = []
        self.watch = ClockWatch(self._read, lambda address, offset: self.told.append((address, offset)))

    async def _read(self, address: Address) -> Reading:
        self.read.append(address)
        if address not in self.ahead:
            raise ConnectionError("refused")
        return Reading(self.ahead[address], self.error)

    async def look(self) -> None:
        """Let it read all clocks now."""
        self.watch.begin()
        await wait_until(lambda: self.watch.reading is None, description="all clocks are read")


@pytest.fixture
def lab() -> Lab:
    return Lab()


async def test_a_clock_that_stays_off_is_reported_once(lab: Lab) -> None:
    """Again only after it was right in between."""
    lab.watch.watch([A, B, C])
    lab.ahead[C] = 3.5
    await lab.look()
    await lab.look()
    assert lab.told == [(C, 3.5)]
    lab.ahead[C] = 2.5
    await lab.look()
    lab.ahead[C] = -3.5
    await lab.look()
    assert lab.told == [(C, 3.5), (C, -3.5)]
    await lab.watch.aclose()


async def test_an_uncertain_reading_is_not_reported(lab: Lab) -> None:
    """A blocked event loop must not look like a wrong clock."""
    lab.watch.watch([A, B, C])
    lab.ahead[C], lab.error = 3.5, 0.3
    await lab.look()
    assert lab.told == []
    await lab.watch.aclose()


async def test_clocks_are_read_when_a_server_is_new(lab: Lab) -> None:
    """Not for each layout that names the same servers, or fewer."""

    async def reads(*servers: Address) -> list[Address]:
        lab.read.clear()
        lab.watch.watch(servers)
        await wait_until(lambda: lab.watch.reading is None, description="all clocks are read")
        return sorted(lab.read)

    assert await reads(A, B) == [A, B]
    assert await reads(A, B) == []
    assert await reads(A) == []
    assert await reads(A, B, C) == [A, B, C]
    assert await reads(A, B, C, D) == [A, B, C, D], "D gives no answer, and hinders nothing"
    assert lab.told == []
    await lab.watch.aclose()
