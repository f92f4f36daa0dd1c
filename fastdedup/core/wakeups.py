"""What waiting claims wait by: messages of freed keys, not polling; a part of the store that is back; turns."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain

from ..errors import UnavailableError
from ..stores.base import Store
from ..tasks import Crowd, wake
from .common import Common
from .incidents import log

SHORT = 2.0
"""Seconds for which a lost subscription gets no log line, because a failover takes as long."""


class Wakeups:
    """One future for each key, shared by all its waiters in this process; for a lock one for each waiter.

    All may need the result of a claim, but only one can get a lock: the first in line. If all were woken, 400 waiters
    for one lock would look 80,000 times until the last one has it.

    Args:
        common: the gate's, for its log; None if nothing is logged.
    """

    def __init__(self, common: Common | None = None) -> None:
        self._common = common
        self._freed: dict[bytes, asyncio.Future[None]] = {}
        self._lines: dict[bytes, OrderedDict[asyncio.Future[None], None]] = {}
        self.waiting: dict[bytes, int] = {}
        """How many callers wait for each store key."""
        self.overheard_by: set[Callable[[bytes | None], None]] = set()
        """Callbacks for each key too: the waiters in other processes, behind the sidecar."""
        # Mutable: why the store reports no freed keys; since when, in the loop's time; whether that is logged.
        self._deaf = ""
        self._since = 0.0
        self._said = False

    async def listen(self, store: Store) -> bool:
        """Let the store report freed keys from now on; return False if it cannot at present."""
        try:
            await store.listen(self.freed)
        except UnavailableError as error:
            if not self._deaf:
                self._since = asyncio.get_running_loop().time()
            self._deaf = str(error)
            return False
        self._deaf, self._said = "", False
        return True

    def tell_deaf(self, pause: float) -> None:
        """Log, once for each loss, that waiters get no messages and look every `pause` seconds instead."""
        self._tell_deaf(
            SHORT,
            "gate %r: the store answers but tells of no freed keys, so waiters look every %g s: %s",
            pause,
        )

    def _tell_deaf(self, short: float, text: str, *values: object) -> None:
        if not self._deaf or self._said or asyncio.get_running_loop().time() - self._since < short:
            return
        self._said = True
        if self._common is not None and self._common.may_tell("waiters hear of no freed keys"):
            log.warning(text, self._common.name, *values, self._deaf)

    async def overhear(self, store: Store, on_freed: Callable[[bytes | None], None]) -> Callable[[], None]:
        """Call `on_freed` for each message that wakes a waiter, like `Store.listen`; return a function to end that.

        Raises:
            UnavailableError: the store does not report freed keys at present. If that lasts, a line in the log says
                why.
        """
        if not await self.listen(store):
            # First, because later lines of the clients refer to this one.
            self._tell_deaf(
                SHORT / 2,
                "gate %r: the store tells of no freed keys, so the clients' waiters look instead: %s",
            )
            raise UnavailableError("the store tells of no freed keys")
        self.overheard_by.add(on_freed)
        return partial(self.overheard_by.discard, on_freed)

    @contextmanager
    def watch(self, wire: bytes, *, in_line: bool = False) -> Iterator[asyncio.Future[None]]:
        """Yield a future that is done when the key is next freed. Enter this *before* a look at the key.

        `in_line`: only the first in line is woken. One that stops waiting must call `wake_next`.
        """
        future = None if in_line else self._freed.get(wire)
        if future is None or future.done():
            future = asyncio.get_running_loop().create_future()
            if in_line:
                self._lines.setdefault(wire, OrderedDict())[future] = None
            else:
                self._freed[wire] = future
        self.waiting[wire] = self.waiting.get(wire, 0) + 1
        try:
            yield future
        finally:
            self.waiting[wire] -= 1
            if in_line and (line := self._lines.get(wire)):
                line.pop(future, None)
            if not self.waiting[wire]:
                del self.waiting[wire]
                self._freed.pop(wire, None)
                self._lines.pop(wire, None)

    def wake_next(self, wire: bytes) -> None:
        """Wake the first in line for this key."""
        line = self._lines.get(wire)
        while line:
            future, _ = line.popitem(last=False)
            if wake(future):
                return

    def close(self) -> None:
        """Wake no more waiters, because their event loop is gone. They still leave `watch` one by one."""
        self._freed.clear()
        self._lines.clear()
        self.overheard_by.clear()
        self._deaf, self._said = "", False

    def freed(self, wire: bytes | None) -> None:
        """Wake the waiters for this key; None: all waiters, because messages may have been lost."""
        if wire is None:
            for future in (*self._freed.values(), *chain.from_iterable(self._lines.values())):
                wake(future)
        else:
            if wire in self._freed:
                wake(self._freed[wire])
            self.wake_next(wire)
        for on_freed in tuple(self.overheard_by):
            try:
                on_freed(wire)
            except Exception as fault:  # noqa: BLE001 -- the others must be called too
                about = "fastdedup: a client's callback for a freed key has raised an error"
                asyncio.get_running_loop().call_exception_handler({"message": about, "exception": fault})


# Waiting until a part of the store answers again, or until a given time is over


class OutageWaiters:
    """The callers that a part of the store has refused, and that wait for its return."""

    def __init__(self) -> None:
        self.waiting: dict[bytes, Crowd] = {}
        """The callers that wait, by the name of the part of the store."""

    def count(self, part: bytes) -> int:
        """Return how many callers wait for this part."""
        return len(self.waiting.get(part, ()))

    async def wait(self, part: bytes, seconds: float) -> None:
        """Wait until the part is back, for at most `seconds`."""
        crowd = self.waiting.setdefault(part, Crowd())
        try:
            await crowd.wait(seconds)
        finally:
            if not crowd and self.waiting.get(part) is crowd:
                del self.waiting[part]

    def is_back(self, part: bytes) -> None:
        """Wake all callers that wait for this part."""
        crowd = self.waiting.pop(part, None)
        if crowd is not None:
            crowd.wake()

    def are_back(self) -> None:
        """Wake all callers, because the gate is closed."""
        for part in list(self.waiting):
            self.is_back(part)


# Turns: some waiting claims look at a time, and the others queue. Each costs the same, however many queue


class LookTurns:
    """Turns for at most `most` claims at a time. Call `take`, or else await `queue`; then `give_back`.

    No `asyncio.Semaphore`: each release of one passes all turns that are given and not yet taken, so that eight
    thousand waiting claims spent seconds there.
    """

    def __init__(self, most: int) -> None:
        # Mutable: how many may look now, and the queue of the others. A turn goes to the queue first.
        self._free = most
        self._queue: deque[asyncio.Future[None]] = deque()

    def __len__(self) -> int:
        """How many claims queue."""
        return len(self._queue)

    def take(self) -> bool:
        """Take a turn; return False if none is free."""
        if not self._free:
            return False
        self._free -= 1
        return True

    async def queue(self) -> None:
        """Wait for a turn, and take it. A cancelled caller has none."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it was given the turn, and is cancelled before it takes it
                self.give_back()
            raise

    def give_back(self) -> None:
        """End a turn: the next in the queue gets it."""
        while self._queue:
            turn = self._queue.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
