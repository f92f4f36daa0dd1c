"""The interface of a tracer, such as `integrations/opentelemetry.py`, for a gate."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Protocol


class Tracing(Protocol):
    """Makes the spans of claims, of the work under them, and of their settling. A span may be any object."""

    def is_wanted(self) -> bool:
        """True if a claim that begins now gets a span. Each claim calls it, so it must be cheap."""
        ...

    def claiming(self, namespace: str, verb: str, key: str, part: str) -> Any:
        """Return the span of a claim. `verb`: claim, lock, redeem or consume. `part`: the part of the store."""
        ...

    def trace_of(self, span: Any) -> bytes:
        """Return the bytes of this span for a claim's record: the ids of its trace and of the span, 24 bytes.

        Empty if the record gets none, for example outside of a sampled trace.
        """
        ...

    def claiming_many(self, namespace: str, keys: int, part: str) -> Any:
        """Return the span of a list of claims; arguments: see `claiming`."""
        ...

    def claimed_many(self, span: Any, claims: Any) -> None:
        """End the span of a list of claims that was answered."""
        ...

    def claimed(self, span: Any, claim: Any) -> None:
        """End the span of a claim that was answered."""
        ...

    def working(self, claim: Any) -> Any:
        """Return the span of the work under an acquired claim, and make it the current one; None for no span."""
        ...

    def worked(self, span: Any, error: BaseException | None) -> None:
        """End the span of the work, and make the former span the current one."""
        ...

    def settling(self, settlement: Any, how: str) -> Any:
        """Return the span of a claim's settling; None for no span. `how`: completed, failed or released."""
        ...

    def ended(self, span: Any, error: BaseException | None) -> None:
        """End the span of a claim that got an error, or of a settling."""
        ...


async def traced(tracing: Tracing, span: Any, settling: Coroutine[Any, Any, None]) -> None:
    """Settle within a span."""
    try:
        await settling
    except BaseException as error:
        tracing.ended(span, error)
        raise
    tracing.ended(span, None)
