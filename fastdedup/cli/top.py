"""`fastdedup top`: shows a sidecar's activity, from its own `/metrics`. Main path: `watch` → `frame`."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families
from rich.box import ROUNDED
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ..errors import UnavailableError
from ..sidecar.client import fetch

Labels = frozenset[tuple[str, str]]


class Sample:
    """The figures of one moment.

    Args:
        text: the answer of `/metrics`.
        at: the moment, in seconds since 1970.
    """

    def __init__(self, text: str, at: float) -> None:
        self.at = at
        self._values: dict[str, dict[Labels, float]] = defaultdict(dict)
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                self._values[sample.name][frozenset(sample.labels.items())] = sample.value

    def of(self, name: str) -> Mapping[Labels, float]:
        """Return all values of a figure, by labels."""
        return self._values.get(name, {})

    def one(self, name: str) -> float:
        """Return a figure, summed over its labels."""
        return sum(self.of(name).values())

    def label(self, name: str, label: str) -> dict[str, float]:
        """Return a figure summed by one of its labels."""
        sums: dict[str, float] = defaultdict(float)
        for labels, value in self.of(name).items():
            sums[dict(labels).get(label, "")] += value
        return dict(sums)

    def under(self, name: str, label: str, value: str, by: str) -> dict[str, float]:
        """Return the figures of which `label` is `value`, summed by another label."""
        sums: dict[str, float] = defaultdict(float)
        for labels, number in self.of(name).items():
            if (label, value) in labels:
                sums[dict(labels).get(by, "")] += number
        return dict(sums)


def watch(socket: Path, *, once: bool, every: float, console: Console | None = None) -> None:
    """Show frames until Ctrl-C; with `once` a single frame, with the rates since the sidecar's start.

    Raises:
        UnavailableError: no sidecar answers at the socket.
    """
    console = console or Console()
    now = take(socket)
    if once:
        console.print(frame(now, None, socket))
        return
    try:
        with Live(frame(now, None, socket), console=console, auto_refresh=False) as live:
            while True:
                time.sleep(every)
                now, before = take(socket), now
                live.update(frame(now, before, socket), refresh=True)
    except KeyboardInterrupt:
        return


def take(socket: Path) -> Sample:
    """Return the present figures."""
    status, body = fetch(socket, "/metrics")
    if status != 200:
        raise UnavailableError(f"{socket} answers /metrics with status {status}: is it a sidecar's socket?")
    return Sample(body.decode(), time.time())


def frame(now: Sample, before: Sample | None, socket: Path) -> RenderableType:
    """Return one frame. The rates are those since `before`, or else since the sidecar's start."""
    return Group(_head(now, socket), _verbs(now, before), *_outage(now))


def _head(now: Sample, socket: Path) -> Text:
    state = next(
        (name for name, on in now.label("fastdedup_breaker_state", "state").items() if on), "unknown"
    )
    wires = now.label("fastdedup_connections", "wire")
    text = Text(f"fastdedup at {socket}   breaker ")
    text.append(state, style="bold green" if state == "closed" else "bold red")
    open_now = ", ".join(f"{count:.0f} {wire}" for wire, count in sorted(wires.items()) if count)
    text.append(f"   connections {open_now or 'none'}")
    text.append(f"   pending {now.one('fastdedup_pending_operations'):,.0f}")
    text.append(f"   batches in flight {now.one('fastdedup_batches_in_flight'):.0f}")
    batches = now.one("fastdedup_batch_size_count")
    text.append(f"   mean batch {now.one('fastdedup_batch_size_sum') / batches if batches else 0:.1f}")
    return text


def _verbs(now: Sample, before: Sample | None) -> Table:
    table = Table(box=ROUNDED)
    table.add_column("operation")
    for heading in ("per second", "total", "p50", "p99"):
        table.add_column(heading, justify="right")
    table.add_column("outcomes", overflow="fold")
    elapsed = now.at - (before.at if before else now.one("process_start_time_seconds"))
    for verb, total in sorted(now.label("fastdedup_operations_total", "verb").items()):
        former = before.label("fastdedup_operations_total", "verb").get(verb, 0.0) if before else 0.0
        rate = (total - former) / max(elapsed, 0.001)
        quantiles = (_time(quantile(now, before, verb, share)) for share in (0.5, 0.99))
        table.add_row(verb, f"{rate:,.0f}", f"{total:,.0f}", *quantiles, _outcomes(now, before, verb))
    return table


def _outcomes(now: Sample, before: Sample | None, verb: str) -> str:
    counts = now.under("fastdedup_operations_total", "verb", verb, "outcome")
    former = before.under("fastdedup_operations_total", "verb", verb, "outcome") if before else {}
    recent = {name: count - former.get(name, 0.0) for name, count in counts.items()}
    whole = sum(recent.values())
    shares = sorted(recent.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {count / whole:.0%}" for name, count in shares if whole and count)


def _outage(now: Sample) -> Iterator[Text]:
    """Yield the figures of outages; nothing where there was no outage."""
    figures = {
        "breaker opened": now.one("fastdedup_breaker_opened_total"),
        "degraded answers": now.label("fastdedup_degraded_total", "answered").get("yes", 0.0),
        "refused by policy": now.label("fastdedup_degraded_total", "answered").get("no", 0.0),
        "journal": now.one("fastdedup_journal_records"),
        "conflicts": now.one("fastdedup_reconcile_conflicts_total"),
        "never replayed": now.one("fastdedup_unreplayed_total"),
        "connections refused": now.one("fastdedup_connections_refused_total"),
    }
    told = "   ".join(f"{name} {count:,.0f}" for name, count in figures.items() if count)
    if told:
        yield Text(told, style="yellow")


def quantile(now: Sample, before: Sample | None, verb: str, share: float) -> float:
    """Return a quantile of a verb's latency in seconds, estimated within its bucket; 0 without a measurement."""
    name = "fastdedup_operation_seconds_bucket"
    former = before.under(name, "verb", verb, "le") if before else {}
    counts = {float(end): n - former.get(end, 0.0) for end, n in now.under(name, "verb", verb, "le").items()}
    wanted, start, below = share * max(counts.values(), default=0.0), 0.0, 0.0
    for end, count in sorted(counts.items()):
        if count >= wanted > below:
            return (
                start if end == float("inf") else start + (end - start) * (wanted - below) / (count - below)
            )
        start, below = end, count
    return 0.0


def _time(seconds: float) -> str:
    return f"{seconds * 1000:.2f} ms" if seconds else "-"
