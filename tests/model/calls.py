"""Calls that act at once and hold nothing: `first` of a ledger and the transitions of a machine, in every order.

As in `interleavings.py`, a sending may lose its reply, get lost, or be held back; then its caller asks again or gives
up. A `first` that was given up is taken back by its nonce. A transition that was sent before says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from .windows import First, ForgetId, Place, step
from .words import Reply, Transition

NOW_US = 1_800_000_000_000_500
WINDOW, KEEP = 1000, 1000
READY, SILENT, OVER = "ready", "silent", "over"


class Call(NamedTuple):
    """One call: how it is sent for the first time and again, how it is taken back, and the name that it leaves."""

    sent: Any
    again: Any
    undo: Any
    name: bytes


def first(number: int) -> Call:
    nonce = b"call%d" % number
    asks = First(nonce, WINDOW)
    return Call(asks, asks, ForgetId(nonce), nonce)


def move(number: int, to: str, sources: str, version: int | None = None) -> Call:
    change = b"change%04d" % number
    states = frozenset(state.encode() for state in sources.split())
    sent, again = (
        Transition(change, to.encode(), states, b"new", KEEP, version, again) for again in (False, True)
    )
    return Call(sent, again, None, change)


class Caller(NamedTuple):
    """Who makes a call, and what is true of it."""

    phase: str = READY
    effects: int = 0
    told: str = ""
    gave_up: bool = False


class World(NamedTuple):
    """All that the rest of a schedule depends on."""

    place: Place
    callers: tuple[Caller, ...]
    copy: int | None
    """Whose sending is held back."""
    came_late: bool
    """The sending that was held back has had an effect."""
    losses: int


Rules = tuple[Callable[[Sequence[bytes], World], bool], ...]


class Orders:
    """All schedules of these calls, one by each caller. `losses`: sendings that get no reply, at most."""

    def __init__(self, calls: Sequence[Call], rules: Rules, losses: int) -> None:
        self._calls = calls
        self._rules = rules
        self._start = World(Place(), tuple(Caller() for _ in calls), None, False, losses)
        self._schedules: dict[World, int] = {}
        self._trace: list[str] = []
        self.accepted = 0
        """Worlds in which a rule is broken, because a sending was held back and came later."""

    @property
    def worlds(self) -> int:
        return len(self._schedules)

    def run(self) -> int:
        """Return the number of schedules; raises AssertionError with the first one that breaks a rule."""
        return self._follow(self._start)

    def _follow(self, world: World) -> int:
        if world in self._schedules:
            return self._schedules[world]
        self._judge(world)
        count = 0
        for what, after in self._moves(world):
            self._trace.append(what)
            count += self._follow(after)
            self._trace.pop()
        self._schedules[world] = count or 1
        return count or 1

    def _judge(self, world: World) -> None:
        names = [call.name for call in self._calls]
        broken = [rule.__name__.replace("_", " ") for rule in self._rules if not rule(names, world)]
        if broken and not world.came_late:
            raise AssertionError("\n".join([f"broken: {broken[0]}", *self._trace, str(world)]))
        self.accepted += bool(broken)

    def _moves(self, world: World) -> Iterator[tuple[str, World]]:
        for who, caller in enumerate(world.callers):
            if caller.phase != OVER:
                yield from self._send(world, who, caller)
            if caller.phase == SILENT:
                yield self._give_up(world, who, caller)
        if world.copy is not None:
            who = world.copy
            after, reply = self._act(world, who, self._calls[who].sent)
            late = after.callers[who].effects > world.callers[who].effects
            yield (
                f"the copy of {who} arrives: {reply.code}",
                after._replace(copy=None, came_late=world.came_late or late),
            )

    def _send(self, world: World, who: int, caller: Caller) -> Iterator[tuple[str, World]]:
        ask = self._calls[who].again if caller.phase == SILENT else self._calls[who].sent
        after, reply = self._act(world, who, ask)
        heard = after.callers[who]._replace(phase=OVER, told=reply.code)
        yield f"{who} asks: {reply.code}", put(after, who, heard)
        if world.losses:
            silent = after.callers[who]._replace(phase=SILENT)
            fewer = world.losses - 1
            yield f"{who} asks, no reply: {reply.code}", put(after, who, silent)._replace(losses=fewer)
            lost = put(world, who, caller._replace(phase=SILENT))._replace(losses=fewer)
            yield f"{who} asks, and it is lost", lost
            if world.copy is None and caller.phase == READY:
                yield f"{who} asks, and it is held back", lost._replace(copy=who)

    def _give_up(self, world: World, who: int, caller: Caller) -> tuple[str, World]:
        over = caller._replace(phase=OVER, gave_up=True)
        undo = self._calls[who].undo
        place = world.place if undo is None else step(world.place, undo, NOW_US)[0]
        return f"{who} gives up", put(world._replace(place=place), who, over)

    def _act(self, world: World, who: int, ask: Any) -> tuple[World, Reply]:
        """Let the store execute a sending, and count its effect."""
        place, reply = step(world.place, ask, NOW_US)
        caller = world.callers[who]
        acted = caller._replace(effects=caller.effects + (place != world.place))
        return put(world._replace(place=place), who, acted), reply


def put(world: World, who: int, caller: Caller) -> World:
    return world._replace(callers=(*world.callers[:who], caller, *world.callers[who + 1 :]))


# What must never happen


def one_call_acts_once(names: Sequence[bytes], world: World) -> bool:
    return all(caller.effects <= 1 for caller in world.callers)


def a_caller_is_told_what_its_call_did(names: Sequence[bytes], world: World) -> bool:
    """OK says that it acted, by this sending or a former one; UNSURE says nothing; all else, that it did not act."""
    return all(
        caller.told in ("", "UNSURE") or caller.effects == (caller.told == "OK") for caller in world.callers
    )


def one_call_is_the_first(names: Sequence[bytes], world: World) -> bool:
    """ALREADY is told only if another call was the first, or may have been."""
    told = [caller.told for caller in world.callers]
    others = any(caller.phase != READY and caller.told != "ALREADY" for caller in world.callers)
    return told.count("OK") <= 1 and ("ALREADY" not in told or others)


def what_was_given_up_is_taken_back(names: Sequence[bytes], world: World) -> bool:
    entry = world.place.entry
    return entry is None or not world.callers[names.index(entry.nonce)].gave_up


MOVE_RULES: Rules = (one_call_acts_once, a_caller_is_told_what_its_call_did)
FIRST_RULES: Rules = (*MOVE_RULES, one_call_is_the_first, what_was_given_up_is_taken_back)
