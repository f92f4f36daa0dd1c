"""Put each fault of the table into a copy of the project, and see whether the model finds it.

    make mutants                      all mutants, in half an hour on two cores
    make mutants ARGS='12 17 ledger'  those with these numbers, or with these words in their file's name or sentence
    make mutants ARGS='--workers 1'   one at a time

Fails if fewer than 95 % are killed, or if the text of a mutant does not stand in its file once.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from time import monotonic
from typing import NamedTuple

from .model import Part, parts_for
from .table import ALL, ROOT, Numbered

COPIED = ("fastdedup", "lua", "tests", "pyproject.toml", "_fastdedup_pytest.py")
LEAST = 0.95
LIMIT = 900.0
"""Seconds for a part of the model. The whole takes two minutes; a mutant that lets it hang is found by that."""
_FAILED = re.compile(r"^(?:FAILED|ERROR) \S+?::(?:\w+)(?:\[(.+?)\])?(?: - .*)?$", re.MULTILINE)


class Verdict(NamedTuple):
    """What became of a mutant. `killed_by`: "" if the model has not found it."""

    killed_by: str
    seconds: float


class UnusableError(Exception):
    """The tests do not even begin with a mutant, or they fail without it."""


class Tree:
    """A copy of the project."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sound: set[Part] = set()
        for name in COPIED:
            source, target = ROOT / name, folder / name
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
            else:
                shutil.copy(source, target)

    def judge(self, numbered: Numbered) -> Verdict:
        """Try the model on a mutant."""
        began = monotonic()
        try:
            for part in parts_for(numbered):
                with self._mutated(numbered):
                    killed_by = self.failure(part)
                if killed_by:
                    self._check(part)
                    return Verdict(killed_by, monotonic() - began)
        except UnusableError as error:
            print(f"mutant {numbered.number}: {error}")
        return Verdict("", monotonic() - began)

    @contextmanager
    def _mutated(self, numbered: Numbered) -> Iterator[None]:
        file = self._folder / numbered.file
        whole = file.read_text()
        file.write_text(numbered.text(self._folder))
        try:
            yield
        finally:
            file.write_text(whole)

    def _check(self, part: Part) -> None:
        """See that a part of the model does not fail without a mutant as well."""
        if part not in self._sound and (failed := self.failure(part)):
            raise UnusableError(f"{failed} fails without it as well")
        self._sound.add(part)

    def failure(self, part: Part) -> str:
        """Return what failed in a part of the model; "" if all its tests pass."""
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-n",
            "0",
            "-x",
            "-q",
            "-p",
            "no:cacheprovider",
            *part.tests,
        ]
        environment = os.environ | {
            "PYTHONPATH": str(self._folder),
            "PYTHONDONTWRITEBYTECODE": "1",
            "MODEL_DEPTH": "each step",  # and not every second one, as in `make test`
        }
        if part.sides:
            environment["MODEL_SIDES"] = part.sides
        tests = subprocess.Popen(
            command,
            cwd=self._folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            said, _ = tests.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            stop(tests)
            return f"{part.name}: its time"
        if tests.returncode == 0:
            return ""
        if tests.returncode != 1 or "Error compiling script" in said:
            raise UnusableError(f"the tests of {part.name} cannot run:\n{said}")
        found = _FAILED.search(said)
        return f"{part.name}: {found[1]}" if found and found[1] else part.name


def stop(tests: subprocess.Popen[str]) -> None:
    """End tests that hang: by an interrupt, so that they stop their servers, or else all that they have started."""
    tests.send_signal(signal.SIGINT)
    with suppress(subprocess.TimeoutExpired):
        tests.communicate(timeout=10)
    with suppress(ProcessLookupError):
        os.killpg(tests.pid, signal.SIGKILL)
    tests.communicate()


def judge_all(mutants: Sequence[Numbered], workers: int) -> int:
    """Judge mutants side by side, and print a line for each; return how many are killed."""
    killed = 0
    with tempfile.TemporaryDirectory(prefix="fastdedup-mutants-") as folder:
        trees: SimpleQueue[Tree] = SimpleQueue()
        for number in range(workers):
            trees.put(Tree(Path(folder) / str(number)))

        def judged(numbered: Numbered) -> Verdict:
            tree = trees.get()
            try:
                return tree.judge(numbered)
            finally:
                trees.put(tree)

        with ThreadPoolExecutor(workers) as pool:
            for numbered, verdict in zip(mutants, pool.map(judged, mutants), strict=True):
                killed += bool(verdict.killed_by)
                show(numbered, verdict)
    return killed


def show(numbered: Numbered, verdict: Verdict) -> None:
    print(
        f"{numbered.number:3d}  {verdict.killed_by or 'SURVIVES':32s} {verdict.seconds:4.0f} s  "
        f"{numbered.file.removeprefix('fastdedup/'):24s}  {numbered.mutant.breaks}",
        flush=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="make mutants", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("words", nargs="*", help="numbers of mutants, or words")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    chosen = parser.parse_args()
    mutants = [each for each in ALL if each.is_chosen(chosen.words)]
    try:
        for each in mutants:
            each.text()
    except ValueError as error:
        print(error)
        return 1
    killed = judge_all(mutants, chosen.workers)
    print(f"{killed} of {len(mutants)} killed")
    return int(killed < LEAST * len(mutants))


if __name__ == "__main__":
    sys.exit(main())
