"""A key is forgotten in an outage: before its record was sent, on its way, and when the answer was lost."""

from __future__ import annotations

import pytest

from fastdedup import Outcome
from fastdedup.events import Unreplayed
from fastdedup.fallback.journal import Journal, JournalLine
from fastdedup.kernel.codes import Code
from fastdedup.kernel.operations import ForgetOp, ReadOp

from .lab import WIRE, Home, forget, release, settle


def held(home: Home, *, success: bool) -> None:
    home.ask(home.claim("k", "ann"))
    if success:
        home.ask(settle("k", "ann"))


each_state = pytest.mark.parametrize("success", [False, True], ids=["claim", "success"])


@each_state
def test_forgotten_before_it_was_sent_it_is_nobodys_business(success: bool) -> None:
    home = Home()
    held(home, success=success)
    assert home.ask(forget("k")) is Code.OK
    assert home.policy.lines == 0
    assert not home.policy.holds(WIRE("k"))


@each_state
@pytest.mark.parametrize("answered", [True, False], ids=["answered", "answer lost"])
def test_forgotten_on_its_way_it_is_removed_from_the_store(success: bool, answered: bool) -> None:
    home = Home()
    held(home, success=success)
    lines = home.sent()
    home.ask(forget("k"))
    assert home.policy.holds(WIRE("k")), "the store may have it"
    assert (home.judged(lines) if answered else home.lost(lines)) == []
    assert home.comes_home() == []
    home.now += 0.002
    assert home.stands("k") is None


@each_state
def test_forgotten_after_an_answer_was_lost_it_is_removed_from_the_store(success: bool) -> None:
    home = Home()
    held(home, success=success)
    home.lost(home.sent())
    home.ask(forget("k"))
    assert home.comes_home() == []
    home.now += 0.002
    assert home.stands("k") is None


@each_state
def test_forgotten_and_claimed_again_the_new_owner_comes_home(success: bool) -> None:
    home = Home()
    held(home, success=success)
    home.lost(home.sent())
    home.ask(forget("k"))
    assert home.ask(home.claim("k", "bob")).outcome is Outcome.ACQUIRED
    assert home.comes_home() == []
    assert home.stands("k")[:2] == ("P", "bob")  # type: ignore[index]


@each_state
def test_another_owners_record_is_not_removed_in_place_of_the_forgotten_one(success: bool) -> None:
    """It was made after the key was forgotten here: whoever made it was told that it is new."""
    home = Home()
    held(home, success=success)
    home.unasked(home.sent(), asked=True)
    home.ask(forget("k"))
    home.in_store(home.claim("k", "eve"))
    assert home.comes_home() == []
    assert home.stands("k")[:2] == ("P", "eve")  # type: ignore[index]


def test_nor_where_it_changes_hands_between_looking_and_removing() -> None:
    home = Home()
    held(home, success=False)
    home.lost(home.sent())
    home.ask(forget("k"))
    looks = home.sent()
    assert [type(line) for line in looks] == [ReadOp]
    home.judged(looks)
    removal = home.sent()
    home.in_store(release("k", "ann"))
    home.in_store(home.claim("k", "eve"))
    home.judged(removal)
    assert home.stands("k")[:2] == ("P", "eve")  # type: ignore[index]


def test_a_removal_that_was_not_answered_is_not_tried_twice_and_that_is_said() -> None:
    home = Home()
    held(home, success=True)
    home.lost(home.sent())
    home.ask(forget("k"))
    home.judged(home.sent())
    removal = home.sent()
    assert [type(line) for line in removal] == [ForgetOp]
    assert home.unasked(removal) == [], "it was not even sent"
    home.judged(home.sent())
    (event,) = home.unasked(home.sent(), asked=True)
    assert event == Unreplayed("t", "k", "", "whether the store has forgotten it is unknown")
    assert home.policy.lines == 0


class CountedJournal(Journal):
    """Counts the lines that are looked at."""

    looked_at = 0

    def all(self) -> list[tuple[bytes, JournalLine]]:
        self.looked_at += len(self)
        return super().all()


def test_lines_of_what_was_forgotten_are_not_looked_at_each_time() -> None:
    """There is nothing to strike among them; with 8,000 each operation blocked the event loop for 6 ms."""
    journal = CountedJournal()
    for number in range(8_000):
        line = JournalLine(b"t:=%d" % number, "", None)
        line.forgotten = True
        journal.put(line)
        journal.sweep(0, lambda wire: False)
    assert len(journal) == 8_000
    assert journal.looked_at <= 2 * len(journal)
    for number in range(20_000):
        journal.put(JournalLine(b"u:=%d" % number, "", None))
        journal.sweep(0, lambda wire: False)
    assert len(journal) <= 2 * 8_000, "those of expired records are struck"
