"""A simulated primary with a replica and three sentinels: the real `RedisStore` asks the sentinels for its primary.

The two servers share one far end: what the primary has done is at the replica at once, but for a write that is
forgotten. A former primary that does not know that it was replaced has a far end of its own from then on. Sentinels
may tell of a failover late; the greater epoch counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from copy import copy
from math import inf
from typing import Any

from fastdedup.stores.base import Store
from fastdedup.stores.redis import RedisStore

from .far_end import Packet, SpecFarEnd
from .network import LATENCY, SimulatedTransport
from .servers import PROMOTED, READONLY, Server, ServersNetwork, bulk, name_of, server_of

UNTOLD = 0.4
"""Seconds until the sentinels tell of a failover."""
LEAVES = 0.02
"""Seconds after the sentinels' announcement in which packets may still go to the former primary."""

SENTINEL_FATES = {
    "replaced": "meanwhile its server has become a replica of the other one, and the sentinels announce it",
    "unannounced": f"the same, and the sentinels still name the former primary for {UNTOLD} s",
    "parted": "the same as replaced, but its server does not know, and executes what comes to it; only one sentinel "
    f"announces it, and the others {UNTOLD} s later",
    "ended": f"its server goes down before it arrives; {PROMOTED} s later the other one takes over",
    "forgotten": f"it takes effect and is answered, then its server goes down; {PROMOTED} s later the other one "
    "takes over, to which this write did not come",
}
_SERVICE = "shop"
_PORT = 6379
_SENTINELS = ("sentinel0", "sentinel1", "sentinel2")


class SentinelNetwork(ServersNetwork):
    """All connections of a run to the sentinels, and to the servers that they name."""

    uncounted = (b"INFO", b"PING", b"ROLE", b"SENTINEL")

    def __init__(self, on_forgotten: Callable[[], None], *args: Any) -> None:
        super().__init__(*args)
        self._on_forgotten = on_forgotten
        self._sentinels = [Server(host) for host in _SENTINELS]
        # Mutable: the primary and its replica; what each sentinel names, with its epoch.
        self.servers = [Server("server0"), Server("server1")]
        self._named = dict.fromkeys(self._sentinels, (self.servers[0], 1))
        self._hearing: list[SimulatedTransport] = []
        """Who hears the sentinels' announcements."""
        self._announced = inf
        """When they told of the failover."""
        self._unaware: SpecFarEnd | None = None
        """What the former primary has, if it does not know that it was replaced."""

    def store(self, name: str, timeout: float, loop: asyncio.AbstractEventLoop | None = None) -> Store:
        hosts = ",".join(_SENTINELS)
        with self.ways(name, loop, (*self.servers, *self._sentinels)):
            store = RedisStore(f"redis+sentinel://{hosts}/{_SERVICE}", timeout=timeout)
        store.server._scripts = self.scripts  # type: ignore[assignment]
        return store

    def carry(self, transport: SimulatedTransport, data: bytes) -> None:
        if name_of(data) == b"SUBSCRIBE" and server_of(transport) in self._sentinels:
            self._hearing.append(transport)
            transport.answer_later(b"*3\r\n" + bulk(b"subscribe") + bulk(b"+switch-master") + b":1\r\n")
        else:
            is_counted = name_of(data) not in self.uncounted
            is_former = server_of(transport) is self.servers[1]
            if is_counted and is_former and self.loop.time() > self._announced + LEAVES:
                self.mistakes.append("a packet was sent to a primary that the sentinels do not name any more")
            super().carry(transport, data)

    def told(self, server: Server, data: bytes) -> bytes:
        match name_of(data):
            case b"PING":
                return b"+PONG\r\n"
            case b"INFO":
                return bulk(b"run_id:%b\r\nmaxmemory_policy:noeviction\r\n" % server.host.encode())
            case b"ROLE":
                return b"*1\r\n" + bulk(b"master" if server is self.servers[0] else b"slave")
            case b"SENTINEL":
                primary, epoch = self._named[server]
                about = b"*2\r\n" + bulk(b"config-epoch") + bulk(b"%d" % epoch)
                return about + b"*2\r\n" + bulk(primary.host.encode()) + bulk(b"%d" % _PORT)
        raise AssertionError(f"not simulated: {data!r}")

    def _let_happen(
        self, transport: SimulatedTransport, packet: Packet, numbers: list[int], fate: str
    ) -> None:
        if fate in SENTINEL_FATES:
            self._disturb(fate, server_of(transport))
            fate = ""
        super()._let_happen(transport, packet, numbers, fate)

    def _disturb(self, fate: str, server: Server) -> None:
        if server is not self.servers[0]:
            return  # there was a failover already
        if fate in ("replaced", "unannounced", "parted"):
            self.servers.reverse()
            if fate == "parted":
                self._unaware = copy(self._spec())
                self._unaware.kept, self._unaware.ids = dict(self._unaware.kept), dict(self._unaware.ids)
                self._announce(self._sentinels[:1])
            self.loop.call_later(0 if fate == "replaced" else UNTOLD, self._announce, self._sentinels)
        elif fate == "ended":
            self._end(server)
        else:
            copied = self._copy()
            self.loop.call_later(3 * LATENCY, self._end, server, copied)

    def _end(self, server: Server, restore: Callable[[], None] | None = None) -> None:
        self.take_down(server)
        self.loop.call_later(PROMOTED, self._promote, server, restore)

    def _promote(self, server: Server, restore: Callable[[], None] | None) -> None:
        if restore is not None:
            restore()
        self.servers.reverse()
        server.down = False
        self._announce(self._sentinels)

    def _announce(self, sentinels: Sequence[Server]) -> None:
        """Let sentinels name the present primary, and tell those that listen to them."""
        self._named |= dict.fromkeys(sentinels, (self.servers[0], 2))
        self._announced = min(self.loop.time(), self._announced)
        parts = (b"message", b"+switch-master", _SERVICE.encode() + b" is elsewhere")
        news = b"*3\r\n" + b"".join(map(bulk, parts))
        for transport in self._hearing:
            if server_of(transport) in sentinels:
                transport.answer_later(news)

    def _copy(self) -> Callable[[], None]:
        """Copy what the store has; return what brings it back to that."""
        far_end = self._spec()
        kept, ids = dict(far_end.kept), dict(far_end.ids)

        def restore() -> None:
            if (far_end.kept, far_end.ids) != (kept, ids):
                self._on_forgotten()
            far_end.kept, far_end.ids = kept, ids

        return restore

    def _spec(self) -> SpecFarEnd:
        assert isinstance(self._far_end, SpecFarEnd)
        return self._far_end

    def _answer(self, transport: SimulatedTransport, number: int) -> bytes:
        if server_of(transport) is self.servers[0]:
            return super()._answer(transport, number)
        if self._unaware is None:
            self.refused.add(number)
            return READONLY
        self._on_forgotten()
        primary, self._far_end = self._far_end, self._unaware
        try:
            return super()._answer(transport, number)
        finally:
            self._far_end = primary
