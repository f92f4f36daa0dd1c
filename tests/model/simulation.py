"""Deterministic simulation: the real gate on the real `RedisStore`, in virtual time, over a simulated network.

A run is a tuple: the scenario, the fates of packets by their number, the step of the loop at which the scenario's
main client is cancelled (0: it is not), the order of tasks, and the step at which that client is cancelled again, as
`asyncio.timeout` in a cancelled task group does. `replay` repeats it exactly, with its trace. See
`scenarios.py` for what the clients do, `network.py` for the fates, `promises.py` for what must be true.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any, NamedTuple

from fastdedup import BreakerState, ClaimLostError, Dedup, LocalLRU, UnavailableError
from fastdedup.events import Conflict, Degraded, Event
from fastdedup.kernel.codes import Code
from fastdedup.kernel.operations import Reply
from fastdedup.kernel.shards import ShardedEngine
from fastdedup.kernel.verbs import Verb
from fastdedup.ledger.operations import FirstOp, SeenOp

from .cluster import CLUSTER_FATES, ClusterNetwork, carried_singles
from .determinism import SteppingLoop, begin, pinned
from .far_end import FarEnd, Packet, SpecFarEnd, describe
from .network import FATES, LATE, Network
from .promises import Promises
from .sentinels import SECOND_FATES, UNTOLD, SentinelNetwork
from .servers import PROMOTED

TIMEOUT = 0.25
LEASE = 8.0
UNDO = 2.5
"""Seconds after the end of all clients in which everything that was given up must have been taken back."""
PATIENCE = 60.0
"""Seconds after which a client counts as waiting for ever. All that a scenario does takes less."""
GRACE = 0.2
"""Seconds that an operation may take beyond its own bound: the engine's grace, and latencies."""
BACK_AT_ONCE = 0.05
"""Seconds in which a call that was told nothing is taken back while all goes well."""
BACK = {
    **dict.fromkeys(FATES, 2 * TIMEOUT),
    **dict.fromkeys((*CLUSTER_FATES, *SECOND_FATES), 2 * TIMEOUT),
    "outage": 2.0,  # until a probe is answered
    **dict.fromkeys(("failed", "ended", "forgotten", "returned"), PROMOTED + 2.0),
    "unannounced": UNTOLD + 2.0,
    **dict.fromkeys(("hung", "copied"), LATE + 0.6),  # until the orphans are looked at again
}
"""Further seconds for each fate."""
Main = Callable[["World"], Coroutine[Any, Any, None]]


class Run(NamedTuple):
    """What decides a run."""

    scenario: str
    fates: tuple[tuple[int, str], ...] = ()
    cancel_step: int = 0
    order: int = 0
    cancel_again: int = 0
    cluster: str = ""
    """How batches go to a Cluster, one of `FORMS`; empty for a single Redis."""
    sentinels: bool = False
    """The store asks sentinels for its primary."""


@dataclass(frozen=True)
class Scenario:
    """What the clients do, and the gates that they have; each gate is a process of its own."""

    main: Main
    gates: int = 1
    local: bool = False
    """The policy is LocalLRU."""
    two_loops: bool = False
    """There is one more gate: of the first one's process, on another event loop."""


@dataclass
class Outcome:
    """What became of a run."""

    run: Run
    broken: list[str]
    accepted: Counter[str]
    trace: list[str]
    steps: int
    """Steps until the main client was done."""
    packets: int
    """Packets until all clients were done."""

    def __str__(self) -> str:
        return "\n".join([f"replay({self.run!r})", *self.broken, "", *self.trace])


SCENARIOS: dict[str, Scenario] = {}


def scenario(gates: int = 1, local: bool = False, two_loops: bool = False) -> Callable[[Main], Main]:
    """Register a scenario by its function's name."""

    def registered(main: Main) -> Main:
        SCENARIOS[main.__name__] = Scenario(main, gates, local, two_loops)
        return main

    return registered


class World:
    """What a scenario works with: its gates, its further clients, and what must be true at the end."""

    def __init__(self, run: Run, loop: SteppingLoop, far_end: FarEnd) -> None:
        self.loop = loop
        self._trace: list[tuple[float, object, str, Sequence[Reply]]] = []
        fates = [fate for _, fate in run.fates]
        self.after_cancel = BACK_AT_ONCE + sum(BACK[fate] for fate in fates)
        """Seconds in which what a cancelled call has left may be there still."""
        waits_enough = len(fates) < 2 and not {"hung", "copied", "outage", "failed"}.intersection(fates)
        self.after_error = 0.0 if waits_enough else self.after_cancel
        """The same after a call's error, which waits for the taking back, for one further timeout at most."""
        self.disturbances = len(fates)
        self.is_heard = fates in ([], ["cut"])
        """Each claim that was sent gets its reply, if its caller stays: by its second sending, if it has one. After a
        second cut a gate may know the store's time too roughly to tell whether a named owner held the key before."""
        self.is_unheard = not {"cut", "copied", "lost", "hung"}.isdisjoint(fates)
        """A packet took effect, and no reply came in time."""
        self.is_resent = bool(fates) and {"cut", "copied"}.issuperset(fates)
        self.is_moved = bool(fates) and {"moved", "moving"}.issuperset(fates)
        self.cancelled_at: float = inf
        """The step at which the main client was cancelled."""
        self.news = 0.05
        """Seconds within which a waiter gets news while all goes well."""
        self.is_long_outage = len(fates) > 1 and "outage" in fates
        """The store may be away for longer than `short_lease`."""
        self.chosen: set[bytes] = set()
        """The owners that the package has generated, and that a client names when it asks again."""
        self.short_lease = 3.0 if run.sentinels else 0.9
        """Seconds of a lease that is renewed, more than a failover takes: work whose lease ends may be done again."""
        self.may_free_late = len(fates) > 1 or "copied" in fates
        """A release may be under way still when an operation that began after it is answered."""
        self.undisturbed = not fates and not run.cancel_step
        kind = SCENARIOS[run.scenario]
        self._far_end = far_end
        self.promises = Promises(loop.time, self._log)
        network: Callable[..., Network] = Network
        if run.cluster:
            network = partial(ClusterNetwork, run.cluster)
        elif run.sentinels:
            network = partial(SentinelNetwork, self.promises.forget)
        self.network = network(loop, self._far_end, loop.clock, dict(run.fates), self._log_packet)
        policies = [LocalLRU(100, clock=loop.clock) if kind.local else None for _ in range(kind.gates)]
        self.gates = [self._gate(f"gate{at}", policy, loop) for at, policy in enumerate(policies)]
        self.other_loop = loop.beside() if kind.two_loops else None
        self._far_gate = self._gate("gate0", None, self.other_loop) if self.other_loop else None
        self.clients: dict[asyncio.Task[None], str] = {}
        self._at_end: list[Callable[[], Awaitable[None]]] = []
        loop.set_exception_handler(self._on_loop_error)

    def _gate(self, name: str, policy: LocalLRU | None, loop: SteppingLoop) -> Dedup:
        return Dedup(
            self.network.store(name, TIMEOUT, loop),
            namespace="sim",
            lease=LEASE,
            timeout=TIMEOUT,
            on_unavailable=policy,
            on_event=self._on_event,
        )

    @property
    def gate(self) -> Dedup:
        return self.gates[0]

    @property
    def gate_on_other_loop(self) -> Dedup:
        assert self._far_gate is not None
        return self._far_gate

    # For scenarios

    def start(self, who: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start another client."""
        client = self.loop.create_task(self._client(who, work), name=who)
        self.clients[client] = who
        return client

    async def on_other_loop(self, work: Coroutine[Any, Any, None]) -> None:
        """Let the other loop do something, to its end."""
        assert self.other_loop is not None
        done = self.loop.create_future()
        task = self.other_loop.create_task(work)
        task.add_done_callback(lambda _: None if done.cancelled() else done.set_result(None))
        await done
        task.result()

    def is_stored(self, fence: int) -> bool:
        """True if the store has a record with this fence."""
        return any(record.fence == fence for _, record in self._far_end.records())

    def states(self) -> list[str]:
        """Return the state of each record in the store."""
        return [record.state for _, record in self._far_end.records()]

    def is_remembered(self) -> bool:
        """True if the store has an id that a first call was sent for."""
        firsts = [op for op in self.network.operations(Verb.FIRST) if isinstance(op, FirstOp)]
        looks = [SeenOp(op.wire, op.entry, op.terms) for op in firsts]
        return any(self._far_end.apply(look) in (Code.OK, Code.ALREADY) for look in looks)

    def at_end(self, check: Callable[[], Awaitable[None]]) -> None:
        """Call this at the end, once the far end is well and all leases are over."""
        self._at_end.append(check)

    @contextmanager
    def bounded(self, who: str, seconds: float) -> Iterator[None]:
        """A call in the body must be answered within so many seconds."""
        since = self.loop.time()
        try:
            yield
        finally:
            took = self.loop.time() - since
            if took > seconds + GRACE:
                self.promises.broke(f"{who} got its answer after {took:.3f} s, not within {seconds:g} s")

    async def _client(self, who: str, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except asyncio.CancelledError:
            self._log(who, "is cancelled")
        except UnavailableError as error:
            self._log(who, f"gets {type(error).__name__}: {error}")
        except ClaimLostError as error:
            self.promises.contradicts(f"{who} gets {error!r}")
        except Exception as error:  # noqa: BLE001 -- whatever else is raised is a finding
            self.promises.broke(f"{who} gets {error!r}")

    # The machine

    async def play(self, run: Run) -> tuple[int, int]:
        """Run the clients to their ends, then look at what is left. Return `Outcome`'s steps and packets."""
        for gate in self.gates:
            await gate.open()
        if self.other_loop is not None:
            self.other_loop.set_exception_handler(self._on_loop_error)
            await self.on_other_loop(self._open_on_other_loop())
        first = self.loop.steps
        main = self.start("main", SCENARIOS[run.scenario].main(self))
        ends: list[int] = []
        main.add_done_callback(lambda _: ends.append(self.loop.steps - first))
        if run.cancel_step:
            self._cancel_at(main, first + run.cancel_step, first + run.cancel_again)
        await self._end_clients()
        packets = self.network.sent
        self.network.heal()
        self._log("network", "is well from now on")
        await asyncio.sleep(UNDO)
        self._check_held()
        if any(gate.breaker is not BreakerState.CLOSED for gate in self.gates):
            self.promises.broke("the network is well, and a breaker is still open")
        for mistake in self.network.mistakes:
            self.promises.broke(mistake)
        await asyncio.sleep(LEASE)
        for check in self._at_end:
            await check()
        await self._close()
        return (ends or [self.loop.steps])[0], packets

    async def _open_on_other_loop(self) -> None:
        await self.gate_on_other_loop.open()

    def _cancel_at(self, main: asyncio.Task[None], *steps: int) -> None:
        def on_step(number: int) -> None:
            if number in steps and not main.done():
                self._log("main", "cancelled")
                self.cancelled_at = min(number, self.cancelled_at)
                main.cancel()

        self.loop.on_step = on_step

    async def _end_clients(self) -> None:
        seen = 0
        while seen < len(self.clients):  # a client may start another one
            seen = len(self.clients)
            _, waiting = await asyncio.wait(self.clients, timeout=PATIENCE)
            for task in waiting:
                self.promises.broke(f"{self.clients[task]} waits for ever")
                task.cancel()

    def _check_held(self) -> None:
        """All clients have ended, so nobody holds a key, but a client that died between two calls."""
        died = self.promises.left_by_the_dead()
        for wire, record in self._far_end.records():
            if record.state not in "PW" or record.left_ms <= 0 or record.fence in died:
                continue
            is_chosen = record.owner[:1] != b"\0" or record.owner in self.chosen
            if is_chosen and not self.is_heard:
                continue  # its reply was lost: the same name gets its claim back, so it is left alone
            what = f"{wire!r} is held for nobody for {record.left_ms} ms more"
            self.promises.contradicts(what)

    async def _close(self) -> None:
        for gate in self.gates:
            connection = gate.gate.connection
            engine: Any = connection.running_engine()
            engines = engine.engines.values() if isinstance(engine, ShardedEngine) else [engine]
            kept = [*connection.wakeups.waiting]
            for each in engines:
                kept += [*each.leaders, *each.named.open]
            if kept or connection.unfinished:
                tasks = f"{connection.unfinished} tasks and {kept}"
                self.promises.broke(f"the gate still keeps {tasks} for clients that have ended")
            await gate.aclose()
        if self.other_loop is not None:
            await self.on_other_loop(self.gate_on_other_loop.aclose())
        left = asyncio.all_tasks() - {asyncio.current_task()}  # type: ignore[arg-type]
        left |= asyncio.all_tasks(self.other_loop) if self.other_loop else set()
        if left:
            self.promises.broke(f"tasks left behind: {left}")

    # The trace

    def _log(self, who: str, text: str) -> None:
        self._trace.append((self.loop.time(), who, text, ()))

    def _log_packet(self, packet: Packet, text: str, replies: Sequence[Reply] = ()) -> None:
        self._trace.append((self.loop.time(), packet, text, replies))

    def _on_event(self, event: Event) -> None:
        self._log("event", repr(event))
        if isinstance(event, Conflict):
            self.promises.conflicts += 1
            if len(self.gates) == 1:
                self.promises.broke("a conflict is told, and there is no other process")
        if isinstance(event, Degraded) and self.is_resent and event.verb != Verb.FORGET:
            self.promises.broke("a packet whose connection broke was not sent again")
        if isinstance(event, Degraded) and self.is_moved:
            self.promises.broke("a slot that moves counts as an outage")

    def _on_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.promises.broke(f"the loop's exception handler: {context}")

    def trace(self) -> list[str]:
        """Return a line for each packet's sending and effect, and for what each client was told."""
        lines = []
        for at, who, text, replies in self._trace:
            answers = f": {', '.join(map(describe, replies))}" if replies else ""
            lines.append(f"{at:9.4f} {who}: {text}{answers}")
        return lines


def simulate(
    run: Run, *, traced: bool = False, far_end: Callable[[Callable[[], float]], FarEnd] = SpecFarEnd
) -> Outcome:
    """Run it, within `simulating()`. It has its trace if a promise is broken, or if that is asked for.

    `far_end`: makes the far end, from a clock.
    """
    loop = SteppingLoop(run.order)
    begin(loop)
    world = World(run, loop, far_end(loop.clock))
    steps = packets = 0
    try:
        steps, packets = loop.run_until_complete(world.play(run))
    except Exception as error:  # noqa: BLE001 -- the machine itself is stuck: a finding as well
        world.promises.broke(f"the run ended with {error!r}")
    finally:
        loop.on_step = None
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
    broken = world.promises.broken
    return Outcome(
        run, broken, world.promises.accepted, world.trace() if broken or traced else [], steps, packets
    )


def replay(run: Run) -> Outcome:
    """Run it once more, with its trace."""
    with simulating():
        return simulate(run, traced=True)


@contextmanager
def simulating() -> Iterator[None]:
    """Prepare many runs: time and randomness are pinned, and nothing is logged."""
    logging.disable(logging.CRITICAL)
    try:
        with pinned(), carried_singles():
            yield
    finally:
        logging.disable(logging.NOTSET)
