"""A huge value in one key is a fault of that key: scripts copied it, and all other claims were late."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import pytest

from fastdedup import Dedup, ForeignRecordError, Outcome
from fastdedup.protocol.keyspace import Keyspace, Kind
from fastdedup.stores.redis.scripts import MAX_RECORD

from ..servers import RedisServer

SIZE = 300 * 1024 * 1024
HUGE = "huge"


@pytest.fixture
def server() -> Iterator[RedisServer]:
    """Its own, so that its memory goes when the test ends."""
    server = RedisServer()
    try:
        yield server.start()
    finally:
        server.stop()


def plant(server: RedisServer, kind: Kind = Kind.CLAIM, name: str = HUGE, size: int = SIZE) -> None:
    """Make the value inside the server: over the wire it would take as long as what is tested."""
    wire = Keyspace("t", kind).wire(name)
    with server.client() as raw:
        raw.setrange(wire, 0, b"\1S" + bytes(7) + bytes(6) + b"\0\1\0" + b"0123456789")
        raw.setrange(wire, size - 1, b"x")
        raw.pexpire(wire, 600_000)


async def test_no_claim_beside_a_huge_value_fails(server: RedisServer) -> None:
    """600 claims of other keys at the default deadline, and 40 of the huge one among them."""
    async with Dedup(server.url, namespace="t", timeout=0.25) as dedup:
        plant(server)
        for turn in range(40):
            claims = [dedup.claim(f"{turn}-{number}") for number in range(15)]
            hit, *others = await asyncio.gather(dedup.claim(HUGE), *claims, return_exceptions=True)
            assert isinstance(hit, ForeignRecordError)
            faults = [other for other in others if isinstance(other, BaseException)]
            assert not faults, f"turn {turn}: {faults[0]!r}"


CALLS: dict[str, Callable[[Dedup], Awaitable[object]]] = {
    "claim": lambda dedup: dedup.claim(HUGE),
    "claim many": lambda dedup: dedup.claim_many([HUGE]),
    "get": lambda dedup: dedup.get(HUGE),
    "forget": lambda dedup: dedup.forget(HUGE),
    "lock": lambda dedup: dedup.lock(HUGE, wait=0.0).__aenter__(),
    "transition": lambda dedup: dedup.machine(
        "m", initial="a", transitions={"a": ("b",), "b": ()}
    ).transition(HUGE, to="b"),
}


@pytest.mark.parametrize("name", CALLS)
async def test_the_caller_of_a_huge_value_is_told_which_key(name: str, server: RedisServer) -> None:
    async with Dedup(server.url, namespace="t") as dedup:
        for kind in Kind:
            plant(server, kind, f"m/{HUGE}" if kind is Kind.MACHINE else HUGE, size=1_000_000)
        with pytest.raises(ForeignRecordError, match=r"'(m/)?huge' that is larger than max_result allows"):
            await CALLS[name](dedup)


async def test_an_owner_is_told_that_its_record_has_become_huge(server: RedisServer) -> None:
    async with Dedup(server.url, namespace="t") as dedup:
        claim = await dedup.claim(HUGE)
        with server.client() as raw:
            raw.setrange(Keyspace("t", Kind.CLAIM).wire(HUGE), 1_000_000, b"x")
        for act in (claim.renew, claim.complete, claim.release):
            with pytest.raises(ForeignRecordError, match="'huge' that is larger"):
                await act()


@pytest.mark.parametrize(("more", "outcome"), [(0, Outcome.SUCCEEDED), (1, None)])
async def test_a_record_of_exactly_the_limit_is_read(
    more: int, outcome: Outcome | None, server: RedisServer
) -> None:
    async with Dedup(server.url, namespace="t") as dedup:
        plant(server, size=MAX_RECORD + more)
        if outcome is None:
            with pytest.raises(ForeignRecordError):
                await dedup.claim(HUGE)
        else:
            assert (await dedup.claim(HUGE)).outcome is outcome


async def test_a_gate_that_stores_larger_results_reads_them(server: RedisServer) -> None:
    """Its own limit, and that of the gates that share its connection."""
    async with Dedup(server.url, namespace="t") as dedup:
        plant(server, size=1_000_000)
        with pytest.raises(ForeignRecordError):
            await dedup.claim(HUGE)
        large = dedup.scoped("large", max_result=1_000_000)
        assert (await dedup.claim(HUGE)).outcome is Outcome.SUCCEEDED
        async with large.claim("k") as claim:
            await claim.complete("x" * 900_000)
        assert len((await large.claim("k")).result) == 900_000
