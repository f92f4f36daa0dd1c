"""The Django application: `"fastdedup.integrations.django"` in INSTALLED_APPS. It checks the settings at start-up."""

from __future__ import annotations

from django.apps import AppConfig
from django.core.exceptions import ImproperlyConfigured

from ...errors import ConfigError
from ...web.policy import PublishedPolicy
from ...web.request import everyone
from ...web.rules import make_rules
from .config import gate, http


class FastdedupConfig(AppConfig):
    """Makes the `Dedup` when Django starts, so that mistakes show then. It opens when it is first used."""

    name = "fastdedup.integrations.django"
    label = "fastdedup"
    verbose_name = "fastdedup"

    def ready(self) -> None:
        """Check the settings.

        Raises:
            ImproperlyConfigured: one cannot be used, or FASTDEDUP is missing.
        """
        dedup, given = gate(), http()
        try:
            # Without a principal there is no middleware, or it will say so; then there need be no routes, either.
            routes = given.routes if "principal" in given.shared else given.routes or ["/*"]
            rules = make_rules(routes, {"principal": everyone, **given.shared})
            PublishedPolicy(rules, dedup.settings, given.docs)
        except (ConfigError, TypeError) as error:
            raise ImproperlyConfigured(f"settings.FASTDEDUP_HTTP cannot be used: {error}") from error
