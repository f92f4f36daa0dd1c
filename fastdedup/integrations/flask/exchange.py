"""The exchange of a Flask request: it takes a claim, or a replay, while the application runs."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

import flask

from ...errors import ConfigError
from ...flows import drive
from ...sync import Claim
from ...web.answers import streams
from ...web.request import BadBody, RequestTooLarge
from ...web.response import REPLAYED, Headers, Response
from .. import wsgi
from ..http.committing import CommittedWork
from ..http.wsgi_exchange import Closing, ExcInfo, Write, WsgiExchange, native, raw, send
from ..http.wsgi_request import read_body

log = logging.getLogger("fastdedup.web")
_EXCHANGE = "fastdedup.flask"
_READ = frozenset(("stream", "form", "files", "_cached_data"))
"""The attributes that a Flask request has once its body was read."""


class FlaskExchange(WsgiExchange):
    """Settles by the response that Flask sends; sends a replay past the `after_request` functions.

    A stored response has their changes already, and a second run would change it again. They run all the same, and
    the cookies and CORS headers that they set for this request are sent.
    """

    def __init__(self, start_response: StartResponse) -> None:
        super().__init__(start_response)
        # Mutable: the body, or why it could not be read; the replay, and Flask's headers in its place; the name of
        # the session's cookie, if that is not sent.
        self._body: bytes | RequestTooLarge | BadBody | None = None
        self._replay: Response | None = None
        self._live: Headers = ()
        self._left_cookie = ""
        # Mutable: the work that commits with the response.
        self.committing: CommittedWork | None = None

    # The request

    def read(self, environ: WSGIEnvironment, limit: int) -> None:
        """Read the body before the functions that run before the view: some of them read it as a form."""
        try:
            self._body = read_body(environ, limit)
        except (RequestTooLarge, BadBody) as error:
            self._body = error

    def body_of(self, environ: WSGIEnvironment, limit: int) -> bytes:
        """Return the whole body. Raises what `read_body` raises."""
        if self._body is None:
            if not _READ.isdisjoint(vars(flask.request._get_current_object())):  # type: ignore[attr-defined]
                raise ConfigError(
                    "a before_request function has read the body, and a decorator around idempotent() or "
                    "one_time_form() hides it: give that decorator functools.wraps(view)"
                )
            self.read(environ, limit)
        if not isinstance(self._body, bytes):
            assert self._body is not None
            raise self._body
        if len(self._body) > limit:
            raise RequestTooLarge
        return self._body

    # The response

    def _committing(
        self, app: WSGIApplication, environ: WSGIEnvironment, start_response: StartResponse
    ) -> Iterable[bytes]:
        """Hold a response back until its transaction has committed with it; other responses go through."""
        held: list[tuple[str, list[tuple[str, str]]]] = []

        def start(status: str, headers: list[tuple[str, str]], exc_info: ExcInfo | None = None, /) -> Write:
            if self.committing is None or not self.committing.transaction.is_open:
                return start_response(status, headers, *(() if exc_info is None else (exc_info,)))
            held[:] = [(status, headers)]
            return _without_writer

        try:
            source = app(environ, start)
            if not held:
                return source
            assert self.committing is not None
            try:
                response = _ended(self.committing, *held[0], source)
            except Exception as error:
                with suppress(Exception):  # in the words of `begin`, which come too late
                    drive(self.committing.roll_back(error))
                log.exception("%s: nothing was committed", environ.get("PATH_INFO", ""))
                response = _FAILED
            body = send(start_response, response)
            return Closing(body, source.close) if hasattr(source, "close") else body
        finally:  # such as an error of a teardown function, or the exit of a worker
            if self.committing is not None:
                drive(self.committing.roll_back())

    def run(self, app: WSGIApplication, environ: WSGIEnvironment) -> Iterable[bytes]:
        """Run the application; see `WsgiExchange.run`."""
        environ[_EXCHANGE] = self
        source = super().run(partial(self._committing, app), environ)
        replay = self._replay
        if replay is None:
            return source
        if hasattr(source, "close"):
            source.close()
        return send(self._server, replay.for_request(self._live))

    def start_response(
        self, status: str, headers: list[tuple[str, str]], exc_info: ExcInfo | None = None, /
    ) -> Write:
        """Take status and headers; see `WsgiExchange.start_response`."""
        if self._left_cookie:
            headers = [pair for pair in headers if not _sets_cookie(pair, self._left_cookie)]
        if self._replay is None:
            return super().start_response(status, headers, exc_info)
        self._live = raw(headers)
        return _without_writer

    def leave_session(self) -> None:
        """Send no cookie of the session: the form's first answer may have made another session since."""
        self._left_cookie = flask.current_app.session_interface.get_cookie_name(flask.current_app)

    def instead(self, response: Response) -> flask.Response:
        """Send a stored response. Return the response for Flask's `after_request` functions."""
        self._replay = response
        return reply(response.before_middleware())

    def answer(self, response: Response) -> flask.Response:
        """Answer in the view's place, by a stored response or by a problem; return the response for Flask."""
        return self.instead(response) if response.header(REPLAYED[0]) else reply(response)


_FAILED = Response(500, [(b"content-type", b"text/plain")], b"Internal Server Error")


def _ended(
    work: CommittedWork, status: str, headers: list[tuple[str, str]], source: Iterable[bytes]
) -> Response:
    """Commit with the response, or roll back; return the response to send."""
    response = Response(int(status[:3]), raw(headers), b"", reason=status[4:])
    if streams(response.header(b"content-type")):
        raise drive(work.refuse("it is a stream"))
    chunks, size = [], 0
    for chunk in source:
        chunks.append(chunk)
        size += len(chunk)
        if size > work.rule.max_response:
            raise drive(work.refuse(work.too_large))
    response.body = b"".join(chunks)
    return drive(work.end(response))


def exchange() -> FlaskExchange:
    """Return the exchange of the current request.

    Raises:
        ConfigError: the application has no `FastDedup`.
    """
    found = flask.request.environ.get(_EXCHANGE)
    if found is None:
        raise ConfigError(
            "idempotent() and one_time_form() need FastDedup(app, dedup) on their application, and a request that "
            "came through it: in tests use app.test_client()"
        )
    return found  # type: ignore[no-any-return]


def claim_of() -> Claim | None:
    """Return the claim under which the current request runs, with its `fence` and `lost`.

    A view is not interrupted when its lease is lost: check `lost` before a step that cannot be undone. Return None if
    the request has no key and no token.
    """
    return wsgi.claim_of(flask.request.environ)


def is_claimed() -> bool:
    """Return whether the current request is under a claim; see `is_held`."""
    return wsgi.is_claimed(flask.request.environ)


def reply(response: Response) -> flask.Response:
    """Return a Flask response that is sent instead of the view's response."""
    status = f"{response.status} {response.reason}" if response.reason else response.status
    made = flask.current_app.response_class(response.body, status)
    made.headers.clear()
    for name, value in native(response.headers):
        made.headers.add(name, value)
    return made


def _sets_cookie(header: tuple[str, str], cookie: str) -> bool:
    return header[0].lower() == "set-cookie" and header[1].startswith(f"{cookie}=")


def _without_writer(data: bytes) -> None:
    """Stand for the server's write(): Flask does not call it."""
