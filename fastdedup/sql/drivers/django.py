"""Django: a connection such as `django.db.connection`, inside `transaction.atomic()`, or without autocommit."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ...errors import UsageError
from ..dialects.base import Database, Rows, Statement
from ..faults import aborted
from .base import Driver, no_transaction, of_cursor, placed


class DjangoDriver(Driver):
    """A connection in an atomic block. Django's transactions are synchronous, even in its async views."""

    is_async = False

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._block = _outermost(connection)
        self.dialect = connection.vendor
        if not self.is_open():
            raise no_transaction("with transaction.atomic():")
        if connection.needs_rollback:
            raise aborted()

    @property
    def database(self) -> Database:
        """See `Driver`."""
        settings = self._connection.settings_dict
        return (self.dialect, self._connection.alias, settings["HOST"], settings["PORT"], settings["NAME"])

    def is_open(self) -> bool:
        """See `Driver`."""
        connection = self._connection
        if not connection.in_atomic_block:
            return not connection.get_autocommit()
        return _outermost(connection) is self._block

    def is_nested(self) -> bool:
        """See `Driver`. The blocks around a test of Django's TestCase do not count; as in `durable=True`."""
        return not are_of_a_test(getattr(self._connection, "atomic_blocks", [])[:-1])

    def is_lost(self) -> bool:
        """See `Driver`. The connection within Django's is known by its driver's own attribute, if it has one."""
        inner = self._connection.connection
        return inner is not None and (
            bool(getattr(inner, "closed", False)) or not getattr(inner, "open", True)
        )

    def execute(self, statement: Statement) -> Rows:
        """See `Driver`."""
        with self._connection.cursor() as cursor:
            cursor.execute(placed(statement.sql, "%s"), statement.parameters)
            return of_cursor(cursor)


def are_of_a_test(blocks: Iterable[Any]) -> bool:
    """True if Django's TestCase has begun all of these atomic blocks: what is within them counts as outermost."""
    return all(getattr(block, "_from_testcase", False) for block in blocks)


def _outermost(connection: Any) -> Any:
    """Return the atomic block that commits; None outside a block, or if this Django does not show it."""
    blocks = getattr(connection, "atomic_blocks", None)
    return blocks[0] if blocks else None


def driver(transaction: Any) -> Driver:
    """Return the driver for a connection."""
    if not hasattr(transaction, "in_atomic_block"):
        raise UsageError(
            f"an inbox needs a database connection of Django, got {type(transaction).__name__}: "
            "from django.db import connection"
        )
    return DjangoDriver(transaction)
