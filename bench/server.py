"""Private redis-servers: a socket in a temporary folder, nothing saved, stopped when the block ends.

`private_server` starts a single server; `private_cluster` starts the primaries of a Cluster.
"""

import contextlib
import os
import random
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redis import Redis as BlockingRedis
from redis.asyncio import Redis
from redis.exceptions import RedisError

ROOT = Path(__file__).parent.parent  # where `bench` is importable
START_LIMIT = 10.0  # seconds
STOP_LIMIT = 10.0
HOST = "127.0.0.1"
SLOTS = 16_384
BUS = 10_000  # a node's bus listens this many ports above the node


@contextmanager
def private_server() -> Iterator[str]:
    """Start a server and yield its URL. It has a session of its own, so that Ctrl-C does not stop it."""
    with tempfile.TemporaryDirectory(prefix="fastdedup-bench-") as folder:
        path = Path(folder) / "redis.sock"
        with listening(_redis_server(path, 0), path):
            yield f"unix://{path}"


def _redis_server(path: Path, port: int) -> list[str]:
    """Return the command that starts a server with a Unix socket at `path`, and a TCP port unless that is 0."""
    options = ["--port", str(port), "--bind", HOST, "--unixsocket", str(path), "--unixsocketperm", "700"]
    options += ["--save", "", "--appendonly", "no", "--dir", str(path.parent), "--maxclients", "5000"]
    return ["redis-server", *options]


@dataclass(frozen=True, slots=True)
class Primary:
    """A node of a private Cluster. `socket`: the URL by which the benchmark itself asks the node."""

    port: int
    slots: range
    socket: str
    process: "subprocess.Popen[bytes]"

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Let the node's process stand still, as in a virtual machine that hangs, until the block ends."""
        self.process.send_signal(signal.SIGSTOP)
        try:
            os.waitpid(self.process.pid, os.WUNTRACED)  # until it does stand still
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)


@contextmanager
def private_cluster(count: int) -> Iterator[tuple[Primary, ...]]:
    """Start a Cluster of `count` primaries without replicas, on loopback ports, and yield them."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fastdedup-bench-")))
        nodes = []
        for number, port in enumerate(_free_ports(count)):
            path = folder / f"{number}.sock"
            command = [*_redis_server(path, port), "--cluster-enabled", "yes"]
            command += ["--cluster-config-file", f"{number}.conf", "--cluster-require-full-coverage", "no"]
            process = stack.enter_context(listening(command, path))
            nodes.append(Primary(port, share(number, count), f"unix://{path}", process))
        _introduce(nodes)
        yield tuple(nodes)


def cluster_url(nodes: Sequence[Primary]) -> str:
    return "redis+cluster://" + ",".join(f"{HOST}:{node.port}" for node in nodes)


def share(number: int, count: int) -> range:
    """Return the slots of a node, the `number`-th of `count`."""
    return range(SLOTS * number // count, SLOTS * (number + 1) // count)


def _free_ports(count: int) -> list[int]:
    """Return unused ports that have an unused port for the bus. They lie below those that clients get."""
    ports: list[int] = []
    while len(ports) < count:
        port = random.randrange(12_000, 30_000)
        with socket.socket() as node, socket.socket() as bus, contextlib.suppress(OSError):
            node.bind((HOST, port))
            bus.bind((HOST, port + BUS))
            ports.append(port)
    return ports


def _introduce(nodes: Sequence[Primary]) -> None:
    """Give each node its slots, let the nodes meet, and wait until each of them serves."""
    for epoch, node in enumerate(nodes, start=1):
        _ask(node, "SET-CONFIG-EPOCH", epoch)  # a node that knows another refuses this, so all meet later
        _ask(node, "ADDSLOTS", *node.slots)
    for node in nodes:
        for other in nodes:
            if other is not node:
                _ask(node, "MEET", HOST, other.port)
    deadline = time.monotonic() + START_LIMIT
    while not all(_serves(node, len(nodes)) for node in nodes):
        if time.monotonic() > deadline:
            raise RuntimeError(f"the Cluster did not come up within {START_LIMIT:g} seconds")
        time.sleep(0.02)


def _serves(node: Primary, count: int) -> bool:
    """Return whether the node knows `count` nodes, and that they serve all slots."""
    info = bytes(_ask(node, "INFO"))
    wanted = {"state": "ok", "slots_ok": SLOTS, "known_nodes": count, "size": count}
    return all(f"cluster_{name}:{value}\r\n".encode() in info for name, value in wanted.items())


def _ask(node: Primary, *words: str | int) -> Any:
    with BlockingRedis.from_url(node.socket) as client:
        return client.execute_command("CLUSTER", *words)


@contextmanager
def listening(
    command: Sequence[str], path: Path, environment: Mapping[str, str] | None = None
) -> Iterator["subprocess.Popen[bytes]"]:
    """Start a server, yield it once it accepts connections at `path`, and stop it at the block's end."""
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, start_new_session=True, cwd=ROOT, env=environment
    )
    try:
        _await_socket(path, process, Path(command[0]).name)
        yield process
    finally:
        _stop(process)


def _await_socket(path: Path, process: "subprocess.Popen[bytes]", name: str) -> None:
    deadline = time.monotonic() + START_LIMIT
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
            probe.connect(str(path))
            return
        if process.poll() is not None:
            raise RuntimeError(f"{name} ended with status {process.returncode}")
        time.sleep(0.02)
    raise RuntimeError(f"{name} did not open its socket")


def _stop(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(STOP_LIMIT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(STOP_LIMIT)


async def flush(url: str) -> None:
    """Empty a private server, in the foreground: a background thread would share the cores with the next turn."""
    async with Redis.from_url(url) as client:
        await client.flushall()  # SYNC by default, as lazyfree-lazy-user-flush is off


@asynccontextmanager
async def loopback_port(url: str) -> AsyncIterator[int]:
    """Open a TCP port on a private server, for clients without Unix sockets; closed when the block ends."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port = probe.getsockname()[1]
    async with Redis.from_url(url) as client:
        await client.config_set("port", port)
        try:
            yield port
        finally:
            with contextlib.suppress(RedisError):
                await client.config_set("port", 0)
