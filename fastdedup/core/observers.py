"""The observers that count and trace a gate. Each claim reads them, so this module is compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .counters import GateCounters
from .tracing import Tracing


class Observers:
    """The observers of one gate with all its scopes.

    Attributes:
        counters: count everything that the gate does. None if nothing is counted, or the answers are counted
            elsewhere.
        beside: count everything except the answers: those of a sidecar, which counts its own replies instead.
        tracing: makes spans; None if the gate is not traced.
        context: returns a dict without `span_key` if no span is current, and then a claim needs none; None if
            `tracing` must be asked each time.
    """

    __slots__ = ("beside", "context", "counters", "span_key", "tracing")

    def __init__(self) -> None:
        self.counters: GateCounters | None = None
        self.beside: GateCounters | None = None
        self.tracing: Tracing | None = None
        self.context: Callable[[], Any] | None = None
        self.span_key = ""

    def waited(self, namespace: str, seconds: float) -> None:
        """Count a wait for another owner; the answer to the claim may be counted elsewhere."""
        if (facts := self.facts) is not None:
            facts.waited(namespace, seconds)

    @property
    def facts(self) -> GateCounters | None:
        """The counters of facts that are not answers: waits for other owners, ids of ledgers."""
        return self.counters or self.beside

    def wants_span(self) -> bool:
        """True if a claim that begins now gets a span."""
        tracing, context = self.tracing, self.context
        if tracing is None or (context is not None and context().get(self.span_key) is None):
            return False
        return tracing.is_wanted()
