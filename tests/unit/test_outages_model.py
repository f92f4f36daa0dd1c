"""Two processes, one store, outages at random: whatever happens, the promises that LocalLRU makes are kept.

Everything of the gate is real but the store's distance and the clock. `Ledger` knows what each process
was told, and fails as soon as it is told something that contradicts it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fastdedup import BreakerState, ClaimLostError, Dedup, LocalLRU, Outcome, UnavailableError
from fastdedup.events import Conflict, Degraded, Event, Replayed
from fastdedup.kernel.codes import Code
from fastdedup.kernel.operations import Adopted, AdoptOp
from fastdedup.kernel.owners import owner_text
from fastdedup.stores.bounded import RECORD_BYTES
from fastdedup.stores.memory import MemoryStore

from ..ledger import KEYS, PROCESSES, SLACK, TIMEOUT, Ledger, Success, Told, wire_of
from ..virtual import Link, VirtualLoop


class Counted(LocalLRU):
    """Counts its answers."""

    asked = 0

    def answer(self, op: Any, error: UnavailableError) -> Any:
        self.asked += 1
        return super().answer(op, error)


class Server(MemoryStore):
    """Tells the ledger who was overruled: the one who overruled may never hear of it."""

    def __init__(self, ledger: Ledger, clock: Callable[[], float]) -> None:
        super().__init__(clock=clock)
        self._ledger = ledger

    def _adopt(self, op: AdoptOp, now: int) -> Adopted:
        reply = super()._adopt(op, now)
        if reply.code is Code.OURS_STANDS:
            self._ledger.losers.add(owner_text(reply.owner))
        return reply


class Outages(RuleBasedStateMachine):
    """The rules start operations, wait or do not, break links and mend them, and let time pass."""

    maxsize = 1000

    def __init__(self) -> None:
        super().__init__()
        self.loop = VirtualLoop()
        self.ledger = Ledger(self.loop)
        self.store = Server(self.ledger, clock=self.loop.clock)
        self.events: list[Event] = []
        self.links = [Link(self.store) for _ in PROCESSES]
        self.policies = [Counted(self.maxsize, clock=self.loop.clock) for _ in PROCESSES]
        self.ledger.policies += self.policies
        self.gates = [
            Dedup(link, namespace="t", known_duplicates=0, on_unavailable=policy, on_event=self.on_event)
            for link, policy in zip(self.links, self.policies, strict=True)
        ]
        self.tasks: set[asyncio.Task[None]] = set()
        self.errors: list[BaseException] = []
        self.loop.set_exception_handler(self.on_error)
        self.tokens: dict[str, tuple[int, float]] = {}
        self.successes: dict[tuple[str, int], tuple[float, Success]] = {}
        self.settlers: dict[tuple[str, int], Told] = {}
        self.turns: dict[str, asyncio.Lock] = {}
        self.tried: Counter[str] = Counter()
        self.results: dict[str, int] = {}

    @initialize()
    def open(self) -> None:
        for gate in self.gates:
            self.loop.run_until_complete(gate.open())

    def on_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.errors.append(context.get("exception") or AssertionError(context["message"]))

    def on_event(self, event: Event) -> None:
        self.events.append(event)
        self.ledger.event(event)

    def start(self, work: Coroutine[Any, Any, None], wait: bool) -> None:
        task = self.loop.create_task(self._guarded(work))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        self.loop.run_until_complete(asyncio.sleep(0.001))
        if wait:
            self.loop.run_until_complete(asyncio.wait({task}))

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except (UnavailableError, ClaimLostError):
            pass
        except Exception as error:  # noqa: BLE001 -- raised by the next invariant
            self.errors.append(error)

    # Claims

    @rule(
        process=st.sampled_from(PROCESSES),
        key=st.sampled_from(KEYS),
        owner=st.sampled_from([None, None, None, "ann", "bob"]),
        lease=st.sampled_from([0.5, 2.0, 10.0]),
        patience=st.sampled_from([0.0, 0.0, 1.0]),
        wait=st.booleans(),
    )
    def claim(
        self, process: int, key: str, owner: str | None, lease: float, patience: float, wait: bool
    ) -> None:
        # A named owner is one process's: two that call themselves the same are the same.
        name = owner and f"{owner}-{process}"
        self.start(self._claim(process, key, name, lease, patience), wait)

    async def _claim(self, process: int, key: str, owner: str | None, lease: float, patience: float) -> None:
        async with self._turn(owner):
            asked = self.loop.time()
            claim = await self.gates[process].claim(key, owner=owner, lease=lease, ttl=20.0, wait=patience)
        if claim.acquired:
            self.ledger.acquired(process, claim, max(asked, self.loop.time() - TIMEOUT))
        else:
            self.ledger.answered(process, claim, asked)

    def _turn(self, owner: str | None) -> AbstractAsyncContextManager[object]:
        """Who has a name does one thing after the other; all others are somebody new each time."""
        named = owner and "-" in owner
        return self.turns.setdefault(owner, asyncio.Lock()) if named else nullcontext()  # type: ignore[arg-type]

    def _live(self, pick: int) -> Told | None:
        live = [told for key in KEYS for told in self.ledger.told[key] if not told.settled]
        return live[pick % len(live)] if live else None

    @rule(pick=st.integers(0, 9), ttl=st.sampled_from([0.3, 20.0]), wait=st.booleans())
    def complete(self, pick: int, ttl: float, wait: bool) -> None:
        if told := self._live(pick):
            self.start(self._complete(told, ttl), wait)

    def _begins_to_settle(self, told: Told) -> bool:
        """One call at a time settles an owner's claim; one that failed may be repeated."""
        name = (told.claim.owner, told.claim.fence)
        if name in self.ledger.gone or told.claim.settlement.settled is not None:
            return False
        return self.settlers.setdefault(name, told) is told

    async def _complete(self, told: Told, ttl: float) -> None:
        if not self._begins_to_settle(told):
            return
        # What an owner completes again, it completes with the same result: the first stands.
        name = (told.claim.owner, told.claim.fence)
        if name not in self.successes:
            result = self.results.setdefault(told.claim.owner, len(self.results))
            ttl = 20.0 if "-" in told.claim.owner else ttl
            self.successes[name] = ttl, self.ledger.tried(told.claim, result)
        ttl, success = self.successes[name]
        asked = success.since
        async with self._turn(told.claim.owner):
            if told.claim.settlement.settled is not None:
                return
            await told.claim.complete(success.result, ttl=ttl)
        self.ledger.completed(told, success, asked, ttl)

    @rule(pick=st.integers(0, 9), wait=st.booleans())
    def release(self, pick: int, wait: bool) -> None:
        if told := self._live(pick):
            self.start(self._release(told), wait)

    async def _release(self, told: Told) -> None:
        if not self._begins_to_settle(told):
            return
        self.ledger.let_go(told)  # from here on, whatever it is told
        async with self._turn(told.claim.owner):
            if told.claim.settlement.settled is None:
                await told.claim.release()

    @rule(pick=st.integers(0, 9), wait=st.booleans())
    def renew(self, pick: int, wait: bool) -> None:
        if told := self._live(pick):
            self.start(self._renew(told), wait)

    async def _renew(self, told: Told) -> None:
        if told.claim.settlement.settled is not None:
            return
        asked, until = self.loop.time(), told.until
        self.ledger.renewed(told, min(until, asked + 2.0))  # even if the answer is lost
        await told.claim.renew(2.0)
        self.ledger.renewed(told, asked + 2.0)

    @rule(process=st.sampled_from(PROCESSES), key=st.sampled_from(KEYS))
    def forget(self, process: int, key: str) -> None:
        self.start(self._forget(process, key), True)

    async def _forget(self, process: int, key: str) -> None:
        self.ledger.forgot(key)
        try:
            await self.gates[process].forget(key)
        finally:
            self.ledger.forgot(key)

    # Tokens

    @rule(process=st.sampled_from(PROCESSES), wait=st.booleans())
    def issue(self, process: int, wait: bool) -> None:
        self.start(self._issue(process), wait)

    async def _issue(self, process: int) -> None:
        asked = self.loop.time()
        token = await self.gates[process].tokens.issue(ttl=8.0)
        self.tokens[token] = process, asked + 8.0

    @rule(process=st.sampled_from(PROCESSES), pick=st.integers(0, 9), wait=st.booleans())
    def consume(self, process: int, pick: int, wait: bool) -> None:
        if self.tokens:
            self.start(self._consume(process, list(self.tokens)[-1 - pick % len(self.tokens)]), wait)

    async def _consume(self, process: int, token: str) -> None:
        self.tried[token] += 1
        dedup = self.gates[process]
        claim = await dedup.tokens.use(token, None, None, ttl=20.0)
        uses = self.ledger.consumed.setdefault(token, [])
        if claim.acquired:
            assert process not in [one for one, _ in uses], f"{claim.key} was used up twice in a process"
            uses.append((process, claim.owner))
        issuer, until = self.tokens[token]
        if claim.outcome is Outcome.UNKNOWN and self.tried[token] == 1 and issuer == process:
            assert until <= self.loop.time() + SLACK, f"{claim.key} is called a forgery by its issuer"

    # Faults

    @rule(process=st.sampled_from(PROCESSES))
    def cut(self, process: int) -> None:
        self.links[process].down = True

    @rule(process=st.sampled_from(PROCESSES))
    def freeze(self, process: int) -> None:
        self.links[process].freeze()

    @rule(process=st.sampled_from(PROCESSES), batches=st.integers(1, 3))
    def lose_replies(self, process: int, batches: int) -> None:
        self.links[process].losing = batches

    @rule(process=st.sampled_from(PROCESSES), latency=st.sampled_from([0.001, 0.02, 0.1, 0.2]))
    def slow(self, process: int, latency: float) -> None:
        self.links[process].latency = latency

    @rule(process=st.sampled_from(PROCESSES))
    @precondition(lambda self: any(link.broken for link in self.links))
    def mend(self, process: int) -> None:
        self._mend(process)

    def _mend(self, process: int) -> None:
        link = self.links[process]
        link.down, link.losing = False, 0
        self.loop.run_until_complete(link.thaw())

    @rule(seconds=st.sampled_from([0.01, 0.1, 0.4, 1.0, 5.0]))
    def pass_time(self, seconds: float) -> None:
        self.loop.run_until_complete(asyncio.sleep(seconds))

    # What always holds

    @invariant()
    def nothing_went_wrong(self) -> None:
        if self.errors:
            raise self.errors[0]

    @invariant()
    def the_books_of_the_local_stores_are_right(self) -> None:
        for policy in self.policies:
            held = policy.records
            assert len(held) <= self.maxsize
            assert held.bytes_kept == sum(RECORD_BYTES + len(entry.payload) for _, entry in held)
            live = [wire for wire, entry in held if entry.state in "PW" and entry.owner]
            assert not set(live) & set(policy.last_seen.spare), "a live claim may be dropped"

    def teardown(self) -> None:
        try:
            self._finish()
        finally:
            self.loop.run_until_complete(self._close())
            self.loop.close()

    def _finish(self) -> None:
        for process in PROCESSES:
            self._mend(process)
            self.links[process].latency = 0.001
        for _ in range(100):
            self.loop.run_until_complete(asyncio.sleep(0.1))
            if not any(policy.lines for policy in self.policies):
                break
        settled = self.loop.time()
        for key, successes in self.ledger.recorded.items():
            for success in successes:
                self._stands(key, success)
        self.loop.run_until_complete(asyncio.sleep(30.0))
        self.nothing_went_wrong()
        assert not self.tasks, "an operation never ended"
        for gate, policy in zip(self.gates, self.policies, strict=True):
            assert gate.breaker is BreakerState.CLOSED
            assert policy.lines == 0, "the journal is not empty"
        answers = [event for event in self.events if isinstance(event, Degraded)]
        assert len(answers) == sum(policy.asked for policy in self.policies)
        conflicts = [event for event in self.events if isinstance(event, Conflict)]
        replayed = [event for event in self.events if isinstance(event, Replayed)]
        assert sum(event.conflicts for event in replayed) == len(conflicts)
        for token, uses in self.ledger.consumed.items():
            named = {event.ours for event in conflicts} | {event.theirs for event in conflicts}
            twice = len(uses) > 1 and settled < self.tokens[token][1]
            assert not twice or {owner for _, owner in uses} <= named, f"{token} used twice in silence"

    def _stands(self, key: str, success: Success) -> None:
        """What was recorded is in the store, unless it was said to be lost."""
        if success.until <= self.loop.time() + SLACK or success.owner in self.ledger.losers:
            return
        entry = self.store.entry(wire_of(key))
        assert entry is not None, f"{success} is lost"
        assert (entry.state, entry.payload) == ("S", str(success.result).encode()), f"{success} is lost"

    async def _close(self) -> None:
        for task in self.tasks:
            task.cancel()
        for gate in self.gates:
            await gate.aclose()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*left, return_exceptions=True)


TestOutages = Outages.TestCase
TestOutages.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
