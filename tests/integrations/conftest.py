"""Shared by the tests of integrations: the frameworks, gates on a real Redis and in memory, a desk, a browser."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser

from fastdedup import Dedup
from fastdedup.integrations.lifespan import ASGIApp

from ..stores import TIMEOUT
from .browser import chromium
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


TRUE_HOLD = ("starlette", "bare", "async")
"""Rows that keep the true figure. The others differ in their framework, which has no part in it."""


@pytest.fixture
def short_hold(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hold an unstored response back for 0.3 s instead of 1 s, in most rows."""
    if not any(row in request.node.name for row in TRUE_HOLD):
        holders = [m for name, m in sys.modules.items() if name.startswith("fastdedup.integrations")]
        for module in holders:
            if hasattr(module, "HOLD"):
                monkeypatch.setattr(module, "HOLD", 0.3)


@pytest.fixture
def desk() -> Desk:
    """Counts what the handlers do."""
    return Desk()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A headless Chromium for the tests of a file, which drive it by Playwright."""
    with chromium() as browser:
        yield browser
