"""A simulated Redis Cluster: the real `ClusterStore` talks to it, each node over connections of its own.

It has two primaries and a replica of each. All of them share one far end: what moves between two servers arrives
there at once and whole, so what is looked at is the way of each operation to the server that may execute it.
Handshakes and questions for the layout have no fate of their own; all other packets may have one of `CLUSTER_FATES`
too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, ClassVar, cast
from unittest.mock import patch

import hiredis

from fastdedup.kernel.codes import Code
from fastdedup.kernel.operations import ClaimOp, Op
from fastdedup.kernel.verbs import Verb
from fastdedup.stores.base import Store
from fastdedup.stores.redis import reconnect, url
from fastdedup.stores.redis.cluster import node, single_claims
from fastdedup.stores.redis.cluster.slot_table import SLOTS, slot_of
from fastdedup.stores.redis.cluster.store import ClusterStore
from fastdedup.stores.redis.scripts import pack

from .far_end import Packet
from .network import LATENCY, LONGER, Network, Process, SimulatedTransport

PROMOTED = 0.4
"""Seconds until the replica of a primary that is down takes over."""
MOVED = 0.3
"""Seconds until a slot that begins to move has moved. Its keys have moved after half of them."""

FORMS = ("whole", "by slot")
"""How batches go to a node: in one call for keys that it does not declare, or in a call for each slot."""
CLUSTER_FATES = {
    "moved": "meanwhile the slots of its keys move to the other primary",
    "moving": f"meanwhile these slots begin to move there: for {MOVED} s the other primary has the new keys",
    "failed": f"its server goes down before it arrives; {PROMOTED} s later the replica takes over",
    "deposed": "meanwhile its server has become a replica of its former replica, and still answers",
}
_PORT = 7000
_UNCOUNTED = (b"CLUSTER", b"EVAL", b"INFO", b"TIME")
"""Commands of handshakes and questions: no packets of those that have a number."""
_HALF = SLOTS // 2
_ASKING = pack("ASKING")
_BULK = b"$%d\r\n%b\r\n"
_UNDECLARED = b"-ERR every key must be declared\r\n"


class Server:
    """A server of the Cluster, with its number among all of them."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.host = f"node{number}"
        self.down = False

    def shown(self) -> bytes:
        """Return its row of CLUSTER SLOTS."""
        host = self.host.encode()
        return b"*3\r\n" + _BULK % (len(host), host) + b":%d\r\n" % _PORT + _BULK % (len(host), host)


class Slots:
    """Which server holds which slot, and which slots move to another one.

    `pairs`: a primary and its replica. `moved`: the pair of each slot that is not where it was at first.
    """

    def __init__(self) -> None:
        self.servers = [Server(number) for number in range(4)]
        self.pairs = [self.servers[:2], self.servers[2:]]
        self.moved: dict[int, int] = {}
        self.moving: dict[int, set[bytes]] = {}
        """For each slot that is moving, the keys that have not moved yet."""
        self.epoch = 1

    def pair_of(self, slot: int) -> int:
        return self.moved.get(slot, slot // _HALF)

    def primary_of(self, slot: int) -> Server:
        return self.pairs[self.pair_of(slot)][0]

    def next_of(self, slot: int) -> Server:
        """Return the primary that the slot moves to."""
        return self.pairs[1 - self.pair_of(slot)][0]

    def move(self, slot: int) -> None:
        self.moving.pop(slot, None)
        self.moved[slot] = 1 - self.pair_of(slot)
        self.epoch += 1

    def promote(self, server: Server) -> None:
        """Let the replica of a primary take over, with this server as its replica."""
        for pair in self.pairs:
            if pair[0] is server:
                pair.reverse()
                self.epoch += 1

    def refusal(self, server: Server, ops: Sequence[Op], asking: bool) -> bytes:
        """Return what a server answers to a call that it does not execute; empty if it does."""
        answers = {self._refusal(server, op.wire, asking) for op in ops}
        return answers.pop() if len(answers) == 1 else b"-TRYAGAIN some of the keys have moved\r\n"

    def _refusal(self, server: Server, wire: bytes, asking: bool) -> bytes:
        slot = slot_of(wire)
        owner, taker = self.primary_of(slot), self.next_of(slot)
        is_moving = slot in self.moving
        if server is owner and is_moving and wire not in self.moving[slot]:
            return b"-ASK %d %b:%d\r\n" % (slot, taker.host.encode(), _PORT)
        if server is owner or (server is taker and is_moving and asking):
            return b""
        return b"-MOVED %d %b:%d\r\n" % (slot, owner.host.encode(), _PORT)

    def info(self) -> bytes:
        text = b"cluster_state:ok\r\ncluster_current_epoch:%d\r\n" % self.epoch
        return _BULK % (len(text), text)

    def layout(self) -> bytes:
        """Return the answer to CLUSTER SLOTS."""
        cuts = sorted({0, _HALF, SLOTS, *self.moved, *(slot + 1 for slot in self.moved)})
        rows = [
            b"*4\r\n:%d\r\n:%d\r\n" % (first, after - 1) + self._pair(first)
            for first, after in pairwise(cuts)
        ]
        return b"*%d\r\n" % len(rows) + b"".join(rows)

    def _pair(self, slot: int) -> bytes:
        return b"".join([server.shown() for server in self.pairs[self.pair_of(slot)]])


class ClusterNetwork(Network):
    """All connections of a run to a Cluster.

    Args:
        form: one of `FORMS`.
    """

    present: ClassVar[ClusterNetwork]
    """The network of the run under way."""

    def __init__(self, form: str, *args: Any) -> None:
        super().__init__(*args)
        ClusterNetwork.present = self
        self._by_slot = form == FORMS[1]
        self.slots = Slots()
        # Mutable: the calls that do not declare their keys, and those that came behind ASKING.
        self._undeclared: set[int] = set()
        self._asking: set[int] = set()

    def store(self, name: str, timeout: float, loop: asyncio.AbstractEventLoop | None = None) -> Store:
        ways = {each.host: Way(self, name, loop or self.loop, each) for each in self.slots.servers}
        self._processes += ways.values()
        primaries = ",".join(f"{pair[0].host}:{_PORT}" for pair in self.slots.pairs)
        with patch.object(
            url, "Connection", link_over(ways)
        ):  # all connections of the store are of this class
            store = ClusterStore(f"redis+cluster://{primaries}", timeout=timeout)
        make_node = store.topology.make_node

        def carried(server: url.ServerURL) -> node.Node:
            made = make_node(server)
            made.server._scripts = self.scripts  # type: ignore[assignment]
            return made

        store.topology.make_node = carried
        return store

    def pack(self, verb: Verb, ops: Sequence[Op], declared: bool = True) -> bytes:
        if not declared:
            self._undeclared.add(len(self._packed))
        return super().pack(verb, ops)

    def carry(self, transport: SimulatedTransport, data: bytes) -> None:
        if name_of(data) in _UNCOUNTED:
            self.loop.call_later(LATENCY + LONGER * self.sent, self._answer_question, transport, data)
            return
        words = data.replace(_ASKING, b"")
        if words != data:
            self._asking.update(int(word) for word in words.split(b"@")[1:])
        super().carry(transport, words)

    def _answer_question(self, transport: SimulatedTransport, data: bytes) -> None:
        transport.answer_later(self.told(server_of(transport), data))

    def told(self, server: Server, data: bytes) -> bytes:
        """Return the answer to a command of a handshake, or to a question."""
        match name_of(data):
            case b"CLUSTER":
                return self.slots.info() * (b"INFO" in data) + self.slots.layout() * (b"SLOTS" in data)
            case b"INFO":
                text = b"run_id:%b\r\nmaxmemory_policy:noeviction\r\n" % server.host.encode()
                return _BULK % (len(text), text)
            case b"TIME":
                return b"*2\r\n:%d\r\n:%d\r\n" % divmod(self._now_us(), 1_000_000)
            case b"EVAL":  # may a call touch keys that it does not declare?
                return _UNDECLARED if self._by_slot else b"*1\r\n:%d\r\n" % self._now_us()
        raise AssertionError(f"not simulated: {data!r}")

    def _let_happen(
        self, transport: SimulatedTransport, packet: Packet, numbers: list[int], fate: str
    ) -> None:
        if fate in CLUSTER_FATES:
            self._disturb(fate, server_of(transport), dict.fromkeys(slot_of(op.wire) for op in packet.ops))
            fate = ""
        super()._let_happen(transport, packet, numbers, fate)

    def _disturb(self, fate: str, server: Server, slots: dict[int, None]) -> None:
        if fate == "moved":
            for slot in slots:
                self.slots.move(slot)
        elif fate == "moving":
            for slot in slots:
                kept = {wire for wire, _ in self._far_end.records() if slot_of(wire) == slot}
                self.slots.moving[slot] = kept
                self.loop.call_later(MOVED / 2, kept.clear)
                self.loop.call_later(MOVED, self.slots.move, slot)
        elif fate == "failed":
            server.down = True
            for way in self._processes:
                if cast(Way, way).server is server:
                    way.refuse(0)
            self.loop.call_later(PROMOTED, self._promote, server)
        else:
            self.slots.promote(server)

    def _promote(self, server: Server) -> None:
        self.slots.promote(server)
        server.down = False

    def _execute(self, transport: SimulatedTransport, packet: Packet, numbers: list[int]) -> bytes:
        if server_of(transport).down:
            self._log(packet, "is lost")
            return b""
        return super()._execute(transport, packet, numbers)

    def _answer(self, transport: SimulatedTransport, number: int) -> bytes:
        server, ops = server_of(transport), self._packed[number][1]
        if number in self._undeclared:
            return self._answer_undeclared(server, number, ops)
        asking = number in self._asking
        refusal = self.slots.refusal(server, ops, asking)
        if refusal:
            self.refused.add(number)
        return b"+OK\r\n" * asking + (refusal or super()._answer(transport, number))

    def _answer_undeclared(self, server: Server, number: int, ops: Sequence[Op]) -> bytes:
        if all(server is not pair[0] for pair in self.slots.pairs):
            self.refused.add(number)
            return b"-READONLY You can't write against a read only replica.\r\n"
        self.replies[number] = [
            Code.ELSEWHERE if self.slots.refusal(server, [op], False) else self._far_end.apply(op)
            for op in ops
        ]
        codes = b""
        if Code.ELSEWHERE in self.replies[number]:
            self.refused.add(number)
            codes = b":%d\r\n" % Code.ELSEWHERE
        return b"*%d\r\n:%d\r\n:%d\r\n" % (2 + bool(codes), self._now_us(), number) + codes


def name_of(data: bytes) -> bytes:
    """Return the name of a packed command; empty for calls, which are numbers."""
    return data.split(b"\r\n", 3)[2] if data[:1] == b"*" else b""


class Way(Process):
    """The way of one process to one server."""

    def __init__(
        self, network: ClusterNetwork, name: str, loop: asyncio.AbstractEventLoop, server: Server
    ) -> None:
        super().__init__(network, name, loop, server.host)
        self.cluster = network
        self.server = server

    def is_refused(self) -> bool:
        return self.server.down or super().is_refused()


def server_of(transport: SimulatedTransport) -> Server:
    """Return the server that a connection leads to."""
    return cast(Way, transport.process).server


class Link:
    """What redis-py's connection is to the package: it connects, and may ask before it has its protocol."""

    ways: ClassVar[Mapping[str, Way]]

    def __init__(self, *, host: str, port: int, **options: Any) -> None:
        self.host = host
        self.port = port
        self._way = self.ways[host]
        self._writer: Any = None
        self._reader: Any = None
        self._asked = b""

    async def connect(self) -> None:
        transport = await self._way.open()
        transport.set_protocol(asyncio.Protocol())  # until there is a `RedisConnection`
        self._writer = SimpleNamespace(transport=transport)

    async def send_command(self, *command: str) -> None:
        self._asked = pack(*command)

    async def read_response(self, disable_decoding: bool) -> Any:
        answered = asyncio.Event()
        asyncio.get_running_loop().call_later(2 * LATENCY, answered.set)
        await answered.wait()
        if self._writer.transport.is_closing():
            raise ConnectionResetError(f"{self.host}: the connection broke")
        reader = hiredis.Reader()
        reader.feed(self._way.cluster.told(self._way.server, self._asked))
        return reader.gets()

    async def disconnect(self, nowait: bool) -> None:
        if self._writer is not None:
            self._way.forget(self._writer.transport)


def link_over(ways: Mapping[str, Way]) -> type[Link]:
    """Return the connections of one process, by the hosts of the servers."""
    return type("LinkOfProcess", (Link,), {"ways": ways})


@contextmanager
def carried_singles() -> Iterator[None]:
    """Let numbers stand in place of the claims that each need a call of their own, too."""

    def pack_singles(claims: Sequence[ClaimOp], floor_us: int, limit: int) -> bytes:
        return b"".join([ClusterNetwork.present.pack(Verb.CLAIM, [op]) for op in claims])

    with (
        patch.object(node, "pack_singles", pack_singles),
        patch.object(reconnect, "all_scripts", dict),
        patch.object(single_claims, "load_scripts", lambda: ClusterNetwork.present.scripts),
    ):
        yield
