"""One primary of a Cluster: a store for the keys in its slots, that follows them when they move.

A script's keys must share a slot, so a batch becomes a parcel for each slot; all go out in one write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, cast

import hiredis

from ....errors import DedupError, UnavailableError
from ....protocol.operations import ClaimOp, Op, Reply, Verb, mark_unsure
from ...base import Done
from ..connection import RedisConnection
from ..errors import translate
from ..reconnect import OnPush, Reconnector, check_version, dial
from ..server import Answer, RedisServer, ScriptCall, marked_short, starts
from ..url import ServerURL
from .single_claims import pack_singles, read_singles, single_claims
from .slots import read_redirection, slot_of
from .topology import Topology

_HOPS = 6
"""A key whose slot moves costs two or three; more is a cluster at odds with itself."""

_ASK_AROUND = ("CLUSTERDOWN", "MASTERDOWN", "LOADING", "READONLY")
"""Errors upon which another node may know better."""

Listen = Callable[[Callable[[bytes | None], None]], Coroutine[Any, Any, None]]


class SlotParcel(ScriptCall):
    """Operations on keys of one slot, and where they go.

    `places` are their places in the batch; `asking`: to the node that is taking the slot over.
    """

    __slots__ = ("asking", "node", "places")

    def __init__(self, op: Op, place: int, node: Node, answer: Answer | None = None) -> None:
        self.ops: list[Op] = [op]
        self.answer = answer
        self.places = [place]
        self.node = node
        self.asking = False


class Node:
    """A `Store` for some keys of a Cluster; see `ClusterStore`.

    Args:
        timeout: seconds, the deadline of an operation, and of connecting.
        replicas: that shall confirm each write.
        listen: the whole Cluster's.
    """

    def __init__(
        self, server: ServerURL, topology: Topology[Node], *, timeout: float, replicas: int, listen: Listen
    ) -> None:
        self.name = server.name
        self.line = Reconnector(self._dial)
        self.listen = listen
        self._server = server
        self._topology = topology
        self._timeout = timeout
        self._primary = RedisServer(self.line, timeout=timeout, replicas=replicas)
        # Mutable: a key of a slot that it holds, to probe with; what is being sent on.
        self._probe_key = b""
        self._travelling: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Connect. Raises as `translate` says."""
        try:
            await self.line.connected()
        except Exception as error:  # noqa: BLE001 -- translated, or raised again
            raise self._fault(error) from None

    async def aclose(self) -> None:
        """Close the connection."""
        await self.line.aclose()

    def retire(self) -> None:
        """It holds no slot any more: what is under way goes on, then the connection ends."""
        self.line.finish()

    async def execute(self, verb: Verb, ops: Sequence[Op]) -> Sequence[Reply]:
        """Send one EVALSHA a slot, all in one write, and follow the slots that have moved.

        What cannot be answered for some slots only is a reply; for all, it is raised.
        """
        replies: list[Reply | None] = [None] * len(ops)
        try:
            await self._travel(verb, self._by_slot(ops), replies)
        except asyncio.CancelledError:
            self._topology.refresh_soon()  # the deadline passed: it may have failed over
            raise
        if all(isinstance(reply, UnavailableError) for reply in replies):
            raise cast(UnavailableError, replies[0])
        return cast("list[Reply]", replies)

    def begin(self, verb: Verb, ops: Sequence[Op], done: Done) -> bool:
        """Send a batch over the connection, if it stands. A task is made only for what has to be sent on."""
        claims = single_claims(verb, ops)
        if claims is not None:
            return self._begin_singles(claims, done)
        parcels = self._by_slot(ops)

        def on_done() -> None:
            replies: list[Reply | None] = [None] * len(ops)
            self._go_on(verb, parcels, replies, done)

        mine = all(parcel.node is self for parcel in parcels)
        return mine and self._primary.begin(verb, parcels, on_done)

    def abandon(self) -> None:
        """Drop the connection: the replies behind one that is late are as late."""
        self._topology.refresh_soon()  # it may have failed over
        self._primary.abandon()
        for task in self._travelling:
            task.cancel()

    def _begin_singles(self, claims: Sequence[ClaimOp], done: Done) -> bool:
        link = self.line.link
        if link is None:
            return False

        wait = self._primary.confirmation(Verb.CLAIM)

        def on_replies(answers: list[Any]) -> None:
            short = bool(wait) and not self._primary.confirmed(answers.pop())
            replies = read_singles(claims, answers)
            if short:
                marked_short(replies)
            rest = [
                SlotParcel(claims[place], place, self, answers[place])
                for place, reply in enumerate(replies)
                if reply is None
            ]
            self._go_on(Verb.CLAIM, rest, replies, done)

        link.call_many(pack_singles(claims) + wait, len(claims) + bool(wait), on_replies)
        return True

    async def probe(self, wire: bytes) -> None:
        """Try a write that changes nothing, of a key like `wire` in a slot of this node.

        It is refused as any write would be; then the others are asked who holds the slots now.
        """
        try:
            reply = await self._primary.try_write(self._own_key(wire))
            # ASK: the key is not here, as its slot is leaving; so this node is well.
            if isinstance(reply, Exception) and not (starts(reply, "ASK") or starts(reply, "WRONGTYPE")):
                raise self._fault(reply)
        except Exception as error:  # noqa: BLE001 -- translated, or raised again
            self._topology.refresh_soon()
            raise self._fault(error) from None

    def _go_on(
        self, verb: Verb, parcels: Sequence[SlotParcel], replies: list[Reply | None], done: Done
    ) -> None:
        """Hand out what was answered; where something has to be sent on, a task does that first."""
        if any(isinstance(parcel.answer, ConnectionError) for parcel in parcels):
            done_again(parcels, done)
            return
        try:
            onward = [more for parcel in parcels for more in self._unpack(parcel, replies)]
        except Exception:  # noqa: BLE001 -- the long way meets it again, and tells those who wait
            done_again(parcels, done)
            return
        if not onward:
            hand_out(replies, done)
            return
        travel = self._travel(verb, onward, replies)
        task = asyncio.get_running_loop().create_task(travel, name="fastdedup-onward")
        self._travelling.add(task)
        task.add_done_callback(partial(self._arrived, parcels, replies, done))

    def _arrived(
        self,
        parcels: Sequence[SlotParcel],
        replies: list[Reply | None],
        done: Done,
        task: asyncio.Task[None],
    ) -> None:
        self._travelling.discard(task)
        if task.cancelled() or task.exception() is not None:
            done_again(parcels, done)
        else:
            hand_out(replies, done)

    async def _travel(self, verb: Verb, parcels: Sequence[SlotParcel], replies: list[Reply | None]) -> None:
        """Carry parcels, and what comes of them, until every operation has its reply."""
        for _ in range(_HOPS):
            await self._carry(verb, parcels)
            parcels = [onward for parcel in parcels for onward in self._unpack(parcel, replies)]
            if not parcels:
                return
        for parcel in parcels:
            refuse(parcel, UnavailableError(f"{self.name}: the key's slot is being moved"), replies)

    def _by_slot(self, ops: Sequence[Op]) -> list[SlotParcel]:
        """Sort into parcels, each for whoever holds its slot by now."""
        owners = self._topology.owners
        parcels: dict[int, SlotParcel] = {}
        for place, op in enumerate(ops):
            slot = slot_of(op.wire)
            parcel = parcels.get(slot)
            if parcel is None:
                parcels[slot] = SlotParcel(op, place, owners[slot] or self)
            else:
                parcel.ops.append(op)
                parcel.places.append(place)
        return list(parcels.values())

    async def _carry(self, verb: Verb, parcels: Sequence[SlotParcel]) -> None:
        """Deliver each parcel to its node."""
        routes: dict[tuple[Node, bool], list[SlotParcel]] = {}
        for parcel in parcels:
            routes.setdefault((parcel.node, parcel.asking), []).append(parcel)
        deliveries = [
            node._primary.deliver(verb, group, asking=asking, guest=node is not self)
            for (node, asking), group in routes.items()
        ]
        if len(deliveries) == 1:
            await deliveries[0]
        else:
            await asyncio.gather(*deliveries)

    def _unpack(self, parcel: SlotParcel, replies: list[Reply | None]) -> Sequence[SlotParcel]:
        """Put a parcel's replies into their places, or return what has to be sent on."""
        answer = parcel.answer
        if isinstance(answer, Exception):
            return self._redirect(parcel, answer, replies)
        assert answer is not None
        for place, reply in zip(parcel.places, answer, strict=True):
            replies[place] = reply
        return ()

    def _redirect(
        self, parcel: SlotParcel, answer: Exception, replies: list[Reply | None]
    ) -> Sequence[SlotParcel]:
        if type(answer) is hiredis.ReplyError:
            to = read_redirection(str(answer), parcel.node._server.address[0])
            if to is not None:
                topology = self._topology
                parcel.node = (
                    topology.learn(to.slot, to.address) if to.moved else topology.node_at(to.address)
                )
                parcel.asking = not to.moved
                return (parcel,)
            if starts(answer, "NOSCRIPT"):
                return (parcel,)  # the long way has an answer to that
            if starts(answer, "TRYAGAIN") and len(parcel.ops) > 1:
                # Some of its keys have moved on, some have not: each by itself is in one place.
                return [SlotParcel(*one, self) for one in zip(parcel.ops, parcel.places, strict=True)]
        refuse(parcel, parcel.node._fault(answer), replies)
        if type(answer) is not hiredis.ReplyError or any(starts(answer, prefix) for prefix in _ASK_AROUND):
            self._topology.refresh_soon()
        return ()

    def _own_key(self, wire: bytes) -> bytes:
        """Return a key that begins as `wire` does, in a slot of this node.

        Raises:
            UnavailableError: it holds none.
        """
        owners, number = self._topology.owners, 0
        if self not in self._topology.primaries:
            raise UnavailableError(f"{self.name}: holds no slot (any more)")
        stem = wire.replace(b"{", b"(")  # a hash tag would keep the slot what it is
        key = self._probe_key
        while owners[slot_of(key)] is not self or not key.startswith(stem):
            key = b"%b:%d" % (stem, number)
            number += 1
        self._probe_key = key
        return key

    async def _dial(self, on_push: OnPush | None) -> RedisConnection:
        return await dial(self._server, self._timeout, on_push, check_version)

    def _fault(self, error: Exception) -> Exception:
        return error if isinstance(error, DedupError) else translate(error, self.name)


def hand_out(replies: list[Reply | None], done: Done) -> None:
    """Give a batch its replies; if none is an answer, the long way says so for the node as a whole."""
    useless = all(isinstance(reply, UnavailableError) for reply in replies)
    done(None if useless else cast("list[Reply]", replies))


def done_again(parcels: Sequence[SlotParcel], done: Done) -> None:
    """Have a batch sent again as a whole, also the parcels that were answered."""
    for parcel in parcels:
        mark_unsure(parcel.ops)
    done(None)


def refuse(parcel: SlotParcel, fault: Exception, replies: list[Reply | None]) -> None:
    """Answer a parcel's operations with an outage; what is none is raised."""
    if not isinstance(fault, UnavailableError):
        raise fault
    for place in parcel.places:
        # One instance each: a shared exception collects the tracebacks of all its raisers.
        replies[place] = UnavailableError(*fault.args)
