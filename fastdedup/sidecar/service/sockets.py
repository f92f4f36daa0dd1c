"""The sidecar's sockets: bound together, and served each with its own rules. Main path: `listening` → `others`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from ...errors import ConfigError
from ..http.application import HttpApp
from ..namespaces import Namespaces
from ..paths import make_private
from .config import Config, SocketConfig
from .listener import Listener, Peer, bound, inherited
from .server import Allowed, ServedSocket


@contextlib.contextmanager
def listening(config: Config) -> Iterator[list[Listener]]:
    """Yield the sockets, the main one first: the one that systemd passed, else one of our own."""
    with contextlib.ExitStack() as stack:
        passed = inherited()
        if passed is not None:
            main = Listener(stack.enter_context(passed), config.socket, own=False)
        else:
            main = _bound(stack, SocketConfig(path=config.socket), private=True)
        yield [main, *(_bound(stack, each) for each in config.sockets)]


def _bound(stack: contextlib.ExitStack, socket: SocketConfig, *, private: bool = False) -> Listener:
    try:
        if private:
            make_private(socket.path)
        owner = -1 if socket.owner is None else socket.owner
        group = -1 if socket.group is None else socket.group
        return stack.enter_context(bound(socket.path, socket.mode, owner=owner, group=group))
    except OSError as error:  # the folder cannot be made, or cannot be written to
        raise ConfigError(f"cannot listen at {socket.path}: {error.strerror}") from None


def others(config: Config, namespaces: Namespaces, listeners: list[Listener]) -> dict[str, ServedSocket]:
    """Return the further sockets, by the names that they are bound to."""
    return {
        listener.name: served(each, namespaces)
        for each, listener in zip(config.sockets, listeners[1:], strict=True)
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
