"""A key that the ACL keeps from the login failed its neighbours, opened the breaker and blocked all undoing."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

import pytest
import redis

from fastdedup import BreakerState, Claim, Dedup, LocalLRU, UnavailableError
from fastdedup.kernel.operations import ClaimOp, IssueOp
from fastdedup.kernel.replies import RefusedAlone
from fastdedup.kernel.terms import Mode, terms
from fastdedup.kernel.verbs import Verb
from fastdedup.ledger.forms import DENSE_WIDTH, LedgerForm
from fastdedup.ledger.operations import FOREVER_MS, FirstOp, LedgerTerms

from ..servers import RedisServer
from ..sidecars import Sidecar
from ..topologies import ClusterGroup, refuse_undeclared_keys
from ..waiting import acquired, wait_until
from .test_records_that_cannot_be_used import HELD, MAKE, OWNER, fine

MINUTE = 60_000
RULES = ["on", ">secret:word", "resetkeys", "~t:=ok*", "~t:~*", "~fastdedup:*", "&*", "+@all"]


def let_app_in(raw: redis.Redis) -> None:
    """Make a login that may use keys that begin with ok, may read those that begin with ro, and no others."""
    raw.execute_command("ACL", "SETUSER", "app", *RULES)
    # Redis 6.2 has no rule for reading alone, so it forbids those keys altogether.
    with contextlib.suppress(redis.ResponseError):
        raw.execute_command("ACL", "SETUSER", "app", "%R~t:=ro*")


def as_app(url: str) -> str:
    return url.replace("://", "://app:secret%3Aword@")


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        with server.client() as raw:
            let_app_in(raw)
        yield server


@pytest.fixture(scope="module")
def group() -> Iterator[ClusterGroup]:
    with ClusterGroup(replicas=0) as group:
        for member in group.members:
            with member.client() as raw:
                let_app_in(raw)
        yield group


@pytest.fixture(params=["single", "whole", "by slot"])
def url(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A single Redis, and both ways in which batches go to the nodes of a Cluster; emptied after the test."""
    if request.param == "by slot":
        refuse_undeclared_keys(monkeypatch)
    if request.param == "single":
        server = request.getfixturevalue("server")
        yield server.url
        with server.client() as raw:
            raw.flushdb()
    else:
        group = request.getfixturevalue("group")
        yield group.url
        for member in group.members:
            member.ask("FLUSHALL")


@pytest.mark.parametrize("bad", ["bad", "ro"])
async def test_neighbours_of_a_forbidden_key_are_answered(url: str, bad: str) -> None:
    """Keys of one slot, too: those with a tag. `ro`: the login may read it, and not write it."""
    names = [f"ok{number}" for number in range(6)] + [f"ok{{tag}}{number}" for number in range(6)]
    forbidden = [bad, bad + "{tag}"]
    async with Dedup(as_app(url), namespace="t", timeout=5.0) as dedup:
        asked = [*names[:3], forbidden[0], *names[3:9], forbidden[1], *names[9:]]
        answers = dict(
            zip(
                asked,
                await asyncio.gather(*(dedup.claim(key) for key in asked), return_exceptions=True),
                strict=True,
            )
        )
        refused = [answers.pop(key) for key in forbidden]
        for answer in refused:
            assert isinstance(answer, UnavailableError)
            assert "the Redis user may not do this" in str(answer)
            assert "secret:word" not in str(answer)
            assert bad not in str(answer).split(": ", 1)[-1]
        assert all(isinstance(claim, Claim) and claim.acquired for claim in answers.values())
        assert len(dedup.gate.connection.orphans) == 0


async def test_forbidden_keys_do_not_open_the_breaker(url: str) -> None:
    async with Dedup(as_app(url), namespace="t", timeout=5.0) as dedup:
        for number in range(12):
            with pytest.raises(UnavailableError, match="the Redis user may not do this"):
                await dedup.claim(f"bad{number}")
            assert dedup.breaker is BreakerState.CLOSED
        assert len(dedup.gate.connection.orphans) == 0
        assert (await dedup.claim("ok")).acquired


async def test_no_policy_grants_a_forbidden_key(url: str) -> None:
    """Redis answers, and another login may have used the key."""
    async with Dedup(as_app(url), namespace="t", timeout=5.0, on_unavailable=LocalLRU()) as dedup:
        with pytest.raises(UnavailableError, match="the Redis user may not do this") as refused:
            await dedup.claim("bad")
        assert refused.value.owner


@pytest.mark.parametrize("name", MAKE)
async def test_every_verb_refuses_a_forbidden_key_alone(url: str, name: str) -> None:
    """Of other slots and of its own slot."""
    async with Dedup(as_app(url), namespace="t", timeout=5.0) as dedup:
        store = dedup.gate.connection.store
        healthy = [b"t:=ok-%d" % number for number in range(4)] + [b"t:=ok{tag}"]
        if name in HELD:
            held = terms(Mode.CLAIM, MINUTE, MINUTE, False)
            await store.execute(Verb.CLAIM, [ClaimOp(wire, held, OWNER, None) for wire in healthy])
        ops = [MAKE[name](wire) for wire in (*healthy[:2], b"t:=bad{tag}", *healthy[2:])]
        replies = list(await store.execute(ops[0].verb, ops))
        assert isinstance(replies.pop(2), RefusedAlone)
        assert all(fine(name, reply) for reply in replies)


@pytest.mark.parametrize("name", sorted(MAKE.keys() - {"read"}))
async def test_every_verb_refuses_a_readable_key_alone(group: ClusterGroup, name: str) -> None:
    """The login may read it, so the verb finds a record that it would write again."""
    bad, healthy = (
        b"t:=ro-" + name.encode(),
        [b"t:=ok-%b-%d" % (name.encode(), number) for number in range(4)],
    )
    held = terms(Mode.CLAIM, MINUTE, MINUTE, False)
    issued = name in ("redeem", "consume", "issue")
    async with (
        Dedup(as_app(group.url), namespace="t", timeout=5.0) as dedup,
        Dedup(group.url, namespace="t", timeout=5.0) as admin,
    ):
        store, maker = dedup.gate.connection.store, admin.gate.connection.store
        if issued:
            await maker.execute(Verb.ISSUE, [IssueOp(bad, OWNER, None, MINUTE)])
        elif name in ("claim", *HELD):
            owned = (bad, *healthy) if name in HELD else (bad,)
            await maker.execute(Verb.CLAIM, [ClaimOp(wire, held, OWNER, None) for wire in owned])
        ops = [MAKE[name](wire) for wire in (*healthy[:2], bad, *healthy[2:])]
        replies = list(await store.execute(ops[0].verb, ops))
        assert isinstance(replies.pop(2), RefusedAlone)
        assert all(fine(name, reply) for reply in replies)


async def test_a_dense_id_that_cannot_be_written_is_refused_to_all(group: ClusterGroup) -> None:
    """Another copy of the call got OK, and another call a duplicate, in one batch; but the id was not remembered."""
    form = LedgerForm(capacity=1000, width=DENSE_WIDTH, window_ms=MINUTE, secret=bytes(32))
    shared, digest = LedgerTerms(form, "set", FOREVER_MS), bytes(DENSE_WIDTH)
    async with Dedup(as_app(group.url), namespace="t", timeout=5.0) as dedup:
        calls = (b"one1\1", b"one1\1", b"two2\1", b"two2\0")
        ops = [FirstOp(b"t:=ro{A}AAAA", digest + nonce, shared) for nonce in calls]
        replies = await dedup.gate.connection.store.execute(Verb.FIRST, ops)
        assert [type(reply) for reply in replies] == [RefusedAlone] * len(calls)


async def test_undoing_goes_on_beside_a_forbidden_key(server: RedisServer) -> None:
    async with (
        Dedup(as_app(server.url), namespace="t", timeout=0.2) as dedup,
        Dedup(server.url, namespace="t", timeout=5.0) as other,
    ):
        await dedup.claim("ok-first")
        with server.frozen():
            for key in ("ok-given-up", "bad-given-up"):
                with pytest.raises(UnavailableError):
                    await dedup.claim(key, lease=60)
        undo = dedup.gate.connection.orphans
        assert len(undo) == 2
        await acquired(other, "ok-given-up", lease=60)
        await wait_until(lambda: len(undo) == 0, description="nothing is left to undo")


async def test_a_sidecars_client_gives_no_forbidden_key_up(server: RedisServer) -> None:
    """The sidecar tells its client that nothing was done."""
    with Sidecar(as_app(server.url)) as sidecar:
        async with Dedup(sidecar.url, namespace="t", timeout=5.0) as dedup:
            bad, fine_one = await asyncio.gather(
                dedup.claim("bad"), dedup.claim("ok-of-a-client"), return_exceptions=True
            )
            assert isinstance(bad, UnavailableError)
            assert isinstance(fine_one, Claim)
            assert fine_one.acquired
            assert len(dedup.gate.connection.orphans) == 0
