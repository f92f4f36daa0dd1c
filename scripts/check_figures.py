"""Refuses a release whose published figures are older than its code: `make release-check` runs it.

`make bench` writes the commit that it has measured into `bench/results/latest.json`. What a release itself changes,
the version in `fastdedup/__init__.py`, makes no figure old.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = Path("bench", "results", "latest.json")
MEASURED = ("fastdedup", "lua", ":!fastdedup/__init__.py")
"""What the benchmark measures, as arguments of git."""


def changed_since(commit: str, root: Path) -> list[str]:
    """Return the files of the code that have changed since a commit, committed or not.

    Raises:
        SystemExit: git does not know the commit.
    """
    command = ["git", "diff", "--name-only", commit, "--", *MEASURED]
    found = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    if found.returncode:
        sys.exit(f"{RESULTS} names the commit {commit!r}, which git does not know: {found.stderr.strip()}")
    return found.stdout.split()


def check(root: Path) -> None:
    """Exit with an error if the figures are older than the code."""
    commit = json.loads((root / RESULTS).read_text("utf-8"))["machine"].get("commit", "")
    if not commit:
        sys.exit(f"{RESULTS} names no commit: run `make bench`")
    changed = changed_since(commit, root)
    if changed:
        sys.exit(
            f"the figures of {RESULTS} are of commit {commit}; since then {len(changed)} files of the code have "
            f"changed, such as {changed[0]}: run `make bench`, and write its figures into README.md"
        )


if __name__ == "__main__":
    check(ROOT)
