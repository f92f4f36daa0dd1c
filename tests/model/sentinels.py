"""A simulated primary with a replica and three sentinels: the real `RedisStore` asks the sentinels for its primary.

The two servers share one far end: what the primary has done is at the replica at once, but for a write that is
forgotten. A former primary that does not know that it was replaced has a far end of its own from then on, and one
that takes over again may have only what it had when it was replaced. Sentinels may tell of a failover late; the
greater epoch counts.
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
SECOND_FATES = SENTINEL_FATES | {
    "returned": "the same as ended, but the other one, which was the primary before, has nothing that came since",
}
"""Of a packet after a failover."""
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
        self._epoch = 1
        self._named = dict.fromkeys(self._sentinels, (self.servers[0], self._epoch))
        self._hearing: list[SimulatedTransport] = []
        """Who hears the sentinels' announcements."""
        self._announced = inf
        """When they told of the last failover."""
        self._former: SpecFarEnd | None = None
        """What the former primary has by itself; None before the first failover."""
        self._is_unaware = False
        """The former primary does not know that it was replaced."""

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
        if fate in SECOND_FATES:
            self._disturb(fate, server_of(transport))
            fate = ""
        super()._let_happen(transport, packet, numbers, fate)

    def _disturb(self, fate: str, server: Server) -> None:
        if server is not self.servers[0] or server.down:
            return  # it was replaced already
        if fate in ("replaced", "unannounced", "parted"):
            self._take_over(unaware=fate == "parted")
            if fate == "parted":
                self._announce(self._sentinels[:1])
            self.loop.call_later(0 if fate == "replaced" else UNTOLD, self._announce, self._sentinels)
        elif fate == "forgotten":
            self.loop.call_later(3 * LATENCY, self._end, server, copied(self._spec()))
        else:
            self._end(server, self._former if fate == "returned" else None)

    def _end(self, server: Server, other: SpecFarEnd | None) -> None:
        if server is self.servers[0] and not server.down:
            self.take_down(server)
            self.loop.call_later(PROMOTED, self._promote, server, other)

    def _promote(self, server: Server, other: SpecFarEnd | None) -> None:
        """Let the replica take over. `other`: what it has, if that is not all that the primary had."""
        present = self._spec()
        self._take_over()
        if other is not None:
            if (present.kept, present.ids) != (other.kept, other.ids):
                self._on_forgotten()
            present.kept, present.ids = dict(other.kept), dict(other.ids)
        server.down = False
        self._announce(self._sentinels)

    def _take_over(self, *, unaware: bool = False) -> None:
        self.servers.reverse()
        self._epoch += 1
        self._announced = inf
        self._former, self._is_unaware = copied(self._spec()), unaware

    def _announce(self, sentinels: Sequence[Server]) -> None:
        """Let sentinels name the present primary, and tell those that listen to them."""
        self._named |= dict.fromkeys(sentinels, (self.servers[0], self._epoch))
        self._announced = min(self.loop.time(), self._announced)
        parts = (b"message", b"+switch-master", _SERVICE.encode() + b" is elsewhere")
        news = b"*3\r\n" + b"".join(map(bulk, parts))
        for transport in self._hearing:
            if server_of(transport) in sentinels:
                transport.answer_later(news)

    def _spec(self) -> SpecFarEnd:
        assert isinstance(self._far_end, SpecFarEnd)
        return self._far_end

    def _answer(self, transport: SimulatedTransport, number: int) -> bytes:
        if server_of(transport) is self.servers[0]:
            return super()._answer(transport, number)
        if self._former is None or not self._is_unaware:
            self.refused.add(number)
            return READONLY
        self._on_forgotten()
        primary, self._far_end = self._far_end, self._former
        try:
            return super()._answer(transport, number)
        finally:
            self._far_end = primary


def copied(far_end: SpecFarEnd) -> SpecFarEnd:
    """Return what has the same records now, and takes its own way from here."""
    other = copy(far_end)
    other.kept, other.ids = dict(far_end.kept), dict(far_end.ids)
    return other
