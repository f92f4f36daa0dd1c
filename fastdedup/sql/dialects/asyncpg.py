"""PostgreSQL with plain asyncpg: its own UUIDs."""

from __future__ import annotations

from typing import Any

from asyncpg.pgproto import pgproto

from .postgresql import PostgreSQL


class Asyncpg(PostgreSQL):
    """C code makes and sends asyncpg's UUID, a `uuid.UUID`. That is a third of a receive's cost beyond the driver."""

    def _value(self, row_id: bytes) -> Any:
        return pgproto.UUID(row_id)
