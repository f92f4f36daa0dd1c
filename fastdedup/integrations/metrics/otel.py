"""The metrics of a gate for OpenTelemetry; `integrations/opentelemetry.py` makes them from the table of figures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from threading import Lock
from typing import Any, Final
from weakref import WeakKeyDictionary

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider, Observation

from ...core.connections import Connections
from ...core.figures import FIGURES, STORE_CALL_SECONDS
from ...declarations import BOUNDS, Figure, Labels
from ...stores.base import ShardedStore
from .watched import CONSUMERS, INBOXES, Watched

SCOPE: Final = "fastdedup"
_OF_REDIS: Final = "Redis at "
_COMMAND: Final = "EVALSHA"
"""The command of Redis that sends every operation of the gate, many of them at once."""
_BOUNDARIES: Final = sorted({*BOUNDS, 5.0})
"""The buckets of the histograms: those of OpenTelemetry's conventions for databases, and finer ones among them."""
_MOST_CALLS: Final = 1000
"""The most attributes of batches that are kept: those of some 60 addresses that a Sentinel names."""
Attributes = dict[str, str | int]
Observe = Callable[[CallbackOptions], Iterable[Observation]]


_watched: WeakKeyDictionary[object, Watched] = WeakKeyDictionary()
_lock = Lock()


def watched_with(provider: MeterProvider | None) -> Watched:
    """Return the object that has the figures behind a provider's metrics; None stands for the global provider.

    It is made once for each provider: of two metrics with one name the SDK would only show the first.
    """
    key = metrics.get_meter_provider if provider is None else provider
    with _lock:
        if key not in _watched:
            watched = Watched()
            _show(watched, metrics.get_meter(SCOPE, meter_provider=provider))
            _watched[key] = watched
        return _watched[key]


def _show(watched: Watched, meter: Meter) -> None:
    for figure in (*FIGURES, *CONSUMERS, *INBOXES):
        name = name_of(figure)
        if name and figure.kind != "histogram":
            is_gauge = figure.kind == "gauge"
            create = meter.create_observable_gauge if is_gauge else meter.create_observable_counter
            create(name, [observing(figure, watched.of)], unit=figure.unit, description=text_of(figure))


def name_of(figure: Figure) -> str:
    """Return the name of a figure in OpenTelemetry; empty if OpenTelemetry does not show it."""
    name = figure.name if figure.meter is None else figure.meter
    return f"fastdedup.{name}" if name and not name.startswith("db.") else name


def text_of(figure: Figure) -> str:
    """Return a figure's description in OpenTelemetry."""
    return figure.text if figure.meter_text is None else figure.meter_text


def attributes_of(figure: Figure, values: Labels) -> Attributes:
    """Return the attributes of a value, given the values of the figure's labels."""
    labels = figure.labels if figure.meter_labels is None else figure.meter_labels
    names = [label if "." in label else f"fastdedup.{label}" for label in labels]
    return {name: str(each) for name, each in zip(names, values, strict=True)}


def observing(figure: Figure, read: Callable[[Figure], Mapping[Labels, Any]]) -> Observe:
    """Return a callback that observes the values of a figure, which `read` returns."""

    def observe(options: CallbackOptions) -> Iterator[Observation]:
        for values, value in list(read(figure).items()):
            yield Observation(value, attributes_of(figure, values))

    return observe


class Histograms:
    """Records each time that a gate measures in OpenTelemetry's histograms: the `Durations` of its counters.

    Args:
        connections: the gate's.
        provider: the provider of meters; the global one by default.
    """

    def __init__(self, connections: Connections, provider: MeterProvider | None) -> None:
        self._connections = connections
        meter = metrics.get_meter(SCOPE, meter_provider=provider)
        self._histograms = {
            figure: meter.create_histogram(
                name_of(figure),
                unit=figure.unit,
                description=text_of(figure),
                explicit_bucket_boundaries_advisory=_BOUNDARIES,
            )
            for figure in FIGURES
            if figure.kind == "histogram" and name_of(figure)
        }
        # Mutable: the attributes by figure and labels, which are few; by the store's name and verb.
        self._attributes: dict[tuple[Figure, Labels], Attributes] = {}
        self._calls: dict[tuple[str, str], Attributes] = {}

    def took(self, figure: Figure, labels: Labels, seconds: float) -> None:
        """Record a time."""
        if figure is STORE_CALL_SECONDS:
            self._called(labels[0], seconds)
            return
        attributes = self._attributes.get((figure, labels))
        if attributes is None:
            attributes = self._attributes[figure, labels] = attributes_of(figure, labels)
        self._histograms[figure].record(seconds, attributes)

    def _called(self, verb: str, seconds: float) -> None:
        """Record a batch to Redis; no other store is a database of the conventions."""
        part = self._connections.here().part_of(b"").decode()
        attributes = self._calls.get((part, verb))
        if attributes is None:
            attributes = self._attributes_of(part, verb)
            if len(self._calls) < _MOST_CALLS:
                self._calls[part, verb] = attributes
        if attributes:
            self._histograms[STORE_CALL_SECONDS].record(seconds, attributes)

    def _attributes_of(self, part: str, verb: str) -> Attributes:
        attributes = server_of(part)
        if not attributes:
            return {}
        if isinstance(self._connections.here().store, ShardedStore):  # because the node is not known here
            attributes = {name: value for name, value in attributes.items() if name.startswith("db.")}
        return {**attributes, "db.stored_procedure.name": verb}


def server_of(part: str | bytes) -> dict[str, str | int]:
    """Return the attributes of a part of the store, from its name in events."""
    name = part if isinstance(part, str) else part.decode()
    if not name.startswith(_OF_REDIS):
        return {}
    address = name.removeprefix(_OF_REDIS)
    host, _, port = address.rpartition(":")
    where: dict[str, str | int] = {"db.system.name": "redis", "db.operation.name": _COMMAND}
    if address.startswith("/") or not port.isdigit():
        return {**where, "server.address": address}
    return {**where, "server.address": host.strip("[]"), "server.port": int(port)}
