"""The tables of figures that the demo shows."""

from __future__ import annotations

from rich.box import ROUNDED
from rich.table import Table
from rich.text import Text


def facts_table(title: str, *sections: dict[str, str | Text]) -> Table:
    """Return a table of names and figures, with a line between two sections."""
    table = Table(title=title, box=ROUNDED, show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for section in sections:
        for name, figure in section.items():
            table.add_row(name, figure)
        table.add_section()
    return table


def verdict(kept: bool) -> Text:
    """Return whether the promises were kept."""
    return Text("kept" if kept else "BROKEN", style="bold green" if kept else "bold red")
