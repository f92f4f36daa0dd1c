"""A sidecar that took over left the lock that keeps a third one away: `fastdedup.sock.next.lock`, for each socket.

`tests/sidecar/test_takeover.py` looks for it after a take-over; here is the race that removing it brings.
"""

from __future__ import annotations

import fcntl
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from fastdedup.errors import ConfigError
from fastdedup.sidecar.service import listener
from fastdedup.sidecar.service.listener import is_locked, locked


def test_a_lock_that_is_removed_meanwhile_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one ends between the second one's opening and locking: they would lock two files."""
    path, file = tmp_path / "gate.sock", tmp_path / "gate.sock.lock"
    flock = fcntl.flock
    with ExitStack() as first:
        first.enter_context(locked(path, passing=True))
        with pytest.raises(ConfigError, match="another process holds the lock"), locked(path, passing=True):
            pass

        def late(lock: int, how: int) -> Any:
            first.close()
            return flock(lock, how)

        monkeypatch.setattr(listener.fcntl, "flock", late)
        with locked(path, passing=True):
            assert file.exists()
            assert is_locked(file)
    assert not file.exists()
