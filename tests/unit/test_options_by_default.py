"""Options that a caller does not give: a lease is renewed while a body runs, and `wait=None` is the API's default."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any

import pytest

from fastdedup import Dedup, Ledger, Outcome
from fastdedup.integrations.dramatiq import DedupMiddleware
from fastdedup.integrations.taskiq import DedupMiddleware as TaskiqMiddleware
from fastdedup.messages.dispatch import SyncDispatcher
from fastdedup.messages.keys import body_digest
from fastdedup.messages.rules import WAIT, MessageRules
from fastdedup.sql import Inbox
from fastdedup.sync import Dedup as SyncDedup
from fastdedup.testing.probe import probe
from fastdedup.web.request import everyone
from fastdedup.web.rules import Rule

from ..fixtures import fixture_of
from ..programs import until

Given = dict[str, Any]
TRI = [({}, 1), ({"renew": None}, 1), ({"renew": True}, 1), ({"renew": False}, 0)]


async def token_of(dedup: Dedup) -> str:
    return await dedup.tokens.issue(subject="ann")


def _ledger(dedup: Any) -> Ledger:
    return dedup.ledger("ids", window=3600, capacity=1000)  # type: ignore[no-any-return]


async def not_asked(takeover: Any) -> Any:
    raise AssertionError(takeover)


CALLS: dict[str, Callable[..., AbstractAsyncContextManager[Any]]] = {
    "claim": lambda dedup, **given: dedup.claim("key", **given),
    "claim that a ledger remembers": lambda dedup, **given: dedup.claim(
        "key", remember=_ledger(dedup), **given
    ),
    "claim that is asked about": lambda dedup, **given: dedup.claim("key", resolve=not_asked, **given),
    "claim that waits": lambda dedup, **given: dedup.claim("key", wait=1.0, **given),
    "lock": lambda dedup, **given: dedup.lock("key", **given),
}


dedup = fixture_of(SyncDedup, "memory://")


@pytest.mark.parametrize(("given", "renewals"), TRI, ids=str)
@pytest.mark.parametrize("name", CALLS)
async def test_the_lease_is_renewed_while_a_body_runs(name: str, given: Given, renewals: int) -> None:
    async with Dedup("memory://") as dedup:
        async with CALLS[name](dedup, **given):
            assert probe(dedup).renewals == renewals
        assert probe(dedup).renewals == 0


@pytest.mark.parametrize(("given", "renewals"), TRI, ids=str)
async def test_so_is_the_lease_of_a_token(given: Given, renewals: int) -> None:
    async with Dedup("memory://") as dedup:
        async with dedup.tokens.redeem(await token_of(dedup), "ann", **given):
            assert probe(dedup).renewals == renewals
        assert probe(dedup).renewals == 0


async def test_a_claim_without_a_body_is_renewed_only_if_its_caller_asks_for_it() -> None:
    async with Dedup("memory://") as dedup:
        plain = await dedup.claim("plain")
        asked = await dedup.claim("asked", resolve=not_asked)
        (listed,) = await dedup.claim_many(["listed"])
        assert probe(dedup).renewals == 0
        renewed = await dedup.claim("renewed", renew=True)
        assert probe(dedup).renewals == 1
        for claim in (plain, asked, listed, renewed):
            await claim.complete()
        assert probe(dedup).renewals == 0


LOCKS: list[tuple[Given, int]] = [
    ({}, 1),
    ({"renew": False}, 0),
    ({"lease": 30.0}, 0),
    ({"lease": 30.0, "renew": True}, 1),
]
"""Options of a lock: one that names its lease is held no longer, unless it says `renew=True`, like Redisson's."""


@pytest.mark.parametrize(("given", "renewals"), LOCKS, ids=str)
async def test_a_lock_that_names_its_lease_is_held_no_longer(given: Given, renewals: int) -> None:
    async with Dedup("memory://") as dedup, dedup.lock("key", **given):
        assert probe(dedup).renewals == renewals


SYNC_CALLS: dict[str, Callable[..., AbstractContextManager[Any]]] = {
    "claim": lambda dedup, **given: dedup.claim("key", **given),
    "one of a list": lambda dedup, **given: dedup.claim_many(["key"], **given)[0],
    "claim that is asked about": lambda dedup, **given: dedup.claim("key", resolve=lambda _: None, **given),
    "token": lambda dedup, **given: dedup.tokens.redeem(
        dedup.tokens.issue(subject="ann"), subject="ann", **given
    ),
}


@pytest.mark.parametrize(("given", "renewals"), TRI, ids=str)
@pytest.mark.parametrize("name", SYNC_CALLS)
def test_so_is_that_of_synchronous_code(dedup: SyncDedup, name: str, given: Given, renewals: int) -> None:
    claim = SYNC_CALLS[name](dedup, **given)
    assert probe(dedup).renewals == bool(given.get("renew"))
    with claim:
        assert probe(dedup).renewals == renewals
    assert probe(dedup).renewals == 0


def test_a_claim_that_was_settled_before_its_block_is_not_renewed(dedup: SyncDedup) -> None:
    """In a block that ends at once the background thread may start the renewal after the settling has begun."""
    claim = dedup.claim("key")
    claim.complete(1)
    with claim:
        assert probe(dedup).renewals == 0


def test_a_block_that_begins_after_its_lease_has_ended_has_it_again_if_no_other_owner_took_the_key(
    dedup: SyncDedup,
) -> None:
    claim = dedup.claim("key", lease=0.05)
    life = claim.asynchronous.settlement
    life.op.at -= 0.05
    with claim:
        until(lambda: life.renewed_until > 0, "it is renewed")
    assert not claim.lost
    assert dedup.claim("key").outcome is Outcome.SUCCEEDED


def test_an_abandoned_block_is_not_renewed(dedup: SyncDedup) -> None:
    claim = dedup.claim("key", lease=0.09)
    claim.__enter__()
    assert probe(dedup).renewals == 1
    del claim
    until(lambda: dedup.claim("key").acquired, "its lease ends")


def test_a_block_that_an_interrupt_kept_from_beginning_is_not_renewed(
    dedup: SyncDedup, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = dedup.claim("key")
    tell = claim.background.thread.tell

    def interrupted(callback: Callable[[], object]) -> None:
        monkeypatch.undo()
        tell(callback)
        raise KeyboardInterrupt

    monkeypatch.setattr(claim.background.thread, "tell", interrupted)
    with pytest.raises(KeyboardInterrupt):
        claim.__enter__()
    assert probe(dedup).renewals == 0
    claim.release()


def test_a_block_that_has_ended_before_the_thread_looked_is_not_renewed(
    dedup: SyncDedup, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim, later = dedup.claim("key"), list[Callable[[], object]]()
    monkeypatch.setattr(claim.background.thread, "tell", later.append)
    monkeypatch.setattr(type(claim), "leave", lambda claim, error: None)  # it could not settle
    with claim:
        pass
    monkeypatch.undo()
    for callback in later:
        claim.background.thread.tell(callback)
    assert probe(dedup).renewals == 0


def test_a_synchronous_lock_is_renewed_while_its_block_runs(dedup: SyncDedup) -> None:
    for given, renewals in LOCKS:
        with dedup.lock("key", **given):
            assert probe(dedup).renewals == renewals


async def test_none_is_the_wait_of_the_api() -> None:
    async with Dedup("memory://") as dedup:
        held = await dedup.claim("key", wait=None)
        assert (await dedup.claim("key", wait=None)).outcome is Outcome.IN_PROGRESS
        assert [each.outcome for each in await dedup.claim_many(["key"], wait=None)] == [Outcome.IN_PROGRESS]
        await held.release()
        async with dedup.lock("key", wait=None):
            pass

        @dedup.once(key=lambda: "once", wait=None)
        async def once() -> int:
            return 1

        assert await once() == 1
        assert (await dedup.tokens.redeem(await token_of(dedup), "ann", wait=None)).acquired
        Inbox("box", keep=86_400, begin=object).once(key=lambda: "k", gate=dedup, wait=None)
        assert TaskiqMiddleware(dedup, wait=None) is not None
    assert MessageRules("c", body_digest, wait=None).wait == WAIT
    assert Rule("/", everyone, wait=None).wait == 0.0
    with SyncDedup("memory://") as sync:
        assert sync.claim("key", wait=None).acquired
        assert DedupMiddleware(sync, wait=None) is not None
        assert SyncDispatcher("c", sync, key=body_digest, wait=None) is not None
