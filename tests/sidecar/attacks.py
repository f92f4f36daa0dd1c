"""Clients that mean no good, at full size: the peak of the sidecar's resident memory under each of their attacks.

`python -m tests.sidecar.attacks [NAME...]` starts a Redis and a sidecar for each attack, and prints the peak in MB.
The tests run the same attacks, smaller.
"""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import orjson
import redis

from ..servers import RedisServer
from .fuzz import pack
from .running import DEADLINE, Sidecar

RESULT = 262_000


def peak(sidecar: Sidecar) -> int:
    """Return the most memory that the sidecar has had, in MB."""
    assert sidecar.process is not None
    text = Path(f"/proc/{sidecar.process.pid}/status").read_text()
    return int(text.partition("VmHWM:")[2].split()[0]) // 1024


def connect(path: Path) -> socket.socket:
    raw = socket.socket(socket.AF_UNIX)
    raw.settimeout(DEADLINE)
    raw.connect(str(path))
    return raw


def settle(path: Path, keys: list[str], size: int) -> None:
    """Complete these keys with a result of this many bytes."""
    with redis.Redis(unix_socket_path=str(path), protocol=2) as ask:
        for key in keys:
            owner = ask.execute_command("FD.CLAIM", key)[1]
            ask.execute_command("FD.COMPLETE", key, owner, b"x" * size)


def push(raw: socket.socket, data: bytes) -> None:
    """Send as much of this as the sidecar takes; read nothing."""
    raw.settimeout(0.5)
    try:
        raw.sendall(data)
    except OSError:  # it reads no more, or has hung up
        return
    finally:
        raw.settimeout(DEADLINE)


def unread(path: Path, commands: bytes, clients: int, seconds: float) -> None:
    """Send these commands from each of the clients, and read nothing for so long."""
    with ExitStack() as stack:
        raws = [stack.enter_context(connect(path)) for _ in range(clients)]
        for raw in raws:
            push(raw, commands)
        time.sleep(seconds)


def one_key(path: Path, clients: int = 1, commands: int = 1024) -> None:
    """Claims of a key with a large result, unread."""
    settle(path, ["k"], RESULT)
    unread(path, pack(b"FD.CLAIM", b"k") * commands, clients, 1.0)


def many_keys(path: Path, clients: int = 1, commands: int = 1024) -> None:
    """Claims of keys that have a large result each, unread."""
    keys = [f"k{number}" for number in range(commands)]
    settle(path, keys, RESULT)
    unread(path, b"".join(pack(b"FD.CLAIM", key.encode()) for key in keys), clients, 4.0)


def named(path: Path, clients: int = 1, commands: int = 1024) -> None:
    """Claims under a name of a key with a large result, unread."""
    settle(path, ["k"], RESULT)
    unread(path, pack(b"FD.CLAIM", b"k", b"OWNER", b"me") * commands, clients, 4.0)


def records(path: Path, clients: int = 1, commands: int = 1024) -> None:
    """Looks at a record with a large result, unread."""
    settle(path, ["k"], RESULT)
    unread(path, pack(b"FD.GET", b"k") * commands, clients, 4.0)


def pings(path: Path, commands: int = 1023) -> None:
    """Long PINGs behind a claim that waits."""
    settle(path, ["k"], 1)
    with connect(path) as holds, connect(path) as raw:
        holds.sendall(pack(b"FD.CLAIM", b"held"))
        holds.recv(100)
        push(raw, pack(b"FD.CLAIM", b"held", b"WAIT", b"5000") + pack(b"PING", b"x" * 1_000_000) * commands)


def runs(path: Path, clients: int = 1, commands: int = 8) -> None:
    """Batches of a `sidecar://` store that ask for large results, unread."""
    settle(path, ["k"], RESULT)
    unread(path, pack(b"FD.RUN", b"read", b"256", *[b"fastdedup:=k"] * 256) * commands, clients, 4.0)


def post(address: str, body: bytes) -> bytes:
    return (
        b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
        % (address.encode(), len(body), body)
    )


def batch(path: Path, clients: int = 1, items: int = 1000, many: int = 1) -> None:
    """`/v1/batch` of claims of a key with a large result."""
    keys = [f"k{number}" for number in range(many)]
    settle(path, keys, RESULT)
    asks = orjson.dumps([{"op": "claim", "key": keys[number % many]} for number in range(items)])
    unread(path, post("/v1/batch", asks), clients, 4.0)


def http(path: Path, clients: int = 500) -> None:
    """One claim over HTTP by each of many clients, of a key with a large result, unread."""
    settle(path, ["k"], RESULT)
    unread(path, post("/v1/claims", b'{"key":"k"}') * 16, clients, 4.0)


def killed(path: Path, claims: int = 40_000) -> None:
    """A client with many EPHEMERAL claims that is killed."""
    raw = connect(path)
    for start in range(0, claims, 500):
        raw.sendall(b"".join(pack(b"FD.CLAIM", b"e%d" % n, b"EPHEMERAL") for n in range(start, start + 500)))
        answered(raw, 500)
    raw.close()
    time.sleep(4.0)


def answered(raw: socket.socket, replies: int) -> bytes:
    """Read the replies to this many claims; return them."""
    data = b""
    while data.count(b"*7\r\n") + data.count(b"-ERR") + data.count(b"-UNAV") < replies or not data.endswith(
        b"\r\n"
    ):
        more = raw.recv(1 << 20)
        assert more
        data += more
    return data


def waiting(path: Path, clients: int = 200, commands: int = 1000) -> None:
    """Claims that wait for a key which another client holds."""
    with connect(path) as holds:
        holds.sendall(pack(b"FD.CLAIM", b"held", b"LEASE", b"60000"))
        holds.recv(100)
        unread(path, pack(b"FD.CLAIM", b"held", b"WAIT", b"30000") * commands, clients, 20.0)


def silent(path: Path, clients: int = 1024) -> None:
    """Connections that send nothing."""
    with ExitStack() as stack:
        for _ in range(clients):
            stack.enter_context(connect(path))
        time.sleep(1.0)


ATTACKS: dict[str, Callable[[Path], None]] = {
    "one_key": one_key,
    "one_key_64_clients": lambda path: one_key(path, 64),
    "many_keys": many_keys,
    "many_keys_8_clients": lambda path: many_keys(path, 8),
    "named": named,
    "records": records,
    "records_8_clients": lambda path: records(path, 8),
    "pings": pings,
    "runs": runs,
    "runs_16_clients": lambda path: runs(path, 16),
    "batch": batch,
    "batch_many_keys": lambda path: batch(path, many=1000),
    "batch_64_clients": lambda path: batch(path, 64),
    "http": http,
    "waiting_200_clients": waiting,
    "killed_40k": killed,
    "killed_200k": lambda path: killed(path, 200_000),
    "silent": silent,
}


def main() -> None:
    for name in sys.argv[1:] or ATTACKS:
        server = RedisServer()
        server.start()
        try:
            with Sidecar("--url", server.url, "--ttl", "600", "--timeout", "2", "--allow-stores") as sidecar:
                began = peak(sidecar)
                ATTACKS[name](sidecar.path)
                print(f"{name:22} {began:5} -> {peak(sidecar):5} MB", flush=True)
                assert sidecar.process is not None
                sidecar.process.kill()  # it may have much to do still
        finally:
            server.stop()


if __name__ == "__main__":
    main()
