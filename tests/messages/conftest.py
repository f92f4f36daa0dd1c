"""Inboxes of one table keep their rows equally long, and so do those of other tests, as long as they live."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def _inboxes_go_with_their_file() -> Iterator[None]:
    gc.collect()
    yield
    gc.collect()
