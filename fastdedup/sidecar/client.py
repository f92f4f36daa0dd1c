"""Functions that ask a running sidecar for the command line: metrics over HTTP, records over RESP."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from ..errors import ConfigError, InvalidKeyError, UnavailableError
from ..model import Listing, Record
from ..stores.sidecar.wire import LONGEST_TURN, outage_of
from .record_facts import record_of

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
        raise _no_sidecar_error(path, error) from None
    finally:
        connection.close()


def get_record(
    path: Path, key: str, namespace: str | None, *, kind: str = "claim", digest: bool = False
) -> Record | None:
    """Return the record of a key from the sidecar at `path`. Raises what `fetch` raises."""
    answer = _ask(path, "FD.GET", key, *_options(NS=namespace, KIND=kind), *_flag(digest))
    return None if answer is None else record_of(json.loads(cast(bytes, answer)))


def forget_record(
    path: Path,
    key: str,
    namespace: str | None,
    *,
    kind: str = "claim",
    digest: bool = False,
    reason: str | None = None,
) -> bool:
    """Remove the record of a key; return False if the key had no record. Raises what `fetch` raises."""
    options = _options(NS=namespace, KIND=kind, REASON=reason)
    return bool(_ask(path, "FD.FORGET", key, *options, *_flag(digest)))


def list_records(
    path: Path,
    namespace: str | None,
    *,
    kind: str | None,
    prefix: str,
    state: str | None,
    older: float,
    limit: int,
    within: float,
    cursor: str | None,
    reason: str | None,
) -> Listing:
    """Return records from the sidecar at `path`; times in seconds. Raises what `fetch` raises."""
    options = _options(
        NS=namespace, KIND=kind, PREFIX=prefix or None, STATE=state, CURSOR=cursor, REASON=reason
    )
    numbers = _options(
        OLDER=str(round(older * 1000)), LIMIT=str(limit), WITHIN=str(max(1, round(within * 1000)))
    )
    found = json.loads(cast(bytes, _ask(path, "FD.LIST", *options, *numbers)))
    return Listing([record_of(facts) for facts in found["records"]], found["cursor"], found["looked_at"])


def seen_id(path: Path, ledger: str, id: str, namespace: str | None) -> bool:
    """Return whether a ledger of the sidecar at `path` remembers an id. Raises what `fetch` raises."""
    return bool(_ask(path, "FD.SEEN", *_options(NS=namespace), ledger, id)[0])


def forget_id(path: Path, ledger: str, id: str, namespace: str | None, *, reason: str | None = None) -> bool:
    """Remove an id from a ledger; return False if it was not remembered. Raises what `fetch` raises."""
    return bool(_ask(path, "FD.FORGETID", *_options(NS=namespace, REASON=reason), ledger, id)[0])


def _check_text(word: str) -> None:
    """Raise InvalidKeyError if a word of a command is not text, because a shell may pass any bytes."""
    try:
        word.encode()
    except UnicodeEncodeError as error:
        raise InvalidKeyError(
            f"keys, names and reasons must be text that UTF-8 can encode: {error.reason}"
        ) from None


def _options(**values: str | None) -> list[str]:
    return [part for name, value in values.items() if value is not None for part in (name, value)]


def _flag(digest: bool) -> list[str]:
    return ["DIGEST"] if digest else []


def _ask(path: Path, *words: str) -> Any:
    for word in words:
        _check_text(word)
    with _client(path) as client:
        return cast(Any, client).execute_command(*words)


@contextmanager
def _client(path: Path) -> Iterator[redis.Redis]:
    client = redis.Redis(
        unix_socket_path=str(path),
        socket_timeout=LONGEST_TURN + _TIMEOUT,
        protocol=2,
        retry=Retry(NoBackoff(), 0),
    )
    try:
        with client:
            yield client
    except redis.ResponseError as error:
        text = str(error)
        if outage := outage_of(text):
            raise outage from None
        if text.startswith("unknown command"):
            raise ConfigError(
                f"{path} is no fastdedup sidecar, or an older one than this command: update it ({text})"
            ) from None
        raise ConfigError(text) from None
    except redis.RedisError as error:
        raise _no_sidecar_error(path, error) from None


def _no_sidecar_error(path: Path, error: Exception) -> UnavailableError:
    return UnavailableError(
        f"no sidecar answers at {path} ({error}): start one with `fastdedup serve`, or give the path of its socket"
    )
