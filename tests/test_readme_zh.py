"""README.zh-CN.md says what README.md says: the same code, links, names and figures, in the same places."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)
COMMENT = re.compile(r" +# .*$", re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)")
FIGURE = re.compile(r"`[^`]+`|\d[\d,._:]*(?<=\d)(?: (?:ms|%|[KM]iB)(?![A-Za-z]))?")
"""A name in code, or a figure with its unit."""


class Readme:
    """One of the two files, divided at its headings."""

    def __init__(self, name: str) -> None:
        self.text = (ROOT / name).read_text(encoding="utf-8")
        self.code = [(language, COMMENT.sub("", block)) for language, block in FENCE.findall(self.text)]
        self.prose = FENCE.sub("", self.text)
        self.parts = re.split(r"^## .*\n", self.prose, flags=re.MULTILINE)
        self.rows = [line.strip("|").split("|") for line in self.text.splitlines() if line.startswith("|")]
        self.links = Counter(LINK.findall(self.prose))


def facts(text: str) -> Counter[str]:
    """Return the figures, and the names in code, of a text. Its links are compared elsewhere."""
    return Counter(FIGURE.findall(LINK.sub("]", text)))


ENGLISH, CHINESE = Readme("README.md"), Readme("README.zh-CN.md")


def test_its_code_is_the_readme_s() -> None:
    assert len(CHINESE.code) > 5
    assert CHINESE.code == ENGLISH.code


def test_its_tables_have_the_same_cells() -> None:
    assert [len(row) for row in CHINESE.rows] == [len(row) for row in ENGLISH.rows]
    for ours, theirs in zip(CHINESE.rows, ENGLISH.rows, strict=True):
        for cell, other in zip(ours, theirs, strict=True):
            assert facts(cell) == facts(other)
            assert LINK.findall(cell) == LINK.findall(other)
            assert cell.strip().startswith("**") == other.strip().startswith("**")


@pytest.mark.parametrize("number", range(len(ENGLISH.parts)))
def test_each_part_has_the_same_names_and_figures(number: int) -> None:
    assert len(CHINESE.parts) == len(ENGLISH.parts)
    assert facts(CHINESE.parts[number]) == facts(ENGLISH.parts[number])


def test_it_links_to_the_same_pages_and_both_to_each_other() -> None:
    assert ENGLISH.links.pop("README.zh-CN.md") == CHINESE.links.pop("README.md") == 1
    assert CHINESE.links == ENGLISH.links


def test_the_comparison_sees_what_it_shall_see() -> None:
    assert facts("1,024 bytes; `ttl=86_400.0`, 0.078 ms") == {"1,024": 1, "`ttl=86_400.0`": 1, "0.078 ms": 1}
    assert facts("255 个字符, 64 KiB") == {"255": 1, "64 KiB": 1}
    assert COMMENT.sub("", "a = 1     # why\n") == "a = 1\n"
