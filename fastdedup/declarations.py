"""What an event says of itself: the figure that it feeds, and its line in the log. Its class holds both.

`core/figures.py` is the table of all figures of a gate, and `core/incidents.py` writes the lines.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

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
"""The upper bounds of the cells of a histogram of times, in seconds."""
Labels = tuple[str, ...]


FigureKind = Literal["counter", "gauge", "histogram"]
"""A counter rises only. A histogram's values are cells, which count what was measured by its size."""


@dataclass(frozen=True, slots=True, eq=False)
class Figure:
    """A row of the table of figures, of which Prometheus, OpenTelemetry and a sidecar's `/metrics` show the same.

    Attributes:
        name: of words with `_` between, as Prometheus shows it after "fastdedup_"; empty if it does not.
        text: says what it is.
        labels: the names of the labels. A key is never a label.
        kind: how its values move.
        unit: of its values, as OpenTelemetry writes it.
        meter: its name in OpenTelemetry after "fastdedup."; empty if that does not show it. The same by default.
        meter_text: says there what it is; the same by default.
        meter_labels: the names of its attributes there; the same by default.
        values: by label, the values that stand at 0 before they are counted.
        bounds: the upper bounds of a histogram's cells.
        source: finds its values in the object that is watched; None if it is fed, by events or by `GateCounters`.
    """

    name: str
    text: str
    labels: Labels = ()
    kind: FigureKind = "counter"
    unit: str = "1"
    meter: str | None = None
    meter_text: str | None = None
    meter_labels: Labels | None = None
    values: Mapping[str, Labels] = field(default_factory=dict)
    bounds: tuple[float, ...] = BOUNDS
    source: Callable[[Any], Any] | None = None

    def read(self, watched: object) -> Mapping[Labels, Any]:
        """Return its values in the object that is watched, by those of its labels."""
        assert self.source is not None
        found = self.source(watched)
        return found if isinstance(found, Mapping) else {(): found}


@dataclass(frozen=True, slots=True)
class LogLine:
    """The line that a gate writes of an event.

    Attributes:
        text: of the line, after the gate's name; it may name each field of the event, and none that tells an owner.
        logger: the name of the logger after "fastdedup.".
        at_once: how many such lines come before they are counted only; `AT_ONCE` of `core/incidents.py` by default.
        words: by field, what stands for its value in the text.
    """

    text: str
    logger: str = "store"
    at_once: int | None = None
    words: Mapping[str, Mapping[Any, str]] = field(default_factory=dict)
