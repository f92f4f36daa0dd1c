"""`fastdedup.sync`: ledgers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from fastdedup import ConfigError, InvalidKeyError, Outcome, UnavailableError
from fastdedup.kernel.operations import ForgetOp
from fastdedup.sync import Claim, Dedup, Ledger
from fastdedup.sync import loop as background

from ..fixtures import fixture_with
from ..servers import RedisServer
from ..waiting import wait_until

dedup = fixture_with(lambda redis_url: Dedup(redis_url, namespace="sync-ledger", timeout=5.0))


def made(dedup: Dedup, name: str) -> Ledger:
    return dedup.ledger(name, window=60, capacity=1000)


def test_an_id_is_first_once(dedup: Dedup) -> None:
    ledger = made(dedup, "once")
    assert [ledger.first("id"), ledger.first("id")] == [True, False]
    assert ledger.first_many(iter(["a", "b", "a", "id"])) == [True, True, False, False]
    assert (ledger.seen("a"), ledger.seen("never")) == (True, False)
    assert (ledger.forget("a"), ledger.forget("a"), ledger.seen("a")) == (True, False, False)
    stats = ledger.stats()
    assert (stats.ids, stats.capacity, ledger.name, ledger.capacity, ledger.window) == (
        2,
        1000,
        "once",
        1000,
        60,
    )
    assert repr(ledger) == "<sync.Ledger 'once' capacity=1000 window=60>"


def test_a_named_call_gets_its_answer_again(dedup: Dedup) -> None:
    ledger = made(dedup, "named")
    assert [ledger.first("id", owner="me") for _ in range(2)] == [True, True]
    assert [ledger.first_many(["x", "y"], owner="me") for _ in range(2)] == [[True, True]] * 2
    assert ledger.first("id", owner="you") is False


def test_mistakes_are_told_where_they_are_made(dedup: Dedup) -> None:
    with pytest.raises(ConfigError, match="capacity"):
        dedup.ledger("wrong", window=5.0, capacity=0)
    with pytest.raises(InvalidKeyError):
        made(dedup, "wrong").first("")
    with pytest.raises(InvalidKeyError):
        made(dedup, "wrong").first_many(["good", 1.5])


@pytest.mark.parametrize(
    ("answered", "is_undone"),
    [
        (lambda gate, ledger: ledger.first("id"), lambda gate, ledger: not ledger.seen("id")),
        (lambda gate, ledger: ledger.first_many(["id"]), lambda gate, ledger: not ledger.seen("id")),
        (
            lambda gate, ledger: gate.claim("k", remember=ledger),
            lambda gate, ledger: gate.claim("k", remember=ledger, owner="me").acquired,
        ),
        (lambda gate, ledger: gate.claim("k"), lambda gate, ledger: gate.claim("k", owner="me").acquired),
    ],
    ids=["an id", "a list", "a claim", "a claim without a ledger"],
)
async def test_an_answer_too_late_for_its_caller_is_taken_back(
    dedup: Dedup,
    answered: Callable[[Dedup, Ledger], Any],
    is_undone: Callable[[Dedup, Ledger], bool],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An interrupt comes when the answer has: nobody knows that the id is remembered, so it is new again."""
    ledger = made(dedup, "late")
    ledger.seen("ledger is founded")

    def interrupted(thread: background.LoopThread, work: Any, seconds: float) -> None:
        assert work.wait(5)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(background.LoopThread, "_wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            answered(dedup, ledger)
    await wait_until(lambda: is_undone(dedup, ledger), description="it is taken back")


async def test_an_unanswered_call_is_taken_back(server: RedisServer) -> None:
    """A frozen server finds the commands in its socket when it thaws. A named call is asked again by its owner."""
    with Dedup(server.url, namespace="sync-ledger", timeout=0.2) as dedup:
        ledger = made(dedup, "unanswered").open()

        def is_seen(name: str) -> bool | None:
            try:
                return ledger.seen(name)
            except UnavailableError:
                return None

        calls = (
            lambda: ledger.first("alone"),
            lambda: ledger.first_many(["listed"]),
            lambda: ledger.first("kept", owner="me"),
        )
        with server.frozen():  # together, as only the open connection takes what a frozen server finds later
            lost = await asyncio.gather(*map(asyncio.to_thread, calls), return_exceptions=True)
        assert {type(each) for each in lost} == {UnavailableError}
        await wait_until(lambda: is_seen("kept"), description="the server has found the commands")
        await wait_until(lambda: is_seen("alone") is False, description="it is taken back")
        await wait_until(lambda: is_seen("listed") is False, description="it is taken back")
        assert ledger.first("kept", owner="me") is True


def test_to_open_it_shows_mistakes_at_once(dedup: Dedup) -> None:
    assert made(dedup, "opened").open().first("id") is True
    with pytest.raises(ConfigError, match="was created with capacity="):
        dedup.ledger("opened", window=60, capacity=7).open()


# Claims whose success a ledger remembers


def end_echo(dedup: Dedup, claim: Claim) -> None:
    """Do what the end of the echo's minute does."""
    background, gate = dedup.bound.get()
    background.run(lambda: gate.gate.run(ForgetOp(claim.asynchronous.settlement.held_key[0])), 5.0)


def test_a_success_is_remembered_without_its_result(dedup: Dedup) -> None:
    ledger = made(dedup, "done")
    with dedup.claim("k", remember=ledger) as claim:
        assert claim.acquired
        assert not claim.remembered
        claim.complete({"n": 1})
    echo = dedup.claim("k", remember=ledger)
    assert (echo.outcome, echo.result, echo.remembered) == (Outcome.SUCCEEDED, {"n": 1}, False)
    end_echo(dedup, claim)
    later = dedup.claim("k", remember=ledger, wait=1.0)
    assert (later.outcome, later.result, later.remembered) == (Outcome.SUCCEEDED, None, True)
    assert ledger.first("k") is False
    claims = dedup.claim_many(["k", "new", "new"], remember=ledger)
    assert [claim.outcome for claim in claims] == ["succeeded", "acquired", "in_progress"]


def test_once_runs_once_for_a_ledger(dedup: Dedup) -> None:
    runs = []

    @dedup.once(key=lambda n: f"order:{n}", remember=made(dedup.scoped("shop"), "once-done"))
    def pay(n: int) -> int:
        runs.append(n)
        return n

    assert [pay(7), pay(7), pay(8)] == [7, 7, 8]
    assert runs == [7, 8]


def test_what_is_no_ledger_of_the_gate_is_refused(dedup: Dedup) -> None:
    with Dedup("memory://") as other:
        for wrong in (made(other, "done"), "done"):
            with pytest.raises(ConfigError, match="remember must be a ledger of this gate"):
                dedup.claim("k", remember=wrong)  # type: ignore[arg-type]
