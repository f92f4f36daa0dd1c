"""The site's pages: each is in the navigation, each link leads to a file and a heading. `make docs` checks more."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts.mkdocs_outside import CODE, links_of, outside_files, path_of, place_of

ROOT = Path(__file__).parents[2]
PAGES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))
READ = [*PAGES, "README.md", "README.zh-CN.md", "AGENTS.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"]


def named(nav: Any) -> Iterator[str]:
    """Every page that the navigation names."""
    if isinstance(nav, str):
        yield nav
    for each in nav.values() if isinstance(nav, dict) else nav if isinstance(nav, list) else ():
        yield from named(each)


@cache
def anchors(path: str) -> set[str]:
    """The anchors of a page's headings, as MkDocs and code hosts make them."""
    text = CODE.sub(
        lambda code: "" if code[0].startswith("```") else code[0], (ROOT / path).read_text("utf-8")
    )
    plain = [
        re.sub(r"[^\w\s-]", "", title).strip().lower()
        for title in re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    ]
    return {re.sub(r"\s", "-", title) for title in plain}


def test_each_page_is_in_the_navigation() -> None:
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    in_site = {path_of(place) for place in named(settings["nav"])}
    assert set(PAGES) <= in_site
    assert not [path for path in in_site if not (ROOT / path).is_file()]


@pytest.mark.parametrize("path", READ)
def test_each_link_of_a_page_leads_somewhere(path: str) -> None:
    text = (ROOT / path).read_text(encoding="utf-8")
    assert not [target for target in links_of(path, text) if not (ROOT / target).exists()]
    folder = posixpath.dirname(path)
    for target, anchor in re.findall(r"\]\(([^)\s#:]*)#([^)\s]+)\)", CODE.sub("", text)):
        aim = posixpath.normpath(posixpath.join(folder, target)) if target else path
        assert anchor in anchors(aim), f"{path}: {target}#{anchor}"


def test_a_link_out_of_docs_becomes_a_place_in_the_site() -> None:
    outside = outside_files({"docs/ledger.md"})
    assert {"README.md", "fastdedup/stores/base.py"} <= outside
    assert [place_of(path) for path in ("docs/faq.md", "bench/README.md")] == [
        "faq.md",
        "repository/bench/README.md",
    ]


def test_the_site_loads_nothing_from_outside() -> None:
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    assert settings["theme"]["font"] is False
    assert settings["strict"] is True
    assert not [each for each in settings["extra_css"] if "//" in each]
    assert "extra_javascript" not in settings
