"""A sidecar whose start had timed out, or whose tests were killed, ran on after the tests."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from .. import sidecars, warm
from ..waiting import wait_until

PROGRAM = """
import os, signal, sys
from tests import warm

command = ["http.server", "--bind", "127.0.0.1", "0"]
with open(os.devnull, "wb") as nowhere:
    print(warm.start(command, environment={{}}, out=nowhere, err=nowhere).pid, flush=True)
{end}
"""


def started(end: str) -> int:
    """Run a process that starts a program and ends; return the program's pid."""
    command = [sys.executable, "-c", PROGRAM.format(end=end)]
    return int(subprocess.run(command, cwd=warm.ROOT, stdout=subprocess.PIPE, check=False).stdout)


@pytest.mark.parametrize("end", ["", "os.kill(os.getpid(), signal.SIGKILL)"], ids=["ended", "killed"])
async def test_what_tests_have_started_ends_with_them(end: str) -> None:
    pid = started(end)

    def is_gone() -> bool:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        return False

    await wait_until(is_gone, description="the program has ended")


def test_a_sidecar_that_does_not_come_up_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if no `with` stands around its start."""
    monkeypatch.setattr(sidecars.Sidecar, "deadline", 0)
    sidecar = sidecars.Sidecar("memory://")
    with pytest.raises(TimeoutError, match="comes up"):
        sidecar.start()
    assert not sidecar.alive
    assert not sidecar.folder.exists()


@pytest.mark.no_cover
@pytest.mark.parametrize("turn", [1, 2])
def test_no_program_measures_coverage_in_vain(turn: int) -> None:
    """coverage.py sets its variables anew after each test that it does not measure, such as the first turn."""
    assert warm.coverage_variables(os.environ) == []
