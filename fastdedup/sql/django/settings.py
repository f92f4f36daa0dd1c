"""The app's setting."""

from __future__ import annotations

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from ...errors import ConfigError
from ..dialects import TableName
from ..rules import TABLE


def table_name() -> TableName:
    """Return the table that `FASTDEDUP_INBOX_TABLE` names.

    Raises:
        ImproperlyConfigured: the setting cannot be a table's name.
    """
    try:
        return TableName(getattr(settings, "FASTDEDUP_INBOX_TABLE", TABLE))
    except ConfigError as error:
        raise ImproperlyConfigured(f"settings.FASTDEDUP_INBOX_TABLE cannot be used: {error}") from error
