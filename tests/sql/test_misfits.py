"""The inbox's table: what `fastdedup inbox ddl` prints, in SQLAlchemy's metadata and in Django; and what is none."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata, produce_migrations, render_python_code
from alembic.migration import MigrationContext
from alembic.operations import Operations
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings
from sqlalchemy import Connection, Engine, MetaData, inspect
from sqlalchemy.dialects import mysql, postgresql

from fastdedup import ConfigError
from fastdedup.sql.dialects import TableName, dialect_of
from fastdedup.sql.tables import inbox_table
from fastdedup.web.response import ResponseCodec

from ..databases import MariaServer
from ..fixtures import async_fixture
from ..integrations import django_project as django_project  # sets Django up
from ..programs import ended
from .conftest import Opener
from .fresh import INBOX, KINDS, SERVERS, create_by_ddl, engine_at, faults_of, fresh_urls
from .places import place_of
from .ways import WAYS, Party

# For each kind of database: a table's columns, and what the error says of them.
MISFITS: dict[str, list[tuple[str, str]]] = {
    "postgresql": [
        ("(id uuid PRIMARY KEY, name text)", "it has no column at, and it has no column result"),
        ("(id text PRIMARY KEY, at timestamptz, result bytea)", "its column id is text, not uuid"),
        (
            "(id uuid PRIMARY KEY, at timestamp, result bytea)",
            "at is timestamp without time zone",
        ),
        ("(id uuid, at timestamptz, result bytea)", "its column id is not unique"),
        (
            "(id uuid, at timestamptz, result bytea, PRIMARY KEY (id, at))",
            "id is not unique",
        ),
        (
            "(id uuid UNIQUE DEFERRABLE, at timestamptz, result bytea)",
            "its column id is not unique",
        ),
    ],
    "mysql": [
        ("(id BINARY(16) PRIMARY KEY, name TEXT)", "it has no column at, and it has no column"),
        ("(id VARCHAR(64) PRIMARY KEY, at DATETIME(3), result MEDIUMBLOB)", "id is varchar"),
        ("(id BINARY(16) PRIMARY KEY, at DATETIME, result MEDIUMBLOB)", "its column at is datetime"),
        ("(id BINARY(16) PRIMARY KEY, at DATETIME(3), result BLOB)", "result is blob"),
        ("(id BINARY(16), at DATETIME(3), result MEDIUMBLOB)", "its column id is not unique"),
        (
            "(id BINARY(16), at DATETIME(3), result MEDIUMBLOB, UNIQUE (id(8)))",
            "its column id is not unique",
        ),
        (
            "(id BINARY(16) PRIMARY KEY, at DATETIME(3), result MEDIUMBLOB) ENGINE=MyISAM",
            "its engine is MyISAM, not InnoDB",
        ),
    ],
    "sqlite": [
        ("(id BLOB PRIMARY KEY, name TEXT)", "it has no column at, and it has no column result"),
        ("(id TEXT PRIMARY KEY, at INTEGER, result BLOB)", "its column id is text, not blob"),
        ("(id BLOB, at INTEGER, result BLOB)", "its column id is not unique"),
        ("(id BLOB, at INTEGER, result BLOB, UNIQUE (id, at))", "id is not unique"),
    ],
}


party = async_fixture(lambda database: database())


async def test_a_table_that_is_not_there_is_told(way: Opener, key: str) -> None:
    async with way() as party, party.transaction():
        inbox = party.inbox(table=party.place.fresh_table())
        for _ in range(2):
            with pytest.raises(ConfigError, match=r"there is no table inbox\d+ .*`fastdedup inbox ddl"):
                await party.receive(inbox, key)
        assert (await party.receive(party.inbox(), key)).first  # the transaction goes on


async def test_a_table_that_does_not_fit_is_told(party: Party, key: str) -> None:
    for columns, fault in MISFITS[party.place.kind]:
        table = party.place.fresh_table()
        party.place.sql(f"CREATE TABLE {table} {columns}")
        async with party.transaction():
            with pytest.raises(ConfigError, match=rf"the table {table} is no inbox: .*{fault}"):
                await party.receive(party.inbox(table=table), key)


async def test_a_limit_of_results_above_the_columns_own_is_told(
    of: Callable[[str], Opener], key: str
) -> None:
    """A server that is not strict would cut a result without an error."""
    async with of("aiomysql")() as party:
        table, most = party.place.fresh_table(), 2**24 - 1
        party.place.create(table)
        async with party.transaction():
            assert (await party.receive(party.inbox(table=table, max_result=most), key)).first
            with pytest.raises(ConfigError, match=rf"{table} is mediumblob, which holds {most} bytes"):
                await party.receive(party.inbox(table=table, max_result=most + 1), key)
            endpoint = party.inbox(table=table).storing(ResponseCodec(), most + 1, "max_response=1")
            with pytest.raises(ConfigError, match=r"and max_response=1 allows more"):
                await party.receive(endpoint, key)
        party.place.sql(f"ALTER TABLE {table} MODIFY result LONGBLOB")
        async with party.transaction():
            assert not (await party.receive(party.inbox(table=table, max_result=most + 1), key)).first


async def test_purge_and_stats_tell_of_a_table_as_well(party: Party) -> None:
    inbox = party.inbox(table=party.place.fresh_table(), begin=party.begin)
    for attempt in (inbox.purge, inbox.stats):
        with pytest.raises(ConfigError, match="there is no table"):
            await attempt()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("DROP TABLE {0}", "there is no table"),
        ("ALTER TABLE {0} RENAME COLUMN at TO then_at", "the table {0} is no inbox"),
    ],
    ids=["dropped", "changed"],
)
async def test_what_becomes_of_a_table_later_is_told(change: str, told: str, party: Party, key: str) -> None:
    table = party.place.fresh_table()
    party.place.create(table)
    inbox = party.inbox(table=table)
    async with party.transaction():
        await party.receive(inbox, f"{key} before")
    party.place.sql(change.format(table))
    await party.start()
    with pytest.raises(ConfigError, match=told.format(table)):
        await party.receive(inbox, key)
    await party.rollback()


@pytest.mark.parametrize("name", [name for name, way in WAYS.items() if way.kind == "mysql"])
async def test_the_table_of_each_database_is_looked_at(mariadb: MariaServer, key: str, name: str) -> None:
    """A second one was restored without its primary key: there `INSERT IGNORE` called every message the first."""
    places = [place_of("mysql", mariadb.fresh(), mariadb) for _ in range(2)]
    places[1].sql("ALTER TABLE fastdedup_inbox DROP PRIMARY KEY")
    async with WAYS[name].party(places[0]) as whole, WAYS[name].party(places[1]) as restored:
        inbox = whole.inbox()
        async with whole.transaction():
            assert (await whole.receive(inbox, key)).first
        async with restored.transaction():
            with pytest.raises(ConfigError, match="its column id is not unique"):
                await restored.receive(inbox, key)


async def test_a_table_may_have_any_name_and_further_columns(party: Party, key: str) -> None:
    table = f"Order_{party.place.fresh_table()}"
    party.place.create(table)
    quote = "`" if party.place.kind == "mysql" else '"'
    party.place.sql(f"ALTER TABLE {quote}{table}{quote} ADD COLUMN note VARCHAR(9)")
    inbox = party.inbox("names", table=table)
    for first in (True, False):
        async with party.transaction():
            assert (await party.receive(inbox, key)).first is first


@pytest.mark.parametrize("name", ["asyncpg", "session psycopg", "aiomysql", "async session aiomysql"])
async def test_a_table_may_be_in_another_schema(of: Any, key: str, name: str) -> None:
    async with of(name)() as party:
        place = party.place
        schema = f"other_{place.fresh_table()}"
        owner = "AUTHORIZATION fastdedup" if place.kind == "postgresql" else ""
        if place.kind == "mysql":
            place.as_admin(f"GRANT ALL ON {schema}.* TO fastdedup@localhost")
        place.sql(f"CREATE SCHEMA {schema} {owner}")
        with pytest.raises(ConfigError, match=rf"there is no table {schema}\.fastdedup_inbox"):
            async with party.transaction():
                await party.receive(party.inbox(schema=schema), key)
        place.create("fastdedup_inbox", schema)
        for inbox in (party.inbox(schema=schema), party.inbox()):
            for first in (True, False):
                async with party.transaction():
                    assert (await party.receive(inbox, key)).first is first


async def test_a_table_may_be_in_an_attached_database(of: Any, key: str, tmp_path: Path) -> None:
    async with of("aiosqlite")() as party:
        await party.sql(f"ATTACH '{tmp_path / 'other.db'}' AS other")
        inbox = party.inbox(schema="other")
        async with party.transaction():
            with pytest.raises(ConfigError, match=r"there is no table other\.fastdedup_inbox"):
                await party.receive(inbox, key)
        for statement in dialect_of("sqlite", TableName("fastdedup_inbox", "other")).ddl().split(";"):
            await party.sql(statement)
        for first in (True, False):
            async with party.transaction():
                assert (await party.receive(inbox, key)).first is first
        async with party.transaction():
            assert (await party.receive(party.inbox(), key)).first


# The inbox's table in SQLAlchemy's metadata is the one of the DDL, and Alembic takes both for one.


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


# The Django app: `migrate` creates the inbox's table, in each database, and takes it away again.


ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def migrated(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a project with four databases found: one process, as Django takes its time to start."""
    folder = tmp_path_factory.mktemp("django")
    engine = "django.db.backends.sqlite3"
    databases = {kind: request.getfixturevalue(server).fresh().django for kind, server in SERVERS.items()}
    databases["default"] = {"ENGINE": engine, "NAME": str(folder / "inbox.db")}
    databases["elsewhere"] = {"ENGINE": engine, "NAME": str(folder / "other.db")}
    done = ended("-W", "error", "-m", "tests.sql.django_migrating", json.dumps(databases), cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    facts: dict[str, Any] = json.loads(done.stdout)
    return facts


@pytest.mark.parametrize(("alias", "dialect"), [("default", "sqlite"), *((each, each) for each in SERVERS)])
def test_migrate_creates_the_inbox_and_drops_it(alias: str, dialect: str, migrated: dict[str, Any]) -> None:
    facts = migrated[alias]
    sql = dialect_of(dialect, TableName("handled"))
    assert sql.ddl(marked=False) in facts["sql"][0]
    assert sql.add_fingerprint() in facts["sql"][1]
    assert (facts["tables"].count("handled"), facts["tables_after"].count("handled")) == (1, 0)
    assert (facts["first"], facts["rows"], facts["purged"]) == ([True, False, None], 1, 0)
    assert "Undo Create the inbox's table handled" in facts["plan"]


def test_a_router_keeps_the_table_out_of_a_database(migrated: dict[str, Any]) -> None:
    assert migrated["elsewhere"] == ["django_migrations"]


def test_makemigrations_has_nothing_to_do(migrated: dict[str, Any]) -> None:
    assert migrated["changes"] == "No changes detected\n"


def test_a_setting_that_is_no_name_stops_django() -> None:
    from fastdedup.sql.django.apps import InboxConfig
    from fastdedup.sql.django.settings import table_name

    config = InboxConfig.create("fastdedup.sql.django")
    config.ready()
    assert table_name() == TableName("fastdedup_inbox")
    with (
        override_settings(FASTDEDUP_INBOX_TABLE="a; DROP TABLE b"),
        pytest.raises(ImproperlyConfigured, match=r"FASTDEDUP_INBOX_TABLE cannot be used: table="),
    ):
        config.ready()


def test_a_missing_django_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "fastdedup.sql.django", raising=False)
    monkeypatch.setitem(sys.modules, "django", None)
    with pytest.raises(ImportError, match=r"fastdedup\[django\]"):
        __import__("fastdedup.sql.django")
