"""Shared by the tests of the clients: the three clients, and a server by Stripe's rules."""

from __future__ import annotations

import pytest

from ..fixtures import fixture_of
from .callers import CALLERS, Caller
from .stripe import serving


@pytest.fixture(params=list(CALLERS))
def call(request: pytest.FixtureRequest) -> Caller:
    """Each client."""
    return CALLERS[request.param]


stripe = fixture_of(serving)
"""A server by Stripe's rules."""
