"""The Django app: `migrate` creates the inbox's table, in each database, and takes it away again."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings

from fastdedup.sql.dialects import TableName, dialect_of

from ..integrations import django_project as django_project  # sets Django up
from .fresh import SERVERS

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def migrated(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a project with four databases found: one process, as Django takes its time to start."""
    folder = tmp_path_factory.mktemp("django")
    engine = "django.db.backends.sqlite3"
    databases = {kind: request.getfixturevalue(server).fresh().django for kind, server in SERVERS.items()}
    databases["default"] = {"ENGINE": engine, "NAME": str(folder / "inbox.db")}
    databases["elsewhere"] = {"ENGINE": engine, "NAME": str(folder / "other.db")}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "tests.sql.django_migrating", json.dumps(databases)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
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
