"""A RabbitMQ node of the program's own, for half a minute: own port, own folder, own Erlang; nothing is installed."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from time import monotonic, sleep
from types import TracebackType
from typing import Final, Self

from fastdedup import UnavailableError

STARTING: Final = 30.0
"""Seconds that the node may take to start; alone on the machine it takes 3."""

# Waits until the process that started it ends, in whichever way; then ends the node's group and removes its folder.
_GUARD: Final = """
while read -r _; do :; done
kill -s KILL -- "-$1"
for _ in $(seq 100); do rm -rf "$2" && break; sleep 0.1; done
"""


def find_rabbitmq(named: str | None = None) -> Path | None:
    """Return RabbitMQ's script rabbitmq-server: the one that is named, else the PATH's; None if there is none.

    Debian puts a wrapper on the PATH that runs RabbitMQ as another user: the script itself stands where it points to.
    """
    for program in (named, shutil.which("rabbitmq-server"), "/usr/lib/rabbitmq/bin/rabbitmq-server"):
        if program and (script := Path(os.path.realpath(program)).with_name("rabbitmq-server")).exists():
            script = script.resolve()
            if any((script.parent.parent / "plugins").glob("rabbit-*")):
                return script
    return None


class RabbitNode:
    """One node, as a context manager. It ends with the block, and with this process, however that ends.

    Args:
        program: RabbitMQ's script rabbitmq-server; erl and epmd stand beside it, or on the PATH.
    """

    def __init__(self, program: Path) -> None:
        self.program = program
        self.folder = Path(tempfile.mkdtemp(prefix="fastdedup-messages-"))
        self.port, *self._ports = free_ports(3)
        # Mutable: the node, and who ends it if this process cannot.
        self._node: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """What clients connect to."""
        return f"amqp://guest:guest@127.0.0.1:{self.port}/"

    @property
    def version(self) -> str:
        """The version, as the name of its folder tells it."""
        found = next((self.program.parent.parent / "plugins").glob("rabbit-*"), Path("rabbit-?"))
        return found.name.removeprefix("rabbit-").removesuffix(".ez")

    def __enter__(self) -> Self:
        """Start the node, and return once it serves.

        Raises:
            UnavailableError: it does not start in time; the message ends with its own last words.
        """
        try:
            self._start()
            self._wait()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End every process of the node, and remove its folder."""
        if self._node is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._node.pid, signal.SIGKILL)
            self._node.wait()
        if self._guard is not None:
            self._guard.kill()
            self._guard.communicate()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _start(self) -> None:
        prepare(self.program, self.folder, self.port)
        with (self.folder / "log").open("wb") as log:
            self._node = subprocess.Popen(
                command(self.program),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env=environment(self.program, self.folder, *self._ports),
                start_new_session=True,
            )
        self._guard = subprocess.Popen(
            ["sh", "-c", _GUARD, "guard", str(self._node.pid), str(self.folder)],
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _wait(self) -> None:
        ends = monotonic() + STARTING
        while not greets(self.port):
            assert self._node is not None
            if self._node.poll() is not None or monotonic() > ends:
                words = (self.folder / "log").read_text(errors="replace").split()[-30:]
                raise UnavailableError(f"RabbitMQ did not start: {' '.join(words) or 'it said nothing'}")
            sleep(0.02)


def prepare(program: Path, folder: Path, port: int, settings: Sequence[str] = ()) -> None:
    """Write a node's configuration; `settings` are Erlang's terms of the application `rabbit`."""
    terms = ", ".join((f'{{tcp_listeners, [{{"127.0.0.1", {port}}}]}}', *settings))
    (folder / "advanced.config").write_text(f"[{{rabbit, [{terms}]}}].\n")
    (folder / "enabled").write_text("[].\n")
    home = folder / "home"
    if not home.exists():
        (home / "plugins").mkdir(parents=True)
        (home / "sbin").symlink_to(program.parent)
        for library in needed(program.parent.parent / "plugins"):
            (home / "plugins" / library.name).symlink_to(library)


@cache
def needed(plugins: Path) -> list[Path]:
    """Return RabbitMQ's server and the libraries that it depends on, among its plugins.

    With all sixty on Erlang's path a node computes 3.9 s until it serves, with these 2.1 s.
    """
    folders = {folder.name.partition("-")[0]: folder for folder in plugins.iterdir()}
    wanted, names = set[str](), ["rabbit"]
    while names:
        name = names.pop()
        if name in folders and name not in wanted:
            wanted.add(name)
            description = folders[name] / "ebin" / f"{name}.app"
            if not description.exists():  # packed into one file: then all
                return list(plugins.iterdir())
            applications = re.search(r"\{applications,\s*\[([^]]*)]", description.read_text())
            names += re.findall(r"\w+", applications[1]) if applications else []
    return [folders[name] for name in sorted(wanted)]


def command(program: Path) -> list[str]:
    """Return the command that runs a node. epmd, which tells Erlang's nodes of each other, is in its group."""
    return ["sh", "-c", 'epmd -port "$ERL_EPMD_PORT" -address 127.0.0.1 & exec "$0"', str(program)]


def environment(program: Path, folder: Path, epmd_port: int, node_port: int) -> dict[str, str]:
    """Return a node's environment, which has nothing of the machine's own RabbitMQ."""
    return {
        "PATH": f"{program.parent}:{os.environ['PATH']}",
        "HOME": str(folder),  # where Erlang keeps the cookie
        "LC_ALL": "C.UTF-8",
        "ERL_EPMD_PORT": str(epmd_port),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "RABBITMQ_DIST_PORT": str(node_port),
        "RABBITMQ_NODENAME": "rabbit@localhost",
        "RABBITMQ_MNESIA_BASE": f"{folder}/data",
        "RABBITMQ_LOG_BASE": str(folder),
        "RABBITMQ_LOGS": "-",
        "RABBITMQ_PID_FILE": f"{folder}/pid",
        "RABBITMQ_CONF_ENV_FILE": f"{folder}/none",
        "RABBITMQ_CONFIG_FILE": f"{folder}/none",
        "RABBITMQ_ADVANCED_CONFIG_FILE": f"{folder}/advanced.config",
        "RABBITMQ_ENABLED_PLUGINS_FILE": f"{folder}/enabled",
        "RABBITMQ_SCRIPTS_DIR": f"{folder}/home/sbin",
        "RABBITMQ_PLUGINS_DIR": f"{folder}/home/plugins",
        "RABBITMQ_ALLOW_INPUT": "1",  # else a shell stays between this process and the server
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-noinput -start_epmd false "
        "-kernel inet_dist_use_interface {127,0,0,1} +S 1:1 +SDcpu 1:1 +SDio 1",
    }


def greets(port: int) -> bool:
    """True if a node answers on a port."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1.0) as connection:
            connection.sendall(b"AMQP\x00\x00\x09\x01")
            return connection.recv(1) == b"\x01"
    except OSError:
        return False


def free_ports(count: int) -> list[int]:
    """Return loopback ports that are not used."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
