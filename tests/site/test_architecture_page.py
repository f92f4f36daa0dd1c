"""docs/architecture.md names files and functions that exist, and its picture shows the house as it is.

So does AGENTS.md with the files and the commands.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from scripts import draw_house

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
NAMED = re.findall(r"`([\w/]+\.py):([\w.]+)`", PAGE)


def has(body: list[ast.stmt], names: list[str]) -> bool:
    """Return whether a module or class defines a name, and that one the next."""
    nodes = [each for each in body if getattr(each, "name", None) == names[0]]
    return any(not names[1:] or has(getattr(each, "body", []), names[1:]) for each in nodes)


def test_each_file_and_function_exists() -> None:
    gone = [
        f"{file}:{function}"
        for file, function in NAMED
        if not has(ast.parse((ROOT / "fastdedup" / file).read_text()).body, function.split("."))
    ]
    assert len(NAMED) >= 12
    assert not gone


def test_each_file_of_the_recipes_exists() -> None:
    paths = {*re.findall(r"`((?:docs|fastdedup|lua|tests)/[\w/.-]+)`", PAGE)}
    assert len(paths) > 60
    assert not [path for path in sorted(paths) if not (ROOT / path).exists()]


def test_each_name_of_the_recipes_is_in_a_file_that_its_step_names() -> None:
    """A step may hold several files and names, such as `Terms` beside `fastdedup/kernel/terms.py`."""
    steps = re.findall(r"^\d+\. (.+(?:\n  .+)*)", PAGE.partition("\n## Recipes")[2], re.MULTILINE)
    gone = []
    for step in steps:
        files = [ROOT / path for path in re.findall(r"`((?:fastdedup|tests)/[\w/.]+\.py)`", step)]
        text = "".join(file.read_text(encoding="utf-8") for file in files)
        names = re.findall(r"`(?:\w+\.)?([A-Za-z_]{3,})`", step) if files else []
        gone += [name for name in names if not re.search(rf"\b{name}\b", text)]
    assert len(steps) > 35
    assert not gone


def test_a_room_stands_on_the_nearest_rooms_alone() -> None:
    below = {"roof": {"floor", "cellar"}, "floor": {"cellar"}, "cellar": set[str]()}
    further = draw_house.all_below(below)
    assert further == {"roof": {"floor", "cellar"}, "floor": {"cellar"}, "cellar": set()}
    assert draw_house.nearest("roof", below, further) == {"floor"}


def test_a_picture_that_is_not_as_drawn_fails_the_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "architecture.md"
    page.write_text(PAGE.replace("  gateway  ", "  gatehouse  ", 1), encoding="utf-8")
    monkeypatch.setattr(draw_house, "PAGE", page)
    monkeypatch.setattr("sys.argv", ["draw_house.py", "--check"])
    with pytest.raises(SystemExit, match="run `make format`"):
        draw_house.main()
    monkeypatch.setattr("sys.argv", ["draw_house.py"])
    draw_house.main()
    assert page.read_text(encoding="utf-8") == PAGE


def test_the_page_for_agents_names_paths_and_commands_that_exist() -> None:
    page = (ROOT / "AGENTS.md").read_text(encoding="utf-8")
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert {*re.findall(r"`make ([a-z-]+)", page)} <= {*targets}
    paths = re.findall(r"`((?:fastdedup|lua|tests)/[\w/.]*)[` ]", page)
    assert len(paths) > 15
    assert not [path for path in paths if not (ROOT / path).exists()]
    assert len(page.splitlines()) <= 60, "one page"
