"""Which runs are made: each fate at each packet with each step of a cancellation, then pairs of fates, and orders."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import combinations, islice, product

from . import scenarios, scenarios_of_gates, scenarios_of_outages, scenarios_of_uses, scenarios_said_anew
from .cluster import CLUSTER_FATES, FORMS
from .network import FATES
from .sentinels import SECOND_FATES, SENTINEL_FATES
from .simulation import Outcome, Run, simulate

assert {
    scenarios,
    scenarios_of_gates,
    scenarios_of_outages,
    scenarios_of_uses,
    scenarios_said_anew,
}  # they have registered themselves

FURTHER = 1
"""Packets beyond those of an undisturbed run that get a fate too: what fates before them make the clients send."""


def cancelled(run: Run, first: int = 2, every: int = 1) -> Iterator[Outcome]:
    """Simulate a run, then the same with a cancellation at each step of its main client, or at every so many-th."""
    undisturbed = simulate(run)
    yield undisturbed
    for step in range(first, undisturbed.steps + 1, every):
        yield simulate(run._replace(cancel_step=step))


def cancelled_twice(run: Run) -> Iterator[Outcome]:
    """Simulate a run with a cancellation at each step, and a second one at each later step of the client."""
    for step in range(2, simulate(run).steps + 1):
        once = run._replace(cancel_step=step)
        for again in range(step + 1, simulate(once).steps + 1):
            yield simulate(once._replace(cancel_again=again))


def single_fates(scenario: str, order: int = 0, every: int = 1) -> Iterator[Outcome]:
    """Simulate each fate of each packet, with a cancellation at every so many-th step; without a fate at each."""
    packets = simulate(Run(scenario, order=order)).packets + FURTHER
    yield from cancelled(Run(scenario, order=order))
    for turn, (number, fate) in enumerate(product(range(packets), FATES)):
        # Each step has its turn with another fate, or with the same fate of the next packet.
        yield from cancelled(Run(scenario, ((number, fate),), order=order), 2 + turn % every, every)


def twice_for_single_fates(scenario: str, fates: Iterable[str] = FATES) -> Iterator[Outcome]:
    """Simulate each fate of each packet, with each pair of cancellations."""
    packets = simulate(Run(scenario)).packets + FURTHER
    for number, fate in product(range(packets), fates):
        yield from cancelled_twice(Run(scenario, ((number, fate),)))


def uncancelled(
    scenario: str, order: int = 0, simulates: Callable[[Run], Outcome] = simulate
) -> Iterator[Outcome]:
    """Simulate each fate of each packet."""
    packets = simulate(Run(scenario, order=order)).packets + FURTHER
    for number, fate in product(range(packets), FATES):
        yield simulates(Run(scenario, ((number, fate),), order=order))


def lost_at_first(scenario: str, every: int = 1) -> Iterator[Outcome]:
    """Simulate a lost first reply with each fate of a later packet: of those that take the first one back as well."""
    packets = simulate(Run(scenario)).packets + FURTHER
    for turn, (number, fate) in enumerate(product(range(1, packets), FATES)):
        yield from cancelled(Run(scenario, ((0, "lost"), (number, fate))), 2 + turn % every, every)


def pairs_of_fates(scenario: str, order: int = 0, *, cancels: bool = False) -> Iterator[Outcome]:
    """Simulate each pair of fates of two packets, if asked with each cancellation."""
    packets = simulate(Run(scenario, order=order)).packets + FURTHER
    for numbers, fates in product(combinations(range(packets), 2), product(FATES, FATES)):
        run = Run(scenario, tuple(zip(numbers, fates, strict=True)), order=order)
        if cancels:
            yield from cancelled(run)
        else:
            yield simulate(run)


def on_cluster(scenario: str, every: int, *, thorough: bool = False) -> Iterator[Outcome]:
    """Simulate each fate of each packet on a Cluster, with a cancellation at every so many-th step.

    Without a fate there is one at every twelfth step at least. The two forms of a batch take turns, and the fates
    that a single Redis has too are tried at every third packet; `thorough` tries all of both.
    """
    packets = simulate(Run(scenario, cluster=FORMS[0])).packets + FURTHER
    for form in FORMS:
        yield from cancelled(Run(scenario, cluster=form), every=min(12, every))
    for turn, (number, fate) in enumerate(product(range(packets), (*FATES, *CLUSTER_FATES))):
        if not thorough and fate in FATES and turn % 3:
            continue
        for form in FORMS if thorough else (FORMS[turn // 2 % 2],):
            run = Run(scenario, ((number, fate),), cluster=form)
            yield from cancelled(run, 2 + turn % every, every)


def with_sentinels(scenario: str, every: int, *, thorough: bool = False) -> Iterator[Outcome]:
    """Simulate each failover at each packet, with a cancellation at every so many-th step.

    The fates that a single Redis has too are tried at every third packet; `thorough` tries all.
    """
    run = Run(scenario, sentinels=True)
    packets = simulate(run).packets + FURTHER
    yield from cancelled(run, every=min(12, every))
    for turn, (number, fate) in enumerate(product(range(packets), (*SENTINEL_FATES, *FATES))):
        if thorough or fate in SENTINEL_FATES or not turn % 3:
            yield from cancelled(run._replace(fates=((number, fate),)), 2 + turn % every, every)


def failovers(run: Run, every: int = 1) -> Iterator[Outcome]:
    """Simulate two failovers: one at each packet, and a second one at each packet that follows.

    `every`: only so many-th of the first ones, and so many-th of those that follow each. On a Cluster a slot that
    moves counts as a failover, too.
    """
    first_fates, second_fates = (
        (CLUSTER_FATES, CLUSTER_FATES) if run.cluster else (SENTINEL_FATES, SECOND_FATES)
    )
    firsts = product(range(simulate(run).packets + FURTHER), first_fates)
    for turn, first in enumerate(islice(firsts, 0, None, every)):
        packets = simulate(run._replace(fates=(first,))).packets + FURTHER
        seconds = product(range(first[0] + 1, packets), second_fates)
        for second in islice(seconds, turn % every, None, every):
            yield simulate(run._replace(fates=(first, second)))
