"""The counters of one gate or one sidecar, in plain lists and dicts, which feed the table of `core/figures.py`.

What only a sidecar has is counted in `sidecar/counters.py`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable
from time import perf_counter, sleep
from typing import Any, Final, Protocol

from ..declarations import BOUNDS, Figure, Labels
from ..errors import ClaimLostError, ForeignRecordError, ShortfallError, UnavailableError
from ..events import Event
from ..kernel.codes import Code
from ..kernel.operations import Op, Reply, SettleOp, TransitionReply, Verdict
from .figures import (
    FEEDS,
    LEDGER_IDS,
    OPERATION_SECONDS,
    SIZES,
    STORE_CALL_SECONDS,
    WAIT_SECONDS,
)

_FAULTS: Final[dict[type[BaseException], str]] = {
    UnavailableError: "unavailable",
    ShortfallError: "unavailable",
    ClaimLostError: "claim_lost",
}
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
_WORDS: Final[dict[Any, str]] = {True: "yes", False: "no"}
"""What stands for a truth value in a label."""
_TRIES: Final = 10
"""Times that a thread copies the counts while another one changes them."""
Cells = list[float]
"""How many were measured up to each bound, how many above the last, and the sum of what was measured."""


def empty_cells(bounds: tuple[float, ...] = BOUNDS) -> Cells:
    """Return cells in which nothing is counted yet."""
    return [0] * (len(bounds) + 1) + [0.0]


def _by_outcome() -> defaultdict[str, Cells]:
    return defaultdict(empty_cells)


class Durations(Protocol):
    """Hears of each time that is measured, for those who want more than the cells."""

    def took(self, figure: Figure, labels: Labels, seconds: float) -> None:
        """A time of this figure was measured. `labels`: the values of its labels, as OpenTelemetry has them."""


class GateCounters:
    """Counts what one gate does: its answers, its batches, and its events.

    A scope is what has `settings.namespace`: a `Gate`, or a `Dedup` in the sidecar.
    """

    def __init__(self) -> None:
        self.durations: Durations | None = None
        """Set before the gate is opened, to be told of each time: that costs more than to count it."""
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
        # Mutable: the cells of batches by the store's verb, and by their size; what else is fed, by its figure.
        self.store_calls: defaultdict[str, Cells] = defaultdict(empty_cells)
        self.batches = empty_cells(SIZES)
        self.counted: defaultdict[Figure, Counter[Labels]] = defaultdict(Counter)
        self.measured: defaultdict[Figure, dict[Labels, Cells]] = defaultdict(dict)
        self._names: set[str] = set()
        self.is_known: Callable[[str], bool] = self._is_one_of_the_first

    def outcomes(self, namespace: str, verb: str) -> defaultdict[str, Cells]:
        """Return the cells of a namespace's operations by their outcome."""
        return self.operations[self.label(namespace), verb]

    def expect(self, namespace: str, *verbs: str) -> None:
        """Let the figures of a namespace's troubles stand at 0 before its first operation.

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
            self.durations.took(OPERATION_SECONDS, (self.label(namespace), verb, outcome), seconds)

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

    def waited(self, namespace: str, seconds: float) -> None:
        """Count a claim that waited for another owner."""
        self._measure(WAIT_SECONDS, (self.label(namespace),), seconds)

    def batch_ended(self, verb: str, size: int, seconds: float) -> None:
        """Count a batch that has ended; see `BatchObserver`."""
        self.batches[bisect_left(SIZES, size)] += 1
        self.batches[-1] += size
        cells = self.store_calls[verb]
        cells[bisect_left(BOUNDS, seconds)] += 1
        cells[-1] += seconds
        if self.durations is not None:
            self.durations.took(STORE_CALL_SECONDS, (verb,), seconds)

    def asked_ledger(self, namespace: str, ledger: str, answers: list[bool]) -> None:
        """Count the answers to ids of a ledger."""
        firsts, ids = sum(answers), self.counted[LEDGER_IDS]
        namespace = self.label(namespace)
        ids[namespace, ledger, "first"] += firsts
        ids[namespace, ledger, "duplicate"] += len(answers) - firsts

    def on_event(self, event: Event) -> None:
        """Count an event as its class says; a callback for `Dedup(on_event=...)`."""
        feed = FEEDS.get(type(event))
        if feed is None:
            return
        figure, amount = feed
        labels: list[str] = []
        for name in figure.labels:
            value = getattr(event, name)
            labels.append(self.label(value) if name == "namespace" else _WORDS.get(value, value))
        value = amount if type(amount) is int else getattr(event, amount)
        if figure.kind == "counter":
            self.counted[figure][tuple(labels)] += value
        elif figure.kind == "gauge":
            self.counted[figure][tuple(labels)] = value
        else:
            self._measure(figure, tuple(labels), value)

    def _measure(self, figure: Figure, labels: Labels, value: float) -> None:
        rows = self.measured[figure]
        cells = rows.get(labels)
        if cells is None:
            cells = rows[labels] = empty_cells(figure.bounds)
        cells[bisect_left(figure.bounds, value)] += 1
        cells[-1] += value
        if self.durations is not None:
            self.durations.took(figure, labels, value)


def verb_at_policy(verb: str) -> str:
    """Return by which verb an operation's events name it, given its own."""
    return "claim" if verb in _CLAIMS else verb


def verb_of(op: Op) -> str:
    """Return the name that users know an operation by."""
    if isinstance(op, SettleOp) and not op.succeeded:
        return "fail"
    return op.verb.row.users or op.verb.value


def outcome_of(answer: Reply | BaseException) -> str:
    """Return an answer's outcome as one word."""
    if type(answer) is Verdict:
        return answer.outcome
    code = answer.code if type(answer) is TransitionReply else answer
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
