"""State machines in the store. An order is paid once, for any number of callers and calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from .checks import Seconds, check_count, milliseconds
from .core.audit import check_reason, tell_forgotten
from .core.gate import Gate
from .errors import ConfigError, UnknownTransitionError, foreign
from .kernel.codes import Code
from .kernel.keyspace import Kind
from .kernel.operations import ForgetOp, ReadOp, TransitionOp
from .kernel.owners import draw_owner
from .kernel.records import MAX_FENCE, Stored
from .kernel.replies import TransitionReply
from .model import Transition, TransitionOutcome

Transitions = Mapping[str, Iterable[str]]

_OUTCOMES = {
    Code.OK: TransitionOutcome.CHANGED,
    Code.ALREADY: TransitionOutcome.ALREADY,
    Code.ILLEGAL: TransitionOutcome.ILLEGAL,
    Code.STALE: TransitionOutcome.STALE,
}
MAX_STATE_BYTES = 64


class StateMachine:
    """The definition of a machine, checked; `dedup.machine(...)` makes it. An id names an instance.

    Args:
        transitions: for each state the states that may follow it; an empty tuple for a final state: `"paid": ()`.
        ttl: seconds for which an instance is remembered after its last change; then it is `initial` again.

    Raises:
        ConfigError: a state is not defined, or no transition leads to it; the message names the state.
    """

    name: str
    """The machine's name."""
    initial: str
    """The state of a new instance."""
    states: frozenset[str]
    """Every state."""

    def __init__(
        self, gate: Gate, name: str, *, initial: str, transitions: Transitions, ttl: Seconds
    ) -> None:
        moves = read_definition(name, initial, transitions)
        self.name = name
        self.initial = initial
        self.states = frozenset(moves)
        self._gate = gate
        self._keyspace = gate.keyspace(Kind.MACHINE)
        self._keep_ms = milliseconds(ttl, "ttl")
        self._sources = {
            to: frozenset(state for state, targets in moves.items() if to in targets) for to in moves
        }

    async def transition(self, id: str, *, to: str, version: int | None = None) -> Transition:
        """Move an instance to a state, in one atomic step. A new instance starts in `initial`, version 0.

        One call moves an instance at most once, also if its reply is lost and it is sent again. Its change
        may then be hidden by the changes of other calls; with `version=` that call can be repeated without
        harm, because it moves from that version only. Without it, one case is left: a proxy between here and Redis
        that delivers the first sending after the second, after other calls have moved the instance.

        Args:
            id: names the instance.
            to: the wanted state.
            version: move only from this version, which `get` or an earlier call returned; None for any version.

        Returns:
            The outcome, with the present state and version. CHANGED: this call moved the instance. ALREADY: it
            was in that state before (a duplicate). ILLEGAL: the definition does not allow this move from the
            present state. STALE: the instance moved on from `version`.

        Raises:
            ConfigError: the machine has no such state, or the version is not a whole number or too large.
            UnavailableError: neither the store nor the policy answered.
            UnknownTransitionError: the reply was lost, and other calls moved the machine since, so it is
                unknown whether this call moved it too.
        """
        if not isinstance(to, str) or to not in self._sources:
            raise ConfigError(f"{self.name!r} has no state {to!r}; it has {_listed(self.states)}")
        if version is not None:
            check_count(version, "version", least=0, most=MAX_FENCE)
        op = TransitionOp(
            self.store_key(id),
            to=to,
            initial=self.initial,
            sources=self._sources[to],
            version=version,
            change=draw_owner()[1:],
            keep_ms=self._keep_ms,
        )
        moved = await self._gate.run(op)
        if not isinstance(moved, TransitionReply) or moved.code is Code.FOREIGN:
            raise foreign(id)
        if moved.code is Code.UNSURE:
            raise _unknown(id, op, moved)
        return Transition(
            _OUTCOMES[moved.code], moved.state, moved.version, moved.degraded, not moved.underreplicated
        )

    async def get(self, id: str) -> tuple[str, int]:
        """Return the state and version of an instance: (`initial`, 0) if the store has no record of it."""
        reply = await self._gate.run(ReadOp(self.store_key(id)))
        if reply == Code.ABSENT:
            return self.initial, 0
        if not isinstance(reply, Stored) or reply.state != "M":
            raise foreign(id)
        return reply.payload.decode(), reply.fence

    async def forget(self, id: str, *, reason: str | None = None) -> bool:
        """Remove the record of an instance, which is then `initial` again; return False if there was none.

        It leaves a `KeyForgotten` event with the caller and the reason; `reason`: up to 256 characters.
        """
        why, wire, gate = check_reason(reason), self.store_key(id), self._gate
        found: bool | None = None
        try:
            found = await gate.run(ForgetOp(wire, why)) == Code.OK
        finally:
            tell_forgotten(gate, "machine", self.name + "/" + id, found, why)
        return found

    def store_key(self, id: str) -> bytes:
        """Return the key of an instance in the store. Raises InvalidKeyError if the id cannot be used."""
        # A name has no "/", so ("a", "b/c") and ("a/b", "c") are never the same key.
        self._keyspace.wire(id)
        return self._keyspace.wire(self.name + "/" + id)


def read_definition(name: str, initial: str, transitions: Transitions) -> dict[str, tuple[str, ...]]:
    """Return each state with the states that may follow it.

    Raises:
        ConfigError: the definition contradicts itself; the message names the state.
    """
    if not isinstance(name, str) or not name or "/" in name or len(name) > MAX_STATE_BYTES:
        raise ConfigError(
            f"a machine's name must be text of 1 to {MAX_STATE_BYTES} characters without '/', got {name!r}"
        )
    if not isinstance(transitions, Mapping):
        raise ConfigError(
            f"transitions must map each state to the states that may follow it, got {transitions!r}"
        )
    check_state(initial)
    moves = {state: read_targets(state, targets) for state, targets in transitions.items()}
    states = set(moves)
    if initial not in states:
        raise ConfigError(
            f"the initial state {initial!r} is not one of the states {_listed(states)}: define it"
        )
    unknown = {target for targets in moves.values() for target in targets} - states
    if unknown:
        raise ConfigError(
            f"unknown states {_listed(unknown)}: define each, a final state as {sorted(unknown)[0]!r}: ()"
        )
    if unreachable := states - reachable(initial, moves):
        raise ConfigError(
            f"unreachable states {_listed(unreachable)}: no transition leads there from {initial!r}; add one, "
            "or remove the state"
        )
    return moves


def read_targets(state: str, targets: Iterable[str]) -> tuple[str, ...]:
    """Return the states that may follow `state`, each checked."""
    check_state(state)
    if isinstance(targets, str):
        raise ConfigError(f"the targets of {state!r} must be a tuple: write ({targets!r},)")
    try:
        followers = tuple(targets)
    except TypeError:
        raise ConfigError(f"the targets of {state!r} must be a tuple of states, got {targets!r}") from None
    for follower in followers:
        check_state(follower)
    return followers


def check_state(state: str) -> None:
    """Raise ConfigError unless `state` is text that a record can hold."""
    # UTF-8 cannot hold lone surrogates, so no store can.
    size = len(state.encode(errors="ignore")) if isinstance(state, str) else 0
    whole = isinstance(state, str) and state.encode(errors="ignore").decode() == state
    if not whole or not 0 < size <= MAX_STATE_BYTES or "\n" in state:
        raise ConfigError(
            f"a state must be text of 1 to {MAX_STATE_BYTES} bytes without line feeds, got {state!r}"
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


def _unknown(id: str, op: TransitionOp, moved: TransitionReply) -> UnknownTransitionError:
    advice = "decide again by these"
    if op.version is None:
        advice = "pass version= to a call that you may have to repeat"
    return UnknownTransitionError(
        f"whether this call moved {id!r} to {op.to!r} is unknown: the reply was lost, and other calls moved it "
        f"since, to {moved.state!r} (version {moved.version}); {advice}",
        state=moved.state,
        version=moved.version,
    )


def _listed(states: Iterable[str]) -> str:
    return ", ".join(repr(state) for state in sorted(states))
