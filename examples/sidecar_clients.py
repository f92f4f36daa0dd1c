"""Clients for the sidecar's two protocols, as small as they can be written in any language; see `sidecar.py`."""

from __future__ import annotations

import http.client
import socket
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self

import orjson
import redis

from fastdedup import Outcome, UnavailableError


class WireAnswer(NamedTuple):
    """The answer to a claim; `value` is the first claimant's result or error."""

    outcome: Outcome
    owner: str
    value: Any


class Wire(Protocol):
    """A connection to a sidecar. Results are JSON in both protocols, so that each can read the other's results."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def claim(self, key: str, request: str, wait: float) -> WireAnswer:
        """Claim a key; `wait` is in seconds."""
        ...

    def settle(self, key: str, owner: str, value: Any, *, succeeded: bool) -> None:
        """Record the result or the failure."""
        ...

    def issue(self, subject: str) -> str:
        """Return a one-time token."""
        ...

    def consume(self, token: str, subject: str) -> Outcome:
        """Use a token up."""
        ...


class RespWire:
    """The client over the Redis protocol: any Redis client can be used."""

    def __init__(self, path: Path) -> None:
        self._redis: Any = redis.Redis(unix_socket_path=str(path))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._redis.close()

    def claim(self, key: str, request: str, wait: float) -> WireAnswer:
        """`FD.CLAIM`."""
        command = ["FD.CLAIM", key, "FP", request, *(["WAIT", round(wait * 1000)] if wait else [])]
        outcome, owner, _, _, _, value, _ = self._redis.execute_command(*command)
        return WireAnswer(Outcome(outcome.decode()), owner.decode(), orjson.loads(value) if value else None)

    def settle(self, key: str, owner: str, value: Any, *, succeeded: bool) -> None:
        """`FD.COMPLETE`, `FD.FAIL`."""
        verb = "FD.COMPLETE" if succeeded else "FD.FAIL"
        self._redis.execute_command(verb, key, owner, orjson.dumps(value))

    def issue(self, subject: str) -> str:
        """`FD.ISSUE`."""
        token: bytes = self._redis.execute_command("FD.ISSUE", "SUBJECT", subject)
        return token.decode()

    def consume(self, token: str, subject: str) -> Outcome:
        """`FD.CONSUME`."""
        return Outcome(self._redis.execute_command("FD.CONSUME", token, "SUBJECT", subject).decode())


class UnixConnection(http.client.HTTPConnection):
    """An HTTP connection to a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=10.0)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket instead of a host."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.connect(str(self._path))


class HttpWire:
    """The client over HTTP, on one connection that is kept alive."""

    def __init__(self, path: Path) -> None:
        self._http = UnixConnection(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def ping(self) -> None:
        """`GET /healthz`."""
        self._send("GET", "/healthz")

    def claim(self, key: str, request: str, wait: float) -> WireAnswer:
        """`POST /v1/claims`."""
        asked = {"key": key, "fingerprint": request, "wait": round(wait * 1000)}
        told = self._post("/v1/claims", asked)
        value = told["error"] if told["outcome"] == Outcome.FAILED else told["result"]
        return WireAnswer(Outcome(told["outcome"]), told["owner"], value)

    def settle(self, key: str, owner: str, value: Any, *, succeeded: bool) -> None:
        """`POST /v1/claims/complete`, `/fail`."""
        verb, name = ("complete", "result") if succeeded else ("fail", "error")
        self._post(f"/v1/claims/{verb}", {"key": key, "owner": owner, name: value})

    def issue(self, subject: str) -> str:
        """`POST /v1/tokens`."""
        token: str = self._post("/v1/tokens", {"subject": subject})["token"]
        return token

    def consume(self, token: str, subject: str) -> Outcome:
        """`POST /v1/tokens/consume`."""
        return Outcome(self._post("/v1/tokens/consume", {"token": token, "subject": subject})["outcome"])

    def _post(self, address: str, asked: dict[str, Any]) -> Any:
        status, told = self._send("POST", address, orjson.dumps(asked))
        if "outcome" not in told and status >= 400:
            raise UnavailableError(f"{status}: {told.get('detail') or told.get('title')}")
        return told

    def _send(self, method: str, address: str, body: bytes | None = None) -> tuple[int, Any]:
        try:
            self._http.request(method, address, body, {"content-type": "application/json"})
            answer = self._http.getresponse()
            return answer.status, orjson.loads(answer.read())
        except (OSError, http.client.HTTPException) as error:
            raise UnavailableError(f"the sidecar does not answer: {error}") from None
