"""Writes tables and errors as text."""

from .model import Table

HEADINGS = {  # the headings and formats of figures
    "rate": ("per second", ",.0f"),
    "cpu_us": ("CPU µs", ".1f"),
    "server_us": ("server CPU µs", ".2f"),
    "client_us": ("client CPU µs", ".2f"),
    "calculated": ("calculated, per second", ",.0f"),
    "p50_ms": ("p50 ms", ".3f"),
    "p99_ms": ("p99 ms", ".3f"),
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


def reason(error: BaseException) -> str:
    """Return an exception as one line, without URLs and paths, because results are published.

    Of an exception group it is the first exception.
    """
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    text = " ".join("…" if "/" in word else word for word in str(error).split())
    return f"{type(error).__name__}: {text[:100]}".rstrip(": ")
