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


def migrating(database: dict[str, Any], **given: Any) -> subprocess.CompletedProcess[str]:
    facts = json.dumps({"DATABASES": {"default": database}, **given})
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "tests.sql.django_migrating", facts],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def database_of(request: pytest.FixtureRequest, kind: str, folder: Path) -> dict[str, Any]:
    if kind == "sqlite":
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": str(folder / "inbox.db")}
    settings: dict[str, Any] = request.getfixturevalue(SERVERS[kind]).fresh().django
    return settings


@pytest.mark.parametrize(
    ("kind", "given"),
    [("sqlite", {"FASTDEDUP_INBOX_TABLE": "handled"}), ("postgresql", {}), ("mysql", {})],
)
def test_migrate_creates_the_inbox_and_drops_it(
    kind: str, given: dict[str, str], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    done = migrating(database_of(request, kind, tmp_path), **given)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    facts = json.loads(done.stdout)
    table = given.get("FASTDEDUP_INBOX_TABLE", "fastdedup_inbox")
    assert dialect_of(kind, TableName(table)).ddl() in facts["sql"]
    assert (facts["tables"].count(table), facts["tables_after"].count(table)) == (1, 0)
    assert (facts["first"], facts["rows"], facts["purged"]) == ([True, False], 1, 0)
    assert facts["changes"] == "No changes detected\n"
    assert f"Undo Create the inbox's table {table}" in facts["plan"]


def test_a_setting_that_is_no_name_stops_django() -> None:
    from fastdedup.sql.django.apps import InboxConfig

    config = InboxConfig.create("fastdedup.sql.django")
    config.ready()
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
