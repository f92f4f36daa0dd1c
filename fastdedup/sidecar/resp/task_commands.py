"""The commands that run in a task."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from time import perf_counter
from typing import Any

from ...core.counters import outcome_of
from ...gateway import Dedup
from ..counters import is_bad
from ..releases import Grant
from ..reply_memory import LARGE
from ..turns import TaskLine
from .connection import RespConnection
from .errors import error_reply

Result = tuple[bytes, str, Sequence[Grant]]
"""What a command comes to: its reply, in one word its outcome, for the counters, and what it grants."""


class TaskCommand:
    """A command that runs in a task, and its place in the order of replies.

    A client may have 1,000 that wait for their tasks, so each is one object. Its reply is in the protocol that the
    connection had when the command came: a HELLO behind it may run before it.

    Args:
        connection: the client's.
        command: its parts.
        dedup: its namespace's, for the metrics.
        verb: its name, for the metrics.
        line: its place among the client's tasks, one of `connection.tasks`.
        repeatable: it may have a large reply, and then may run again.
    """

    # No Slot: a compiled class with __call__ crashes if its base has none.
    __slots__ = (
        "_line",
        "_repeatable",
        "_since",
        "connection",
        "dedup",
        "grants",
        "reply",
        "resp3",
        "size",
        "verb",
    )

    def __init__(
        self,
        connection: RespConnection,
        command: list[bytes],
        dedup: Dedup,
        verb: str,
        line: TaskLine,
        *,
        repeatable: bool = False,
    ) -> None:
        self.reply: bytes | None = None
        self.grants: Sequence[Grant] = ()
        self.size = sum(map(len, command))
        self.connection = connection
        self.dedup = dedup
        self.verb = verb
        self.resp3 = connection.resp3
        self._since = connection.at  # 0.0 once it was counted
        self._line = line
        self._repeatable = repeatable

    async def work(self) -> Result:
        """Do what the command asks for."""
        raise NotImplementedError

    def run(self) -> TaskCommand:
        """Run in a task, now or after earlier commands of its line; return this place."""
        self._line.add(self)
        return self

    async def __call__(self) -> None:
        """Answer with what the command returns or raises, and count that, the first time that it runs."""
        connection = self.connection
        try:
            reply, outcome, self.grants = await self.work()
        except Exception as fault:  # noqa: BLE001 -- the client gets every error as a reply
            connection.counters.bad_requests += is_bad(fault)
            reply, outcome = error_reply(fault), outcome_of(fault)
        if self._since:
            name, took = self.dedup.settings.namespace, perf_counter() - self._since
            connection.counters.observe(name, self.verb, outcome, took)
            self._since = 0.0
        if self._repeatable and len(reply) >= LARGE:
            connection.answer_at_length(self, reply, partial(bytes, reply), self.run)
        else:
            connection.answer(self, reply)


class FunctionCommand(TaskCommand):
    """A command that an async function does."""

    __slots__ = ("_function",)

    def __init__(
        self,
        connection: RespConnection,
        command: list[bytes],
        dedup: Dedup,
        verb: str,
        line: TaskLine,
        function: Callable[[], Coroutine[Any, Any, Result]],
    ) -> None:
        super().__init__(connection, command, dedup, verb, line)
        self._function = function

    async def work(self) -> Result:
        """Do what the function does."""
        return await self._function()
