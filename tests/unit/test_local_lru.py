"""LocalLRU by itself: what it takes over from the store, and what it answers in its place."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from fastdedup import ConfigError, LocalLRU, Outcome, UnavailableError
from fastdedup.fallback.journal import _SLACK as JOURNAL_SLACK
from fastdedup.fallback.last_seen import _SPARE_SLACK
from fastdedup.kernel.codes import Code
from fastdedup.kernel.operations import ClaimOp, Op, ReadOp, TransitionOp
from fastdedup.kernel.owners import owner_field
from fastdedup.kernel.records import Stored
from fastdedup.kernel.terms import Mode, terms

from ..ops import move, stored
from .lab import LEASE, TTL, WIRE, Home, Lab, forget, issue, release, renew, settle, touch

# Claims that the store gave


def test_a_claim_that_the_store_gave_is_not_given_to_another(lab: Lab) -> None:
    fence = lab.acquires("k", "ann")
    found = lab.ask(lab.claim("k", "bob"))
    assert (found.outcome, found.fence, found.left_ms) == (Outcome.IN_PROGRESS, fence, LEASE)
    assert not lab.policy.holds(WIRE("k")), "nothing was changed"


def test_its_owner_gets_it_back_and_no_longer_lease_than_the_store_gave(lab: Lab) -> None:
    """There it ends when it ends: another process may take it over then."""
    fence = lab.acquires("k", "ann")
    lab.now += 20
    again = lab.ask(lab.claim("k", "ann", lease=60_000))
    assert (again.outcome, again.fence, again.fresh, again.left_ms) == (
        Outcome.ACQUIRED,
        fence,
        False,
        10_000,
    )
    lab.now += 11
    assert lab.ask(lab.claim("k", "bob")).outcome is Outcome.ACQUIRED


@pytest.mark.parametrize("op", [settle("k", "ann"), release("k", "ann")], ids=["settle", "release"])
def test_its_owner_settles_it_here_while_its_lease_lasts_and_not_after(op: Op, lab: Lab) -> None:
    lab.acquires("k", "ann")
    lab.now += 29
    assert lab.ask(op) is Code.OK
    late = Lab()
    late.acquires("k", "ann")
    late.now += 31
    late.refuses(op)


def test_it_is_not_renewed_here(lab: Lab) -> None:
    lab.acquires("k", "ann")
    lab.refuses(renew("k", "ann"))


def test_a_renewal_that_is_heard_of_late_does_not_shorten_a_result(lab: Lab) -> None:
    lab.acquires("k", "ann")
    lab.says(settle("k", "ann"))
    lab.says(renew("k", "ann", lease=1000))
    lab.now += 60
    assert lab.ask(lab.claim("k", "bob")).outcome is Outcome.SUCCEEDED


def test_a_release_that_is_heard_of_late_does_not_free_the_owners_next_claim(lab: Lab) -> None:
    """It was about the fence before."""
    first = lab.acquires("k", "ann")
    lab.acquires("k", "ann")
    lab.says(release("k", "ann", first))
    assert lab.ask(lab.claim("k", "bob")).outcome is Outcome.IN_PROGRESS


def test_a_forgetting_that_is_heard_of_late_does_not_free_a_live_claim(lab: Lab) -> None:
    lab.acquires("k", "ann")
    lab.says(forget("k"))
    assert lab.ask(lab.claim("k", "bob")).outcome is Outcome.IN_PROGRESS


@pytest.mark.parametrize("waited", [False, True])
def test_to_hear_that_it_is_in_progress_does_not_make_it_somebody_elses(waited: bool, lab: Lab) -> None:
    """Its owner is known; also where somebody waited for it in an earlier outage."""
    lab.acquires("k", "ann")
    if waited:
        op = lab.claim("k", "bob")
        op.terms = terms(Mode.CLAIM, LEASE, LEASE + TTL, True)
        assert lab.ask(op).outcome is Outcome.IN_PROGRESS
    lab.verdict(lab.claim("k", "bob"), Outcome.IN_PROGRESS)
    assert lab.ask(settle("k", "ann")) is Code.OK


def test_a_claim_of_another_process_is_respected_for_as_long_as_its_lease(lab: Lab) -> None:
    lab.verdict(lab.claim("k", "bob"), Outcome.IN_PROGRESS, left=5000)
    assert lab.ask(lab.claim("k", "bob")).outcome is Outcome.IN_PROGRESS
    lab.refuses(settle("k", "bob"))
    lab.now += 6
    assert lab.ask(lab.claim("k", "bob")).outcome is Outcome.ACQUIRED


# Results that the store told


@pytest.mark.parametrize("outcome", [Outcome.SUCCEEDED, Outcome.FAILED])
def test_a_result_that_the_store_told_is_replayed_until_it_expires(outcome: Outcome, lab: Lab) -> None:
    lab.verdict(lab.claim("k", "bob", mark=b"m" * 16), outcome, left=5000, payload=b"[1]")
    found = lab.ask(lab.claim("k", "eve"))
    assert (found.outcome, found.payload, found.degraded) == (outcome, b"[1]", True)
    assert lab.ask(lab.claim("k", "eve", mark=b"x" * 16)).outcome is Outcome.MISMATCH
    lab.now += 6
    assert lab.ask(lab.claim("k", "eve")).outcome is Outcome.ACQUIRED


def test_a_result_is_not_replayed_for_a_fingerprint_if_nothing_here_knows_its_own(lab: Lab) -> None:
    """The duplicate that was told of it named none, so the store did not compare."""
    lab.verdict(lab.claim("k", "bob"), Outcome.SUCCEEDED, payload=b"[1]")
    lab.refuses(lab.claim("k", "eve", mark=b"m" * 16))
    assert lab.ask(lab.claim("k", "eve")).payload == b"[1]"


def test_a_result_that_this_process_recorded_is_replayed_with_its_fingerprint(lab: Lab) -> None:
    """Also where it was recorded after the lease, which the store allows while nobody took over."""
    lab.acquires("k", "ann", mark=b"m" * 16)
    lab.now += 40
    lab.says(settle("k", "ann", b"[2]"))
    assert lab.ask(lab.claim("k", "bob")).payload == b"[2]"
    assert lab.ask(lab.claim("k", "bob", mark=b"x" * 16)).outcome is Outcome.MISMATCH


def test_a_forgotten_result_is_not_replayed(lab: Lab) -> None:
    lab.verdict(lab.claim("k", "bob"), Outcome.SUCCEEDED)
    lab.says(forget("k"))
    assert lab.ask(lab.claim("k", "eve")).outcome is Outcome.ACQUIRED


@pytest.mark.parametrize("op", [ReadOp(WIRE("k")), forget("k"), settle("k", "bob"), renew("k", "bob")])
def test_what_stands_in_the_store_is_not_inspected_forgotten_or_settled_here(op: Op, lab: Lab) -> None:
    lab.verdict(lab.claim("k", "bob"), Outcome.SUCCEEDED)
    lab.refuses(op)


# What the store told a reader


def reads(lab: Lab, key: str, state: str, **facts: Any) -> None:
    """This process reads a record of another owner's."""
    usual = {
        "owner": owner_field("theirs"),
        "fence": lab.fence,
        "left_ms": LEASE,
        "ttl_ms": TTL,
        "payload": b"",
    }
    lab.says(ReadOp(WIRE(key)), stored(state, **{**usual, **facts}))


@pytest.mark.parametrize(("state", "outcome"), [("S", Outcome.SUCCEEDED), ("F", Outcome.FAILED)])
def test_a_result_that_was_read_is_replayed_until_it_expires(state: str, outcome: Outcome, lab: Lab) -> None:
    reads(lab, "k", state, payload=b'"paid"', ttl_ms=50_000, left_ms=0)
    lab.now += 49
    found = lab.ask(lab.claim("k", "bob"))
    assert (found.outcome, found.payload, found.degraded) == (outcome, b'"paid"', True)
    lab.now += 2
    assert lab.ask(lab.claim("k", "bob")).outcome is Outcome.ACQUIRED


@pytest.mark.parametrize("state", ["P", "W"])
def test_a_claim_that_was_read_is_respected_and_not_settled(state: str, lab: Lab) -> None:
    reads(lab, "k", state)
    assert lab.ask(lab.claim("k", "bob")).outcome is Outcome.IN_PROGRESS
    lab.refuses(settle("k", "theirs"))
    lab.now += 31
    assert lab.ask(lab.claim("k", "bob")).outcome is Outcome.ACQUIRED


def test_a_reader_hears_of_a_longer_lease(lab: Lab) -> None:
    reads(lab, "k", "P")
    lab.now += 20
    reads(lab, "k", "P")
    lab.now += 20
    assert lab.ask(lab.claim("k", "bob")).outcome is Outcome.IN_PROGRESS


@pytest.mark.parametrize("read", ["own", "older"])
def test_a_reading_takes_no_claim_from_its_owner(read: str, lab: Lab) -> None:
    fence = lab.acquires("k", "ann")
    reads(lab, "k", "P", **({"owner": owner_field("ann")} if read == "own" else {"fence": fence - 1}))
    assert lab.ask(settle("k", "ann")) is Code.OK


def test_a_touched_record_counts_attempts_for_as_long_as_in_the_store(lab: Lab) -> None:
    lab.acquires("k", "ann")
    lab.says(touch("k", "ann", 10 * TTL))
    lab.says(renew("k", "ann"))
    lab.now += 9 * TTL / 1000
    assert lab.ask(lab.claim("k", "bob")).attempt == 4


def test_a_reading_that_is_heard_of_late_unsettles_nothing(lab: Lab) -> None:
    lab.acquires("k", "ann")
    lab.says(settle("k", "ann"))
    reads(lab, "k", "P", owner=owner_field("ann"))
    assert lab.ask(lab.claim("k", "bob")).outcome is Outcome.SUCCEEDED


def test_what_was_read_is_dropped_where_there_is_no_room() -> None:
    lab = Lab(maxsize=2)
    for number in range(5):
        reads(lab, f"read {number}", "P")
    for number in range(2):
        lab.acquires(f"held {number}", "ann")
    for number in range(2):
        assert lab.ask(lab.claim(f"held {number}", "bob")).outcome is Outcome.IN_PROGRESS


def test_a_key_that_changed_here_is_not_what_was_read(lab: Lab) -> None:
    lab.ask(lab.claim("k", "ann"))
    lab.fence += 10**9
    reads(lab, "k", "S")
    assert lab.ask(lab.claim("k", "bob")).outcome is Outcome.IN_PROGRESS


def test_a_machine_goes_on_from_where_it_was_read(home: Home) -> None:
    for change, to, source in ((b"one", "paid", "new"), (b"two", "sent", "paid")):
        home.in_store(moves(change, to, source))
    home.says(ReadOp(WIRE("m")), home.in_store(ReadOp(WIRE("m"))))
    moved = home.ask(moves(b"three", "done", "sent"))
    assert (moved.code, moved.state, moved.version) == (Code.OK, "done", 3)
    assert home.comes_home() == [], "the store has the change that was read"


def test_an_older_reading_does_not_move_a_machine_back(home: Home) -> None:
    home.both(moves(b"one"))
    old = home.in_store(ReadOp(WIRE("m")))
    home.both(moves(b"two", "sent", "paid"))
    home.says(ReadOp(WIRE("m")), old)
    assert home.ask(moves(b"three", "done", "sent")).version == 3


# Tokens and machines


def test_a_token_of_the_stores_is_judged_only_while_it_is_known_to_be_held_or_used(lab: Lab) -> None:
    lab.refuses(lab.claim("t", "ann", mode=Mode.REDEEM))
    lab.acquires("t", "ann", mode=Mode.REDEEM)
    assert lab.ask(lab.claim("t", "bob", mode=Mode.REDEEM)).outcome is Outcome.IN_PROGRESS
    lab.now += 31
    lab.refuses(lab.claim("t", "bob", mode=Mode.REDEEM))
    lab.acquires("u", "ann", mode=Mode.CONSUME)
    assert lab.ask(lab.claim("u", "bob", mode=Mode.CONSUME)).outcome is Outcome.SUCCEEDED


@pytest.mark.parametrize("mode", [Mode.CONSUME, Mode.REDEEM])
def test_a_use_that_may_still_be_undone_is_not_known_here(mode: Mode, lab: Lab) -> None:
    """Its caller may have got no reply: then the token would be used up, and no caller would have been told of it."""
    lab.verdict(lab.claim("t", "bob", mode=mode), Outcome.SUCCEEDED)
    reads(lab, "u", "S", token=True)
    for key in "tu":
        for owner in ("ann", "bob"):
            lab.refuses(lab.claim(key, owner, mode=mode))
    lab.verdict(lab.claim("t", "bob", mode=mode), Outcome.SUCCEEDED, payload=b"1")
    assert lab.ask(lab.claim("t", "ann", mode=mode)).outcome is Outcome.SUCCEEDED


@pytest.mark.parametrize("mode", [Mode.CONSUME, Mode.REDEEM])
def test_a_used_token_is_known_as_used_for_as_long_as_the_store_may_think_it_fresh(mode: Mode) -> None:
    """It may have been issued there too, with the reply lost; a short ttl of the result must not revive it."""
    lab = Lab()
    lab.ask(issue("t"))
    op = ClaimOp(WIRE("t"), terms(mode, 1000, 1000, False), owner_field("ann"), None)
    assert lab.ask(op).outcome is Outcome.ACQUIRED
    if mode is Mode.REDEEM:
        lab.ask(settle("t", "ann", keep=1000))
    lab.now += 59
    assert lab.ask(lab.claim("t", "bob", mode=mode)).outcome is Outcome.SUCCEEDED


def moves(change: bytes, to: str = "paid", *sources: str) -> TransitionOp:
    return move(WIRE("m"), to, "new", sources, change=change.ljust(10), keep_ms=TTL)


def test_a_change_that_was_under_way_gives_way_to_the_change_made_here(home: Home) -> None:
    under_way = moves(b"one")
    moved = home.in_store(under_way)
    assert home.ask(moves(b"two")).code is Code.OK
    home.policy.saw(under_way, moved)
    assert home.ask(under_way).code is Code.ALREADY
    assert home.comes_home() == []
    assert home.store.entry(WIRE("m")).owner == b"two".ljust(10)  # type: ignore[union-attr]


def test_a_change_under_way_of_a_machine_that_expired_here_is_the_stores(home: Home) -> None:
    under_way = moves(b"one")
    moved = home.in_store(under_way)
    short = moves(b"two")
    short.keep_ms = 1000
    home.ask(short)
    home.now += 2
    home.policy.saw(under_way, moved)
    assert home.policy.lines == 0
    assert home.ask(moves(b"three", "sent", "paid")).version == 2


# Between `holds` and `answer`


def test_a_record_that_expires_between_two_looks_is_not_given_away_from_here(lab: Lab) -> None:
    """The store may be back, and know better: the claimant asks again, and it is asked."""
    op = ClaimOp(WIRE("k"), terms(Mode.CLAIM, 1000, 1000, False), owner_field("ann"), None)
    op.key = "k"
    lab.ask(op)
    assert lab.policy.holds(WIRE("k"))
    lab.now += 2
    lab.refuses(lab.claim("k", "bob"), match="just expired")
    assert not lab.policy.holds(WIRE("k"))
    assert lab.policy.lines == 0


def test_a_record_made_here_can_be_inspected(lab: Lab) -> None:
    lab.ask(lab.claim("k", "ann"))
    found = lab.ask(ReadOp(WIRE("k")))
    assert isinstance(found, Stored)
    assert (found.state, found.owner) == ("P", owner_field("ann"))


# LocalLRU is bounded: by records, by bytes, and in a long outage; what it drops, and what it never drops.


def test_full_it_drops_what_the_store_has_the_longest_unused_first() -> None:
    lab = Lab(maxsize=3)
    for key in "abc":
        lab.verdict(lab.claim(key, "x"), Outcome.SUCCEEDED)
    assert lab.ask(lab.claim("a", "y")).outcome is Outcome.SUCCEEDED
    assert lab.ask(lab.claim("d", "y")).outcome is Outcome.ACQUIRED
    assert lab.ask(lab.claim("a", "y")).outcome is Outcome.SUCCEEDED
    assert lab.ask(lab.claim("c", "y")).outcome is Outcome.SUCCEEDED
    assert lab.ask(lab.claim("b", "y")).outcome is Outcome.ACQUIRED, "the longest unused one went"


def test_full_of_live_claims_it_refuses_and_forgets_none() -> None:
    lab = Lab(maxsize=2)
    lab.acquires("a", "ann")
    lab.ask(lab.claim("b", "bob"))
    lab.refuses(lab.claim("c", "eve"), match="the local store is full: 2")
    for key, owner in (("a", "ann"), ("b", "bob")):
        assert lab.ask(lab.claim(key, "eve")).outcome is Outcome.IN_PROGRESS
        assert lab.ask(settle(key, owner)) is Code.OK


def test_a_claim_of_the_stores_whose_lease_is_over_may_go_and_one_made_here_may_not() -> None:
    lab = Lab(maxsize=2)
    lab.acquires("theirs", "ann", lease=1000)
    lab.ask(lab.claim("ours", "bob", lease=1000))
    lab.now += 5
    assert lab.ask(lab.claim("c", "eve")).outcome is Outcome.ACQUIRED
    lab.refuses(lab.claim("d", "eve"), match="full")
    assert lab.ask(lab.claim("ours", "eve")).attempt == 2


def test_while_a_live_claim_may_be_unknown_here_no_unknown_key_is_given_away() -> None:
    """The store gave more claims than there is room for: one of them may be this one."""
    lab = Lab(maxsize=2)
    for key in "abc":
        lab.acquires(key, "ann", lease=10_000)
    lab.refuses(lab.claim("c", "bob"), match="the store has more live claims")
    assert lab.ask(lab.claim("a", "bob")).outcome is Outcome.IN_PROGRESS
    lab.now += 11
    assert lab.ask(lab.claim("c", "bob")).outcome is Outcome.ACQUIRED


def test_a_claim_that_may_be_unknown_here_is_live_for_as_long_as_it_is_renewed() -> None:
    lab = Lab(maxsize=2)
    for key in "abc":
        lab.acquires(key, "ann", lease=10_000)
    lab.now += 8
    lab.says(renew("c", "ann", lease=10_000))
    for key in "ab":
        lab.says(settle(key, "ann"))
    lab.now += 5
    lab.refuses(lab.claim("c", "bob"), match="the store has more live claims")
    lab.now += 6
    assert lab.ask(lab.claim("c", "bob")).outcome is Outcome.ACQUIRED


def test_a_record_that_goes_to_make_room_for_its_own_result_takes_no_room_afterwards() -> None:
    """Its lease has ended, so it may go."""
    lab = Lab(max_bytes=3000)
    for _ in range(3):
        lab.acquires("k", "ann", lease=1000)
        lab.now += 2
        lab.says(settle("k", "ann", b"x" * 2800))
        assert lab.policy.records.bytes_kept == 0
    assert lab.ask(lab.claim("other", "bob")).outcome is Outcome.ACQUIRED


def test_large_results_are_bounded_by_bytes_whether_seen_or_made_here() -> None:
    lab = Lab(maxsize=10_000, max_bytes=1_000_000)
    for number in range(200):
        key = f"k{number}"
        lab.acquires(key, "ann")
        lab.says(settle(key, "ann", b"x" * 50_000))
        assert lab.policy.records.bytes_kept <= 1_000_000
    for number in range(300, 400):
        key = f"k{number}"
        with suppress(UnavailableError):
            lab.ask(lab.claim(key, "ann"))
            lab.ask(settle(key, "ann", b"x" * 50_000))
        assert lab.policy.records.bytes_kept <= 1_000_000
    assert lab.policy.lines >= 15


def test_a_long_outage_with_ever_new_keys_takes_no_more_memory_than_the_records_that_are_live() -> None:
    """5,000 keys within an hour, each remembered for two seconds: entries, heap, journal, spare."""
    lab = Lab(maxsize=1000)
    for number in range(5_000):
        op = ClaimOp(WIRE(f"k{number}"), terms(Mode.CLAIM, 1000, 2000, False), owner_field("ann"), None)
        op.key = f"k{number}"
        lab.ask(op)
        lab.now += 0.72
    policy = lab.policy
    live = len(policy.records)
    assert live <= 12
    assert policy.lines <= 2 * live + JOURNAL_SLACK + 1
    assert len(policy.records.expiries) <= 2 * live + 1024 + 1
    assert len(policy.last_seen.spare) <= 2 * live + _SPARE_SLACK + 1


def test_beside_a_store_that_is_well_what_was_seen_stays_within_its_size() -> None:
    lab = Lab(maxsize=100)
    for number in range(5000):
        key = f"k{number}"
        lab.acquires(key, "ann", lease=1000)
        lab.says(settle(key, "ann", keep=2000) if number % 3 else release(key, "ann"))
        lab.now += 0.01
    assert len(lab.policy.records) <= 100
    assert len(lab.policy.last_seen.spare) <= 2 * 100 + _SPARE_SLACK + 1
    assert lab.policy.lines == 0


def test_a_clock_that_is_no_function_is_refused() -> None:
    with pytest.raises(ConfigError, match="clock must be a function that returns seconds since 1970, got 5"):
        LocalLRU(clock=5)  # type: ignore[arg-type]
