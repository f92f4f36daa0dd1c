"""The plots, as SVG and PNG: rate against callers, latency, memory per record, growth with keys, the inbox's cost."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from bench.contest import OURS
from bench.inbox import BY_HAND, PEER
from bench.pairs import ABOVE
from bench.peers import COREDIS, IDEMKIT, IDEMPOTENCY_KIT, POWERTOOLS, REDIS_PY, VALKEY_GLIDE
from bench.report import Report

mpl.use("Agg")
mpl.rcParams.update(
    {
        "svg.hashsalt": "fastdedup",  # so that the same figures give the same file
        "svg.fonttype": "none",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.alpha": 0.25,
        "font.size": 10,
        "legend.frameon": False,
    }
)
PLAIN = FuncFormatter(lambda x, _: f"{x:,.0f}" if x >= 1 else f"{x:g}")
COLOURS = {  # the colour of each contestant in every plot
    OURS: "#c8102e",
    REDIS_PY.name: "#444444",
    COREDIS.name: "#9aa0a6",
    VALKEY_GLIDE.name: "#17a2a2",
    IDEMPOTENCY_KIT.name: "#8c6bb1",
    IDEMKIT.name: "#2e8540",
    POWERTOOLS.name: "#d08c00",
}


def draw(report: Report, folder: Path) -> list[Path]:
    """Write each plot for which the report has figures."""
    return [path for name, plot in PLOTS.items() for path in _save(name, plot, report, folder)]


def _save(name: str, plot: Callable[[Axes, Report], bool], report: Report, folder: Path) -> list[Path]:
    figure = Figure(figsize=(7.5, 4.8), layout="constrained")
    if not plot(figure.subplots(), report):
        return []
    paths = [folder / f"{name}.svg", folder / f"{name}.png"]
    figure.savefig(paths[0], metadata={"Date": None})
    figure.savefig(paths[1], dpi=160)
    return paths


def _callers(axes: Axes, report: Report) -> bool:
    curves = report.table("sweep").curves
    _lines(axes, curves, marker="o", markersize=4)
    axes.set(xscale="log", yscale="log", xlabel="concurrent callers", ylabel="fresh claims per second")
    axes.set_title("Rate against callers")
    axes.xaxis.set_major_formatter(PLAIN)
    axes.yaxis.set_major_formatter(PLAIN)
    return bool(curves)


def _latency(axes: Axes, report: Report) -> bool:
    curves = report.table("fresh-64").curves
    _lines(axes, {name: [(100 * q, ms) for q, ms in curve] for name, curve in curves.items()})
    axes.set(yscale="log", xlim=(0, 100), xlabel="percentile of claims", ylabel="milliseconds")
    axes.set_title("Latency of a fresh claim, 64 callers")
    axes.yaxis.set_major_formatter(PLAIN)
    return bool(curves)


def _memory(axes: Axes, report: Report) -> bool:
    rows = [row for row in report.table("memory").rows if row.figures]
    names, sizes = [row.contestant for row in rows], [row.figures["memory_usage"] for row in rows]
    bars = axes.barh(names, sizes, height=0.6, color=[COLOURS.get(name) for name in names])
    axes.bar_label(bars, fmt="%.0f", padding=4)
    axes.margins(x=0.1)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.set(xlabel="bytes, by MEMORY USAGE", title="Redis memory per live record")
    return bool(rows)


def _growth(axes: Axes, report: Report) -> bool:
    curves = report.table("growth").curves
    axes.axhline(0.85, color="#999999", linestyle=":", label="target")
    _lines(axes, curves, marker="o")
    axes.set(xscale="log", ylim=(0, 1.3), xlabel="live keys in Redis", ylabel="rate relative to 10,000 keys")
    axes.set_title("Rate of fresh claims as Redis fills")
    axes.xaxis.set_major_formatter(PLAIN)
    return bool(curves)


def _inbox(axes: Axes, report: Report) -> bool:
    rows = [row for row in report.table("inbox").rows if ABOVE in row.ratios]
    ratios = [row.ratios[ABOVE] for row in rows]
    colours = [COLOURS[OURS] if row.contestant not in (BY_HAND[1], PEER[1]) else "#9aa0a6" for row in rows]
    bars = axes.barh([row.contestant for row in rows], ratios, height=0.6, color=colours)
    axes.bar_label(bars, fmt="%.2f", padding=4)
    axes.axvline(1, color="#999999", linestyle=":")
    axes.margins(x=0.1)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.set(xlabel="transactions, ratio to bare ones", title="What the inbox costs, 64 connections")
    return bool(rows)


def _ledger_bytes(axes: Axes, report: Report) -> bool:
    rows = [row for row in report.table("ledger-memory").rows if "bytes_an_id" in row.figures]
    names, sizes = [row.contestant for row in rows], [row.figures["bytes_an_id"] for row in rows]
    ours = [COLOURS[OURS] if name.startswith("a ledger") else "#9aa0a6" for name in names]
    bars = axes.barh(names, sizes, height=0.6, color=ours)
    axes.bar_label(bars, fmt="%.1f", padding=4)
    axes.margins(x=0.1)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.set(xlabel="bytes, by the growth of used_memory", title="Redis memory for each id of 36 characters")
    return bool(rows)


def _ledger_windows(axes: Axes, report: Report) -> bool:
    curves = report.table("ledger-windows").curves
    for name, curve in curves.items():
        axes.plot(*zip(*curve, strict=True), label=name)
    axes.set(xlabel="windows since the first id", ylabel="GiB", yscale="log")
    axes.set_title("Resident memory of 600 million ids, calculated from measured growth")
    if curves:
        axes.figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return bool(curves)


def _lines(axes: Axes, curves: Mapping[str, Sequence[tuple[float, float]]], **style: Any) -> None:
    for name, curve in curves.items():
        xs, ys = zip(*curve, strict=True)
        width = 2.5 if name == OURS else 1.5
        axes.plot(xs, ys, label=name, color=COLOURS.get(name), linewidth=width, **style)
    if curves:
        axes.figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3)


PLOTS = {"callers": _callers, "latency": _latency, "memory": _memory, "growth": _growth, "inbox": _inbox}
PLOTS |= {"ledger-memory": _ledger_bytes, "ledger-windows": _ledger_windows}
