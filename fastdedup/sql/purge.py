"""The rules of a purge: batches, each in a transaction of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ..checks import Seconds, check_seconds
from .dialects.base import Flow, TableName
from .rules import TableRules

BATCH: Final = 1000
"""Rows of one transaction by default: a batch takes a few milliseconds, and holds up nobody for longer."""


class Ticker:
    """One purge: how far it has come."""

    def __init__(self, rules: TableRules, batch: int, on_batch: Callable[[int], None] | None) -> None:
        self._rules = rules
        self._batch = batch
        self._on_batch = on_batch
        # Mutable: the rows deleted, and is there more to do.
        self.total = 0
        self.goes_on = True

    @property
    def table_name(self) -> TableName:
        """The table."""
        return self._rules.table_name

    @property
    def lock_key(self) -> str:
        """The key of the lock that says who purges."""
        return f"fastdedup-inbox-purge:{self.table_name}"

    def flow(self, dialect: str) -> Flow[int | None]:
        """Return the next batch."""
        return self._rules.purge(dialect, self._batch)

    def deleted(self, rows: int | None) -> None:
        """Take in what a batch has deleted; None: another process purges."""
        self.goes_on = rows is not None and rows >= self._batch
        if rows:
            self.total += rows
            if self._on_batch is not None:
                self._on_batch(rows)

    @staticmethod
    def seconds(stretch: Seconds) -> float:
        """Return a stretch of ages in seconds."""
        return check_seconds(stretch, "stretch", least=1.0)
