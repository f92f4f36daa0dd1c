"""The meanings of a database's error for a transaction. Each dialect reads the errors of its own database."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

from ..errors import ConfigError, DedupError, RetryTransaction, UsageError


class LockedError(RetryTransaction):
    """A lock was not given in time."""


class AbortedError(UsageError):
    """A statement has failed in the transaction before, so it can only be rolled back."""


class DatabaseFault(Enum):
    """The meaning of an error of a database."""

    RETRY = "run the whole transaction again"
    LOCKED = "a lock was not given in time"
    TIMED_OUT = "a statement took longer than the database lets one take"
    NO_TABLE = "the table is not there"
    MISFIT = "the table has other columns, or its id is not unique"
    READ_ONLY = "the connection may only read"
    STANDBY = "the server takes no writes now; perhaps another one is becoming the primary"
    ABORTED = "the transaction has failed before"
    REFUSED = "the database has refused the statement: nothing of it has happened"
    UNKNOWN = "the connection was lost, or the driver refused"


def translated(fault: DatabaseFault, error: BaseException, table_name: object) -> DedupError | None:
    """Return this library's error for an error of a database or its driver; None if there is none.

    Args:
        fault: the error's meaning.
        error: the error.
        table_name: the table.
    """
    if fault is DatabaseFault.LOCKED:
        return LockedError(_again("a lock was not given in time"))
    if fault in (DatabaseFault.RETRY, DatabaseFault.TIMED_OUT):
        return RetryTransaction(_again(words_of(error)))
    if fault is DatabaseFault.STANDBY:
        return RetryTransaction(
            "the connection may only read, and an inbox must write: run the whole transaction again while the server "
            "gives way to another primary; if this stays so, give it a connection to the primary, in a transaction "
            "that is not READ ONLY"
        )
    if fault is DatabaseFault.READ_ONLY:
        return UsageError(
            "the connection may only read, and an inbox must write: give it a connection to the primary, "
            "in a transaction that is not READ ONLY"
        )
    if fault is DatabaseFault.ABORTED:
        return aborted()
    if fault is DatabaseFault.NO_TABLE:
        return no_table(table_name)
    if fault is DatabaseFault.MISFIT:
        return ConfigError(
            f"the table {table_name} is no inbox: {words_of(error)}; see `fastdedup inbox ddl`"
        )
    return None


def aborted() -> AbortedError:
    """Return the error for a transaction in which a statement has failed before."""
    return AbortedError(
        "a statement before has failed, so this transaction can only be rolled back: begin another one"
    )


def no_table(table_name: object) -> ConfigError:
    """Return the error for a table that does not exist."""
    return ConfigError(
        f"there is no table {table_name} that this connection sees: `fastdedup inbox ddl --dialect …` prints the SQL "
        "that creates it"
    )


def _again(reason: str) -> str:
    return f"the database has ended this transaction ({reason}): roll it back, and run the whole of it again"


def words_of(error: BaseException) -> str:
    """Return the database's own words, without the statement and the parameters that SQLAlchemy puts beside them."""
    innermost = list(layers(error))[-1]
    return " ".join(str(innermost).split())


def layers(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, and the errors that it wraps: SQLAlchemy and Django wrap the driver's error."""
    seen: set[int] = set()
    each: BaseException | None = error
    while each is not None and id(each) not in seen:
        yield each
        seen.add(id(each))
        inner = getattr(each, "orig", None)
        each = inner if isinstance(inner, BaseException) else each.__cause__
