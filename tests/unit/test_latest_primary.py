"""Which of the primaries that sentinels name counts: the highest epoch, or else the word of a majority."""

from __future__ import annotations

import pytest

from fastdedup.stores.redis.latest_primary import NO_EPOCH, LatestPrimary, NamedPrimary
from fastdedup.stores.redis.sentinel import read_answer

A, B, C = (("a", 1), ("b", 2), ("c", 3))


def told(*answers: NamedPrimary, sentinels: int = 3) -> LatestPrimary:
    latest = LatestPrimary(sentinels)
    for answer in answers:
        latest.hear(answer)
    return latest


def test_the_first_answer_counts_while_nothing_is_known() -> None:
    latest = told()
    assert latest.known is None
    assert latest.accepts(NamedPrimary(0, A))
    latest.hear(NamedPrimary(0, A))
    assert latest.known == (0, A)


def test_one_answer_with_a_higher_epoch_is_followed() -> None:
    latest = told(NamedPrimary(4, A), NamedPrimary(5, B), NamedPrimary(4, A))
    assert latest.known == (5, B)
    assert latest.accepts(NamedPrimary(5, B))
    assert not latest.accepts(NamedPrimary(4, A))


def test_neither_a_minority_nor_a_majority_with_one_that_knows_better_changes_anything() -> None:
    latest = told(NamedPrimary(5, B))
    former, present = NamedPrimary(4, A), NamedPrimary(5, B)
    for answers in ([former], [former, present], [], [former, former, present]):
        latest.conclude(answers)
        assert latest.known == (5, B)


def test_sentinels_that_were_set_up_again_are_believed() -> None:
    """Their epochs start from the beginning."""
    latest = told(NamedPrimary(5, B))
    latest.conclude([NamedPrimary(0, C), NamedPrimary(0, C)])
    assert latest.known == (0, C)


def test_a_service_that_was_moved_by_hand_is_followed_with_a_majority() -> None:
    """The epoch stays the same."""
    latest = told(NamedPrimary(5, A))
    latest.conclude([NamedPrimary(5, A), NamedPrimary(5, B)])
    assert latest.known == (5, A)
    latest.conclude([NamedPrimary(5, A), NamedPrimary(5, B), NamedPrimary(5, B)])
    assert latest.known == (5, B)


@pytest.mark.parametrize(("sentinels", "majority"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3)])
def test_a_majority_is_more_than_half_of_the_url(sentinels: int, majority: int) -> None:
    assert LatestPrimary(sentinels).majority == majority


def test_without_epochs_whatever_confirms_itself_is_taken() -> None:
    """A login that may not ask for the epoch works as before: any sentinel's word is tried."""
    latest = told(NamedPrimary(NO_EPOCH, A))
    assert latest.accepts(NamedPrimary(NO_EPOCH, B))
    latest.confirmed(NamedPrimary(NO_EPOCH, B))
    assert latest.known == (NO_EPOCH, B)
    latest.conclude([NamedPrimary(NO_EPOCH, A)] * 2)
    assert latest.known == (NO_EPOCH, A)
    latest.hear(NamedPrimary(3, B))
    latest.confirmed(NamedPrimary(3, B))
    assert latest.known == (3, B)
    assert not latest.accepts(NamedPrimary(NO_EPOCH, A))


def test_replies_are_read() -> None:
    address = [b"10.0.0.1", b"6379"]
    fields = [b"name", b"config-epoch", b"config-epoch", b"7", b"quorum", b"2"]
    assert read_answer(fields, address) == (7, ("10.0.0.1", 6379))
    assert read_answer(None, address) == (NO_EPOCH, ("10.0.0.1", 6379))
    assert read_answer(ConnectionError("gone"), None) is None
