"""`settings.FASTDEDUP` and `settings.FASTDEDUP_HTTP`: the process's `Dedup`, and the rules for HTTP.

Main path: `gate`. To add a setting for HTTP: a line in `Http`, and one in `http`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.utils.module_loading import import_string

from ...checks import named
from ...errors import ConfigError, DedupError
from ...sync import Dedup
from ...web.forms import FIELD
from ...web.record_keys import SCOPE
from ...web.rules import Rule, make_rules

_EXAMPLE = 'FASTDEDUP = {"url": "redis://localhost:6379/0", "namespace": "shop"}'
_FUNCTIONS = ("principal", "tenant", "subject", "fingerprint", "keep")
"""Settings that may be given as dotted paths."""


@dataclass(frozen=True)
class Http:
    """The contents of `settings.FASTDEDUP_HTTP`."""

    routes: Any
    docs: str | None
    subject: Callable[[Any], Any] | None
    field: str
    shared: dict[str, Any]
    """The settings of all routes; see `Rule`."""

    def rules(self) -> list[Rule]:
        """Return the middleware's rules.

        Raises:
            ConfigError: a setting cannot be used, or there is no principal.
        """
        return make_rules(self.routes, self.shared)


_lock = threading.Lock()
# Mutable: the `Dedup`, whether it was made here, from keyword arguments, and its scope of web keys: the figures of
# that stand at 0 before the first request.
_dedup: Dedup | None = None
_ours = False
_web_keys: Dedup | None = None


def gate() -> Dedup:
    """Return this process's `Dedup`, which `settings.FASTDEDUP` describes.

    Raises:
        ImproperlyConfigured: the setting is missing or cannot be used.
    """
    return _dedup if _dedup is not None else _make_once()


def http() -> Http:
    """Return the contents of `settings.FASTDEDUP_HTTP`, empty if it is missing.

    Raises:
        ImproperlyConfigured: it is not a dictionary, names a function that cannot be imported, or has a `field` or
            `subject` that cannot be used.
    """
    given = getattr(settings, "FASTDEDUP_HTTP", {})
    if not isinstance(given, dict):
        raise ImproperlyConfigured(f"settings.FASTDEDUP_HTTP is a dictionary, not {given!r}")
    shared = {**given, **{name: function(given[name], name) for name in _FUNCTIONS if name in given}}
    field = shared.pop("field", FIELD)
    if not isinstance(field, str) or not field:
        raise ImproperlyConfigured(f'FASTDEDUP_HTTP["field"] is the name of a form\'s field, not {field!r}')
    subject = shared.pop("subject", None)
    if subject is not None and not callable(subject):
        raise ImproperlyConfigured(f'FASTDEDUP_HTTP["subject"] is a function, not {subject!r}')
    routes, docs = shared.pop("routes", ("/*",)), shared.pop("docs", None)
    return Http(routes, docs, subject, field, shared)


def function(named: Any, what: str) -> Any:
    """Return a function that is given itself or by its dotted path.

    Raises:
        ImproperlyConfigured: the path names no function.
    """
    if not isinstance(named, str):
        return named
    try:
        return import_string(named)
    except ImportError as error:
        raise ImproperlyConfigured(f"{what} cannot be imported: {error}") from error


def _make_once() -> Dedup:
    global _dedup, _ours, _web_keys
    with _lock:
        if _dedup is None:
            given = function(getattr(settings, "FASTDEDUP", None), "settings.FASTDEDUP")
            made = _made_of(given)
            _web_keys = made.scoped(SCOPE)
            _dedup, _ours = made, isinstance(given, dict)
        return _dedup


def _made_of(given: Any) -> Dedup:
    if isinstance(given, Dedup):
        return given
    if given is None:
        raise ImproperlyConfigured(f"settings.FASTDEDUP is missing: {_EXAMPLE}")
    if not isinstance(given, dict):
        raise ImproperlyConfigured(
            f"settings.FASTDEDUP is a dictionary such as {_EXAMPLE}, a fastdedup.sync.Dedup, or the dotted path of "
            f"either; not {named(given)}"
        )
    try:
        return Dedup(**given)
    except (ConfigError, TypeError) as error:
        raise ImproperlyConfigured(f"settings.FASTDEDUP cannot be used: {error}") from error


def _changed(*, setting: str, **_: Any) -> None:
    """Forget the `Dedup` if a test overrides the setting: the next call makes another one."""
    global _dedup
    if setting == "FASTDEDUP":
        with _lock:
            former, _dedup = _dedup, None
        if former is not None and _ours:
            with suppress(DedupError):
                former.close()


setting_changed.connect(_changed, dispatch_uid="fastdedup")
