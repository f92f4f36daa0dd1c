"""The sidecar's server: two protocols on each socket, told apart by the first byte.

Main path: `Sniffer.data_received`.

uvicorn keeps the life cycle: it accepts connections, and drains them when it stops. It takes `Sniffer` for its HTTP
protocol. Sniffer reads the first byte of a connection, and hands it over to RESP if the byte is `*`, else to HTTP.
What else is used of uvicorn: `Server.serve`, `startup`, `shutdown`, `capture_signals` and `should_exit`, and the
`connections`, `tasks` and `default_headers` of `Server.server_state`. pyproject.toml bounds its versions by that.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Mapping
from math import ceil
from typing import Any, cast

import uvicorn

from ..http.application import HttpApp
from ..http.protocol import HttpProtocol
from ..namespaces import Namespaces
from ..reply_memory import UnreadReplies
from ..resp.commands import commands_of
from ..resp.connection import RespConnection
from .admission import Admission, is_a_look, refusal_text
from .listener import Peer, peer_of
from .logs import facts

log = logging.getLogger("fastdedup.sidecar")

_LINGER = 1.0
"""Seconds that a refused client has to send its first bytes, so that it gets the reason in its own protocol."""

Allowed = Callable[[Peer | None], bool]


class ServedSocket:
    """One of the sidecar's sockets, from its clients' side.

    Args:
        namespaces: those that its clients may use, with its rules.
        app: answers its HTTP requests.
        allowed: returns whether this process may connect; None stands for an unknown one.
        stores: serve `sidecar://` stores too, which may write any record.
    """

    def __init__(
        self, namespaces: Namespaces, app: HttpApp, *, allowed: Allowed, stores: bool = False
    ) -> None:
        self.namespaces = namespaces
        self.app = app
        self.allowed = allowed
        self.commands = commands_of(namespaces.access, stores=stores)


class Sniffer(asyncio.Protocol):
    """A connection that has not sent anything yet."""

    def __init__(self, server: SidecarServer) -> None:
        self._server = server
        # Mutable: the connection; its unread replies, of which there are none yet; the client's process; the socket
        # that it came in by; why it is refused, once its client has said in which language to tell that; the timer
        # that closes it if it sends nothing.
        self.transport: asyncio.Transport
        self.unread: UnreadReplies
        self.peer: Peer | None = None
        self._served: ServedSocket
        self._refusal = ""
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept a client that may connect (asyncio calls this)."""
        # uvloop's transports do not inherit from asyncio's.
        self.transport = cast(asyncio.Transport, transport)
        server = self._server
        served = self._served = server.socket_of(self.transport)
        self.unread = UnreadReplies(served.namespaces.memory, self.transport)
        who = self.peer = peer_at(self.transport)
        stranger = server.refusal(who, served)
        if stranger:
            server.refused(stranger)
            self.transport.abort()
            return
        self._refusal = server.admission.admit(self, None if who is None else who.uid)
        wait = asyncio.get_running_loop().call_later
        if self._refusal:
            server.crowded_out(self._refusal)
            server.admission.linger(self)
            self._timer = wait(_LINGER, self._refuse, b"")
        else:
            server.connections.add(self)
            self._timer = wait(server.namespaces.limits.idle_timeout, self.transport.abort)

    def data_received(self, data: bytes) -> None:
        """Hand over to the protocol of the first byte (asyncio calls this)."""
        if self.transport.is_closing():
            return
        if self._refusal and not is_a_look(data):
            self._refuse(data)
            return
        server, served = self._server, self._served
        end = None if self._refusal else server.admission.spoke(self)
        self._leave()
        protocol: RespConnection | HttpProtocol
        if data[:1] == b"*":
            protocol = RespConnection(served.namespaces, server.connections, served.commands)
        else:
            limits, memory = served.namespaces.limits, served.namespaces.memory
            turns = served.namespaces.turns
            protocol = HttpProtocol(limits, memory, turns, served.app, server.server_state)
        if end is not None:
            protocol.on_gone.append(end)
        protocol.peer = self.peer
        self.transport.set_protocol(protocol)
        protocol.connection_made(self.transport)
        protocol.data_received(data)
        if self._refusal:
            protocol.shutdown()  # this one answer, and no further one

    def connection_lost(self, exc: Exception | None) -> None:
        """End without having read anything (asyncio calls this)."""
        self._leave()

    def shutdown(self) -> None:
        """Close (uvicorn calls this)."""
        self.transport.close()

    def cut(self) -> None:
        """Close at once; a refused client gets the refusal first, in its own protocol if that is known."""
        if self._refusal:
            self._refuse(b"")
        else:
            self.transport.abort()

    def _refuse(self, data: bytes) -> None:
        """Tell the client why it is refused, and close."""
        self.transport.write(refusal_text(data, self._refusal))
        self.transport.close()

    def _leave(self) -> None:
        self._server.connections.discard(self)
        self._server.admission.ended(self)
        if self._timer is not None:
            self._timer.cancel()


class SidecarServer(uvicorn.Server):
    """uvicorn on a socket that it did not bind, with `Sniffer` in front.

    Args:
        namespaces: the sidecar's namespaces.
        app: answers HTTP requests.
        allowed: returns whether this process may connect; None stands for an unknown one.
        grace: seconds for the requests under way when the server stops.
        stores: serve `sidecar://` stores too, which may write any record.
        others: the further sockets, by the name that they are bound to.
        room: how many connections the system's limit of open files allows; None: as many as the limits.
    """

    def __init__(
        self,
        namespaces: Namespaces,
        app: HttpApp,
        *,
        allowed: Allowed,
        grace: float = 10.0,
        stores: bool = False,
        others: Mapping[str, ServedSocket] | None = None,
        room: int | None = None,
    ) -> None:
        config = uvicorn.Config(
            cast(Any, app),  # it is never called by uvicorn, whose protocol is not used
            http=self._make_protocol,  # type: ignore[arg-type] # a class, or a function that makes the protocol
            interface="asgi3",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=ceil(grace),
        )
        super().__init__(config)
        self.namespaces = namespaces
        # Mutable (SIGHUP changes them): the main socket, and the others.
        self.main = ServedSocket(namespaces, app, allowed=allowed, stores=stores)
        self.others = dict(others or {})
        self.admission = Admission(namespaces.limits, room=room)
        namespaces.memory.connections = self.connections

    @property
    def connections(self) -> set[Any]:
        """Every connection, of any protocol; each has `shutdown()`."""
        return self.server_state.connections

    def socket_of(self, transport: asyncio.Transport) -> ServedSocket:
        """Return the socket that a connection came in by."""
        own: socket.socket | None = transport.get_extra_info("socket") if self.others else None
        return self.main if own is None else self.others.get(own.getsockname(), self.main)

    def refusal(self, who: Peer | None, served: ServedSocket) -> str:
        """Return why a client may not connect; the empty text if it may."""
        if served.allowed(who):
            return ""
        if who is None:
            return "the system does not tell its user, and there is an allow list"
        groups = ", ".join(map(str, sorted({who.gid, *who.groups})))
        return f"user {who.uid}, with the groups {groups}, is not on the allow list"

    def refused(self, why: str) -> None:
        """Count a connection that is refused, and log why."""
        self.namespaces.counters.connections_refused += 1
        log.warning("refused a connection: %s", why)

    def crowded_out(self, why: str) -> None:
        """Count a connection that finds no place; log why once a minute, with the number of them."""
        self.namespaces.counters.connections_refused += 1
        untold = self.admission.untold()
        if untold:
            log.warning("refused a connection: %s", why, extra=facts(refused=untold))

    def _make_protocol(self, **_: Any) -> Sniffer:
        return Sniffer(self)


def peer_at(transport: asyncio.Transport) -> Peer | None:
    """Return the client, or None if the system does not tell."""
    own: socket.socket | None = transport.get_extra_info("socket")
    return None if own is None else peer_of(own)
