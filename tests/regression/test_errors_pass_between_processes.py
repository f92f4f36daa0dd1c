"""An error that another process raised arrives as what it was: pickle makes it of its message, then sets the rest.

InProgressError and FailedError had arguments without a default, so Celery stored a DedupError in their place.
"""

from __future__ import annotations

import pickle

import pytest

from fastdedup.errors import ClaimLostError, DedupError, FailedError, InProgressError, UnknownTransitionError


@pytest.mark.parametrize(
    "error",
    [
        InProgressError("at work", retry_after=7.0),
        FailedError("it failed", error={"code": 7}),
        UnknownTransitionError("who knows", state="paid", version=3),
        ClaimLostError("lost", outage=True),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_survives_pickling(error: DedupError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))
