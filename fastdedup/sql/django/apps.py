"""The Django application: `"fastdedup.sql.django"` in INSTALLED_APPS."""

from __future__ import annotations

from django.apps import AppConfig

from .settings import table_name


class InboxConfig(AppConfig):
    """Brings the migration that creates the inbox's table."""

    name = "fastdedup.sql.django"
    label = "fastdedup_inbox"
    verbose_name = "fastdedup's inbox"

    def ready(self) -> None:
        """Check the setting, so that a mistake shows when Django starts.

        Raises:
            ImproperlyConfigured: the setting cannot be used.
        """
        table_name()
