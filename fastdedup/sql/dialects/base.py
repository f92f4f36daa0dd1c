"""What a dialect gives: statements, and the order in which they are sent, without I/O.

A flow yields one statement after another and is sent what came of each. So one flow serves async and synchronous
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
from ..faults import DatabaseFault, fault_of

T = TypeVar("T")
MAX_NAME = 48
"""Characters of a table's name at most: its index has the same name with an ending, and PostgreSQL cuts at 63."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


class Statement(NamedTuple):  # not a frozen dataclass: each receive makes one, and a tuple costs half
    """SQL with a `?` for each parameter, and the parameters."""

    sql: str
    parameters: tuple[Any, ...] = ()


@dataclass(slots=True)
class Rows:
    """What came of a statement: its rows, and how many rows it has changed."""

    rows: Sequence[Sequence[Any]]
    count: int


Flow = Generator[Statement, Rows, T]


class Kept(NamedTuple):
    """What a row keeps: the result's bytes, b"" for no result; and the fingerprint, or None for none."""

    payload: bytes
    mark: bytes | None = None


Marks = Mapping[bytes, bytes | None]
"""The fingerprints of ids; empty if the table need not have the column `fingerprint`."""


Database = tuple[Any, ...]
"""The name of a database's dialect, and what else tells it from other databases of that dialect."""


@dataclass(frozen=True, slots=True)
class TableName:
    """Where the inbox's rows are: a table, and the schema that it is in, or None for the connection's own.

    Raises:
        ConfigError: a name could be more than a name.
    """

    table: str
    schema: str | None = None

    def __post_init__(self) -> None:
        """Check both names, as they become part of statements."""
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
    """Raise ConfigError where a name is not letters, digits and underscores, or is too long."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name) > MAX_NAME:
        raise ConfigError(
            f"{what}= must be a name of 1 to {MAX_NAME} letters, digits and underscores that does not begin with a "
            f"digit, got {name!r}"
        )


@dataclass(frozen=True, slots=True)
class Figures:
    """What `stats` finds out about an inbox's table. Ages are seconds by the database's clock."""

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
    batch: ClassVar[int] = 1000
    """Rows of one purge's transaction by default: what the database deletes in about ten milliseconds."""
    mark_type: ClassVar[str]
    """The type of the column `fingerprint`."""

    def __init__(self, table_name: TableName) -> None:
        self.table_name = table_name
        self.table = table_name.quoted(self.quote)

    @abstractmethod
    def ddl(self, *, marked: bool = True) -> str:
        """Return the statements that create the table, each ended by a semicolon.

        `marked`: with the column `fingerprint`, which tables of fastdedup 0.1.0 do not have.
        """

    def add_fingerprint(self) -> str:
        """Return the statement that gives a table of fastdedup 0.1.0 the column `fingerprint`."""
        return f"ALTER TABLE {self.table} ADD COLUMN fingerprint {self.mark_type};\n"

    @abstractmethod
    def columns(self) -> Flow[dict[str, str]]:
        """Look at the table; return the type of each column, nothing for a table that is not there."""

    @abstractmethod
    def faults_of_the_table(self) -> Flow[list[str]]:
        """Look at the table; return what does not fit, or nothing. A table that is not there is `MISSING`."""

    @abstractmethod
    def insert_one(self, row_id: bytes, mark: bytes | None = None) -> Statement:
        """Return the statement that inserts a row. It changes one row where the id is new, and no row otherwise.

        Waits for a twin in flight, as `insert` does. `mark`: the fingerprint.
        """

    @abstractmethod
    def insert(self, ids: Sequence[bytes], marks: Marks) -> Flow[set[bytes]]:
        """Insert rows; return the ids that are new. `ids` are different and sorted.

        Waits for a twin in flight: where that commits the id is not new, where it rolls back it is.
        """

    @abstractmethod
    def insert_unless_busy(self, row_id: bytes, mark: bytes | None) -> Flow[bool]:
        """Insert one row; return whether it is new. Raises `LockedError` at once where a twin is in flight."""

    @abstractmethod
    def kept(self, ids: Sequence[bytes], *, marked: bool) -> Flow[dict[bytes, Kept]]:
        """Return what the row of each of these ids keeps. Leaves out an id without a row.

        `marked`: read the fingerprints as well.
        """

    @abstractmethod
    def complete(self, row_id: bytes, payload: bytes) -> Statement:
        """Return the statement that keeps a result. It changes one row where the row is there, otherwise no row."""

    def anchor(self, name: str) -> Flow[None]:
        """Set a savepoint in the transaction that has inserted a row. The transaction's end removes it."""
        yield Statement(f"SAVEPOINT {name}")

    def finish(self, row_id: bytes, payload: bytes | None, anchor: str, *, look: bool) -> Flow[bool]:
        """Keep a row's result, if there is one; return whether the row was inserted by the present transaction.

        A row that is merely there may be a twin's, or committed before, if a rollback or a commit has ended the
        transaction of the row. If a statement has failed in the transaction, and the database has ended it for that,
        this fails.

        Args:
            row_id: the row's id.
            payload: the result; None for a row that keeps no result.
            anchor: the name that `anchor` was given.
            look: look whether the row is still there, also if that takes a statement of its own.
        """
        try:
            yield Statement(f"RELEASE SAVEPOINT {anchor}")
        except Exception as error:
            if fault_of(error) is not DatabaseFault.REFUSED:
                raise
            return False
        if payload is None:
            return not look or row_id in (yield from self.kept([row_id], marked=False))
        return bool((yield self.complete(row_id, payload)).count)

    @abstractmethod
    def purge(self, keep: float, size: int) -> Flow[int | None]:
        """Delete up to `size` rows that are older than `keep` seconds; return how many.

        None where another process purges the table just now.
        """

    @abstractmethod
    def figures(self, stretch: float) -> Flow[Figures]:
        """Return the table's figures; `stretch`: seconds of each stretch of ages."""


MISSING = "missing"
"""The fault of a table that is not there."""


def misfits(found: dict[str, str], wanted: dict[str, tuple[str, ...]]) -> list[str]:
    """Compare columns and their types; return what does not fit, a sentence for each.

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
