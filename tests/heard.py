"""A gate, and the events that it reported."""

from __future__ import annotations

from typing import Any, Self

from fastdedup import Dedup
from fastdedup.events import Event


class HeardGate:
    """A gate, open within its block.

    Attributes:
        events: what it has reported so far.
    """

    def __init__(self, store: Any, **options: Any) -> None:
        self.events: list[Event] = []
        self.dedup = Dedup(store, on_event=self.events.append, **options)

    async def __aenter__(self) -> Self:
        await self.dedup.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.dedup.aclose()

    def of(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]
