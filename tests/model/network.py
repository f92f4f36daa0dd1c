"""A simulated network: the real `RedisStore` talks over it to a far end in virtual time, and each packet has a fate.

The store, its server, its connections and its listener are the package's own. Two things are simulated: the
transport under a connection, and what stands in a command: a number in place of a script's arguments. The number
leads to the operations, which the far end executes, and to their replies. So Lua and the packing of arguments are
not part of the simulation; `tests/contract` is for them.

A packet is one write to a connection. Its fate is one of `FATES`.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from types import SimpleNamespace
from typing import Any

from fastdedup.kernel.operations import ClaimOp, Op, Reply
from fastdedup.kernel.verbs import UNREPEATED, Verb
from fastdedup.stores.base import Store
from fastdedup.stores.redis import RedisStore
from fastdedup.stores.redis.connection import RedisConnection

from .far_end import FarEnd, Packet

LATENCY = 0.001
"""Seconds that a packet takes in one direction."""
LONGER = 0.000_01
"""Seconds by which each packet is under way longer than the one before. A gate knows the server's time by its fastest
answer; so it can tell a fence of its own call from one that was there before."""
LATE = 0.55
"""Seconds after which a packet that was held up takes effect: long after its deadline of 0.25 s."""
OVERDUE = 0.26
"""Seconds after which a connection without replies must not be in use: the deadline, and the engine's grace."""
CONNECTS = 5
"""Attempts to connect that an outage refuses; three failures open the breaker, and then its probes fail."""

FATES = {
    "refused": "the connection breaks before the packet arrives, and so does the next attempt to connect",
    "outage": f"the same, and so do the next {CONNECTS} attempts of this process to connect",
    "cut": "it takes effect, then the connection breaks: the store sends it again",
    "lost": "it takes effect and its reply never comes, nor any other reply on this connection",
    "hung": f"it takes effect {LATE} s late, after its deadline, as all that follows on this connection",
    "dropped": "it never takes effect, nor does anything that follows on this connection",
    "copied": f"the connection breaks, the packet is sent again, and the first copy takes effect {LATE} s late",
}
_SILENT = ("lost", "hung", "dropped")
_SIZE = 8
_SUBSCRIBED = b"*3\r\n$9\r\nsubscribe\r\n$17\r\nfastdedup:settled\r\n:1\r\n"
_INFO = b"$27\r\nmaxmemory_policy:noeviction\r\n"
_PONG = b"*2\r\n$4\r\npong\r\n$0\r\n\r\n"
_NEWS = b"*3\r\n$7\r\nmessage\r\n$17\r\nfastdedup:settled\r\n$%d\r\n%b\r\n"


class CarriedScript:
    """A script whose command is a number: see the module's docstring."""

    text = ""

    def __init__(self, network: Network, verb: Verb) -> None:
        self._network = network
        self._verb = verb

    def command(self, ops: Sequence[Op], floor_us: int, limit: int, **form: bool) -> bytes:
        return self._network.pack(self._verb, ops, form.get("declared", True))

    def read(self, ops: Sequence[Op], reply: list[Any], floor_us: int = 0) -> Sequence[Reply]:
        return self._network.replies[reply[1]]


class Network:
    """All connections of a run, their packets in order of sending, and a log of what became of each.

    Args:
        fates: the fate of a packet by its number; any other packet arrives and is answered.
        log: called with a packet, what happens to it, and the replies if it takes effect.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        far_end: FarEnd,
        clock: Callable[[], float],
        fates: Mapping[int, str],
        log: Callable[..., None],
    ) -> None:
        self.loop = loop
        self._far_end = far_end
        self._clock = clock
        self._fates = fates
        self._log = log
        # Mutable: the packed operations by number; the replies to them; the packets sent; who hears news.
        self._packed: list[tuple[str, Sequence[Op]]] = []
        self.replies: dict[int, list[Reply]] = {}
        self.sent = 0
        self.has_sent: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        """Set for each verb that a packet had."""
        self._processes: list[Process] = []
        self._subscribed: list[SimulatedTransport] = []
        self.subscribed = _SUBSCRIBED
        """What a subscription is answered."""
        self._unrepeated: dict[Op, int] = {}
        self.refused: set[int] = set()
        """The calls that took no effect, and were answered."""
        self.mistakes: list[str] = []
        """What was sent, and must not be."""
        self.scripts = {verb: CarriedScript(self, verb) for verb in Verb}
        far_end.on_freed(self._tell)

    def store(self, name: str, timeout: float, loop: asyncio.AbstractEventLoop | None = None) -> Store:
        """Return the store of one process, for a gate on this loop."""
        process = Process(self, name, loop or self.loop)
        self._processes.append(process)
        store = RedisStore(f"redis://{name}:6379/0", timeout=timeout, connect=process.connect)
        store.server._scripts = self.scripts  # type: ignore[assignment]
        return store

    def refuse(self, times: int) -> None:
        """Break all connections of the first process, and refuse its next attempts to connect."""
        self._processes[0].refuse(times)

    def unsubscribe(self) -> None:
        """Break all subscriptions."""
        for transport in self._subscribed:
            transport.lose()

    def heal(self) -> None:
        """Let every further packet arrive and be answered."""
        self._fates = {}
        for process in self._processes:
            process.refusing = 0

    def pack(self, verb: Verb, ops: Sequence[Op], declared: bool = True) -> bytes:
        if verb in UNREPEATED:
            earlier = [self._unrepeated[op] for op in ops if op in self._unrepeated]
            self.mistakes += [f"a {verb} was sent again" for number in earlier if number not in self.refused]
            self._unrepeated.update(dict.fromkeys(ops, len(self._packed)))
        self._packed.append((verb.value, [op if isinstance(op, ClaimOp) else copy(op) for op in ops]))
        return b"@%07d" % (len(self._packed) - 1)

    def operations(self, verb: Verb) -> list[Op]:
        """Return the operations of a verb that were packed until now."""
        return [op for packed, ops in self._packed if packed == verb for op in ops]

    def carry(self, transport: SimulatedTransport, data: bytes) -> None:
        """Take a write to a connection: let its fate happen to it."""
        if b"PING" in data:
            transport.answer_later(_PONG)
            return
        if transport.silent and self.loop.time() > transport.silent_since + OVERDUE:
            self.mistakes.append("a packet was sent on a connection whose replies are late")
        number, self.sent = self.sent, self.sent + 1
        numbers = (
            [int(data[at + 1 : at + _SIZE]) for at in range(0, len(data), _SIZE)] if data[:1] == b"@" else []
        )
        other = "info" if b"INFO" in data else "subscribe"
        verb = self._packed[numbers[0]][0] if numbers else other
        packet = Packet(number, verb, [op for each in numbers for op in self._packed[each][1]])
        self.has_sent[verb].set()
        fate = transport.silent or self._fates.get(number, "")
        self._log(packet, (fate or "sent") + transport.process.to)
        self._let_happen(transport, packet, numbers, fate)

    def _let_happen(
        self, transport: SimulatedTransport, packet: Packet, numbers: list[int], fate: str
    ) -> None:
        def arrives(answers: bool = True) -> None:
            reply = self._execute(transport, packet, numbers)
            if answers:
                transport.answer_later(reply)

        def arrives_and_breaks() -> None:
            arrives(False)
            transport.lose()

        if fate in _SILENT and not transport.silent:
            transport.silent, transport.silent_since = fate, self.loop.time()
        latency = LATENCY + LONGER * packet.number
        if fate == "":
            self.loop.call_later(latency, arrives)
        elif fate == "cut":
            self.loop.call_later(latency, arrives_and_breaks)
        elif fate == "lost":
            self.loop.call_later(latency, arrives, False)
        elif fate in ("hung", "copied"):
            self.loop.call_later(LATE, arrives, False)
        if fate in ("refused", "outage"):
            transport.process.refuse(1 if fate == "refused" else CONNECTS)
        if fate == "copied":
            transport.lose()

    def _execute(self, transport: SimulatedTransport, packet: Packet, numbers: list[int]) -> bytes:
        if packet.verb == "info":
            return _INFO
        if not numbers:
            self._subscribed.append(transport)
            return self.subscribed
        answer = b"".join([self._answer(transport, number) for number in numbers])
        replies = [reply for number in numbers for reply in self.replies.get(number, ())]
        self._log(packet, "takes effect" if replies else f"is refused: {answer.decode()}", replies)
        return answer

    def _answer(self, transport: SimulatedTransport, number: int) -> bytes:
        """Execute a call, and return what the far end answers."""
        self.replies[number] = [self._far_end.apply(op) for op in self._packed[number][1]]
        return b"*2\r\n:%d\r\n:%d\r\n" % (self._now_us(), number)

    def _now_us(self) -> int:
        return round(self._clock() * 1_000_000)

    def _tell(self, wire: bytes) -> None:
        for transport in self._subscribed:
            transport.answer_later(_NEWS % (len(wire), wire))


class Process:
    """The way of one process to the far end, or to one server of it. `to`: that server, for the trace."""

    def __init__(self, network: Network, name: str, loop: asyncio.AbstractEventLoop, to: str = "") -> None:
        self._network = network
        self.name = name
        self.to = to and f" to {to}"
        self.loop = loop
        # Mutable: how many attempts to connect are still refused; the open transports.
        self.refusing = 0
        self._transports: dict[SimulatedTransport, None] = {}

    async def connect(self, on_push: Callable[[Any], None] | None) -> RedisConnection:
        link: Any = SimpleNamespace(
            _writer=SimpleNamespace(transport=await self.open()), host=self.name, port=6379
        )
        return RedisConnection(link, on_push)

    async def open(self) -> SimulatedTransport:
        await asyncio.sleep(LATENCY)
        if self.is_refused():
            raise ConnectionRefusedError(f"{self.name}: connection refused")
        transport = SimulatedTransport(self._network, self)
        self._transports[transport] = None
        return transport

    def is_refused(self) -> bool:
        """True for an attempt to connect that is refused."""
        refused = self.refusing > 0
        self.refusing -= refused
        return refused

    def refuse(self, times: int) -> None:
        """Break all connections, and refuse the next attempts to connect."""
        self.refusing += times
        for transport in tuple(self._transports):
            transport.lose()

    def forget(self, transport: SimulatedTransport) -> None:
        self._transports.pop(transport, None)


class SimulatedTransport(asyncio.Transport):
    """Carries what one connection writes, and the replies in their order."""

    def __init__(self, network: Network, process: Process) -> None:
        super().__init__()
        self._network = network
        self.process = process
        self._protocol: Any = None
        self._closing = False
        self.silent = ""
        """The fate of every further packet, after one that was lost, hung or dropped."""
        self.silent_since = 0.0

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def is_closing(self) -> bool:
        return self._closing

    def write(self, data: Any) -> None:
        if not self._closing:
            self._network.carry(self, data)

    def answer_later(self, data: bytes) -> None:
        if not self.silent:
            self.process.loop.call_later(LATENCY, self._answer, data)

    def _answer(self, data: bytes) -> None:
        if not self._closing and not self.silent:
            self._protocol.data_received(data)

    def lose(self) -> None:
        """Break the connection."""
        if not self._closing:
            self._closing = True
            self.process.forget(self)
            self.process.loop.call_soon(self._protocol.connection_lost, None)

    abort = close = lose
