"""A gate on each store of the matrix."""

from __future__ import annotations

from fastdedup import Dedup

from ..fixtures import opened
from ..stores import Backend


@opened
def dedup(backend: Backend) -> Dedup:
    return backend.make()
