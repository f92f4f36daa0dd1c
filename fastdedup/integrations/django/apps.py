"""The Django application: `"fastdedup.integrations.django"` in INSTALLED_APPS. It checks the settings at start-up."""

from __future__ import annotations

from django.apps import AppConfig
from django.core.exceptions import ImproperlyConfigured

from ...errors import ConfigError
from ...web.policy import PublishedPolicy
from .config import gate, http


class FastdedupConfig(AppConfig):
    """Makes the `Dedup` when Django starts, so that mistakes show then. It opens when it is first used."""

    name = "fastdedup.integrations.django"
    label = "fastdedup"
    verbose_name = "fastdedup"

    def ready(self) -> None:
        """Check the settings.

        Raises:
            ImproperlyConfigured: one is missing or cannot be used.
        """
        dedup, rules = gate(), http()
        if "principal" not in rules.shared:
            return  # there is no middleware, or it will say so
        try:
            PublishedPolicy(rules.rules(), dedup.settings, rules.docs)
        except (ConfigError, TypeError) as error:
            raise ImproperlyConfigured(f"settings.FASTDEDUP_HTTP cannot be used: {error}") from error
