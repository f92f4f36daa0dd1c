"""The declarations of an event: the figure that it feeds, and its line in the log. Its class holds both.

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
"""A counter only rises. A histogram's values are cells, which count the measurements by their size."""


@dataclass(frozen=True, slots=True, eq=False)
class Figure:
    """A row of the table of figures. Prometheus, OpenTelemetry and a sidecar's `/metrics` show the same rows.

    Attributes:
        name: words with `_` between, which Prometheus shows after "fastdedup_"; empty if it does not show the figure.
        text: the description.
        labels: the names of the labels. A key is never a label.
        kind: the way in which its values change.
        unit: the unit of its values, in OpenTelemetry's form.
        meter: its name in OpenTelemetry after "fastdedup."; empty if that does not show it. The same by default.
        meter_text: its description there; the same by default.
        meter_labels: the names of its attributes there; the same by default.
        values: by label, the values that are shown as 0 before they are counted.
        bounds: the upper bounds of a histogram's cells.
        source: finds its values in the watched object; None if events or `GateCounters` feed it.
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
        """Return its values in the watched object, by the values of its labels."""
        assert self.source is not None
        found = self.source(watched)
        return found if isinstance(found, Mapping) else {(): found}


@dataclass(frozen=True, slots=True)
class LogLine:
    """The log line that a gate writes for an event.

    Attributes:
        text: the line's text after the gate's name; it may name any field of the event, except one with an owner.
        logger: the name of the logger after "fastdedup.".
        at_once: the number of lines that are written before further ones are only counted; `AT_ONCE` of
            `core/incidents.py` by default.
        words: by field, the words in the text that replace its value.
    """

    text: str
    logger: str = "store"
    at_once: int | None = None
    words: Mapping[str, Mapping[Any, str]] = field(default_factory=dict)
