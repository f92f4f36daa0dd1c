"""Operations and records of the kernel, of which a test says only what it is about."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from fastdedup.kernel.operations import TransitionOp
from fastdedup.kernel.records import Stored

MINUTE = 60_000


def stored(state: str, owner: bytes, **facts: Any) -> Stored:
    """Return a record of a first claim that has a minute left."""
    usual = {
        "fence": 7,
        "attempt": 1,
        "left_ms": MINUTE,
        "ttl_ms": MINUTE,
        "fingerprint": None,
        "payload": b"1",
    }
    return Stored(state, owner=owner, **{**usual, **facts})


def move(
    wire: bytes,
    to: str,
    initial: str,
    sources: Collection[str] = (),
    *,
    version: int | None = None,
    change: bytes = b"c" * 10,
    keep_ms: int = MINUTE,
) -> TransitionOp:
    """Return the move of a machine; without sources, from its initial state."""
    return TransitionOp(
        wire,
        to=to,
        initial=initial,
        sources=frozenset(sources or {initial}),
        version=version,
        change=change,
        keep_ms=keep_ms,
    )
