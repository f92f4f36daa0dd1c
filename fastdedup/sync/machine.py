"""State machines for synchronous code."""

from __future__ import annotations

from ..machine import StateMachine as AsyncStateMachine
from ..model import Transition
from .background import Bound


class StateMachine:
    """A state machine's definition, which `dedup.machine(...)` makes. See `fastdedup.StateMachine`."""

    def __init__(self, machine: Bound[AsyncStateMachine]) -> None:
        self.bound = machine
        """For integrations: `background, machine = bound.get()` returns this process's asyncio `StateMachine`."""

    # The rest of the class is written by scripts/write_sync.py, which `make format` runs.

    @property
    def name(self) -> str:
        """The machine's name."""
        return self.bound.latest.name

    @property
    def initial(self) -> str:
        """The state of a new instance."""
        return self.bound.latest.initial

    @property
    def states(self) -> frozenset[str]:
        """Every state."""
        return self.bound.latest.states

    def transition(self, id: str, *, to: str, version: int | None = None) -> Transition:
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
        return self.bound.run(lambda it: it.transition(id, to=to, version=version))

    def get(self, id: str) -> tuple[str, int]:
        """Return the state and version of an instance: (`initial`, 0) if the store has no record of it."""
        return self.bound.run(lambda it: it.get(id))

    def forget(self, id: str, *, reason: str | None = None) -> bool:
        """Remove the record of an instance, which is then `initial` again; return False if there was none.

        It leaves a `KeyForgotten` event with the caller and the reason; `reason`: up to 256 characters.
        """
        return self.bound.run(lambda it: it.forget(id, reason=reason))
