"""State machines in the store: an order that is paid once, whoever says so and however often."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from .checks import check_count, milliseconds
from .errors import ConfigError, UnavailableError, foreign
from .gate.namespace import Namespace
from .model import Transition, TransitionOutcome
from .protocol.keyspace import Kind
from .protocol.operations import Code, Moved, ReadOp, Stored, TransitionOp
from .protocol.owners import draw_owner

Transitions = Mapping[str, Iterable[str]]

_OUTCOMES = {
    Code.OK: TransitionOutcome.CHANGED,
    Code.ALREADY: TransitionOutcome.ALREADY,
    Code.ILLEGAL: TransitionOutcome.ILLEGAL,
    Code.STALE: TransitionOutcome.STALE,
}
MAX_STATE_BYTES = 64


class StateMachine:
    """A checked definition; made by `dedup.machine(...)`. Instances are named by their id.

    Args:
        transitions: for each state those that may follow it; a final state has none: `"paid": ()`.
        ttl: seconds after its last change that an instance is remembered; then it is `initial` again.

    Raises:
        ConfigError: a state that is not defined, or that nothing leads to; the message names it.
    """

    def __init__(
        self, namespace: Namespace, name: str, *, initial: str, transitions: Transitions, ttl: float
    ) -> None:
        moves = read_definition(name, initial, transitions)
        self.name = name
        self.initial = initial
        self.states = frozenset(moves)
        self._namespace = namespace
        self._keyspace = namespace.keyspace(Kind.MACHINE)
        self._keep_ms = milliseconds(ttl, "ttl")
        self._sources = {
            to: frozenset(state for state, targets in moves.items() if to in targets) for to in moves
        }

    async def transition(self, id: str, *, to: str, version: int | None = None) -> Transition:
        """Move an instance to a state, in one atomic step. A new instance starts in `initial`, version 0.

        Args:
            id: names the instance.
            to: the wanted state.
            version: act only on this version, as read before; None for any.

        Returns:
            CHANGED; ALREADY there (a duplicate); ILLEGAL from the present state; STALE: it moved on
            from `version`. Always with the present state and version.

        Raises:
            ConfigError: no such state, or a version that is no whole number.
            UnavailableError: neither the store nor the policy answered; or the reply was lost, and the
                machine has moved since, so that nobody can tell whether this call took part in that.
        """
        if not isinstance(to, str) or to not in self._sources:
            raise ConfigError(f"{self.name!r} has no state {to!r}; it has {_listed(self.states)}")
        if version is not None:
            check_count(version, "version", least=0)
        op = TransitionOp(
            self._wire(id),
            to=to,
            initial=self.initial,
            sources=self._sources[to],
            version=version,
            change=draw_owner()[1:],
            keep_ms=self._keep_ms,
        )
        moved = await self._namespace.ask.run(op)
        if not isinstance(moved, Moved) or moved.code is Code.FOREIGN:
            raise foreign(id)
        if op.unsure and moved.code is not Code.OK:
            # The record names its last change alone: had ours been followed by another, it would look like this.
            raise UnavailableError(
                f"whether {id!r} was moved to {to!r} is unknown: the reply was lost, and it stands at "
                f"{moved.state!r} (version {moved.version}) by now; pass version= to be told for certain"
            )
        return Transition(_OUTCOMES[moved.code], moved.state, moved.version, moved.degraded, not moved.short)

    async def get(self, id: str) -> tuple[str, int]:
        """Return the state and version of an instance: (`initial`, 0) where nothing is remembered."""
        reply = await self._namespace.ask.run(ReadOp(self._wire(id)))
        if reply == Code.ABSENT:
            return self.initial, 0
        if not isinstance(reply, Stored) or reply.state != "M":
            raise foreign(id)
        return reply.payload.decode(), reply.fence

    def _wire(self, id: str) -> bytes:
        # A name holds no "/", so ("a", "b/c") and ("a/b", "c") cannot meet.
        self._keyspace.wire(id)
        return self._keyspace.wire(f"{self.name}/{id}")


def read_definition(name: str, initial: str, transitions: Transitions) -> dict[str, tuple[str, ...]]:
    """Return each state with those that may follow it.

    Raises:
        ConfigError: it cannot be meant so; the message names the state.
    """
    if not isinstance(name, str) or not name or "/" in name or len(name) > MAX_STATE_BYTES:
        raise ConfigError(
            f"a machine's name is text of 1 to {MAX_STATE_BYTES} characters without '/', not {name!r}"
        )
    if not isinstance(transitions, Mapping):
        raise ConfigError(f"transitions maps each state to those that may follow it, not {transitions!r}")
    moves = {state: read_targets(state, targets) for state, targets in transitions.items()}
    states = set(moves)
    if initial not in states:
        raise ConfigError(f"the initial state {initial!r} is not among the states {_listed(states)}")
    unknown = {target for targets in moves.values() for target in targets} - states
    if unknown:
        raise ConfigError(
            f"unknown states {_listed(unknown)}: define each, a final one as {sorted(unknown)[0]!r}: ()"
        )
    if unreachable := states - reachable(initial, moves):
        raise ConfigError(f"unreachable states {_listed(unreachable)}: nothing leads there from {initial!r}")
    return moves


def read_targets(state: str, targets: Iterable[str]) -> tuple[str, ...]:
    """Return the states that may follow `state`, each checked."""
    check_state(state)
    if isinstance(targets, str):
        raise ConfigError(f"the targets of {state!r} must be a tuple: write ({targets!r},)")
    try:
        followers = tuple(targets)
    except TypeError:
        raise ConfigError(f"the targets of {state!r} must be a tuple of states, not {targets!r}") from None
    for follower in followers:
        check_state(follower)
    return followers


def check_state(state: str) -> None:
    """Raise ConfigError unless `state` is text that a record can hold."""
    # Lone surrogates are lost on the way to UTF-8 and back: no store can hold them.
    size = len(state.encode(errors="ignore")) if isinstance(state, str) else 0
    whole = isinstance(state, str) and state.encode(errors="ignore").decode() == state
    if not whole or not 0 < size <= MAX_STATE_BYTES or "\n" in state:
        raise ConfigError(
            f"a state is text of 1 to {MAX_STATE_BYTES} bytes without line feeds, not {state!r}"
        )


def reachable(initial: str, transitions: Transitions) -> set[str]:
    """Return the states that can be reached from `initial`, itself included."""
    found = {initial}
    ahead = [initial]
    while ahead:
        for target in transitions[ahead.pop()]:
            if target not in found:
                found.add(target)
                ahead.append(target)
    return found


def _listed(states: Iterable[str]) -> str:
    return ", ".join(repr(state) for state in sorted(states))
