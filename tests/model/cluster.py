"""A simulated Redis Cluster: the real `ClusterStore` talks to it, each node over connections of its own.

It has two primaries and a replica of each. All of them share one far end: what moves between two servers arrives
there at once and whole, so what is looked at is the way of each operation to the server that may execute it.
Handshakes and questions for the layout have no fate of their own; all other packets may have one of `CLUSTER_FATES`
too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, ClassVar
from unittest.mock import patch

from fastdedup.kernel.codes import Code
from fastdedup.kernel.operations import ClaimOp, Op
from fastdedup.kernel.verbs import Verb
from fastdedup.stores.base import Store
from fastdedup.stores.redis import reconnect
from fastdedup.stores.redis.cluster import node, single_claims
from fastdedup.stores.redis.cluster.slots import SLOTS, slot_of
from fastdedup.stores.redis.cluster.store import ClusterStore
from fastdedup.stores.redis.scripts import pack
from fastdedup.stores.redis.url import ServerURL

from .far_end import Packet
from .network import SimulatedTransport
from .servers import PROMOTED, Server, ServersNetwork, bulk, name_of, server_of

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
_HALF = SLOTS // 2
_ASKING = pack("ASKING")
_UNDECLARED = b"-ERR every key must be declared\r\n"


class Slots:
    """Which server holds which slot, and which slots move to another one.

    `pairs`: a primary and its replica. `moved`: the pair of each slot that is not where it was at first.
    """

    def __init__(self) -> None:
        self.servers = [Server(f"node{number}") for number in range(4)]
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
        return bulk(text)

    def layout(self) -> bytes:
        """Return the answer to CLUSTER SLOTS."""
        cuts = sorted({0, _HALF, SLOTS, *self.moved, *(slot + 1 for slot in self.moved)})
        rows = [
            b"*4\r\n:%d\r\n:%d\r\n" % (first, after - 1) + self._pair(first)
            for first, after in pairwise(cuts)
        ]
        return b"*%d\r\n" % len(rows) + b"".join(rows)

    def _pair(self, slot: int) -> bytes:
        shown = [bulk(server.host.encode()) for server in self.pairs[self.pair_of(slot)]]
        return b"".join([b"*3\r\n%b:%d\r\n%b" % (host, _PORT, host) for host in shown])


class ClusterNetwork(ServersNetwork):
    """All connections of a run to a Cluster.

    Args:
        form: one of `FORMS`.
    """

    uncounted = (b"CLUSTER", b"EVAL", b"INFO", b"TIME")
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
        primaries = ",".join(f"{pair[0].host}:{_PORT}" for pair in self.slots.pairs)
        with self.ways(name, loop, self.slots.servers):
            store = ClusterStore(f"redis+cluster://{primaries}", timeout=timeout)
        make_node = store.topology.make_node

        def carried(server: ServerURL) -> node.Node:
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
        words = data.replace(_ASKING, b"")
        if words != data:
            self._asking.update(int(word) for word in words.split(b"@")[1:])
        super().carry(transport, words)

    def told(self, server: Server, data: bytes) -> bytes:
        match name_of(data):
            case b"CLUSTER":
                return self.slots.info() * (b"INFO" in data) + self.slots.layout() * (b"SLOTS" in data)
            case b"INFO":
                text = b"run_id:%b\r\nmaxmemory_policy:noeviction\r\n" % server.host.encode()
                return bulk(text)
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
            self.take_down(server)
            self.loop.call_later(PROMOTED, self._promote, server)
        else:
            self.slots.promote(server)

    def _promote(self, server: Server) -> None:
        self.slots.promote(server)
        server.down = False

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
        self.replies[number] = [
            Code.ELSEWHERE if self.slots.refusal(server, [op], False) else self._far_end.apply(op)
            for op in ops
        ]
        codes = b""
        if Code.ELSEWHERE in self.replies[number]:
            self.refused.add(number)
            codes = b":%d\r\n" % Code.ELSEWHERE
        return b"*%d\r\n:%d\r\n:%d\r\n" % (2 + bool(codes), self._now_us(), number) + codes


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
