"""On Redis 8.2 `replicas=1` confirmed a repeated operation that no replica had: the repeat only read.

WAIT waits for the last write of its own connection. A repeat over a new connection wrote nothing, and then WAIT waits
for nothing on Redis 8 and Valkey 8. Redis 7.0 waits nevertheless: only the server's count of changes shows the fault
there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from fastdedup import Outcome
from fastdedup.protocol.operations import (
    AdoptOp,
    ClaimOp,
    Code,
    IssueOp,
    Mode,
    Moved,
    Op,
    ReleaseOp,
    RenewOp,
    Reply,
    SettleOp,
    Stored,
    TransitionOp,
    Verdict,
    terms,
)
from fastdedup.stores import make_store

from ..topologies import Pair

OWNER = b"\0" + b"o" * 10
KEY, TOKEN = b"t:=key", b"t:!token"


def claim() -> Op:
    return ClaimOp(KEY, terms(Mode.CLAIM, 30_000, 60_000, False), OWNER, None)


def consume() -> Op:
    return ClaimOp(TOKEN, terms(Mode.CONSUME, 30_000, 60_000, False), OWNER, None)


def issue() -> Op:
    return IssueOp(TOKEN, OWNER, None, 60_000)


def settle(*, succeeded: bool = True) -> Op:
    return SettleOp(KEY, OWNER, 0, succeeded=succeeded, keep_ms=60_000, payload=b"1")


def fail() -> Op:
    return settle(succeeded=False)


def release() -> Op:
    return ReleaseOp(KEY, OWNER, 0)


def release_token() -> Op:
    return ReleaseOp(TOKEN, OWNER, 0, consumed=True)


def renew() -> Op:
    return RenewOp(KEY, OWNER, 0, 30_000, 60_000)


def transition() -> Op:
    return TransitionOp(
        b"t:~machine",
        to="b",
        initial="a",
        sources=frozenset("a"),
        version=None,
        change=b"c" * 10,
        keep_ms=60_000,
    )


def adopt() -> Op:
    record = Stored(
        "S", owner=OWNER, fence=7, attempt=1, left_ms=60_000, ttl_ms=60_000, fingerprint=None, payload=b"1"
    )
    return AdoptOp(KEY, record, None)


REPEATED = {
    "claim": [claim],
    "complete": [claim, settle],
    "fail": [claim, fail],
    "release": [claim, release],
    "renew": [claim, renew],
    "issue": [issue],
    "consume": [issue, consume],
    "release of a consumed token": [issue, consume, release_token],
    "transition": [transition],
    "adopt": [adopt],
}
"""The operations that lead to a repeat; the last is sent twice."""


@pytest.fixture(scope="module")
def running() -> Iterator[Pair]:
    pair = Pair()
    try:
        yield pair.start()
    finally:
        pair.stop()


@pytest.fixture
def pair(running: Pair) -> Iterator[Pair]:
    """A server with one replica."""
    yield running
    running.heal()


async def sent(pair: Pair, op: Op, timeout: float = 2.0) -> Reply:
    """Execute an operation over a connection of its own."""
    store = make_store(pair.url, timeout, replicas=1)
    await store.open()
    try:
        [reply] = await store.execute(op.verb, [op])
        return reply
    finally:
        await store.aclose()


def is_done(reply: Any) -> bool:
    code = getattr(reply, "code", reply)
    return code in (Code.OK, Code.UNCONFIRMED) or getattr(reply, "outcome", None) is Outcome.ACQUIRED


def is_short(reply: Reply) -> bool:
    return reply.short if isinstance(reply, Verdict | Moved) else reply is Code.UNCONFIRMED


def changes(pair: Pair) -> int:
    """How many changes the server has made; each goes to its replicas."""
    with pair.primary.client() as raw:
        return int(raw.info("persistence")["rdb_changes_since_last_save"])


@pytest.mark.parametrize("name", REPEATED)
async def test_a_repeat_writes_again(pair: Pair, name: str) -> None:
    """So WAIT behind the repeat waits for the first write as well; the answer stays the same."""
    for make in REPEATED[name]:
        assert is_done(await sent(pair, make()))
    before = changes(pair)
    assert is_done(await sent(pair, REPEATED[name][-1]()))
    assert changes(pair) > before


async def test_a_repeated_claim_with_a_shorter_lease_writes_again(pair: Pair) -> None:
    """The longer lease stays, so neither the deadline nor the expiry is written."""
    long_terms = terms(Mode.CLAIM, 60_000, 120_000, False)
    assert is_done(await sent(pair, ClaimOp(KEY, long_terms, OWNER, None)))
    before = changes(pair)
    assert is_done(await sent(pair, claim()))
    assert changes(pair) > before


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("name", sorted(REPEATED.keys() - {"adopt"}))
async def test_a_repeat_is_short_while_no_replica_has_it(pair: Pair, name: str, frozen: bool) -> None:
    """Each try has a connection of its own, as after a lost reply. An adoption is never marked."""
    *before, last = REPEATED[name]
    for make in before:
        assert is_done(await sent(pair, make()))
    if frozen:
        pair.replica.freeze()
    replies = [await sent(pair, last(), 0.1 if frozen else 2.0) for _ in range(2)]
    assert all(is_done(reply) for reply in replies)
    assert [is_short(reply) for reply in replies] == [frozen, frozen]


async def test_a_fresh_claim_writes_once(pair: Pair) -> None:
    """Only repeats pay for the second write."""
    before = changes(pair)
    assert is_done(await sent(pair, claim()))
    assert changes(pair) == before + 1
