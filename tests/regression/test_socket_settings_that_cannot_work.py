"""Fault: a path that no socket can have passed check-config; a wrong descriptor of systemd's ended in a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fastdedup.sidecar.service.config import load
from fastdedup.sidecar.service.mistakes import Mistakes

LONGEST = 107


@pytest.mark.parametrize("table", ["socket = {!r}", "[[sockets]]\npath = {!r}"])
def test_a_path_has_at_most_107_bytes(tmp_path: Path, table: str) -> None:
    file, longest = tmp_path / "c.toml", "/tmp/" + "s" * (LONGEST - 5)
    file.write_text(table.format(longest))
    load(file, {}, environment=False)
    for path in (longest + "s", longest[:-1] + "\N{LATIN SMALL LETTER E WITH ACUTE}"):
        file.write_text(table.format(path))
        with pytest.raises(Mistakes, match="at most 107 bytes, got 108"):
            load(file, {}, environment=False)


@pytest.mark.parametrize("descriptor", ["closed", "a file"])
def test_a_descriptor_that_is_no_socket_is_a_sentence(descriptor: str) -> None:
    opened = "os.close(3)" if descriptor == "closed" else "None"
    code = (
        "import os, sys; null = os.open(os.devnull, os.O_RDONLY); os.dup2(null, 3); "
        f"{opened}; os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS='1'); "
        "os.execv(sys.executable, [sys.executable, '-m', 'fastdedup', 'serve'])"
    )
    code = code.replace("os.dup2(null, 3);", "os.dup2(null, 3, True);")
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=dict(os.environ)
    )
    assert ended.returncode == 1
    assert "descriptor 3 is none" in ended.stderr
    assert "Traceback" not in ended.stderr
