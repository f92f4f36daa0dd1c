"""The inbox's table in SQLAlchemy's metadata is the one of the DDL, and Alembic takes both for one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata, produce_migrations, render_python_code
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import Connection, Engine, MetaData, inspect
from sqlalchemy.dialects import mysql, postgresql

from fastdedup import ConfigError
from fastdedup.sql.dialects import TableName
from fastdedup.sql.tables import inbox_table

from .fresh import INBOX, KINDS, create_by_ddl, engine_at, faults_of, fresh_urls


@pytest.fixture(params=KINDS)
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Engine:
    """An engine at an empty database."""
    return engine_at(fresh_urls(request, request.param, tmp_path))


def a_metadata(**names: Any) -> MetaData:
    metadata = MetaData()
    inbox_table(metadata, **names)
    return metadata


def catalogue(engine: Engine) -> str:
    """What the database tells of the table."""
    look, table = inspect(engine), INBOX.table
    facts = look.get_columns, look.get_pk_constraint, look.get_indexes, look.get_table_options
    return "\n".join(repr(fact(table)) for fact in facts)


def context_of(connection: Connection) -> MigrationContext:
    return MigrationContext.configure(connection, opts={"compare_type": True})


def test_create_makes_the_table_of_the_ddl(engine: Engine) -> None:
    metadata = a_metadata()
    metadata.create_all(engine)
    assert faults_of(engine) == []
    by_create = catalogue(engine)
    metadata.drop_all(engine)
    create_by_ddl(engine)
    assert catalogue(engine) == by_create


def test_alembic_takes_the_table_of_the_ddl_for_its_own(engine: Engine) -> None:
    create_by_ddl(engine)
    with engine.connect() as connection:
        assert compare_metadata(context_of(connection), a_metadata()) == []
        assert compare_metadata(context_of(connection), MetaData()) != []  # it does see the table


def test_what_alembic_generates_creates_an_inbox(engine: Engine) -> None:
    metadata = a_metadata()
    with engine.begin() as connection:
        context = context_of(connection)
        upgrade = produce_migrations(context, metadata).upgrade_ops
        assert upgrade is not None
        imports: set[str] = {"import sqlalchemy as sa"}
        code = render_python_code(upgrade, imports=imports, migration_context=context)
        program = "\n".join([*sorted(imports), "def upgrade():", *code.splitlines(), "upgrade()"])
        names = {
            "op": Operations(context),
            "sa": sys.modules["sqlalchemy"],
            "mysql": mysql,
            "postgresql": postgresql,
        }
        exec(program, names)
    assert faults_of(engine) == []
    with engine.connect() as connection:
        assert compare_metadata(context_of(connection), metadata) == []


def test_a_table_may_have_another_name_and_schema(postgres: Any) -> None:
    engine = engine_at(dict(sorted(postgres.fresh().urls.items())))
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE SCHEMA billing")
    a_metadata(name="handled", schema="billing").create_all(engine)
    assert faults_of(engine, TableName("handled", "billing")) == []
    assert faults_of(engine, TableName("handled")) != []


def test_the_schema_of_the_metadata_is_the_tables() -> None:
    assert inbox_table(MetaData(schema="billing")).schema == "billing"


def test_a_name_must_be_no_more_than_a_name() -> None:
    with pytest.raises(ConfigError, match="table= must be a name"):
        inbox_table(MetaData(), "a; DROP TABLE b")


def test_a_missing_sqlalchemy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "fastdedup.sql.tables")
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    with pytest.raises(ImportError, match=r"fastdedup\[sql\]"):
        __import__("fastdedup.sql.tables")
