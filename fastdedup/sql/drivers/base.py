"""What a driver gives, and how a flow of statements is run: once for async drivers, once for synchronous ones."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import lru_cache
from typing import Any, ClassVar, TypeVar

from ...errors import UsageError
from ..dialects.base import Database, Flow, Rows, Statement, TableName
from ..faults import DatabaseFault, fault_of, translated

T = TypeVar("T")


class Driver(ABC):
    """Runs statements in one transaction of a caller's.

    Raises on creation:
        UsageError: there is no transaction, and a statement would be committed by itself.
    """

    is_async: ClassVar[bool]
    dialect: str
    """The name of the database, or of a driver that has a dialect of its own: see `dialect_of`."""

    @property
    def database(self) -> Database:
        """The database, as far as the driver can tell it without a statement.

        A table is looked at once in each. A dialect whose statements fail on a table without a unique id needs no
        more than its name.
        """
        return (self.dialect,)

    @abstractmethod
    def is_open(self) -> bool:
        """True while the transaction that the driver was made for goes on."""

    def is_nested(self) -> bool:
        """True where the transaction is known to be a part of another one, which may still be rolled back."""
        return False

    @abstractmethod
    def execute(self, statement: Statement) -> Any:
        """Run a statement; return its `Rows`, or an awaitable of them."""


async def run(driver: Driver, flow: Flow[T], table_name: TableName) -> T:
    """Run a flow by an async driver. Raises what `told` returns."""
    done: Rows | None = None
    fault: Exception | None = None
    while True:
        try:
            statement = flow.send(done) if fault is None else flow.throw(fault)  # type: ignore[arg-type]
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        done = fault = None
        try:
            done = await driver.execute(statement)
        except Exception as error:  # noqa: BLE001 -- the flow gets it, and raises it again
            fault = told(error, table_name)


def run_now(driver: Driver, flow: Flow[T], table_name: TableName) -> T:
    """Run a flow by a synchronous driver. Raises what `told` returns."""
    done: Rows | None = None
    fault: Exception | None = None
    while True:
        try:
            statement = flow.send(done) if fault is None else flow.throw(fault)  # type: ignore[arg-type]
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        done = fault = None
        try:
            done = driver.execute(statement)
        except Exception as error:  # noqa: BLE001 -- the flow gets it, and raises it again
            fault = told(error, table_name)


def told(error: Exception, table_name: TableName) -> Exception:
    """Return the error for the caller: this library's where it has one, with the driver's own as its cause."""
    ours = translated(error, table_name)
    if ours is None:
        return error
    ours.__cause__ = error
    return ours


def is_retryable(error: BaseException) -> bool:
    """True where the whole transaction is to be run again."""
    return fault_of(error) in (DatabaseFault.RETRY, DatabaseFault.LOCKED, DatabaseFault.STANDBY)


def no_transaction(how: str) -> UsageError:
    """Return the error for a connection that commits each statement by itself; `how`: begins a transaction."""
    return UsageError(
        "this connection is in no transaction, so the inbox's row would be committed by itself, before the work: "
        f"begin one, for example with {how}"
    )


@lru_cache(256)  # texts with the places of up to a thousand keys are large
def placed(sql: str, style: str) -> str:
    """Return SQL with a driver's own places in place of each `?`: `style` is "%s", or "$" for numbered ones."""
    parts = sql.split("?")
    if style == "$":
        return "".join(f"{part}${number}" for number, part in enumerate(parts[:-1], 1)) + parts[-1]
    return style.join(parts)


def of_cursor(cursor: Any) -> Rows:
    """Return what a synchronous cursor holds."""
    rows = cursor.fetchall() if cursor.description else ()
    return Rows(rows, cursor.rowcount)
