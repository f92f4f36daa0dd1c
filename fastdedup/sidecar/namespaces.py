"""The namespaces of one sidecar: a `Dedup` for each, all over one connection. Both wires, HTTP and RESP, use them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol

from ..core.settings import Settings
from ..errors import ConfigError
from ..gateway import Dedup
from .access import Access, ForbiddenError
from .counters import Counters
from .ephemeral import EphemeralClaims
from .ledgers import Ledgers, as_text, make_ledgers
from .limits import Limits
from .reply_memory import ReplyMemory
from .request_memory import RequestMemory
from .turns import Turns


class RawCodec:
    """Keeps results as the bytes that a client sent: the sidecar does not read them."""

    stores_errors = True

    def dumps(self, value: bytes) -> bytes:
        """Return the bytes unchanged."""
        return value

    def loads(self, data: bytes) -> bytes:
        """Return the bytes unchanged."""
        return data


class Audit(Protocol):
    """Hears of each record that a client removed by hand, and of each list of records."""

    def __call__(
        self,
        namespace: str,
        key: str,
        result: str,
        peer: Any,
        *,
        kind: str = "claim",
        reason: str = "",
    ) -> None:
        """Take the namespace, the key or the list's prefix, what came of it, and the client's process."""


class Namespaces:
    """A `Dedup` for each namespace, made when a client first names it.

    Args:
        root: the `Dedup` of the default namespace; its codec is a `RawCodec`.
        settings: the settings that a namespace has of its own, by the namespace's name.
        limits: the limits of one client.
        counters: counts the answers to clients.
        configured_only: refuse every namespace but the default one and those in `settings`.
        ledgers: the settings of the ledgers, by name: those of `Dedup.ledger`, and the `namespace` of each.

    Attributes:
        access: what the clients of one socket may do; `behind` makes the namespaces of another socket.
        ledgers: the ledgers that they may use.
        configured_only: as the argument.
        known: the `Dedup` of each namespace but the default one, by its name as text and as UTF-8. The clients of all
            sockets that may use every namespace share it.
        configured: how many entries of `known` the settings have made; clients have named the others.
    """

    def __init__(
        self,
        root: Dedup,
        *,
        settings: Mapping[str, Mapping[str, Any]] | None = None,
        limits: Limits | None = None,
        counters: Counters | None = None,
        configured_only: bool = False,
        ledgers: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self.root = root
        self.limits = limits or Limits()
        self.counters = counters or Counters()
        requests = RequestMemory(self.limits.requests_in_all)
        self.memory = ReplyMemory(self.limits.replies_in_all, requests)
        self.turns = Turns(self.limits, lambda: root.pending)
        self.ephemeral = EphemeralClaims(self.limits)
        self.counters.is_known = self.is_known
        self.access = Access()
        self.configured_only = configured_only
        # Mutable: the rules of the further sockets, by their paths.
        self.behind_sockets: dict[str, Access] = {}
        # Mutable: renders `GET /metrics`, or None; the service sets it, because Prometheus' format is its concern.
        self.render_metrics: Callable[[], bytes] | None = None
        # Mutable: hears of each key that a client forgets, and of each list; the service sets it.
        self.audit: Audit = lambda *_, **__: None
        # Mutable: grows as clients name namespaces.
        self.known: dict[str | bytes, Dedup] = {}
        for name, changes in (settings or {}).items():
            self._add(name, replace(root.settings, namespace=name, **changes))
        self.configured = len(self.known)
        mine = {each.settings.namespace: each for each in self.dedups()}
        self.ledgers = make_ledgers(ledgers, mine) if ledgers else Ledgers()

    def behind(self, access: Access, limits: Limits) -> Namespaces:
        """Return these namespaces as the clients of another socket see them; all else is shared.

        Args:
            access: what these clients may do.
            limits: their limits; those of EPHEMERAL claims in all count beside the sidecar's own.
        """
        own = [self.dedup(name) for name in access.namespaces]
        view = Namespaces(own[0] if own else self.root, limits=limits, counters=self.counters)
        self.counters.is_known = self.is_known
        view.access = self.behind_sockets[access.path] = access
        view.memory = self.memory
        view.turns = self.turns
        view.ephemeral = EphemeralClaims(limits, self.ephemeral)
        view.audit = self.audit
        view.configured_only = self.configured_only
        view.configured = self.configured
        view.ledgers = self.ledgers.within(access.namespaces) if own else self.ledgers
        if not own:
            view.known = self.known
        for each in own:
            name = each.settings.namespace
            view.known[name] = view.known[name.encode()] = each
        return view

    def dedup(self, name: str | bytes | None) -> Dedup:
        """Return the `Dedup` of a namespace; None stands for the default namespace.

        Raises:
            ConfigError: the name cannot be a namespace's, is not configured, or clients have named too many
                namespaces.
        """
        if name is None:
            return self.root
        dedup = self.known.get(name)
        return dedup if dedup is not None else self._new(name)

    def passing(self, name: str | bytes | None) -> Dedup:
        """Return the `Dedup` of a namespace, without taking one of the places for those that clients may name.

        It is for operations that claim nothing: a client that only looks must not use up the places that other
        clients need for their claims. Raises what `dedup` raises.
        """
        known = None if name is None else self.known.get(name)
        if known is not None or name is None:
            return known or self.root
        text = as_text(name)
        if self.is_known(text):
            return self.dedup(text)
        return self.root.with_settings(self._settings(text), passing=True)

    def is_known(self, name: str) -> bool:
        """True for the default namespace, and for those that are configured or that a client has claimed in."""
        return name == self.root.settings.namespace or name in self.known

    def dedups(self) -> list[Dedup]:
        """Return the `Dedup` of every namespace."""
        return [self.root, *{id(dedup): dedup for dedup in self.known.values()}.values()]

    def _new(self, name: str | bytes) -> Dedup:
        text = as_text(name)
        if text == self.root.settings.namespace:
            return self.root
        settings = self._settings(text)
        if len(self.known) - self.configured >= 2 * self.limits.namespaces:
            raise ConfigError(
                f"clients have named more than {self.limits.namespaces} namespaces: configure those that you need"
            )
        return self._add(text, settings)

    def _settings(self, name: str) -> Settings:
        """Return the settings of a namespace that is not configured. Raises what `dedup` raises."""
        settings = replace(self.root.settings, namespace=name)
        if self.access.namespaces:
            raise ForbiddenError(
                f"this socket serves {', '.join(self.access.namespaces)} only, got the namespace '{name}': name one "
                "of these, or use another socket"
            )
        if self.configured_only:
            raise ConfigError(
                f"the namespace '{name}' is not configured: add a table [namespaces.{name}], or set "
                'allow_namespaces = "any"'
            )
        return settings

    def _add(self, name: str, settings: Settings) -> Dedup:
        dedup = self.root.with_settings(settings)
        self.known[name] = self.known[name.encode()] = dedup
        return dedup
