"""One primary of a Cluster: a store for the keys in its slots, which follows the slots when they move.

A script's keys must share a slot, so a batch becomes a call for each slot; all calls are sent in one write.
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
from ..reconnect import OnPush, Reconnector, check_version, dial, server_time
from ..scripts import CallHead
from ..server import Answer, RedisServer, ScriptCall, marked_short, starts
from ..url import ServerURL
from .single_claims import pack_singles, read_singles, single_claims
from .slots import read_redirection, slot_of
from .topology import Topology

_HOPS = 6
"""Nodes that an operation is sent to at most. A slot that moves costs two or three; more means a faulty cluster."""

_ASK_AROUND = ("CLUSTERDOWN", "MASTERDOWN", "LOADING", "READONLY")
"""Errors after which the other nodes are asked for the layout."""

Listen = Callable[[Callable[[bytes | None], None]], Coroutine[Any, Any, None]]


class SlotCall(ScriptCall):
    """Operations on keys of one slot, and the node that they are sent to.

    `places`: the positions of the operations in the batch. `asking`: the slot is still moving to `node` (ASK).
    """

    __slots__ = ("asking", "node", "places")
    ops: list[Op]

    def __init__(self, op: Op, place: int, node: Node, answer: Answer | None = None) -> None:
        super().__init__([op])
        self.answer = answer
        self.places = [place]
        self.node = node
        self.asking = False


class Node:
    """A `Store` for some keys of a Cluster; see `ClusterStore`.

    Args:
        timeout: seconds, the deadline of an operation, and of connecting.
        replicas: how many replicas must confirm each write.
        listen: `ClusterStore.listen`, for the whole Cluster.
        head: the numbers that every call sends; one object for all nodes.
    """

    def __init__(
        self,
        server: ServerURL,
        topology: Topology[Node],
        *,
        timeout: float,
        replicas: int,
        listen: Listen,
        head: CallHead,
    ) -> None:
        self.name = server.name
        self.reconnector = Reconnector(self._dial)
        self.listen = listen
        self._url = server
        self._topology = topology
        self._timeout = timeout
        self._server = RedisServer(self.reconnector, timeout=timeout, replicas=replicas, head=head)
        # Mutable: a key in a slot of this node, to probe with; the tasks that send redirected calls on.
        self._probe_key = b""
        self._travelling: set[asyncio.Task[None]] = set()

    @property
    def latest_us(self) -> int:
        """The latest time that any node of the Cluster has reported: see `TimedStore`."""
        return self._server.head.latest_us

    @property
    def time_us(self) -> int:
        """The time by the Cluster's clocks: see `TimedStore`."""
        return self._server.head.time_us

    async def open(self) -> None:
        """Connect. Raises the errors that `translate` returns."""
        try:
            await self.reconnector.connected()
        except Exception as error:  # noqa: BLE001 -- translated, or raised again
            raise self._fault(error) from None

    async def aclose(self) -> None:
        """Close the connection."""
        await self.reconnector.aclose()

    def retire(self) -> None:
        """Close the connection once the sent commands are answered: the node holds no slot any more."""
        self.reconnector.finish()

    async def execute(self, verb: Verb, ops: Sequence[Op]) -> Sequence[Reply]:
        """Send one EVALSHA for each slot, all in one write, and follow the slots that have moved.

        UnavailableError is a reply where it concerns some of the slots; it is raised where it concerns all of them.
        """
        replies: list[Reply | None] = [None] * len(ops)
        try:
            await self._travel(verb, self._by_slot(ops), replies)
        except asyncio.CancelledError:
            self._topology.refresh_soon()  # the deadline passed: the node may have failed over
            raise
        if all(isinstance(reply, UnavailableError) for reply in replies):
            raise cast(UnavailableError, replies[0])
        return cast("list[Reply]", replies)

    def begin(self, verb: Verb, ops: Sequence[Op], done: Done) -> bool:
        """Send a batch over the open connection. Only a redirected call needs a task."""
        claims = single_claims(verb, ops)
        if claims is not None:
            return self._begin_singles(claims, done)
        calls = self._by_slot(ops)

        def on_done() -> None:
            replies: list[Reply | None] = [None] * len(ops)
            self._go_on(verb, calls, replies, done)

        mine = all(call.node is self for call in calls)
        return mine and self._server.begin_calls(verb, calls, on_done)

    def abandon(self) -> None:
        """Drop the connection: every reply after a late reply is late as well."""
        self._topology.refresh_soon()  # the node may have failed over
        self._server.abandon()
        for task in self._travelling:
            task.cancel()

    def _begin_singles(self, claims: Sequence[ClaimOp], done: Done) -> bool:
        connection = self.reconnector.connection
        if connection is None:
            return False

        wait = self._server.confirmation(Verb.CLAIM)
        head = self._server.head
        floor_us = head.latest_us
        head.latest_us = floor_us + len(claims)

        def on_replies(answers: list[Any]) -> None:
            short = bool(wait) and not self._server.confirmed(answers.pop())
            replies = read_singles(claims, answers, floor_us, head)
            if short:
                marked_short(replies)
            rest = [
                SlotCall(claims[place], place, self, answers[place])
                for place, reply in enumerate(replies)
                if reply is None
            ]
            self._go_on(Verb.CLAIM, rest, replies, done)

        connection.call_many(
            pack_singles(claims, floor_us, head.max_record) + wait, len(claims) + bool(wait), on_replies
        )
        return True

    async def probe(self, wire: bytes) -> None:
        """Try a write that changes nothing, of a key like `wire` in a slot of this node.

        The node refuses it if it refuses writes; then the other nodes are asked for the present layout.
        """
        try:
            reply = await self._server.try_write(self._own_key(wire))
            # ASK: the slot is moving away from this node, so the node answers and takes writes.
            if isinstance(reply, Exception) and not (starts(reply, "ASK") or starts(reply, "WRONGTYPE")):
                raise self._fault(reply)
        except Exception as error:  # noqa: BLE001 -- translated, or raised again
            self._topology.refresh_soon()
            raise self._fault(error) from None

    def _go_on(self, verb: Verb, calls: Sequence[SlotCall], replies: list[Reply | None], done: Done) -> None:
        """Deliver the replies; where some calls were redirected, after a task has sent them on."""
        if any(isinstance(call.answer, ConnectionError) for call in calls):
            done_again(calls, done)
            return
        try:
            onward = [more for call in calls for more in self._unpack(call, replies)]
        except Exception:  # noqa: BLE001 -- `execute` gets the same error and gives it to the callers
            done_again(calls, done)
            return
        if not onward:
            hand_out(replies, done)
            return
        travel = self._travel(verb, onward, replies)
        task = asyncio.get_running_loop().create_task(travel, name="fastdedup-onward")
        self._travelling.add(task)
        task.add_done_callback(partial(self._arrived, calls, replies, done))

    def _arrived(
        self,
        calls: Sequence[SlotCall],
        replies: list[Reply | None],
        done: Done,
        task: asyncio.Task[None],
    ) -> None:
        self._travelling.discard(task)
        if task.cancelled() or task.exception() is not None:
            done_again(calls, done)
        else:
            hand_out(replies, done)

    async def _travel(self, verb: Verb, calls: Sequence[SlotCall], replies: list[Reply | None]) -> None:
        """Send calls, and the calls that they are redirected to, until every operation has its reply."""
        for _ in range(_HOPS):
            await self._carry(verb, calls)
            calls = [onward for call in calls for onward in self._unpack(call, replies)]
            if not calls:
                return
        for call in calls:
            refuse(call, UnavailableError(f"{self.name}: the key's slot is being moved"), replies)

    def _by_slot(self, ops: Sequence[Op]) -> list[SlotCall]:
        """Sort operations into calls, each for the node that holds its slot now."""
        owners = self._topology.owners
        calls: dict[int, SlotCall] = {}
        for place, op in enumerate(ops):
            slot = slot_of(op.wire)
            call = calls.get(slot)
            if call is None:
                calls[slot] = SlotCall(op, place, owners[slot] or self)
            else:
                call.ops.append(op)
                call.places.append(place)
        return list(calls.values())

    async def _carry(self, verb: Verb, calls: Sequence[SlotCall]) -> None:
        """Deliver each call to its node."""
        routes: dict[tuple[Node, bool], list[SlotCall]] = {}
        for call in calls:
            routes.setdefault((call.node, call.asking), []).append(call)
        deliveries = [
            node._server.deliver(verb, group, asking=asking, guest=node is not self)
            for (node, asking), group in routes.items()
        ]
        if len(deliveries) == 1:
            await deliveries[0]
        else:
            await asyncio.gather(*deliveries)

    def _unpack(self, call: SlotCall, replies: list[Reply | None]) -> Sequence[SlotCall]:
        """Put a call's replies into their places in the batch, or return the calls that must be sent on."""
        answer = call.answer
        if isinstance(answer, Exception):
            return self._redirect(call, answer, replies)
        assert answer is not None
        for place, reply in zip(call.places, answer, strict=True):
            replies[place] = reply
        return ()

    def _redirect(self, call: SlotCall, answer: Exception, replies: list[Reply | None]) -> Sequence[SlotCall]:
        if type(answer) is hiredis.ReplyError:
            to = read_redirection(str(answer), call.node._url.address[0])
            if to is not None:
                topology = self._topology
                call.node = topology.learn(to.slot, to.address) if to.moved else topology.node_at(to.address)
                call.asking = not to.moved
                return (call,)
            if starts(answer, "NOSCRIPT"):
                return (call,)  # `RedisServer.deliver` sends it again with the script's text
            if starts(answer, "TRYAGAIN") and len(call.ops) > 1:
                # Some of its keys have moved to the next node, some not: each key is sent in a call of its own.
                return [SlotCall(op, place, self) for op, place in zip(call.ops, call.places, strict=True)]
        refuse(call, call.node._fault(answer), replies)
        if type(answer) is not hiredis.ReplyError or any(starts(answer, prefix) for prefix in _ASK_AROUND):
            self._topology.refresh_soon()
        return ()

    def _own_key(self, wire: bytes) -> bytes:
        """Return a key that begins like `wire`, in a slot of this node.

        Raises:
            UnavailableError: this node holds no slot.
        """
        owners, number = self._topology.owners, 0
        if self not in self._topology.primaries:
            raise UnavailableError(f"{self.name}: the node holds no slot of the Cluster (any more)")
        stem = wire.replace(b"{", b"(")  # with a hash tag all these keys would be in one slot
        key = self._probe_key
        while owners[slot_of(key)] is not self or not key.startswith(stem):
            key = b"%b:%d" % (stem, number)
            number += 1
        self._probe_key = key
        return key

    async def _dial(self, on_push: OnPush | None) -> RedisConnection:
        def check(info: Any) -> None:
            check_version(info)
            self._server.head.heard(server_time(info))

        return await dial(self._url, self._timeout, on_push, check)

    def _fault(self, error: Exception) -> Exception:
        return error if isinstance(error, DedupError) else translate(error, self.name)


def hand_out(replies: list[Reply | None], done: Done) -> None:
    """Deliver the replies of a batch; None, so that `execute` raises, where each reply is an UnavailableError."""
    useless = all(isinstance(reply, UnavailableError) for reply in replies)
    done(None if useless else cast("list[Reply]", replies))


def done_again(calls: Sequence[SlotCall], done: Done) -> None:
    """Let the engine send a whole batch again, also the calls that were answered."""
    for call in calls:
        mark_unsure(call.ops)
    done(None)


def refuse(call: SlotCall, fault: Exception, replies: list[Reply | None]) -> None:
    """Answer a call's operations with an outage; any other error is raised."""
    if not isinstance(fault, UnavailableError):
        raise fault
    for place in call.places:
        # An instance for each: a shared exception would collect the tracebacks of all its raisers.
        replies[place] = UnavailableError(*fault.args)
