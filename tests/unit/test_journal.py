"""The journal comes home: what is sent, what an answer changes, and what becomes of it when the answer is lost."""

from __future__ import annotations

from typing import Any

import pytest

from fastdedup import Outcome
from fastdedup.events import Conflict, Unreplayed
from fastdedup.fallback.journal import Journal, JournalLine
from fastdedup.kernel.codes import Code
from fastdedup.kernel.operations import AdoptOp, ClaimOp, ForgetOp, ReadOp, Verdict
from fastdedup.kernel.owners import owner_field
from fastdedup.kernel.replies import Adopted
from fastdedup.kernel.terms import Mode, terms

from .lab import TTL, WIRE, Home, Lab, forget, issue, release, renew, settle, touch


def line_of(lab: Lab) -> AdoptOp:
    (line,) = lab.policy.next_operations(10)
    assert isinstance(line, AdoptOp)
    return line


def lane_of(wire: bytes) -> bytes:
    """The first letter of the key."""
    return wire.partition(b"=")[2][:1]


def conflict(ours: str, theirs: str, kept: str) -> Conflict:
    return Conflict("t", "k", ours, theirs, kept)


# What is sent


def test_a_thousand_changes_of_a_key_are_one_line_with_the_record_as_it_is_by_then(home: Home) -> None:
    for number in range(500):
        home.ask(home.claim("k", f"owner {number}"))
        home.ask(release("k", f"owner {number}"))
    home.ask(home.claim("k", "ann"))
    home.ask(settle("k", "ann"))
    assert home.policy.lines == 1
    assert home.comes_home() == []
    assert home.stands("k") == ("S", "ann", b'"done"')


def test_a_line_names_the_owner_that_the_store_has(home: Home) -> None:
    home.both(home.claim("k", "ann"))
    home.ask(settle("k", "ann"))
    record = home.store.entry(WIRE("k"))
    assert record is not None
    assert line_of(home).base == (owner_field("ann"), record.fence)


def test_the_oldest_go_first_and_those_that_were_refused_go_last(home: Home) -> None:
    for key in "abc":
        home.ask(home.claim(key, "ann"))
    first = home.policy.next_operations(2)
    assert [line.wire for line in first] == [WIRE("a"), WIRE("b")]
    home.unasked(first)
    assert [line.wire for line in home.policy.next_operations(3)] == [WIRE("c"), WIRE("a"), WIRE("b")]
    assert home.policy.next_operations(3) == [], "all are under way"


def test_lines_are_taken_from_their_own_lane(home: Home) -> None:
    for key in ("a1", "b1", "a2", "b2"):
        home.ask(home.claim(key, "ann"))
    assert sorted(home.policy.lanes(lane_of)) == [b"a", b"b"]
    taken = home.policy.next_operations(10, b"a")
    assert [line.wire for line in taken] == [WIRE("a1"), WIRE("a2")]
    assert home.policy.next_operations(10, b"c") == []
    assert sorted(home.policy.lanes(lane_of)) == [b"a", b"b"], "until the store has them"
    assert home.judged(taken) == []
    assert home.policy.lanes(lane_of) == [b"b"]


def test_a_refused_line_may_wait_in_another_lane(home: Home) -> None:
    """Its key has moved to another part of the store."""
    for key in ("a1", "a2", "b1"):
        home.ask(home.claim(key, "ann"))
    home.policy.lanes(lane_of)
    for line in home.policy.next_operations(10, b"a"):
        home.policy.put_back(line, asked=False, lane=b"b")
    assert home.policy.lanes(lane_of) == [b"b"]
    lines = home.policy.next_operations(10, b"b")
    assert [line.wire for line in lines] == [WIRE("b1"), WIRE("a1"), WIRE("a2")]


def test_a_line_that_is_struck_leaves_its_lane(home: Home) -> None:
    home.ask(home.claim("a1", "ann", lease=1000))
    home.ask(settle("a1", "ann", keep=1000))
    home.policy.lanes(lane_of)
    home.now += 2
    assert not home.policy.holds(WIRE("a1"))
    assert home.policy.lanes(lane_of) == []


def test_any_number_of_expired_lines_is_passed_over_at_once() -> None:
    """Else bringing home what is left would take a pause for each few hundred of them."""
    home = Home(maxsize=5000)
    for number in range(2000):
        home.ask(home.claim(str(number), "ann", lease=1000))
        home.ask(settle(str(number), "ann", keep=1000))
    home.ask(home.claim("live", "ann"))
    home.now += 2
    assert [line.wire for line in home.policy.next_operations(256)] == [WIRE("live")]
    assert home.policy.lines == 1


def test_a_record_that_expires_on_its_way_leaves_no_line(home: Home) -> None:
    home.ask(home.claim("k", "ann"))
    home.ask(settle("k", "ann", keep=1000))
    lines = home.sent()
    home.now += 2
    assert not home.policy.holds(WIRE("k"))
    assert home.judged(lines) == []
    assert home.policy.lines == 0


# Changes while it is on its way


@pytest.mark.parametrize("answered", [True, False], ids=["answered", "answer lost"])
@pytest.mark.parametrize("change", ["settle", "release", "next owner", "renew", "touch"])
def test_what_changes_on_the_way_goes_again(change: str, answered: bool, home: Home) -> None:
    """Without a conflict: all of it happened in one process, in order."""
    home.ask(home.claim("k", "ann"))
    lines = home.sent()
    if change == "settle":
        home.ask(settle("k", "ann"))
    elif change == "renew":
        home.now += 10
        home.ask(renew("k", "ann"))
    elif change == "touch":
        home.ask(touch("k", "ann", 10 * TTL))
    else:
        home.ask(release("k", "ann"))
        if change == "next owner":
            home.ask(home.claim("k", "bob"))
    assert (home.judged(lines) if answered else home.lost(lines)) == []
    assert home.policy.holds(WIRE("k")), "until the store has it all"
    assert home.comes_home() == []
    expected = {
        "settle": ("S", "ann"),
        "release": ("R", "ann"),
        "next owner": ("P", "bob"),
        "renew": ("P", "ann"),
        "touch": ("P", "ann"),
    }
    assert home.stands("k")[:2] == expected[change]  # type: ignore[index]


@pytest.mark.parametrize("how", ["claim", "touch"])
def test_a_record_whose_time_grows_on_the_way_goes_again(how: str, home: Home) -> None:
    """Nothing else of it has changed, not even its lease."""
    home.ask(home.claim("k", "ann"))
    lines = home.sent()
    again = ClaimOp(WIRE("k"), terms(Mode.CLAIM, 1, 10 * TTL, False), owner_field("ann"), None)
    home.ask(again if how == "claim" else touch("k", "ann", 10 * TTL))
    assert home.judged(lines) == []
    assert home.policy.holds(WIRE("k"))
    assert home.comes_home() == []
    entry = home.store.entry(WIRE("k"))
    assert entry is not None
    assert entry.expires - round(home.now * 1000) > 9 * TTL


@pytest.mark.parametrize("succeeds", [False, True])
def test_an_owner_whose_claim_reply_was_lost_and_who_gave_way_here_is_no_rival(succeeds: bool) -> None:
    """The store has a claim that nobody here knows it has, of an owner who is done."""
    home = Home()
    home.in_store(home.claim("k", "ann"))
    home.ask(home.claim("k", "ann"))
    home.ask(release("k", "ann"))
    home.ask(home.claim("k", "bob"))
    if succeeds:
        home.ask(settle("k", "bob"))
    assert home.comes_home() == []
    assert home.stands("k") == (("S", "bob", b'"done"') if succeeds else ("P", "bob", b""))


# Conflicts


@pytest.mark.parametrize("number", [0, 40])
@pytest.mark.parametrize("undone", [False, True])
def test_a_claim_without_a_reply_gives_way_to_the_owner_here(number: int, undone: bool, home: Home) -> None:
    """Its caller was told of the owner here. The store may hear of it, and of its release, before the adoption."""
    lost = [home.claim("k", f"lost {each}") for each in range(41)]
    home.ask(home.claim("k", "ann"))
    for claim in lost:
        claim.at = 0.0  # the engine took it
        assert home.ask(claim).outcome is Outcome.IN_PROGRESS
    home.now += 1
    home.in_store(lost[number])
    if undone:
        home.in_store(release("k", f"lost {number}"))
    assert home.comes_home() == []
    assert home.stands("k") == ("P", "ann", b"")


def test_a_claim_that_was_not_sent_is_anothers_in_the_store(home: Home) -> None:
    home.ask(home.claim("k", "ann"))
    home.ask(home.claim("k", "bob"))
    home.in_store(home.claim("k", "bob"))
    assert home.comes_home() == [conflict("ann", "bob", "theirs")]


def test_a_key_forgotten_here_is_taken_from_a_claim_without_a_reply(home: Home) -> None:
    lost = home.claim("k", "lost")
    lost.at = 0.0  # the engine took it
    home.ask(home.claim("k", "ann"))
    home.ask(lost)
    home.ask(forget("k"))
    home.in_store(lost)
    assert home.comes_home() == []
    state = home.stands("k")
    assert state is None or state[0] not in "PW"


@pytest.mark.parametrize("success", [True, False])
def test_a_result_of_another_process_under_a_name_that_gave_way_here_is_a_conflict(success: bool) -> None:
    """Ann gave way to bob here; elsewhere ann acquired the key and recorded a result."""
    home = Home()
    home.in_store(home.claim("k", "ann"))
    result = settle("k", "ann", b'"hers"')
    result.succeeded = success
    home.in_store(result)
    home.now += 1
    home.ask(home.claim("k", "ann"))
    home.ask(release("k", "ann"))
    home.ask(home.claim("k", "bob"))
    home.ask(settle("k", "bob"))
    assert home.comes_home() == [conflict("bob", "ann", "theirs" if success else "ours")]


@pytest.mark.parametrize(
    ("stored", "ours", "is_kept", "is_told"),
    [
        (("S", b""), ("S", b'"done"'), False, True),
        (("F", b""), ("F", b'"why"'), False, True),
        (("S", b'"done"'), ("F", b'"why"'), False, True),
        (("F", b'"why"'), ("S", b'"done"'), True, False),
        (("S", b'"done"'), ("S", b""), False, False),
        (("S", b'"done"'), ("S", b'"else"'), False, False),
    ],
)
def test_an_end_that_another_end_hides_in_the_store_is_told(
    stored: tuple[str, bytes], ours: tuple[str, bytes], is_kept: bool, is_told: bool, home: Home
) -> None:
    """The store has recorded one end of the claim, and its reply was lost; then another was recorded here."""
    home.both(home.claim("k", "ann"))
    for settles, (state, payload) in ((home.in_store, stored), (home.ask, ours)):
        op = settle("k", "ann", payload)
        op.succeeded = state == "S"
        assert settles(op) is Code.OK
    assert home.comes_home() == [conflict("ann", "ann", "theirs")] * is_told
    state, payload = ours if is_kept else stored
    assert home.stands("k") == (state, "ann", payload)


def test_a_success_that_comes_while_its_claim_is_losing_outranks_the_winner(home: Home) -> None:
    """Both are told, in order: what stands in the end is what the last event says."""
    home.ask(home.claim("k", "ann"))
    home.in_store(home.claim("k", "eve"))
    lines = home.sent()
    home.ask(settle("k", "ann"))
    assert home.judged(lines) == [conflict("ann", "eve", "theirs")]
    assert home.comes_home() == [conflict("ann", "eve", "ours")]
    assert home.stands("k") == ("S", "ann", b'"done"')


def test_what_somebody_else_wrote_is_left_alone_and_said(home: Home) -> None:
    home.ask(home.claim("k", "ann"))
    line = line_of(home)
    event = home.policy.adopted(line, Adopted(Code.FOREIGN, b"", 0))
    assert event == Unreplayed("t", "k", "ann", "the store holds a value that fastdedup did not write")
    assert home.policy.lines == 0


# Claims that were under way when the line began


@pytest.mark.parametrize("answered", [True, False], ids=["adopted by then", "on its way"])
def test_a_key_without_a_record_here_belongs_to_the_owner_in_the_store(answered: bool, home: Home) -> None:
    """A release whose reply was lost; bob's claim came right behind it, and its reply arrives."""
    home.both(home.claim("k", "ann"))
    home.in_store(release("k", "ann"))
    granted = home.claim("k", "bob")
    verdict = home.in_store(granted)
    home.ask(release("k", "ann"))
    lines = home.sent() if answered else []
    home.policy.saw(granted, verdict)
    assert home.judged(lines) == []
    assert home.ask(home.claim("k", "eve")).outcome is Outcome.IN_PROGRESS
    assert home.policy.lines == 0
    assert home.ask(settle("k", "bob")) is Code.OK


def test_a_key_that_somebody_has_here_by_then_stays_the_journals(home: Home) -> None:
    granted = home.claim("k", "bob")
    verdict = home.in_store(granted)
    home.ask(home.claim("k", "ann"))
    home.policy.saw(granted, verdict)
    assert home.comes_home() == []


def test_the_longer_lease_of_an_owner_that_asked_twice_holds(home: Home) -> None:
    home.ask(home.claim("k", "ann", lease=1000))
    home.policy.saw(home.claim("k", "ann"), Verdict(Outcome.ACQUIRED, fence=1, attempt=1, left_ms=60_000))
    assert line_of(home).record.left_ms == 60_000


# Coming home, and staying out


def test_what_has_come_home_is_known_as_if_it_had_been_seen_there(home: Home) -> None:
    home.ask(home.claim("p", "ann"))
    home.ask(home.claim("s", "ann"))
    home.ask(settle("s", "ann"))
    home.ask(issue("i"))
    assert home.comes_home() == []
    assert home.ask(home.claim("p", "bob")).outcome is Outcome.IN_PROGRESS
    assert home.ask(home.claim("s", "bob")).outcome is Outcome.SUCCEEDED
    home.refuses(home.claim("i", "bob", mode=Mode.CONSUME))
    assert home.policy.lines == 0


def succeeded(home: Home) -> None:
    home.ask(home.claim("k", "ann"))
    home.ask(settle("k", "ann"))


def states() -> dict[str, Any]:
    return {
        "live": lambda home: home.ask(home.claim("k", "ann")),
        "succeeded": succeeded,
        "token": lambda home: home.ask(issue("k")),
    }


@pytest.mark.parametrize("state", states())
def test_closing_reports_what_never_came_home(state: str, home: Home) -> None:
    states()[state](home)
    (event,) = home.policy.give_up()
    owner = "issuer" if state == "token" else "ann"
    assert event == Unreplayed("t", "k", owner, "closed before the store was back")


def test_closing_reports_a_forgetting_that_never_came_home_and_not_a_claim_that_is_over(home: Home) -> None:
    succeeded(home)
    home.lost(home.sent())
    home.ask(forget("k"))
    home.ask(home.claim("over", "ann", lease=1000))
    home.now += 2
    assert [(event.key, event.owner) for event in home.policy.give_up()] == [("k", "")]


# A key is forgotten in an outage: before its record was sent, on its way, and when the answer was lost.


def held(home: Home, *, success: bool) -> None:
    home.ask(home.claim("k", "ann"))
    if success:
        home.ask(settle("k", "ann"))


each_state = pytest.mark.parametrize("success", [False, True], ids=["claim", "success"])


@each_state
def test_a_record_that_is_forgotten_before_it_is_sent_stays_unsent(success: bool, home: Home) -> None:
    held(home, success=success)
    assert home.ask(forget("k")) is Code.OK
    assert home.policy.lines == 0
    assert not home.policy.holds(WIRE("k"))


@each_state
@pytest.mark.parametrize("answer", ["comes", "is lost", "was lost before"])
def test_forgotten_on_its_way_it_is_removed_from_the_store(success: bool, answer: str, home: Home) -> None:
    held(home, success=success)
    lines = home.sent()
    if answer == "was lost before":
        home.lost(lines)
    home.ask(forget("k"))
    assert home.policy.holds(WIRE("k")), "the store may have it"
    if answer != "was lost before":
        assert (home.judged(lines) if answer == "comes" else home.lost(lines)) == []
    assert home.comes_home() == []
    home.now += 0.002
    assert home.stands("k") is None


@each_state
def test_forgotten_and_claimed_again_the_new_owner_comes_home(success: bool, home: Home) -> None:
    held(home, success=success)
    home.lost(home.sent())
    home.ask(forget("k"))
    assert home.ask(home.claim("k", "bob")).outcome is Outcome.ACQUIRED
    assert home.comes_home() == []
    assert home.stands("k")[:2] == ("P", "bob")  # type: ignore[index]


@each_state
def test_another_owners_record_is_not_removed_in_place_of_the_forgotten_one(success: bool) -> None:
    """It was made after the key was forgotten here: its caller has learned that it is new."""
    home = Home()
    held(home, success=success)
    home.unasked(home.sent(), asked=True)
    home.ask(forget("k"))
    home.in_store(home.claim("k", "eve"))
    assert home.comes_home() == []
    assert home.stands("k")[:2] == ("P", "eve")  # type: ignore[index]


def test_nor_where_it_changes_hands_between_looking_and_removing(home: Home) -> None:
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


def test_a_removal_that_was_not_answered_is_not_tried_twice_and_that_is_said(home: Home) -> None:
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
