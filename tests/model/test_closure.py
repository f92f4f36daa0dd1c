"""Each store does what the spec does, on every record that a key can hold."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest

from fastdedup.stores import base

from ..fixtures import fixture_with
from . import outage, spec, windows, words
from .closure import (
    ADOPTIONS,
    AHEAD,
    CLAIMS,
    DENSE,
    FENCE,
    ISSUER,
    KEEP,
    LEDGERS,
    MACHINES,
    MOVES_ELSEWHERE,
    A,
    Alphabet,
    Closure,
    Side,
    chosen,
)
from .sides import NOW_MS, Case, FakeSide, FarEndSide, MemorySide, Outcome, PolicySide, ServerSide
from .windows import Place
from .words import MAX_ATTEMPT, WORKING, Record

VALKEY_SCRIPT = Path(__file__).parents[2] / ".ci" / "valkey.sh"


class Scene(NamedTuple):
    """Operations on one key, and what they reach. `width`: of the digests of a ledger; 0 if there is none."""

    alphabet: Alphabet
    width: int
    places: int
    transitions: int


SCENES = {
    "claims and tokens": Scene(ADOPTIONS, 0, 1913, 419_900),
    "machines": Scene(MOVES_ELSEWHERE, 0, 21, 816),
    "a ledger and its claims": Scene(LEDGERS, 7, 711, 106_568),
    "a dense ledger": Scene(DENSE, 9, 9, 280),
}
"""A smaller number: a place is no longer reached. A larger one, after a new line of the alphabet: write it here."""
IN_AN_OUTAGE = {
    "claims and tokens": Scene(CLAIMS, 0, 1604, 237_575),
    "machines": Scene(MACHINES, 0, 17, 533),
}

SAMPLED = {"fakeredis": 53, "far end": 17, "LocalLRU": 7}
"""Sides that execute each so many-th case: fakeredis takes ten times as long as a server, the far end is the spec."""
if os.environ.get("MODEL_DEPTH") == "quick":
    SAMPLED |= {"memory": 7, "redis": 7}

SIDES = os.environ.get("MODEL_SIDES", "memory,redis,valkey,fakeredis,far end").split(",")
"""What is compared with the spec. `make mutants` names the one side that executes a mutant's file."""


server = fixture_with(lambda: closing(ServerSide()), scope="module")


@pytest.fixture(scope="module")
def valkey() -> Iterator[ServerSide]:
    binary = os.environ.get("VALKEY") or subprocess.check_output([VALKEY_SCRIPT], text=True)
    with closing(ServerSide("valkey", binary.strip())) as side:
        yield side


@pytest.fixture
def made(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> dict[str, Callable[[], Side]]:
    return {
        "memory": MemorySide,
        "redis": lambda: request.getfixturevalue("server"),
        "valkey": lambda: request.getfixturevalue("valkey"),
        "fakeredis": lambda: FakeSide(monkeypatch),
        "far end": FarEndSide,
    }


@pytest.fixture(params=SIDES)
def side(request: pytest.FixtureRequest, made: dict[str, Callable[[], Side]]) -> Side:
    return made[request.param]()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", SCENES)
def test_each_store_does_what_the_spec_does(name: str, made: dict[str, Callable[[], Side]]) -> None:
    """The spec is asked once for all of them."""
    scene = SCENES[name]
    sides = [made[side]() for side in SIDES]
    closure = Closure(scene.alphabet, width=scene.width, every=SAMPLED).explore(*sides)
    assert (len(closure.ways), closure.transitions) == (scene.places, scene.transitions)


@pytest.mark.parametrize("name", IN_AN_OUTAGE)
def test_the_policy_does_in_an_outage_what_a_store_does(name: str) -> None:
    scene = IN_AN_OUTAGE[name]
    closure = Closure(scene.alphabet, every=SAMPLED, step=outage.step).explore(PolicySide())
    assert (len(closure.ways), closure.transitions) == (scene.places, scene.transitions)


def test_issuing_again_is_one_call_said_twice(side: Side) -> None:
    """Another subject, or a record that was acquired since, is not the issuer's first call."""
    issuing: Alphabet = {
        "a token is issued": lambda met: words.Issue(ISSUER, 35),
        "it is issued again for X": lambda met: words.Issue(ISSUER, 35, b"x" * 16),
        "its issuer redeems it": lambda met: words.Claim(ISSUER, 10, 30, None, "redeem"),
        "and completes it": lambda met: words.Settle(ISSUER, 0, 30, words.SUCCEEDED, b"done"),
    }
    Closure(issuing).explore(side)


def test_the_spec_names_each_guarantee_of_a_store() -> None:
    text = "".join(Path(module.__file__ or "").read_text() for module in (spec, windows))
    named = {int(number) for number in re.findall(r" \[(\d+)\]", text)}
    guarantees = re.findall(r"^(\d+)\. ", inspect.getdoc(base.Store) or "", re.MULTILINE)
    assert sorted(named) == [int(number) for number in guarantees]


def test_attempts_are_counted_to_the_end(side: Side) -> None:
    """A record has two bytes for them."""
    worked = Record(WORKING, A, FENCE, MAX_ATTEMPT - 1, NOW_MS, NOW_MS + KEEP)
    claiming = chosen(CLAIMS, "A claims", "B claims and waits", "A consumes", "A releases")
    Closure(claiming, start=Place(worked)).explore(side)


@pytest.mark.parametrize("side", [side for side in SIDES if side != "far end"], indirect=True)
def test_a_fresh_fence_is_above_all_that_were_seen(side: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the server's clock was set back since. The far end is one server, whose clock is never set back."""
    monkeypatch.setattr(side, "seen_us", AHEAD)
    claiming = Case(Place(), 0, "A claims", words.Claim(A, 10, KEEP))
    ((_, reply, _, again),) = side.run([claiming], 0)
    assert reply.fence == again.fence == AHEAD + 1


class Silent(MemorySide):
    """A store that wakes nobody."""

    def run(self, cases: Sequence[Case], width: int) -> Iterator[Outcome]:
        for first, reply, second, again in super().run(cases, width):
            yield first, reply._replace(wakes=False), second, again


def test_a_difference_is_told_with_the_shortest_way_to_it() -> None:
    with pytest.raises(AssertionError) as difference:
        Closure(CLAIMS).explore(Silent())
    lines = str(difference.value).splitlines()
    assert lines[1:4] == [
        "1. 0 ms later: A claims",
        "2. 0 ms later: B claims and waits",
        "3. 0 ms later: A consumes, and again",
    ]
    assert "wakes=True" in lines[4]
    assert "wakes=False" in lines[5]
