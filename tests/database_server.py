"""What every database server of the tests can do: start from a template, freeze, die, end with the tests."""

from __future__ import annotations

import hashlib
import itertools
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
from abc import ABC, abstractmethod
from contextlib import closing, suppress
from functools import cache
from pathlib import Path
from typing import Any

import psutil

from .killable import DEADLINE, Guarded, hold_still, until

ROOT = Path(__file__).parent.parent
KEPT = ROOT / "build" / "databases"

# Waits until the process that started it ends, in whichever way; then ends the server and removes its folder.
GUARD = """
while read -r _; do :; done
kill -CONT "$1"; kill -s "$2" "$1"
for _ in $(seq 100); do rm -rf "$3" && break; sleep 0.1; done
"""


class DatabaseServer(Guarded, ABC):
    """A database server with its own folder, which `stop` removes. It ends with this process, also on SIGKILL.

    Args:
        options: of the server; they win over those here. They are read at each `start`.
        durable: wait for the disk at each commit, as in production, with the buffers of production. Without it, which
            is quicker, a commit outlives `kill`, but not a crash of the machine.
    """

    owners: tuple[str, ...]
    """Users that may run the server where this process is root: the first that exists."""
    last_signal: signal.Signals
    """Ends the server at once, without a checkpoint, and takes its shared memory away."""
    waits: str
    """The query for the number of transactions that wait for a lock."""

    def __init__(self, *options: str, durable: bool = False) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="fastdedup-sql-"))
        self.data = self.folder / "data"
        self.options = options
        self.durable = durable
        self._names = itertools.count(1)

    @abstractmethod
    def admin(self) -> Any:
        """Connect as the superuser, with autocommit: a connection of psycopg, or of pymysql."""

    def waiting(self) -> int:
        """Give the number of transactions that wait for a lock."""
        with closing(self.admin()) as admin, admin.cursor() as cursor:
            cursor.execute(self.waits)
            return int(cursor.fetchone()[0])

    @abstractmethod
    def fresh(self) -> Any:
        """Make an empty database in the running server."""

    @abstractmethod
    def drop(self, database: Any) -> None:
        """Remove a database that `fresh` made. MariaDB waits for transactions in it; PostgreSQL ends them."""

    @abstractmethod
    def _create_command(self, data: Path) -> list[str]:
        """Give the command that makes an empty data folder."""

    @abstractmethod
    def _start_command(self) -> list[str]: ...

    @property
    @abstractmethod
    def socket(self) -> Path: ...

    def freeze(self) -> None:
        """Stop every process of the server in its tracks; its connections stay open."""
        hold_still(self.pid)  # before, it may still start another process
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """End every process of the server as a crash would."""
        self._dismiss_guard()
        self.freeze()
        children = self._signal(signal.SIGKILL)
        self._process.wait(DEADLINE)
        until(lambda: not any(map(runs, children)), "its processes have ended", every=0.001)

    def _end(self) -> None:
        self._dismiss_guard()
        self.thaw()
        self._process.send_signal(self.last_signal)
        self._process.wait(DEADLINE)

    def _signal(self, number: signal.Signals) -> list[psutil.Process]:
        """Signal the server's first process and those that it started, which are returned."""
        first = psutil.Process(self.pid)
        children: list[psutil.Process] = first.children(recursive=True)
        for process in (first, *children):
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)
        return children

    def _owner(self) -> pwd.struct_passwd:
        """Give the user that the server runs as: this one, unless it is root."""
        if os.getuid() != 0:
            return pwd.getpwuid(os.getuid())
        users = {user.pw_name: user for user in pwd.getpwall()}
        return next(users[name] for name in (*self.owners, "nobody") if name in users)

    def _as_owner(self) -> dict[str, Any]:
        """Give the arguments that make `subprocess` run a program as the owner."""
        if os.getuid() != 0:
            return {}
        owner = self._owner()
        return {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": []}

    def _give(self, folder: Path) -> None:
        """Give a folder and what is in it to the owner."""
        if os.getuid() == 0:
            owner = self._owner()
            subprocess.run(["chown", "-R", f"{owner.pw_uid}:{owner.pw_gid}", str(folder)], check=True)

    def _launch(self) -> None:
        if not self.data.exists():
            copy(self._template(), self.data)
            self._give(self.folder)
        with (self.folder / "log").open("ab") as log:
            command = [*self._start_command(), *self.options]
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, cwd=self.folder, start_new_session=True, **self._as_owner()
            )
        self._let_guard(GUARD, int(self.last_signal))

    def _template(self) -> Path:
        """Give an empty data folder to copy, which is made once for a version of the server."""
        command = self._create_command(Path("data"))
        facts = [version(self._start_command()[0]), self._owner().pw_name, *command]
        kept = KEPT / hashlib.sha256("\0".join(facts).encode()).hexdigest()[:16]
        if not kept.exists():
            self._make_template(kept)
        return kept

    def _make_template(self, kept: Path) -> None:
        # Made where the owner may write, which the checkout need not be.
        with tempfile.TemporaryDirectory(prefix="fastdedup-sql-") as name:
            self._give(Path(name))
            made = Path(name, "data")
            done = subprocess.run(
                self._create_command(made),
                cwd=name,
                capture_output=True,
                text=True,
                check=False,
                **self._as_owner(),
            )
            assert done.returncode == 0, done.stdout + done.stderr
            KEPT.mkdir(parents=True, exist_ok=True)
            mine = KEPT / f"{kept.name}-{os.getpid()}"
            copy(made, mine)
        try:
            mine.rename(kept)
        except OSError:  # another worker was quicker
            shutil.rmtree(mine)

    def _serves(self) -> bool:
        return listens(self.socket)


def listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


def runs(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def copy(folder: Path, to: Path) -> None:
    """Copy a folder with the modes of its files, more quickly than `shutil` does."""
    subprocess.run(["cp", "-a", str(folder), str(to)], check=True)


@cache
def version(program: str) -> str:
    return subprocess.check_output([program, "--version"], text=True)


def found(variable: str, script: str) -> Path:
    """Give the path that an environment variable names, else the one that a script finds."""
    return Path(os.environ.get(variable) or ask(script)).resolve()


@cache
def ask(script: str) -> str:
    return subprocess.check_output([ROOT / ".ci" / script], text=True).strip()
