"""Which client's expensive read runs next. Main path: `ReadTurns.turn`.

Reads in the order of their arrival would let one client with 200 of them refuse the lists of all others.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from .limits import LimitError

_SHARE: Final = 3.0
"""The pause after a read, in lengths of that read, up to `_LONGEST_PAUSE` seconds."""
_LONGEST_PAUSE: Final = 0.5
_WAITING: Final = 1024
"""The reads of one socket that wait for their turn."""
_BUSY: Final = (
    "too many clients ask for lists of records and figures of ledgers, which take turns: ask again later"
)

Line = dict[asyncio.Future[None], None]
"""Reads that wait, in the order of their arrival: a read that gives up leaves a dict at once."""


class ReadTurns:
    """Runs one read at a time. Sockets take turns, then the client processes of a socket, then a process's reads.

    Each socket is a tenant, so no tenant delays another one by more than a read.

    Args:
        patience: the seconds that a read waits for its turn.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        # Mutable: does a read run, or the pause after it; the reads that wait, by socket, then by process. The socket
        # and the process that stand first are next; there is no empty line.
        self._taken = False
        self._sockets: dict[str, dict[int | None, Line]] = {}

    @asynccontextmanager
    async def turn(self, socket: str, peer: Any) -> AsyncIterator[None]:
        """Wait for the turn of a read; a pause follows it, because claims need the store and the event loop, too.

        Args:
            socket: the path of the socket that the client is connected to.
            peer: the client's process; None if the system does not tell.

        Raises:
            LimitError: too many wait, or it has waited for too long.
        """
        loop = asyncio.get_running_loop()
        if self._taken:
            await self._wait(socket, None if peer is None else peer.pid)
        self._taken = True
        began = loop.time()
        try:
            yield
        finally:
            loop.call_later(min(_SHARE * (loop.time() - began), _LONGEST_PAUSE), self._pass_on)

    async def _wait(self, socket: str, process: int | None) -> None:
        lines = self._sockets.get(socket, {})
        if sum(map(len, lines.values())) >= _WAITING:
            raise LimitError(_BUSY)
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        self._sockets.setdefault(socket, lines).setdefault(process, {})[turn] = None
        timer = loop.call_later(self._patience, _refuse, turn)
        try:
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self._pass_on()  # cancelled when its turn had come
            else:
                self._leave(socket, process, turn)
            raise
        finally:
            timer.cancel()

    def _pass_on(self) -> None:
        """Give the turn to the next read that still waits."""
        while self._sockets:
            turn = self._next()
            if not turn.done():  # else refused or cancelled: its task has not run since
                turn.set_result(None)
                return
        self._taken = False

    def _next(self) -> asyncio.Future[None]:
        """Take the first read out of its line; its process and its socket go to the ends of theirs."""
        socket, lines = next(iter(self._sockets.items()))
        process, line = next(iter(lines.items()))
        turn = next(iter(line))
        del line[turn], lines[process], self._sockets[socket]
        if line:
            lines[process] = line
        if lines:
            self._sockets[socket] = lines
        return turn

    def _leave(self, socket: str, process: int | None, turn: asyncio.Future[None]) -> None:
        lines = self._sockets.get(socket, {})
        line = lines.get(process, {})
        line.pop(turn, None)
        if not line:
            lines.pop(process, None)
        if not lines:
            self._sockets.pop(socket, None)


def _refuse(turn: asyncio.Future[None]) -> None:
    if not turn.done():
        turn.set_exception(LimitError(_BUSY))
