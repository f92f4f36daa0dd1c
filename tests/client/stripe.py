"""A server by Stripe's rules for keys, with faults on order.

A key belongs to the parameters of its first request. A result is kept once the work has begun, also a 402 and a 500;
what is refused before (400, 429) is not. https://docs.stripe.com/api/idempotent_requests
"""

from __future__ import annotations

import json
import socket
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast


@dataclass
class Kept:
    """The first result of a key; `parameters` are what it belongs to."""

    parameters: tuple[str, bytes]
    status: int = 0
    body: bytes = b""


@dataclass
class Seen:
    """A request that came."""

    method: str
    path: str
    key: str | None
    body: bytes
    headers: dict[str, str]


@dataclass
class State:
    """What a test reads, and orders.

    Attributes:
        faults: the fate of each of the next requests; "" for none.
            cut: the connection ends before it is done. lose: it is done, and its response is lost. half: its response
            is cut off. slow: it is done when `finish` is set. A number: it is refused with that status.
        effects: the charges that were made.
    """

    faults: deque[str] = field(default_factory=deque)
    seen: list[Seen] = field(default_factory=list)
    effects: list[bytes] = field(default_factory=list)
    finish: threading.Event = field(default_factory=threading.Event)
    kept: dict[str, Kept] = field(default_factory=dict)
    running: set[str] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)
    refusal: dict[str, str] = field(default_factory=dict)
    """The headers of a refusal by a number in `faults`."""
    open: int = 0
    """Connections."""

    @property
    def keys(self) -> list[str | None]:
        return [one.key for one in self.seen]


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"

    @property
    def state(self) -> State:
        return cast(Server, self.server).state

    def setup(self) -> None:
        super().setup()
        with self.state.lock:
            self.state.open += 1

    def finish(self) -> None:
        with self.state.lock:
            self.state.open -= 1
        super().finish()

    def do_POST(self) -> None:
        body = self._body()
        key = self.headers.get("Idempotency-Key")
        found = {name.lower(): value for name, value in self.headers.items()}
        with self.state.lock:
            self.state.seen.append(Seen(self.command, self.path, key, body, found))
            fault = self.state.faults.popleft() if self.state.faults else ""
        if fault == "cut":
            self.close_connection = True
        elif fault.isdigit():
            self._send(int(fault), b'{"error": {"type": "api_error"}}', self.state.refusal)
        elif self.path == "/moved":
            self._send(307, b"", {"Location": self.headers["X-To"]})
        elif self.path == "/see-other":
            self._send(303, b"", {"Location": "/charges"})
        else:
            self._charge(key, body, fault)

    do_PATCH = do_PUT = do_GET = do_POST  # noqa: N815 - http.server's names

    def _charge(self, key: str | None, body: bytes, fault: str) -> None:
        if self.command == "GET":
            return self._send(200, b"{}")
        if b"wrong" in body:  # no hexadecimal digits: the boundary of a form has those
            return self._error(400, "invalid_request_error", "parameter_invalid")
        if key is None:
            return self._send(200, self._work(body, fault)[1], fault=fault)
        with self.state.lock:
            kept = self.state.kept.get(key)
            if kept is None:
                kept = self.state.kept[key] = Kept((self.path, body))
                self.state.running.add(key)
                ours = True
            else:
                ours = False
            busy = key in self.state.running and not ours
        if kept.parameters != (self.path, body):
            return self._error(400, "idempotency_error", "")
        if busy:
            return self._error(409, "invalid_request_error", "idempotency_key_in_use")
        if not ours:
            return self._send(kept.status, kept.body, {"Idempotent-Replayed": "true"}, fault=fault)
        kept.status, kept.body = self._work(body, fault)
        with self.state.lock:
            self.state.running.discard(key)
        return self._send(kept.status, kept.body, fault=fault)

    def _work(self, body: bytes, fault: str) -> tuple[int, bytes]:
        if fault == "slow":
            self.state.finish.wait(10)
        with self.state.lock:
            self.state.effects.append(body)
            number = len(self.state.effects)
        status = 402 if b"declined" in body else 500 if b"broken" in body else 200
        return status, json.dumps({"charge": number}).encode()

    def _error(self, status: int, kind: str, code: str) -> None:
        self._send(status, json.dumps({"error": {"type": kind, "code": code}}).encode())

    def _send(
        self, status: int, body: bytes, headers: dict[str, str] | None = None, *, fault: str = ""
    ) -> None:
        if fault == "lose":
            self.close_connection = True
            return
        self.send_response(status)
        chunked = (headers or {}).get("Transfer-Encoding") == "chunked"
        lengths = {} if chunked else {"Content-Length": str(len(body))}
        for name, value in {**lengths, "Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if chunked:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(body), body))  # and no end: a response that goes on
        else:
            self.wfile.write(body[: len(body) // 2] if fault == "half" else body)
        if fault == "half":
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_WR)
            self.close_connection = True
        return

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


class Server(ThreadingHTTPServer):
    """A thread for each connection."""

    daemon_threads = True

    def __init__(self, port: int) -> None:
        self.state = State()
        super().__init__(("127.0.0.1", port), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: clients leave, and connections are reset on order."""


@contextmanager
def serving(port: int = 0) -> Iterator[Server]:
    """Run a server."""
    with Server(port) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.state.finish.set()
            server.shutdown()
            thread.join()
