"""The table of a gate's figures, each in one row: Prometheus, OpenTelemetry and a sidecar's `/metrics` show these.

To add a figure that an event feeds, declare it in the event's class. To add any other, write a row here; its `source`
is a method of `Sums`, or `GateCounters` feeds it. Labels are bounded: namespaces, ledgers, inboxes and consumers are
the program's, all others are fastdedup's own words. The rows of consumers and inboxes are in
`integrations/metrics/watched.py`, those of a sidecar alone in `sidecar/service/metrics.py`.
"""

from __future__ import annotations

from typing import Any, Final, get_args

from ..declarations import Figure
from ..events import Event
from ..model import BreakerState

_PROCEDURE: Final = ("db.stored_procedure.name",)
SIZES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""The upper bounds of the cells of batches, in operations."""

OPERATIONS: Final = Figure(
    "operations",
    "Operations answered.",
    ("namespace", "verb", "outcome"),
    unit="{operation}",
    source=lambda sums: sums.operations(),
)
OPERATION_SECONDS: Final = Figure(
    "operation_seconds",
    "From an operation's beginning to its answer.",
    ("verb",),
    "histogram",
    unit="s",
    meter="operation.duration",
    meter_labels=OPERATIONS.labels,
    source=lambda sums: sums.operation_seconds(),
)
WAIT_SECONDS: Final = Figure(
    "wait_seconds",
    "Waiting of claims for other owners.",
    ("namespace",),
    "histogram",
    unit="s",
    meter="wait.duration",
)
LEDGER_IDS: Final = Figure(
    "ledger_ids",
    "Ids by their answer.",
    ("namespace", "ledger", "answer"),
    unit="{id}",
    meter="ledger.ids",
    meter_text="Ids of ledgers by their answer.",
)
BATCH_SIZE: Final = Figure(
    "batch_size",
    "Operations in one batch to the store.",
    kind="histogram",
    meter="",
    bounds=SIZES,
    source=lambda sums: sums.batches(),
)
STORE_CALL_SECONDS: Final = Figure(
    "store_call_seconds",
    "Batches to the store, by its verb.",
    ("verb",),
    "histogram",
    unit="s",
    meter="db.client.operation.duration",
    meter_text="Batches to the store.",
    source=lambda sums: sums.store_calls(),
)

FEEDS: Final[dict[type, tuple[Figure, Any]]] = {
    kind: (kind.figure, getattr(kind, "amount", 1)) for kind in get_args(Event) if hasattr(kind, "figure")
}
"""For each kind of event, the figure that it feeds, and the amount: a number, or the name of a field."""

FIGURES: Final = (
    OPERATIONS,
    OPERATION_SECONDS,
    WAIT_SECONDS,
    LEDGER_IDS,
    BATCH_SIZE,
    STORE_CALL_SECONDS,
    Figure(
        "",
        "Batches to the store.",
        _PROCEDURE,
        unit="{call}",
        meter="store.calls",
        source=lambda sums: {labels: int(sum(row[:-1])) for labels, row in sums.store_calls().items()},
    ),
    Figure(
        "",
        "Seconds of the batches to the store, added up.",
        _PROCEDURE,
        unit="s",
        meter="store.time",
        source=lambda sums: {labels: row[-1] for labels, row in sums.store_calls().items()},
    ),
    Figure(
        "",
        "Operations in these batches.",
        unit="{operation}",
        meter="store.operations",
        source=lambda sums: {labels: int(row[-1]) for labels, row in sums.batches().items()},
    ),
    Figure(
        "pending_operations",
        "Waiting or under way.",
        kind="gauge",
        unit="{operation}",
        meter="pending",
        meter_text="Operations waiting or under way.",
        source=lambda sums: sums.pending(),
    ),
    Figure(
        "batches_in_flight",
        "Batches under way.",
        kind="gauge",
        meter="",
        source=lambda sums: sums.in_flight(),
    ),
    Figure(
        "breaker_state",
        "1 for the state it is in.",
        ("state",),
        "gauge",
        meter="",
        source=lambda sums: {(state.value,): int(sums.breakers()[state] > 0) for state in BreakerState},
    ),
    Figure(
        "",
        "Gates whose store, or a part of it, is not asked.",
        kind="gauge",
        unit="{gate}",
        meter="breaker.open",
        source=lambda sums: sum(sums.breakers().values()) - sums.breakers()[BreakerState.CLOSED],
    ),
    Figure(
        "journal_records",
        "To be put into the store.",
        ("namespace",),
        "gauge",
        unit="{record}",
        meter="journal.records",
        source=lambda sums: sums.journals(),
    ),
    Figure(
        "undone",
        "Given-up claims and ids that were taken back.",
        unit="{key}",
        source=lambda sums: sums.undone()[0],
    ),
    Figure(
        "undo_pending",
        "Given-up claims and ids to be taken back.",
        kind="gauge",
        unit="{key}",
        meter="undo.pending",
        source=lambda sums: sums.undone()[1],
    ),
    *dict.fromkeys(figure for figure, _ in FEEDS.values()),
)
