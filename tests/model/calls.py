"""Calls that act at once and hold nothing: `first` of a ledger and the transitions of a machine, in every order.

As in `interleavings.py`, a sending may lose its reply, get lost, or be held back; then its caller asks again or gives
up. If a caller has given a `first` up, it looks twice and takes back what it finds. If it is told PENDING, it asks
again. At any point two timeouts may pass. A transition that was sent before says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from .windows import PENDING, TICK, Entry, First, ForgetId, Place, step
from .words import Reply, Transition

NOW_US = 1_800_000_000_000_500
WINDOW, KEEP = 10_000, 1000
PATIENCE = 1
"""Two timeouts, in ticks."""
READY, SILENT, LOOKING, OVER = "ready", "silent", "looking", "over"


class Call(NamedTuple):
    """One call: how it is sent for the first time and again, how it is taken back, and the name that it leaves."""

    sent: Any
    again: Any
    undo: Any
    name: bytes


def first(number: int, patience: int = PATIENCE) -> Call:
    name = b"cal%d" % number
    asks = First(name, WINDOW, patience)
    return Call(asks, asks, ForgetId(name), name)


def move(number: int, to: str, sources: str, version: int | None = None) -> Call:
    change = b"change%04d" % number
    states = frozenset(state.encode() for state in sources.split())
    sent, again = (
        Transition(change, to.encode(), states, b"new", KEEP, version, again) for again in (False, True)
    )
    return Call(sent, again, None, change)


class Caller(NamedTuple):
    """Who makes a call, and what is true of it. `effects`: how often the call has changed what stands."""

    phase: str = READY
    effects: int = 0
    told: str = ""
    looks: int = 2


class World(NamedTuple):
    """All that the rest of a schedule depends on."""

    place: Place
    callers: tuple[Caller, ...]
    losses: int
    copy: int | None = None
    """Whose sending is held back."""
    excuse: str = ""
    """Why a rule may be broken: a key of `ACCEPTED`."""


Rules = tuple[Callable[[Sequence[bytes], World], bool], ...]
COPY = "a copy comes out of the network after the last look, or after its transition was made and undone"
LATE = "a `first` that was given up is taken back later than two timeouts after it was done"
ACCEPTED = (COPY, LATE)
"""All reasons for which a rule may be broken; docs/promises.md and docs/ledger.md tell the user of each."""


class Orders:
    """All schedules of these calls, one by each caller. `losses`: sendings that get no reply, at most."""

    def __init__(self, calls: Sequence[Call], rules: Rules, losses: int) -> None:
        self._calls = calls
        self._rules = rules
        self._start = World(Place(), tuple(Caller() for _ in calls), losses)
        self._schedules: dict[World, int] = {}
        self._trace: list[str] = []
        self.accepted: Counter[str] = Counter()
        """How many ends break a rule, by the reason for which that is accepted."""

    @property
    def worlds(self) -> int:
        return len(self._schedules)

    def run(self) -> int:
        """Return the number of schedules; raises AssertionError with the first one that breaks a rule."""
        return self._follow(self._start)

    def _follow(self, world: World) -> int:
        if world in self._schedules:
            return self._schedules[world]
        count = 0
        for what, after in self._moves(world):
            if after != world:  # else it was told to ask again later
                self._trace.append(what)
                count += self._follow(after)
                self._trace.pop()
        if not count:
            self._judge(world)
        self._schedules[world] = count or 1
        return count or 1

    def _judge(self, world: World) -> None:
        names = [call.name for call in self._calls]
        broken = [rule.__name__.replace("_", " ") for rule in self._rules if not rule(names, world)]
        if broken and not world.excuse:
            raise AssertionError("\n".join([f"broken: {broken[0]}", *self._trace, str(world)]))
        self.accepted[world.excuse] += bool(broken)

    def _moves(self, world: World) -> Iterator[tuple[str, World]]:
        for who, caller in enumerate(world.callers):
            if caller.phase in (READY, SILENT):
                yield from self._send(world, who, caller)
            if caller.phase == SILENT:
                looks = self._calls[who].undo is not None
                yield f"{who} gives up", put(world, who, caller._replace(phase=LOOKING if looks else OVER))
            if caller.phase == LOOKING:
                yield self._look(world, who, caller)
        if world.copy is not None:
            yield self._arrive(world, world.copy)
        entry = world.place.entry
        if entry is not None and is_young(entry):
            aged = entry._replace(until=entry.until - PATIENCE * TICK)
            yield "two timeouts pass", world._replace(place=world.place._replace(entry=aged))

    def _send(self, world: World, who: int, caller: Caller) -> Iterator[tuple[str, World]]:
        ask = self._calls[who].again if caller.phase == SILENT else self._calls[who].sent
        after, reply = self._act(world, who, ask)
        heard = after.callers[who]._replace(phase=OVER, told=reply.code)
        yield f"{who} asks: {reply.code}", put(after, who, caller if reply == PENDING else heard)
        if world.losses:
            silent = after.callers[who]._replace(phase=SILENT)
            fewer = world.losses - 1
            yield f"{who} asks, no reply: {reply.code}", put(after, who, silent)._replace(losses=fewer)
            lost = put(world, who, caller._replace(phase=SILENT))._replace(losses=fewer)
            yield f"{who} asks, and it is lost", lost
            if world.copy is None and caller.phase == READY:
                yield f"{who} asks, and it is held back", lost._replace(copy=who)

    def _look(self, world: World, who: int, caller: Caller) -> tuple[str, World]:
        place, reply = step(world.place, self._calls[who].undo, NOW_US)
        looks = caller.looks - 1
        after = put(
            world._replace(place=place), who, caller._replace(phase=LOOKING if looks else OVER, looks=looks)
        )
        entry = world.place.entry
        if reply.code == "OK" and entry is not None and not is_young(entry):
            after = after._replace(excuse=world.excuse or LATE)
        return f"{who} takes back what it left: {reply.code}", after

    def _arrive(self, world: World, who: int) -> tuple[str, World]:
        after, reply = self._act(world, who, self._calls[who].sent)
        former = world.callers[who]
        acts = after.callers[who].effects > former.effects
        if acts and (former.phase == OVER or (former.phase == SILENT and former.effects)):
            after = after._replace(excuse=world.excuse or COPY)
        return f"the copy of {who} arrives: {reply.code}", after._replace(copy=None)

    def _act(self, world: World, who: int, ask: Any) -> tuple[World, Reply]:
        """Let the store execute a sending, and count its effect."""
        place, reply = step(world.place, ask, NOW_US)
        caller = world.callers[who]
        acted = caller._replace(effects=caller.effects + (place != world.place))
        return put(world._replace(place=place), who, acted), reply


def put(world: World, who: int, caller: Caller) -> World:
    return world._replace(callers=(*world.callers[:who], caller, *world.callers[who + 1 :]))


def is_young(entry: Entry) -> bool:
    """True until two timeouts after the id was remembered. No time passes here: instead the entry gets older."""
    return NOW_US // 1000 - (entry.until - WINDOW) < PATIENCE * TICK


# What must never happen; the rules hold at the end of a schedule


def one_transition_acts_once(names: Sequence[bytes], world: World) -> bool:
    return all(caller.effects <= 1 for caller in world.callers)


def a_caller_is_told_what_its_transition_did(names: Sequence[bytes], world: World) -> bool:
    """OK says that it acted, by this sending or a former one; UNSURE says nothing; all else, that it did not act."""
    return all(
        caller.told in ("", "UNSURE") or caller.effects == (caller.told == "OK") for caller in world.callers
    )


def one_call_is_the_first(names: Sequence[bytes], world: World) -> bool:
    """Only the call that has remembered the id was told OK."""
    entry = world.place.entry
    told = [name for name, caller in zip(names, world.callers, strict=True) if caller.told == "OK"]
    return told in ([], [entry.call] if entry else [])


def a_duplicate_is_of_a_call_that_stands(names: Sequence[bytes], world: World) -> bool:
    told = [caller.told for caller in world.callers]
    return "ALREADY" not in told or "OK" in told


def what_was_given_up_is_taken_back(names: Sequence[bytes], world: World) -> bool:
    entry = world.place.entry
    return entry is None or world.callers[names.index(entry.call)].told == "OK"


MOVE_RULES: Rules = (one_transition_acts_once, a_caller_is_told_what_its_transition_did)
FIRST_RULES: Rules = (
    one_call_is_the_first,
    a_duplicate_is_of_a_call_that_stands,
    what_was_given_up_is_taken_back,
)
