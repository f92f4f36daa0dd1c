"""A Django project with the inbox's app, which migrates each of its databases forth and back; prints JSON.

A process of its own, because Django can be configured only once: `python -m tests.sql.django_migrating DATABASES`.
"""

from __future__ import annotations

import io
import json
import sys
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import django
from django.conf import settings
from django.core.management import call_command


def output(*command: str, **options: Any) -> str:
    out = io.StringIO()
    call_command(*command, stdout=out, no_color=True, **options)
    return out.getvalue()


class Router:
    """Keeps the app's tables out of one database, as a project's own router may."""

    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool:
        return db != "elsewhere"


def tables(alias: str) -> list[str]:
    from django.db import connections

    return connections[alias].introspection.table_names()


def found(alias: str, table: str) -> dict[str, Any]:
    """Migrate, use the inbox, and migrate back."""
    from django.db import connections, transaction

    from fastdedup import MismatchError
    from fastdedup.sync.sql import Inbox

    @contextmanager
    def begin() -> Any:
        with transaction.atomic(using=alias):
            yield connections[alias]

    inbox = Inbox("billing", keep=timedelta(days=7), table=table)
    facts: dict[str, Any] = {
        "sql": [output("sqlmigrate", "fastdedup_inbox", name, database=alias) for name in ("0001", "0002")]
    }
    output("migrate", "fastdedup_inbox", database=alias)
    facts["tables"] = tables(alias)
    with begin() as inside:
        facts["first"] = [inbox.receive(inside, "message 1", fingerprint=7).first for _ in range(2)]
        try:
            inbox.receive(inside, "message 1", fingerprint=999)
        except MismatchError:
            facts["first"].append(None)
    facts["rows"] = inbox.stats(begin=begin).rows
    facts["purged"] = inbox.purge(begin=begin)
    facts["plan"] = output("migrate", "fastdedup_inbox", "zero", plan=True, database=alias)
    output("migrate", "fastdedup_inbox", "zero", database=alias)
    facts["tables_after"] = tables(alias)
    return facts


def elsewhere() -> list[str]:
    """Migrate forth and back where the router says no; give the tables in between."""
    output("migrate", "fastdedup_inbox", database="elsewhere")
    there = tables("elsewhere")
    output("migrate", "fastdedup_inbox", "zero", database="elsewhere")
    return there


if __name__ == "__main__":
    import pymysql

    pymysql.install_as_MySQLdb()
    databases = json.loads(sys.argv[1])
    settings.configure(
        DATABASES=databases,
        DATABASE_ROUTERS=["tests.sql.django_migrating.Router"],
        FASTDEDUP_INBOX_TABLE="handled",
        INSTALLED_APPS=["fastdedup.sql.django"],
        LOGGING_CONFIG=None,
        USE_TZ=True,
    )
    django.setup()
    facts: dict[str, Any] = {alias: found(alias, "handled") for alias in databases if alias != "elsewhere"}
    changes = output("makemigrations", check_changes=True, dry_run=True)
    print(json.dumps({**facts, "elsewhere": elsewhere(), "changes": changes}))
