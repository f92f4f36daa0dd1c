"""The counters of one gate or one sidecar, in plain lists and dicts. `fastdedup/metrics.py` renders them.

To add a figure: count it in `GateCounters`, and name it in `fastdedup/metrics.py`. What only a sidecar has is counted
in `sidecar/counters.py`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from time import perf_counter, sleep
from typing import Any, Final, Protocol

from ..errors import ClaimLostError, ForeignRecordError, ShortfallError, UnavailableError
from ..events import (
    BreakerOpened,
    ClockSkew,
    Conflict,
    ConsumerPaused,
    ConsumerResumed,
    DeadLettered,
    Degraded,
    Event,
    GateBypassed,
    LeaseLost,
    PrimaryRestarted,
    PrimarySwitched,
    Replayed,
    Shortfall,
    UndoOverflow,
    Unreplayed,
)
from ..kernel.operations import Code, Moved, Op, Reply, SettleOp, Verb, Verdict

BOUNDS: Final = (
    0.0001,
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    10.0,
)
"""The upper bounds of the latency histogram's cells, in seconds."""
SIZES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""The upper bounds of the batch histogram's cells, in operations."""
_FAULTS: Final[dict[type[BaseException], str]] = {
    UnavailableError: "unavailable",
    ShortfallError: "unavailable",
    ClaimLostError: "claim_lost",
}
_VERBS: Final = {Verb.READ: "get", Verb.SETTLE_REMEMBERED: "complete", Verb.CLAIM_REMEMBERED: "claim"}
"""Verbs whose operations have another name for users."""
_EXPECTED: Final = ("claim", "complete", "lock", "redeem", "consume")
"""Verbs by which users meet an outage first."""
_ANSWERS: Final = {
    "claim": ("acquired", "succeeded", "failed", "in_progress", "mismatch"),
    "complete": ("ok", "claim_lost"),
}
"""What comes of most operations: these are counted from 0 as well, as `unavailable` is of every verb."""
_CLAIMS: Final = frozenset({"lock", "redeem", "consume"})
"""Verbs of which the policy is asked as of claims."""
OTHERS: Final = "(others)"
"""The label of further namespaces, and in a sidecar of those that clients have only looked at: made-up ones must not
make the metrics grow."""
MAX_NAMESPACES: Final = 1000
_MOST_EXPECTED: Final = 50
"""The namespaces whose figures may stand at 0 before they are used."""
_TRIES: Final = 10
"""Times that a thread copies the counts while another one changes them."""
Cells = list[float]
"""How many operations took up to each of `BOUNDS`, how many took longer, and the sum of their seconds."""


def empty_cells() -> Cells:
    """Return cells in which nothing is counted yet."""
    return [0] * (len(BOUNDS) + 1) + [0.0]


def _by_outcome() -> defaultdict[str, Cells]:
    return defaultdict(empty_cells)


class Durations(Protocol):
    """Hears of each time that is measured, where somebody wants more than the cells."""

    def took(self, namespace: str, verb: str, outcome: str, seconds: float) -> None:
        """An operation was answered."""

    def waited(self, namespace: str, seconds: float) -> None:
        """A claim has waited for another owner."""

    def called(self, verb: str, seconds: float) -> None:
        """A batch to the store has ended."""


class GateCounters:
    """Counts what one gate does: its answers, its batches, and its events.

    A scope is what has `settings.namespace`: a `Gate`, or a `Dedup` in the sidecar.
    """

    def __init__(self) -> None:
        self.durations: Durations | None = None
        """Set before the gate is opened, where somebody wants each time: that costs more than to count it."""
        # Mutable: operations by namespace and verb.
        self.operations: defaultdict[tuple[str, str], defaultdict[str, Cells]] = defaultdict(_by_outcome)
        # Mutable: the latest claims, which share one verdict: the verdict, its scope, the seconds, the count.
        self._verdict: Verdict | None = None
        self._scope: Any = None
        self._took = 0.0
        self._same = 0
        # Mutable: the cells that the latest claims were moved into, and whose they are; odd while they are moved.
        self._cells: Cells | None = None
        self._cells_scope: object = None
        self._cells_outcome: object = None
        self._moves = 0
        # Mutable: batches by size, the sum of sizes, and their seconds by the store's verb; the seconds of waits
        # for other owners, by namespace.
        self.batches = [0] * (len(SIZES) + 1)
        self.batched = 0
        self.store_calls: defaultdict[str, Cells] = defaultdict(empty_cells)
        self.waits: defaultdict[str, Cells] = defaultdict(empty_cells)
        # Mutable: events; dead letters and inboxes without their gate, by namespace or consumer; paused consumers.
        self.degraded: Counter[tuple[str, str, str]] = Counter()
        self.conflicts: Counter[str] = Counter({"ours": 0, "theirs": 0})
        self.shortfalls: Counter[str] = Counter()
        # Mutable: the answers to ids, by namespace, ledger, and "first" or "duplicate".
        self.ledger_ids: Counter[tuple[str, str, str]] = Counter()
        self.bypassed: Counter[tuple[str, str]] = Counter()
        self.dead_letters: Counter[tuple[str, str]] = Counter()
        self.paused: Counter[str] = Counter()
        self.opened = 0
        self.restarted = 0
        self.switched = 0
        self.adopted = 0
        self.unreplayed = 0
        self.leases_lost = 0
        self.clock_skews = 0
        self.undo_overflows = 0
        self._names: set[str] = set()
        self.is_known: Callable[[str], bool] = self._is_one_of_the_first

    def outcomes(self, namespace: str, verb: str) -> defaultdict[str, Cells]:
        """Return the cells of a namespace's operations by their outcome."""
        return self.operations[self.label(namespace), verb]

    def expect(self, namespace: str, *verbs: str) -> None:
        """Let what may befall a namespace's operations stand at 0 before there is one.

        The rate of a series that is born with its first event does not show that event.
        """
        if namespace not in self._names and len(self._names) >= _MOST_EXPECTED:
            return  # a program may make more scopes than it uses: the labels are for those that it uses
        for verb in verbs or _EXPECTED:
            self.outcomes(namespace, verb)

    def label(self, namespace: str) -> str:
        """Return the label of a namespace."""
        return namespace if self.is_known(namespace) else OTHERS

    def _is_one_of_the_first(self, namespace: str) -> bool:
        """True for the first namespaces that a program uses; one that makes them up keeps its metrics bounded."""
        if namespace in self._names:
            return True
        if len(self._names) < MAX_NAMESPACES:
            self._names.add(namespace)
            return True
        return False

    def observe(self, namespace: str, verb: str, outcome: str, seconds: float) -> None:
        """Count an answer to a client, of either wire."""
        cells = self.outcomes(namespace, verb)[outcome]
        cells[bisect_left(BOUNDS, seconds)] += 1
        cells[-1] += seconds
        if self.durations is not None:
            self.durations.took(self.label(namespace), verb, outcome, seconds)

    def claimed(self, scope: Any, outcome: str, since: float) -> None:
        """Count the answer to a claim that began at `since`, a `perf_counter()`."""
        self.observe(scope.settings.namespace, "claim", outcome, perf_counter() - since)

    def judged(self, scope: object, verdict: Verdict, since: float) -> None:
        """Count a verdict, as `claimed` does; this is the hot path.

        Fresh claims of one batch share a verdict and are answered together, so they are counted together: all get
        the seconds of the first, which waited longest. That saves 26 % of the instructions of a claim in a batch.
        """
        if self.durations is not None:
            self.claimed(scope, verdict.outcome, since)
        elif verdict is self._verdict and scope is self._scope:
            self._same += 1
        else:
            self.fold()
            self._verdict = verdict
            self._scope = scope
            self._took = perf_counter() - since
            self._same = 1

    def fold(self) -> None:
        """Move the latest claims into their cells."""
        scope, verdict, took, same = self._scope, self._verdict, self._took, self._same
        if scope is None or verdict is None or not same:
            return
        cells = self._cells
        if cells is None or scope is not self._cells_scope or verdict.outcome is not self._cells_outcome:
            cells = self._cells = self._cells_of(scope, verdict)
            self._cells_scope = scope
            self._cells_outcome = verdict.outcome
        self._moves += 1
        self._same = 0
        cells[bisect_left(BOUNDS, took)] += same
        cells[-1] += took * same
        self._moves += 1

    def _cells_of(self, scope: Any, verdict: Verdict) -> Cells:
        return self.outcomes(scope.settings.namespace, "claim")[verdict.outcome]

    def answers(self) -> list[tuple[str, str, str, Cells]]:
        """Return the namespace, verb, outcome and cells of all operations so far; any thread may call this."""
        found = self._copied()
        for _ in range(_TRIES):
            moves = self._moves
            found = self._copied()
            if moves == self._moves and moves % 2 == 0:
                break
            sleep(0)  # another thread was just moving claims, which would be counted twice or not at all
        return found

    def zeros(self) -> dict[tuple[str, ...], int]:
        """Return 0 for the namespaces, verbs and outcomes that may come of the operations that were seen."""
        return {
            (namespace, verb, outcome): 0
            for namespace, verb in self.seen()
            for outcome in (*_ANSWERS.get(verb, ()), "unavailable")
        }

    def seen(self) -> set[tuple[str, str]]:
        """Return the namespaces and verbs of all operations so far, and those that are expected."""
        return {*self.operations.copy()}  # another thread may read while a first operation is counted

    def _copied(self) -> list[tuple[str, str, str, Cells]]:
        latest: Cells | None = None
        if self._scope is not None and self._verdict is not None and self._same:
            latest = self._cells_of(self._scope, self._verdict)
        found: list[tuple[str, str, str, Cells]] = []
        for (namespace, verb), outcomes in list(self.operations.items()):
            for outcome, cells in list(outcomes.items()):
                copied = [*cells]
                if cells is latest:
                    copied[bisect_left(BOUNDS, self._took)] += self._same
                    copied[-1] += self._took * self._same
                found.append((namespace, verb, outcome, copied))
        return found

    def ended(self, scope: Any, op: Op, answer: Reply | BaseException, since: float) -> None:
        """Count the verdict on an operation that is not a claim, or the error in its place."""
        self.observe(scope.settings.namespace, verb_of(op), outcome_of(answer), perf_counter() - since)

    def waited(self, scope: Any, since: float) -> None:
        """Count a claim that waited for another owner."""
        took = perf_counter() - since
        namespace = self.label(scope.settings.namespace)
        cells = self.waits[namespace]
        cells[bisect_left(BOUNDS, took)] += 1
        cells[-1] += took
        if self.durations is not None:
            self.durations.waited(namespace, took)

    def on_store_call(self, verb: str, took: float) -> None:
        """Count a batch that has ended."""
        cells = self.store_calls[verb]
        cells[bisect_left(BOUNDS, took)] += 1
        cells[-1] += took
        if self.durations is not None:
            self.durations.called(verb, took)

    def asked_ledger(self, namespace: str, ledger: str, answers: list[bool]) -> None:
        """Count the answers to ids of a ledger."""
        firsts = sum(answers)
        namespace = self.label(namespace)
        self.ledger_ids[namespace, ledger, "first"] += firsts
        self.ledger_ids[namespace, ledger, "duplicate"] += len(answers) - firsts

    def on_batch(self, size: int) -> None:
        """Count a batch; a callback for `Dedup.on_batch`."""
        self.batches[bisect_left(SIZES, size)] += 1
        self.batched += size

    def on_event(self, event: Event) -> None:
        """Count an event; a callback for `Dedup(on_event=...)`."""
        match event:
            case Degraded():
                self.degraded[self.label(event.namespace), event.verb, "yes" if event.answered else "no"] += 1
            case Conflict():
                self.conflicts[event.kept] += 1
            case Shortfall():
                self.shortfalls[self.label(event.namespace)] += 1
            case BreakerOpened():
                self.opened += 1
            case PrimaryRestarted():
                self.restarted += 1
            case PrimarySwitched():
                self.switched += 1
            case Replayed():
                self.adopted += event.adopted
            case Unreplayed():
                self.unreplayed += 1
            case LeaseLost():
                self.leases_lost += 1
            case ClockSkew():
                self.clock_skews += 1
            case UndoOverflow():
                self.undo_overflows += 1
            case GateBypassed():
                self.bypassed[self.label(event.namespace), event.inbox] += 1
            case DeadLettered():
                self.dead_letters[event.consumer, event.reason] += 1
            case ConsumerPaused():
                self.paused[event.consumer] = 1
            case ConsumerResumed():
                self.paused[event.consumer] = 0


def by_one(counts: Mapping[str, int]) -> dict[tuple[str, ...], int]:
    """Return counts by a single label."""
    return {(label,): count for label, count in list(counts.items())}


def verb_at_policy(verb: str) -> str:
    """Return by which verb an operation's events name it, given its own."""
    return "claim" if verb in _CLAIMS else verb


def verb_of(op: Op) -> str:
    """Return the name that users know an operation by."""
    if op.verb is Verb.SETTLE:
        return "complete" if isinstance(op, SettleOp) and op.succeeded else "fail"
    return _VERBS.get(op.verb) or op.verb.value


def outcome_of(answer: Reply | BaseException) -> str:
    """Return an answer's outcome as one word."""
    if type(answer) is Verdict:
        return answer.outcome
    code = answer.code if type(answer) is Moved else answer
    if isinstance(code, Code):
        return "claim_lost" if code is Code.LOST else code.name.lower()
    if isinstance(answer, ForeignRecordError):
        return "foreign"
    if isinstance(answer, UnavailableError):
        return "unavailable"
    return _FAULTS.get(type(answer), "error") if isinstance(answer, BaseException) else "ok"


def outcome_of_fault(fault: BaseException) -> str:
    """Return an exception's outcome as one word."""
    return _FAULTS.get(type(fault), "error")
