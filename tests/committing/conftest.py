"""The servers of these tests, which kill them; see `tests/gated_inbox`. And an application over a fresh database."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ..fixtures import async_fixture
from ..gated_inbox.conftest import key, mortal_mariadb, mortal_postgres, mortal_redis
from .bank import Bank, open_sqlite

__all__ = ["key", "mortal_mariadb", "mortal_postgres", "mortal_redis"]

Open = Callable[..., AbstractAsyncContextManager[Bank]]
Waiter = Callable[..., Awaitable[Any]]


@pytest.fixture
def open_here(tmp_path: Path) -> Open:
    """Opens an application over a fresh database; its gate is in memory."""
    return partial(open_sqlite, "memory://", tmp_path)


bank = async_fixture(lambda open_here: open_here())
"""An application over a fresh database, open while the test runs."""
