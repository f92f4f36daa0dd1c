"""Takes a socket over from a running sidecar, without a refused connection. Main path: `succeeding` → `take_places`.

The new sidecar listens beside the old socket and renames its own over it: a client finds the one or the other. Then
it tells the old one to stop, which still serves the clients that it has. The lock file stays the old one's until
that has ended; a second lock, beside it, keeps a third sidecar from doing the same meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import orjson

from ...errors import ConfigError, UnavailableError
from ..client import fetch
from .listener import BoundSocket, clear, is_locked, listening_at, locked, peer_of, sign, takes

_LOOK_AGAIN = 0.05
"""Seconds between two looks whether the old sidecar has ended."""


class Successor:
    """The right to a running sidecar's place: a socket beside it, and its process.

    Attributes:
        listener: our socket.
        pid: the running sidecar's process.
    """

    def __init__(self, listener: BoundSocket, pid: int, locks: contextlib.ExitStack) -> None:
        self.listener = listener
        self.pid = pid
        self._locks = locks

    def take_place(self) -> None:
        """Put our socket in the place of the running sidecar's; from now on clients connect to us."""
        os.rename(self.listener.name, self.listener.path)

    async def inherit_lock(self) -> None:
        """Wait until the old sidecar has ended, and take its lock."""
        file = self.listener.path.with_name(self.listener.path.name + ".lock")
        lock = os.open(file, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            while not takes(lock):  # noqa: ASYNC110 -- a lock has no event
                await asyncio.sleep(_LOOK_AGAIN)
        except BaseException:
            os.close(lock)
            raise
        sign(lock)
        self._locks.close()
        self._locks.callback(os.close, lock)


def take_places(successors: list[Successor]) -> None:
    """Put our sockets in the place of the running sidecar's, if it still has nothing that the store does not have.

    Ours serve too if it has ended by itself.

    Raises:
        ConfigError: it has; not one socket is in its place then.
    """
    for each in successors:
        if is_held(each.listener.path):  # else it has ended, and no sidecar serves
            _check_readiness(each.listener.path)
    for each in successors:
        each.take_place()


def tell_to_stop(successors: list[Successor]) -> None:
    """Send SIGTERM to the sidecar whose sockets were taken over."""
    for pid in {each.pid for each in successors}:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)


def is_held(path: Path) -> bool:
    """True if a running process holds the lock of a socket."""
    return is_locked(path.with_name(path.name + ".lock"))


@contextlib.contextmanager
def succeeding(path: Path, mode: int, *, owner: int, group: int) -> Iterator[Successor]:
    """Yield a socket beside a running sidecar's; at the end remove it, wherever it is then.

    Raises:
        ConfigError: the running sidecar cannot be stopped, or has records that the store does not have.
    """
    beside = path.with_name(path.name + ".next")
    if is_held(beside):  # first: meanwhile the lock of `path` is the old one's, and its listener the new one
        raise ConfigError(
            f"cannot take {path} over now: another sidecar is taking it over; try again when the old one has ended"
        )
    pid = _process_of(path)
    _check_readiness(path)
    with contextlib.ExitStack() as locks:
        locks.enter_context(locked(beside, passing=True))
        clear(beside)
        with listening_at(beside, path, mode, owner, group) as listener:
            yield Successor(listener, pid, locks)


def _process_of(path: Path) -> int:
    """Return the process of the sidecar at `path`, which its lock file and the system must both name."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
            peer = peer_of(probe)
        except OSError as error:
            raise ConfigError(
                f"cannot take {path} over: no sidecar answers there ({error.strerror})"
            ) from None
    signed = path.with_name(path.name + ".lock").read_text(encoding="utf-8").strip()
    if peer is None or str(peer.pid) != signed:
        raise ConfigError(
            f"cannot take {path} over: its lock file names process {signed or 'nobody'}, and process "
            f"{'unknown' if peer is None else peer.pid} listens there; stop that sidecar first"
        )
    try:
        os.kill(peer.pid, 0)
    except OSError as error:
        raise ConfigError(
            f"cannot take {path} over: process {peer.pid} cannot be stopped ({error.strerror}): be its user"
        ) from None
    return peer.pid


def _check_readiness(path: Path) -> None:
    """Refuse while the running sidecar answers in the store's place: what it said then is in its memory."""
    try:
        status, body = fetch(path, "/readyz")
        degraded = status != 200 or orjson.loads(body)["degraded"]
    except (UnavailableError, ValueError, KeyError):
        degraded = True
    if degraded:
        raise ConfigError(
            f"cannot take {path} over now: the running sidecar cannot reach its store, or has journal lines, answers "
            "that the store does not have yet; try again when GET /readyz at that socket says that degraded is false"
        )
