"""Who counts and who traces what a gate does. Each claim reads this, so it is compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .counters import GateCounters
from .tracing import Tracing


class Watchers:
    """Of one gate with all its scopes.

    Attributes:
        counters: count each operation; None where nobody wants to know, or somebody else counts, as the sidecar.
        beside: count all but the answers, if `counters` is None because the sidecar counts its answers itself.
        tracing: makes spans; None where nobody traces.
        context: returns a dict that has no `span_key` where no span is current, so that no claim needs one; None
            where `tracing` must be asked each time.
    """

    __slots__ = ("beside", "context", "counters", "span_key", "tracing")

    def __init__(self) -> None:
        self.counters: GateCounters | None = None
        self.beside: GateCounters | None = None
        self.tracing: Tracing | None = None
        self.context: Callable[[], Any] | None = None
        self.span_key = ""

    def waited(self, namespace: str, seconds: float) -> None:
        """Count a wait for another owner, whoever counts the answer to the claim."""
        if (facts := self.facts) is not None:
            facts.waited(namespace, seconds)

    @property
    def facts(self) -> GateCounters | None:
        """What counts facts that are not answers: waits for other owners, ids of ledgers."""
        return self.counters or self.beside

    def wants_span(self) -> bool:
        """True where a claim that begins now shall have a span."""
        tracing, context = self.tracing, self.context
        if tracing is None or (context is not None and context().get(self.span_key) is None):
            return False
        return tracing.is_wanted()
