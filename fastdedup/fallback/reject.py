"""Reject: refuses every operation while the store is unavailable, and says when to try again."""

from __future__ import annotations

from typing import NoReturn

from ..checks import check_seconds
from ..errors import UnavailableError
from ..kernel.operations import Op


class Reject:
    """Raises UnavailableError for every operation while the store is unavailable (HTTP 503).

    Args:
        retry_after: the seconds for clients (HTTP `Retry-After`).
    """

    def __init__(self, *, retry_after: float = 1.0) -> None:
        self._retry_after = check_seconds(retry_after, "retry_after")

    def __repr__(self) -> str:
        return f"Reject(retry_after={self._retry_after:.15g})"

    def answer(self, op: Op, error: UnavailableError) -> NoReturn:
        """Raise UnavailableError with the reason, and the seconds after which to try again."""
        raise UnavailableError(*error.args, retry_after=self._retry_after) from None

    def holds(self, wire: bytes) -> bool:
        """Return False: this policy keeps no records."""
        return False
