"""A gate on each store of the matrix."""

from __future__ import annotations

from fastdedup import Dedup

from ..fixtures import async_fixture
from ..stores import Backend


@async_fixture
def dedup(backend: Backend) -> Dedup:
    return backend.make()
