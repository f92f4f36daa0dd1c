"""The store of a Redis Cluster: a part for each node, each with its own connection."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from itertools import chain

from ....errors import ConfigError, UnavailableError
from ....events import ClockSkew
from ....kernel.operations import Op, Reply
from ....kernel.replies import Redirect
from ....kernel.shards import MAX_HOPS, on_the_move
from ....kernel.store import BatchStore
from ....kernel.verbs import Verb
from ....model import Batching
from ....tasks import patience
from ...base import NO_EVICTION, Credentials, Page, Query
from ..connection import RedisConnection
from ..first_good import NoneGoodError, drop, first_good
from ..listener import Listener
from ..reconnect import OnPush, check_version, dial, only_mistakes
from ..scripts import CallHead, pack
from ..served import WholeStore
from ..url import Address, GroupURL, ServerURL
from .clocks import ClockWatch, Reading, read_clock
from .node import Node
from .slots import is_ok
from .topology import Topology, most_telling

FORM = "redis+cluster://user:password@host1:7000,host2:7001"
PORT = 6379
_ASKED = 3
"""Primaries that are asked for a subscription at once, at most."""


class ClusterStore(WholeStore):
    """A Redis Cluster. It gives the guarantees of `Store`; `ShardedStore` describes its nodes.

    Args:
        timeout: seconds, the deadline of an operation, and of connecting.
        replicas: how many replicas of a primary must confirm each write (WAIT).
        credentials: asked for the login of each new connection; see `Dedup`.

    Raises:
        ConfigError: the URL cannot be used.
    """

    def __init__(
        self, url: str, *, timeout: float, replicas: int = 0, credentials: Credentials | None = None
    ) -> None:
        group = GroupURL(url, form=FORM, port=PORT)
        self._seed = group.server().with_credentials(credentials)
        if group.path not in ([], ["0"]) or self._seed.database:
            raise group.refused("a Cluster has only database 0, leave the database out")
        self._replicas = replicas
        self.topology = Topology(
            self._seed, group.addresses, self._make_node, self._follow_layout, timeout=timeout
        )
        """The slots of each node, from the last answer of the cluster."""
        self.shard: Callable[[bytes], Node] = self.topology.node_of
        """Returns the node that holds a key; the topology's own method, because every operation calls it."""
        listener = Listener(self._dial_any, timeout, look=self._look_after_subscription)
        super().__init__(self.topology.name, CallHead(), timeout, listener)
        self._clocks = ClockWatch(self._read_clock, self._report_clock, lambda: self.max_clock_skew)
        # Mutable: the server that the last connection for a subscription leads to.
        self._heard_at: Address | None = None

    @property
    def batching(self) -> Batching:
        """How batches go to the primaries; WHOLE for a primary that was not asked yet."""
        refused = {node.batches_whole is False for node in self.topology.primaries}
        if refused == {True}:
            return Batching.BY_SLOT
        return Batching.PARTLY_BY_SLOT if True in refused else Batching.WHOLE

    async def open(self) -> str:
        """Learn the layout and connect to all nodes, to find mistakes early. An outage is not a mistake."""
        unreached = ""
        try:
            async with asyncio.timeout(self._timeout * 4):
                await self.topology.refresh()
                faults = await asyncio.gather(
                    *(node.open() for node in self.topology.primaries), return_exceptions=True
                )
            for fault in faults:
                if fault is not None:
                    unreached = only_mistakes(fault)
        except Exception as error:  # noqa: BLE001 -- translated, or raised again
            unreached = only_mistakes(self.fault_of(error))
        return unreached

    async def aclose(self) -> None:
        """Close the connections."""
        await self.listener.aclose()
        await self.topology.aclose()
        await self._clocks.aclose()

    def shards(self) -> Sequence[BatchStore]:
        """Return the primaries."""
        return self.topology.primaries

    async def execute(self, verb: Verb, ops: Sequence[Op]) -> Sequence[Reply]:
        """Let each node execute the operations on its keys, and wait for the slowest.

        For callers without a `ShardedEngine`, which waits for each node separately.
        """
        replies: list[Reply] = [UnavailableError("unanswered")] * len(ops)
        todo: dict[BatchStore, list[int]] = {}
        for place, op in enumerate(ops):
            try:
                todo.setdefault(self.shard(op.wire), []).append(place)
            except UnavailableError as error:
                replies[place] = error
        for _ in range(MAX_HOPS):
            if not todo:
                break
            parts = [(part, [ops[place] for place in at]) for part, at in todo.items()]
            answers = await asyncio.gather(
                *(part.execute(verb, theirs) for part, theirs in parts), return_exceptions=True
            )
            for at, answer in zip(todo.values(), answers, strict=True):
                spread(answer, at, replies)
            todo = redirected(replies)
        for place in chain.from_iterable(todo.values()):
            replies[place] = on_the_move(self.name)
        if all(type(reply) is UnavailableError for reply in replies):
            raise replies[0]  # type: ignore[misc] # every reply is an UnavailableError
        return replies

    async def eviction_policy(self) -> str | None:
        """Return the maxmemory-policy of the primaries: see `AdminStore`. One that evicts comes first.

        Raises:
            UnavailableError: no primary answers.
        """
        primaries = self.topology.primaries
        if not primaries:
            raise self.topology.unassigned()
        told = await asyncio.gather(*(node.eviction_policy() for node in primaries), return_exceptions=True)
        for fault in told:
            if isinstance(fault, BaseException) and not isinstance(fault, UnavailableError):
                raise fault
        policies = [each for each in told if not isinstance(each, BaseException)]
        if not policies:
            raise UnavailableError(f"{self.name}: no primary answers")
        evicting = [each for each in policies if each not in (None, NO_EVICTION)]
        return evicting[0] if evicting else None if None in policies else NO_EVICTION

    async def page(self, query: Query, cursor: str, count: int) -> Page:
        """List some of a primary's records, one primary after the other: see `AdminStore`.

        A cursor holds the address of its primary. If a failover replaces that primary meanwhile, the list must begin
        again.
        """
        if not self.topology.primaries:
            raise self.topology.unassigned()
        names = sorted(f"{host}:{port}" for host, port in self.topology.addresses)
        name, _, rest = cursor.rpartition("/") if cursor else (names[0], "", "")
        if name not in names:
            raise ConfigError(
                f"the cursor's server {name[:80]!r} is no primary of the Cluster: begin without a cursor"
            )
        host, _, port = name.rpartition(":")
        found, after, seen, now_us = await self.topology.node_at((host, int(port))).page(query, rest, count)
        if after:
            return Page(found, f"{name}/{after}", seen, now_us)
        following = names[names.index(name) + 1 :]
        return Page(found, f"{following[0]}/0" if following else "", seen, now_us)

    def _make_node(self, server: ServerURL) -> Node:
        return Node(
            server,
            self.topology,
            timeout=self._timeout,
            replicas=self._replicas,
            head=self.head,
            report=self.report,
        )

    async def _read_clock(self, address: Address) -> Reading:
        return await read_clock(self._seed.at(address), self.topology.connection_to(address), self._timeout)

    def _report_clock(self, address: Address, offset: float) -> None:
        self.report(ClockSkew(self._seed.at(address).name, offset))

    def _follow_layout(self) -> None:
        if self.on_report is not None:
            self._clocks.watch([*self.topology.addresses, *self.topology.replicas])
        if self._heard_at is not None and self._heard_at not in self.topology.addresses:
            self.listener.leave("the server is no primary of the Cluster any more")

    async def _look_after_subscription(self) -> None:
        """Leave a server that no longer gets messages: it has left the Cluster, or is cut off from most nodes."""
        if self._heard_at is not None and await self.topology.is_cut_off(self._heard_at):
            self.listener.leave("the server is cut off from most of the Cluster")

    async def _dial_any(self, on_push: OnPush) -> RedisConnection:
        """Connect to the primary that answers first: a published message goes to all nodes of the Cluster."""
        if not self.topology.addresses:
            await self.topology.refresh()
        primaries = self.topology.addresses
        if not primaries:
            raise self.topology.unassigned()
        asked = random.sample(primaries, min(len(primaries), _ASKED))
        try:
            found = await first_good(
                (self._dial_one(address, on_push) for address in asked), lambda one: drop(one[0])
            )
        except NoneGoodError as error:
            raise most_telling(error.errors) from None
        connection, self._heard_at = found
        return connection

    async def _dial_one(self, address: Address, on_push: OnPush) -> tuple[RedisConnection, Address]:
        server = self._seed.at(address)
        connection = await dial(server, self._timeout, on_push, check_version)
        try:
            async with asyncio.timeout(await patience(self._timeout)):
                if not is_ok(await connection.send(pack("CLUSTER", "INFO"))):
                    raise UnavailableError(f"{server.name}: it is cut off from most of the Cluster")
        except BaseException:
            connection.abort("cannot subscribe here")
            raise
        return connection, address


def spread(answer: Sequence[Reply] | BaseException, places: Sequence[int], replies: list[Reply]) -> None:
    """Put a node's replies into their places; UnavailableError becomes a reply, any other error is raised."""
    if isinstance(answer, UnavailableError):
        answer = [UnavailableError(*answer.args) for _ in places]
    if isinstance(answer, BaseException):
        raise answer
    for place, reply in zip(places, answer, strict=True):
        replies[place] = reply


def redirected(replies: Sequence[Reply]) -> dict[BatchStore, list[int]]:
    """Return, for each node, the places of the operations that must go on to it."""
    todo: dict[BatchStore, list[int]] = {}
    for place, reply in enumerate(replies):
        if isinstance(reply, Redirect):
            todo.setdefault(reply.to, []).append(place)
    return todo
