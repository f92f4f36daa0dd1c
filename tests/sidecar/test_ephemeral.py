"""EPHEMERAL claims whose reply never came, or whose owner comes over another connection."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from fastdedup import Dedup
from fastdedup.kernel.operations import OwnerOp, ReleaseOp, RenewOp
from fastdedup.kernel.owners import owner_field
from fastdedup.kernel.verbs import Verb
from fastdedup.sidecar.ephemeral import EphemeralClaims, Holdings
from fastdedup.sidecar.limits import Limits
from fastdedup.stores.redis.scripts import pack
from fastdedup.stores.redis.verbs import FACES

from ..unit.test_shortfall import LoneStore
from ..waiting import wait_until
from .conftest import Running, Serve

CLAIM = ("FD.CLAIM", "k", "OWNER", "worker-7", "EPHEMERAL", "LEASE", "600000")


def connect(sidecar: Running) -> redis.Redis:
    return redis.Redis(unix_socket_path=sidecar.path, retry=Retry(NoBackoff(), 0), decode_responses=True)


async def asked(sidecar: Running) -> bool:
    return sidecar.namespaces.root.gate.connection.running_engine().in_flight > 0


async def is_released(sidecar: Running) -> None:
    """Wait until the store has run the claim, and released it again."""
    with connect(sidecar) as other:

        def released() -> bool:
            try:
                return '"state":"released"' in (other.execute_command("FD.GET", "k") or "")
            except redis.ResponseError:
                return False  # the store does not answer yet

        await wait_until(released, description="the claim was run, and is released")


@pytest.mark.parametrize("hangs_up", ["before its reply", "after it"])
async def test_a_claim_that_the_store_finds_late_is_released(
    serve: Serve, redis_url: str, redis_server: Any, hangs_up: str
) -> None:
    """Its key was held until the lease ended: with a chosen owner a claim without a reply is left to that owner."""
    sidecar = serve(redis_url, timeout=2.0 if hangs_up == "before its reply" else 0.1)
    client = connect(sidecar)
    with client, redis_server.frozen():
        if hangs_up == "before its reply":
            with sidecar.raw() as raw:
                raw.sendall(pack(*CLAIM))
                await wait_until(lambda: sidecar.call(asked(sidecar)), description="the store was asked")
            await wait_until(
                lambda: not sidecar.call(asked(sidecar)), description="it gave no answer in time"
            )
        else:
            with pytest.raises(redis.ResponseError, match="UNAVAILABLE"):
                client.execute_command(*CLAIM)
            client.close()
    await is_released(sidecar)


async def test_a_client_that_lives_gets_its_late_claim(
    serve: Serve, redis_url: str, redis_server: Any
) -> None:
    """By its owner's name, over another connection too; then the end of the first one releases nothing."""
    sidecar = serve(redis_url, timeout=0.1)
    with connect(sidecar) as again:
        with connect(sidecar) as client:
            with redis_server.frozen(), pytest.raises(redis.ResponseError, match="UNAVAILABLE"):
                client.execute_command(*CLAIM)

            def won() -> bool:
                try:
                    return bool(again.execute_command(*CLAIM)[0] == "acquired")
                except redis.ResponseError:
                    return False

            await wait_until(won, description="its owner has it")
        assert '"state":"processing"' in again.execute_command("FD.GET", "k")
        await wait_until(lambda: len(sidecar.server.connections) == 1, description="the first one is closed")
        assert '"state":"processing"' in again.execute_command("FD.GET", "k")
    await is_released(sidecar)


async def test_claims_in_doubt_leave_room_for_others() -> None:
    everybody = EphemeralClaims(Limits(ephemeral=6, ephemeral_in_all=100))
    async with Dedup("memory://") as dedup:
        client = Holdings(everybody)
        for number in range(10):
            client.doubt((dedup, b"%d" % number, b"\x01o"), 60_000)
        assert everybody.count == 3
        client.add((dedup, b"0", b"\x01o"), 60_000)  # it was won indeed
        assert everybody.count == 3
        client.remove((dedup, b"0", b"\x01o"))
        client.release()
        assert everybody.count == 0
        client.doubt((dedup, b"late", b"\x01o"), 60_000)
        assert everybody.count == 0
        held = [wire for wire, _ in dedup.gate.connection.orphans.held_keys()]
        assert sorted(held) == [b"1", b"2", b"late"]


@pytest.mark.parametrize("told", ["nothing", "UNAVAILABLE", "acquired"])
@pytest.mark.parametrize("wire", ["resp, ephemeral", "resp", "http", "http, waiting"])
async def test_a_claim_under_way_elsewhere_outlives_the_first_connection(
    serve: Serve, redis_url: str, redis_server: Any, told: str, wire: str
) -> None:
    """The end of the first one, which was told this, released what the second was told that it has."""
    sidecar = serve(redis_url, timeout=1.0 if told == "UNAVAILABLE" else 2.0)
    connection, releases = sidecar.namespaces.root.gate.connection, sidecar.namespaces.ephemeral.releases

    async def sent() -> int:
        return connection.running_engine().in_flight

    async def ends() -> tuple[int, int]:
        return len(sidecar.server.connections), len(connection.orphans.held_keys()) + len(releases)

    with ThreadPoolExecutor(1) as threads, connect(sidecar) as probe:
        with ExitStack() as frozen:
            with sidecar.raw() as first:
                if told == "acquired":
                    first.sendall(pack(*CLAIM))
                    assert told.encode() in first.recv(100)
                frozen.enter_context(redis_server.frozen())
                if told != "acquired":
                    first.sendall(pack(*CLAIM))
                    await wait_until(lambda: sidecar.call(sent()) == 1, description="the first one is sent")
                if told == "UNAVAILABLE":
                    assert told.encode() in first.recv(100)
                before = sidecar.call(sent())
                second = threads.submit(claim_again, sidecar, wire)
                await wait_until(lambda: sidecar.call(sent()) > before, description="so is the second one")
            await wait_until(lambda: sidecar.call(ends())[0] == 1, description="the first one is closed")
        client, outcome = second.result(20)
        assert outcome == "acquired"
        await wait_until(lambda: not sidecar.call(ends())[1], description="nothing is left to be freed")
        assert '"state":"processing"' in probe.execute_command("FD.GET", "k")
        client.close()


@pytest.mark.parametrize("named", [(), ("OWNER", "me")], ids=["drawn", "named"])
@pytest.mark.parametrize(
    "wire", ["resp, ephemeral", "resp", "resp, waiting", "http", "http, waiting", "store"]
)
async def test_an_owner_keeps_its_claim_over_another_connection(
    sidecar: Running, wire: str, named: tuple[str, ...]
) -> None:
    """It ended with the first connection: only the claims of chosen owners were known by their owners."""
    with connect(sidecar) as again, connect(sidecar) as probe:
        with connect(sidecar) as first:
            _, owner, fence, *_ = first.execute_command("FD.CLAIM", "k", "EPHEMERAL", *named)
            first.execute_command("FD.CLAIM", "other", "EPHEMERAL", *named)
            if wire == "store":
                async with Dedup(f"sidecar://{sidecar.path}", timeout=5.0) as gate:
                    assert (await gate.claim("k", owner=owner)).fence == fence
            elif "http" in wire:
                asked = {"key": "k", "owner": owner, "wait": 1000 * ("waiting" in wire)}
                with sidecar.http() as http:
                    told = http.post("/v1/claims", json=asked).json()
                assert (told["outcome"], told["fence"]) == ("acquired", fence)
            else:
                more = {"resp, ephemeral": ["EPHEMERAL"], "resp, waiting": ["WAIT", "1000"]}.get(wire, [])
                told = again.execute_command("FD.CLAIM", "k", "OWNER", owner, *more)
                assert told[:3] == ["acquired", owner, fence]
        await until_released(probe, "other")
        assert '"state":"processing"' in probe.execute_command("FD.GET", "k")


@pytest.mark.parametrize("wire", ["resp", "http", "store"])
async def test_a_renewal_over_another_connection_counts(sidecar: Running, wire: str) -> None:
    """The claim was forgotten at its first lease's end, and then did not end with its client."""
    with connect(sidecar) as other:
        with connect(sidecar) as holder:
            _, owner, *_ = holder.execute_command("FD.CLAIM", "k", "EPHEMERAL", "LEASE", "1000")
            if wire == "http":
                with sidecar.http() as http:
                    renewed = {"key": "k", "owner": owner, "lease": 600_000}
                    assert http.post("/v1/claims/renew", json=renewed).status_code == 200
            elif wire == "store":
                wire_key = sidecar.namespaces.root.gate.claims.wire_of(b"k")
                run(other, RenewOp(wire_key, owner_field(owner), 0, 600_000, 600_000))
            else:
                assert other.execute_command("FD.RENEW", "k", owner, "600000")
            # Until its first lease has ended, for its client too.
            assert holder.execute_command("FD.CLAIM", "k", "WAIT", "1200")[0] == "in_progress"
        await until_released(other, "k")


async def test_a_claim_renewed_after_its_end_ends_with_its_client() -> None:
    """A look at a silent connection forgot the ended claim, so its key stayed held after its client's crash."""
    everybody = EphemeralClaims(Limits())
    async with Dedup("memory://") as dedup:
        client, ended = Holdings(everybody), (dedup, b"ended", b"\x01o")
        client.add(ended, 0)
        assert not client.any_held
        client.add((dedup, b"long", b"\x01o"), 3_600_000)
        assert client.any_held
        everybody.changed(dedup, RenewOp(*ended[1:], 0, 600_000, 600_000))
        assert everybody.holders[ended] is client


async def test_a_settlement_over_a_store_counts(sidecar: Running) -> None:
    """The sidecar took a claim that a `sidecar://` gate had settled for its client's until the lease ended."""
    with connect(sidecar) as holder:
        _, owner, *_ = holder.execute_command("FD.CLAIM", "k", "EPHEMERAL")
        assert sidecar.namespaces.ephemeral.count == 1
        run(holder, ReleaseOp(sidecar.namespaces.root.gate.claims.wire_of(b"k"), owner_field(owner), 0))
        assert sidecar.namespaces.ephemeral.count == 0


@pytest.mark.parametrize("wire", ["resp", "http"])
async def test_a_change_that_falls_short_counts(serve: Serve, wire: str) -> None:
    """It was done: of a renewal the sidecar forgot the claim at the former lease's end, of a release never."""
    store = LoneStore()
    sidecar = serve(store, on_shortfall="raise")
    ephemeral = sidecar.namespaces.ephemeral
    store.unconfirmed = {Verb.RENEW, Verb.RELEASE}
    with connect(sidecar) as holder, connect(sidecar) as other, sidecar.http() as http:
        _, owner, *_ = holder.execute_command("FD.CLAIM", "k", "EPHEMERAL", "LEASE", "60000")
        (client,) = ephemeral.clients
        for verb, more in (("renew", {"lease": 600_000}), ("release", {})):
            before = client.ends
            if wire == "http":
                asked = {"key": "k", "owner": owner, **more}
                assert http.post(f"/v1/claims/{verb}", json=asked).status_code == 503
            else:
                with pytest.raises(redis.ResponseError, match="too few replicas"):
                    other.execute_command(f"FD.{verb}".upper(), "k", owner, *more.values())
            if verb == "renew":
                assert max(client.claims.values()) > before + 500
        assert ephemeral.count == 0


def run(client: redis.Redis, op: OwnerOp) -> None:
    """Send this as a `sidecar://` store does."""
    client.execute_command("FD.RUN", op.verb.value, 1, op.wire, *FACES[op.verb].call([op])[1])


async def until_released(client: redis.Redis, key: str) -> None:
    await wait_until(
        lambda: '"state":"released"' in (client.execute_command("FD.GET", key) or ""),
        description=f"{key} is released",
    )


def claim_again(sidecar: Running, wire: str) -> tuple[redis.Redis, str]:
    """Claim for the same owner over another connection; return that, if it stays open, and the outcome."""
    client = connect(sidecar)
    if "http" in wire:
        asked = {"key": "k", "owner": "worker-7", "wait": 1000 * ("waiting" in wire)}
        with sidecar.http() as http:
            return client, http.post("/v1/claims", json=asked).json()["outcome"]
    command = CLAIM if "ephemeral" in wire else [part for part in CLAIM if part != "EPHEMERAL"]
    return client, client.execute_command(*command)[0]
