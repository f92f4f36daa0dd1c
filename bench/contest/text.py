"""Writes tables as text."""

from fastdedup.cli.bench import HEADINGS as COMMON

from .model import Table

HEADINGS = {  # the headings and formats of figures
    **COMMON,
    "server_us": ("server CPU µs", ".2f"),
    "client_us": ("client CPU µs", ".2f"),
    "calculated": ("calculated, per second", ",.0f"),
    "growth_pct": ("growth %", ".1f"),
    "memory_usage": ("MEMORY USAGE", ",.1f"),
    "used_memory": ("used_memory growth", ",.1f"),
    "bytes_an_id": ("bytes an id", ",.1f"),
    "calculated_gib": ("calculated, GiB", ",.1f"),
    "resident_ratio": ("resident ÷ used", ".2f"),
}


def cells(table: Table) -> tuple[list[str], list[list[str]]]:
    """Return a table as text: its headings and rows, with the contestant first and the note last."""
    names = list(dict.fromkeys(name for row in table.rows for name in row.figures))
    bases = list(dict.fromkeys(name for row in table.rows for name in row.ratios))
    shown = [HEADINGS.get(name, (name.replace("_", " "), ",.0f")) for name in names]
    headings = ["", *(heading for heading, _ in shown), *(f"to {base}" for base in bases), "note"]
    rows = [
        [
            row.contestant,
            *(_text(row.figures.get(name), form) for name, (_, form) in zip(names, shown, strict=True)),
            *(_text(row.ratios.get(base), ".2f") for base in bases),
            row.note,
        ]
        for row in table.rows
    ]
    return headings, rows


def _text(figure: float | None, form: str) -> str:
    return "" if figure is None else format(figure, form)
