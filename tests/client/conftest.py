"""Shared by the tests of the clients: the three clients, and a server by Stripe's rules."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .callers import CALLERS, Caller
from .stripe import Server, serving


@pytest.fixture(params=list(CALLERS))
def call(request: pytest.FixtureRequest) -> Caller:
    """Each client."""
    return CALLERS[request.param]


@pytest.fixture
def stripe() -> Iterator[Server]:
    """A server by Stripe's rules."""
    with serving() as server:
        yield server
