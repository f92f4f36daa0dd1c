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
        waits: count the waits of claims and the batches where `counters` is None, because the sidecar counts its
            operations itself.
        tracing: makes spans; None where nobody traces.
        context: returns a dict that has no `span_key` where no span is current, so that no claim needs one; None
            where `tracing` must be asked each time.
    """

    __slots__ = ("context", "counters", "span_key", "tracing", "waits")

    def __init__(self) -> None:
        self.counters: GateCounters | None = None
        self.waits: GateCounters | None = None
        self.tracing: Tracing | None = None
        self.context: Callable[[], Any] | None = None
        self.span_key = ""

    def wants_span(self) -> bool:
        """True where a claim that begins now shall have a span."""
        tracing, context = self.tracing, self.context
        if tracing is None or (context is not None and context().get(self.span_key) is None):
            return False
        return tracing.is_wanted()
