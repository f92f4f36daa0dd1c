"""`fastdedup top`: shows a sidecar's activity, from its own `/metrics`. Main path: `watch` → `frame`."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families
from rich.box import ROUNDED, SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ..errors import UnavailableError
from ..sidecar.client import fetch
from .terminal import BarConsole

Labels = frozenset[tuple[str, str]]
WIDE = 90
"""The least columns of a terminal in which the outcomes are in the table."""


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

    @property
    def started(self) -> float:
        """The start of the sidecar, in seconds since 1970: its counts begin there."""
        return self.one("process_start_time_seconds")

    def follows(self, before: Sample) -> bool:
        """True if both are of one run of the sidecar: a restart begins all counts anew."""
        counted = "fastdedup_operations_total"
        return self.started == before.started and self.one(counted) >= before.one(counted)

    def of(self, name: str) -> Mapping[Labels, float]:
        """Return all values of a figure, by labels."""
        return self._values.get(name, {})

    def one(self, name: str) -> float:
        """Return a figure, summed over its labels."""
        return sum(self.of(name).values())

    def by(self, label: str, name: str, **only: str) -> dict[str, float]:
        """Return a figure summed by one of its labels; `only`: the values that other labels must have."""
        sums: dict[str, float] = defaultdict(float)
        for labels, value in self.of(name).items():
            if only.items() <= labels:
                sums[dict(labels).get(label, "")] += value
        return dict(sums)


def watch(socket: Path, *, once: bool, every: float, console: Console | None = None) -> None:
    """Show frames until Ctrl-C; with `once` a single frame, with the rates since the sidecar's start.

    If a sidecar is restarted meanwhile, this waits for it.

    Raises:
        UnavailableError: no sidecar answers at the socket when this begins.
    """
    console = console or BarConsole()
    now = take(socket)
    if once:
        console.print(frame(now, None, socket, console.width))
        return
    try:
        with Live(frame(now, None, socket, console.width), console=console, auto_refresh=False) as live:
            while True:
                time.sleep(every)
                now = _shown(live, now, socket)
    except KeyboardInterrupt:
        return


def _shown(live: Live, before: Sample, socket: Path) -> Sample:
    """Show the next frame and return its figures; while no sidecar answers, say so and return those before."""
    try:
        now = take(socket)
    except UnavailableError as error:
        told = Text(f"{error}; trying again until Ctrl-C", style="bold red")
        live.update(Group(frame(before, None, socket, live.console.width), told), refresh=True)
        return before
    live.update(frame(now, before if now.follows(before) else None, socket, live.console.width), refresh=True)
    return now


def take(socket: Path) -> Sample:
    """Return the present figures."""
    status, body = fetch(socket, "/metrics")
    what = f"status {status}"
    if status == 200:
        with suppress(ValueError):
            return Sample(body.decode(), time.time())
        what = "other text than figures"
    raise UnavailableError(f"{socket} answers /metrics with {what}: is it a sidecar's socket?")


def frame(now: Sample, before: Sample | None, socket: Path, width: int) -> RenderableType:
    """Return one frame. The rates are those since `before`, or else since the sidecar's start."""
    head = lines(_head(now, socket), width)
    if width < WIDE:
        return Group(
            head, _verbs(now, before, wide=False), *_outcome_lines(now, before), *_outage(now, width)
        )
    return Group(head, _verbs(now, before, wide=True), *_outage(now, width))


def lines(parts: Iterable[Text | str], width: int) -> Text:
    """Return the parts side by side, in lines that break between two parts."""
    text, used = Text(), 0
    for part in parts:
        part = Text(part) if isinstance(part, str) else part
        fits = used + 3 + len(part) <= width
        text.append("" if not used else "   " if fits else "\n")
        text.append(part)
        used = used + 3 + len(part) if used and fits else len(part)
    return text


def _head(now: Sample, socket: Path) -> Iterator[Text | str]:
    state = next((name for name, on in now.by("state", "fastdedup_breaker_state").items() if on), "unknown")
    wires = now.by("wire", "fastdedup_connections")
    yield f"fastdedup at {socket}"
    yield Text.assemble("breaker ", (state, "bold green" if state == "closed" else "bold red"))
    open_now = ", ".join(f"{count:.0f} {wire}" for wire, count in sorted(wires.items()) if count)
    yield f"connections {open_now or 'none'}"
    yield f"pending {now.one('fastdedup_pending_operations'):,.0f}"
    yield f"batches in flight {now.one('fastdedup_batches_in_flight'):.0f}"
    batches = now.one("fastdedup_batch_size_count")
    yield f"mean batch {now.one('fastdedup_batch_size_sum') / batches if batches else 0:.1f}"


def _verbs(now: Sample, before: Sample | None, *, wide: bool) -> Table:
    table = Table(box=ROUNDED if wide else SIMPLE_HEAD)
    table.add_column("operation")
    for heading in ("per second", "total", "p50", "p99"):
        table.add_column(heading, justify="right")
    if wide:
        table.add_column("outcomes", overflow="fold")
    elapsed = now.at - (before.at if before else now.started)
    for verb, total in sorted(now.by("verb", "fastdedup_operations_total").items()):
        former = before.by("verb", "fastdedup_operations_total").get(verb, 0.0) if before else 0.0
        rate = (total - former) / max(elapsed, 0.001)
        quantiles = (_time(quantile(now, before, verb, share)) for share in (0.5, 0.99))
        outcomes = [_outcomes(now, before, verb)] if wide else []
        table.add_row(verb, f"{rate:,.0f}", f"{total:,.0f}", *quantiles, *outcomes)
    return table


def _outcome_lines(now: Sample, before: Sample | None) -> Iterator[Text]:
    """Yield a line for each operation that had outcomes; a narrow table has no room for them."""
    for verb in sorted(now.by("verb", "fastdedup_operations_total")):
        if told := _outcomes(now, before, verb):
            yield Text(f" {verb}: {told}")


def _outcomes(now: Sample, before: Sample | None, verb: str) -> str:
    counts = now.by("outcome", "fastdedup_operations_total", verb=verb)
    former = before.by("outcome", "fastdedup_operations_total", verb=verb) if before else {}
    recent = {name: count - former.get(name, 0.0) for name, count in counts.items()}
    whole = sum(recent.values())
    shares = sorted(recent.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {count / whole:.0%}" for name, count in shares if whole and count)


def _outage(now: Sample, width: int) -> Iterator[Text]:
    """Yield the figures of outages; nothing if there was no outage."""
    figures = {
        "breaker opened": now.one("fastdedup_breaker_opened_total"),
        "degraded answers": now.by("answered", "fastdedup_degraded_total").get("yes", 0.0),
        "refused by policy": now.by("answered", "fastdedup_degraded_total").get("no", 0.0),
        "journal": now.one("fastdedup_journal_records"),
        "conflicts": now.one("fastdedup_reconcile_conflicts_total"),
        "never replayed": now.one("fastdedup_unreplayed_total"),
        "connections refused": now.one("fastdedup_connections_refused_total"),
    }
    told = [Text(f"{name} {count:,.0f}", style="yellow") for name, count in figures.items() if count]
    if told:
        yield lines(told, width)


def quantile(now: Sample, before: Sample | None, verb: str, share: float) -> float:
    """Return a quantile of a verb's latency in seconds, estimated within its bucket; 0 without a measurement."""
    name = "fastdedup_operation_seconds_bucket"
    former = before.by("le", name, verb=verb) if before else {}
    counts = {float(end): n - former.get(end, 0.0) for end, n in now.by("le", name, verb=verb).items()}
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
