"""Tokens and state machines of synchronous code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..claim import Claim as AsyncClaim
from ..gateway import Dedup as AsyncDedup
from ..machine import StateMachine as AsyncStateMachine
from ..model import Outcome, Transition
from .claim import Claim
from .home import Bound


class Tokens:
    """Issue, consume and redeem one-time tokens, as `dedup.tokens`. See `fastdedup.tokens.Tokens`."""

    def __init__(self, gate: Bound[AsyncDedup]) -> None:
        self._gate = gate

    def issue(self, subject: Any = None, ttl: float | None = None) -> str:
        """Return a new token: URL-safe text of 192 random bits."""
        home, gate = self._gate.get()
        return home.run(lambda: gate.tokens.issue(subject, ttl), self._gate.root.seconds)

    def consume(self, token: str, subject: Any = None) -> Outcome:
        """Use a token up in one step: ACQUIRED once, then SUCCEEDED; MISMATCH for another subject; UNKNOWN."""
        home, gate = self._gate.get()
        return home.run(lambda: gate.tokens.consume(token, subject), self._gate.root.seconds)

    def redeem(
        self,
        token: str,
        subject: Any = None,
        *,
        lease: float | None = None,
        ttl: float | None = None,
        wait: float = 0.0,
        renew: bool = False,
    ) -> Claim:
        """Claim a token: do the work, then `complete(result)`, and a second click replays that result."""
        home, gate = self._gate.get()
        call = gate.tokens.redeem(token, subject, lease=lease, ttl=ttl, wait=wait, renew=renew)
        return Claim(home, home.run(lambda: call, self._gate.root.seconds + wait, take_back(gate)))


class StateMachine:
    """A checked definition; made by `dedup.machine(...)`. See `fastdedup.StateMachine`."""

    def __init__(self, machine: Bound[AsyncStateMachine]) -> None:
        self._machine = machine

    @property
    def name(self) -> str:
        """The machine's name."""
        return self._machine.latest.name

    @property
    def initial(self) -> str:
        """The state that a new instance is in."""
        return self._machine.latest.initial

    @property
    def states(self) -> frozenset[str]:
        """Every state."""
        return self._machine.latest.states

    def transition(self, id: str, *, to: str, version: int | None = None) -> Transition:
        """Move an instance to a state, in one atomic step: CHANGED, ALREADY, ILLEGAL or STALE."""
        home, machine = self._machine.get()
        return home.run(lambda: machine.transition(id, to=to, version=version), self._machine.root.seconds)

    def get(self, id: str) -> tuple[str, int]:
        """Return the state and version of an instance: (`initial`, 0) where nothing is remembered."""
        home, machine = self._machine.get()
        return home.run(lambda: machine.get(id), self._machine.root.seconds)


def take_back(gate: AsyncDedup) -> Callable[[AsyncClaim], None]:
    """Return what frees a claim whose caller was interrupted before it knew of it."""

    def release(claim: AsyncClaim) -> None:
        # A claim that the same named owner held before is that earlier call's to settle.
        if claim.acquired and claim.first_hand:
            gate.keep(claim.release())

    return release
