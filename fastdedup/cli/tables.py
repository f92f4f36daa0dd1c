"""The tables that the commands show: figures, and rows from a store or a broker."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

import click
from rich.box import ROUNDED
from rich.console import Console
from rich.table import Table
from rich.text import Text

from .terminal import printable


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


def print_rows(
    rows: Iterable[Sequence[str]],
    *,
    headings: Sequence[str],
    numbers: Collection[str],
    lines: Callable[[Sequence[str]], Iterable[str]],
    title: str | None = None,
) -> None:
    """Print a table, or some lines for each row if the terminal is too narrow for the table.

    No cell is broken, because people copy keys out of it, and without a terminal each row is one line, for grep.
    Control characters are escaped.

    Args:
        rows: the cells' texts, one for each heading in every row.
        headings: the columns' names.
        numbers: those of them that are aligned to the right.
        lines: returns the lines of a row in a narrow terminal; every line but the first is indented.
        title: the text above the table.
    """
    rows = [[printable(cell) for cell in row] for row in rows]
    table = Table(title=title, box=ROUNDED)
    for heading in headings:
        table.add_column(heading, justify="right" if heading in numbers else "left", no_wrap=True)
    for row in rows:
        table.add_row(*map(Text, row))  # as Text, because rich would take [brackets] for markup
    console = Console()
    needed = console.measure(table, options=console.options.update(width=100_000)).maximum
    if needed <= console.width or not console.is_terminal:
        Console(width=max(needed, console.width)).print(table)
        return
    for row in rows:
        click.echo("\n    ".join(lines(row)))
