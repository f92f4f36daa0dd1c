"""The effect that must happen once: orders and stock in the shop's own database.

It does not use fastdedup, so its counts prove fastdedup's effect. It is a SQLite database that all workers share.
No operation takes longer than a file write, so the event loop calls them directly.

Stock is set aside once for each basket, which is one form, or one key of a buyer. Then the order is entered, as often
as `sell` is called: like many shops, the book leaves it to others to call it once. So the same basket sold twice is
a unit sold that was not taken from the shelf.
"""

from __future__ import annotations

import sqlite3
import time
from dataclasses import dataclass
from pathlib import Path

_SCHEMA = """
CREATE TABLE IF NOT EXISTS stock (
    sku TEXT PRIMARY KEY, stocked INTEGER NOT NULL, left INTEGER NOT NULL CHECK (left >= 0)
);
CREATE TABLE IF NOT EXISTS baskets (id TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS orders (
    id INTEGER PRIMARY KEY, buyer TEXT NOT NULL, quantity INTEGER NOT NULL, degraded INTEGER NOT NULL,
    placed REAL NOT NULL
);
"""
_SKU = "halcyon-one"


@dataclass(frozen=True, slots=True)
class Order:
    """One order. `placed` is in seconds since 1970."""

    id: int
    buyer: str
    quantity: int
    degraded: bool
    placed: float

    @property
    def number(self) -> str:
        """The order number on the buyer's receipt."""
        return f"H1-{self.id:05}"


@dataclass(frozen=True, slots=True)
class SoldOut:
    """The stock is lower than the wanted quantity."""

    left: int


@dataclass(frozen=True, slots=True)
class Count:
    """The figures of the order book: units sold and left, and the number of orders.

    Attributes:
        stocked: units that were ever put on the shelf.
        degraded: orders taken while Redis was down.
    """

    orders: int
    sold: int
    left: int
    degraded: int
    stocked: int

    @property
    def oversold(self) -> int:
        """Units that were sold, and never taken from the shelf."""
        return self.sold + self.left - self.stocked


class OrderBook:
    """One process's connection to the database at `path`."""

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path, isolation_level=None, timeout=5.0)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = NORMAL")
        # Mutable: True once the stock was 0, so that clicks after the sale cost no transactions.
        self._sold_out = False

    def set_up(self, stock: int) -> None:
        """Make the tables, and set the stock."""
        self._db.executescript(_SCHEMA)
        self._db.execute("INSERT OR IGNORE INTO stock VALUES (?, ?, ?)", (_SKU, stock, stock))

    def sell(self, buyer: str, quantity: int, *, basket: str, degraded: bool) -> Order | SoldOut:
        """Set the basket's units aside and enter the order, in one transaction."""
        if self._sold_out:
            return SoldOut(0)
        placed = time.time()
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            if not self._set_aside(basket, quantity):
                return self._short()
            entered = self._db.execute(
                "INSERT INTO orders (buyer, quantity, degraded, placed) VALUES (?, ?, ?, ?)",
                (buyer, quantity, degraded, placed),
            )
        return Order(int(entered.lastrowid or 0), buyer, quantity, degraded, placed)

    def restock(self, units: int) -> None:
        """Raise the stock. Other workers notice it when they `look` next."""
        self._db.execute(
            "UPDATE stock SET left = left + :units, stocked = stocked + :units", {"units": units}
        )
        self._sold_out = False

    def look(self) -> None:
        """Read whether another worker has raised the stock."""
        if self._sold_out:
            self._sold_out = self._left() == 0

    def count(self) -> Count:
        """Count the sold units, from the orders themselves."""
        orders, sold, degraded = self._db.execute(
            "SELECT count(*), coalesce(sum(quantity), 0), coalesce(sum(degraded), 0) FROM orders"
        ).fetchone()
        (stocked,) = self._db.execute("SELECT stocked FROM stock WHERE sku = ?", (_SKU,)).fetchone()
        return Count(orders, sold, self._left(), degraded, stocked)

    def close(self) -> None:
        """Close the connection."""
        self._db.close()

    def _set_aside(self, basket: str, quantity: int) -> bool:
        """Lower the stock, unless that is done for this basket; return False if the stock is too low."""
        if self._db.execute("SELECT 1 FROM baskets WHERE id = ?", (basket,)).fetchone():
            return True
        taken = self._db.execute(
            "UPDATE stock SET left = left - ? WHERE sku = ? AND left >= ?", (quantity, _SKU, quantity)
        )
        if taken.rowcount == 1:
            self._db.execute("INSERT INTO baskets VALUES (?)", (basket,))
        return taken.rowcount == 1

    def _short(self) -> SoldOut:
        left = self._left()
        self._sold_out = left == 0
        return SoldOut(left)

    def _left(self) -> int:
        (left,) = self._db.execute("SELECT left FROM stock WHERE sku = ?", (_SKU,)).fetchone()
        return int(left)
