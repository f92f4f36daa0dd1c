"""Bounds how much of all clients' work is under way at once, so that memory is bounded and no client waits for long.

A task takes 10 kB. 100 clients that pipelined 1,000 waiting claims each took 970 MB, and a claim of another client
was answered after more than 5 s.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any, Final

from .limits import LimitError, Limits
from .releases import UntoldGrants

Work = Callable[[], Coroutine[Any, Any, None]]

_TASKS: Final = 4096
"""The tasks of all clients; a client's first task may go beyond."""
_WAITING_OF_ONE: Final = 64
"""The tasks of one client that wait for a key; the rest of its work follows them."""
_BRIEF_OF_ONE: Final = 256
"""The tasks of one client that wait for no key."""
_CROWDED: Final = 512
"""The operations at the store's queue from which on long pipelines wait: some milliseconds of work."""
_PAUSE: Final = 0.001
"""Seconds until the queue is looked at again."""
_LONGEST_PAUSE: Final = 0.01
"""Seconds after which the next pipeline goes on in any case: others may fill the queue all the time."""
_LONGEST_TURN: Final = 0.002
"""Seconds of one turn of the loop that pipelines take: uvloop accepts one client in a turn, and others wait."""
_IN_ONE_TURN: Final = 32
"""The clients that go on in one turn of the loop: a request's task runs behind these seconds."""
_OPERATION: Final = 2560
"""The bytes, about, that an operation of a batch takes until the batch is answered."""
_SMALL: Final = 32 * 1024
"""The bytes up to which a batch need not wait: about ten operations."""
_MEMORY: Final = "the batches of all clients take too much memory (limits.requests_in_all): ask again later"
_PARSED: Final = 24
"""The bytes, at most, that a byte of JSON takes once it is parsed: a list takes 56."""


class Pipelines:
    """Gives the clients that have sent many commands at once their turns, in order, while the store's queue is short.

    64 clients that pipelined 1,000 claims each put all of them into that queue: 58 % waited there beyond the store's
    deadline, and were answered UNAVAILABLE. Here they wait without a deadline.

    Args:
        pending: returns the number of operations at the store's queue.
    """

    def __init__(self, pending: Callable[[], int]) -> None:
        self._pending = pending
        # Mutable: what lets each waiting client go on; is the next look due; when the latest one went on; when the
        # time for pipelines in this turn of the loop ends, if it has begun.
        self._line: deque[Callable[[], None]] = deque()
        self._due = False
        self._latest = 0.0
        self._ends = 0.0

    def may_go_on(self) -> bool:
        """True if a client's many commands need not wait at first."""
        return self._pending() < _CROWDED and self.has_time()

    def has_time(self) -> bool:
        """True while pipelines may take more of this turn of the loop."""
        now = monotonic()  # the loop's own time stands still in a turn
        if not self._ends:
            self._ends = now + _LONGEST_TURN
            self._look_soon()
        return now < self._ends

    def add(self, go_on: Callable[[], None]) -> None:
        """Call `go_on` in a later turn of the loop, behind the clients that wait already."""
        self._line.append(go_on)
        self._look_soon()

    def _look_soon(self) -> None:
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        loop, line = asyncio.get_running_loop(), self._line
        crowded, self._ends = False, monotonic() + _LONGEST_TURN
        try:
            for _ in range(min(len(line), _IN_ONE_TURN)):
                if monotonic() >= self._ends:
                    break
                crowded = self._pending() >= _CROWDED
                if crowded and loop.time() - self._latest < _LONGEST_PAUSE:
                    break
                self._latest = loop.time()
                line.popleft()()
        finally:  # an error of one client is logged by the loop, and the others go on
            self._due = bool(line)
            if self._due:
                loop.call_later(_PAUSE, self._run) if crowded else loop.call_soon(self._run)
            else:
                self._ends = 0.0


class TaskPlaces:
    """Counts the tasks that run for clients' requests; belongs to one event loop.

    Args:
        most: the tasks of all clients.
        each: the tasks of one client.
    """

    def __init__(self, most: int, each: int) -> None:
        self._most = most
        self._each = each
        # Mutable: the tasks that run.
        self.taken = 0

    def take(self, own: int) -> bool:
        """Take a place for a client that has `own` tasks; return False if it must wait for one of them to end.

        A client without a task always gets a place: no client can keep another one from its turn.
        """
        if own and (own >= self._each or self.taken >= self._most):
            return False
        self.taken += 1
        return True

    def free(self) -> None:
        """Give a place back."""
        self.taken -= 1


class TaskLine:
    """One client's tasks of one kind, and the work that follows them.

    Args:
        places: those of all clients.
        name: that of the tasks.
    """

    __slots__ = ("_name", "_places", "_then", "_waiting", "tasks")

    def __init__(self, places: TaskPlaces, name: str) -> None:
        self._places = places
        self._name = name
        # Mutable: the tasks that run; the work that follows; what is called once all has ended.
        self.tasks: set[asyncio.Task[None]] = set()
        self._waiting: deque[Work] = deque()
        self._then: Callable[[], None] | None = None

    def add(self, work: Work) -> None:
        """Run this in a task, now or after earlier work."""
        self._waiting.append(work)
        self._begin()

    def clear(self) -> None:
        """Cancel all: the client has gone."""
        self._waiting.clear()
        for task in self.tasks:
            task.cancel()

    def finish(self, then: Callable[[], None]) -> None:
        """Call `then` once all has ended; nothing is added any more."""
        if self.tasks:
            self._then = then
        else:
            then()

    def _begin(self) -> None:
        while self._waiting and self._places.take(len(self.tasks)):
            task = asyncio.get_running_loop().create_task(self._waiting.popleft()(), name=self._name)
            self.tasks.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        self._places.free()
        self._begin()
        if self._then is not None and not self.tasks:
            self._then()


class BatchGate:
    """Lets batches in, in their order, while those inside take less memory than allowed; small ones at once.

    Args:
        most: the bytes that the batches inside may take; a larger one goes in alone.
        line: the bytes of bodies that may wait.
        patience: the seconds that a batch waits for its turn.
    """

    def __init__(self, most: int, line: int, patience: float) -> None:
        self._most = most
        self._most_waiting = line
        self._patience = patience
        # Mutable: the bytes of the batches inside; those that wait, each with its weight; the bytes of their bodies.
        self.inside = 0
        self._line: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._waiting = 0

    async def enter(self, weight: int, size: int) -> None:
        """Wait for the turn of a batch; `leave` must follow.

        Args:
            weight: the bytes that it takes once it is inside.
            size: the bytes that it takes until then.

        Raises:
            LimitError: too many bytes wait, or it has waited for too long.
        """
        if weight <= _SMALL or (not self._line and self._fits(weight)):
            self.inside += weight
            return
        if self._waiting + size > self._most_waiting:
            raise LimitError(_MEMORY)
        await self._wait(weight, size)

    def leave(self, weight: int) -> None:
        """Give the memory of a batch back, and let the next ones in."""
        self.inside -= weight
        self._admit()

    def _fits(self, weight: int) -> bool:
        return not self.inside or self.inside + weight <= self._most

    async def _wait(self, weight: int, size: int) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line.append((weight, turn))
        self._waiting += size
        try:
            await _come(turn, self._patience, _MEMORY)
        except BaseException:
            if turn.cancelled():
                self._line.remove((weight, turn))
                self._admit()
            else:
                self.leave(weight)  # cancelled when its turn had come
            raise
        finally:
            self._waiting -= size

    def _admit(self) -> None:
        line = self._line
        while line and (line[0][1].done() or self._fits(line[0][0])):
            weight, turn = line[0]
            if turn.done():
                return  # refused or cancelled: it leaves the line by itself
            line.popleft()
            self.inside += weight
            turn.set_result(None)


async def _come(turn: asyncio.Future[None], patience: float, why: str) -> None:
    """Wait for a turn; LimitError: it has not come in time. It is cancelled if it has not come."""
    try:
        async with asyncio.timeout(patience):
            await turn
    except TimeoutError:
        raise LimitError(why) from None


# Which client's expensive read runs next. Main path: `ReadTurns.turn`. Reads in the order of their arrival would let
# one client with 200 of them refuse the lists of all others.

_SHARE: Final = 3.0
"""The pause after a read, in lengths of that read, up to `_LONGEST_BREAK` seconds."""
_LONGEST_BREAK: Final = 0.5
_READS_OF_ONE: Final = 1024
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
            loop.call_later(min(_SHARE * (loop.time() - began), _LONGEST_BREAK), self._pass_on)

    async def _wait(self, socket: str, process: int | None) -> None:
        lines = self._sockets.get(socket, {})
        if sum(map(len, lines.values())) >= _READS_OF_ONE:
            raise LimitError(_BUSY)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sockets.setdefault(socket, lines).setdefault(process, {})[turn] = None
        try:
            await _come(turn, self._patience, _BUSY)
        except BaseException:
            if turn.cancelled():
                self._leave(socket, process, turn)
            else:
                self._pass_on()  # cancelled when its turn had come
            raise

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


class SharedText:
    """A text that takes the loop for a while: all who ask in one turn of the loop get one, made in the next turn.

    200 clients that pipelined /metrics took the loop for 4 s in each turn, and no other client was answered then.
    """

    def __init__(self) -> None:
        # Mutable: the text that is made next.
        self._next: asyncio.Task[bytes] | None = None

    async def made_by(self, make: Callable[[], bytes]) -> bytes:
        """Return what `make` returns; it is called after this."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_task(self._make(make), name="fastdedup-text")
        return await asyncio.shield(self._next)

    async def _make(self, make: Callable[[], bytes]) -> bytes:
        self._next = None
        return make()


class Turns:
    """The bounds of all connections of a sidecar.

    What waits for a key is counted apart from what does not: an owner that completes its claim must never wait for
    those that wait for this claim. Reads that look at many keys are counted apart, too: one of them makes up to 1,000
    operations, so 500 that a client has pipelined would leave no room for the claims of others.

    Args:
        limits: the sidecar's.
        pending: returns the number of operations at the store's queue.
    """

    def __init__(self, limits: Limits, pending: Callable[[], int]) -> None:
        self.pipelines = Pipelines(pending)
        self.requests = Pipelines(lambda: 0)  # one at a time of each HTTP client: they do not fill that queue
        self.waiting = TaskPlaces(_TASKS, _WAITING_OF_ONE)
        self.brief = TaskPlaces(_TASKS, _BRIEF_OF_ONE)
        self.reading = TaskPlaces(_TASKS, 1)
        self.reads = ReadTurns(limits.request_timeout)
        self.metrics = SharedText()
        self.untold = UntoldGrants(self.requests.add)
        most, line = limits.requests_in_all // 2, limits.requests_in_all // 4
        self._brief_batches = BatchGate(most, line, limits.request_timeout)
        self._waiting_batches = BatchGate(most, line, limits.request_timeout)

    def batches(self, *, waiting: bool) -> BatchGate:
        """Return the gate for batches, by whether one of their operations may wait for a key."""
        return self._waiting_batches if waiting else self._brief_batches


def weight_of(operations: int, size: int) -> int:
    """Return the bytes, about, that a batch with a body of `size` bytes takes once it is parsed."""
    return operations * _OPERATION + size * _PARSED
