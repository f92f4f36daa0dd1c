"""Connections of urllib3 that treat a response with a cut head as a lost connection.

http.client reads the connection's end as the end of the headers, and urllib3 reads a cut chunk length as a length. In
HTTP/1.1 each line ends with a line feed, also the last, empty line of a head: a line without one was cut.
"""

from __future__ import annotations

from functools import cache
from http.client import HTTPResponse, RemoteDisconnected
from io import BufferedReader
from typing import Any


class _WholeLines(BufferedReader):
    """The bytes of a response. The connection's end within a line, or in place of a line, is an error."""

    def readline(self, size: int | None = -1, /) -> bytes:
        line = super().readline(size)
        if not line.endswith(b"\n") and len(line) != size:
            raise RemoteDisconnected("the connection ended before the response did")
        return line


class _Response(HTTPResponse):
    def __init__(self, sock: Any, *args: Any, **options: Any) -> None:
        super().__init__(sock, *args, **options)
        reader: Any = self.fp  # nothing has been read from it yet
        self.fp = _WholeLines(reader.detach())


def read_whole_lines(manager: Any) -> None:
    """Let each connection that a pool manager of urllib3 makes from now on notice a response that was cut."""
    kinds = manager.pool_classes_by_scheme
    manager.pool_classes_by_scheme = {scheme: _pool_class(kind) for scheme, kind in kinds.items()}


@cache
def _pool_class(kind: Any) -> Any:
    """Return a class of pools whose connections notice it; of such a class, the class itself."""
    connection = kind.ConnectionCls
    if issubclass(connection.response_class, _Response):
        return kind
    strict = type(connection.__name__, (connection,), {"response_class": _Response})
    return type(kind.__name__, (kind,), {"ConnectionCls": strict})
