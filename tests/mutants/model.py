"""The parts of the model that execute a mutant's file, the likeliest to find it first."""

from __future__ import annotations

from typing import NamedTuple

from .table import Numbered

_SIMULATION = "tests/model/test_simulation.py::test_every_fate_and_cancellation_keeps_the_promises"


class Part(NamedTuple):
    """Some tests of the model."""

    name: str
    tests: tuple[str, ...]
    """Arguments of pytest."""
    sides: str = ""
    """The sides that the closure compares with the spec; "" for a part that is not the closure."""


# No selection by a word: if a test gets another name, the part would go on without it, and find no mutant.
IN_MEMORY = Part("closure, memory", ("tests/model/test_closure.py",), "memory")
ON_REDIS = Part("closure, Redis", ("tests/model/test_closure.py",), "redis")
SIMULATION = Part("simulation", (_SIMULATION,))
ON_CLUSTER = Part("simulation, Cluster", ("tests/model/test_simulation_on_a_cluster.py",))
WITH_SENTINELS = Part("simulation, Sentinel", ("tests/model/test_simulation_with_sentinels.py",))
CRASHES = Part("crashes", ("tests/model/test_crashes.py",))

BY_FILE = {
    "lua/": (ON_REDIS, CRASHES),
    "fastdedup/stores/redis/cluster/": (ON_CLUSTER,),
    "fastdedup/stores/redis/latest_primary.py": (WITH_SENTINELS,),
    "fastdedup/stores/redis/primary_watch.py": (WITH_SENTINELS,),
    "fastdedup/stores/redis/": (SIMULATION, CRASHES),
    "fastdedup/stores/": (IN_MEMORY, SIMULATION),
    "fastdedup/ledger/memory.py": (IN_MEMORY, SIMULATION),
    "fastdedup/sql/": (CRASHES,),
    "fastdedup/sync/": (CRASHES,),
    "fastdedup/": (SIMULATION, CRASHES),
}
"""The interleavings and the calls are not here: they execute the spec alone."""


def parts_for(numbered: Numbered) -> list[Part]:
    """Return the parts that a mutant is tried on, in their order."""
    parts = next([*parts] for prefix, parts in BY_FILE.items() if numbered.file.startswith(prefix))
    if scenario := numbered.mutant.scenario:
        parts.insert(0, Part("simulation", (f"{_SIMULATION}[{scenario}]",)))
    if test := numbered.mutant.test:
        parts.insert(0, Part("test", (test,)))
    return parts
