"""docs/run-twice.md: each row names a test that exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROWS = re.findall(r"^\| (?!situation|-)(.+) \|$", (ROOT / "docs" / "run-twice.md").read_text("utf-8"), re.M)


def test_the_page_has_a_table() -> None:
    assert len(ROWS) >= 14


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.partition(" | ")[0][:40])
def test_each_row_names_a_test_that_exists(row: str) -> None:
    cells = row.split(" | ")
    assert re.match(r"no\b|\*\*yes\*\*", cells[1]), "an answer"
    path, _, name = cells[-1].strip("`").partition("::")
    assert re.search(rf"^(?:async )?def {name}\(", (ROOT / path).read_text("utf-8"), re.M)
