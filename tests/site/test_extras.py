"""docs/versions.md: its table of extras has every extra of pyproject.toml, with the packages that it brings."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

from ..sql_pages.pages import Page

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
OF_OURS = {"dev", "bench", "docs", "release"}
ROWS = [
    (re.findall(r"`([\w-]+)`", names), brings)
    for names, brings in re.findall(
        r"^\| (.+?) \| (.+?) \| .+ \|$", Page("versions.md").sections["Extras"], re.M
    )
][1:]


def plain(name: str) -> str:
    return re.sub(r"[-_ ]", "", name).lower()


def test_its_table_has_every_extra() -> None:
    told = [name for names, _ in ROWS for name in names]
    assert sorted(told) == sorted(EXTRAS)


def test_each_row_names_the_packages_that_it_brings() -> None:
    for names, brings in ROWS:
        for name in {*names} - OF_OURS:
            for line in EXTRAS[name]:
                needed = Requirement(line)
                packages = sorted(needed.extras) if needed.name == "fastdedup" else [needed.name]
                for package in packages:
                    assert plain(package) in plain(brings) or "that driver" in brings, (name, package)
