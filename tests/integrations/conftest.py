"""Shared by the tests of integrations: the frameworks, gates on a real Redis and in memory, a desk."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fastdedup import Dedup
from fastdedup.integrations.lifespan import ASGIApp

from ..stores import TIMEOUT
from .desk import Desk
from .frameworks import FRAMEWORKS, app_of

MakeGate = Callable[..., Dedup]


@pytest.fixture(params=list(FRAMEWORKS))
def app(request: pytest.FixtureRequest) -> ASGIApp:
    """The example application, in each framework."""
    return app_of(request.param)


@pytest.fixture
def starlette_app() -> ASGIApp:
    """The example application, where the framework makes no difference."""
    return app_of("starlette")


@pytest.fixture(params=["redis", "memory"])
def make_gate(request: pytest.FixtureRequest) -> MakeGate:
    """Makes gates on this worker's own Redis, and in memory."""
    url = "memory://" if request.param == "memory" else request.getfixturevalue("redis_url")
    return lambda **settings: Dedup(url, **{"namespace": "t", "timeout": TIMEOUT, **settings})


@pytest.fixture
def desk() -> Desk:
    """Counts what the handlers do."""
    return Desk()
