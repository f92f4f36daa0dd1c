"""A fixture of what runs while tests use it: a server, a gate, a browser."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from functools import wraps
from typing import Any, Literal, NamedTuple

import pytest


def fixture_of(
    make: Callable[..., AbstractContextManager[Any]],
    *args: Any,
    scope: Literal["function", "module", "session"] = "function",
    **options: Any,
) -> Any:
    """Return a fixture that enters what `make` returns for these arguments, and leaves it at the end of its scope."""
    return fixture_with(lambda: make(*args, **options), scope=scope)


def fixture_with(
    make: Callable[..., AbstractContextManager[Any]],
    *,
    scope: Literal["function", "module", "session"] = "function",
) -> Any:
    """Return a fixture as `fixture_of` does. `make` gets fixtures by their names."""

    @pytest.fixture(scope=scope)
    @wraps(make)
    def entered(**fixtures: Any) -> Iterator[Any]:
        with make(**fixtures) as made:
            yield made

    return entered


class Opened(NamedTuple):
    """An argument of a test that its event loop enters before the test, and leaves after it: the test gets the value.

    Args:
        context: what is entered.
    """

    context: AbstractAsyncContextManager[Any]


def async_fixture(make: Callable[..., AbstractAsyncContextManager[Any]]) -> Any:
    """Return a fixture of what `make` returns, open while an async test runs. `make` gets fixtures by their names."""

    @pytest.fixture
    @wraps(make)
    def made(**fixtures: Any) -> Opened:
        return Opened(make(**fixtures))

    return made
