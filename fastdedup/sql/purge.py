"""The rules of a purge: batches, each in a transaction of its own."""

from __future__ import annotations

from collections.abc import Callable

from ..checks import Seconds, check_count, check_seconds
from ..errors import RetryTransaction
from .dialects.base import Database, Flow, TableName
from .drivers.base import is_retryable
from .once import ATTEMPTS, pause_after
from .rules import TableRules


class Ticker:
    """One purge: how far it has come. `batch`: rows of a transaction, or None for the database's own number."""

    def __init__(self, rules: TableRules, batch: int | None, on_batch: Callable[[int], None] | None) -> None:
        self._rules = rules
        self._batch = None if batch is None else check_count(batch, "batch")
        self._on_batch = on_batch
        # Mutable: the rows of this batch at most, the rows deleted, is there more to do, and how many batches, one
        # after another, the database has ended.
        self._size = 0
        self.total = 0
        self.goes_on = True
        self._ended = 0

    @property
    def table_name(self) -> TableName:
        """The table."""
        return self._rules.table_name

    @property
    def lock_key(self) -> str:
        """The key of the lock that says who purges."""
        return f"fastdedup-inbox-purge:{self.table_name}"

    def flow(self, database: Database) -> Flow[int | None]:
        """Return the next batch."""
        self._size = self._batch or self._rules.dialect(database).batch
        return self._rules.purge(database, self._size)

    def pause(self, error: Exception) -> float:
        """Return the seconds until a batch is run again, which the database has ended for another transaction's sake.

        Raises:
            the error itself: it is another one, or has come in too many batches, one after another.
        """
        self._ended += 1
        retryable = isinstance(error, RetryTransaction) or is_retryable(error)
        if not retryable or self._ended >= ATTEMPTS:
            raise error
        return pause_after(self._ended)

    def deleted(self, rows: int | None) -> None:
        """Take in what a committed batch has deleted; None: another process purges."""
        self._ended = 0
        self.goes_on = rows is not None and rows >= self._size
        if rows:
            self.total += rows
            if self._on_batch is not None:
                self._on_batch(rows)

    @staticmethod
    def seconds(stretch: Seconds) -> float:
        """Return a stretch of ages in seconds."""
        return check_seconds(stretch, "stretch", least=1.0)
