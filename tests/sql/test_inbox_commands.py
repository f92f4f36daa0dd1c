"""`fastdedup inbox ddl`, `purge` and `stats`, as people, cron jobs and programs use them."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from rich.console import Console
from sqlalchemy import Engine

from fastdedup.cli.inbox import histogram, purged, shown
from fastdedup.cli.main import cli
from fastdedup.sql.dialects import DIALECTS, TableName, dialect_of
from fastdedup.sql.dialects.base import Figures
from fastdedup.sql.rules import TableRules

from .fresh import INBOX, KINDS, create_by_ddl, engine_at, faults_of, fresh_urls, run_script

DAYS = (0, 1, 1, 8, 9, 40)
"""The ages of the rows in the tests' tables, in days; and half a day more."""
INSERTS = {
    "sqlite": "INSERT INTO fastdedup_inbox (id, at) VALUES (randomblob(16), "
    "CAST((julianday('now') - 2440587.5 - {days}) * 86400000 AS INTEGER));\n",
    "postgresql": "INSERT INTO fastdedup_inbox (id, at) VALUES (gen_random_uuid(), "
    "now() - interval '{days} days');\n",
    "mysql": "INSERT INTO fastdedup_inbox (id, at) VALUES (UNHEX(MD5(RAND())), "
    "UTC_TIMESTAMP(3) - INTERVAL 24 * {days} HOUR);\n",
}


def run(*args: str) -> Result:
    return CliRunner(env={"COLUMNS": "100", "FASTDEDUP_DATABASE_URL": ""}).invoke(cli, ["inbox", *args])


def filled(engine: Engine) -> None:
    create_by_ddl(engine)
    insert = INSERTS[engine.dialect.name]
    run_script(engine, "".join(insert.format(days=days + 0.5) for days in DAYS))


@pytest.fixture
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Engine:
    """An engine at a file of SQLite's with six rows."""
    engine = engine_at(fresh_urls(request, "sqlite", tmp_path))
    filled(engine)
    return engine


@pytest.fixture
def url(engine: Engine) -> str:
    return str(engine.url)


# ddl


@pytest.mark.parametrize("dialect", DIALECTS)
def test_ddl_prints_the_dialects_own(dialect: str) -> None:
    result = run("ddl", "--dialect", dialect, "--table", "handled", "--schema", "billing")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == dialect_of(dialect, TableName("handled", "billing")).ddl()


def test_ddl_refuses_more_than_a_name() -> None:
    result = run("ddl", "--dialect", "sqlite", "--table", "a; DROP TABLE b")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("Error: table= must be a name")


# purge and stats


@pytest.mark.parametrize("kind", KINDS)
def test_purge_and_stats_work_over_every_driver(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    urls = fresh_urls(request, kind, tmp_path)
    filled(engine_at(urls))
    one, other = urls.values()
    for url, keep, rows in ((one, "30d", [6, 1, 5]), (other, "1w", [5, 2, 3])):
        before = json.loads(run("stats", "--url", url, "--json").stdout)
        result = run("purge", "--url", url, "--keep", keep, "--batch", "1", "--json")
        assert (result.exit_code, result.stderr) == (0, ""), result.output
        after = json.loads(run("stats", "--url", url, "--json").stdout)
        assert [before["rows"], json.loads(result.stdout)["deleted"], after["rows"]] == rows
    assert after["ages"] == [{"from": 0.0, "rows": 1}, {"from": 86400.0, "rows": 2}]
    assert 1.4 < after["oldest"] / 86400 < 1.6
    assert after["bytes_an_id"] == round(after["bytes"] / 3, 1)
    assert faults_of(engine_at(urls)) == []


def test_purge_says_what_it_deleted(url: str) -> None:
    result = run("purge", "--url", url, "--keep", "7d")
    assert result.stdout == "Deleted 3 rows of fastdedup_inbox that were older than 7d.\n"
    assert result.stderr == ""  # no bar where nobody looks on, so that cron sends no mail


def test_purge_reads_the_url_from_the_environment(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    result = CliRunner(env={"FASTDEDUP_DATABASE_URL": url}).invoke(
        cli, ["inbox", "purge", "--keep", "604800s", "--json"]
    )
    assert json.loads(result.stdout) == {"table": "fastdedup_inbox", "keep": 604800.0, "deleted": 3}


def test_a_bar_shows_how_far_a_purge_is(engine: Engine) -> None:
    rules = TableRules(INBOX, keep=7 * 86400.0)
    screen = Console(file=io.StringIO(), force_terminal=True, width=80, color_system=None)
    deleted = purged(rules, engine.begin, 1, screen)
    assert deleted == 3
    frames = screen.file.getvalue().replace("\r", "\n").splitlines()  # type: ignore[attr-defined]
    assert [frame.split()[2] for frame in frames if "Purging" in frame][-1] == "3/3"


def test_stats_draws_the_ages(url: str) -> None:
    result = run("stats", "--url", url, "--stretch", "10d")
    assert (result.exit_code, result.stderr) == (0, "")
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["to", "10d", "5", "█" * 40] in lines
    assert ["to", "20d", "0"] in lines
    assert lines[-1] == ["to", "50d", "1", "█" * 8]
    assert any(line[1:4] == ["oldest", "row", "│"] and line[4] == "40.5d" for line in lines)


def test_stats_of_an_empty_table(engine: Engine, url: str) -> None:
    run_script(engine, "DELETE FROM fastdedup_inbox")
    result = run("stats", "--url", url)
    assert (result.exit_code, result.stderr) == (0, "")
    facts = json.loads(run("stats", "--url", url, "--json").stdout)
    assert (facts["rows"], facts["oldest"], facts["bytes_an_id"], facts["ages"]) == (0, None, None, [])


def test_a_row_of_the_next_second_is_a_young_one(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """PostgreSQL's rows have the time of the next full second: they made a stretch of their own, before the first."""
    urls = fresh_urls(request, "postgresql", tmp_path)
    engine = engine_at(urls)
    create_by_ddl(engine)
    run_script(engine, "".join(INSERTS["postgresql"].format(days=days) for days in ("-0.00001", "0.1")))
    facts = json.loads(run("stats", "--url", urls["psycopg"], "--json").stdout)
    assert facts["ages"] == [{"from": 0.0, "rows": 2}]
    assert facts["oldest"] > 0


def test_a_long_histogram_ends_with_all_older_rows() -> None:
    figures = Figures(rows=1000, size=1, oldest=9e9, ages=tuple((day * 86400.0, 10) for day in range(100)))
    lines = list(histogram(figures, 86400.0))
    assert len(lines) == 31
    assert lines[-1].split() == ["from", "30d", "700", "█" * 40]
    assert lines[0].split() == ["to", "1d", "10", "█"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (604800.0, "7d"),
        (5400.0, "90m"),
        (100000.0, "100000s"),
        (100000.5, "1.2d"),
        (0.25, "0.2s"),
        (0.0, "0s"),
    ],
)
def test_times_are_shown_as_they_are_written(seconds: float, text: str) -> None:
    assert shown(seconds) == text


# What cannot work


@pytest.mark.parametrize("keep", ["7x", "d", "-1d", "1e9", "", "7 days"])
def test_what_is_no_time_is_refused(keep: str, url: str) -> None:
    result = run("purge", "--url", url, "--keep", keep)
    assert result.exit_code == 2
    assert "is not a time: write it as 7d, 12h, 30m or 90s" in result.stderr


@pytest.mark.parametrize(
    ("url", "message"),
    [
        (
            "postgresql+psycopg://app:geheim@127.0.0.1:1/db",
            "postgresql+psycopg://127.0.0.1/db cannot be used: ",
        ),
        (
            "postgresql+asyncpg://app:geheim@127.0.0.1:1/db",
            "postgresql+asyncpg://127.0.0.1/db cannot be used: ",
        ),
        ("mysql+pymysql://app:geheim@127.0.0.1:1/db", "mysql+pymysql://127.0.0.1/db cannot be used: "),
        ("postgresql+asyncpg://app:geheim@127.0.0.1:1/db?hots=1", "unexpected keyword argument 'hots'"),
        (
            "postgresql+psycopg://127.0.0.1:1/db?password=geheim&x=1",
            "postgresql+psycopg://127.0.0.1/db cannot",
        ),
        ("postgresql+other://app:geheim@h/db", "Can't load plugin"),
        ("postgresql://app:a@geheim/b@h/db", "In a password write @ as %40"),
        ("postgresql://app:geheim@h:port/db", "In a password write @ as %40"),
        ("app:geheim@h/db", "is not a database URL of SQLAlchemy"),
        ("oracle://app:geheim@h/db", "got a URL of oracle"),
        ("sqlite:///nowhere/shop.db", "there is no file nowhere/shop.db"),
        ("sqlite://", "there is no table fastdedup_inbox"),
    ],
)
def test_a_url_that_cannot_be_used_is_one_line(url: str, message: str) -> None:
    result = run("purge", "--url", url, "--keep", "7d")
    assert (result.exit_code, result.stdout) == (1, "")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert "geheim" not in result.stderr


def test_the_servers_refusal_does_not_show_the_password(request: pytest.FixtureRequest) -> None:
    """MariaDB's words hold the database's name, here the same as the password."""
    urls = request.getfixturevalue("mariadb").fresh().urls
    url = urls["pymysql"].replace("fastdedup@", "fastdedup:geheim@").replace("/fresh", "/geheim")
    result = run("stats", "--url", url)
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert "cannot be used: " in result.stderr
    assert "geheim" not in result.stderr.partition("cannot be used: ")[2]


@pytest.mark.parametrize(
    ("package", "message"),
    [
        ("sqlalchemy", "this needs sqlalchemy: pip install 'fastdedup[sql]'"),
        ("psycopg", "the driver psycopg is not installed: install it, or name one that you have"),
    ],
)
def test_a_missing_package_is_named(package: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    result = run("purge", "--url", "postgresql+psycopg://app@h/db", "--keep", "7d")
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert message in result.stderr


def test_a_database_without_the_table_is_told(engine: Engine, url: str) -> None:
    run_script(engine, "DROP TABLE fastdedup_inbox")
    for command in (("purge", "--keep", "7d"), ("stats",)):
        result = run(*command, "--url", url)
        assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
        assert "there is no table fastdedup_inbox" in result.stderr


def test_ddl_needs_no_sqlalchemy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    assert run("ddl", "--dialect", "postgresql").exit_code == 0


def test_sqlite_makes_no_file_for_a_wrong_name(tmp_path: Path) -> None:
    run("stats", "--url", f"sqlite:///{tmp_path}/shop.db")
    assert list(tmp_path.iterdir()) == []
