"""Of 40,000 EPHEMERAL claims of a killed client 24,384 stayed, and other clients were refused meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import redis

from ..servers import RedisServer
from ..sidecar.attacks import answered, connect
from ..sidecar.fuzz import pack
from ..sidecar.running import DEADLINE, Sidecar

WaitUntil = Callable[..., Any]
CLAIMS = 6_000


def hold(raw: Any, keys: list[bytes]) -> bytes:
    raw.sendall(b"".join(pack(b"FD.CLAIM", key, b"EPHEMERAL") for key in keys))
    return answered(raw, len(keys))


def hold_all(holder: redis.Redis, keys: list[str]) -> None:
    """Claim these, and ask again for those that a busy machine refused."""
    while keys:
        with holder.pipeline(transaction=False) as pipe:
            for key in keys:
                pipe.execute_command("FD.CLAIM", key, "EPHEMERAL")
            told = pipe.execute(raise_on_error=False)
        keys = [
            key for key, answer in zip(keys, told, strict=True) if isinstance(answer, redis.ResponseError)
        ]


def are_free(store: redis.Redis, keys: list[str]) -> bool:
    """A record that was released says so in its second byte."""
    return all(record is not None and record[1:2] == b"R" for record in store.mget(keys))


async def test_all_are_freed_and_nobody_else_is_refused(
    redis_server: RedisServer, redis_url: str, wait_until: WaitUntil
) -> None:
    options = ("--url", redis_url, "--namespace", "many", "--timeout", "0.25", "--ttl", "60")
    outcomes: set[bytes] = set()
    with Sidecar(*options) as sidecar, sidecar.client() as other, redis_server.client() as store:
        with sidecar.client() as holder:
            for start in range(0, CLAIMS, 500):
                hold_all(holder, [str(number) for number in range(start, start + 500)])
            assert store.dbsize() == CLAIMS

        def claim_all_the_time() -> bool:
            key = f"bystander:{len(outcomes)}:{time.monotonic()}"
            outcomes.add(other.execute_command("FD.CLAIM", key, "LEASE", "1000")[0])
            return are_free(store, [f"many:={number}" for number in range(CLAIMS)])

        await wait_until(claim_all_the_time, description="all are free")
    assert outcomes == {b"acquired"}


def test_a_connection_holds_no_more_than_its_limit(redis_url: str) -> None:
    config = "[limits]\nephemeral = 5\nephemeral_in_all = 7\n"
    with Sidecar("--url", redis_url, "--ttl", "60", config=config) as sidecar:
        with connect(sidecar.path) as one, connect(sidecar.path) as other:
            told = hold(one, [b"a%d" % number for number in range(4)] + [b"a4", b"a5"])
            assert told.count(b"acquired") == 5
            assert b"-ERR this connection has 5 EPHEMERAL claims" in told
            told = hold(other, [b"b1", b"b2", b"b3"])
            assert told.count(b"acquired") == 2
            assert b"-UNAVAILABLE 1000 all connections have 7 EPHEMERAL claims" in told
        with sidecar.client() as ask:
            _, owner, *_ = ask.execute_command("FD.CLAIM", "c", "EPHEMERAL")
            for key in ("d", "e", "f"):
                ask.execute_command("FD.CLAIM", key, "EPHEMERAL")
            ask.execute_command("FD.COMPLETE", "c", owner)
            assert ask.execute_command("FD.CLAIM", "g", "EPHEMERAL")[0] == b"acquired"
            ask.execute_command("FD.CLAIM", "h", "EPHEMERAL", "LEASE", "20")
            until_free(ask, "h")
            until_acquired(ask, "i")


def test_claims_whose_leases_are_over_keep_nobody_out(redis_url: str) -> None:
    """Of a client that stays connected, and does nothing."""
    config = "[limits]\nephemeral_in_all = 3\n"
    with (
        Sidecar("--url", redis_url, "--ttl", "60", config=config) as sidecar,
        sidecar.client() as ask,
        connect(sidecar.path) as idle,
    ):
        hold_for_a_moment(idle, [b"a", b"b", b"c"])
        with pytest.raises(redis.ResponseError, match="all connections have 3 EPHEMERAL claims"):
            ask.execute_command("FD.CLAIM", "d", "EPHEMERAL")
        for key in "abc":
            until_free(ask, key)
        assert ask.execute_command("FD.CLAIM", "d", "EPHEMERAL")[0] == b"acquired"


def test_a_client_whose_leases_are_over_is_idle(redis_url: str) -> None:
    config = "[limits]\nidle_timeout = 0.5\n"
    with (
        Sidecar("--url", redis_url, "--ttl", "60", config=config) as sidecar,
        connect(sidecar.path) as idle,
    ):
        idle.settimeout(20)
        hold_for_a_moment(idle, [b"a"])
        assert idle.recv(1000) == b"", "it is hung up on"


def hold_for_a_moment(raw: Any, keys: list[bytes]) -> None:
    raw.sendall(b"".join(pack(b"FD.CLAIM", key, b"EPHEMERAL", b"LEASE", b"1000") for key in keys))
    assert answered(raw, len(keys)).count(b"acquired") == len(keys)


def until_acquired(ask: redis.Redis, key: str) -> None:
    """The sidecar hears of an ended lease a little later than Redis does."""
    ends = time.monotonic() + DEADLINE
    while True:
        try:
            assert ask.execute_command("FD.CLAIM", key, "EPHEMERAL")[0] == b"acquired"
        except redis.ResponseError:
            assert time.monotonic() < ends
        else:
            return


def until_free(ask: redis.Redis, key: str) -> None:
    """A claim that waits gets the key when its lease has ended."""
    assert ask.execute_command("FD.CLAIM", key, "WAIT", "5000")[0] == b"acquired"
