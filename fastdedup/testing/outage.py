"""Outages that a test switches on and off, and their effect on a store's operations."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Literal, get_args

from ..checks import check_count
from ..errors import ConfigError, UnavailableError, UsageError
from ..kernel.operations import AdoptOp, Op, Reply
from ..kernel.verbs import Effect, Verb
from ..tasks import running_loop

Kind = Literal["refused", "frozen", "lost_reply"]
"""refused: the store refuses at once, and does nothing. frozen: it gives no answer until the outage ends, and then
executes the operations of that time. lost_reply: it executes the operations, and the answer is lost."""


class Outage:
    """A switch: `with outage("frozen"):`, or `start` and `stop`. Off at first.

    While it is on, a gate behaves as without Redis: its policy answers, and after three failures its breaker opens.
    When it ends, the breaker closes at once.
    """

    def __init__(self) -> None:
        # Mutable: the kind, None while it is off; how many batches it still hits, None for all; the callbacks.
        self._kind: Kind | None = None
        self._left: int | None = None
        self.on_stop: list[Callable[[], None]] = []
        """Called when it ends."""

    def __repr__(self) -> str:
        return f"<Outage {self._kind or 'off'}>"

    @property
    def kind(self) -> Kind | None:
        """The kind of the present outage; None while the store answers."""
        return self._kind

    def start(self, kind: Kind = "refused", *, times: int | None = None) -> None:
        """Switch it on. `times`: end it by itself after so many calls of the store; see `Kind`.

        A call of the store is a batch: the operations that a gate gets in one turn of the event loop.

        Raises:
            ConfigError: there is no such kind; or `times` is given for a frozen store, which goes on at `stop`.
            UsageError: it is already on.
        """
        if kind not in get_args(Kind):
            raise ConfigError(f"an outage is one of {', '.join(get_args(Kind))}, got {kind!r}")
        if times is not None and (kind == "frozen" or check_count(times, "times") < 1):
            raise ConfigError("times= goes with refused and lost_reply; a frozen store goes on at stop()")
        if self._kind is not None:
            raise UsageError(f"the outage {self._kind!r} is on already: stop() it first")
        self._kind, self._left = kind, times

    def stop(self) -> None:
        """Switch it off. Stopping twice is fine."""
        if self._kind is None:
            return
        self._kind = None
        for told in tuple(self.on_stop):
            told()

    @contextmanager
    def __call__(self, kind: Kind = "refused", *, times: int | None = None) -> Iterator[Outage]:
        """Switch it on for the body of a `with`. Arguments and errors: see `start`."""
        self.start(kind, times=times)
        try:
            yield self
        finally:
            self.stop()

    def hits(self, kind: Kind) -> bool:
        """True if this kind of outage hits the present call of the store; the call is counted."""
        if self._kind != kind:
            return False
        if self._left is not None:
            self._left -= 1
            if not self._left:
                self.stop()
        return True


@dataclass(frozen=True, slots=True)
class FrozenBatch:
    """One batch for a frozen store, and the callers that wait for its answer."""

    verb: Verb
    ops: Sequence[Op]
    waits: asyncio.Future[Sequence[Reply]]

    def answer(self, replies: Sequence[Reply]) -> None:
        """Answer, if a caller still waits, from any thread."""
        in_loop(self.waits.get_loop(), partial(self._set, replies))

    def _set(self, replies: Sequence[Reply]) -> None:
        if not self.waits.done():
            self.waits.set_result(replies)


_HARMFUL_LATE = tuple(
    verb for verb in Verb if verb.row.effect in (Effect.MAKES, Effect.REMOVES) and not verb.row.of_ledger
)


def is_another_thing_later(verb: Verb, ops: Sequence[Op]) -> bool:
    """True for operations that would have another meaning if they took effect minutes late.

    A late removal would remove the record of another owner; and a token that is issued late can be used for longer
    than its issuer expects.
    """
    adopts = [op for op in ops if isinstance(op, AdoptOp)]
    return verb in _HARMFUL_LATE or any(op.record.state == "I" for op in adopts)


def in_loop(loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> None:
    """Call a function in an event loop: at once if this is that loop, otherwise soon, unless the loop is closed."""
    if running_loop() is loop:
        callback()
        return
    with suppress(RuntimeError):  # it is closed: no caller is left
        loop.call_soon_threadsafe(callback)


def refused() -> UnavailableError:
    """Return the error of a store that refuses."""
    return UnavailableError("the test's outage: the store refuses every call")


def reply_lost() -> UnavailableError:
    """Return the error of a call that took effect without a reply."""
    return UnavailableError("the test's outage: the reply was lost, what was asked for has happened")
