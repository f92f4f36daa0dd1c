"""Spans and metrics of gates for OpenTelemetry; `pip install 'fastdedup[opentelemetry]'`, which is its API alone.

    dedup = Dedup("redis://localhost:6379/0", namespace="shop")
    instrument(dedup)                # by the global providers, before the gate is opened

Within a trace that is sampled, a claim is a span `claim shop`, the body of its `async with` a span `work shop`, and
settling it a span `complete shop`, `fail shop` or `release shop`. See `docs/watching.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, NamedTuple

try:
    from opentelemetry import context as contexts
    from opentelemetry import metrics, trace
    from opentelemetry.context import Context
    from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation
    from opentelemetry.trace import (
        Link,
        NonRecordingSpan,
        Span,
        SpanContext,
        SpanKind,
        StatusCode,
        TracerProvider,
    )
except ImportError as error:
    raise ImportError(
        "fastdedup.integrations.opentelemetry needs its API: pip install 'fastdedup[opentelemetry]'"
    ) from error

from ..checks import named
from ..claim import Claim
from ..errors import ConfigError
from ..gate.connection import Connection
from ..gate.counters import GateCounters
from ..gateway import Dedup
from ..model import BreakerState
from ..sync.gateway import Dedup as SyncDedup

_SCOPE = "fastdedup"
_SETTLINGS = {"completed": "complete", "failed": "fail", "released": "release"}
_OF_REDIS = "Redis at "
_COMMAND = "EVALSHA"
"""The command of Redis that every operation of the gate is sent by, many of them at once."""


class Working(NamedTuple):
    """The span of the work under a claim, and what makes the former span the current one again."""

    span: Span
    token: Any


class Spans:
    """Makes a gate's spans.

    Args:
        provider: of tracers; the global one by default.
        keys: show keys in the spans.
        roots: make spans also where no span is current: for programs whose work begins with the claim.
    """

    def __init__(self, provider: TracerProvider | None, *, keys: bool, roots: bool) -> None:
        self._tracer = trace.get_tracer(_SCOPE, tracer_provider=provider)
        self._keys = keys
        self._roots = roots
        self._read, self._key = current_context()

    def is_wanted(self) -> bool:
        """True within a sampled trace; without any where `roots` are."""
        span = self._read().get(self._key)
        return self._roots if span is None else span.is_recording()

    @property
    def quick_look(self) -> tuple[Callable[[], Any] | None, str]:
        """What `Watchers` may read instead of asking `is_wanted`, and its key."""
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
        claim._trace = span.get_span_context()
        span.end()

    # Work

    def working(self, claim: Claim) -> Working | None:
        """Return the span of the work, as the current one; None outside of a sampled trace."""
        if not hasattr(claim, "_trace"):
            return None
        namespace = claim._namespace.settings.namespace
        attributes: dict[str, Any] = {"fastdedup.namespace": namespace, "fastdedup.attempt": claim.attempt}
        span = self._tracer.start_span(f"work {namespace}", attributes=attributes, links=links_of(claim))
        return Working(span, contexts.attach(trace.set_span_in_context(span)))

    def worked(self, span: Working, error: BaseException | None) -> None:
        """End the span of the work."""
        contexts.detach(span.token)
        self.ended(span.span, error)

    # Settling

    def settling(self, claim: Claim, how: str) -> Span | None:
        """Return the span of a settling: in the current trace, or where there is none, in the claim's own."""
        where: Context | None = None
        if not self.is_wanted():
            if self._read().get(self._key) is not None or not hasattr(claim, "_trace"):
                return None
            where = trace.set_span_in_context(NonRecordingSpan(claim._trace))  # type: ignore[arg-type]
        connection = claim._namespace.connection
        part = connection.part_of(claim._call.wire).decode()
        verb = _SETTLINGS[how]
        return self._sent(claim._namespace.settings.namespace, verb, claim.key, part, links_of(claim), where)

    def ended(self, span: Span, error: BaseException | None) -> None:
        """End a span; of an error it shows the type, as the text may hold a key."""
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
            attributes["db.stored_procedure.name"] = verb
        if self._keys:
            attributes["fastdedup.key"] = key
        kind = SpanKind.CLIENT if "db.system.name" in attributes else SpanKind.INTERNAL
        return self._tracer.start_span(
            f"{verb} {namespace}", context=where, kind=kind, attributes=attributes, links=links
        )


class GateObservations:
    """A gate's figures as OpenTelemetry's metrics, read when these are exported: to record each costs a span's time.

    Args:
        connection: the gate's.
        provider: of meters; the global one by default.
    """

    def __init__(self, find: Callable[[], Connection], provider: MeterProvider | None) -> None:
        self._find = find
        meter = metrics.get_meter(_SCOPE, meter_provider=provider)
        for name, unit, text, observe in (
            ("fastdedup.operations", "{operation}", "Operations answered.", self._operations),
            ("fastdedup.degraded", "{operation}", "Asked the policy instead.", self._degraded),
            ("fastdedup.conflicts", "{key}", "Keys with two owners after an outage.", self._conflicts),
            ("fastdedup.leases_lost", "{lease}", "Leases that could not be renewed.", self._leases_lost),
            ("fastdedup.store.calls", "{call}", "Batches to the store.", self._calls),
            ("fastdedup.store.time", "s", "Seconds of the batches to the store, added up.", self._time),
            ("fastdedup.ledger.ids", "{id}", "Ids of ledgers by their answer.", self._ids),
        ):
            meter.create_observable_counter(name, [observe], unit=unit, description=text)
        for name, unit, text, observe in (
            ("fastdedup.pending", "{operation}", "Operations waiting or under way.", self._pending),
            (
                "fastdedup.breaker.open",
                "1",
                "1 while the store, or a part of it, is not asked.",
                self._breaker,
            ),
        ):
            meter.create_observable_gauge(name, [observe], unit=unit, description=text)

    @property
    def _counters(self) -> GateCounters:
        return self._find().count()

    def _operations(self, options: CallbackOptions) -> Iterator[Observation]:
        for namespace, verb, outcome, cells in self._counters.answers():
            attributes = {
                "fastdedup.namespace": namespace,
                "fastdedup.verb": verb,
                "fastdedup.outcome": outcome,
            }
            yield Observation(int(sum(cells[:-1])), attributes)

    def _degraded(self, options: CallbackOptions) -> Iterator[Observation]:
        for (namespace, verb, answered), count in list(self._counters.degraded.items()):
            attributes = {
                "fastdedup.namespace": namespace,
                "fastdedup.verb": verb,
                "fastdedup.answered": answered,
            }
            yield Observation(count, attributes)

    def _conflicts(self, options: CallbackOptions) -> Iterator[Observation]:
        for kept, count in list(self._counters.conflicts.items()):
            yield Observation(count, {"fastdedup.kept": kept})

    def _leases_lost(self, options: CallbackOptions) -> Iterable[Observation]:
        return [Observation(self._counters.leases_lost)]

    def _ids(self, options: CallbackOptions) -> Iterator[Observation]:
        for (namespace, ledger, answer), count in list(self._counters.ledger_ids.items()):
            attributes = {
                "fastdedup.namespace": namespace,
                "fastdedup.ledger": ledger,
                "fastdedup.answer": answer,
            }
            yield Observation(count, attributes)

    def _calls(self, options: CallbackOptions) -> Iterator[Observation]:
        for verb, cells in list(self._counters.store_calls.items()):
            yield Observation(int(sum(cells[:-1])), {"db.stored_procedure.name": verb})

    def _time(self, options: CallbackOptions) -> Iterator[Observation]:
        for verb, cells in list(self._counters.store_calls.items()):
            yield Observation(cells[-1], {"db.stored_procedure.name": verb})

    def _pending(self, options: CallbackOptions) -> Iterable[Observation]:
        engine = self._find().engine
        return [Observation(0 if engine is None else engine.pending)]

    def _breaker(self, options: CallbackOptions) -> Iterable[Observation]:
        return [Observation(int(self._find().breaker is not BreakerState.CLOSED))]


def instrument(
    dedup: Dedup | SyncDedup,
    *,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
    keys: bool = False,
    roots: bool = False,
) -> None:
    """Let a gate, with all its scopes, make spans and metrics.

    Args:
        dedup: a gate that is not open yet.
        tracer_provider: the global one by default.
        meter_provider: the global one by default.
        keys: show keys in the spans, as the attribute `fastdedup.key`. A token's is a digest.
        roots: make spans also where no span is current, each of a trace of its own.

    Raises:
        UsageError: the gate is open already.
        ConfigError: it is no gate.
    """
    spans = Spans(tracer_provider, keys=keys, roots=roots)
    if isinstance(dedup, SyncDedup):
        processes = dedup._per_process
        processes.on_made(lambda made: _attach(made._namespace.connection, spans))
        GateObservations(lambda: processes.present._namespace.connection, meter_provider)
        return
    if not isinstance(dedup, Dedup):
        raise ConfigError(f"instrument() takes a Dedup, got {named(dedup)}")
    connection = dedup._namespace.connection
    _attach(connection, spans)
    GateObservations(lambda: connection, meter_provider)


def _attach(connection: Connection, spans: Spans) -> None:
    connection.count()
    connection.watchers.tracing = spans
    connection.watchers.context, connection.watchers.span_key = spans.quick_look


def links_of(claim: Claim) -> list[Link]:
    """Return a link to the span of a claim, for the spans of what follows it."""
    found = getattr(claim, "_trace", None)
    return [Link(found)] if isinstance(found, SpanContext) else []


def server_of(part: str | bytes) -> dict[str, str | int]:
    """Return the attributes of a part of the store, by its name as events show it."""
    name = part if isinstance(part, str) else part.decode()
    if not name.startswith(_OF_REDIS):
        return {}
    address = name.removeprefix(_OF_REDIS)
    host, _, port = address.rpartition(":")
    where: dict[str, str | int] = {"db.system.name": "redis", "db.operation.name": _COMMAND}
    if address.startswith("/") or not port.isdigit():
        return {**where, "server.address": address}
    return {**where, "server.address": host.strip("[]"), "server.port": int(port)}


def current_context() -> tuple[Callable[[], Mapping[str, Any]], str]:
    """Return what finds the current context, and the key of the span in it.

    `trace.get_current_span()` makes four Python calls, which is a tenth of a claim. Where the context is Python's own
    `ContextVar`, as by default, it is read at once.
    """
    variable = getattr(getattr(contexts, "_RUNTIME_CONTEXT", None), "_current_context", None)
    key = getattr(trace.propagation, "_SPAN_KEY", None)
    if not isinstance(variable, ContextVar) or not isinstance(key, str):
        return _current_context, "span"
    return variable.get, key


def _current_context() -> Mapping[str, Any]:
    span = trace.get_current_span()
    return {} if span is trace.INVALID_SPAN else {"span": span}
