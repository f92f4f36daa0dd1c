"""State machines for synchronous code."""

from __future__ import annotations

from ..machine import StateMachine as AsyncStateMachine
from ..model import Transition
from .background import Bound


class StateMachine:
    """A state machine's definition, which `dedup.machine(...)` makes. See `fastdedup.StateMachine`."""

    def __init__(self, machine: Bound[AsyncStateMachine]) -> None:
        self._machine = machine

    @property
    def name(self) -> str:
        """The machine's name."""
        return self._machine.latest.name

    @property
    def initial(self) -> str:
        """The state of a new instance."""
        return self._machine.latest.initial

    @property
    def states(self) -> frozenset[str]:
        """Every state."""
        return self._machine.latest.states

    def transition(self, id: str, *, to: str, version: int | None = None) -> Transition:
        """Move an instance to a state in one atomic step; the outcome is CHANGED, ALREADY, ILLEGAL or STALE."""
        background, machine = self._machine.get()
        return background.run(
            lambda: machine.transition(id, to=to, version=version), self._machine.per_process.seconds
        )

    def get(self, id: str) -> tuple[str, int]:
        """Return the state and the version of an instance; (`initial`, 0) for an unknown one."""
        background, machine = self._machine.get()
        return background.run(lambda: machine.get(id), self._machine.per_process.seconds)

    def forget(self, id: str, *, reason: str | None = None) -> bool:
        """Remove the record of an instance, which is then `initial` again; return False where there was none."""
        background, machine = self._machine.get()
        return background.run(lambda: machine.forget(id, reason=reason), self._machine.per_process.seconds)
