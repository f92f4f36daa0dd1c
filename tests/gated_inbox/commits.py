"""A proxy before a database's Unix socket, which decides what becomes of a COMMIT."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

COMMIT = re.compile(rb"(?<!AUTO)COMMIT")
Act = Callable[[], object]


class CommitProxy:
    """Passes bytes on, but for the next COMMIT that a test tells it of.

    lose: the database acts on it; then its reply is dropped, and the connection is cut.
    cut: the connection is cut before the database hears of it.
    hold: the database hears of it later.
    """

    def __init__(self, target: Path, listens_at: Path) -> None:
        self.folder = listens_at.parent
        self.path = listens_at
        self._target = target
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(listens_at))
        self._listener.listen(64)
        # Mutable: what becomes of the next COMMIT, and what is called when it has come; the open sockets.
        self._fate = ""
        self._act: Act = lambda: None
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def lose(self, act: Act = lambda: None) -> None:
        """Drop the reply to the next COMMIT; `act` is called once the reply has come."""
        self._fate, self._act = "lose", act

    def cut(self, act: Act = lambda: None) -> None:
        """Cut the connection of the next COMMIT, which gets nowhere; `act` is called before."""
        self._fate, self._act = "cut", act

    def hold(self, act: Act) -> None:
        """Call `act` when the next COMMIT has come, and pass it on after that."""
        self._fate, self._act = "hold", act

    def close(self) -> None:
        for each in (self._listener, *self._sockets):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        self.path.unlink()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                database = socket.socket(socket.AF_UNIX)
                self._sockets += [client, database]
                try:
                    database.connect(str(self._target))
                except OSError:
                    client.close()
                    continue
                pipe = Pipe(self, client, database)
                threading.Thread(target=pipe.pass_requests, daemon=True).start()
                threading.Thread(target=pipe.pass_replies, daemon=True).start()

    def take_fate(self) -> tuple[str, Act]:
        fate, self._fate = self._fate, ""
        return fate, self._act


class Pipe:
    """One client's connection, and its own connection to the database."""

    def __init__(self, proxy: CommitProxy, client: socket.socket, database: socket.socket) -> None:
        self._proxy = proxy
        self._client = client
        self._database = database
        # Mutable: what to do once the next reply has come, instead of passing it on.
        self._instead: Act | None = None

    def pass_requests(self) -> None:
        for data in chunks(self._client):
            fate, act = self._proxy.take_fate() if COMMIT.search(data) else ("", None)
            if fate == "cut" and act is not None:
                act()
                break
            if fate == "hold" and act is not None:
                act()
            self._instead = act if fate == "lose" else None
            with contextlib.suppress(OSError):
                self._database.sendall(data)
        self._close()

    def pass_replies(self) -> None:
        for data in chunks(self._database):
            if self._instead is not None:
                self._instead()
                break
            with contextlib.suppress(OSError):
                self._client.sendall(data)
        self._close()

    def _close(self) -> None:
        for each in (self._client, self._database):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


def chunks(source: socket.socket) -> Iterator[bytes]:
    with contextlib.suppress(OSError):
        while data := source.recv(65_536):
            yield data


@contextmanager
def commit_proxy(target: Path, listens_at: Path) -> Iterator[CommitProxy]:
    """Run a proxy before `target`."""
    proxy = CommitProxy(target, listens_at)
    try:
        yield proxy
    finally:
        proxy.close()
