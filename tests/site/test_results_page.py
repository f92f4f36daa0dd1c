"""docs/results.md: its example runs, and `once` accepts and refuses the types that it names."""

from __future__ import annotations

import sys
import types

import pytest

from ..sql_pages.pages import Page

PAGE = Page("results.md")


def test_the_example_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = PAGE.all_blocks("python")
    module = types.ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", module)  # pydantic looks there for the names of a dataclass
    exec(compile(block, PAGE.name, "exec", dont_inherit=True), vars(module))
