"""The WSGI middleware under real servers with a thread for each request, and clients that come all at once."""

from __future__ import annotations

import http.client
import os
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref import simple_server

import pytest
from werkzeug import serving

from fastdedup.integrations.wsgi import IdempotencyMiddleware, by_header
from fastdedup.sync import Dedup

from ..fixtures import fixture_with
from ..programs import forked
from ..stores import TIMEOUT
from .wsgi_apps import DEADLINE, Answer, App, Environ, Reply, Shop, bare, call

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


dedup = fixture_with(lambda redis_url: Dedup(redis_url, namespace="t", timeout=TIMEOUT))


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
def test_a_servers_own_headers_are_not_replayed(make: Callable[[App], Any], dedup: Dedup) -> None:
    shop = Shop("bare", dedup)
    with running(make, shop.app) as port:
        first, second = post(port), post(port)
    assert [name.lower() for name, _ in second.headers].count("date") == 1
    own = [{field for field in answer.fields if field[0] != "date"} for answer in (first, second)]
    assert own[0] == own[1]
    assert first.header("content-length") == second.header("content-length")


# wsgiref does not decode a body in chunks, and gives the connection to read from. The thread of such a request waited
# until its client left; then the handler ran, with the chunks' sizes in its body.


def post_in_chunks(port: int) -> Answer:
    """Send a request at once: a server that refuses it may not read the rest."""
    lines = [
        "POST /orders HTTP/1.1",
        f"Host: 127.0.0.1:{port}",
        "Transfer-Encoding: chunked",
        "Connection: close",
    ]
    lines += [
        "Idempotency-Key: k",
        "X-Api-Key: ada",
        "Content-Type: application/json",
        "",
        "2",
        "{}",
        "0",
        "",
        "",
    ]
    with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE) as wire:
        wire.sendall("\r\n".join(lines).encode())
        with http.client.HTTPResponse(wire, method="POST") as response:
            response.begin()
            return Answer(response.status, response.reason, response.getheaders(), response.read())


@pytest.mark.parametrize(
    ("server", "kind"), [("wsgiref", "bare"), ("wsgiref", "flask"), ("werkzeug", "flask")]
)
def test_a_body_in_chunks_is_decoded_or_refused(server: str, kind: str, dedup: Dedup) -> None:
    shop = Shop(kind, dedup)
    with running(SERVERS[server], shop.app) as port:
        answer = post_in_chunks(port)
        if server == "wsgiref":
            assert (answer.status, answer.problem, shop.runs) == (400, "blank", 0)
        else:
            assert (answer.status, answer.body) == (201, b'{"order": 1}')
            assert post(port).header("idempotency-replayed") == "true"


# Servers that fork their workers


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")  # Python 3.12+
def test_workers_that_are_forked_share_their_keys(dedup: Dedup) -> None:
    app = IdempotencyMiddleware(
        bare(lambda call: Reply(body=b"%d" % os.getpid())), dedup, principal=by_header("x-api-key")
    )
    before = call(app, key="before")
    assert before.body == b"%d" % os.getpid()
    assert forked(lambda: call(app, key="before").body) == before.body
    child = forked(lambda: call(app, key="after").body)
    assert child != before.body
    assert call(app, key="after").body == child
