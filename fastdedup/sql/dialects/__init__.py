"""The SQL of each database: one file for each dialect. To add a dialect, add its file and a line in `DIALECTS`."""

from ...errors import ConfigError
from ..faults import DatabaseFault
from .base import Dialect, TableName, fault_by
from .mysql import MySQL
from .postgresql import PostgreSQL
from .sqlite import SQLite

DIALECTS: dict[str, type[Dialect]] = {
    "postgresql": PostgreSQL,
    "mysql": MySQL,
    "mariadb": MySQL,
    "sqlite": SQLite,
}
_READERS = (MySQL, PostgreSQL, SQLite)
"""MySQL first, because PyMySQL's errors have a SQLSTATE as well, which is HY000 for most of them."""


def dialect_of(name: str, table_name: TableName) -> Dialect:
    """Return the dialect of a database, for a table; "asyncpg" is PostgreSQL's dialect for that driver.

    Raises:
        ConfigError: no inbox can be kept in such a database.
    """
    if name == "asyncpg":  # imported here, because the package need not be installed
        from .asyncpg import Asyncpg

        return Asyncpg(table_name)
    dialect = DIALECTS.get(name)
    if dialect is None:
        raise ConfigError(
            f"an inbox needs PostgreSQL, MySQL, MariaDB or SQLite, got {name!r}: "
            f"name one of {', '.join(DIALECTS)}"
        )
    return dialect(table_name)


def fault_of(error: BaseException) -> DatabaseFault:
    """Return the meaning of an error of any database."""
    return fault_by(_READERS, error)


__all__ = ["DIALECTS", "Dialect", "TableName", "dialect_of", "fault_of"]
