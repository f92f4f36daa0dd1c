"""What both wires stand on: the namespaces of one sidecar, all over one connection, one breaker, one policy each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..errors import ConfigError
from ..gate.settings import Settings
from ..gateway import Dedup
from .limits import Limits
from .service.metrics import Metrics


class RawCodec:
    """Results as the bytes that a client sent: the sidecar looks into none of them."""

    def dumps(self, value: bytes) -> bytes:
        """Keep."""
        return value

    def loads(self, data: bytes) -> bytes:
        """Keep."""
        return data


class Gate:
    """A gate for each namespace, made when first asked for.

    Args:
        root: the gate whose namespace is the default; its codec is a `RawCodec`.
        namespaces: settings of namespaces that differ from the root's, by name.
        metrics: what counts; its `on_event` is the root's.
    """

    def __init__(
        self,
        root: Dedup,
        *,
        namespaces: Mapping[str, Mapping[str, Any]] | None = None,
        limits: Limits | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self.root = root
        self.limits = limits or Limits()
        self.metrics = metrics or Metrics()
        self.metrics.watch(self)
        # Mutable: by name as text and as it stands on the wire.
        self._scopes: dict[str | bytes, Dedup] = {}
        for name, changes in (namespaces or {}).items():
            self._add(name, replace(root.settings, namespace=name, **changes))
        self._configured = len(self._scopes)

    def scope(self, name: str | bytes | None) -> Dedup:
        """Return the gate of a namespace; the default one for None.

        Raises:
            ConfigError: no name for a namespace, or one too many.
        """
        if name is None:
            return self.root
        scope = self._scopes.get(name)
        return scope if scope is not None else self._new(name)

    def scopes(self) -> list[Dedup]:
        """Return every gate there is."""
        return [self.root, *{id(scope): scope for scope in self._scopes.values()}.values()]

    def _new(self, name: str | bytes) -> Dedup:
        text = name if isinstance(name, str) else name.decode(errors="replace")
        if text == self.root.settings.namespace:
            return self.root
        if text in self._scopes:
            return self._scopes[text]
        if len(self._scopes) - self._configured >= 2 * self.limits.namespaces:
            raise ConfigError(f"more than {self.limits.namespaces} namespaces; configure those that you need")
        return self._add(text, replace(self.root.settings, namespace=text))

    def _add(self, name: str, settings: Settings) -> Dedup:
        scope = self.root.with_settings(settings)
        self._scopes[name] = self._scopes[name.encode()] = scope
        return scope
