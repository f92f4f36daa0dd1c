"""Reads the settings again on SIGHUP: some take effect at once, the others need a restart. Main path: `Merged`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel

from .config import Config
from .tables import SocketConfig

_LIVE = ("log_level", "log_format", "log_keys", "grace", "allow_uids", "allow_gids", "allow_stores")
"""Settings that take effect at once. The password file needs no reload: it is read for each connection."""
_OF_FILE = ("path", "mode", "owner", "group")
"""Settings of a further socket that take effect when it is bound; all others of it take effect at once."""
_LISTS = ("allow_uids", "allow_gids")
"""The users that a socket lets in."""


class Merged:
    """The settings after they were read again, and what changed.

    Attributes:
        config: the settings now: the former ones, with those of the new ones that take effect at once.
        changed: the names of settings that took effect.
        sockets: the paths of the further sockets whose rules changed.
        left: the names of settings that changed, and need a restart.
    """

    def __init__(self, old: Config, new: Config) -> None:
        self.changed = [name for name in _LIVE if getattr(old, name) != getattr(new, name)]
        self.left = [
            inner
            for name in Config.model_fields
            if name not in (*_LIVE, "sockets")
            for inner in _different(name, getattr(old, name), getattr(new, name))
        ]
        self.sockets: list[str] = []
        update: dict[str, Any] = {name: getattr(new, name) for name in self.changed}
        self.config = old.model_copy(update=update | {"sockets": self._sockets(old.sockets, new.sockets)})

    def _sockets(self, old: Sequence[SocketConfig], new: Sequence[SocketConfig]) -> tuple[SocketConfig, ...]:
        there = {each.path: each for each in new}
        self.left += [_named(each) for each in new if each.path not in {former.path for former in old}]
        self.left += [_named(each) for each in old if each.path not in there]
        return tuple(self._socket(each, there.get(each.path, each)) for each in old)

    def _socket(self, old: SocketConfig, new: SocketConfig) -> SocketConfig:
        names = [name for name in SocketConfig.model_fields if getattr(old, name) != getattr(new, name)]
        # Without a list, the mode that it still has would let every user in.
        opens = old.mode & 0o007 and not (new.allow_uids or new.allow_gids)
        kept = (*_OF_FILE, *_LISTS) if opens else _OF_FILE
        self.left += [f"{_named(old)}.{name}" for name in names if name in kept]
        live = [name for name in names if name not in kept]
        self.changed += [f"{_named(old)}.{name}" for name in live]
        self.sockets += [str(old.path)] * bool(live)
        return old.model_copy(update={name: getattr(new, name) for name in live})


def _named(socket: SocketConfig) -> str:
    return f"sockets[{socket.path}]"


def _different(name: str, old: Any, new: Any) -> list[str]:
    """Return the names of the settings that differ: those in a table, rather than the table."""
    if old == new:
        return []
    if isinstance(old, BaseModel) and type(old) is type(new):
        old, new = dict(old), dict(new)
    if isinstance(old, dict):
        pairs = ((f"{name}.{key}", old.get(key), new.get(key)) for key in {**old, **new})
        return [inner for pair in pairs for inner in _different(*pair)]
    return [name]
