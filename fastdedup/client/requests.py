"""An adapter of requests that makes an Idempotency-Key for each request, and retries under it.

    session = requests.Session()
    session.mount("https://api.shop.test/", IdempotentAdapter())

It stands below the session's redirects and logins: each request of these has its own attempts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

try:
    import requests
    from requests import exceptions
    from requests.adapters import HTTPAdapter
    from requests.utils import rewind_body
except ImportError as error:
    raise ImportError(
        "fastdedup.client.requests needs requests: pip install 'fastdedup[requests]'"
    ) from error

from .rules import RetryRules
from .whole_lines import read_whole_lines

__all__ = ["IdempotentAdapter", "RetryRules"]

LOST = (exceptions.ConnectionError, exceptions.Timeout, exceptions.ChunkedEncodingError)
"""The errors after which it is unknown whether the server has the request."""


class IdempotentAdapter(HTTPAdapter):
    """Sends requests with a key and, where it is safe, again.

    Give it to servers that know the header: one that ignores it carries out each attempt. The last response is
    returned, whatever its status, or the last error raised. `request.headers` has the key; after a
    redirect only a key of your own.

    Args:
        rules: see `RetryRules`.
        sleep: waits between attempts; `time.sleep` by default.
        options: of `requests.adapters.HTTPAdapter`, such as `pool_maxsize`. Its `max_retries` are attempts of its
            own within each of ours; leave them at zero.
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
        """Make the connections; see `HTTPAdapter`. A response that was cut anywhere is a lost connection."""
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
        while True:
            try:
                response = self._answer(request, options)
            except LOST as error:
                retry = attempts.after_error(error)
                if retry is None:
                    raise
            except exceptions.ContentDecodingError as error:
                broken = error.response
                assert broken is not None  # `_answer` sets it
                retry = attempts.after_response(broken.status_code, broken.headers)
                if retry is None:
                    raise
            else:
                retry = attempts.after_response(response.status_code, response.headers)
                if retry is None:
                    if attempts.made and response.is_redirect:
                        request.headers.pop(self._rules.header, None)  # its copy goes to another address
                    return response
                response.close()
            if self._rules.on_retry is not None:
                self._rules.on_retry(retry)
            self._sleep(retry.wait)
            if is_file(request):
                rewind_body(request)

    def _answer(self, request: requests.PreparedRequest, options: Mapping[str, Any]) -> requests.Response:
        """Send a request once. Unless it streams, the response is read here, where losing it can still be mended."""
        response = super().send(request, **options)
        if not options["stream"]:
            try:
                _ = response.content
            except exceptions.ContentDecodingError as error:
                response.close()
                error.response = response  # its status tells whether to ask again
                raise
            except BaseException:
                response.close()
                raise
        return response


def repeatable(request: requests.PreparedRequest) -> bool:
    """Return whether a request's body can be sent again: bytes, text, or a file that can be rewound."""
    return request.body is None or isinstance(request.body, bytes | bytearray | str) or is_file(request)


def is_file(request: requests.PreparedRequest) -> bool:
    """Return whether a request's body is a file whose position requests has kept, as it does for redirects."""
    body: Any = request.body
    if isinstance(body, bytes | bytearray | str) or not hasattr(body, "seek"):
        return False
    seekable = getattr(body, "seekable", None)
    return isinstance(request._body_position, int) and (seekable is None or bool(seekable()))
