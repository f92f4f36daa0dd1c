"""Shared by the tests of integrations: the frameworks, gates on a real Redis and in memory, a desk, a browser."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

import pytest

from fastdedup import Dedup
from fastdedup.integrations.http.lifespan import ASGIApp

from ..fixtures import async_fixture, fixture_of
from ..stores import TIMEOUT
from .browser import chromium
from .desk import Desk
from .frameworks import FRAMEWORKS, app_of
from .middleware_shop import FACES, Shop
from .shops import ShopProcess

MakeGate = Callable[..., Dedup]
MakeShop = Callable[..., Shop]


@pytest.fixture(params=list(FRAMEWORKS))
def app(request: pytest.FixtureRequest) -> ASGIApp:
    """The example application, in each framework."""
    return app_of(request.param)


@pytest.fixture
def starlette_app() -> ASGIApp:
    """The example application, where the framework makes no difference."""
    return app_of("starlette")


@pytest.fixture(params=["redis", "memory"])
def url(request: pytest.FixtureRequest) -> str:
    """Of this worker's own Redis, and of a store in memory."""
    return "memory://" if request.param == "memory" else str(request.getfixturevalue("redis_url"))


@pytest.fixture
def make_gate(url: str) -> MakeGate:
    """Makes gates on this worker's own Redis, and in memory."""
    return lambda **settings: Dedup(url, **{"namespace": "t", "timeout": TIMEOUT, **settings})


@pytest.fixture(params=FACES)
def face(request: pytest.FixtureRequest) -> str:
    """Each framework, behind the middleware of ASGI, of aiohttp or of WSGI."""
    return str(request.param)


@pytest.fixture
def make_shop(face: str, url: str, desk: Desk) -> MakeShop:
    """Makes the example application behind the middleware, of each face and on each store."""
    return partial(Shop, face, url, desk)


shop = async_fixture(lambda make_shop: make_shop())
"""The example application behind the middleware, closed after the test."""


TRUE_HOLD = ("[starlette-/orders-kill]", "[wsgi-bare-/orders-kill]")
"""Rows that keep the true figure, one of ASGI and one of WSGI. The others differ in what has no part in it."""


@pytest.fixture
def short_hold(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hold an unstored response back for 0.3 s instead of 1 s, but in two rows."""
    if not any(row in request.node.name for row in TRUE_HOLD):
        holders = [m for name, m in sys.modules.items() if name.startswith("fastdedup.integrations")]
        for module in holders:
            if hasattr(module, "HOLD"):
                monkeypatch.setattr(module, "HOLD", 0.3)


@pytest.fixture
def desk() -> Desk:
    """Counts what the handlers do."""
    return Desk()


browser = fixture_of(chromium, scope="module")
"""A headless Chromium for the tests of a file, which drive it by Playwright."""
open_shop = fixture_of(ShopProcess, "--stock", "1000", scope="session")
"""The example shop of two workers, with more than the tests buy."""
small_shop = fixture_of(ShopProcess, "--stock", "2", "--workers", "1", scope="session")
"""A shop of one worker with two units."""
