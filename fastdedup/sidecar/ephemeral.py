"""EPHEMERAL claims: they end with the connection of the client that holds them.

If the client goes, its claims are released. If the sidecar goes, the claims keep their leases, because their clients
live: a client that connects again within the lease gets its claims back by its owner's name.
"""

from __future__ import annotations

from math import inf
from time import monotonic
from typing import Final

from ..errors import ConfigError
from ..gateway import Dedup
from ..kernel.operations import OwnerOp, RenewOp
from ..kernel.verbs import Effect, Verb
from .limits import LimitError, Limits
from .releases import Holding, ReleaseQueue

_ENDING: Final = tuple(verb for verb in Verb if verb.row.effect is Effect.FREES)
"""Verbs after which a client holds the key no more."""


class EphemeralClaims:
    """The EPHEMERAL claims of all clients of a sidecar.

    Args:
        limits: those of these clients.
        beside: the claims of all sockets, if these are the claims of one socket with limits of its own.

    Attributes:
        releases: those of clients that have gone.
        count: how many clients hold.
    """

    def __init__(self, limits: Limits, beside: EphemeralClaims | None = None) -> None:
        self.limits = limits
        self.beside = beside
        self.releases: ReleaseQueue = ReleaseQueue() if beside is None else beside.releases
        # Mutable: how many claims clients hold or ask for; for each claim, the client that holds it. Its owner may
        # come back over another connection.
        # For all sockets together: the clients that hold claims, and when the first of these claims may have ended.
        self.count = 0
        self.holders: dict[Holding, Holdings] = {} if beside is None else beside.holders
        self.clients: set[Holdings] = set() if beside is None else beside.clients
        self._ends = inf

    @property
    def full(self) -> Limits | None:
        """The limits that are reached, of these clients or of all; None while there is room."""
        if self.count >= self.limits.ephemeral_in_all:
            return self.limits
        return None if self.beside is None else self.beside.full

    def grow(self, more: int) -> None:
        """Count claims, or fewer claims."""
        self.count += more
        if self.beside is not None:
            self.beside.grow(more)

    def ends_at(self, ends: float) -> None:
        """Take note of when a claim's lease ends, by `time.monotonic()`."""
        if self.beside is not None:
            self.beside.ends_at(ends)
        else:
            self._ends = min(self._ends, ends)

    def forget_ended(self) -> None:
        """Forget the claims of all clients whose leases have ended; they are free."""
        if self.beside is not None:
            self.beside.forget_ended()
        elif monotonic() >= self._ends:
            for client in list(self.clients):
                client.forget_ended()
            self._ends = min((client.ends for client in self.clients), default=inf)

    def claimed_again(self, holding: Holding) -> None:
        """Leave alone a claim whose client has gone: its owner asks for it again, or has won it."""
        dedup, wire, owner = holding
        self.releases.keep(holding)
        dedup.gate.leave_to_owner(wire, owner)

    def won_again(self, holding: Holding, client: Holdings | None) -> None:
        """Leave alone a claim that its owner has won: it ends with no connection but `client`."""
        self.claimed_again(holding)
        former = self.holders.get(holding)
        if former is not None and former is not client:
            former.remove(holding)

    def changed(self, dedup: Dedup, op: OwnerOp) -> None:
        """Note what an owner has done to its claim, over any connection: the claim may be EPHEMERAL."""
        holding = (dedup, op.wire, op.owner)
        holder = self.holders.get(holding)
        if holder is None:
            return
        if isinstance(op, RenewOp):
            holder.hold(holding, op.lease_ms)
        elif op.verb in _ENDING:
            holder.remove(holding)


class Holdings:
    """The EPHEMERAL claims of one client."""

    __slots__ = ("_all", "_asked", "_doubts", "_gone", "_left", "claims", "ends")

    def __init__(self, everybody: EphemeralClaims) -> None:
        self._all = everybody
        # Mutable: the claims, each with the end of its lease by `time.monotonic()`; how many the client asks for.
        self.claims: dict[Holding, float] = {}
        self.ends = inf
        """When the first lease may have ended."""
        self._asked = 0
        # Mutable: the claims that the client may have won, of which it has no answer; has the client gone; or are its
        # claims left to their leases.
        self._doubts: set[Holding] = set()
        self._gone = False
        self._left = False

    @property
    def any_held(self) -> bool:
        """True while the client has a claim whose lease has not ended. Its owner may still renew an ended one."""
        now = monotonic()
        return any(ends > now for ends in self.claims.values())

    def ask(self) -> None:
        """Count a claim that the client asks for; `answered` ends that.

        Raises:
            ConfigError: the client has reached the limit of one client.
            LimitError: all clients together have reached their limit.
        """
        limits = self._all.limits
        if len(self.claims) + self._asked >= limits.ephemeral:
            self.forget_ended()
            if len(self.claims) + self._asked >= limits.ephemeral:
                raise ConfigError(
                    f"this connection has {limits.ephemeral} EPHEMERAL claims, the most that it may have "
                    "(limits.ephemeral): settle or release some, or claim without EPHEMERAL"
                )
        if self._all.full is not None:
            self._all.forget_ended()
            reached = self._all.full
            if reached is not None:
                raise LimitError(
                    f"all connections have {reached.ephemeral_in_all} EPHEMERAL claims, the most that they may have "
                    "(limits.ephemeral_in_all): try later, or claim without EPHEMERAL"
                )
        self._asked += 1
        self._all.grow(1)

    def answered(self) -> None:
        """Take note that a claim that was asked for has its answer, whatever that is."""
        if self._asked:  # 0 once the client has gone
            self._asked -= 1
            self._all.grow(-1)

    def doubt(self, holding: Holding, lease_ms: int) -> None:
        """Take a claim of a chosen owner that the client may have won: the store did not answer, or not in time.

        The store may find it later. Such claims take half of the room at most, so that others find some.
        """
        limits = self._all.limits
        if holding in self._all.holders:
            return  # it was won before, by this connection or by another one
        if self._gone:
            free_if_held(holding)
        elif (
            not self._left
            and 2 * len(self.claims) < limits.ephemeral
            and 2 * self._all.count < limits.ephemeral_in_all
        ):
            self.add(holding, lease_ms)
            self._doubts.add(holding)

    def add(self, holding: Holding, left_ms: int) -> None:
        """Take a claim that the client has won."""
        self._doubts.discard(holding)
        self._all.won_again(holding, self)
        self._all.holders[holding] = self
        if holding not in self.claims:
            self._all.grow(1)
            self._all.clients.add(self)
        self.hold(holding, left_ms)

    def hold(self, holding: Holding, left_ms: int) -> None:
        """Take note of when a claim's lease ends."""
        ends = self.claims[holding] = monotonic() + left_ms / 1000
        self.ends = min(self.ends, ends)
        self._all.ends_at(ends)

    def remove(self, holding: Holding) -> None:
        """Forget a claim that is settled, or that another connection holds now."""
        if self.claims.pop(holding, None) is not None:
            self._all.grow(-1)
            self._doubts.discard(holding)
            if not self.claims:
                self._all.clients.discard(self)
            if self._all.holders.get(holding) is self:
                del self._all.holders[holding]

    def release(self) -> None:
        """Release every claim: the client has gone."""
        self._gone = True
        for holding in list(self._doubts):
            self.remove(holding)
            free_if_held(holding)
        self._all.releases.add(self.claims)
        self.leave()

    def leave(self) -> None:
        """Leave every claim to its lease."""
        self._left = True
        for holding in list(self.claims):
            self.remove(holding)
        self._all.grow(-self._asked)
        self._asked = 0

    def forget_ended(self) -> None:
        """Forget the claims whose leases have ended, to make room. One that is renewed later keeps its lease."""
        now = monotonic()
        if now < self.ends:
            return
        for holding, ends in list(self.claims.items()):
            if ends <= now:
                self.remove(holding)
        self.ends = min(self.claims.values(), default=inf)


def free_if_held(holding: Holding) -> None:
    """Free a claim that its client may have won, as soon as the store answers; no other owner's."""
    dedup, wire, owner = holding
    dedup.gate.free_if_held(wire, owner)
