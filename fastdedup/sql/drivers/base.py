"""The interface of a driver, and the loop that runs a flow of statements with it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, ClassVar, TypeVar

from ...errors import DedupError, RetryTransaction, UsageError
from ..dialects import fault_of
from ..dialects.base import Database, Flow, Rows, Statement, TableName
from ..faults import DatabaseFault, layers, translated

T = TypeVar("T")


class Driver(ABC):
    """Runs statements in one transaction of the caller.

    Raises on creation:
        UsageError: there is no transaction, and a statement would be committed by itself.
    """

    is_async: ClassVar[bool]
    dialect: str
    """The name of the database, or of a driver with a dialect of its own: see `dialect_of`."""

    @property
    def database(self) -> Database:
        """The database, as far as the driver knows it without a statement.

        A table is checked once in each database. If a dialect's statements fail on a table without a unique id, its
        name alone is enough here.
        """
        return (self.dialect,)

    @abstractmethod
    def is_open(self) -> bool:
        """True until the transaction of this driver ends."""

    def is_nested(self) -> bool:
        """True if the transaction is known to be a part of another one, which may still be rolled back."""
        return False

    def is_lost(self) -> bool:
        """True if the connection is known to be lost, and the transaction with it."""
        return False

    def may_be_committed(self) -> bool:
        """True if an error of the transaction's end may be an application's, of code that ran after the COMMIT."""
        return False

    @abstractmethod
    def execute(self, statement: Statement) -> Any:
        """Run a statement; return its `Rows`, or an awaitable of them."""

    def flush(self) -> Any:
        """Send what the work has left in a session, if its transaction is open.

        Return an awaitable of its end, or None if there is none. Else it comes with the COMMIT, and its errors would
        leave it unknown whether that took effect.
        """
        return None


async def run(driver: Driver, flow: Flow[T], table_name: TableName) -> T:
    """Run a flow of statements. It suspends only with an async driver. It raises the error that `told` returns."""
    done: Rows | None = None
    fault: Exception | None = None
    while True:
        try:
            statement = flow.send(done) if fault is None else flow.throw(fault)  # type: ignore[arg-type]
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        done = fault = None
        try:
            running = driver.execute(statement)
            done = await running if driver.is_async else running
        except Exception as error:  # noqa: BLE001 -- the flow gets it, and raises it again
            fault = told(error, table_name)


def told(error: Exception, table_name: TableName) -> Exception:
    """Return the error for the caller: this library's, if it has one, with the driver's error as its cause."""
    ours = translated(fault_of(error), error, table_name)
    if ours is None:
        return error
    ours.__cause__ = error
    return ours


def is_retryable(error: BaseException) -> bool:
    """True if the whole transaction must be run again."""
    again = (DatabaseFault.RETRY, DatabaseFault.LOCKED, DatabaseFault.STANDBY)
    return isinstance(error, RetryTransaction) or fault_of(error) in again


_LOST_NAMES = frozenset(
    ("OperationalError", "PostgresConnectionError", "OperatorInterventionError", "InsufficientResourcesError")
)
"""The classes of drivers' errors for a connection that was lost, and for a server that gives none: by their names,
because the drivers need not be installed. The dialects tell them from other errors of these classes."""
_OUTAGE_NAMES = _LOST_NAMES | {"InterfaceError", "InternalClientError", "TimeoutError"}
"""These classes, and those that mean so only while a transaction begins: SQLAlchemy's pool has a TimeoutError, and
asyncpg an InternalClientError for a connection that the server has just ended."""


_DATABASE_NAMES = frozenset(
    ("DatabaseError", "InterfaceError", "PostgresError", "MySQLError", "SQLAlchemyError", "RetryTransaction")
)
"""The base classes of drivers' errors, by PEP 249 and by the others' own names; and this library's."""


def is_of_database(error: BaseException) -> bool:
    """True if an error is a database's own, and not one that the work has raised because of it."""
    return any(base.__name__ in _DATABASE_NAMES for base in type(error).__mro__)


def is_connection_lost(error: BaseException) -> bool:
    """True if an error of work in a transaction means that the database was lost, and not a fault of the work."""
    if fault_of(error) is not DatabaseFault.UNKNOWN or isinstance(error, DedupError):
        return False
    return any(getattr(each, "connection_invalidated", False) for each in layers(error)) or _is_one_of(
        _LOST_NAMES, error
    )


def is_outage(error: BaseException) -> bool:
    """True if an error of the beginning of a transaction means that the database does not answer."""
    if _is_closed(error):  # the database has ended it since BEGIN
        return True
    if fault_of(error) is not DatabaseFault.UNKNOWN or isinstance(error, DedupError):
        return False
    return any(isinstance(each, OSError) for each in layers(error)) or _is_one_of(_OUTAGE_NAMES, error)


def _is_closed(error: BaseException) -> bool:
    return any(isinstance(each, ClosedConnectionError) for each in layers(error))


def _is_one_of(names: frozenset[str], error: BaseException) -> bool:
    return any(base.__name__ in names for each in layers(error) for base in type(each).__mro__)


def no_transaction(how: str) -> UsageError:
    """Return the error for a connection that commits each statement by itself; `how`: how to begin one."""
    return UsageError(
        "this connection is in no transaction, so the inbox's row would be committed by itself, before the work: "
        f"begin one, for example with {how}"
    )


class ClosedConnectionError(UsageError):
    """A connection is closed: by its user, or by the database."""


def closed() -> ClosedConnectionError:
    """Return the error for a connection that is closed."""
    return ClosedConnectionError("this connection is closed: give the inbox one that is in a transaction")


def driver_for(
    package: str, kinds: Mapping[Any, Callable[[Any], Driver]], how: str = ""
) -> Callable[[Any], Driver]:
    """Return the function that makes a driver of a package's connection.

    Args:
        package: its name, for the error.
        kinds: the driver for each class of its connections.
        how: how to get a connection in a transaction, for the error.
    """
    pairs = tuple(kinds.items())

    def driver(transaction: Any) -> Driver:
        for kind, make in pairs:
            if isinstance(transaction, kind):
                return make(transaction)
        got = f"{package}'s {type(transaction).__name__}"
        raise UsageError(
            f"an inbox needs a connection in a transaction, got {got}" + (f": {how}" if how else "")
        )

    return driver


@lru_cache(256)  # a text with placeholders for a thousand keys is large
def placed(sql: str, style: str) -> str:
    """Return SQL with a driver's own placeholder for each `?`: `style` is "%s", "?", or "$" for numbered ones."""
    parts = sql.split("?")
    if style == "$":
        return "".join(f"{part}${number}" for number, part in enumerate(parts[:-1], 1)) + parts[-1]
    return style.join(parts)


def of_cursor(cursor: Any) -> Rows:
    """Return the result in a synchronous cursor."""
    rows = cursor.fetchall() if cursor.description else ()
    return Rows(rows, cursor.rowcount)
