"""The end of it: by fault the runs, operations, violations and times, as Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import median

from .faults import FAULTS
from .run import CANARIES, Result

HEAD = (
    "fault",
    "runs",
    "operations",
    "violations",
    "to 503, ms: p50 / max",
    "to recover, ms: p50 / max",
    "false-new",
    "false-duplicate",
    "data lost?",
)


def table(results: Sequence[Result]) -> str:
    """Return the table of all runs."""
    by_fault: dict[str, list[Result]] = {name: [] for name in FAULTS}
    for result in results:
        by_fault[result.run.fault].append(result)
    rows = [row(name, some) for name, some in by_fault.items() if some]
    rows.append(row("**all**", results, loss=""))
    lines = [_line(HEAD), "|---" + "|---:" * (len(HEAD) - 2) + "|---|"]
    return "\n".join([*lines, *map(_line, rows)])


def row(name: str, results: Sequence[Result], loss: str | None = None) -> tuple[str, ...]:
    """One line of the table; `loss` in place of what the results say of it."""
    findings = [result.findings for result in results]
    return (
        name,
        f"{len(results)}",
        f"{sum(result.operations for result in results):,}",
        f"{sum(len(found.violations) for found in findings)}",
        _times([time for result in results for time in result.to_503]),
        _times([time for result in results for time in result.to_recover]),
        f"{sum(found.false_new for found in findings):,}",
        f"{sum(found.false_duplicates for found in findings):,}",
        _loss(results) if loss is None else loss,
    )


def totals(results: Sequence[Result], seconds: float) -> str:
    """Return what stands below the table."""
    events: Counter[str] = sum((result.events for result in results), Counter())
    notes: Counter[str] = sum((result.findings.notes for result in results), Counter())
    lines = [
        f"{len(results)} faults in {seconds / 60:.1f} minutes, "
        f"{sum(result.operations for result in results):,} operations: "
        f"{sum(len(result.findings.violations) for result in results)} violations, "
        f"{sum(len(result.hangs) for result in results)} hangs, "
        f"{sum(len(result.failures) for result in results)} unhandled exceptions.",
        f"Reported by fastdedup: {_counts(events)}.",
    ]
    if notes:
        lines.append(f"Between degraded answers of several processes also: {_counts(notes)}.")
    return "\n".join(lines)


def _loss(results: Sequence[Result]) -> str:
    """Whether Redis lost what it had acknowledged, and how that was seen."""
    lossy = [result for result in results if not FAULTS[result.run.fault].keeps_data]
    if not lossy:
        return "no"
    gone = sum(result.canaries_lost for result in lossy)
    seen = sum(result.findings.lost for result in lossy)
    if not gone and not seen:
        return "may be; none seen"
    text = f"yes: {gone} of {len(lossy) * CANARIES} canaries gone, {seen:,} answers contradict earlier ones"
    if any(FAULTS[result.run.fault].options.get("replicas") for result in lossy):
        told = sum(result.events["Shortfall"] for result in lossy)
        confirmed = sum(result.findings.lost_confirmed for result in lossy)
        text += f" ({confirmed:,} of them confirmed by a replica); {told:,} shortfalls reported"
    return text


def _times(seconds: Sequence[float]) -> str:
    if not seconds:
        return "-"
    return f"{median(seconds) * 1000:.0f} / {max(seconds) * 1000:.0f}"


def _counts(counter: Counter[str]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counter.most_common()) or "nothing"


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"
