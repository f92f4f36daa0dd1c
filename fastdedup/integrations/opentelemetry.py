"""Spans and metrics of gates for OpenTelemetry; `pip install 'fastdedup[opentelemetry]'`, which is only its API.

    dedup = Dedup("redis://localhost:6379/0", namespace="shop")
    instrument(dedup)                # with the global providers, before the gate is opened

Within a trace that is sampled, a claim is a span `claim shop`, the body of its `async with` a span `work shop`, and
settling it a span `complete shop`, `fail shop` or `release shop`. See `docs/watching.md`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from itertools import islice
from typing import Any, NamedTuple

from ..extras import needs

with needs(__name__, "its API", "'fastdedup[opentelemetry]'"):
    from opentelemetry import context as contexts
    from opentelemetry import trace
    from opentelemetry.context import Context
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import (
        Link,
        NonRecordingSpan,
        Span,
        SpanContext,
        SpanKind,
        StatusCode,
        TraceFlags,
        TracerProvider,
    )

from ..checks import check_flag, named
from ..claim import Claim
from ..core.connections import Connections
from ..core.settlement import Settlement
from ..errors import ConfigError
from ..gateway import Dedup
from ..kernel.answers import former_trace
from ..kernel.owners import TRACE_BYTES
from ..model import Outcome
from ..sync.gateway import Dedup as SyncDedup
from .metrics.otel import SCOPE, Histograms, server_of, watched_with
from .metrics.watched import is_watchable

_SETTLINGS = {"completed": "complete", "failed": "fail", "released": "release"}
_RUNS = {
    Outcome.ACQUIRED: "attempt_before",
    Outcome.IN_PROGRESS: "present_run",
    Outcome.SUCCEEDED: "first_run",
    Outcome.FAILED: "first_run",
    Outcome.MISMATCH: "other_request",
}
"""The target of a claim's link, by the claim's outcome."""
_REPLAYS = (Outcome.SUCCEEDED, Outcome.FAILED)
_MOST_LINKS = 32
"""The most links of one span: a list of claims may have answers of many runs."""


class Working(NamedTuple):
    """The span of the work under a claim, and the token that makes the former span the current one again."""

    span: Span
    token: Any


class Spans:
    """Makes a gate's spans.

    Args:
        provider: the provider of tracers; the global one by default.
        keys: show keys in the spans.
        roots: make spans also if no span is current: for programs whose work begins with the claim.
        links: let records name their trace, and link to the runs whose records are met.
    """

    def __init__(self, provider: TracerProvider | None, *, keys: bool, roots: bool, links: bool) -> None:
        self._tracer = trace.get_tracer(SCOPE, tracer_provider=provider)
        self._links = links
        self._keys = keys
        self._roots = roots
        self._read, self._key = current_context()

    def is_wanted(self) -> bool:
        """True within a sampled trace, and without a trace if `roots` are made."""
        span = self._read().get(self._key)
        return self._roots if span is None else span.is_recording()

    @property
    def quick_look(self) -> tuple[Callable[[], Any] | None, str]:
        """The function that `Observers` may call instead of `is_wanted`, and its key."""
        return (None if self._roots else self._read), self._key

    # Claims

    def claiming(self, namespace: str, verb: str, key: str, part: str) -> Span:
        """Return the span of a claim."""
        return self._sent(namespace, verb, key, part)

    def claimed(self, span: Span, claim: Claim) -> None:
        """End the span of a claim with its outcome."""
        span.set_attribute("fastdedup.outcome", str(claim.outcome))
        if claim.acquired:
            span.set_attribute("fastdedup.attempt", claim.attempt)
        if claim.degraded:
            span.set_attribute("fastdedup.degraded", True)
        if claim.outcome in _REPLAYS:
            span.set_attribute("fastdedup.replay", True)
        self._link(span, [claim])
        claim.settlement.trace = span.get_span_context()
        span.end()

    def claiming_many(self, namespace: str, keys: int, part: str) -> Span:
        """Return the span of a list of claims."""
        span = self._sent(namespace, "claim_many", "", part)
        span.set_attribute("fastdedup.key_count", keys)
        return span

    def claimed_many(self, span: Span, claims: Sequence[Claim]) -> None:
        """End the span of a list of claims with the number of each outcome."""
        for outcome, count in Counter([claim.outcome for claim in claims]).items():
            span.set_attribute(f"fastdedup.{outcome}", count)
        if any(claim.degraded for claim in claims):
            span.set_attribute("fastdedup.degraded", True)
        self._link(span, claims)
        for claim in claims:
            claim.settlement.trace = span.get_span_context()
        span.end()

    # Links from run to run

    def trace_of(self, span: Span) -> bytes:
        """Return the ids of a sampled span's trace and of the span, for the record of its claim."""
        context = span.get_span_context()
        return ids_of(context) if self._links and context.trace_flags.sampled else b""

    def _link(self, span: Span, claims: Sequence[Claim]) -> None:
        """Link to the runs whose records the claims have met, to each once."""
        if not self._links:
            return
        met: dict[bytes, Outcome] = {}
        for claim in claims:
            if former := former_trace(claim.settlement.verdict):
                met.setdefault(former, claim.outcome)
        if met:
            # A claim that got its own key back, after a release.
            met.pop(ids_of(span.get_span_context()), None)
        for former, outcome in islice(met.items(), _MOST_LINKS):
            span.add_link(context_of(former), {"fastdedup.link": _RUNS[outcome]})

    # Work

    def working(self, claim: Claim) -> Working | None:
        """Return the span of the work, which becomes the current one; None outside of a sampled trace."""
        if not hasattr(claim.settlement, "trace"):
            return None
        namespace = claim.settlement.gate.settings.namespace
        attributes: dict[str, Any] = {"fastdedup.namespace": namespace, "fastdedup.attempt": claim.attempt}
        span = self._tracer.start_span(
            f"work {namespace}", attributes=attributes, links=links_of(claim.settlement)
        )
        return Working(span, contexts.attach(trace.set_span_in_context(span)))

    def worked(self, span: Working, error: BaseException | None) -> None:
        """End the span of the work."""
        contexts.detach(span.token)
        self.ended(span.span, error)

    # Settling

    def settling(self, settlement: Settlement, how: str) -> Span | None:
        """Return the span of a settling: in the current trace, or if there is none, in the claim's own."""
        where: Context | None = None
        if not self.is_wanted():
            if self._read().get(self._key) is not None or not hasattr(settlement, "trace"):
                return None
            where = trace.set_span_in_context(NonRecordingSpan(settlement.trace))  # type: ignore[arg-type]
        gate, verb = settlement.gate, _SETTLINGS[how]
        part = gate.connection.part_of(settlement.op.wire).decode()
        links = links_of(settlement)
        return self._sent(gate.settings.namespace, verb, settlement.key, part, links, where)

    def ended(self, span: Span, error: BaseException | None) -> None:
        """End a span; it shows only the type of an error, because the text may hold a key."""
        if error is not None:
            span.set_status(StatusCode.ERROR)
            span.set_attribute("error.type", type(error).__name__)
        span.end()

    def _sent(
        self,
        namespace: str,
        verb: str,
        key: str,
        part: str,
        links: list[Link] | None = None,
        where: Context | None = None,
    ) -> Span:
        attributes: dict[str, Any] = {"fastdedup.namespace": namespace, **server_of(part)}
        if "db.system.name" in attributes:
            attributes["db.stored_procedure.name"] = "claim" if verb == "claim_many" else verb
        if self._keys and key:
            attributes["fastdedup.key"] = key
        kind = SpanKind.CLIENT if "db.system.name" in attributes else SpanKind.INTERNAL
        return self._tracer.start_span(
            f"{verb} {namespace}", context=where, kind=kind, attributes=attributes, links=links
        )


def instrument(
    dedup: Dedup | SyncDedup,
    *messages: Any,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
    keys: bool = False,
    roots: bool = False,
    links: bool = True,
    histograms: bool = False,
) -> None:
    """Let a gate, with all its scopes, make spans and metrics.

    Args:
        dedup: a gate that is not open yet.
        messages: consumers of messages and inboxes, whose counts are shown too.
        tracer_provider: the global one by default.
        meter_provider: the global one by default.
        keys: show keys in the spans, in the attribute `fastdedup.key`. A token's is a digest.
        roots: make spans also if no span is current, each in a trace of its own.
        links: keep the ids of the trace and the span with the record of a claim that is made in a sampled trace, so
            that the span of a duplicate or of a takeover links to the run before. Such a record takes some 40 bytes
            more, and has at most the last 13 bytes of a `holder=`. False: records have no ids, and spans no links.
        histograms: record the time of each operation, wait and batch; that costs more than the claim itself.

    Raises:
        UsageError: the gate is open already.
        ConfigError: `dedup` is not a gate; one of `messages` is neither a consumer nor an inbox.
    """
    if not isinstance(dedup, Dedup | SyncDedup):
        raise ConfigError(f"instrument() takes a Dedup, got {named(dedup)}")
    for each in messages:
        if not is_watchable(each):
            raise ConfigError(f"instrument() takes a Dedup, then inboxes and consumers, got {named(each)}")
    for name, value in (("keys", keys), ("roots", roots), ("links", links), ("histograms", histograms)):
        check_flag(value, name)
    spans = Spans(tracer_provider, keys=keys, roots=roots, links=links)

    def attach(connections: Connections) -> None:
        counters, observers = connections.count(), connections.common.observers
        observers.tracing = spans
        observers.context, observers.span_key = spans.quick_look
        if histograms:
            counters.durations = Histograms(connections, meter_provider)

    watched = watched_with(meter_provider)
    watched.add_gate(dedup, attach)
    for each in messages:
        watched.add(each)


def links_of(settlement: Settlement) -> list[Link]:
    """Return a link to the span of a claim, for the spans of later steps."""
    found = getattr(settlement, "trace", None)
    return [Link(found)] if isinstance(found, SpanContext) else []


def ids_of(context: SpanContext) -> bytes:
    """Return the ids of a span's trace and of the span, 24 bytes."""
    return context.trace_id.to_bytes(16, "big") + context.span_id.to_bytes(8, "big")


def context_of(trace_and_span: bytes) -> SpanContext:
    """Return the context of the span in which another claim was made, in this process or another."""
    return SpanContext(
        int.from_bytes(trace_and_span[:16], "big"),
        int.from_bytes(trace_and_span[16:TRACE_BYTES], "big"),
        is_remote=True,
        trace_flags=TraceFlags(TraceFlags.SAMPLED),
    )


def current_context() -> tuple[Callable[[], Mapping[str, Any]], str]:
    """Return the function that finds the current context, and the key of the span in it.

    `trace.get_current_span()` makes four Python calls, which is a tenth of a claim. If the context is Python's own
    `ContextVar` (the default), it is read directly.
    """
    variable = getattr(getattr(contexts, "_RUNTIME_CONTEXT", None), "_current_context", None)
    key = getattr(trace.propagation, "_SPAN_KEY", None)
    if not isinstance(variable, ContextVar) or not isinstance(key, str):
        return _current_context, "span"
    return variable.get, key


def _current_context() -> Mapping[str, Any]:
    span = trace.get_current_span()
    return {} if span is trace.INVALID_SPAN else {"span": span}
