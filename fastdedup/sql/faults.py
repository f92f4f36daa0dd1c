"""What a database's error means for a transaction, whichever driver has raised it."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

from ..errors import ConfigError, DedupError, RetryTransaction, UsageError


class LockedError(RetryTransaction):
    """A lock was not given in time."""


class DatabaseFault(Enum):
    """What an error of a database means."""

    RETRY = "run the whole transaction again"
    LOCKED = "a lock was not given in time"
    NO_TABLE = "the table is not there"
    MISFIT = "the table has other columns, or its id is not unique"
    READ_ONLY = "the connection may only read"
    STANDBY = "the server takes no writes now, as while another one becomes the primary"
    ABORTED = "the transaction has failed before"
    REFUSED = "the database has refused the statement: nothing of it has happened"
    UNKNOWN = "the connection was lost, or the driver refused"


# PostgreSQL's, by SQLSTATE; see its manual, appendix A.
_BY_STATE = {
    "40001": DatabaseFault.RETRY,
    "40P01": DatabaseFault.RETRY,
    "55P03": DatabaseFault.LOCKED,
    "42P01": DatabaseFault.NO_TABLE,
    "3F000": DatabaseFault.NO_TABLE,
    "42703": DatabaseFault.MISFIT,
    "42804": DatabaseFault.MISFIT,
    "42P10": DatabaseFault.MISFIT,
    "25006": DatabaseFault.STANDBY,  # also in a transaction that its caller has made READ ONLY
    "25P02": DatabaseFault.ABORTED,
}
_LOST_STATES = ("08", "40003", "53", "57P0", "58", "F0", "XX")
"""The beginnings of the SQLSTATEs that leave open what has happened."""
_MYSQL_DRIVERS = ("pymysql", "MySQLdb", "mysql.connector", "asyncmy", "aiomysql")
# MySQL's and MariaDB's, by number.
_BY_NUMBER = {
    1213: DatabaseFault.RETRY,
    1020: DatabaseFault.RETRY,
    1205: DatabaseFault.LOCKED,
    1146: DatabaseFault.NO_TABLE,
    1049: DatabaseFault.NO_TABLE,
    1054: DatabaseFault.MISFIT,
    1290: DatabaseFault.STANDBY,
    1792: DatabaseFault.READ_ONLY,
    1836: DatabaseFault.STANDBY,
    3101: DatabaseFault.RETRY,  # group replication has refused the COMMIT
}
# The server stops, the connection was lost or killed, or the COMMIT was interrupted. From 2000 to 2999 they are the
# client's own: the connection is gone.
_LOST_NUMBERS = {1053, 1152, 1158, 1159, 1160, 1161, 1180, 1184, 1317, 1927, 3169, 4031, *range(2000, 3000)}
# SQLite's, by the first byte of its result code.
_BY_CODE = {
    5: DatabaseFault.RETRY,
    6: DatabaseFault.RETRY,
    8: DatabaseFault.READ_ONLY,
    19: DatabaseFault.REFUSED,
}


def fault_of(error: BaseException) -> DatabaseFault:
    """Return what an error means. SQLAlchemy and Django wrap the driver's error: the innermost counts."""
    for each in _layers(error):
        # First, because PyMySQL's errors have a SQLSTATE as well, which is HY000 for most of them.
        if type(each).__module__.startswith(_MYSQL_DRIVERS):
            return _mysql(each)
        state = _state(each)
        if state is not None:
            if state.startswith(_LOST_STATES):
                return DatabaseFault.UNKNOWN
            return _BY_STATE.get(state, DatabaseFault.REFUSED)
        if hasattr(each, "sqlite_errorcode"):
            return _sqlite(each)
    return DatabaseFault.UNKNOWN


def translated(error: BaseException, table_name: object) -> DedupError | None:
    """Return this library's error for what a database or its driver has raised; None where it has none.

    `table_name`: the table.
    """
    fault = fault_of(error)
    if fault is DatabaseFault.LOCKED:
        return LockedError(_again("a lock was not given in time"))
    if fault is DatabaseFault.RETRY:
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


def aborted() -> UsageError:
    """Return the error for a transaction in which a statement has failed before."""
    return UsageError(
        "a statement before has failed, so this transaction can only be rolled back: begin another one"
    )


def no_table(table_name: object) -> ConfigError:
    """Return the error for a table that is not there."""
    return ConfigError(
        f"there is no table {table_name} that this connection sees: `fastdedup inbox ddl --dialect …` prints the SQL "
        "that creates it"
    )


def _again(reason: str) -> str:
    return f"the database has ended this transaction ({reason}): roll it back, and run the whole of it again"


def words_of(error: BaseException) -> str:
    """Return the database's own words, without the statement and the parameters that SQLAlchemy puts beside them."""
    innermost = list(_layers(error))[-1]
    return " ".join(str(innermost).split())


def _layers(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, and the errors that it wraps."""
    seen: set[int] = set()
    each: BaseException | None = error
    while each is not None and id(each) not in seen:
        yield each
        seen.add(id(each))
        inner = getattr(each, "orig", None)
        each = inner if isinstance(inner, BaseException) else each.__cause__


def _state(error: BaseException) -> str | None:
    """Return PostgreSQL's SQLSTATE: an attribute of the error, or, by pg8000, a field of the server's message."""
    state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    if state is None and error.args and isinstance(error.args[0], dict):
        state = error.args[0].get("C")
    return state if isinstance(state, str) else None


def _mysql(error: BaseException) -> DatabaseFault:
    number = error.args[0] if error.args else None
    if not isinstance(number, int) or number < 1000 or number in _LOST_NUMBERS:
        return DatabaseFault.UNKNOWN
    return _BY_NUMBER.get(number, DatabaseFault.REFUSED)


def _sqlite(error: BaseException) -> DatabaseFault:
    code: int = getattr(error, "sqlite_errorcode", 0)
    text = str(error)
    if text.startswith("no such table"):
        return DatabaseFault.NO_TABLE
    if text.startswith(("no such column", "table ", "ON CONFLICT clause does not match")):
        return DatabaseFault.MISFIT
    return _BY_CODE.get(code & 0xFF, DatabaseFault.REFUSED if code & 0xFF == 1 else DatabaseFault.UNKNOWN)
