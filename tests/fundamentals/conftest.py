"""The two stores on which the steps run."""

from __future__ import annotations

import pytest


@pytest.fixture(params=["memory", "redis"])
def url(request: pytest.FixtureRequest) -> str:
    """The store inside the process, then a real Redis: the gate is the same."""
    return "memory://" if request.param == "memory" else str(request.getfixturevalue("redis_url"))
