"""An adapter of requests that makes an Idempotency-Key for each request, and retries under it.

    session = requests.Session()
    session.mount("https://api.shop.test/", IdempotentAdapter())

It is below the session's redirects and logins: each request of these has its own attempts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import cache
from http.client import HTTPResponse, RemoteDisconnected
from io import BufferedReader
from typing import Any, cast

from ..extras import needs
from ..flows import drive, step
from .rules import RetryRules

with needs(__name__, "requests", "'fastdedup[requests]'"):
    import requests
    from requests import exceptions
    from requests.adapters import HTTPAdapter
    from requests.utils import rewind_body

__all__ = ["IdempotentAdapter", "RetryRules"]

LOST = (exceptions.ConnectionError, exceptions.Timeout, exceptions.ChunkedEncodingError)
"""The errors after which it is unknown whether the server has the request."""


class IdempotentAdapter(HTTPAdapter):
    """Sends requests with a key and, if it is safe, again.

    Use it for servers that know the header: a server that ignores it executes each attempt. The last response is
    returned, with any status, or the last error is raised. `request.headers` has the key; after a
    redirect only a key of your own.

    Args:
        rules: see `RetryRules`.
        sleep: waits between attempts; `time.sleep` by default.
        options: those of `requests.adapters.HTTPAdapter`, such as `pool_maxsize`. Its `max_retries` are attempts of
            its own within each of ours; leave them at zero.
    """

    def __init__(
        self,
        *,
        rules: RetryRules | None = None,
        sleep: Callable[[float], object] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self._rules = RetryRules() if rules is None else rules
        self._sleep = time.sleep if sleep is None else sleep

    def init_poolmanager(self, *args: Any, **options: Any) -> None:
        """Make the connections; see `HTTPAdapter`. A response that was cut at any place is a lost connection."""
        super().init_poolmanager(*args, **options)
        read_whole_lines(self.poolmanager)

    def proxy_manager_for(self, proxy: str, **options: Any) -> Any:
        """Return the connections through a proxy; see `HTTPAdapter`."""
        manager = super().proxy_manager_for(proxy, **options)
        read_whole_lines(manager)
        return manager

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_rules": self._rules, "_sleep": self._sleep}

    def send(
        self,
        request: requests.PreparedRequest,
        stream: bool = False,
        timeout: Any = None,
        verify: Any = True,
        cert: Any = None,
        proxies: Any = None,
    ) -> requests.Response:
        """Send a request until its answer is final. The main path."""
        options = {"stream": stream, "timeout": timeout, "verify": verify, "cert": cert, "proxies": proxies}
        attempts = self._rules.begin(request.method or "", request.headers, request.url or "")
        if attempts is None:
            return super().send(request, **options)
        attempts.repeatable = repeatable(request)
        undecoded: exceptions.ContentDecodingError | None = None

        def send_once() -> requests.Response:
            nonlocal undecoded
            undecoded = None
            try:
                return self._answer(request, options)
            except exceptions.ContentDecodingError as error:
                undecoded = error
                return cast(requests.Response, error.response)  # `_answer` sets it

        def sleep(seconds: float) -> None:
            self._sleep(seconds)
            if is_file(request):
                rewind_body(request)

        flow = attempts.final_response(step(send_once), step(requests.Response.close), step(sleep), LOST)
        response: requests.Response = drive(flow)
        if undecoded is not None:
            raise undecoded
        if attempts.made and response.is_redirect:
            request.headers.pop(self._rules.header, None)  # its copy goes to another address
        return response

    def _answer(self, request: requests.PreparedRequest, options: Mapping[str, Any]) -> requests.Response:
        """Send a request once. Unless it streams, the response is read here, so that its loss can be repaired."""
        response = super().send(request, **options)
        if not options["stream"]:
            try:
                _ = response.content
            except exceptions.ContentDecodingError as error:
                response.close()
                error.response = response  # its status decides on a retry
                raise
            except BaseException:
                response.close()
                raise
        return response


def repeatable(request: requests.PreparedRequest) -> bool:
    """Return whether a request's body can be sent again: bytes, text, or a file that can be rewound."""
    return request.body is None or isinstance(request.body, bytes | bytearray | str) or is_file(request)


def is_file(request: requests.PreparedRequest) -> bool:
    """Return whether a request's body is a file whose position requests has kept; it does so for redirects too."""
    body: Any = request.body
    if isinstance(body, bytes | bytearray | str) or not hasattr(body, "seek"):
        return False
    seekable = getattr(body, "seekable", None)
    return isinstance(request._body_position, int) and (seekable is None or bool(seekable()))


# Connections of urllib3 that treat a response with a cut head as a lost connection.
#
# http.client reads the connection's end as the end of the headers, and urllib3 reads a cut chunk length as a length.
# In HTTP/1.1 each line ends with a line feed, also the last, empty line of a head: a line without one was cut.


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
