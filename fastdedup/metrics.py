"""Figures in Prometheus' format: for a sidecar's `/metrics`, and for programs. `core/figures.py` is their table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from .declarations import Figure, Labels
from .extras import needs

with needs(__name__, "prometheus_client", "'fastdedup[prometheus]'"):
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

_KINDS: Final[dict[str, Any]] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
}


def families(figures: Iterable[Figure], read: Callable[[Figure], Mapping[Labels, Any]]) -> Iterator[Metric]:
    """Yield the family of each figure that Prometheus shows. `read`: returns a figure's values by its labels."""
    for figure in figures:
        if figure.name:
            made = _KINDS[figure.kind](f"fastdedup_{figure.name}", figure.text, labels=figure.labels)
            for labels, value in list(read(figure).items()):
                if figure.kind == "histogram":
                    made.add_metric(labels, _buckets(figure.bounds, value[:-1]), value[-1])
                else:
                    made.add_metric(labels, value)
            yield made


def _buckets(bounds: tuple[float, ...], cells: Sequence[float]) -> list[tuple[str, float]]:
    """Return Prometheus' buckets: each counts everything up to its bound."""
    so_far, buckets = 0.0, []
    for bound, count in zip((*map(str, bounds), "+Inf"), cells, strict=True):
        so_far += count
        buckets.append((bound, so_far))
    return buckets
