"""The flash sale of `examples/sale.py` through a sidecar: shop processes that share nothing but its socket.

`python -m examples.sidecar` runs it; REDIS_URL names a Redis for the sidecar, a number at the end says how many
buyers come. It needs `pip install 'fastdedup[sidecar]'`.

Each click of a buyer goes to another process. Most processes speak the Redis protocol with plain redis-py, one speaks
HTTP, by the clients of `sidecar_clients.py`: any language can have as much. `sell` is the main path. The books of all
processes are checked together.
"""

from __future__ import annotations

import multiprocessing
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any, cast

from fastdedup import Outcome, UnavailableError

from .program import finish, size, store
from .sale import FORGER_EVERY, PAYMENT, THIEF_EVERY, WAIT, Crowd, Report, Shop, make_report
from .sidecar_clients import HttpWire, RespWire, Wire

PROCESSES = 4
MOST_BUYERS = 500
"""Buyers at most: a process serves one click at a time, so more buyers would only take longer."""
_STARTING = 20.0
_PAUSE, _TRIES = 0.002, 2_000


@dataclass
class Books:
    """The books of one process: plain data, to be sent between processes. Replies are (status, body)."""

    clicks: list[tuple[str, tuple[int, Any]]] = field(default_factory=list)
    first: list[tuple[str, tuple[int, Any]]] = field(default_factory=list)
    orders: Counter[str] = field(default_factory=Counter)
    accepted: Counter[str] = field(default_factory=Counter)
    refused: Counter[Outcome] = field(default_factory=Counter)
    answers: Counter[Outcome] = field(default_factory=Counter)
    misuses: Counter[Outcome] = field(default_factory=Counter)
    wrongly_served: int = 0
    operations: int = 0
    latencies: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Job:
    """One process's part of the sale: it sends click `c` of buyer `n` where `(n + c) % of` is its number."""

    socket: str
    number: int
    of: int
    clicks: int
    tokens: list[str]


class Till:
    """One shop process: the order handler of `examples.sale.Shop`, without the library."""

    def __init__(self, job: Job, wire: Wire, stock: Any) -> None:
        self._job = job
        self._wire = wire
        self._stock = stock
        # Mutable: the books of this process.
        self.books = Books()

    def sell(self) -> Books:
        """Serve this process's clicks of all buyers, in order."""
        for number, token in enumerate(self._job.tokens):
            buyer = f"buyer:{number}"
            for click in range(self._job.clicks):
                if self._mine(number + click):
                    wait = WAIT if (number + click) % 3 == 1 else 0.0
                    self.books.clicks.append((f"order:{buyer}", self._click(buyer, token, wait)))
            if self._mine(
                number + self._job.clicks - 1
            ):  # this process's click was answered, so the form is used
                self._misuse(buyer, token, Outcome.SUCCEEDED)
            if number % THIEF_EVERY == 0 and self._mine(number + self._job.clicks):
                self._misuse(f"thief:{number}", token, Outcome.MISMATCH)
            if number % FORGER_EVERY == 0 and self._mine(number + self._job.clicks):
                self._misuse(f"forger:{number}", secrets.token_urlsafe(), Outcome.UNKNOWN)
        return self.books

    def _mine(self, turn: int) -> bool:
        return turn % self._job.of == self._job.number

    def _click(self, buyer: str, token: str, wait: float) -> tuple[int, Any]:
        for _ in range(_TRIES):
            reply = self._buy(buyer, token, f"order:{buyer}", wait)
            if reply[0] != 409:
                break
            time.sleep(_PAUSE)
        return reply

    def _misuse(self, sender: str, token: str, reason: Outcome) -> None:
        self.books.misuses[reason] += 1
        reply = self._buy(sender, token, f"misuse:{sender}", 0.0)
        self.books.wrongly_served += reply != (403, f"form refused: {reason.value}")

    def _buy(self, buyer: str, token: str, key: str, wait: float) -> tuple[int, Any]:
        books, wire, started = self.books, self._wire, perf_counter()
        answer = wire.claim(key, f"{buyer} {token}", wait)
        if not wait:
            books.latencies.append(perf_counter() - started)
        books.operations += 1
        books.answers[answer.outcome] += 1
        if answer.outcome is not Outcome.ACQUIRED:
            return _DUPLICATES.get(answer.outcome, 422), answer.value
        reply = self._order(buyer, token)
        books.first.append((key, reply))
        books.operations += 2  # the token's consumption and this settlement
        wire.settle(key, answer.owner, reply[1], succeeded=reply[0] == 200)
        return reply

    def _order(self, buyer: str, token: str) -> tuple[int, Any]:
        verdict = self._wire.consume(token, buyer)
        if verdict is not Outcome.ACQUIRED:
            self.books.refused[verdict] += 1
            return 403, f"form refused: {verdict.value}"
        self.books.accepted[token] += 1
        with self._stock.get_lock():  # the shop's database
            unit = self._stock.value or None
            self._stock.value -= unit is not None
        time.sleep(PAYMENT)
        self.books.orders[buyer] += unit is not None
        return 200, {"buyer": buyer, "order": unit}


_DUPLICATES = {Outcome.SUCCEEDED: 200, Outcome.FAILED: 403, Outcome.IN_PROGRESS: 409}
_shared: dict[str, Any] = {}
"""In a shop process: the stock of all processes, and the event that opens the sale."""


def _begin(stock: Any, bell: Any) -> None:
    _shared.update(stock=stock, bell=bell)


def _work(job: Job) -> Books:
    wire: Wire = HttpWire(Path(job.socket)) if job.number == 0 else RespWire(Path(job.socket))
    with wire:
        _shared["bell"].wait(_STARTING)
        return Till(job, wire, _shared["stock"]).sell()


def sell(url: str, *, buyers: int, clicks: int = 3, stock: int = 100) -> Report:
    """Start a sidecar on a temporary socket, sell through it, and check the same promises.

    Raises:
        UnavailableError: the sidecar did not start.
    """
    buyers = min(buyers, MOST_BUYERS)
    with _sidecar(url, f"sale-{secrets.token_hex(4)}") as path:
        with RespWire(path) as wire:
            tokens = [wire.issue(f"buyer:{number}") for number in range(buyers)]
        jobs = [Job(str(path), number, PROCESSES, clicks, tokens) for number in range(PROCESSES)]
        books, seconds = _run(jobs, stock)
    shop, crowd = put_together(books, tokens, clicks)
    return make_report(shop, crowd, buyers=buyers, clicks=clicks, stock=stock, seconds=seconds)


def _run(jobs: list[Job], stock: int) -> tuple[list[Books], float]:
    spawn = multiprocessing.get_context("spawn")
    bell = spawn.Barrier(len(jobs) + 1)
    with ProcessPoolExecutor(
        len(jobs), mp_context=spawn, initializer=_begin, initargs=(spawn.Value("q", stock), bell)
    ) as pool:
        futures = [pool.submit(_work, job) for job in jobs]
        bell.wait(_STARTING)
        started = perf_counter()
        return [future.result() for future in futures], perf_counter() - started


def put_together(books: list[Books], tokens: list[str], clicks: int) -> tuple[Shop, Crowd]:
    """Add up the books of all processes in those of one shop and its crowd."""
    shop = Shop(cast(Any, None), 0)  # without a `Dedup`, because the sidecar has it
    crowd = Crowd(shop, clicks)
    crowd.tokens = tokens
    first: defaultdict[str, list[Any]] = defaultdict(list)
    for each in books:
        for name in ("orders", "accepted", "refused", "answers"):
            getattr(shop, name).update(getattr(each, name))
        crowd.misuses.update(each.misuses)
        crowd.wrongly_served += each.wrongly_served
        shop.operations += each.operations
        shop.latencies.extend(each.latencies)
        for key, reply in each.first:
            first[key].append(reply)
    shop.operations += len(tokens)
    shop.first_replies.update(first)
    crowd.differing = sum([reply] != first[key][:1] for each in books for key, reply in each.clicks)
    return shop, crowd


@contextmanager
def _sidecar(url: str, namespace: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="fastdedup-sidecar-") as folder:
        path = Path(folder) / "fastdedup.sock"
        options = {"url": url, "socket": str(path), "namespace": namespace, "log_level": "error"}
        options |= {"lease": "10", "ttl": "60", "failure_ttl": "60", "token_ttl": "60", "timeout": "5"}
        environment = {name: value for name, value in os.environ.items() if not name.startswith("FASTDEDUP_")}
        environment |= {f"FASTDEDUP_{name.upper()}": value for name, value in options.items()}
        command = [sys.executable, "-m", "fastdedup", "serve"]
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
        try:
            _until_up(path, process.poll)
            yield path
        finally:
            process.terminate()
            process.wait()


def _until_up(path: Path, ended: Callable[[], int | None]) -> None:
    ends = time.monotonic() + _STARTING
    while True:
        try:
            with HttpWire(path) as wire:
                wire.ping()
            return
        except UnavailableError:
            if ended() is not None or time.monotonic() > ends:
                raise
            time.sleep(0.02)


if __name__ == "__main__":
    finish("A flash sale through a sidecar, from 4 processes", sell(store(), buyers=size(MOST_BUYERS)))
