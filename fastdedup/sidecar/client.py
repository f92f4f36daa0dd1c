"""Functions that ask a running sidecar for the command line: metrics over HTTP, records over RESP."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import orjson
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from ..errors import ConfigError, UnavailableError
from ..model import Record, State

_TIMEOUT = 5.0


class UnixConnection(http.client.HTTPConnection):
    """An HTTP connection to a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=_TIMEOUT)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket instead of a host (http.client calls this)."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def fetch(path: Path, address: str) -> tuple[int, bytes]:
    """Send a GET request to the sidecar at `path`; return the status and the body.

    Raises:
        UnavailableError: no sidecar answers at `path`.
    """
    connection = UnixConnection(path)
    try:
        connection.request("GET", address)
        answer = connection.getresponse()
        return answer.status, answer.read()
    except (OSError, http.client.HTTPException) as error:
        raise _nobody(path, error) from None
    finally:
        connection.close()


def get_record(path: Path, key: str, namespace: str | None) -> Record | None:
    """Return the record of a key from the sidecar at `path`. Raises what `fetch` raises."""
    answer = _ask(path, "FD.GET", key, namespace)
    if answer is None:
        return None
    facts: dict[str, Any] = orjson.loads(cast(bytes, answer))
    mark = facts.pop("fingerprint")
    for time in ("lease", "ttl"):  # milliseconds on the wire
        facts[time] = None if facts[time] is None else facts[time] / 1000
    facts["state"] = State(facts["state"])
    return Record(**facts, fingerprint=None if mark is None else bytes.fromhex(mark))


def forget_record(path: Path, key: str, namespace: str | None) -> bool:
    """Remove the record of a key; return False where the key had no record. Raises what `fetch` raises."""
    return bool(_ask(path, "FD.FORGET", key, namespace))


def _ask(path: Path, *command: str | None) -> Any:
    verb, key, namespace = command
    words = [verb, key] + ([] if namespace is None else ["NS", namespace])
    with _client(path) as client:
        return cast(Any, client).execute_command(*words)


@contextmanager
def _client(path: Path) -> Iterator[redis.Redis]:
    client = redis.Redis(
        unix_socket_path=str(path), socket_timeout=_TIMEOUT, protocol=2, retry=Retry(NoBackoff(), 0)
    )
    try:
        with client:
            yield client
    except redis.ResponseError as error:
        if str(error).startswith("UNAVAILABLE "):
            raise UnavailableError(str(error).partition(" ")[2]) from None
        raise ConfigError(str(error)) from None
    except redis.RedisError as error:
        raise _nobody(path, error) from None


def _nobody(path: Path, error: Exception) -> UnavailableError:
    return UnavailableError(f"no sidecar answers at {path} ({error}): start one with `fastdedup serve`")
