"""Inboxes of one table keep their rows equally long, and so do those of different tests, as long as they live."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from .pages import forget


@pytest.fixture(scope="module", autouse=True)
def _inboxes_of_other_files_are_gone() -> None:
    gc.collect()


@pytest.fixture(autouse=True)
def _inboxes_of_the_pages_go() -> Iterator[None]:
    yield
    forget()
