"""An inbox's table for SQLAlchemy's metadata: then `metadata.create_all()` and Alembic's autogenerate know it."""

from __future__ import annotations

try:
    import sqlalchemy as _sqlalchemy  # noqa: F401
except ModuleNotFoundError as _error:
    raise ImportError("fastdedup.sql.tables needs SQLAlchemy: pip install 'fastdedup[sql]'") from _error

from sqlalchemy import BLOB, DDL, INTEGER, Column, Index, LargeBinary, MetaData, Table, event
from sqlalchemy.dialects import mysql, postgresql
from sqlalchemy.types import TypeEngine

from .dialects.base import TableName
from .rules import ID_BYTES, TABLE

_MYSQL = "mysql", "mariadb"


def inbox_table(metadata: MetaData, name: str = TABLE, schema: str | None = None) -> Table:
    """Add an inbox's table to `metadata` and return it: the table that `fastdedup inbox ddl` creates.

    Args:
        metadata: for example, your declarative base's.
        name: the table's name, equal to the inbox's `table=`.
        schema: the table's schema; without one the metadata's own, or else the connection's.

    Raises:
        ConfigError: a name is too long, or has other characters than letters, digits and underscores.
    """
    where = TableName(name, schema or metadata.schema)
    table = Table(
        where.table,
        metadata,
        Column("id", _sixteen_bytes(), primary_key=True),
        Column("at", _at(), nullable=False),
        Column("result", _result()),
        Column("fingerprint", _sixteen_bytes()),
        Index(f"{where.table}_at", "at"),
        schema=where.schema,
        sqlite_with_rowid=False,
        mysql_engine="InnoDB",
        mariadb_engine="InnoDB",
    )
    # Not the column's server_default, because that would be for every database.
    default = DDL("ALTER TABLE %(fullname)s ALTER COLUMN at SET DEFAULT now()")  # type: ignore[no-untyped-call]
    event.listen(table, "after_create", default.execute_if(dialect="postgresql"))
    return table


def _sixteen_bytes() -> TypeEngine[bytes]:
    return (
        LargeBinary(ID_BYTES)
        .with_variant(postgresql.UUID(), "postgresql")
        .with_variant(mysql.BINARY(ID_BYTES), *_MYSQL)
        .with_variant(BLOB(), "sqlite")
    )


def _at() -> TypeEngine[int]:
    return (
        INTEGER()
        .with_variant(postgresql.TIMESTAMP(timezone=True), "postgresql")
        .with_variant(mysql.DATETIME(fsp=3), *_MYSQL)
    )


def _result() -> TypeEngine[bytes]:
    return LargeBinary().with_variant(mysql.MEDIUMBLOB(), *_MYSQL)
