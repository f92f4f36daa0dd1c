"""FD.RUN, with which a `sidecar://` store may write any record, is for sockets that say so, within the public limits.

Every client of the socket could use it: for keys, leases and results beyond the limits of the public commands, and,
by adopting a record under an owner that FD.GET shows, for a success that never was.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from fastdedup import Dedup, LocalLRU
from fastdedup.errors import ConfigError
from fastdedup.protocol.keyspace import Keyspace, Kind
from fastdedup.protocol.operations import AdoptOp, ClaimOp, Holding, Mode, Op, SettleOp, Stored, terms
from fastdedup.protocol.owners import draw_owner
from fastdedup.stores.redis.verbs import FACES
from fastdedup.stores.sidecar.wire import read

from ..servers import RedisServer
from ..sidecar.running import Sidecar

MOST = 100
TEN_YEARS = 10 * 365 * 86_400_000
OWNER = draw_owner()
KEYS = Keyspace("t", Kind.CLAIM)
WIRE = KEYS.wire("k")


@pytest.fixture(scope="module")
def sidecar(server: RedisServer) -> Iterator[Sidecar]:
    """A sidecar that serves stores."""
    with Sidecar("--url", server.url, "--allow-stores", config=f"max_result = {MOST}\n") as sidecar:
        yield sidecar


@pytest.fixture
def trusting(sidecar: Sidecar) -> Iterator[redis.Redis]:
    with sidecar.client() as client:
        yield client


def run(client: redis.Redis, op: Op) -> object:
    reply = client.execute_command("FD.RUN", op.verb.value, 1, op.wire, *FACES[op.verb].pack([op]))
    (answer,) = read(reply)
    return answer


def claim_of(wire: bytes, lease: int = 1000, keep: int = 2000) -> Op:
    return ClaimOp(wire, terms(Mode.CLAIM, lease, keep, False), draw_owner(), None)


def success(size: int) -> Op:
    record = Stored(
        "S", owner=OWNER, fence=1, attempt=1, left_ms=1, ttl_ms=9, fingerprint=None, payload=b"x" * size
    )
    return AdoptOp(WIRE, record, Holding(OWNER, 1))


def settle(size: int) -> Op:
    return SettleOp(WIRE, OWNER, 0, succeeded=True, keep_ms=1, payload=b"x" * size)


async def test_a_socket_serves_no_stores_unless_it_says_so(server: RedisServer) -> None:
    with Sidecar("--url", server.url) as sidecar, sidecar.client() as client:
        for words in (("FD.RUN", "read", 1, "t:=k"), ("FD.STORE", 2), ("FD.LISTEN",)):
            with pytest.raises(redis.ResponseError, match="serves no sidecar:// stores"):
                client.execute_command(*words)
        with pytest.raises(ConfigError, match="set allow_stores = true"):
            await Dedup(f"sidecar://{sidecar.path}", on_unavailable=LocalLRU()).open()
        assert client.execute_command("FD.CLAIM", "k")[0] == b"acquired"


async def test_the_flag_serves_stores(sidecar: Sidecar) -> None:
    async with Dedup(f"sidecar://{sidecar.path}", namespace="flag", timeout=5) as dedup:
        assert (await dedup.claim("k")).acquired


@pytest.mark.parametrize(
    ("wire", "told"),
    [
        (KEYS.wire("k") + b"x" * 1024, "1 to 1024 bytes"),
        (KEYS.wire("k")[:-1], "1 to 1024 bytes"),
        (b"t:=\xff", "UTF-8"),
        (b"t:#short", "digest must have 16 bytes"),
    ],
)
def test_a_store_key_has_the_public_limits(trusting: redis.Redis, wire: bytes, told: str) -> None:
    with pytest.raises(redis.ResponseError, match=told):
        run(trusting, claim_of(wire))


@pytest.mark.parametrize(("lease", "keep"), [(TEN_YEARS + 1, TEN_YEARS + 2), (1, 2 * TEN_YEARS + 1)])
def test_a_lease_has_the_public_limits(trusting: redis.Redis, lease: int, keep: int) -> None:
    with pytest.raises(redis.ResponseError, match="out of bounds"):
        run(trusting, claim_of(WIRE, lease, keep))


@pytest.mark.parametrize("make", [settle, success])
def test_a_result_has_the_public_limit(trusting: redis.Redis, make: object) -> None:
    assert type(run(trusting, make(MOST + 1))).__name__ == "ResultTooLargeError"  # type: ignore[operator]
    assert type(run(trusting, make(MOST))).__name__ != "ResultTooLargeError"  # type: ignore[operator]


def test_keys_at_the_limits_are_taken(trusting: redis.Redis) -> None:
    readable = Keyspace("t", Kind.CLAIM, readable=1024)
    for wire in (readable.wire("x" * 1024), KEYS.wire("x" * 1024), KEYS.wire("\u20ac")):
        assert run(trusting, claim_of(wire, TEN_YEARS, 2 * TEN_YEARS)).outcome == "acquired"  # type: ignore[attr-defined]
