"""The part that inboxes of async and of synchronous code share: their settings, and the flows of their methods."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncContextDecorator, ContextDecorator
from typing import Any, ClassVar, Final, Generic, Self, TypeVar

from ..checks import Seconds, call_text, shown, takes, with_article
from ..codec import Codec
from ..errors import ConfigError, UsageError
from ..keys import mark_of, marks_of
from .bridge import InboxBridge, driver_over
from .dialects.base import TableName
from .drivers.base import run
from .receipt import AnyReceipt
from .rules import MAX_RESULT, TABLE, Busy, InboxRules

DAY: Final = 86_400.0


B = TypeVar("B")
"""A function that begins a transaction, of async or of synchronous code."""


class AnyInbox(Generic[B]):
    """The settings of an inbox, and its flows. Arguments and errors: see `Inbox`."""

    bridge: ClassVar[InboxBridge]
    """The steps that differ between async and synchronous code."""
    receipt: ClassVar[Callable[..., AnyReceipt]]
    """The type of `receive`'s answer."""

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
        """Return the function that begins a transaction: the call's own `begin=`, else the inbox's.

        Raises:
            ConfigError: neither was given; it is a transaction and no function; or it needs arguments.
        """
        begin = begin or self._begin
        if begin is None:
            raise ConfigError(
                "this needs a transaction of its own: give it, or the inbox, begin=, such as begin=Session.begin"
            )
        # Some can be called: what @contextmanager and Django's atomic() return as decorators, and a connection of
        # sqlite3 with a statement. Some builds of Python have no sqlite3.
        sqlite3: Any = sys.modules.get("sqlite3")
        is_connection = sqlite3 is not None and isinstance(begin, sqlite3.Connection)
        if (
            is_connection
            or not callable(begin)
            or isinstance(begin, ContextDecorator | AsyncContextDecorator)
        ):
            raise ConfigError(
                f"begin= must be a function that returns a new transaction, got "
                f"{with_article(type(begin).__name__)}: write begin=Session.begin, without ()"
            )
        if not takes(begin, 0):
            raise ConfigError(
                f"begin= is called without arguments, which {call_text(begin)} does not allow: write "
                "begin=Session.begin, with Session = sessionmaker(engine), or a function of your own"
            )
        return begin

    def storing(self, codec: Codec, max_result: int, limit: str) -> Self:
        """Return an inbox of the same rows, and of the same figures, that encodes results in another way.

        `limit`: the setting that `max_result` comes from, for errors.
        """
        rules, table = self._rules, self.table
        other = type(self)(
            rules.name,
            keep=rules.keep,
            table=table.table,
            schema=table.schema,
            begin=self._begin,
            codec=codec,
            max_result=max_result,
        )
        other.rules.received, other.rules.limit = rules.received, limit
        return other

    # The flows of `Inbox`'s methods

    async def receive_flow(
        self, transaction: Any, key: str, fingerprint: Any = None, busy: Busy = "wait"
    ) -> Any:
        """Receive a key by the flow of `receive`, for code of both kinds; see `fastdedup.flows`."""
        rules, driver = self._rules, driver_over(self.bridge, transaction)
        row_id = rules.id_of(key)
        flow = rules.receive(driver.database, row_id, busy, mark_of(fingerprint))
        found = await run(driver, flow, rules.table_name)
        return self.receipt(rules, driver, key, row_id, found)

    async def _receive_many(
        self, transaction: Any, keys: Sequence[str], fingerprints: Sequence[Any] | None, busy: Busy
    ) -> list[Any]:
        if isinstance(keys, str | bytes) or not isinstance(keys, Iterable):
            raise UsageError(f"receive_many() takes a list of keys, got {shown(keys)}")
        rules, driver, keys = self._rules, driver_over(self.bridge, transaction), list(keys)
        ids = [rules.id_of(key) for key in keys]
        marks = marks_of(fingerprints, keys)
        found = await run(driver, rules.receive_many(driver.database, ids, busy, marks), rules.table_name)
        return [self.receipt(rules, driver, *each) for each in zip(keys, ids, found, strict=True)]
