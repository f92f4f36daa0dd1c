"""The name of a record's holder: a label of the user's choice, the host, and the process."""

from __future__ import annotations

import os
import re
import socket
from typing import Any

from ..checks import shown
from ..errors import ConfigError

_LABEL = re.compile(r"[A-Za-z0-9_.:-]{1,20}")
_LONGEST = 48
"""The most bytes of a holder's name: the room that `kernel/owners.py` has for it."""


def check_holder(holder: Any) -> str | None:
    """Return the label of `holder=`: "" for no label, or None if records name no holder.

    Raises:
        ConfigError: `holder=` is neither a bool nor a label.
    """
    if isinstance(holder, bool):
        return "" if holder else None
    if not isinstance(holder, str) or not _LABEL.fullmatch(holder):
        raise ConfigError(
            "holder must be True, False, or a label of 1 to 20 characters of A-Z a-z 0-9 _ . : -, "
            f"got {repr(holder) if isinstance(holder, str) and len(holder) < 40 else shown(holder)}"
        )
    return holder


class HolderName:
    """The name of this process as a holder: `label@host:pid`, made again in a forked process."""

    def __init__(self, label: str) -> None:
        self._label = label
        # Mutable: the process that the name was made for, and the name.
        self._pid = 0
        self._name = ""

    def __call__(self) -> tuple[str]:
        """Return the name in a tuple: it is the only note."""
        pid = os.getpid()
        if pid != self._pid:
            self._name, self._pid = holder_name(self._label, socket.gethostname(), pid), pid
        return (self._name,)


def holder_name(label: str, host: str, pid: int) -> str:
    """Return a holder's name in at most 48 bytes. A host's name loses its domain, and then its beginning.

    A pod's name, and that of most servers, differs from the others' at its end.
    """
    before, after = f"{label}@" if label else "", f":{pid}"
    short = re.sub(r"[^A-Za-z0-9_.-]", "-", host.partition(".")[0]) or "host"
    return before + short[-(_LONGEST - len(before) - len(after)) :] + after
