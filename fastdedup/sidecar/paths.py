"""The default path of the sidecar's socket, for the server and for its clients."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from ..errors import ConfigError

_NAME = "fastdedup.sock"


def default_socket() -> Path:
    """Return the socket's path in systemd's runtime directory of the service, else in the user's, else in a private
    directory in the folder for temporary files.
    """
    service = os.environ.get("RUNTIME_DIRECTORY", "").partition(":")[0]
    if service:
        return Path(service) / _NAME
    user = os.environ.get("XDG_RUNTIME_DIR", "")
    if user:
        return Path(user) / "fastdedup" / _NAME
    return Path(tempfile.gettempdir()) / f"fastdedup-{os.getuid()}" / _NAME


def make_private(socket: Path) -> None:
    """Make the private directory in the folder for temporary files; another user may make one of the same name there.

    Raises:
        ConfigError: another user has made it, or others may write to it.
    """
    folder = socket.parent
    if folder != Path(tempfile.gettempdir()) / f"fastdedup-{os.getuid()}":
        return
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise ConfigError(f"{folder} must be a private directory of this user: choose another --socket")
