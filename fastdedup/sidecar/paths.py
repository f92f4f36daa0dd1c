"""Where the sidecar's socket is when nobody says: for the server and its clients alike."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from ..errors import ConfigError

_NAME = "fastdedup.sock"


def default_socket() -> Path:
    """Return systemd's runtime directory for the service, else the user's, else a private one in the temp folder."""
    service = os.environ.get("RUNTIME_DIRECTORY", "").partition(":")[0]
    if service:
        return Path(service) / _NAME
    user = os.environ.get("XDG_RUNTIME_DIR", "")
    if user:
        return Path(user) / "fastdedup" / _NAME
    return Path(tempfile.gettempdir()) / f"fastdedup-{os.getuid()}" / _NAME


def make_private(socket: Path) -> None:
    """Make the default directory in the temp folder, where anybody could have put one of that name.

    Raises:
        ConfigError: somebody did.
    """
    folder = socket.parent
    if folder != Path(tempfile.gettempdir()) / f"fastdedup-{os.getuid()}":
        return
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise ConfigError(f"{folder} is not a private directory of this user's: choose another --socket")
