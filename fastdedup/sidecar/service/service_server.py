"""The server of `fastdedup serve`: it tells of its start, changes its rules on SIGHUP, and hands its clients over."""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
from collections.abc import Callable, Sequence

from ..http.application import HttpApp
from ..namespaces import Namespaces
from .config import Config
from .listener import BoundSocket
from .reload import Merged
from .server import ServedSocket, SidecarServer
from .sockets import allow_list, others

_LAST_CALL = 0.02
"""Seconds for clients that connected before the socket was removed: they are accepted, and their requests read."""
_HAND_OVER = 1.0
"""Seconds that a sidecar whose sockets were taken over serves on for the clients that it has."""


class ServiceServer(SidecarServer):
    """The server of `fastdedup serve`: it leaves signals to the sidecar, which tells it what they ask for.

    Args:
        config: its settings.
        namespaces: the namespaces that these describe.
        on_started: called when it accepts connections.
        listeners: its sockets.
        room: see `SidecarServer`.
    """

    def __init__(
        self,
        config: Config,
        namespaces: Namespaces,
        on_started: Callable[[], None],
        listeners: Sequence[BoundSocket],
        room: int | None = None,
    ) -> None:
        super().__init__(
            namespaces,
            HttpApp(namespaces),
            allowed=allow_list(config),
            grace=config.grace,
            stores=config.allow_stores,
            others=others(config, namespaces, listeners),
            room=room,
        )
        self._on_started = on_started
        self._listeners = listeners
        namespaces.counters.connections = lambda: self.connections

    def capture_signals(self) -> contextlib.AbstractContextManager[None]:  # type: ignore[override]
        """Leave signals alone: uvicorn would raise them again before the `Dedup` closes."""
        return contextlib.nullcontext()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept connections (uvicorn calls this)."""
        await super().startup(sockets)
        self._on_started()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Remove the sockets, accept the clients that have connected, and go on as uvicorn does.

        Clients that connect to systemd's socket meanwhile wait in it for the next sidecar.
        """
        taken_over = [each for each in self._listeners if each.leave()]
        if any(each.own for each in self._listeners):
            await asyncio.sleep(_LAST_CALL)
        if taken_over:
            await self._hand_over()
        await super().shutdown(sockets)

    def change_rules(self, news: Merged) -> None:
        """Serve by other rules from now on. Clients of sockets whose rules changed, or who may not connect any more,
        get the answers that they wait for, and must connect again.

        Raises:
            ConfigError: the rules cannot be followed; nothing is changed.
        """
        config = news.config
        new = others(config, self.namespaces, self._listeners, only=news.sockets)
        self.config.timeout_graceful_shutdown = round(config.grace)
        if not {"allow_uids", "allow_gids", "allow_stores"}.isdisjoint(news.changed):
            self.main = ServedSocket(
                self.namespaces, self.main.app, allowed=allow_list(config), stores=config.allow_stores
            )
        self.others |= new
        for each in [each for each in self.connections if not each.transport.is_closing()]:
            served = self.socket_of(each.transport)
            changed = served in new.values() or (served is self.main and "allow_stores" in news.changed)
            if changed or self.refusal(each.peer, served):
                each.shutdown()

    async def _hand_over(self) -> None:
        """Serve on for the clients that we have: most connect for one request. Those to come connect elsewhere."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_HAND_OVER):
                while self.connections or self._has_waiting():  # noqa: ASYNC110 -- uvicorn has no event for it
                    await asyncio.sleep(_LAST_CALL)

    def _has_waiting(self) -> bool:
        """True if clients have connected that are not accepted yet."""
        look = select.poll()
        for each in self._listeners:
            look.register(each.socket.fileno(), select.POLLIN)
        return bool(look.poll(0))

    def abandon(self) -> int:
        """Abort the connections whose work has not ended in time; return their number."""
        left = list(self.connections)
        for connection in left:
            connection.cut()
        return len(left)
