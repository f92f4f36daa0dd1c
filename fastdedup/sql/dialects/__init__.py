"""What each database is told: one file a dialect. To add one: its file, and a line in `DIALECTS`."""

from ...errors import ConfigError
from .base import Dialect, TableName
from .mysql import MySQL
from .postgresql import PostgreSQL
from .sqlite import SQLite

DIALECTS: dict[str, type[Dialect]] = {
    "postgresql": PostgreSQL,
    "mysql": MySQL,
    "mariadb": MySQL,
    "sqlite": SQLite,
}


def dialect_of(name: str, table_name: TableName) -> Dialect:
    """Return the dialect of a database, for a table; "asyncpg" is PostgreSQL's for that driver.

    Raises:
        ConfigError: no inbox can be kept in such a database.
    """
    if name == "asyncpg":  # imported where it is used: the package need not be installed
        from .asyncpg import Asyncpg

        return Asyncpg(table_name)
    dialect = DIALECTS.get(name)
    if dialect is None:
        raise ConfigError(
            f"an inbox needs PostgreSQL, MySQL, MariaDB or SQLite, got {name!r}: "
            f"name one of {', '.join(DIALECTS)}"
        )
    return dialect(table_name)


__all__ = ["DIALECTS", "Dialect", "TableName", "dialect_of"]
