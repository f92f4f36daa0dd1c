"""The interface of a dialect: statements, and the order in which they are sent, without I/O.

A flow yields one statement after another, and gets the rows of each. So one flow serves async and synchronous
drivers: see `drivers/base.py`.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeVar

from ...errors import ConfigError
from ..faults import DatabaseFault, layers

T = TypeVar("T")
MAX_NAME = 48
"""The most characters of a table's name: its index has this name and a suffix, and PostgreSQL cuts at 63."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


class Statement(NamedTuple):  # not a frozen dataclass: each receive makes one, and a tuple costs half
    """SQL with a `?` for each parameter, and the parameters."""

    sql: str
    parameters: tuple[Any, ...] = ()


@dataclass(slots=True)
class Rows:
    """The result of a statement: its rows, and the number of rows that it has changed."""

    rows: Sequence[Sequence[Any]]
    count: int


Flow = Generator[Statement, Rows, T]


class Kept(NamedTuple):
    """The content of a row: the result's bytes, or b"" if there is no result; and the fingerprint, or None."""

    payload: bytes
    mark: bytes | None = None


Marks = Mapping[bytes, bytes | None]
"""The fingerprints of ids; empty if the table need not have the column `fingerprint`."""


Database = tuple[Any, ...]
"""The name of a database's dialect, and a value that distinguishes it from other databases of that dialect."""


@dataclass(frozen=True, slots=True)
class TableName:
    """The place of the inbox's rows: a table and its schema, or None for the connection's own schema.

    Raises:
        ConfigError: a name is too long, or has other characters than letters, digits and underscores.
    """

    table: str
    schema: str | None = None

    def __post_init__(self) -> None:
        """Check both names, because they become part of statements."""
        check_name("table", self.table)
        if self.schema is not None:
            check_name("schema", self.schema)

    def __str__(self) -> str:
        return self.table if self.schema is None else f"{self.schema}.{self.table}"

    def quoted(self, quote: str) -> str:
        """Return the name for a statement."""
        names = [self.table] if self.schema is None else [self.schema, self.table]
        return ".".join(f"{quote}{name}{quote}" for name in names)


def check_name(what: str, name: object) -> None:
    """Raise ConfigError if a name has other characters than letters, digits and underscores, or is too long."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name) > MAX_NAME:
        raise ConfigError(
            f"{what}= must be a name of 1 to {MAX_NAME} letters, digits and underscores that does not begin with a "
            f"digit, got {name!r}"
        )


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of an inbox's table, for `stats`. Ages are seconds by the database's clock."""

    rows: int
    size: int
    """Bytes on disk, indexes included."""
    oldest: float | None
    ages: tuple[tuple[float, int], ...]
    """The rows by age: the lower bound of each stretch, and its rows."""


class Dialect(ABC):
    """The statements of one database for one table."""

    name: ClassVar[str]
    quote: ClassVar[str] = '"'
    anchors: ClassVar[bool] = True
    """True if `finish` recognizes the transaction by the savepoint that `anchor` has set."""
    keeps_equal_savepoints: ClassVar[bool] = True
    """True if a savepoint is still there once a later one with its name has ended."""
    batch: ClassVar[int] = 1000
    """Rows of one purge's transaction by default: as many as the database deletes in about ten milliseconds."""
    mark_type: ClassVar[str]
    """The type of the column `fingerprint`."""
    column_types: ClassVar[dict[str, tuple[str, ...]]]
    """The types that each column may have."""
    most_bytes: ClassVar[dict[str, int]] = {}
    """By type, the most bytes of a column `result`, if a setting lets the database cut a longer result."""
    age: ClassVar[str]
    """The age of a row in seconds, with {} for its time."""
    stretches: ClassVar[str]
    """The whole stretches of time in {} seconds, with a parameter for the seconds of one."""
    _insert_one: str
    _insert_marked: str
    """The statements of `insert_one`, without a fingerprint and with one."""
    _complete: str
    """The statement of `complete`."""

    def __init__(self, table_name: TableName) -> None:
        self.table_name = table_name
        self.table = table_name.quoted(self.quote)

    @staticmethod
    @abstractmethod
    def fault(error: BaseException) -> DatabaseFault | None:
        """Return the meaning of an error of this database's drivers; None for any other error."""

    @abstractmethod
    def ddl(self, *, marked: bool = True) -> str:
        """Return the statements that create the table, each ended by a semicolon.

        `marked`: with the column `fingerprint`, which tables of fastdedup 0.1.0 do not have.
        """

    def add_fingerprint(self) -> str:
        """Return the statement that gives a table of fastdedup 0.1.0 the column `fingerprint`."""
        return f"ALTER TABLE {self.table} ADD COLUMN fingerprint {self.mark_type};\n"

    @abstractmethod
    def columns_statement(self) -> Statement:
        """Return the statement that gives the name and the type of each column, or no row without a table."""

    def columns(self) -> Flow[dict[str, str]]:
        """Look at the table; return the type of each column, or an empty dict if the table does not exist."""
        found = yield self.columns_statement()
        return {text_of(name): text_of(kind).lower() for name, kind in found.rows}

    def faults_of_the_table(self) -> Flow[list[str]]:
        """Look at the table; return the columns that do not fit. `MISSING` means: the table does not exist."""
        columns = yield from self.columns()
        if not columns:
            return [MISSING]
        faults = [*misfits(columns, self.column_types), *(yield from self.faults_of_the_engine())]
        if not faults and not (yield self.unique_id()).rows:
            faults.append("its column id is not unique")
        return faults

    def faults_of_the_engine(self) -> Flow[list[str]]:
        """Return what is wrong with the engine that keeps the table, if the database has several."""
        yield from ()
        return []

    @abstractmethod
    def unique_id(self) -> Statement:
        """Return the statement that finds the unique index of the column `id` alone; no row if there is none."""

    def insert_one(self, row_id: bytes, mark: bytes | None = None) -> Statement:
        """Return the statement that inserts a row. It changes one row if the id is new, and no row otherwise.

        It waits for a twin in flight, like `insert`. `mark`: the fingerprint.
        """
        if mark is None:
            return Statement(self._insert_one, (self._value(row_id),))
        return Statement(self._insert_marked, (self._value(row_id), self._value(mark)))

    def _value(self, row_id: bytes) -> Any:
        """Return what the driver takes for an id, or for a fingerprint."""
        return row_id

    @abstractmethod
    def insert(self, ids: Sequence[bytes], marks: Marks) -> Flow[set[bytes]]:
        """Insert rows; return the ids that are new. `ids` are different and sorted.

        It waits for a twin in flight: if the twin commits, the id is not new; if the twin rolls back, it is new.
        """

    @abstractmethod
    def insert_unless_busy(self, row_id: bytes, mark: bytes | None) -> Flow[bool]:
        """Insert one row; return whether it is new. Raises `LockedError` at once if a twin is in flight."""

    @abstractmethod
    def kept(self, ids: Sequence[bytes], *, marked: bool) -> Flow[dict[bytes, Kept]]:
        """Return the content of the row of each of these ids. An id without a row is left out.

        `marked`: read the fingerprints as well.
        """

    def complete(self, row_id: bytes, payload: bytes) -> Statement:
        """Return the statement that keeps a result. It changes one row if the row exists and has no result yet."""
        return Statement(self._complete, (payload, self._value(row_id)))

    def anchor(self, name: str) -> Flow[None]:
        """Set a savepoint in the transaction that has inserted a row. The transaction's end removes it."""
        yield Statement(f"SAVEPOINT {name}")

    def finish(self, row_id: bytes, payload: bytes | None, anchor: str, *, look: bool) -> Flow[bool]:
        """Keep a row's result, if there is one; return whether the row was inserted by the present transaction.

        If a rollback or a commit has ended the row's transaction, a row that exists may be a twin's, or may have been
        committed before. If a statement has failed in the transaction, and the database has ended the transaction
        for that, this fails.

        Args:
            row_id: the row's id.
            payload: the result; None for a row that keeps no result.
            anchor: the name that was passed to `anchor`, if it sets any.
            look: check that the row still exists, even if that needs a statement of its own.
        """
        try:
            yield Statement(f"RELEASE SAVEPOINT {anchor}")
        except Exception as error:
            if fault_by([type(self)], error) is not DatabaseFault.REFUSED:
                raise
            return False
        if payload is None:
            return not look or row_id in (yield from self.kept([row_id], marked=False))
        return bool((yield self.complete(row_id, payload)).count)

    @abstractmethod
    def purge(self, keep: float, size: int) -> Flow[int | None]:
        """Delete up to `size` rows that are older than `keep` seconds; return how many.

        None if another process is purging the table.
        """

    def figures(self, stretch: float) -> Flow[Figures]:
        """Return the table's figures; `stretch`: the seconds of each range of ages."""
        size = (yield self.size()).rows
        age = (yield Statement(f"SELECT {self.age.format('MIN(at)')} FROM {self.table}")).rows[0][0]
        numbers = self.stretches.format(self.age.format("at"))
        statement = f"SELECT {numbers}, COUNT(*) FROM {self.table} GROUP BY 1"
        ages = (yield Statement(statement, (stretch,))).rows
        return Figures(
            rows=sum(int(row[1]) for row in ages),
            size=int(size[0][0]),
            oldest=None if age is None else max(0.0, float(age)),
            ages=ages_of(ages, stretch),
        )

    @abstractmethod
    def size(self) -> Statement:
        """Return the statement for the table's bytes."""


def fault_by(dialects: Sequence[type[Dialect]], error: BaseException) -> DatabaseFault:
    """Return an error's meaning, or a wrapped error's, from the first of these dialects that can read it."""
    for each in layers(error):
        for dialect in dialects:
            if (fault := dialect.fault(each)) is not None:
                return fault
    return DatabaseFault.UNKNOWN


MISSING = "missing"
"""The fault of a table that does not exist."""


def misfits(found: dict[str, str], wanted: dict[str, tuple[str, ...]]) -> list[str]:
    """Compare columns and their types; return a sentence for each column that does not fit.

    Args:
        found: the type of each column.
        wanted: the types that each column may have.
    """
    faults = []
    for name, kinds in wanted.items():
        if name not in found:
            faults.append(f"it has no column {name}")
        elif found[name] not in kinds:
            faults.append(f"its column {name} is {found[name]}, not {' or '.join(kinds)}")
    return faults


def text_of(value: Any) -> str:
    """Return a catalog's text: some drivers, and some settings of them, give it as bytes."""
    return bytes(value).decode() if isinstance(value, bytes | bytearray | memoryview) else str(value)


def ages_of(rows: Sequence[Sequence[Any]], stretch: float) -> tuple[tuple[float, int], ...]:
    """Return the ages of a table's rows from (number of the stretch, rows). A row may be of the next second."""
    ages: Counter[float] = Counter()
    for number, count in rows:
        ages[max(0, int(number)) * stretch] += int(count)
    return tuple(sorted(ages.items()))
