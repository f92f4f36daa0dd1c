"""What replicas confirm: after a restart, of a repeated operation, and if too few are left."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from fastdedup import Dedup, Outcome, ShortfallError, TransitionOutcome
from fastdedup.events import PrimaryRestarted
from fastdedup.kernel.operations import ClaimOp, Op, Reply
from fastdedup.kernel.terms import Mode, terms
from fastdedup.stores.redis.reconnect import Reconnector, process_of

from ..fixtures import fixture_of
from ..heard import HeardGate
from ..outage.test_replicas import KEY, OWNER, WRITES, executed, is_done, is_short, store_at
from ..servers import RedisServer
from ..topologies import HOST, ClusterGroup, Member, Pair, SentinelGroup, until
from ..waiting import is_answered, wait_until

# A primary that restarted empty lost claims that its replicas had confirmed, and nothing said so.


TIMEOUT = 1.0


own_pair = fixture_of(Pair)


class Gate(HeardGate):
    """A gate, and the restarts that it has reported."""

    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(url, namespace="t", **{"timeout": TIMEOUT, **options})

    @property
    def restarts(self) -> list[PrimaryRestarted]:
        return self.of(PrimaryRestarted)

    async def answers(self, key: str = "another") -> bool:
        """True once the store answers a claim."""
        return await is_answered(self.dedup.claim(key))


def restart_empty(member: Member) -> None:
    member.kill()
    member.spawn()
    until(member.up, "it is up again")


async def test_a_primary_that_restarted_empty_is_reported(own_pair: Pair) -> None:
    """Each claim was confirmed by the replica, which then copied the empty primary: all are lost, none is marked."""
    async with Gate(own_pair.url, replicas=1, timeout=5.0) as gate:  # two seconds of it for the replica
        claims = [await gate.dedup.claim(f"key-{number}") for number in range(20)]
        assert all(claim.confirmed for claim in claims)
        restart_empty(own_pair.primary)
        await wait_until(gate.answers, description="the primary answers again")
        again = [await gate.dedup.claim(f"key-{number}") for number in range(20)]
        assert all(claim.acquired for claim in again), "the restarted primary has forgotten every claim"
        assert gate.restarts == [PrimaryRestarted(f"Redis at {HOST}:{own_pair.primary.port}")]


async def test_a_restart_is_reported_without_replicas_too(own_redis: RedisServer) -> None:
    async with Gate(own_redis.url) as gate:
        assert await gate.answers()
        for restarts in (1, 2):
            own_redis.kill()
            own_redis.start()
            await wait_until(gate.answers, description="the server answers again")
            assert gate.restarts == [PrimaryRestarted(f"Redis at {own_redis.socket}")] * restarts


async def test_a_lost_connection_is_no_restart(own_redis: RedisServer) -> None:
    """The server's process is the same as before."""
    async with Gate(own_redis.url) as gate:
        assert await gate.answers()
        with own_redis.client() as raw:
            opened = raw.info("stats")["total_connections_received"]
            raw.client_kill_filter(_type="normal", skipme=True)
        await wait_until(gate.answers, description="the server answers over a new connection")
        with own_redis.client() as raw:
            assert raw.info("stats")["total_connections_received"] >= opened + 2
        assert gate.restarts == []


async def test_sentinel_reports_a_restart_but_no_failover() -> None:
    """Another address is another server: a failover is not a restart."""
    with SentinelGroup() as group:
        async with Gate(group.url) as gate:
            assert await gate.answers()
            before = group.primary()
            before.kill()
            until(lambda: group.primary() is not before, "another server is the primary")
            await wait_until(gate.answers, description="the new primary answers")
            assert gate.restarts == []
            for sentinel in group.sentinels:
                sentinel.ask("SENTINEL", "SET", group.SERVICE, "down-after-milliseconds", 60_000)
            restart_empty(group.primary())
            await wait_until(gate.answers, description="the restarted primary answers")
            [restart] = gate.restarts
            assert restart.store.startswith(f"Redis '{group.SERVICE}' of the sentinels at ")


async def test_a_cluster_names_the_node_that_restarted() -> None:
    with ClusterGroup(replicas=0) as group:
        async with Gate(group.url) as gate:
            keys = [f"key-{number}" for number in range(60)]
            assert all([await gate.answers(key) for key in keys])
            node = group.primaries()[0]
            restart_empty(node)

            async def all_answer() -> bool:
                return all([await gate.answers(key) for key in keys])

            await wait_until(all_answer, description="all nodes answer again")
            assert gate.restarts == [PrimaryRestarted(f"Redis at {HOST}:{node.port}")]


class Opened:
    """As much of a connection as a `Reconnector` needs."""

    usable = True
    on_unusable = None

    def __init__(self, process: tuple[str, str] | None) -> None:
        self.process = process


async def test_only_the_last_server_is_compared() -> None:
    """A server that restarted as a replica, and is the primary again, has copied the primary in between."""
    processes = [("a", "1"), ("b", "1"), ("a", "2"), None, ("a", "2"), ("a", "3")]
    opened = iter(processes)
    seen: list[tuple[str, str] | None] = []

    async def connect(on_push: object) -> Any:
        seen.append(next(opened))
        return Opened(seen[-1])

    restarts: list[int] = []
    reconnector = Reconnector(connect, lambda: restarts.append(len(seen)))
    for _ in processes:
        await reconnector.connected()
        reconnector.connection = None
    assert restarts == [len(processes)]


@pytest.mark.parametrize("info", [b"redis_version:7.0.15\r\n", ConnectionError("no INFO"), None])
def test_a_server_that_tells_no_run_id_has_no_process(info: Any) -> None:
    """Then no restart can be noticed, and none is reported."""
    assert process_of(info, "here") is None


# On Redis 8.2 `replicas=1` confirmed a repeated operation that no replica had: the repeat only read. WAIT
# waits for the last write of its own connection. A repeat over a new connection wrote nothing, and then
# WAIT waits for nothing on Redis 8 and Valkey 8. Redis 7.0 waits nevertheless: only the server's count of
# changes shows the fault there.


REPEATED = {
    "claim": ["claim"],
    "complete": ["claim", "complete"],
    "fail": ["claim", "fail"],
    "release": ["claim", "release"],
    "renew": ["claim", "renew"],
    "issue": ["issue"],
    "consume": ["issue", "consume"],
    "release of a consumed token": ["issue", "consume", "release of a consumed token"],
    "transition": ["transition"],
    "adopt": ["adopt"],
}
"""The operations that lead to a repeat; the last is sent twice."""


async def sent(pair: Pair, op: Op, timeout: float = 2.0) -> Reply:
    """Execute an operation over a connection of its own."""
    async with store_at(pair.url, 1, timeout) as store:
        return await executed(store, op)


def changes(pair: Pair) -> int:
    """How many changes the server has made; each goes to its replicas."""
    with pair.primary.client() as raw:
        return int(raw.info("persistence")["rdb_changes_since_last_save"])


@pytest.mark.parametrize("name", REPEATED)
async def test_a_repeat_writes_again(pair: Pair, name: str) -> None:
    """So WAIT behind the repeat waits for the first write as well; the answer stays the same."""
    for each in REPEATED[name]:
        assert is_done(await sent(pair, WRITES[each]()))
    before = changes(pair)
    assert is_done(await sent(pair, WRITES[name]()))
    assert changes(pair) > before


async def test_a_repeated_claim_with_a_shorter_lease_writes_again(pair: Pair) -> None:
    """The longer lease stays, so neither the deadline nor the expiry is written."""
    long_terms = terms(Mode.CLAIM, 60_000, 120_000, False)
    assert is_done(await sent(pair, ClaimOp(KEY, long_terms, OWNER, None)))
    before = changes(pair)
    assert is_done(await sent(pair, WRITES["claim"]()))
    assert changes(pair) > before


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("name", sorted(REPEATED.keys() - {"adopt"}))
async def test_a_repeat_is_short_while_no_replica_has_it(pair: Pair, name: str, frozen: bool) -> None:
    """Each try has a connection of its own, as after a lost reply. An adoption is never marked."""
    for each in REPEATED[name][:-1]:
        assert is_done(await sent(pair, WRITES[each]()))
    if frozen:
        pair.replica.freeze()
    replies = [await sent(pair, WRITES[name](), 0.1 if frozen else 2.0) for _ in range(2)]
    assert all(is_done(reply) for reply in replies)
    assert [is_short(reply) for reply in replies] == [frozen, frozen]


async def test_a_fresh_claim_writes_once(pair: Pair) -> None:
    """Only repeats pay for the second write."""
    before = changes(pair)
    assert is_done(await sent(pair, WRITES["claim"]()))
    assert changes(pair) == before + 1


# Faults: a shortfall that was raised burned a token, and a transition repeated after it was said to be
# confirmed. `consume` raised ShortfallError, so no caller was ever told ACQUIRED, and the token was
# SUCCEEDED from then on. A transition whose state stood already wrote nothing, so WAIT had nothing to wait
# for.


TRANSITIONS = {"pending": ("paid",), "paid": ()}


@pytest.fixture
def frozen_pair(pair: Pair) -> Pair:
    """A server with one replica, which is frozen."""
    pair.replica.freeze()
    return pair


def gate(pair: Pair, *, replicas: int = 1, on_shortfall: str = "raise") -> Dedup:
    return Dedup(pair.url, namespace="t", timeout=1.0, replicas=replicas, on_shortfall=on_shortfall)


async def test_a_token_that_fell_short_is_issued_again(frozen_pair: Pair) -> None:
    async with gate(frozen_pair) as dedup, gate(frozen_pair, replicas=0) as other:
        token = await other.tokens.issue()
        with pytest.raises(ShortfallError):
            await dedup.tokens.consume(token)
        assert await other.tokens.consume(token) is Outcome.ACQUIRED


async def test_a_named_use_that_fell_short_is_its_owners(frozen_pair: Pair) -> None:
    """The same owner asks again, and is asked for by the replicas' word again."""
    async with gate(frozen_pair) as dedup, gate(frozen_pair, replicas=0) as other:
        token = await other.tokens.issue()
        for _ in range(2):
            with pytest.raises(ShortfallError):
                await dedup.tokens.consume(token, owner="desk")
        assert await other.tokens.consume(token) is Outcome.SUCCEEDED
        frozen_pair.replica.thaw()

        async def is_confirmed() -> bool:
            with contextlib.suppress(ShortfallError):
                return await dedup.tokens.consume(token, owner="desk") is Outcome.ACQUIRED
            return False

        await wait_until(is_confirmed, description="the replica has the use")


async def test_an_id_that_fell_short_is_new_again(frozen_pair: Pair) -> None:
    async with gate(frozen_pair) as dedup, gate(frozen_pair, replicas=0) as other:
        ours, theirs = (each.ledger("orders", window=60, capacity=1_000) for each in (dedup, other))
        await theirs.open()
        for remember in (lambda: ours.first("1"), lambda: ours.first_many(["1", "2"])):
            with pytest.raises(ShortfallError):
                await remember()
        assert await theirs.first_many(["1", "2"]) == [True, True]


@pytest.mark.parametrize("again", ["the same gate", "another gate"])
async def test_a_repeated_transition_is_not_confirmed(frozen_pair: Pair, again: str) -> None:
    async with (
        gate(frozen_pair, on_shortfall="report") as dedup,
        gate(frozen_pair, on_shortfall="report") as other,
    ):
        machines = [
            each.machine(f"order-{len(again)}", initial="pending", transitions=TRANSITIONS)
            for each in (dedup, other)
        ]
        moved = await machines[0].transition("42", to="paid")
        assert (moved.outcome, moved.confirmed) == (TransitionOutcome.CHANGED, False)
        repeated = await machines[again == "another gate"].transition("42", to="paid")
        assert (repeated.outcome, repeated.confirmed) == (TransitionOutcome.ALREADY, False)
        frozen_pair.replica.thaw()

        async def is_confirmed() -> bool:
            return (await machines[0].transition("42", to="paid")).confirmed

        await wait_until(is_confirmed, description="the replica has the change")


async def test_a_repeated_transition_that_fell_short_raises(frozen_pair: Pair) -> None:
    async with gate(frozen_pair) as dedup:
        machine = dedup.machine("invoice", initial="pending", transitions=TRANSITIONS)
        for _ in range(2):
            with pytest.raises(ShortfallError):
                await machine.transition("42", to="paid")
