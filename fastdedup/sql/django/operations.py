"""The migrations' operations."""

from __future__ import annotations

from typing import Any

from django.db import router
from django.db.migrations.operations.base import Operation

from ..dialects import dialect_of
from .settings import table_name


class CreateInbox(Operation):
    """Create the inbox's table in the form of 0.1.0, for the database in use. Backwards: drop it."""

    reduces_to_sql = True
    reversible = True

    def state_forwards(self, app_label: str, state: Any) -> None:
        """Change nothing: the table has no model."""

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        """Create the table.

        Raises:
            ConfigError: no inbox can be kept in such a database.
        """
        if router.allow_migrate(schema_editor.connection.alias, app_label):
            ddl = dialect_of(schema_editor.connection.vendor, table_name()).ddl(marked=False)
            for statement in filter(str.strip, ddl.split(";\n")):
                schema_editor.execute(statement, params=None)

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        """Drop the table, with its rows."""
        if router.allow_migrate(schema_editor.connection.alias, app_label):
            schema_editor.execute(f"DROP TABLE {schema_editor.quote_name(table_name().table)}", params=None)

    def describe(self) -> str:
        """Return the text for `migrate --plan`."""
        return f"Create the inbox's table {table_name()}"


class AddFingerprint(CreateInbox):
    """Give the table the column `fingerprint`. Backwards: drop it."""

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        """Add the column."""
        if router.allow_migrate(schema_editor.connection.alias, app_label):
            statement = dialect_of(schema_editor.connection.vendor, table_name()).add_fingerprint()
            schema_editor.execute(statement.rstrip(";\n"), params=None)

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        """Drop the column, with the fingerprints."""
        if router.allow_migrate(schema_editor.connection.alias, app_label):
            table = schema_editor.quote_name(table_name().table)
            schema_editor.execute(f"ALTER TABLE {table} DROP COLUMN fingerprint", params=None)

    def describe(self) -> str:
        """Return the text for `migrate --plan`."""
        return f"Add the column fingerprint to the inbox's table {table_name()}"
