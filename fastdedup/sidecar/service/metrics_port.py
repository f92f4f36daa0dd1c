"""`metrics_address`: metrics and health over TCP, for a Prometheus and for probes that cannot open the socket.

It answers `/metrics`, `/healthz` and `/readyz` without a password, to any client that reaches the port. They show
namespaces and figures, and no key, owner or result. The port makes no claim.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from typing import Any

from ...errors import ConfigError
from ..http.application import HttpApp
from ..http.protocol import HttpProtocol
from ..http.routes import OPERATORS_ROUTES
from ..namespaces import Namespaces
from ..reply_memory import ReplyMemory
from .checked import split_address
from .logs import facts, log

_MOST = 64
"""Connections at once; for a further one the connection closes that has been unused for the longest time."""
_MEMORY = 8 * 1024 * 1024
"""Bytes of answers that may lie unread."""
_TIMEOUT = 5.0
"""Seconds in which a request must arrive, and its answer must be read."""
_IDLE = 60.0
"""Seconds after which a connection without a request is closed."""


@dataclass
class _State:
    """The state that the port's connections share."""

    connections: set[Any] = field(default_factory=set)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    default_headers: list[tuple[bytes, bytes]] = field(default_factory=list)


class _Visit(HttpProtocol):
    """A connection to the port, which makes room for itself."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin (asyncio calls this)."""
        super().connection_made(transport)
        if len(self._state.connections) > _MOST:
            min(self._state.connections, key=lambda visit: visit.used_at).cut()


@asynccontextmanager
async def metrics_port(namespaces: Namespaces, address: str | None) -> AsyncIterator[str | None]:
    """Serve the port, and yield its address with the real port number; None without an address.

    Raises:
        ConfigError: the address cannot be listened at.
    """
    if address is None:
        yield None
        return
    app, state = HttpApp(namespaces, OPERATORS_ROUTES), _State()
    limits = replace(namespaces.limits, request_timeout=_TIMEOUT, idle_timeout=_IDLE, in_flight=16)
    memory = ReplyMemory(_MEMORY)
    memory.connections = state.connections
    host, number = split_address(address)
    try:
        server = await asyncio.get_running_loop().create_server(
            lambda: _Visit(limits, memory, namespaces.turns, app, state), host, number
        )
    except OSError as error:
        raise ConfigError(f"metrics_address: cannot listen at {address}: {error.strerror}") from None
    try:
        yield _shown(*server.sockets[0].getsockname()[:2])
    finally:
        server.close()
        for connection in list(state.connections):
            connection.cut()


def _shown(host: str, port: int) -> str:
    shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    if not ip_address(host).is_loopback:
        log.warning("metrics are open to the network, without a password", extra=facts(metrics=shown))
    return shown
