"""The way of a warm claim through the package: how many files and function entries a reader has to follow."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import fastdedup
from fastdedup import Dedup
from fastdedup.compiled import is_compiled

PACKAGE = Path(fastdedup.__file__).parent
PAGE = Path(__file__).parent.parent / "docs" / "architecture.md"
MOST_FILES = 11
MOST_ENTRIES = 28


async def test_a_warm_claim_passes_eleven_files(redis_url: str) -> None:
    """A claim of a fresh key, alone, on a connection that stands. Comprehensions are no functions of their own."""
    async with Dedup(redis_url) as dedup:
        for number in range(5):
            await dedup.claim(f"warm {number}")
        # The shortest of five: every 20 ms a claim also notes the server's clock.
        entries = min([await entries_of_a_claim(dedup, f"claim {number}") for number in range(5)], key=len)
    way = "\n".join(f"{file} {function}" for file, function in entries)
    if is_compiled():
        return  # compiled functions are not seen
    assert len({file for file, _ in entries}) <= MOST_FILES, way
    assert len(entries) <= MOST_ENTRIES, way
    left = iter(entries)
    assert [step for step in steps_of_the_page() if step not in left] == [], way


def steps_of_the_page() -> list[tuple[str, str]]:
    """Return the functions that docs/architecture.md names, in its order."""
    section = PAGE.read_text(encoding="utf-8").partition("## The way of a claim\n")[2].partition("\n## ")[0]
    steps = re.findall(r"^\d+\. `([\w/]+\.py):([\w.]+)`", section, re.MULTILINE)
    assert len(steps) == 12
    return steps


async def entries_of_a_claim(dedup: Dedup, key: str) -> list[tuple[str, str]]:
    entries: list[tuple[str, str]] = []

    def on_entry(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and Path(code.co_filename).is_relative_to(PACKAGE) and code.co_name[0] != "<":
            entries.append((str(Path(code.co_filename).relative_to(PACKAGE)), code.co_qualname))

    await asyncio.sleep(0)
    sys.setprofile(on_entry)
    try:
        claim = await dedup.claim(key)
    finally:
        sys.setprofile(None)
    assert claim.acquired
    return entries
