"""In no order of their operations, and with no fault, are clients told what is not true."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import combinations_with_replacement
from typing import Any, NamedTuple

import pytest

from . import interleavings, spec, words
from .interleavings import ACCEPTED, OVER, START_US, Client, Event, Play, Script, World, set_client
from .words import ISSUED, Record


def script(verbs: str, *, named: bool = False) -> Script:
    return Script(tuple(verbs.split()), named)


CLAIMS = (
    script("claim complete"),
    script("claim renew complete"),
    script("claim claim complete"),
    script("claim release"),
    script("claim complete", named=True),
    script("claim fail"),
    script("claim renew"),  # and then it dies
    script("claim release claim complete", named=True),
)
TOKENS = (
    script("redeem complete"),
    script("redeem release"),
    script("consume"),
    script("redeem consume", named=True),
    script("consume", named=True),
    script("redeem redeem renew complete"),
    script("consume consume"),
)
TOKEN = Record(
    ISSUED,
    b"\0" + b"i" * 10,
    fence=START_US - 1_000_000,
    until=START_US // 1000 + 1000,
    expires=START_US // 1000 + 1000,
    token=True,
)


class Cast(NamedTuple):
    """So many clients, each with any of these scripts, and the faults of a schedule."""

    scripts: Sequence[Script]
    record: Record | None
    clients: int
    losses: int
    leases: int
    worlds: int
    schedules: int
    accepted: tuple[int, ...]
    """How many ends of schedules are accepted, for each reason."""


CASTS = {
    "two claim": Cast(CLAIMS, None, 2, 2, 1, 300_953, 6_274_041, (1099, 1282, 0)),
    "two claim, and records expire": Cast(CLAIMS[:4], None, 2, 2, 2, 215_606, 7_538_100, (561, 0, 0)),
    "two use a token": Cast(TOKENS, TOKEN, 2, 2, 2, 262_276, 10_734_285, (797, 1760, 313)),
    "three claim": Cast(CLAIMS[:5], None, 3, 1, 1, 320_274, 4_411_856, (350, 130, 0)),
    "three use a token": Cast(TOKENS[:5], TOKEN, 3, 1, 1, 168_057, 1_098_761, (322, 1546, 229)),
}
"""A smaller number: something is no longer tried. A larger one, after a new move: write it here."""


def play(cast: Cast) -> tuple[int, int, Counter[str]]:
    """Return the number of worlds and of schedules, and what was accepted how often."""
    worlds, schedules, accepted = 0, 0, Counter[str]()
    for scripts in combinations_with_replacement(cast.scripts, cast.clients):
        game = Play(scripts, cast.record, losses=cast.losses, copies=1, leases=cast.leases)
        schedules += game.run()
        worlds += game.worlds
        accepted += game.accepted
    return worlds, schedules, accepted


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", CASTS)
def test_no_client_is_told_what_is_not_true(name: str) -> None:
    cast = CASTS[name]
    worlds, schedules, accepted = play(cast)
    counts = tuple(accepted[reason] for reason in ACCEPTED)
    assert (worlds, schedules, counts) == (cast.worlds, cast.schedules, cast.accepted)


# The rules can fail


def ignores_the_fence(record: Record | None, ask: Any) -> bool:
    return record is not None and record.owner == ask.owner


def keeps_the_fence(former: Record | None, ask: Any, now: Any) -> spec.Next:
    record, reply = ACQUIRE(former, ask, now)
    fence = former.fence if former else now.us
    return record._replace(fence=fence), reply._replace(fence=fence)


def consumes_nothing(record: Record, ask: Any, now: Any) -> spec.Next:
    return record, spec.acquired(record, now)._replace(fresh=False)


def knows_no_owner(record: Record, ask: Any, now: Any) -> spec.Next:
    return record, spec.met("IN_PROGRESS", record, now)


def forgets_what_is_settled(record: Record | None, ask: Any, now: Any) -> spec.Next:
    settled = record is not None and record.state in words.SETTLED
    return ACQUIRE(record, ask, now) if settled else CLAIM(record, ask, now)


def removes_what_it_releases(record: Record | None, ask: Any, now: Any) -> spec.Next:
    freed, reply = RELEASE(record, ask, now)
    return (None if reply == words.OK else freed), reply


ACQUIRE, CLAIM, RELEASE = spec.acquire, spec.claim, spec.release
LATE_USE = "a `consume` that was given up is taken back later than two timeouts after it was done"
COMPLETES, RELEASES, TWICE = CLAIMS[0], CLAIMS[3], CLAIMS[7]
FAULTS: dict[str, tuple[str, Any, Script, str]] = {
    "a stale owner may act": ("is_owner", ignores_the_fence, TWICE, "a reply is true"),
    "a lease ends at once": ("is_live", lambda *_: False, COMPLETES, "there is one live owner"),
    "a lease never ends": (
        "is_live",
        lambda record, _: record.state in words.HELD,
        COMPLETES,
        "a reply is true",
    ),
    "a fence stays": ("acquire", keeps_the_fence, COMPLETES, "fences rise"),
    "a release removes": ("release", removes_what_it_releases, RELEASES, "fences rise"),
    "a consume does nothing": ("consume_own", consumes_nothing, TOKENS[3], "a reply is true"),
    "an owner is not known": ("own_claim_back", knows_no_owner, COMPLETES, "an owner is never its own rival"),
    "a success is forgotten": ("claim", forgets_what_is_settled, COMPLETES, "settled stays settled"),
}
"""What is put wrong in the spec, a script for each of two clients, and the rule that is broken."""


@pytest.mark.parametrize("seeded", FAULTS)
def test_a_faulty_contract_breaks_a_rule(seeded: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, fault, script, rule = FAULTS[seeded]
    right = getattr(spec, name)
    monkeypatch.setattr(spec, name, fault)
    for operation, found in spec.RULE_OF.items():
        if found is right:
            monkeypatch.setitem(spec.RULE_OF, operation, fault)
    monkeypatch.setattr(interleavings, "step", spec.step)
    record = TOKEN if script in TOKENS else None
    with pytest.raises(AssertionError, match=f"broken: {rule}"):
        Play((COMPLETES if script == TWICE else script, script), record, losses=2, copies=1, leases=2).run()


@pytest.mark.parametrize(("careless", "losses"), [("_give_up", 1), ("_free", 2)])
def test_what_is_not_taken_back_breaks_a_rule(
    careless: str, losses: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that does not take back what it gave up; one that does, and does not look for a late copy."""
    right = getattr(Play, careless)

    def leave(game: Play, world: World, who: int, client: Client) -> tuple[Event, World]:
        event, after = right(game, world, who, client)
        return event, set_client(after, who, after.clients[who]._replace(phase=OVER))

    monkeypatch.setattr(Play, careless, leave)
    with pytest.raises(AssertionError, match="broken: nothing is held for nobody"):
        Play((COMPLETES, COMPLETES), None, losses=losses, copies=losses - 1, leases=0).run()


@pytest.mark.parametrize("other", [TOKENS[0], TOKENS[2]], ids=["redeem", "consume"])
def test_a_call_that_does_not_wait_breaks_a_rule(other: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told of a use that is taken back a moment later."""
    monkeypatch.setattr(interleavings, "is_young", lambda fence, world: False)
    monkeypatch.setitem(ACCEPTED, LATE_USE, ACCEPTED[LATE_USE]._replace(rules=()))
    with pytest.raises(AssertionError, match="broken: a duplicate is of work that was done"):
        Play((TOKENS[2], other), TOKEN, losses=1, copies=0, leases=0).run()
