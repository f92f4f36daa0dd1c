"""A fixture of what runs while tests use it: a server, a gate, a browser."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Literal

import pytest


def fixture_of(
    make: Callable[..., AbstractContextManager[Any]],
    *args: Any,
    scope: Literal["function", "module", "session"] = "function",
    **options: Any,
) -> Any:
    """Return a fixture that enters what `make` returns for these arguments, and leaves it at the end of its scope."""

    @pytest.fixture(scope=scope)
    def entered() -> Iterator[Any]:
        with make(*args, **options) as made:
            yield made

    return entered
