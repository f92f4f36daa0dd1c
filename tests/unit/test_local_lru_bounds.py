"""LocalLRU is bounded: by records, by bytes, and in a long outage; what it drops, and what it never drops."""

from __future__ import annotations

from contextlib import suppress

from fastdedup import Outcome, UnavailableError
from fastdedup.fallback.journal import _SLACK as JOURNAL_SLACK
from fastdedup.fallback.last_seen import _SPARE_SLACK
from fastdedup.kernel.codes import Code
from fastdedup.kernel.operations import ClaimOp
from fastdedup.kernel.owners import owner_field
from fastdedup.kernel.terms import Mode, terms

from .lab import WIRE, Lab, release, settle


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
    """An hour at a hundred keys a second, each remembered for two seconds: entries, heap, journal, spare."""
    lab = Lab(maxsize=1000)
    for number in range(20_000):
        op = ClaimOp(WIRE(f"k{number}"), terms(Mode.CLAIM, 1000, 2000, False), owner_field("ann"), None)
        op.key = f"k{number}"
        lab.ask(op)
        lab.now += 0.18
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
