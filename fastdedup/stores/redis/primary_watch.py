"""Leaves a primary that was deposed but still answers: a client with an open connection would stay there for ever.

A subscription to one sentinel reports a failover at once. It may be lost, or be at a sentinel that is cut off. So
all sentinels are also asked once a second. `latest_primary.py` decides which of their answers counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from ...tasks import stop
from .connection import RedisConnection
from .first_good import NoneGoodError, drop, first_good
from .latest_primary import NamedPrimary
from .listener import Listener
from .reconnect import OnPush, Reconnector
from .sentinel import SentinelTarget, read_answer
from .url import Address, ServerURL

_PERIOD = 1.0
"""Seconds from one question to the next. The question costs each sentinel two short commands over an open link."""
_ANSWER = 0.5
"""Seconds that a sentinel has for its answer, and for a new connection."""
_LONGEST_PAUSE = 5.0
"""Seconds to which the pause between attempts to subscribe grows, if no sentinel lets this login subscribe."""
_ANNOUNCEMENT = "+switch-master"


class PrimaryWatch:
    """Asks the sentinels of a service while the store is open.

    Args:
        target: the service. Its `latest` keeps the sentinels' answers.
        leave_others: called with the address of the present primary, to drop each connection to another server.
        on_switch: called when there is another primary although the former one answers.
    """

    def __init__(
        self,
        target: SentinelTarget,
        leave_others: Callable[[Address], None],
        on_switch: Callable[[], None],
    ) -> None:
        self._still_answers = target.still_answers
        self._on_switch = on_switch
        self._latest = target.latest
        self._question = target.question
        self._service = target.service.encode()
        self._leave_others = leave_others
        self._links = [Reconnector(partial(_dial, sentinel)) for sentinel in target.sentinels]
        self._sentinels = target.sentinels
        self._listener = Listener(
            self._dial_any, _ANSWER, channel=_ANNOUNCEMENT, longest_pause=_LONGEST_PAUSE
        )
        # Mutable: the primary at the end of the last look.
        self._former: Address | None = None
        # Mutable: the task that asks; set to ask at once.
        self._task: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()

    def start(self) -> None:
        """Begin to watch, in the running event loop."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="fastdedup-sentinels")

    async def aclose(self) -> None:
        """Stop watching, and close the connections to the sentinels."""
        if self._task is not None:
            await stop(self._task)
        await self._listener.aclose()
        for link in self._links:
            await link.aclose()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._woken.clear()
            next_look = loop.time() + _PERIOD
            await self._look()
            with suppress(TimeoutError):
                async with asyncio.timeout_at(next_look):
                    await self._woken.wait()

    async def _look(self) -> None:
        """Ask all sentinels at once. Each answer counts at once: a frozen sentinel delays nothing."""
        _, *answers = await asyncio.gather(self._subscribe(), *map(self._ask, self._links))
        self._latest.conclude([named for named in answers if named is not None])
        self._follow()
        await self._report_switch()

    async def _report_switch(self) -> None:
        """Report another primary, unless the former one does not answer: then other events report the outage."""
        if self._latest.known is None:
            return
        former, self._former = self._former, self._latest.known.address
        if former is not None and former != self._former and await self._still_answers(former, _ANSWER):
            self._on_switch()

    async def _ask(self, link: Reconnector) -> NamedPrimary | None:
        try:
            async with asyncio.timeout(_ANSWER):
                connection = await link.connected()
                named = read_answer(*await connection.send_many(self._question, 2))
        except Exception:  # noqa: BLE001 -- after any error, this sentinel has no answer now
            link.abort("the sentinel did not answer in time")
            return None
        if named is not None:
            self._latest.hear(named)
            self._follow()
        return named

    def _follow(self) -> None:
        if self._latest.known is not None:
            self._leave_others(self._latest.known.address)

    async def _subscribe(self) -> None:
        """Subscribe to the announcements of one sentinel. The questions go on without the subscription."""
        with suppress(Exception):
            async with asyncio.timeout(_ANSWER):
                await self._listener.start(self._announced)

    def _announced(self, message: bytes | None) -> None:
        """Ask at once: a sentinel has announced a failover, or announcements may have been lost (None)."""
        if message is None or message.split(b" ", 1)[0] == self._service:
            self._woken.set()

    async def _dial_any(self, on_push: OnPush | None) -> RedisConnection:
        try:
            return await first_good((_dial(sentinel, on_push) for sentinel in self._sentinels), drop)
        except NoneGoodError as error:
            raise error.errors[0] from None


async def _dial(sentinel: ServerURL, on_push: OnPush | None) -> RedisConnection:
    return RedisConnection(await sentinel.connection(_ANSWER), on_push)
