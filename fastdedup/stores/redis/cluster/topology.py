"""The present nodes of a Cluster and their slots: asked at the start, and again when an answer does not fit them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar

from ....errors import ConfigError, DedupError, UnavailableError
from ....tasks import outcome_of, patience, stop
from ..connection import RedisConnection
from ..errors import MistakeError, translate
from ..first_good import NoneGoodError, first_good
from ..reconnect import Reconnector, lent
from ..scripts import pack
from ..url import Address, ServerURL
from .slots import SLOTS, Layout, read_layout, slot_of

_QUESTION = pack("CLUSTER", "INFO") + pack("CLUSTER", "SLOTS")
_PAUSE = 0.25
"""The least seconds between two questions for the layout."""
_ASKED = 8
"""The most servers that are asked at once."""
_HEAD_START = 0.02
"""Seconds that the connected servers have to answer, before others are asked: to connect costs a millisecond."""


class Member(Protocol):
    """The attributes that a topology needs of a node."""

    reconnector: Reconnector

    def retire(self) -> None:
        """Close the connection: the node holds no slot any more."""
        ...


N = TypeVar("N", bound=Member)


class OutdatedError(Exception):
    """A node that was frozen or is cut off has reported a layout that other nodes may have replaced."""

    def __init__(self, layout: Layout) -> None:
        super().__init__("outdated")
        self.layout = layout


class Topology(Generic[N]):
    """The table of slots, kept up to date in the background.

    Args:
        seed: the URL of the first of `seeds`, with the login for all nodes.
        seeds: the addresses in the store's URL.
        make_node: called once for each primary that appears.
        on_layout: called after each layout that was adopted.
        timeout: seconds within which a server must answer.
    """

    def __init__(
        self,
        seed: ServerURL,
        seeds: Sequence[Address],
        make_node: Callable[[ServerURL], N],
        on_layout: Callable[[], None] = lambda: None,
        *,
        timeout: float,
    ) -> None:
        self._seed = seed
        self._seeds = list(seeds)
        self.make_node = make_node
        """Returns a new node for a server."""
        self._on_layout = on_layout
        self._timeout = timeout
        self.name = "Redis Cluster at " + ", ".join(f"{host}:{port}" for host, port in seeds)
        self.owners: list[N | None] = [None] * SLOTS
        """The node of each slot; None if it is not known."""
        # Mutable: the nodes that hold slots or were named by a redirection; former nodes while they are still
        # connected; the replicas, which can also be asked.
        self._nodes: dict[Address, N] = {}
        self._retired: set[N] = set()
        self._replicas: set[Address] = set()
        self._primaries: list[N] | None = None
        self._epoch = 0
        # Mutable: the question that is under way; when the last question began; why it failed.
        self._refreshing: asyncio.Task[None] | None = None
        self._asked_at = float("-inf")
        self._trouble = "not asked yet"
        # Mutable: how many nodes are being probed.
        self._probed = 0
        self._closed = False

    @property
    def primaries(self) -> list[N]:
        """The nodes that hold at least one slot."""
        if self._primaries is None:
            found = dict.fromkeys(self.owners)  # without a loop in Python, which takes a millisecond
            self._primaries = [node for node in found if node is not None]
        return self._primaries

    @property
    def addresses(self) -> list[Address]:
        """The addresses of the primaries."""
        return [address for address, node in self._nodes.items() if node in self.primaries]

    @property
    def replicas(self) -> set[Address]:
        """The addresses of the replicas."""
        return self._replicas

    def connection_to(self, address: Address) -> RedisConnection | None:
        """Return the open connection to a server, or None."""
        node = self._nodes.get(address)
        return None if node is None else node.reconnector.connection

    def unassigned(self) -> UnavailableError:
        """Return the error for a key whose slot has no known node, and ask for the layout again."""
        self.refresh_soon()
        return UnavailableError(f"{self.name}: no node is known to hold the key's slot: {self._trouble}")

    def node_of(self, wire: bytes) -> N:
        """Return the node that holds a key now; every operation calls it.

        Raises:
            UnavailableError: the node of this key's slot is not known.
        """
        node = self.owners[slot_of(wire)]
        if node is None:
            raise self.unassigned()
        return node

    def node_at(self, address: Address) -> N:
        """Return the node at an address; make the node if the address is new."""
        node = self._nodes.get(address)
        if node is None:
            node = self._nodes[address] = self.make_node(self._seed.at(address))
        return node

    def learn(self, slot: int, address: Address) -> N:
        """Take the new node of a slot from a redirection (MOVED), and ask for the rest of the layout."""
        node = self.owners[slot] = self.node_at(address)
        self._primaries = None
        self.refresh_soon()
        return node

    def refresh_soon(self) -> None:
        """Ask for the layout in the background. Concurrent calls share one question; at most four a second."""
        if self._closed or self._refreshing is not None:
            return
        self._refreshing = asyncio.create_task(self._refresh(), name="fastdedup-topology")
        self._refreshing.add_done_callback(self._refreshed)

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Ask for the layout again and again while a node is probed: it may be replaced before it answers."""
        self._probed += 1
        self.refresh_soon()
        try:
            yield
        except BaseException:  # also a cancellation, at the probe's deadline
            self.refresh_soon()
            raise
        finally:
            self._probed -= 1

    async def refresh(self) -> None:
        """Ask for the layout and wait for it.

        Raises:
            ConfigError: the servers are not a Cluster.
            UnavailableError: no server answers.
        """
        self.refresh_soon()
        if self._refreshing is not None:
            await outcome_of(self._refreshing)

    async def is_cut_off(self, address: Address) -> bool:
        """Ask other nodes for the layout, and this node: True if this node does not know most of the primaries.

        Also False if no other node answers, because then there is nothing to compare with.
        """
        others = [other for other in self.ask_around() if other != address][:2]
        try:
            layout = await first_good(self.ask(other) for other in others)
            self.adopt(layout)
            own = await self._opinion(address)
        except (NoneGoodError, DedupError):
            return False
        return not own.ok or 2 * len(own.ids & layout.ids) <= len(layout.ids)

    async def aclose(self) -> None:
        """Stop asking, and close every node's connection."""
        self._closed = True
        if self._refreshing is not None:
            await stop(self._refreshing)
        reconnectors = [node.reconnector for node in (*self._nodes.values(), *self._retired)]
        await asyncio.gather(*(reconnector.aclose() for reconnector in reconnectors))

    def ask_around(self) -> list[Address]:
        """Return the servers to ask: first those with a connection, then others; never all of a large cluster."""
        connected = [
            address for address, node in self._nodes.items() if node.reconnector.connection is not None
        ]
        others = sorted({*self._nodes, *self._replicas, *self._seeds} - set(connected))
        random.shuffle(connected)
        random.shuffle(others)
        # Not only connected servers, because all of these may hang.
        return [*connected[: _ASKED - 2], *others][:_ASKED]

    def _refreshed(self, task: asyncio.Task[None]) -> None:
        self._refreshing = None
        if not task.cancelled():
            self._trouble = str(task.exception() or "the cluster says that no node holds it")
        if self._probed:
            self.refresh_soon()

    async def _refresh(self) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(max(0.0, self._asked_at + _PAUSE - loop.time()))
        self._asked_at = loop.time()
        try:
            layout = await first_good(self._ask_in_turn(address) for address in self.ask_around())
        except NoneGoodError as error:
            outdated = [one.layout for one in error.errors if isinstance(one, OutdatedError)]
            if not outdated:
                raise most_telling(error.errors) from None
            # No server has a better layout: the cluster is down, or was set up again and its epochs start anew.
            layout = max(outdated, key=lambda one: one.epoch)
        self.adopt(layout)

    async def _ask_in_turn(self, address: Address) -> Layout:
        """Ask a server. If it has no connection, ask a moment later: this is rarely needed and costs more."""
        if self.connection_to(address) is None and any(
            node.reconnector.connection for node in self._nodes.values()
        ):
            await asyncio.sleep(_HEAD_START)
        return await self.ask(address)

    async def ask(self, address: Address) -> Layout:
        """Return one node's layout. Raises OutdatedError if it is incomplete, or a later one is known."""
        layout = await self._opinion(address)
        self._check(layout)
        return layout

    async def _opinion(self, address: Address) -> Layout:
        return await ask(self._seed.at(address), self.connection_to(address), self._timeout)

    def _check(self, layout: Layout) -> None:
        if 0 < layout.epoch < self._epoch or not layout.ok:
            raise OutdatedError(layout)

    def adopt(self, layout: Layout) -> None:
        """Use this layout from now on, for everything that is sent."""
        self._epoch = layout.epoch or self._epoch
        owners: list[N | None] = [None] * SLOTS
        for first, last, address in layout.ranges:
            owners[first : last + 1] = [self.node_at(address)] * (last + 1 - first)
        self.owners = owners
        self._primaries = None
        self._replicas = layout.replicas
        # Nothing else refers to them: one may be connecting just now, or wait for replies of a frozen server.
        self._retired = {node for node in self._retired if not node.reconnector.is_idle}
        for node in self._retired:
            node.retire()
        for address, node in list(self._nodes.items()):
            if node not in self.primaries:
                del self._nodes[address]
                self._retired.add(node)
                node.retire()
        self._on_layout()


async def ask(server: ServerURL, connection: RedisConnection | None, timeout: float) -> Layout:
    """Ask one server for the layout: over its open connection, or else over a new connection.

    Raises:
        ConfigError: the server is not a node of a Cluster.
        UnavailableError: the server does not answer within `timeout` seconds, or knows of no slot.
    """
    try:
        if connection is None:
            server = await server.logged_in()
        timeout = await patience(timeout)
        async with asyncio.timeout(timeout), lent(server, timeout, connection) as link:
            info, slots = await link.send_many(_QUESTION, 2)
        if isinstance(slots, Exception):
            raise slots
    except Exception as error:  # noqa: BLE001 -- translated, or raised again
        raise _fault(error, server.name) from None
    if not slots:
        raise UnavailableError(f"{server.name}: the cluster has no slots assigned")
    return read_layout(slots, info, server.address[0])


def _fault(error: Exception, name: str) -> Exception:
    if "cluster support disabled" in str(error):
        return ConfigError(f"{name}: this is a single server, not a Cluster: use redis://")
    return error if isinstance(error, DedupError) else translate(error, name)


def most_telling(errors: Sequence[BaseException]) -> BaseException:
    """Return the error to show if every server failed: rather a mistake than an outage."""
    kinds = (ConfigError, MistakeError, UnavailableError, BaseException)
    return next(error for kind in kinds for error in errors if isinstance(error, kind))
