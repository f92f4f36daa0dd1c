"""What clients do next, drawn from a seed alone and never from an answer: so a seed replays the same steps."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from .history import SECOND

KEYS = 3
"""Keys of a kind that are in use at once."""
NAMED = 6
"""Keys of a generation that are claimed under one name by all processes."""
TTL, SHORT_TTL, TOKEN_TTL, LONG_LEASE = 30.0, 0.4, 20.0, 25.0

KINDS = {"settle": 30, "churn": 22, "again": 10, "lock": 10, "cancel": 8, "many": 4, "token": 16}
KINDS |= {"named": 8, "machine": 8, "giveup": 5, "burn": 4, "ledger": 24}
"""What a step is, and how often; a fault may have a mix of its own."""
ENDS = {"complete": 52, "fail": 10, "release": 14, "renewed": 12, "abandon": 5, "overstay": 7}


CIRCLES = {"lamp": ("off", "on"), "signal": ("red", "green", "amber")}
"""Machines that go round: each state leads to the next one, the last to the first."""


def circle_of(key: str) -> tuple[str, ...]:
    """Return the states of the machine that a key names: "policy/machine/NAME/id"."""
    return CIRCLES[key.split("/")[2]]


def state_at(key: str, version: int) -> str:
    """Return the state in which so many moves end."""
    states = circle_of(key)
    return states[version % len(states)]


@dataclass(slots=True)
class Step:
    """What a client does next. Times in seconds."""

    kind: str
    end: str
    slot: int
    hold: float
    lease: float
    wait: float
    ttl: float
    pause: float
    use: float
    """0 to 1: which of the tokens that are known, and what to do with it."""


def draw_step(draw: random.Random, kinds: Mapping[str, int] = KINDS) -> Step:
    """Draw a step; always the same number of draws, whatever they are. `kinds`: how often each kind comes."""
    kind, end = (draw.choices(list(table), list(table.values()))[0] for table in (kinds, ENDS))
    return Step(
        kind,
        end,
        slot=draw.randrange(KEYS),
        hold=draw.choice((0.0, 0.002, 0.01, 0.03)),
        lease=draw.choice((0.15, 0.25, 0.4)),
        wait=draw.choice((0.0, 0.0, 0.0, 0.1)),
        ttl=draw.choice((TTL, TTL, TTL, SHORT_TTL)),
        pause=draw.uniform(0.002, 0.012),
        use=draw.random(),
    )


def terms(step: Step, ttl: float | None = None) -> dict[str, int]:
    """Return what an event says of a claim's terms, in ns."""
    return {
        "lease": round(step.lease * SECOND),
        "ttl": round((step.ttl if ttl is None else ttl) * SECOND),
    }
