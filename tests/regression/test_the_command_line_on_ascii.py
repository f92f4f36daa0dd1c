"""Fault: `list` ended in a traceback on a key that stdout could not take; an outage was printed twice."""

from __future__ import annotations

import os
import subprocess
import sys

from ..servers import RedisServer
from ..sidecar.running import Sidecar

COMMAND = [sys.executable, "-m", "fastdedup"]


def printed(*arguments: str) -> subprocess.CompletedProcess[str]:
    ascii_only = os.environ | {"PYTHONIOENCODING": "ascii"}
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=60, env=ascii_only)


def test_a_key_that_is_not_ascii_is_escaped(server: RedisServer) -> None:
    with Sidecar("--url", server.url) as sidecar, sidecar.client() as ask:
        ask.execute_command("FD.CLAIM", "commande-\N{LATIN SMALL LETTER E WITH ACUTE}")
        shown = printed("list", "--socket", str(sidecar.path), "--prefix", "commande")
    assert shown.returncode == 0, shown.stderr
    assert "commande-\\xe9" in shown.stdout


def test_an_outage_is_printed_once() -> None:
    shown = printed("list", "--url", "redis://127.0.0.1:1/0")
    assert shown.returncode == 1
    assert shown.stderr.count("Connection refused") == 1
