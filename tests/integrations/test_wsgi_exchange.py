"""How a WSGI application may give its response, and what the middleware makes of each way: PEP 3333, line by line."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable, Iterator
from typing import Any
from wsgiref.validate import validator

import pytest

from fastdedup.integrations.http.wsgi_exchange import Closing
from fastdedup.integrations.wsgi import IdempotencyMiddleware, Route, everyone
from fastdedup.sync import Dedup

from ..fixtures import fixture_of
from .wsgi_apps import Answer, App, Environ, Server, call, environ_of

TEXT = [("Content-Type", "text/plain")]
STREAM = [("Content-Type", "text/event-stream")]


class Body:
    """An iterable that counts how often it is asked, and closed."""

    def __init__(self, *chunks: bytes, error: BaseException | None = None) -> None:
        self._chunks = chunks
        self._error = error
        self.given = 0
        self.closed = 0

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._chunks:
            self.given += 1
            yield chunk
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        self.closed += 1


dedup = fixture_of(Dedup, "memory://")


def guarded(app: App, dedup: Dedup, **settings: Any) -> App:
    return IdempotencyMiddleware(validator(app), dedup, principal=everyone, **settings)


def post(app: App, key: str = "k") -> Answer:
    return call(app, key=key)


def replying(body: Iterable[bytes], headers: Any = TEXT) -> App:
    def app(environ: Environ, start_response: Any) -> Iterable[bytes]:
        start_response("201 Made", headers)
        return body

    return app


@pytest.mark.parametrize("body", [[b"x"], []])
def test_the_status_line_is_the_applications_own(dedup: Dedup, body: list[bytes]) -> None:
    app = guarded(replying(body), dedup)
    for answer in (post(app), post(app)):
        assert (answer.reason, answer.body) == ("Made", b"".join(body))


def test_a_generator_begins_its_response_when_it_is_asked(dedup: Dedup) -> None:
    def app(environ: Environ, start_response: Any) -> Iterator[bytes]:
        start_response("200 OK", TEXT)
        yield b"a"
        yield b"b"

    middleware = guarded(app, dedup)
    assert [post(middleware).body, post(middleware).body] == [b"ab", b"ab"]


def test_what_is_written_comes_before_what_is_returned(dedup: Dedup) -> None:
    def app(environ: Environ, start_response: Any) -> Iterable[bytes]:
        write = start_response("200 OK", TEXT)
        write(b"a")
        write(b"b")
        return [b"c"]

    middleware = guarded(app, dedup)
    first, second = post(middleware), post(middleware)
    assert [first.body, second.body] == [b"abc", b"abc"]
    assert second.header("idempotency-replayed") == "true"


@pytest.mark.parametrize(("limit", "headers"), [(1, TEXT), (2, TEXT), (99, STREAM)])
def test_what_is_written_goes_through_where_it_is_not_kept(dedup: Dedup, limit: int, headers: Any) -> None:
    def app(environ: Environ, start_response: Any) -> Iterator[bytes]:
        write = start_response("200 OK", headers)
        write(b"a")
        yield b"b"
        write(b"c")
        yield b"d"

    middleware = guarded(app, dedup, max_response=limit)
    first = post(middleware)
    assert first.header("idempotency-stored") == "false"
    assert first.body == b"abcd"
    assert post(middleware).problem == "response-not-stored"


def test_a_written_stream_is_sent_at_once(dedup: Dedup) -> None:
    server: Server

    def app(environ: Environ, start_response: Any) -> Iterable[bytes]:
        write = start_response("200 OK", STREAM)
        write(b"a")
        assert server.sent == [b"a"]
        return []

    server = Server(guarded(app, dedup))
    assert list(server.serve(environ_of(key="k"))) == []
    assert server.answer().body == b"a"


# Errors on the way


def test_an_error_page_takes_the_place_of_what_was_held_back(dedup: Dedup) -> None:
    def app(environ: Environ, start_response: Any) -> Iterator[bytes]:
        start_response("200 OK", TEXT)
        yield b"half of it"
        try:
            raise LookupError
        except LookupError:
            start_response("500 Oops", STREAM[:0] + TEXT, sys.exc_info())
        yield b"an error page"

    middleware = guarded(app, dedup)
    for _ in range(2):  # it was released
        answer = post(middleware)
        assert (answer.status, answer.reason, answer.body) == (500, "Oops", b"an error page")


def test_an_error_page_comes_too_late_for_what_was_sent(dedup: Dedup) -> None:
    runs = []

    def app(environ: Environ, start_response: Any) -> Iterator[bytes]:
        runs.append(1)
        start_response("200 OK", STREAM)
        yield b"half of it"
        try:
            raise LookupError("too late")
        except LookupError:
            start_response("500 Oops", TEXT, sys.exc_info())

    middleware = guarded(app, dedup)
    for _ in range(2):  # it was released
        with pytest.raises(LookupError, match="too late"):
            post(middleware)
    assert len(runs) == 2


def test_an_error_page_before_a_stream_has_sent_anything(dedup: Dedup) -> None:
    def app(environ: Environ, start_response: Any) -> Iterable[bytes]:
        start_response("200 OK", STREAM)
        try:
            raise LookupError
        except LookupError:
            start_response("500 Oops", TEXT, sys.exc_info())
        return [b"an error page"]

    middleware = guarded(app, dedup)
    for _ in range(2):  # it was released
        answer = post(middleware)
        assert (answer.status, answer.body, answer.marks) == (500, b"an error page", {"idempotency-stored"})


def test_an_error_page_is_stored_where_the_server_refused_a_stream(dedup: Dedup) -> None:
    def app(environ: Environ, start_response: Any) -> Iterable[bytes]:
        try:
            start_response("200 OK", STREAM)
        except ValueError:
            start_response("410 Gone", TEXT, sys.exc_info())
        return [b"an error page"]

    def picky(middleware: App) -> App:
        def server(environ: Environ, start_response: Any) -> Iterable[bytes]:
            def start(status: str, headers: Any, *more: Any) -> Any:
                if headers[: len(STREAM)] == STREAM:
                    raise ValueError("what headers are these?")
                return start_response(status, headers, *more)

            return middleware(environ, start)

        return server

    middleware = picky(IdempotencyMiddleware(app, dedup, principal=everyone))
    first, second = (call(middleware, key="k", checked=False) for _ in range(2))
    assert (first.status, first.body, first.marks) == (410, b"an error page", set())
    assert (second.status, second.body, second.marks) == (410, b"an error page", {"idempotency-replayed"})


@pytest.mark.parametrize("calls", [0, 2])
def test_a_response_is_begun_once(dedup: Dedup, calls: int) -> None:
    def app(environ: Environ, start_response: Any) -> Iterable[bytes]:
        for _ in range(calls):
            start_response("200 OK", TEXT)
        return [b"x"] if calls else []

    middleware = IdempotencyMiddleware(app, dedup, principal=everyone)
    for _ in range(2):  # it was released
        with pytest.raises(AssertionError, match="start_response"):
            call(middleware, key="k", checked=False)


def test_a_body_before_its_headers_is_refused(dedup: Dedup) -> None:
    middleware = IdempotencyMiddleware(lambda environ, start: [b"x"], dedup, principal=everyone)
    with pytest.raises(AssertionError, match="before it called"):
        call(middleware, key="k", checked=False)


def test_an_exception_halfway_releases(dedup: Dedup) -> None:
    for headers in (TEXT, STREAM):
        body = Body(b"a", error=LookupError("halfway"))
        with pytest.raises(LookupError, match="halfway"):
            post(guarded(replying(body, headers), dedup))
        assert body.closed == 1
    assert post(guarded(replying([b"b"]), dedup)).body == b"b"


def test_an_interruption_releases(dedup: Dedup) -> None:
    with pytest.raises(KeyboardInterrupt):
        post(guarded(replying(Body(b"a", error=KeyboardInterrupt())), dedup))
    assert post(guarded(replying([b"b"]), dedup)).body == b"b"


# Iterables that want to be closed


@pytest.mark.parametrize(
    ("limit", "headers"), [(99, TEXT), (1, TEXT), (99, STREAM)], ids=["whole", "large", "stream"]
)
def test_an_iterable_is_closed_once_when_it_is_sent(dedup: Dedup, limit: int, headers: Any) -> None:
    body = Body(b"a", b"b", b"c")
    server = Server(guarded(replying(body, headers), dedup, max_response=limit))
    for _ in server.serve(environ_of(key="k")):
        assert body.closed == 0
    assert server.answer().body == b"abc"
    assert body.closed == 1


def test_closing_twice_closes_once(dedup: Dedup) -> None:
    body = Body(b"a")
    served = guarded(replying(body), dedup)(environ_of(key="k"), lambda *args: None)
    assert isinstance(served, Closing)
    assert len(served) == 1
    for _ in range(2):
        served.close()
    assert body.closed == 1


def test_an_iterable_is_closed_where_its_server_refuses_the_response(dedup: Dedup) -> None:
    def refuse(*args: object) -> Any:
        raise ValueError("what headers are these?")

    for headers in (TEXT, STREAM):
        body = Body(b"a")
        app = IdempotencyMiddleware(replying(body, headers), dedup, principal=everyone)
        with pytest.raises(ValueError, match="headers"):
            app(environ_of(key=headers[0][1]), refuse)
        # Before it was returned, it is not ours to close.
        assert body.closed == (headers is TEXT)


def test_a_closing_that_fails_is_the_servers_to_report(dedup: Dedup) -> None:
    class Failing(Body):
        def close(self) -> None:
            super().close()
            raise LookupError("closing")

    app = guarded(replying(Failing(b"a")), dedup)
    with pytest.raises(LookupError, match="closing"):
        post(app)
    assert post(app).body == b"a"  # it had been stored, and sent


# Streams


def test_a_stream_is_not_held_back(dedup: Dedup) -> None:
    body = Body(b"a", b"b", b"c")
    server = Server(guarded(replying(body, STREAM), dedup))
    sent = server.serve(environ_of(key="k"))
    for at, chunk in enumerate((b"a", b"b", b"c"), 1):
        assert next(sent) == chunk
        assert body.given == at
    assert list(sent) == []


def test_a_large_response_is_held_back_no_longer_than_it_may_be_kept(dedup: Dedup) -> None:
    body = Body(b"a", b"b", b"c", b"d")
    server = Server(guarded(replying(body), dedup, max_response=2))
    sent = server.serve(environ_of(key="k"))
    assert next(sent) == b"abc"
    assert body.given == 3
    assert list(sent) == [b"d"]


def test_while_a_stream_is_sent_its_key_is_held(dedup: Dedup) -> None:
    middleware = guarded(replying(Body(b"a", b"b"), STREAM), dedup)
    sent = Server(middleware).serve(environ_of(key="k"))
    assert next(sent) == b"a"
    assert post(middleware).problem == "in-progress"
    assert list(sent) == [b"b"]
    assert post(middleware).problem == "response-not-stored"


@pytest.mark.parametrize("unstored", ["refuse", "release"])
@pytest.mark.parametrize(
    ("headers", "read", "counts"),
    [
        (STREAM, 0, False),
        (STREAM, 1, False),
        (STREAM, 2, False),  # it has not told that this is its end
        ([*STREAM, ("Content-Length", "2")], 1, False),
        ([*STREAM, ("Content-Length", "2")], 2, True),  # servers may read no further
        (TEXT, 0, True),  # too large: its first two pieces are held back
        (TEXT, 1, True),
    ],
)
def test_a_client_that_leaves_frees_a_stream_and_not_a_large_response(
    dedup: Dedup, headers: Any, read: int, counts: bool, unstored: Any
) -> None:
    body = Body(b"a", b"b")
    settings: dict[str, Any] = {"principal": everyone, "unstored": unstored, "max_response": 1}
    # Unchecked: the validator wants to be read to the end.
    middleware = IdempotencyMiddleware(replying(body, headers), dedup, **settings)
    sent = middleware(environ_of(key="k"), lambda *args: lambda data: None)
    chunks = iter(sent)
    for _ in range(read):
        next(chunks)
    sent.close()  # type: ignore[attr-defined]
    assert body.closed == 1
    again = call(middleware, key="k", checked=False)
    assert again.status == (409 if counts and unstored == "refuse" else 201)


def test_a_stream_that_was_closed_after_its_end_is_settled_once(dedup: Dedup) -> None:
    body = Body(b"a", b"b")
    middleware = IdempotencyMiddleware(replying(body, STREAM), dedup, principal=everyone)
    server = Server(middleware)
    assert list(server.serve(environ_of(key="k"))) == [b"a", b"b"]  # it closes what it was given
    assert body.closed == 1
    assert post(middleware).problem == "response-not-stored"


def test_an_event_stream_without_a_body_is_kept(dedup: Dedup) -> None:
    """204 tells a client of server-sent events to come no more."""

    def app(environ: Environ, start_response: Any) -> Iterable[bytes]:
        start_response("204 No Content", STREAM)
        return []

    middleware = IdempotencyMiddleware(app, dedup, principal=everyone)
    for replayed in (None, "true"):
        answer = call(middleware, key="k", checked=False)
        assert (answer.status, answer.header("idempotency-replayed")) == (204, replayed)


# What an application finds in its environ


def test_a_servers_file_wrapper_is_not_used(dedup: Dedup) -> None:
    """It may be a thing that only that server can send: uWSGI's is."""
    file = io.BytesIO(b"a file")

    def app(environ: Environ, start_response: Any) -> Iterable[bytes]:
        start_response("200 OK", TEXT)
        wrapped: Iterable[bytes] = environ["wsgi.file_wrapper"](file, 3)
        return wrapped

    middleware = guarded(app, dedup)
    more: Any = {"wsgi.file_wrapper": lambda file, size: object()}
    for _ in range(2):
        answer = call(middleware, key="k", **more)
        assert answer.body == b"a file"
    assert file.closed


def test_outside_of_its_routes_nothing_is_touched(dedup: Dedup) -> None:
    seen: list[Any] = []
    body = Body(b"x")

    def app(environ: Environ, start_response: Any) -> Iterable[bytes]:
        seen.append((environ, environ.copy(), start_response))
        return body

    def start_response(*args: object) -> Any:
        raise AssertionError

    middleware = IdempotencyMiddleware(
        app, dedup, principal=everyone, routes=[Route("/orders/{id}", max_request=1)], docs="/policy"
    )
    for one in (
        environ_of("/orders/1", b"xx", method="GET", key="k"),
        environ_of("/orders", b"xx", key="k"),
        environ_of("/policy", b"xx", key="k"),
        environ_of("/orders/1", b"xx"),
    ):
        before = one.copy()
        assert middleware(one, start_response) is body
        environ, copied, start = seen.pop()
        assert environ is one
        assert copied == before
        assert start is start_response
        assert one["wsgi.input"].tell() == 0
