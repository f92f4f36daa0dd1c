"""A private redis-server: a Unix socket in a temporary folder, nothing saved, stopped when the block ends."""

import contextlib
import socket
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from redis.asyncio import Redis
from redis.exceptions import RedisError

ROOT = Path(__file__).parent.parent  # where `bench` is importable
START_LIMIT = 10.0  # seconds
STOP_LIMIT = 10.0


@contextmanager
def private_server() -> Iterator[str]:
    """Start a server and yield its URL. It has a session of its own, so that Ctrl-C does not stop it."""
    with tempfile.TemporaryDirectory(prefix="fastdedup-bench-") as folder:
        path = Path(folder) / "redis.sock"
        options = ["--port", "0", "--bind", "127.0.0.1", "--unixsocket", str(path), "--unixsocketperm", "700"]
        options += ["--save", "", "--appendonly", "no", "--dir", folder, "--maxclients", "5000"]
        with listening(["redis-server", *options], path):
            yield f"unix://{path}"


@contextmanager
def listening(
    command: Sequence[str], path: Path, environment: Mapping[str, str] | None = None
) -> Iterator[None]:
    """Start a server, return once it accepts connections at `path`, and stop it at the block's end."""
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, start_new_session=True, cwd=ROOT, env=environment
    )
    try:
        _await_socket(path, process, Path(command[0]).name)
        yield
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
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    async with Redis.from_url(url) as client:
        await client.config_set("port", port)
        try:
            yield port
        finally:
            with contextlib.suppress(RedisError):
                await client.config_set("port", 0)
