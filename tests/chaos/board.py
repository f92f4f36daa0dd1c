"""A page of numbers that driver and workers share: a few 64-bit words for each worker, in a mapped file.

For what must neither wait nor be written down: how far a worker is, and by how much its clock is wrong.
"""

from __future__ import annotations

import mmap
from pathlib import Path

WORKERS = 16
_WORDS = 8
SKEW, OPERATIONS, GOOD_REJECT, GOOD_LOCAL = range(4)
GOOD = {"reject": GOOD_REJECT, "local": GOOD_LOCAL}
"""Where a worker notes the start (ns) of its last operation that the store itself answered, by policy."""


class Board:
    """Words `board[worker, name]`: one writer each, whole words, so no lock."""

    def __init__(self, path: Path, *, create: bool = False) -> None:
        size = WORKERS * _WORDS * 8
        if create:
            path.write_bytes(bytes(size))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), size)
        self._words = memoryview(self._map).cast("q")

    def __getitem__(self, place: tuple[int, int]) -> int:
        worker, word = place
        return int(self._words[worker * _WORDS + word])

    def __setitem__(self, place: tuple[int, int], value: int) -> None:
        worker, word = place
        self._words[worker * _WORDS + word] = value

    def close(self) -> None:
        self._words.release()
        self._map.close()
