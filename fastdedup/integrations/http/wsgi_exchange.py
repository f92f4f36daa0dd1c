"""A response between a WSGI application and its server: it is held back, settles the claim, and is sent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from itertools import chain
from types import TracebackType
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from ...downstream import ClaimedWork, enter, leave, resumed
from ...errors import ClaimLostError, DedupError
from ...flows import drive
from ...sync import Claim
from ...web.recorder import Marks, Recorder
from ...web.response import PHRASES, Headers, Response, own_reason
from ...web.rules import Rule
from .background_claims import settle_in_background
from .wsgi_request import supported, whole_path

CLAIM = "fastdedup.claim"
RECORDER = "fastdedup.recorder"
"""The keys of an environ under which a claim is, and what becomes of its response."""

Write = Callable[[bytes], object]
ExcInfo = tuple[type[BaseException], BaseException, TracebackType] | tuple[None, None, None]


class WsgiExchange:
    """Takes the server's place for the application, which gets its `start_response`.

    If it holds a claim, a `Recorder` decides when the response is sent. Without a claim every response goes through.
    """

    def __init__(self, start_response: StartResponse) -> None:
        self._server = start_response
        # Mutable: the claim, which may come while the application runs, and its response.
        self._held: tuple[Claim, Recorder] | None = None
        # Mutable: the status line and headers, and the application's iterable; the server's own write() once the
        # response goes through.
        self._status = ""
        self._headers: list[tuple[str, str]] = []
        self._source: Iterable[bytes] = ()
        self._through: Write | None = None
        # Mutable: the application's work, for the HTTP clients that it uses.
        self._work: ClaimedWork | None = None

    @property
    def holds(self) -> bool:
        """True if there is a claim."""
        return self._held is not None

    def hold(
        self, environ: WSGIEnvironment, claim: Claim, rule: Rule, docs: str | None, mark: bytes = b""
    ) -> None:
        """Settle a claim by the response. Show it to the application, and hide what would bypass the recorder."""
        environ[CLAIM] = claim
        supported(environ)
        environ[RECORDER] = recorder = Recorder(claim.asynchronous, rule, docs, whole_path(environ), mark)
        self._held = claim, recorder
        self.work_under(claim.asynchronous.settlement.store_key, claim)

    def work_under(self, store_key: bytes, holder: object) -> None:
        """Make the application's work that of a claim, for the HTTP clients that it uses: see `enter`."""
        self._work = enter(store_key, holder)

    def working(self) -> AbstractContextManager[object]:
        """Return a block in which the application goes on with this work: with a stream, or when it is closed."""
        return resumed(self._work, self)

    def mend(self, response: Response) -> Response:
        """Settle the claim by the response of an earlier request, which is sent past it; return it with its marks."""
        self.recorder.start(response.status, response.headers, response.reason)
        self.recorder.body(response.body)
        marks = self._settle()
        self._held = None
        return response.marked(*(marks or ()))

    @property
    def recorder(self) -> Recorder:
        """The response of the claim that it holds."""
        assert self._held is not None
        return self._held[1]

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
            return self._whole() if whole else Stream(self, chunks, self.recorder.taken())
        except BaseException as error:
            if not self.holds:
                raise
            try:
                self.close()
            finally:
                claim_lost = self.broke_off(error)
            if not claim_lost or self._through is not None:
                raise
            return send(self._server, self.recorder.refusal())
        finally:
            leave(self._work)

    def close(self) -> None:
        """Close the application's iterable, once."""
        source, self._source = self._source, ()
        if hasattr(source, "close"):
            with self.working():
                source.close()

    def broke_off(self, error: BaseException) -> bool:
        """Release the claim. Return whether the error is the application's ClaimLostError for this claim."""
        assert self._held is not None
        claim, recorder = self._held
        if not recorder.settled:
            recorder.settled = True
            try:
                claim.leave(error)
            except DedupError as another:
                recorder.claim.settlement.warn(
                    "keys that were not released", "%s was not released: %s", another
                )
        return isinstance(error, ClaimLostError) and claim.lost

    # The response

    def start_response(
        self, status: str, headers: list[tuple[str, str]], exc_info: ExcInfo | None = None, /
    ) -> Write:
        """Take status and headers; with `exc_info`, they replace the response that was held back so far.

        Raises:
            BaseException: the one of `exc_info`, if the response is on its way already.
        """
        if not self.holds:
            return self._server(status, headers, *(() if exc_info is None else (exc_info,)))
        if self._status and exc_info is None:
            raise AssertionError("start_response() was called twice, and without exc_info")
        try:
            if self._through is not None:
                self._through = self._server(status, [*headers, *self._marks_before_the_end()], exc_info)
        finally:
            exc_info = None  # it refers to this frame
        self._status, self._headers = status, list(headers)
        code = int(status[:3])
        self.recorder.passing = self._through is not None  # a head that the server has refused was not sent
        self._pass_on_if(self.recorder.start(code, raw(headers), own_reason(code, status[4:])))
        return self._write

    def ended(self) -> None:
        """Settle at the end of a stream."""
        if not self.recorder.settled:
            self._settle()

    def closed(self) -> None:
        """Settle when the server closes a stream: if it has not ended, its client has left."""
        if self.recorder.counts_in_part:
            self._settle()
        else:
            self.broke_off(GeneratorExit())

    def _write(self, data: bytes) -> None:
        """Write a piece of the body, for applications that return no iterable."""
        self._hold(data)
        if self._through is not None:
            self._through(self.recorder.taken())

    def _hold(self, chunk: bytes) -> bool:
        """Take a piece of the body. Return whether the response is still held back."""
        if not self._status:
            raise AssertionError("the application gave a body before it called start_response()")
        return not self._pass_on_if(self.recorder.body(chunk))

    def _pass_on_if(self, passing: bool) -> bool:
        if passing and self._through is None:
            self._through = self._server(self._status, [*self._headers, *self._marks_before_the_end()])
        return passing

    def _marks_before_the_end(self) -> list[tuple[str, str]]:
        return native(self.recorder.marks(stored=False))

    def _whole(self) -> Iterable[bytes]:
        if not self._status:
            raise AssertionError("the application did not call start_response()")
        marks = self._settle()
        if marks is None:
            body = send(self._server, self.recorder.refusal())
        else:
            self._server(self._status, [*self._headers, *native(marks)])
            body = [self.recorder.taken()]
        # The server closes it when the body is sent: some applications go on working there.
        return Closing(body, self.close) if hasattr(self._source, "close") else body

    def _settle(self) -> Marks | None:
        """Settle by the response; return its marks, or None if the claim was lost."""
        assert self._held is not None
        return drive(settle_in_background(*self._held, blocks=True))


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
    """A body that goes through part by part. It settles its claim at its end, or when its client leaves."""

    def __init__(self, exchange: WsgiExchange, chunks: Iterator[bytes], first: bytes) -> None:
        self._exchange = exchange
        self._chunks = chain((first,), chunks) if first else chunks

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        try:
            with self._exchange.working():
                chunk = next(self._chunks)
            if self._exchange.recorder.passes(len(chunk)):
                self._exchange.ended()
        except StopIteration:
            self._exchange.ended()
            raise
        except BaseException as error:
            self._exchange.broke_off(error)
            raise
        return chunk

    def close(self) -> None:
        """Close the application's iterable: the server has sent the body or given up."""
        try:
            self._exchange.close()
        finally:
            self._exchange.closed()


def send(start_response: StartResponse, response: Response, *, body: bool = True) -> list[bytes]:
    """Send a response in the application's place."""
    status = response.status
    reason = response.reason or PHRASES.get(status, "Unknown")
    start_response(f"{status} {reason}", native(response.headers))
    return [response.body] if body else []


def native(headers: Headers) -> list[tuple[str, str]]:
    """Return headers in WSGI's form."""
    return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]


def raw(headers: list[tuple[str, str]]) -> Headers:
    """Return headers in the form in which they are stored."""
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
