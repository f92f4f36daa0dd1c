"""A response between a WSGI application and its server: it is held back, settles the claim, and is sent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from http import HTTPStatus
from itertools import chain
from types import TracebackType
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from ..errors import ClaimLostError, DedupError
from ..events import log
from ..sync import Claim
from ..web.answers import Settling, lost, settling_of, storable, streams
from ..web.response import DEGRADED, UNSTORED, Headers, Response
from ..web.rules import Rule
from .settling import HOLD, record

_PHRASES = {status.value: status.phrase for status in HTTPStatus}

Write = Callable[[bytes], object]
ExcInfo = tuple[type[BaseException], BaseException, TracebackType] | tuple[None, None, None]


@dataclass(frozen=True, slots=True)
class WsgiHeldClaim:
    """The claim that an exchange holds, and the rule that settles it."""

    claim: Claim
    rule: Rule
    docs: str | None
    path: str
    """The request's path."""
    mark: bytes = b""
    """The request's fingerprint, where the record does not have it."""


class WsgiExchange:
    """Takes the server's place for the application, which gets its `start_response`.

    A response is held back until it is whole and stored, so that nobody sees a result that a retry would not get. A
    stream, and a response that is too large to be kept, goes through as it comes; without a claim every one does.
    """

    def __init__(self, start_response: StartResponse, held: WsgiHeldClaim | None = None) -> None:
        self._server = start_response
        # Mutable: the claim, which may come while the application runs; whether the handler says that it did nothing.
        self._claim = held
        self.undone = False
        # Mutable: the status line and headers, the body so far, and the application's iterable; the server's
        # own write() once the response goes through; whether the claim is settled.
        self._status = ""
        self._headers: list[tuple[str, str]] = []
        self._chunks: list[bytes] = []
        self._size = 0
        self._source: Iterable[bytes] = ()
        self._through: Write | None = None
        self._settled = False

    @property
    def holds(self) -> bool:
        """True where there is a claim."""
        return self._claim is not None

    def hold(self, held: WsgiHeldClaim) -> None:
        """Settle this claim by the response, which has not begun yet."""
        self._claim = held

    @property
    def _held(self) -> WsgiHeldClaim:
        assert self._claim is not None
        return self._claim

    # The application

    def run(self, app: WSGIApplication, environ: WSGIEnvironment) -> Iterable[bytes]:
        """Run the application, and return the body for the server; release the claim unless it is settled or streams.

        Raises:
            BaseException: the application's exception, except a ClaimLostError of this claim.
        """
        try:
            self._source = app(environ, self.start_response)
            if not self.holds:
                return self._source
            chunks = iter(self._source)
            # A stream is not read before the server reads it.
            whole = self._through is None and all(map(self._hold, chunks))
            return self._whole() if whole else Stream(self, chunks, self._taken())
        except BaseException as error:
            if not self.holds:
                raise
            try:
                self.close()
            finally:
                claim_lost = self.broke_off(error)
            if not claim_lost or self._through is not None:
                raise
            return self._refuse_lost()

    def close(self) -> None:
        """Close the application's iterable, once."""
        source, self._source = self._source, ()
        if hasattr(source, "close"):
            source.close()

    def broke_off(self, error: BaseException) -> bool:
        """Release the claim. Return whether the error is the application's ClaimLostError for this claim."""
        claim = self._held.claim
        if not self._settled:
            self._settled = True
            try:
                claim._leave(error)
            except DedupError as another:
                log.warning("%s was not released: %s", claim.key, another)
        return isinstance(error, ClaimLostError) and claim.lost

    # The response

    def start_response(
        self, status: str, headers: list[tuple[str, str]], exc_info: ExcInfo | None = None, /
    ) -> Write:
        """Take status and headers; with `exc_info`, they replace the response that was held back so far.

        Raises:
            BaseException: the one of `exc_info`, where the response is on its way already.
        """
        if not self.holds:
            return self._server(status, headers, *(() if exc_info is None else (exc_info,)))
        if self._status and exc_info is None:
            raise AssertionError("start_response() was called twice, and without exc_info")
        try:
            if self._through is not None:
                self._through = self._server(status, [*headers, *self._marks_of_stream()], exc_info)
        finally:
            exc_info = None  # it refers to this frame
        self._status, self._headers = status, list(headers)
        self._taken()
        if self._through is None and streams(self._response(b"").header(b"content-type")):
            self._pass_on()
        return self._write

    def ended(self) -> None:
        """Settle at the end of a stream: its own end, or that of its client."""
        if not self._settled:
            self._settle(self._response(b"", whole=False))

    def _write(self, data: bytes) -> None:
        """Write a piece of the body, for applications that return no iterable."""
        self._hold(data)
        if self._through is not None:
            self._through(self._taken())

    def _hold(self, chunk: bytes) -> bool:
        """Take a piece of the body. Return whether the response is still held back."""
        if not self._status:
            raise AssertionError("the application gave a body before it called start_response()")
        self._chunks.append(chunk)
        self._size += len(chunk)
        if self._through is None and self._size > self._held.rule.max_response:
            self._pass_on()
        return self._through is None

    def _taken(self) -> bytes:
        """Return the body so far, and forget it."""
        body = b"".join(self._chunks)
        self._chunks.clear()
        self._size = 0
        return body

    def _pass_on(self) -> None:
        """Let the response through as it comes: it is a stream, or too large to be kept."""
        self._through = self._server(self._status, [*self._headers, *self._marks_of_stream()])

    def _marks_of_stream(self) -> list[tuple[str, str]]:
        return native([UNSTORED, DEGRADED] if self._held.claim.degraded else [UNSTORED])

    def _whole(self) -> Iterable[bytes]:
        if not self._status:
            raise AssertionError("the application did not call start_response()")
        response = self._response(self._taken())
        marks = self._settle(response)
        if marks is None:
            body = self._refuse_lost()
        else:
            self._server(self._status, [*self._headers, *native(marks)])
            body = [response.body]
        # The server closes it when the body is sent: some applications go on working there.
        return Closing(body, self.close) if hasattr(self._source, "close") else body

    def _response(self, body: bytes, *, whole: bool = True) -> Response:
        headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in self._headers]
        status, reason = int(self._status[:3]), self._status[4:]
        own = "" if reason == _PHRASES.get(status) else reason
        return Response(status, headers, body, whole, self._held.mark, own)

    def _refuse_lost(self) -> list[bytes]:
        held = self._held
        outage = held.claim.asynchronous._lost_in_outage
        return send(self._server, lost(held.rule, held.docs, outage=outage))

    # The claim

    def _settle(self, response: Response) -> list[tuple[bytes, bytes]] | None:
        """Settle by a response; return the response's marks, or None where the claim was lost."""
        self._settled = True
        held = self._held
        how = Settling.RELEASE if self.undone else settling_of(held.rule, response, held.path)
        try:
            stored = self._settled_in_time(how, response)
        except ClaimLostError as error:
            log.warning("this request's response is dropped: %s", error)
            return None
        except DedupError as error:
            # The handler has run: its client gets the response, stored or not.
            log.warning("%s was not settled: %s", held.claim.key, error)
            stored = how is Settling.RELEASE
        marks = [DEGRADED] if held.claim.degraded else []
        return marks if stored else [*marks, UNSTORED]

    def _settled_in_time(self, how: Settling, response: Response) -> bool:
        held = self._held
        if how is Settling.RELEASE:
            held.claim._leave(None, release=True)
            return True
        return held.claim.settle_within(HOLD, lambda claim: record(claim, how, storable(held.rule, response)))


class Closing:
    """A whole body, which closes the application's iterable when it is sent."""

    def __init__(self, body: list[bytes], close: Callable[[], None]) -> None:
        self._body = body
        self.close = close

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._body)

    def __len__(self) -> int:
        return len(self._body)  # one piece, so that servers know the length of the response


class Stream:
    """A body that goes through as it comes, and settles its claim at its end."""

    def __init__(self, exchange: WsgiExchange, chunks: Iterator[bytes], first: bytes) -> None:
        self._exchange = exchange
        self._chunks = chain((first,), chunks) if first else chunks

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        try:
            return next(self._chunks)
        except StopIteration:
            self._exchange.ended()
            raise
        except BaseException as error:
            self._exchange.broke_off(error)
            raise

    def close(self) -> None:
        """Close the application's iterable, as the server has sent the body or given up."""
        try:
            self._exchange.close()
        finally:
            self._exchange.ended()


def send(start_response: StartResponse, response: Response, *, body: bool = True) -> list[bytes]:
    """Send a response in the application's place."""
    status = response.status
    reason = response.reason or _PHRASES.get(status, "Unknown")
    start_response(f"{status} {reason}", native(response.headers))
    return [response.body] if body else []


def native(headers: Headers) -> list[tuple[str, str]]:
    """Return headers in WSGI's form."""
    return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]
