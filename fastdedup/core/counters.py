"""The counters of one gate or one sidecar, in plain lists and dicts, which feed the table of `core/figures.py`.

Events that only a sidecar has are counted in `sidecar/counters.py`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable
from time import perf_counter, sleep
from typing import Any, Final, Protocol

from ..declarations import BOUNDS, Figure, Labels
from ..errors import ClaimLostError, ForeignRecordError, UnavailableError
from ..events import Event
from ..kernel.codes import Code
from ..kernel.operations import Op, Reply, SettleOp, Verdict
from ..kernel.replies import TransitionReply
from .figures import (
    FEEDS,
    LEDGER_IDS,
    OPERATION_SECONDS,
    SIZES,
    STORE_CALL_SECONDS,
    WAIT_SECONDS,
)

_EXPECTED: Final = ("claim", "complete", "lock", "redeem", "consume")
"""The verbs in which users notice an outage first."""
_ANSWERS: Final = {
    "claim": ("acquired", "succeeded", "failed", "in_progress", "mismatch"),
    "complete": ("ok", "claim_lost"),
}
"""The usual outcomes: these are shown from 0 on, like `unavailable` for every verb."""
_CLAIMS: Final = frozenset({"lock", "redeem", "consume"})
"""Verbs that count as claims at the policy."""
OTHERS: Final = "(others)"
"""The label of further namespaces, and in a sidecar of those that clients have only read: invented names must not
make the metrics grow."""
MAX_NAMESPACES: Final = 1000
_MOST_EXPECTED: Final = 50
"""The most namespaces whose figures are shown as 0 before they are used."""
_WORDS: Final[dict[Any, str]] = {True: "yes", False: "no"}
"""The text of a truth value in a label."""
_TRIES: Final = 10
"""How often a thread tries to copy the counts while another thread changes them."""
Cells = list[float]
"""The number of measurements up to each bound, the number above the last one, and the sum of all."""


def empty_cells(bounds: tuple[float, ...] = BOUNDS) -> Cells:
    """Return cells in which nothing is counted yet."""
    return [0] * (len(bounds) + 1) + [0.0]


def _by_outcome() -> defaultdict[str, Cells]:
    return defaultdict(empty_cells)


class Durations(Protocol):
    """Called with each measured time, for users that need more than the cells."""

    def took(self, figure: Figure, labels: Labels, seconds: float) -> None:
        """Take a measured time of this figure. `labels`: the values of its labels in OpenTelemetry."""


class GateCounters:
    """Counts the work of one gate: its answers, its batches, and its events.

    A scope is an object with `settings.namespace`: a `Gate`, or a `Dedup` in the sidecar.
    """

    def __init__(self) -> None:
        self.durations: Durations | None = None
        """The receiver of each measured time, which costs more than to count it. Set before the gate is opened."""
        # Mutable: operations by namespace and verb.
        self.operations: defaultdict[tuple[str, str], defaultdict[str, Cells]] = defaultdict(_by_outcome)
        # Mutable: the latest claims, which share one verdict: the verdict, its scope, the seconds, the count.
        self._verdict: Verdict | None = None
        self._scope: Any = None
        self._took = 0.0
        self._same = 0
        # Mutable: the cells that the latest claims go into, and their labels; a number that is odd during a move.
        self._cells: Cells | None = None
        self._cells_scope: object = None
        self._cells_outcome: object = None
        self._moves = 0
        # Mutable: the cells of batches by the store's verb, and by their size; the other values, by their figure.
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
        """Show the figures of a namespace's troubles as 0 before its first operation.

        If a series begins with its first event, its rate does not show that event.
        """
        if namespace not in self._names and len(self._names) >= _MOST_EXPECTED:
            return  # a program may make more scopes than it uses; only the used ones get labels
        for verb in verbs or _EXPECTED:
            self.outcomes(namespace, verb)

    def label(self, namespace: str) -> str:
        """Return the label of a namespace."""
        return namespace if self.is_known(namespace) else OTHERS

    def _is_one_of_the_first(self, namespace: str) -> bool:
        """True for the first namespaces that a program uses, so that invented names cannot fill its metrics."""
        if namespace in self._names:
            return True
        if len(self._names) < MAX_NAMESPACES:
            self._names.add(namespace)
            return True
        return False

    def observe(self, namespace: str, verb: str, outcome: str, seconds: float) -> None:
        """Count an answer to a client of either wire."""
        cells = self.outcomes(namespace, verb)[outcome]
        cells[bisect_left(BOUNDS, seconds)] += 1
        cells[-1] += seconds
        if self.durations is not None:
            self.durations.took(OPERATION_SECONDS, (self.label(namespace), verb, outcome), seconds)

    def claimed(self, scope: Any, outcome: str, since: float) -> None:
        """Count the answer to a claim that began at `since`, a `perf_counter()`."""
        self.observe(scope.settings.namespace, "claim", outcome, perf_counter() - since)

    def judged(self, scope: object, verdict: Verdict, since: float) -> None:
        """Count a verdict like `claimed`; this is the hot path.

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
            sleep(0)  # another thread is moving claims, which would be counted twice or not at all
        return found

    def zeros(self) -> dict[tuple[str, ...], int]:
        """Return 0 for each namespace, verb and outcome that is possible after the operations so far."""
        return {
            (namespace, verb, outcome): 0
            for namespace, verb in self.seen()
            for outcome in (*_ANSWERS.get(verb, ()), "unavailable")
        }

    def seen(self) -> set[tuple[str, str]]:
        """Return the namespaces and verbs of all operations so far, and the expected ones."""
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
        """Count an event by the declarations of its class; a callback for `Dedup(on_event=...)`."""
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
    """Return the verb in an operation's events, for its own verb."""
    return "claim" if verb in _CLAIMS else verb


def verb_of(op: Op) -> str:
    """Return the users' name of an operation."""
    if isinstance(op, SettleOp) and not op.succeeded:
        return "fail"
    return op.verb.row.users or op.verb.value


def outcome_of(answer: Reply | BaseException) -> str:
    """Return one word for an answer's outcome."""
    if type(answer) is Verdict:
        return answer.outcome
    code = answer.code if type(answer) is TransitionReply else answer
    if isinstance(code, Code):
        return "claim_lost" if code is Code.LOST else code.name.lower()
    if isinstance(answer, ForeignRecordError):
        return "foreign"
    if isinstance(answer, UnavailableError):
        return "unavailable"
    if isinstance(answer, ClaimLostError):
        return "claim_lost"
    return "error" if isinstance(answer, BaseException) else "ok"
