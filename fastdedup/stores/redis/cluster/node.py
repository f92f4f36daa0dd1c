"""One primary of a Cluster: a store for the keys in its slots. A key of another node leaves the batch: a Redirect.

A batch goes to its node in one script call, for keys of any slots, and the script answers ELSEWHERE for a
key that the node does not serve. Such a key is sent again in a call of its own, which the server answers with the
way (MOVED, ASK). If a server, or a proxy before it, refuses keys that a call does not declare, a batch becomes a
call for each slot; all of them are sent in one write.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import hiredis

from ....errors import UnavailableError
from ....events import BatchedBySlot, Event, PrimaryRestarted
from ....kernel.codes import Code
from ....kernel.operations import ClaimOp, Op, ReadOp, Reply, mark_resent
from ....kernel.replies import Redirect, RefusedAlone
from ....kernel.verbs import Verb
from ....tasks import patience
from ...base import Done
from ..connection import RedisConnection
from ..errors import CLUSTER_IS_DOWN, LoginRefusedError
from ..reconnect import OnPush, Reconnector, check_version, dial, server_time
from ..scripts import CallHead
from ..served import OneServer, ServedStore
from ..server import RedisServer, ScriptCall, marked_short, refuses_keys, starts
from ..url import ServerURL
from ..verbs import load_scripts
from .single_claims import pack_singles, read_singles, single_claims
from .slots import Redirection, read_redirection, slot_of
from .topology import Topology

_ASK_AROUND = ("CLUSTERDOWN", "MASTERDOWN", "LOADING", "READONLY")
"""After these errors the topology asks the other nodes for the layout."""
_ANY_KEY = b"fastdedup:~batching"
"""A key for the test of how a server takes batches. The node need not serve this key."""

# The calls that a batch becomes: one for a whole node, or one for each slot


def whole(ops: Sequence[Op]) -> ScriptCall:
    """Return one call for all operations, of whatever slots."""
    return ScriptCall(ops, range(len(ops)), declared=False)


def by_slot(ops: Sequence[Op]) -> list[ScriptCall]:
    """Sort operations into a call for each slot."""
    slots: dict[int, list[int]] = {}
    for place, op in enumerate(ops):
        slots.setdefault(slot_of(op.wire), []).append(place)
    return [ScriptCall([ops[place] for place in places], places) for places in slots.values()]


class Node(OneServer):
    """The store of some keys of a Cluster; see `ClusterStore`.

    Args:
        timeout: seconds, the deadline of an operation, and of connecting.
        replicas: how many replicas must confirm each write.
        head: the numbers that every call sends; one object for all nodes.
        report: `ClusterStore.report`.
    """

    def __init__(
        self,
        url: ServerURL,
        topology: Topology[Node],
        *,
        timeout: float,
        replicas: int,
        head: CallHead,
        report: Callable[[Event], None],
    ) -> None:
        super().__init__(url.name, head)
        self.reconnector = Reconnector(self._dial, lambda: report(PrimaryRestarted(url.name)))
        self.server = RedisServer(self.reconnector, timeout=timeout, replicas=replicas, head=head)
        self.singly = SinglyPart(self, asking=False)
        """The same node, for operations that each need a call of their own."""
        self.asked = SinglyPart(self, asking=True)
        """The same node, for operations whose slots are still moving to it."""
        self.batches_whole: bool | None = None
        """False if the server refuses calls that do not declare their keys; None before it was asked."""
        self._url = url
        self._topology = topology
        self._timeout = timeout
        self._report = report
        # Mutable: a key in a slot of this node, to probe with.
        self._probe_key = b""

    async def open(self) -> None:
        """Connect. Raises the errors that `translate` returns."""
        with self.translated():
            await self.reconnector.connected()

    def retire(self) -> None:
        """Close the connection once the sent commands are answered: the node holds no slot any more."""
        self.reconnector.finish()

    # Batches

    def begin(self, verb: Verb, ops: Sequence[Op], done: Done) -> bool:
        """Send a batch over the open connection."""
        if self.batches_whole is None:
            return False
        self.head.catch_up()
        if self.batches_whole:
            return self.server.begin(verb, ops, done)
        claims = single_claims(verb, ops)
        if claims is not None:
            return self._begin_singles(claims, done)
        calls = by_slot(ops)
        return self.server.begin_calls(verb, calls, partial(self._end, ops, calls, [None] * len(ops), done))

    async def execute(self, verb: Verb, ops: Sequence[Op]) -> Sequence[Reply]:
        """Send a batch, and wait for the connection if there is none.

        UnavailableError is a reply if it concerns some of the slots; it is raised if it concerns all of them.
        """
        self.head.catch_up()
        try:
            if self.batches_whole is None:
                await self._learn_batching(await self.reconnector.connected())
            calls = [whole(ops)] if self.batches_whole else by_slot(ops)
            await self.server.deliver(verb, calls)
        except asyncio.CancelledError:
            self._topology.refresh_soon()  # the deadline passed: the node may have failed over
            raise
        except Exception as error:  # noqa: BLE001 -- translated, or raised again
            self._topology.refresh_soon()
            raise self.fault_of(error) from None
        return useful(self.replies(calls, [None] * len(ops)))

    def abandon(self) -> None:
        """Drop the connection: every reply after a late reply is late as well."""
        self._topology.refresh_soon()  # the node may have failed over
        self.server.abandon()

    def _begin_singles(self, claims: Sequence[ClaimOp], done: Done) -> bool:
        connection = self.reconnector.connection
        if connection is None:
            return False
        wait = self.server.confirmation(Verb.CLAIM)
        head = self.head
        floor_us = head.latest_us
        head.latest_us = floor_us + len(claims)

        def on_replies(answers: list[Any]) -> None:
            short = bool(wait) and not self.server.confirmed(answers.pop())
            replies = read_singles(claims, answers, floor_us, head)
            if short:
                marked_short(replies)
            refused = [
                ScriptCall([claims[place]], [place], answer=answers[place])
                for place, reply in enumerate(replies)
                if reply is None
            ]
            self._end(claims, refused, replies, done)

        commands = pack_singles(claims, floor_us, head.max_record)
        connection.call_many(commands + wait, len(claims) + bool(wait), on_replies)
        return True

    def _end(
        self, ops: Sequence[Op], calls: Sequence[ScriptCall], replies: list[Reply | None], done: Done
    ) -> None:
        """Deliver the replies, with the answers of `calls`; None if the engine must send all `ops` again."""
        found: Sequence[Reply] | None = None
        answers = [call.answer for call in calls]
        if not any(isinstance(answer, ConnectionError) or starts(answer, "NOSCRIPT") for answer in answers):
            # `execute` gets the same error and gives it to the callers.
            with contextlib.suppress(Exception):
                found = useful(self.replies(calls, replies))
        if found is None:
            mark_resent(ops)  # also those that were answered
        done(found)

    # Answers

    def replies(self, calls: Sequence[ScriptCall], replies: list[Reply | None]) -> Sequence[Reply]:
        """Put the answers of the calls into their places among the replies.

        Raises:
            Exception: an error that the server answered, except UnavailableError, which is a reply.
        """
        for call in calls:
            answer = call.answer
            assert answer is not None
            if isinstance(answer, Exception):
                answer = self._refused(call, answer)
            if not call.declared:
                answer = self._redirected(call.ops, answer)
            for place, reply in zip(call.places, answer, strict=True):
                replies[place] = reply
        return cast("list[Reply]", replies)

    def _redirected(self, ops: Sequence[Op], replies: Sequence[Reply]) -> Sequence[Reply]:
        """Return the replies; a key that this node does not serve goes to its node, or in a call of its own."""
        if Code not in map(type, replies) or Code.ELSEWHERE not in replies:
            return replies
        return [
            self._elsewhere(op) if reply is Code.ELSEWHERE else reply
            for op, reply in zip(ops, replies, strict=True)
        ]

    def _elsewhere(self, op: Op) -> Redirect:
        owner = self._topology.owners[slot_of(op.wire)]
        return Redirect(self.singly if owner is None or owner is self else owner)

    def _refused(self, call: ScriptCall, answer: Exception) -> list[Reply]:
        """Return the replies of a call that the server refused as a whole; any error but an outage is raised."""
        if type(answer) is hiredis.ReplyError:
            to = read_redirection(str(answer), self._url.address[0])
            if to is not None:
                return [Redirect(self._way(to, len(call.ops))) for _ in call.ops]
            if starts(answer, "TRYAGAIN") and len(call.ops) > 1:
                # Some of its keys have moved to the next node, some not.
                return [Redirect(self.singly) for _ in call.ops]
            if refuses_keys(answer):
                return self._forbidden(call, answer)
        ask_around = type(answer) is not hiredis.ReplyError or any(starts(answer, one) for one in _ASK_AROUND)
        fault = self.fault_of(answer)
        if ask_around or str(fault).endswith(CLUSTER_IS_DOWN):
            self._topology.refresh_soon()
        if not isinstance(fault, UnavailableError):
            raise fault
        # An instance for each: a shared exception would collect the tracebacks of all its raisers.
        return [UnavailableError(*fault.args) for _ in call.ops]

    def _forbidden(self, call: ScriptCall, answer: Exception) -> list[Reply]:
        """Return the replies of a call with a key that the login may not use: only that key must be refused."""
        if len(call.ops) > 1:
            return [Redirect(self.singly) for _ in call.ops]
        return [RefusedAlone(*self.fault_of(answer).args)]

    def _way(self, to: Redirection, keys: int) -> Node | SinglyPart:
        """Return the part to which a redirection of a call leads."""
        if to.moved:
            return self._topology.learn(to.slot, to.address)
        # Redis 6.2 says ASK if only some of the keys are missing. The others are still here, and would get a
        # second owner at the other node, so each key asks for its own way.
        return self._topology.node_at(to.address).asked if keys == 1 else self.singly

    # Health

    async def probe(self, wire: bytes) -> None:
        """Try to claim a key like `wire` in a slot of this node: see `ProbedStore`.

        Meanwhile the topology asks the other nodes for the present layout: a frozen
        node gives no answer, and its replica may have been promoted.
        """
        with self.translated(), self._topology.asking():
            answer = await self.server.try_claim(self._own_key(wire))
            # ASK: the slot is moving away from this node, so the node answers and takes writes.
            if isinstance(answer, Exception) and not starts(answer, "ASK"):
                raise self.fault_of(answer)

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
            self.head.heard(server_time(info))

        connection = await dial(self._url, self._timeout, on_push, check)
        if on_push is None and self.batches_whole is None:
            try:
                await self._learn_batching(connection)
            except BaseException:
                connection.abort("not usable")
                raise
        return connection

    async def _learn_batching(self, connection: RedisConnection) -> None:
        """Find out, once, whether a call may touch keys of many slots that it does not declare: any key will do."""
        script, limit = load_scripts()[Verb.READ], self.head.max_record
        async with asyncio.timeout(await patience(self._timeout)):
            reply = await connection.send(
                script.command([ReadOp(_ANY_KEY)], 0, limit, declared=False, with_text=True)
            )
        self._judge_batching(reply)

    def _judge_batching(self, reply: Any) -> None:
        fault = self.fault_of(reply) if isinstance(reply, Exception) else None
        # A login that may not use just that key may use others: the server did not object to the way.
        if fault is None or isinstance(fault, LoginRefusedError):
            self.batches_whole, self.server.redirect = True, self._redirected
        elif not isinstance(fault, UnavailableError):
            self.batches_whole = False
            self._report(BatchedBySlot(self.name, str(fault)))


class SinglyPart(ServedStore):
    """A part of a Cluster (see `ShardedStore`): one node, for operations that each go there in a call of their own.

    It has an engine of its own. So a batch need not wait for the operations that it passes on to a node that hangs.

    Args:
        asking: the slots are still moving to the node (ASK).
    """

    def __init__(self, node: Node, *, asking: bool) -> None:
        way = "slots that move there" if asking else "keys one by one"
        super().__init__(f"{node.name}, {way}", node.head)
        self.side_way_of = node
        self._node = node
        self._asking = asking

    async def execute(self, verb: Verb, ops: Sequence[Op]) -> Sequence[Reply]:
        """Send a call for each operation, all in one write.

        Raises:
            UnavailableError: the node does not answer. If it refuses a slot, that is not an outage of the node.
        """
        self.head.catch_up()
        calls = [ScriptCall([op], [place]) for place, op in enumerate(ops)]
        await self._node.server.deliver(verb, calls, asking=self._asking, guest=True)
        replies = self._node.replies(calls, [None] * len(ops))
        answers = [call.answer for call in calls]
        unanswered = any(
            isinstance(each, Exception) and type(each) is not hiredis.ReplyError for each in answers
        )
        return useful(replies) if unanswered else replies

    async def probe(self, wire: bytes) -> None:
        """Return normally if the node answers, with any answer: the slot need not be its own.

        Raises:
            UnavailableError: the node does not answer, or it is loading its data.
        """
        with self._node.translated():
            answer = await self._node.server.try_claim(wire)
        refused = type(answer) is hiredis.ReplyError
        is_away = not refused or any(starts(answer, prefix) for prefix in ("LOADING", "MASTERDOWN"))
        if isinstance(answer, Exception) and is_away:
            raise self._node.fault_of(answer) from None


def useful(replies: Sequence[Reply]) -> Sequence[Reply]:
    """Return the replies of a batch.

    Raises:
        UnavailableError: every operation got this error, and not only for its key.
    """
    if all(type(reply) is UnavailableError for reply in replies):
        raise cast(UnavailableError, replies[0])
    return replies
