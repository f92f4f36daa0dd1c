"""The exchange of a Flask request: it takes a claim, or a replay, while the application runs."""

from __future__ import annotations

from collections.abc import Iterable
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

import flask

from ...errors import ConfigError
from ...sync import Claim
from ...web.request import RequestTooLarge
from ...web.response import Response
from .. import wsgi
from ..wsgi_exchange import ExcInfo, Write, WsgiExchange, native, raw, send
from ..wsgi_request import BadBody, read_body

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
        # Mutable: the body, or why it could not be read; the replay, and Flask's headers for this request; the name
        # of the session's cookie, if that is not sent.
        self._body: bytes | RequestTooLarge | BadBody | None = None
        self._replay: Response | None = None
        self._live: list[tuple[str, str]] = []
        self._left_cookie = ""

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

    def run(self, app: WSGIApplication, environ: WSGIEnvironment) -> Iterable[bytes]:
        """Run the application; see `WsgiExchange.run`."""
        environ[_EXCHANGE] = self
        source = super().run(app, environ)
        replay = self._replay
        if replay is None:
            return source
        if hasattr(source, "close"):
            source.close()
        return send(self._server, replay.marked(*raw(self._live)))

    def start_response(
        self, status: str, headers: list[tuple[str, str]], exc_info: ExcInfo | None = None, /
    ) -> Write:
        """Take status and headers; see `WsgiExchange.start_response`."""
        if self._left_cookie:
            headers = [pair for pair in headers if not _sets_cookie(pair, self._left_cookie)]
        if self._replay is None:
            return super().start_response(status, headers, exc_info)
        self._live = [pair for pair in headers if _of_this_request(pair[0])]
        if any(_of_cors(name) for name, _ in self._live):
            kept = [pair for pair in self._replay.headers if not _of_cors(pair[0].decode("latin-1"))]
            self._replay.headers = kept
        return _written_by_nobody

    def leave_session(self) -> None:
        """Send no cookie of the session: the form's first answer may have made another session since."""
        self._left_cookie = flask.current_app.session_interface.get_cookie_name(flask.current_app)

    def instead(self, response: Response) -> flask.Response:
        """Send a stored response. Return the response for Flask's `after_request` functions."""
        self._replay = response
        headers = [pair for pair in response.headers if not _of_this_request(pair[0].decode("latin-1"))]
        return reply(Response(response.status, headers, response.body, reason=response.reason))


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

    A view is not interrupted when its lease is lost: check `lost` before a step that cannot be undone. None where
    the request has no key and no token.
    """
    return wsgi.claim_of(flask.request.environ)


def reply(response: Response) -> flask.Response:
    """Return a Flask response that is sent instead of the view's response."""
    status = f"{response.status} {response.reason}" if response.reason else response.status
    made = flask.current_app.response_class(response.body, status)
    made.headers.clear()
    for name, value in native(response.headers):
        made.headers.add(name, value)
    return made


def _of_this_request(name: str) -> bool:
    return name.lower() == "set-cookie" or _of_cors(name)


def _sets_cookie(header: tuple[str, str], cookie: str) -> bool:
    return header[0].lower() == "set-cookie" and header[1].startswith(f"{cookie}=")


def _of_cors(name: str) -> bool:
    return name.lower().startswith("access-control-")


def _written_by_nobody(data: bytes) -> None:
    """Stand for the server's write(): Flask does not call it."""
