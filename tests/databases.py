"""Real PostgreSQL and MariaDB servers for tests: each on a private Unix socket, killable and freezable.

A server starts from a copy of an empty data folder, which `build/databases` keeps. Both kinds refuse to run as root.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL, SIGQUIT
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from .database_server import DatabaseServer, found, listens

if TYPE_CHECKING:
    import psycopg
    import pymysql

# psycopg and pymysql are imported where they are used: most tests need neither.

USER = "fastdedup"
"""The user that owns each fresh database: an ordinary one, whom a read-only server stops."""


@dataclass(frozen=True, slots=True)
class PostgresDatabase:
    """One database of a running PostgreSQL, and how each driver connects to it."""

    name: str
    folder: Path
    """The folder of the server's socket, which PostgreSQL's drivers call the host."""

    @property
    def urls(self) -> dict[str, str]:
        """SQLAlchemy's URL for each driver."""
        rest = f"://{USER}@/{self.name}?host={quote(str(self.folder))}"
        return {driver: f"postgresql+{driver}{rest}" for driver in ("asyncpg", "psycopg")}

    @property
    def asyncpg(self) -> dict[str, Any]:
        """The arguments of `asyncpg.connect` and `asyncpg.create_pool`."""
        return {"host": str(self.folder), "user": USER, "database": self.name}

    @property
    def psycopg(self) -> dict[str, Any]:
        """The arguments of `psycopg.connect`, and `psycopg.AsyncConnection.connect`."""
        return {"host": str(self.folder), "user": USER, "dbname": self.name}

    @property
    def django(self) -> dict[str, Any]:
        """The database's settings in Django's `DATABASES`."""
        engine = "django.db.backends.postgresql"
        return {"ENGINE": engine, "HOST": str(self.folder), "USER": USER, "NAME": self.name}


@dataclass(frozen=True, slots=True)
class MariaDatabase:
    """One database of a running MariaDB, and how each driver connects to it."""

    name: str
    socket: Path

    @property
    def urls(self) -> dict[str, str]:
        """SQLAlchemy's URL for each driver."""
        rest = f"://{USER}@localhost/{self.name}?unix_socket={quote(str(self.socket))}"
        return {"pymysql": f"mysql+pymysql{rest}&ssl_disabled=true", "aiomysql": f"mysql+aiomysql{rest}"}

    @property
    def pymysql(self) -> dict[str, Any]:
        """The arguments of `pymysql.connect`, which otherwise reads all authorities' certificates, for 20 ms."""
        return {"unix_socket": str(self.socket), "user": USER, "database": self.name, "ssl_disabled": True}

    @property
    def aiomysql(self) -> dict[str, Any]:
        """The arguments of `aiomysql.connect` and `aiomysql.create_pool`."""
        return {"unix_socket": str(self.socket), "user": USER, "db": self.name}

    @property
    def django(self) -> dict[str, Any]:
        """The database's settings in Django's `DATABASES`."""
        engine = "django.db.backends.mysql"
        return {
            "ENGINE": engine,
            "HOST": str(self.socket),
            "USER": USER,
            "NAME": self.name,
            "OPTIONS": {"ssl_disabled": True},
        }


class PostgresServer(DatabaseServer):
    """A PostgreSQL server; `admin` connects as its superuser `postgres`."""

    owners = ("postgres",)
    last_signal = SIGQUIT
    waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname <> 'postgres'"
    quick = ("fsync=off", "full_page_writes=off", "shared_buffers=16MB")

    @property
    def socket(self) -> Path:
        return self.folder / ".s.PGSQL.5432"

    def admin(self) -> psycopg.Connection[Any]:
        import psycopg

        return psycopg.connect(host=str(self.folder), user="postgres", dbname="postgres", autocommit=True)

    def fresh(self) -> PostgresDatabase:
        database = PostgresDatabase(f"fresh{next(self._names)}", self.folder)
        with self.admin() as admin:
            if not admin.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [USER]).fetchone():
                admin.execute(f"CREATE ROLE {USER} LOGIN")
            admin.execute(f"CREATE DATABASE {database.name} OWNER {USER}")
        return database

    def drop(self, database: PostgresDatabase) -> None:
        with self.admin() as admin:
            admin.execute(f"DROP DATABASE {database.name} WITH (FORCE)")

    def kill(self) -> None:
        """End every process of the server as a crash would, and take its shared memory away, which would stay."""
        super().kill()
        _, segment = (self.data / "postmaster.pid").read_text().splitlines()[6].split()
        subprocess.run(
            ["ipcrm", "-m", segment], stderr=subprocess.DEVNULL, check=False
        )  # it may be gone already

    def _died(self) -> None:
        # A process that the server had just begun when it was killed keeps its shared memory for a moment.
        assert "pre-existing shared memory block" in self.log[-2000:], self.log
        self._dismiss_guard()
        self._launch()

    def _create_command(self, data: Path) -> list[str]:
        options = ["--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync"]
        options += [] if self.durable else ["--wal-segsize=1"]  # megabytes, each of which a start would copy
        return [str(self._program("initdb")), *options, f"--pgdata={data}"]

    def _start_command(self) -> list[str]:
        # A killed server would leave shared memory of the kind `posix` behind.
        settings = ["listen_addresses=", "max_connections=200", "dynamic_shared_memory_type=mmap", "jit=off"]
        settings += [] if self.durable else self.quick
        command = [str(self._program("postgres")), "-D", str(self.data), "-k", str(self.folder)]
        return [*command, *(part for setting in settings for part in ("-c", setting))]

    def _program(self, name: str) -> Path:
        return found("POSTGRESQL", "postgresql.sh") / name

    def _serves(self) -> bool:
        import psycopg

        if not listens(self.socket):
            return False
        try:
            self.admin().close()
        except psycopg.OperationalError:  # it still starts up
            return False
        return True


class MariaServer(DatabaseServer):
    """A MariaDB server; `admin` connects as its superuser `root`."""

    owners = ("mysql",)
    last_signal = SIGKILL
    # What is asked of innodb_trx within 0.1 s gets the answer before; the status is as of now.
    waits = (
        "SELECT variable_value FROM information_schema.global_status "
        "WHERE variable_name = 'INNODB_ROW_LOCK_CURRENT_WAITS'"
    )
    # 2 gives each commit to the operating system, which outlives the server.
    quick = (
        "--innodb-flush-log-at-trx-commit=2",
        "--debug-no-sync",
        "--innodb-buffer-pool-size=16M",
        "--innodb-log-file-size=4M",
        "--innodb-temp-data-file-path=ibtmp1:1M:autoextend",
        "--aria-pagecache-buffer-size=1M",
        "--key-buffer-size=1M",
    )

    @property
    def socket(self) -> Path:
        return self.folder / "mariadb.sock"

    def admin(self) -> pymysql.Connection[Any]:
        import pymysql

        return pymysql.connect(unix_socket=str(self.socket), user="root", autocommit=True, ssl_disabled=True)

    def fresh(self) -> MariaDatabase:
        database = MariaDatabase(f"fresh{next(self._names)}", self.socket)
        self._run(
            f"CREATE USER IF NOT EXISTS {USER}@localhost",
            f"CREATE DATABASE {database.name}",
            f"GRANT ALL ON {database.name}.* TO {USER}@localhost",
        )
        return database

    def drop(self, database: MariaDatabase) -> None:
        self._run(f"DROP DATABASE {database.name}")

    def _run(self, *statements: str) -> None:
        with self.admin() as admin, admin.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def _create_command(self, data: Path) -> list[str]:
        program = self._program().parent.parent / "bin" / "mariadb-install-db"
        options = ["--auth-root-authentication-method=normal", "--skip-test-db", "--innodb-log-file-size=4M"]
        # As it starts, a server removes what others have in the folder for temporary tables.
        return [str(program), *self._own_options(data), *options, "--tmpdir=."]

    def _start_command(self) -> list[str]:
        # Debian's character set, which MariaDB's own default is not.
        options = ["--skip-networking", "--max-connections=200", "--character-set-server=utf8mb4"]
        options += [
            "--collation-server=utf8mb4_general_ci",
            f"--socket={self.socket}",
            "--pid-file=mariadb.pid",
            f"--tmpdir={self.folder}",
        ]
        options += [] if self.durable else self.quick
        return [str(self._program()), *self._own_options(self.data), *options]

    def _own_options(self, data: Path) -> list[str]:
        return ["--no-defaults", f"--basedir={self._program().parent.parent}", f"--datadir={data}"]

    def _program(self) -> Path:
        return found("MARIADB", "mariadb.sh")
