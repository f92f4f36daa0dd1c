"""What clients that mean no good send to a sidecar, and the peak of its resident memory, for the tests of both."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import redis

from .running import DEADLINE, Sidecar

RESULT = 262_000


def peak(sidecar: Sidecar) -> int:
    """Return the most memory that the sidecar has had, in MB."""
    text = Path(f"/proc/{sidecar.pid}/status").read_text()
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


def post(address: str, body: object) -> bytes:
    """A request with this body: bytes, or anything else as JSON."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % (address.encode(), len(data)) + data


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
