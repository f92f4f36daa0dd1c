"""What inboxes of async and of synchronous code share: their settings, and the ids of their keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from ..checks import Seconds
from ..codec import Codec
from ..errors import ConfigError
from ..keys import Fingerprint
from ..keys import fingerprint as as_fingerprint
from .dialects.base import TableName
from .rules import MAX_RESULT, TABLE, InboxRules


def mark_of(fingerprint: Any) -> Fingerprint | None:
    """Return the 16 bytes that a row keeps of a caller's `fingerprint=`."""
    return None if fingerprint is None else as_fingerprint(fingerprint)


def marks_of(fingerprints: Sequence[Any] | None, keys: Sequence[str]) -> list[Fingerprint | None]:
    """Return a fingerprint for each key.

    Raises:
        ConfigError: there is not one for each.
    """
    if fingerprints is None:
        return [None] * len(keys)
    if len(fingerprints) != len(keys):
        raise ConfigError(f"{len(fingerprints)} fingerprints for {len(keys)} keys: give one for each")
    return [mark_of(each) for each in fingerprints]


B = TypeVar("B")
"""What begins a transaction: of async, or of synchronous code."""


class AnyInbox(Generic[B]):
    """The settings of an inbox. Arguments and errors as for `Inbox`."""

    def __init__(
        self,
        name: str,
        *,
        keep: Seconds,
        table: str = TABLE,
        schema: str | None = None,
        begin: B | None = None,
        codec: Codec | None = None,
        max_result: int = MAX_RESULT,
    ) -> None:
        self._rules = InboxRules(
            name, keep=keep, table=table, schema=schema, codec=codec, max_result=max_result
        )
        self._begin = begin

    def __repr__(self) -> str:
        return f"<Inbox {self.name!r} in {self.table}>"

    @property
    def name(self) -> str:
        """The consumer's name."""
        return self._rules.name

    @property
    def table(self) -> TableName:
        """The table."""
        return self._rules.table_name

    @property
    def rules(self) -> InboxRules:
        """The checked settings and the statements, without I/O; for consumers and metrics, which work with these."""
        return self._rules

    def id_of(self, key: str) -> bytes:
        """Return the 16 bytes that stand for a key in the table, for a statement of your own.

        PostgreSQL's column takes them as a UUID: `UUID(bytes=inbox.id_of(key))`.

        Raises:
            InvalidKeyError: the key cannot be used.
        """
        return self._rules.id_of(key)

    def gate_key(self, key: str) -> str:
        """Return the key of a message's record in the gate before this inbox: for `get`, `inspect` and `forget`.

        Raises:
            InvalidKeyError: the key cannot be used.
        """
        return self._rules.gate_key(key)

    def beginning(self, begin: B | None) -> B:
        """Return what begins a transaction: the call's own `begin=`, else the inbox's.

        Raises:
            ConfigError: neither was given.
        """
        begin = begin or self._begin
        if begin is None:
            raise ConfigError(
                "this needs a transaction of its own: give it, or the inbox, begin=, such as begin=Session.begin"
            )
        return begin
