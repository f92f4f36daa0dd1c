"""Payments behind a gate and an inbox, and a consumer that is killed in the middle, again and again.

`python -m examples.payments` runs it with an inbox in SQLite; REDIS_URL names a Redis for the gate, a number at the
end says how many messages there are.

A broker delivers each message at least once: here twice, and once more what a killed consumer had not acknowledged.
The consumer is a process of its own (`consume` is its main path): the gate answers duplicates, and if it cannot, the
inbox's row in the payment's own transaction does. `run_payments` plays the broker, kills the consumer, and counts
what is in the database: each payment once, none lost.
"""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
import sys
import tempfile
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from fastdedup.sync import Dedup
from fastdedup.sync.sql import Inbox

from .program import finish, size, store

KILLS = 4
"""How often the consumer is killed."""
_AHEAD = 16
"""Messages that the consumer gets before it has acknowledged the first of them."""
_KEEP = 7 * 86_400.0
INBOX_TABLE = """
    CREATE TABLE fastdedup_inbox (
        id BLOB NOT NULL PRIMARY KEY, at INTEGER NOT NULL, result BLOB, fingerprint BLOB
    ) WITHOUT ROWID;
    CREATE INDEX fastdedup_inbox_at ON fastdedup_inbox (at);
"""
"""As `fastdedup inbox ddl --dialect sqlite` prints it."""
_CONSUMER = "EXAMPLE_CONSUMER"
"""The variable with the consumer's arguments, a line each: a URL may hold a password, which a command line shows."""
_LEASE = 1.0
"""Seconds: a killed consumer's claim on a real Redis is free after that."""


@dataclass(frozen=True, slots=True)
class PaymentReport:
    """The figures of one run."""

    messages: int
    deliveries: int
    acknowledged: int
    kills: int
    payments: int  # rows in the database
    by_gate: int  # duplicates that the gate answered
    by_row: int  # duplicates that the inbox's row answered
    seconds: float
    violations: tuple[str, ...]  # the promises that were broken; empty after a good run


# The consumer


def consume(path: str, url: str, namespace: str) -> None:
    """Pay for each message, a line of stdin, and acknowledge it on stdout with who answered."""
    database = _open(path)
    paid = begun = False

    @contextmanager
    def begin() -> Iterator[sqlite3.Connection]:
        nonlocal begun
        begun = True
        with database:
            database.execute("BEGIN IMMEDIATE")
            yield database

    inbox = Inbox("payments", keep=_KEEP, begin=begin)
    with Dedup(url, namespace=namespace, lease=_LEASE, timeout=5.0) as gate:

        @inbox.once(key=lambda transaction, message: message, gate=gate, wait=2 * _LEASE)
        def pay(transaction: sqlite3.Connection, message: str) -> dict[str, str]:
            nonlocal paid
            paid = True
            transaction.execute("INSERT INTO payments (message, amount) VALUES (?, 100)", (message,))
            return {"paid": message}

        for line in sys.stdin:
            paid = begun = False
            message = line.strip()
            assert pay(message) == {"paid": message}
            print(message, "first" if paid else "row" if begun else "gate", flush=True)


def _open(path: str) -> sqlite3.Connection:
    database = sqlite3.connect(path, timeout=10.0, isolation_level=None)
    database.execute("PRAGMA synchronous = FULL")
    return database


# The broker


def run_payments(url: str, messages: int) -> PaymentReport:
    """Deliver each message twice or more, kill the consumer meanwhile, and count."""
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "payments.sqlite3")
        database = _open(path)
        database.executescript(
            "PRAGMA journal_mode = WAL; CREATE TABLE payments (message TEXT NOT NULL, amount INTEGER NOT NULL);"
            + INBOX_TABLE
        )
        broker = Broker([f"payment-{number}" for number in range(messages)])
        began = perf_counter()
        broker.deliver_all([path, url, f"payments-{os.urandom(4).hex()}"])
        seconds = perf_counter() - began
        paid = Counter(row[0] for row in database.execute("SELECT message FROM payments"))
        database.close()
    return _report(broker, paid, seconds)


def _report(broker: Broker, paid: Counter[str], seconds: float) -> PaymentReport:
    lost = sum(message not in paid for message in broker.messages)
    twice = sum(count > 1 for count in paid.values())
    violations = []
    if lost:
        violations.append(f"{lost} acknowledged payments are not in the database")
    if twice:
        violations.append(f"{twice} payments were made more than once")
    return PaymentReport(
        messages=len(broker.messages),
        deliveries=broker.deliveries,
        acknowledged=broker.answers.total(),
        kills=broker.kills,
        payments=paid.total(),
        by_gate=broker.answers["gate"],
        by_row=broker.answers["row"],
        seconds=seconds,
        violations=tuple(violations),
    )


class Broker:
    """Delivers each message twice, and again what was not acknowledged."""

    def __init__(self, messages: list[str]) -> None:
        self.messages = messages
        self.deliveries = 0
        self.kills = 0
        self.answers: Counter[str] = Counter()
        self._waiting = deque(messages + messages)
        random.shuffle(self._waiting)
        # Mutable: delivered, and not acknowledged.
        self._open: deque[str] = deque()

    def deliver_all(self, arguments: list[str]) -> None:
        """Start consumers, one after another, until every message is acknowledged."""
        every = max(1, 2 * len(self.messages) // (KILLS + 1))
        while self._waiting or self._open:
            self._waiting.extendleft(self._open)  # redelivered
            self._open.clear()
            self._deliver(arguments, every if self.kills < KILLS else None)

    def _deliver(self, arguments: list[str], acks: int | None) -> None:
        """Run one consumer, until it has acknowledged so many messages; then kill it where it stands."""
        command = [sys.executable, "-m", f"{__package__}.payments"]
        environment = os.environ | {_CONSUMER: "\n".join(arguments)}
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
        ) as consumer:
            assert consumer.stdin is not None
            assert consumer.stdout is not None
            self._send(consumer.stdin.write, _AHEAD)
            consumer.stdin.flush()
            for line in consumer.stdout:
                message, answer = line.split()
                self._open.remove(message)
                self.answers[answer] += 1
                if acks is not None and (acks := acks - 1) <= 0:
                    consumer.kill()
                    self.kills += 1
                    return
                self._send(consumer.stdin.write, 1)
                if not self._open:
                    consumer.stdin.close()
                    break
                consumer.stdin.flush()
            if consumer.wait() != 0:
                raise RuntimeError(f"the consumer of the payments ended with {consumer.returncode}")

    def _send(self, write: Callable[[str], object], count: int) -> None:
        for _ in range(min(count, len(self._waiting))):
            message = self._waiting.popleft()
            self._open.append(message)
            self.deliveries += 1
            write(f"{message}\n")


if __name__ == "__main__":
    if _CONSUMER in os.environ:
        consume(*os.environ[_CONSUMER].split("\n"))
    else:
        finish("Payments by gate and inbox, on SQLite", run_payments(store(), size(300)))
