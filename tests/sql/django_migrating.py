"""A Django project with the inbox's app, which migrates forth and back; prints what it found as JSON.

A process of its own, because Django can be configured only once: `python -m tests.sql.django_migrating SETTINGS`.
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


def found(table: str) -> dict[str, Any]:
    """Migrate, use the inbox, and migrate back."""
    from django.db import connection, transaction

    from fastdedup.sync.sql import Inbox

    @contextmanager
    def begin() -> Any:
        with transaction.atomic():
            yield connection

    inbox = Inbox("billing", keep=timedelta(days=7), table=table)
    facts: dict[str, Any] = {"sql": output("sqlmigrate", "fastdedup_inbox", "0001")}
    output("migrate", "fastdedup_inbox")
    facts["tables"] = connection.introspection.table_names()
    with begin() as inside:
        facts["first"] = [inbox.receive(inside, "message 1").first for _ in range(2)]
    facts["rows"] = inbox.stats(begin=begin).rows
    facts["purged"] = inbox.purge(begin=begin)
    facts["changes"] = output("makemigrations", check_changes=True, dry_run=True)
    facts["plan"] = output("migrate", "fastdedup_inbox", "zero", plan=True)
    output("migrate", "fastdedup_inbox", "zero")
    facts["tables_after"] = connection.introspection.table_names()
    return facts


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    if given["DATABASES"]["default"]["ENGINE"].endswith("mysql"):
        import pymysql

        pymysql.install_as_MySQLdb()
    settings.configure(INSTALLED_APPS=["fastdedup.sql.django"], LOGGING_CONFIG=None, USE_TZ=True, **given)
    django.setup()
    print(json.dumps(found(given.get("FASTDEDUP_INBOX_TABLE", "fastdedup_inbox"))))
