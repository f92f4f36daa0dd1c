"""Three windows of a ledger, with a tenth of repeats: right answers, resident memory, other clients' GET.

Ids come at a steady rate, and the window is as short as that makes it, so that ids expire. Keys are measured beside
the ledger. Main path: `ledger_windows`.
"""

import asyncio
import random
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from statistics import median

from redis.asyncio import Redis

from bench.contest import Row, Table, collector, fresh_keys, reason
from bench.ledger import GIB, LARGE, PLANNED, gate
from bench.run import Run
from bench.server import private_server

LEDGER, KEYS = "a ledger, exact", "SET NX PX"
ROWS = (LEDGER, KEYS)
WINDOWS = 3
RATE = 60_000  # ids a second, well below what both carry
REPEATS = 10  # one id in so many was asked for before
LATER = 1.01  # an id is kept for up to 1 % longer than its window
AFTER = 1.5  # windows; from then on the resident memory counts
EXPIRY = 1.3  # windows after the last id in which all ids expire
READINGS = 20  # of memory, in a window
IDLE = 1.0  # seconds
PAUSE = 0.0002  # seconds between two GETs
CALLERS = 4
SETTLING = 0.7
IDLE_P99 = "idle, p99"
NOTES = (
    f"{RATE:,} ids a second in lists of {LARGE}, over {WINDOWS} windows, each of a third of the run's ids. One id in "
    f"{REPEATS} was asked for before: within its window it must be a duplicate, later than 1 % after it must be new, "
    "and in between both are right. The times are the client's.",
    f"Resident ÷ used: the growth of the server's resident memory by the growth of used_memory, the median of all "
    f"readings from {AFTER} windows on.",
    "p99 to idle: another client's GETs, from a thread of this process, on the server that only expires ids, beside "
    "the same before the first id.",
    f"The plot multiplies the measured growth for each live id by {PLANNED // 1_000_000} million: it is calculated.",
)

Span = tuple[float, float]
Ask = Callable[[Sequence[str]], Awaitable[Sequence[bool]]]


@dataclass(frozen=True, slots=True)
class List:
    """The ids of a call, as numbers and as text; `known`: when the earlier ones among them were remembered."""

    number: int
    numbers: list[int]
    ids: list[str]
    known: dict[int, Span | None]


@dataclass(slots=True)
class Stream:
    """Draws ids, of which some were asked for before, and judges the answers.

    Attributes:
        spans: of each list the times between which its ids were remembered.
        again: of an id that was new again, when.
    """

    window: float
    size: int
    draw: random.Random
    salt: str = field(default_factory=lambda: fresh_keys("id", 1)[0])
    spans: list[Span | None] = field(default_factory=list)
    again: dict[int, Span | None] = field(default_factory=dict)
    wrongly_new: int = 0
    wrongly_duplicate: int = 0
    asked: int = 0
    repeated: int = 0

    def next_list(self) -> List:
        """Return the next list. An earlier id is known to no other list until this one is answered."""
        number = len(self.spans)
        self.spans.append(None)
        first = number * self.size
        numbers = [self._earlier(each) for each in range(first, first + self.size)]
        known = {each: self._take(each) for each in numbers if each < first}
        return List(number, numbers, [f"{self.salt}-{each}" for each in numbers], known)

    def _earlier(self, fresh: int) -> int:
        """Return an id that was asked for before, or the fresh one."""
        if self.draw.randrange(REPEATS):
            return fresh
        other = self.draw.randrange(fresh + 1)
        if self._last(other) is None:
            return fresh
        self.again[fresh] = None  # it will never be asked for
        return other

    def _last(self, number: int) -> Span | None:
        """Return when an id was remembered last; None where that is not known."""
        return self.again[number] if number in self.again else self.spans[number // self.size]

    def _take(self, number: int) -> Span | None:
        known, self.again[number] = self._last(number), None
        return known

    def judge(self, asked: List, answers: Sequence[bool], span: Span) -> None:
        """Hold a list's answers against what is known of its ids."""
        for each, new in zip(asked.numbers, answers, strict=True):
            known = asked.known.pop(each, None)
            if known is not None:
                self._judge_repeat(each, known, new, span)
            elif each >= asked.number * self.size:
                self.wrongly_duplicate += not new
        self.spans[asked.number] = span
        self.asked += len(answers)

    def _judge_repeat(self, number: int, known: Span, new: bool, span: Span) -> None:
        self.repeated += 1
        self.wrongly_new += new and span[1] - known[0] < self.window
        self.wrongly_duplicate += not new and span[0] - known[1] > self.window * LATER
        self.again[number] = span if new else known


async def play(stream: Stream, ask: Ask, lists: int) -> None:
    """Ask for the lists at the steady rate. A caller that is late does not wait."""
    began, step = time.perf_counter(), stream.size / RATE

    async def caller() -> None:
        while len(stream.spans) < lists:
            asked = stream.next_list()
            await asyncio.sleep(began + asked.number * step - time.perf_counter())
            start = time.perf_counter()
            answers = await ask(asked.ids)
            stream.judge(asked, answers, (start, time.perf_counter()))

    async with asyncio.TaskGroup() as group:
        for _ in range(CALLERS):
            group.create_task(caller())


class Prober:
    """Another client: a thread that sends GET after GET, and notes how long each takes."""

    def __init__(self, url: str) -> None:
        self._line = socket.socket(socket.AF_UNIX)
        self._line.settimeout(10)
        self._line.connect(url.removeprefix("unix://"))

    def p99_ms(self, seconds: float) -> float:
        """Ask for some seconds; return the 99th percentile in ms."""
        spent, now = [], time.perf_counter
        until = now() + seconds
        while (began := now()) < until:
            self._line.sendall(b"GET bystander\r\n")
            self._line.recv(100)
            spent.append(now() - began)
            time.sleep(PAUSE)
        return sorted(spent)[int(len(spent) * 0.99)] * 1000

    def close(self) -> None:
        self._line.close()


@dataclass(slots=True)
class Readings:
    """The server's memory over time: for each reading the windows since the first id, resident and used bytes."""

    client: Redis
    lines: list[tuple[float, int, int]] = field(default_factory=list)
    began: float = field(default_factory=time.perf_counter)
    is_over: bool = False

    async def take(self, window: float) -> None:
        """Take one reading."""
        info = await self.client.info("memory")
        windows = (time.perf_counter() - self.began) / window
        self.lines.append((windows, int(info["used_memory_rss"]), int(info["used_memory"])))

    async def go_on(self, window: float) -> None:
        """Take readings until cancelled, or `is_over`."""
        while not self.is_over:
            await self.take(window)
            await asyncio.sleep(window / READINGS)

    def ratio(self) -> float:
        """Return resident by used memory, both grown since the first reading, the median of the later ones."""
        _, resident, used = self.lines[0]
        later = [line for line in self.lines if line[0] >= AFTER]
        return median((line[1] - resident) / (line[2] - used) for line in later)

    def curve(self, ids: int) -> tuple[tuple[float, float], ...]:
        """Return the resident memory of the planned ids in GiB, calculated from its growth by `ids` in a window."""
        first = self.lines[0][1]
        return tuple((at, (rss - first) / ids * PLANNED / GIB) for at, rss, _ in self.lines)


def ledger_windows_steps(run: Run) -> int:
    return len(ROWS)


async def ledger_windows(run: Run) -> Table:
    """Play the ledger and the keys, one after the other. A failure is a row that says why."""
    rows, curves = [], {}
    for name in ROWS:
        run.plan.on_turn(f"ledger-windows: {name}")
        try:
            row, curves[name] = await _played(run, name)
        except Exception as error:  # noqa: BLE001 # its row says why
            row = Row(name, note=f"n/a: {reason(error)}")
        rows.append(row)
    return Table(
        "ledger-windows", "Three windows, a tenth of repeats", "resident_ratio", tuple(rows), curves, NOTES
    )


async def _played(run: Run, name: str) -> tuple[Row, tuple[tuple[float, float], ...]]:
    lists = run.ids // LARGE
    window = round(run.ids / WINDOWS / RATE, 1)
    stream = Stream(window, LARGE, random.Random(run.ids))
    with private_server() as url:
        prober = Prober(url)
        try:
            async with Redis.from_url(url) as client, _asker(name, url, client, window, run.ids) as ask:
                await ask(fresh_keys("warm", LARGE))
                await asyncio.sleep(SETTLING)
                idle = await asyncio.to_thread(prober.p99_ms, IDLE)
                readings = await _stream(stream, ask, lists, client)
                expiring = await asyncio.to_thread(prober.p99_ms, EXPIRY * window)
        finally:
            prober.close()
    figures = {
        "ids": float(stream.asked),
        "repeated": float(stream.repeated),
        "wrongly_new": float(stream.wrongly_new),
        "wrongly_duplicate": float(stream.wrongly_duplicate),
        "resident_ratio": readings.ratio(),
        "p99_ms": expiring,
    }
    row = Row(name, figures, {IDLE_P99: expiring / idle}, note=f"a window of {window:g} s")
    return row, readings.curve(run.ids // WINDOWS)


async def _stream(stream: Stream, ask: Ask, lists: int, client: Redis) -> Readings:
    """Ask for all lists, and read the server's memory meanwhile."""
    readings = Readings(client)
    await readings.take(stream.window)
    reader = asyncio.create_task(readings.go_on(stream.window))
    try:
        with collector(tuned=True):
            await play(stream, ask, lists)
    finally:
        readings.is_over = True  # redis-py can keep a cancellation to itself
        reader.cancel()
        await asyncio.wait([reader])
    return readings


@asynccontextmanager
async def _asker(name: str, url: str, client: Redis, window: float, ids: int) -> AsyncIterator[Ask]:
    """Yield the function that asks for a list."""
    if name == KEYS:
        yield partial(_set_keys, client, round(window * 1000))
        return
    async with gate(url, "t") as dedup:
        yield dedup.ledger("ids", window=window, capacity=ids // WINDOWS).first_many


async def _set_keys(client: Redis, px: int, ids: Sequence[str]) -> list[bool]:
    pipe = client.pipeline(transaction=False)
    for each in ids:
        pipe.set(f"t:{each}", b"", nx=True, px=px)
    return [bool(new) for new in await pipe.execute()]
