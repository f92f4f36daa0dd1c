"""EPHEMERAL claims end with their clients, and with nothing else."""

from __future__ import annotations

import time
from typing import Any

import pytest
import redis

from ..servers import RedisServer
from ..sidecar.attacks import answered, connect
from ..sidecar.fuzz import pack
from ..sidecar.running import DEADLINE, Sidecar, figure
from ..waiting import wait_until

# Of 40,000 EPHEMERAL claims of a killed client 24,384 stayed, and other clients were refused meanwhile.


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


async def test_all_claims_of_a_killed_client_are_freed(redis_server: RedisServer, redis_url: str) -> None:
    options = ("--url", redis_url, "--namespace", "many", "--timeout", "0.25", "--ttl", "60")
    keys = [f"many:={number}" for number in range(CLAIMS)]
    outcomes: set[bytes] = set()
    with Sidecar(*options) as sidecar, sidecar.client() as other, redis_server.client() as store:
        with sidecar.client() as holder:
            for start in range(0, CLAIMS, 500):
                hold_all(holder, [str(number) for number in range(start, start + 500)])
            assert all(store.mget(keys))

        def claim_all_the_time() -> bool:
            key = f"bystander:{len(outcomes)}:{time.monotonic()}"
            outcomes.add(other.execute_command("FD.CLAIM", key, "LEASE", "1000")[0])
            return are_free(store, keys)

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
        until_acquired(ask, "d")


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
    raw.sendall(b"".join(pack(b"FD.CLAIM", key, b"EPHEMERAL", b"LEASE", b"3000") for key in keys))
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
    assert ask.execute_command("FD.CLAIM", key, "WAIT", "10000")[0] == b"acquired"


# Redis was frozen for 2 s while a client died: 244 of its 500 EPHEMERAL claims stayed until their leases
# ended.


KEYS = [b"%d" % number for number in range(200)]


async def test_releases_are_tried_until_the_store_takes_them(
    redis_server: RedisServer, redis_url: str
) -> None:
    options = ("--url", redis_url, "--namespace", "freeze", "--timeout", "0.4", "--ttl", "60")
    with Sidecar(*options) as sidecar, redis_server.client() as store:
        with connect(sidecar.path) as raw:
            raw.sendall(b"".join(pack(b"FD.CLAIM", key, b"EPHEMERAL") for key in KEYS))
            answered(raw, len(KEYS))
            redis_server.freeze()
        try:
            await wait_until(
                lambda: figure(sidecar.figures(), "fastdedup_breaker_opened_total") == 1,
                description="the sidecar has given up on the store for now",
            )
        finally:
            redis_server.thaw()
        keys = [f"freeze:={key.decode()}" for key in KEYS]
        await wait_until(lambda: are_free(store, keys), description="all are free")


@pytest.mark.parametrize("wire", ["resp", "http, waiting"])
async def test_an_owner_that_comes_back_keeps_its_claim(
    redis_server: RedisServer, redis_url: str, wire: str
) -> None:
    """Its former connection ended while the store was not asked."""
    options = ("--url", redis_url, "--namespace", "freeze", "--timeout", "0.4", "--ttl", "60")
    mine = ("FD.CLAIM", "mine", "OWNER", "worker:1", "EPHEMERAL")
    with Sidecar(*options) as sidecar, connect(sidecar.path) as again, sidecar.client() as other:

        def is_open() -> bool:
            other.execute_command("PING")
            again.sendall(pack(b"FD.GET", b"probe"))
            again.recv(100)
            return figure(sidecar.figures(), "fastdedup_breaker_state", state="open") == 1

        with sidecar.client() as ask:
            fence = ask.execute_command(*mine)[2]
            assert ask.execute_command("FD.CLAIM", "other", "EPHEMERAL")[0] == b"acquired"
            redis_server.freeze()
            await wait_until(is_open, description="the store is not asked")
        try:
            await wait_until(
                lambda: figure(sidecar.figures(), "fastdedup_degraded_total", verb="release") >= 2,
                description="the store was not told that the client has gone",
            )
            if wire == "resp":
                again.sendall(pack(*(each.encode() for each in mine)))
                assert again.recv(100).startswith(b"-UNAVAILABLE")
            else:
                with sidecar.http() as http:
                    claim = {"key": "mine", "owner": "worker:1", "wait": 1}
                    assert http.post("/v1/claims", json=claim).status_code == 503
        finally:
            redis_server.thaw()
        await wait_until(
            lambda: asked(other, "other")[:1] == [b"acquired"], description="the other claim is free"
        )
        assert asked(other, "mine")[::2][:2] == [b"in_progress", fence]


def asked(client: redis.Redis, key: str) -> list[Any]:
    """Return the answer to a claim; empty while the store does not answer."""
    try:
        return list(client.execute_command("FD.CLAIM", key))
    except redis.ResponseError:
        return []


# SIGTERM of the sidecar freed the EPHEMERAL claims of workers that lived: a restart made second owners.


async def test_a_client_gets_its_claims_back_after_a_restart(redis_url: str) -> None:
    with Sidecar("--url", redis_url, "--ttl", "60") as sidecar:
        with sidecar.client() as worker:
            drawn = worker.execute_command("FD.CLAIM", "drawn", "EPHEMERAL")
            named = worker.execute_command("FD.CLAIM", "named", "OWNER", "worker:1", "EPHEMERAL")
            assert sidecar.end() == 0
        sidecar.start()
        with sidecar.client() as other:
            assert other.execute_command("FD.CLAIM", "drawn")[0] == b"in_progress"
            assert other.execute_command("FD.CLAIM", "named")[0] == b"in_progress"
            with sidecar.client() as worker:
                for key, former in (("drawn", drawn), ("named", named)):
                    again = worker.execute_command("FD.CLAIM", key, "OWNER", former[1], "EPHEMERAL")
                    assert again[:4] == former[:4]
            await wait_until(
                lambda: other.execute_command("FD.CLAIM", "drawn")[0] == b"acquired",
                description="the end of the new connection frees them",
            )
