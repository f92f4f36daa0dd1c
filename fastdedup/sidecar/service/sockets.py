"""The sidecar's sockets: bound together, and served each with its own rules. Main path: `listening` → `others`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from ...errors import ConfigError
from ..http.application import HttpApp
from ..namespaces import Namespaces
from ..paths import make_private
from .config import Config
from .listener import BoundSocket, Peer, bound
from .server import Allowed, ServedSocket
from .systemd import inherited
from .tables import SocketConfig
from .takeover import Successor, is_held, succeeding


@contextlib.contextmanager
def listening(config: Config, *, take_over: bool = False) -> Iterator[Listening]:
    """Yield the sockets: the main one is that which systemd passed, else one of our own.

    Raises:
        ConfigError: a socket cannot be bound, or cannot be taken over.
    """
    with contextlib.ExitStack() as stack:
        sockets, wanted = Listening([], []), config.sockets
        passed = inherited()
        if passed is not None:
            stack.enter_context(passed)
            sockets.all.append(BoundSocket(passed, Path(passed.getsockname()), own=False))
        else:
            _make_private(config)
            wanted = (SocketConfig(path=config.socket), *wanted)
        for each in wanted:
            found = _bound(stack, each, take_over)
            if isinstance(found, Successor):
                sockets.successors.append(found)
                found = found.listener
            sockets.all.append(found)
        _check_takeover(config, sockets.successors)
        yield sockets


def _make_private(config: Config) -> None:
    try:
        make_private(config.socket)
    except OSError as error:
        raise ConfigError(f"cannot listen at {config.socket}: {error.strerror}") from None


_Bind = Callable[..., contextlib.AbstractContextManager[BoundSocket | Successor]]


class Listening(NamedTuple):
    """The sockets that a sidecar listens on.

    Attributes:
        all: the sockets, the main one first.
        successors: those of them that are to take the place of a running sidecar's.
    """

    all: list[BoundSocket]
    successors: list[Successor]


def _bound(stack: contextlib.ExitStack, socket: SocketConfig, take_over: bool) -> BoundSocket | Successor:
    """Bind a socket; if a running sidecar's socket is to be taken over, bind beside it."""
    owner = -1 if socket.owner is None else socket.owner
    group = -1 if socket.group is None else socket.group
    try:
        bind: _Bind = succeeding if take_over and is_held(socket.path) else bound
        return stack.enter_context(bind(socket.path, socket.mode, owner=owner, group=group))
    except OSError as error:  # the folder cannot be made, or cannot be written to
        raise ConfigError(f"cannot listen at {socket.path}: {error.strerror}") from None


def _check_takeover(config: Config, successors: Sequence[Successor]) -> None:
    """Refuse what would make second owners, or would stop a sidecar that serves others.

    Raises:
        ConfigError: the records are in the running sidecar's memory, or the sockets are not one sidecar's.
    """
    if successors and config.url.startswith("memory:"):
        raise ConfigError(
            "cannot take over with memory://: the records are in the running sidecar's memory, and would be lost"
        )
    if len({each.pid for each in successors}) > 1:
        raise ConfigError("cannot take over from two sidecars at once: their sockets are not one sidecar's")


def others(
    config: Config,
    namespaces: Namespaces,
    listeners: Sequence[BoundSocket],
    *,
    only: Collection[str] | None = None,
) -> dict[str, ServedSocket]:
    """Return the further sockets, by the names that they are bound to; `only`: those with these paths."""
    return {
        listener.name: served(each, namespaces)
        for each, listener in zip(config.sockets, listeners[1:], strict=True)
        if only is None or str(each.path) in only
    }


def served(socket: SocketConfig, namespaces: Namespaces) -> ServedSocket:
    """Return a further socket, with its rules."""
    view = namespaces.behind(socket.access(), socket.narrow(namespaces.limits))
    return ServedSocket(view, HttpApp(view), allowed=allow_list(socket), stores=socket.allow_stores)


def allow_list(config: Config | SocketConfig) -> Allowed:
    """Return the check of a peer's user: the listed users and groups may connect, and the sidecar's own user.

    Without lists, every user that may open the socket may connect.
    """
    uids, gids = {*config.allow_uids, os.getuid()}, set(config.allow_gids)

    def allowed(peer: Peer | None) -> bool:
        if not config.allow_uids and not config.allow_gids:
            return True
        return peer is not None and (peer.uid in uids or peer.gid in gids or not gids.isdisjoint(peer.groups))

    return allowed
