"""The WSGI middleware under real servers with a thread for each request, and clients that come all at once."""

from __future__ import annotations

import http.client
import io
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref import simple_server

import pytest
from werkzeug import serving

from fastdedup.integrations.wsgi import IdempotencyMiddleware, by_header
from fastdedup.sync import Dedup

from ..stores import TIMEOUT
from .wsgi_apps import DEADLINE, Answer, App, Call, Environ, Reply, Shop, bare, call

CLIENTS = 20


class Quiet(simple_server.WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


class Threaded(ThreadingMixIn, simple_server.WSGIServer):
    """wsgiref's server, with a thread for each request."""

    request_queue_size = 2 * CLIENTS


class QuietToo(serving.WSGIRequestHandler):
    def log(self, type: str, message: str, *args: Any) -> None:
        """Say nothing."""


def wsgiref_server(app: App) -> Any:
    return simple_server.make_server("127.0.0.1", 0, app, Threaded, Quiet)


def werkzeug_server(app: App) -> Any:
    def conforming(environ: Environ, start_response: Any) -> Iterable[bytes]:
        environ["REMOTE_PORT"] = str(environ["REMOTE_PORT"])  # Werkzeug has a number there
        return app(environ, start_response)

    return serving.make_server("127.0.0.1", 0, conforming, threaded=True, request_handler=QuietToo)


SERVERS: dict[str, Callable[[App], Any]] = {"wsgiref": wsgiref_server, "werkzeug": werkzeug_server}


@contextmanager
def running(make: Callable[[App], Any], app: App) -> Iterator[int]:
    """Serve an application in a thread; its port."""
    with make(app) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join(DEADLINE)


def post(port: int, body: Any = b"{}", key: str = "k", **options: Any) -> Answer:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE)) as connection:
        headers = {"Idempotency-Key": key, "X-Api-Key": "ada", "Content-Type": "application/json"}
        connection.request("POST", "/orders", body, headers, **options)
        with connection.getresponse() as response:
            return Answer(response.status, response.reason, response.getheaders(), response.read())


@pytest.fixture
def dedup(redis_url: str) -> Iterator[Dedup]:
    with Dedup(redis_url, namespace="t", timeout=TIMEOUT) as dedup:
        yield dedup


@pytest.mark.parametrize(
    ("server", "kind"), [("wsgiref", "bare"), ("werkzeug", "flask"), ("werkzeug", "django")]
)
def test_twenty_clients_with_one_key_are_one_run(server: str, kind: str, dedup: Dedup) -> None:
    shop = Shop(kind, dedup, wait=DEADLINE)
    together = threading.Barrier(CLIENTS)

    def click(at: int) -> Answer:
        together.wait(DEADLINE)
        return post(port)

    with running(SERVERS[server], shop.app) as port, ThreadPoolExecutor(CLIENTS) as pool:
        answers = list(pool.map(click, range(CLIENTS)))
    assert shop.runs == 1
    assert Counter((answer.status, answer.body) for answer in answers) == {(201, b'{"order": 1}'): CLIENTS}
    assert sum(answer.header("idempotency-replayed") == "true" for answer in answers) == CLIENTS - 1


@pytest.mark.parametrize("make", SERVERS.values(), ids=list(SERVERS))
def test_twenty_clients_that_do_not_wait_are_told_so(make: Callable[[App], Any], dedup: Dedup) -> None:
    shop = Shop("flask", dedup)
    working, go = threading.Event(), threading.Event()

    def handler(call: Call) -> Reply:
        working.set()
        assert go.wait(DEADLINE)
        return shop.numbered(call)

    shop.handler = handler
    with running(make, shop.app) as port, ThreadPoolExecutor(CLIENTS) as pool:
        first = pool.submit(post, port)
        try:
            assert working.wait(DEADLINE)
            others = list(pool.map(lambda at: post(port), range(CLIENTS - 1)))
        finally:
            go.set()
        assert first.result(DEADLINE).status == 201
    assert {(other.status, other.problem) for other in others} == {(409, "in-progress")}
    assert shop.runs == 1


@pytest.mark.parametrize("make", SERVERS.values(), ids=list(SERVERS))
def test_a_servers_own_headers_are_not_replayed(make: Callable[[App], Any], dedup: Dedup) -> None:
    shop = Shop("bare", dedup)
    with running(make, shop.app) as port:
        first, second = post(port), post(port)
    assert [name.lower() for name, _ in second.headers].count("date") == 1
    own = [{field for field in answer.fields if field[0] != "date"} for answer in (first, second)]
    assert own[0] == own[1]
    assert first.header("content-length") == second.header("content-length")


def test_a_body_in_chunks(dedup: Dedup) -> None:
    shop = Shop("flask", dedup)
    with running(werkzeug_server, shop.app) as port:
        first = post(port, iter([b"a ", b"body"]), encode_chunked=True)
        second = post(port, b"a body")
        third = post(port, iter([b"another"]), encode_chunked=True)
    assert shop.calls[0].body == b"a body"
    assert (second.body, second.header("idempotency-replayed")) == (first.body, "true")
    assert third.problem == "key-reused"


def test_two_keys_of_one_request_are_400(dedup: Dedup) -> None:
    shop = Shop("bare", dedup)
    with (
        running(werkzeug_server, shop.app) as port,
        closing(http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE)) as connection,
    ):
        connection.putrequest("POST", "/orders")
        for key in ("one", "two"):
            connection.putheader("Idempotency-Key", key)
        connection.putheader("Content-Length", "0")
        connection.endheaders()
        with connection.getresponse() as response:
            assert response.status == 400
    assert shop.runs == 0


# Files, as frameworks send them


def test_a_file_of_flasks(dedup: Dedup, tmp_path: Path) -> None:
    import flask

    app = flask.Flask("files")
    (tmp_path / "receipt.txt").write_bytes(b"a receipt")

    @app.post("/orders")
    def order() -> flask.Response:
        return flask.send_file(tmp_path / "receipt.txt")

    middleware = IdempotencyMiddleware(app.wsgi_app, dedup, principal=by_header("x-api-key"))
    with running(werkzeug_server, middleware) as port:
        first, second = post(port), post(port)
    assert (first.status, first.body) == (second.status, second.body) == (200, b"a receipt")
    assert first.header("etag") == second.header("etag")
    assert second.header("idempotency-replayed") == "true"


def test_a_file_of_djangos(dedup: Dedup) -> None:
    from django.http import FileResponse

    from . import wsgi_django

    file = io.BytesIO(b"a receipt")
    app = wsgi_django.application(lambda call: Reply())
    response = FileResponse(file, filename="receipt.txt")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wsgi_django.Application, "get_response", lambda self, request: response)
        middleware = IdempotencyMiddleware(app, dedup, principal=by_header("x-api-key"))
        more: Any = {"wsgi.file_wrapper": lambda file, size: object()}
        first, second = call(middleware, key="k", **more), call(middleware, key="k", **more)
    assert first.body == second.body == b"a receipt"
    assert second.header("content-disposition") == 'inline; filename="receipt.txt"'
    assert file.closed


# Servers that fork their workers


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")  # Python 3.12+
def test_workers_that_are_forked_share_their_keys(dedup: Dedup) -> None:
    app = IdempotencyMiddleware(
        bare(lambda call: Reply(body=b"%d" % os.getpid())), dedup, principal=by_header("x-api-key")
    )
    before = call(app, key="before")
    assert before.body == b"%d" % os.getpid()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            assert call(app, key="before").body == before.body
            assert call(app, key="after").body == b"%d" % os.getpid()
            code = 7
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert call(app, key="after").body == b"%d" % child
