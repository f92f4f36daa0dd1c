"""`fastdedup.sync`: ledgers. `tests/contract/` has what both kinds of code are promised."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from fastdedup import ConfigError, UnavailableError
from fastdedup import Dedup as AsyncDedup
from fastdedup.kernel.codes import Code
from fastdedup.kernel.granted import GRANTED
from fastdedup.ledger.views import PACE
from fastdedup.sync import Dedup, Ledger
from fastdedup.sync import loop as background

from ..fixtures import fixture_with
from ..servers import RedisServer
from ..waiting import wait_until

dedup = fixture_with(lambda redis_url: Dedup(redis_url, namespace="sync-ledger", timeout=5.0))


def made(dedup: Dedup, name: str) -> Ledger:
    return dedup.ledger(name, window=60, capacity=1000)


def test_a_ledger_shows_its_settings(dedup: Dedup) -> None:
    ledger = made(dedup, "shown")
    assert (ledger.name, ledger.capacity, ledger.window) == ("shown", 1000, 60)
    assert repr(ledger) == "<sync.Ledger 'shown' capacity=1000 window=60>"


def test_a_list_is_read_in_the_callers_thread(dedup: Dedup) -> None:
    """An iterator of the caller's may be anything, also what blocks."""
    read_by = set[threading.Thread]()

    def read() -> Iterator[str]:
        read_by.add(threading.current_thread())
        yield from ("a", "b", "a")

    ledger = made(dedup, "listed")
    assert ledger.first_many(read()) == [True, True, False]
    assert ledger.first_many(read(), owner="me") == [False, False, False]
    assert read_by == {threading.current_thread()}


@contextmanager
def interrupted_as_answered(meanwhile: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Interrupt the call of this block when its answer has come; before that, something happens."""

    def interrupted(thread: background.LoopThread, wait: Any, seconds: float) -> None:
        assert wait(5)
        patched.undo()
        meanwhile()
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(background.LoopThread, "_wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            yield


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
) -> None:
    """An interrupt comes when the answer has: nobody knows that the id is remembered, so it is new again."""
    ledger = made(dedup, "late")
    ledger.seen("ledger is founded")
    with interrupted_as_answered():
        answered(dedup, ledger)
    await wait_until(lambda: is_undone(dedup, ledger), description="it is taken back")


def is_stale(ledger: Ledger) -> None:
    """Let another call learn that the known form is too old."""
    ledger.bound.latest.form.judge(Code.STALE)


def is_resized(ledger: Ledger) -> None:
    assert ledger.resize(capacity=5000).switch_in == 0


@pytest.mark.parametrize("changes", [is_stale, is_resized])
async def test_a_call_is_taken_back_by_the_form_that_it_was_sent_by(
    dedup: Dedup, changes: Callable[[Ledger], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = made(dedup, changes.__name__)
    ledger.seen("ledger is founded")
    monkeypatch.setattr(PACE, "announce_ms", 0)
    with interrupted_as_answered(lambda: changes(ledger)):
        ledger.first_many(["one", "two"])
    await wait_until(lambda: not (ledger.seen("one") or ledger.seen("two")), description="it is taken back")


async def test_an_id_that_is_taken_back_is_no_longer_this_processes_own() -> None:
    """Another process may have it next, and lose its reply: till then the id is not told as remembered."""
    async with AsyncDedup("memory://") as gate:
        ledger = await gate.ledger("late", window=60.0, capacity=1000).open()
        assert ledger.view is not None
        place = b"".join(ledger.view.addresses.find(b"id"))
        answers, take_back = await ledger.first_undoable([b"id"])
        assert answers == [True]
        assert GRANTED.lately(place)
        take_back()
        assert not GRANTED.lately(place)


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
