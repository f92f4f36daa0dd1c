"""The sidecar's socket. It is never taken from a live sidecar, and never open to all users."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import stat
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ...errors import ConfigError

_BACKLOG = 1024
_CREDENTIALS = struct.Struct("3i")
_SO_PEERGROUPS = 59
"""Linux' socket option, from 4.13; Python has no name for it."""
_GROUPS_BYTES = 1024
"""The most that Python reads of a socket option: 256 groups."""


class Peer(NamedTuple):
    """The process at the other end of a connection, at the moment it connected.

    Attributes:
        groups: its supplementary groups; empty if the system does not tell them, or if there are over 256.
    """

    pid: int
    uid: int
    gid: int
    groups: frozenset[int] = frozenset()


class BoundSocket:
    """A listening socket, and its file.

    Attributes:
        path: the file's; it is not the socket's own name if the file replaced that of a running sidecar.
        own: False for a socket of systemd, whose file stays.
    """

    def __init__(self, listening: socket.socket, path: Path, *, own: bool = True) -> None:
        self.socket = listening
        self.path = path
        self.own = own
        self.name: str = listening.getsockname()
        # Mutable: which file is ours; None once it is not.
        self._file = _identity(Path(self.name)) if own else None

    @property
    def replaced(self) -> bool:
        """True if a later sidecar has put its own file in the place of ours."""
        return self._file is not None and _identity(self.path) not in (None, self._file)

    def leave(self) -> bool:
        """Remove the file; return True if a later sidecar has put its own in its place. It may be called twice."""
        file, self._file = self._file, None  # once its socket is closed, another file may get its number
        if file is None:
            return False
        found = _identity(self.path)
        if found == file:
            self.path.unlink()
        elif _identity(Path(self.name)) == file:
            Path(self.name).unlink()
        return found is not None and found != file


@contextlib.contextmanager
def bound(path: Path, mode: int = 0o660, *, owner: int = -1, group: int = -1) -> Iterator[BoundSocket]:
    """Yield a listening Unix socket at `path`; remove it at the end. `owner` and `group`: those of the file.

    The lock file beside it decides between two sidecars that start at once; the probe finds a server that holds no
    lock of ours. asyncio would silently replace a live socket.

    Raises:
        ConfigError: a sidecar serves `path` already, another process holds its lock, or another file is there.
    """
    _make_folder(path.parent)
    with locked(path):
        clear(path)
        with listening_at(path, path, mode, owner, group) as listener:
            yield listener


@contextlib.contextmanager
def listening_at(name: Path, path: Path, mode: int, owner: int, group: int) -> Iterator[BoundSocket]:
    """Yield a socket that listens at `name`, and will be renamed to `path` if that differs."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _bind(listening, name, mode, owner, group)
        listening.listen(_BACKLOG)
        listener = BoundSocket(listening, path)
        try:
            yield listener
        finally:
            listener.leave()
    finally:
        listening.close()


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def peer_of(connection: socket.socket) -> Peer | None:
    """Return the client (SO_PEERCRED, SO_PEERGROUPS), or None if the system does not tell its process."""
    if connection.family != socket.AF_UNIX or not hasattr(socket, "SO_PEERCRED"):
        return None
    pid, uid, gid = _CREDENTIALS.unpack(
        connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    )
    return Peer(pid, uid, gid, _groups_of(connection))


def _groups_of(connection: socket.socket) -> frozenset[int]:
    if not sys.platform.startswith("linux"):
        return frozenset()
    try:
        groups = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _GROUPS_BYTES)
    except OSError:
        return frozenset()
    return frozenset(struct.unpack(f"{len(groups) // 4}I", groups))


def _make_folder(folder: Path) -> None:
    """Make a folder, and the missing ones above it. Only their owner and our group may enter them."""
    if not folder.exists():
        _make_folder(folder.parent)
        folder.mkdir(mode=0o750, exist_ok=True)


@contextlib.contextmanager
def locked(path: Path, *, passing: bool = False) -> Iterator[None]:
    """Hold the lock of a socket. Raises what `bound` raises.

    The file stays, because clients look at it; `passing` removes it at the end.
    """
    file = path.with_name(path.name + ".lock")
    lock = _lock_of(file, path)
    try:
        sign(lock)
        yield
    finally:
        if passing:
            file.unlink(missing_ok=True)  # still locked: a process that has opened it finds out in `_lock_of`
        os.close(lock)


def _lock_of(file: Path, path: Path) -> int:
    """Lock this file, and not one that was removed meanwhile: two sidecars would lock two files."""
    while True:
        lock = _open_lock(file)
        is_ours = takes(lock)
        if is_ours and file.exists() and os.path.samestat(os.fstat(lock), file.stat()):
            return lock
        os.close(lock)
        if not is_ours:
            raise _taken(path) if _is_served(path) else _held(file)


def is_locked(file: Path) -> bool:
    """True if another process holds this lock file."""
    if not file.exists():
        return False
    lock = _open_lock(file)
    try:
        return not takes(lock, fcntl.LOCK_SH)
    finally:
        os.close(lock)


def takes(lock: int, kind: int = fcntl.LOCK_EX) -> bool:
    """Lock this file; return False if another process holds it."""
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def sign(lock: int) -> None:
    """Write our process id into the lock file, for a sidecar that takes over (`takeover.py`)."""
    os.ftruncate(lock, 0)
    os.pwrite(lock, b"%d\n" % os.getpid(), 0)


def _open_lock(file: Path) -> int:
    """Open the lock file, or make it. A link is not followed: it would make, or lock, a file of another's choice."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        lock = os.open(file, flags, 0o600)
    except OSError as error:
        why = "it is a symbolic link" if error.errno == errno.ELOOP else error.strerror
        raise ConfigError(f"cannot lock {file}: {why}; remove it, or choose another --socket") from None
    if not stat.S_ISREG(os.fstat(lock).st_mode):
        os.close(lock)
        raise ConfigError(
            f"cannot lock {file}: it is not a regular file; remove it, or choose another --socket"
        )
    return lock


def clear(path: Path) -> None:
    """Remove the socket of a sidecar that has ended."""
    try:
        kind = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(kind):
        raise ConfigError(f"{path} exists and is not a socket: choose another --socket, or remove it")
    if _is_served(path):
        raise _taken(path)
    path.unlink()


def _is_served(path: Path) -> bool:
    """Return whether a server listens at `path`; False also if the file is missing.

    Raises:
        ConfigError: that cannot be known.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError as error:
            raise ConfigError(f"cannot tell whether a sidecar serves {path}: {error}") from None
    return True


def _bind(listener: socket.socket, path: Path, mode: int, owner: int, group: int) -> None:
    """Bind the socket without any rights, so that no client connects before chmod."""
    former = os.umask(0o777)
    try:
        listener.bind(str(path))
    except OSError as error:
        raise ConfigError(f"cannot listen at {path}: {error}") from None
    finally:
        os.umask(former)
    try:
        os.chown(path, owner, group)
    except OSError as error:
        path.unlink()
        raise ConfigError(
            f"cannot give {path} to its owner or group: {error.strerror}; start the sidecar as root, or as a member "
            "of that group"
        ) from None
    path.chmod(mode)


def _held(file: Path) -> ConfigError:
    return ConfigError(
        f"another process holds the lock {file}, and no sidecar serves there: a sidecar that starts or ends, or a "
        "foreign process (`fuser` names it); try again, or choose another --socket"
    )


def _taken(path: Path) -> ConfigError:
    return ConfigError(
        f"a sidecar serves {path} already: replace it by --take-over, stop it, or choose another --socket"
    )
