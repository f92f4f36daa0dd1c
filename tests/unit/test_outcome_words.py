"""The outcome in the figures of an operation that ended in an error."""

import pytest

from fastdedup import ClaimLostError, LedgerFullError, UnavailableError, UnknownTransitionError
from fastdedup.core.counters import outcome_of
from fastdedup.errors import ShortfallError


class OwnUnavailableError(UnavailableError):
    """A store of one's own may raise it."""


class OwnLostError(ClaimLostError):
    """So may it raise this."""


@pytest.mark.parametrize(
    ("fault", "outcome"),
    [
        (UnavailableError, "unavailable"),
        (ShortfallError, "unavailable"),
        (LedgerFullError, "unavailable"),
        (UnknownTransitionError, "unavailable"),
        (OwnUnavailableError, "unavailable"),
        (ClaimLostError, "claim_lost"),
        (OwnLostError, "claim_lost"),
        (ValueError, "error"),
    ],
)
def test_an_error_counts_by_its_kind(fault: type[Exception], outcome: str) -> None:
    assert outcome_of(fault.__new__(fault)) == outcome
