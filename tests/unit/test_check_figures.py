"""A release is refused while its published figures are older than its code: `scripts/check_figures.py`."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from scripts.check_figures import RESULTS, check


class Clone:
    """A repository with code and figures."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.git("init", "--quiet")
        self.write("fastdedup/engine.py", "1")

    def git(self, *arguments: str) -> str:
        names = ("-c", "user.name=t", "-c", "user.email=t@example.org")
        done = subprocess.run(
            ["git", *names, *arguments], cwd=self.root, check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        self.git("add", ".")
        self.git("commit", "--quiet", "-m", path)

    def measure(self, commit: str | None = None) -> None:
        machine = {"commit": self.git("rev-parse", "--short=8", "HEAD") if commit is None else commit}
        self.write(str(RESULTS), json.dumps({"machine": machine}))


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return Clone(tmp_path)


def test_figures_of_this_code_are_taken(clone: Clone) -> None:
    clone.measure()
    clone.write("fastdedup/__init__.py", "the version")
    clone.write("docs/page.md", "a page")
    check(clone.root)


@pytest.mark.parametrize("path", ["fastdedup/engine.py", "lua/claim.lua"])
def test_figures_of_earlier_code_are_refused(clone: Clone, path: str) -> None:
    clone.measure()
    clone.write(path, "2")
    with pytest.raises(
        SystemExit, match=f"1 files of the code have changed, such as {path}: run `make bench`"
    ):
        check(clone.root)


def test_so_is_code_that_is_not_committed(clone: Clone) -> None:
    clone.measure()
    (clone.root / "fastdedup" / "engine.py").write_text("2")
    with pytest.raises(SystemExit, match="run `make bench`"):
        check(clone.root)


@pytest.mark.parametrize(
    ("commit", "said"), [("", "names no commit"), ("0badc0de", "which git does not know")]
)
def test_figures_of_no_known_commit_are_refused(clone: Clone, commit: str, said: str) -> None:
    clone.measure(commit)
    with pytest.raises(SystemExit, match=said):
        check(clone.root)
