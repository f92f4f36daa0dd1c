"""requests took a response whose head was cut for a whole one: 200 without its headers, and without its body."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest
import requests

from fastdedup.client import RetryRules
from fastdedup.client.requests import IdempotentAdapter

HEAD = b"Content-Type: text/plain\r\nX-Order: 7\r\n"
BY_LENGTH = b"HTTP/1.1 200 OK\r\n" + HEAD + b"Content-Length: 7\r\n\r\nordered"
BY_CHUNKS = b"HTTP/1.1 200 OK\r\n" + HEAD + b"Transfer-Encoding: chunked\r\n\r\n07\r\nordered\r\n0\r\n\r\n"
BY_END = b"HTTP/1.1 200 OK\r\n" + HEAD + b"Connection: close\r\n\r\n"
WITHOUT_BODY = b"HTTP/1.1 204 No Content\r\n" + HEAD + b"\r\n"
AFTER_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n" + BY_LENGTH
REDIRECT = b"HTTP/1.1 303 See Other\r\n" + HEAD + b"Location: /orders/7\r\nContent-Length: 0\r\n\r\n"
HEAD_ONLY = b"HTTP/1.1 200 OK\r\n" + HEAD + b"Content-Length: 7\r\n\r\n"


class Server:
    """Answers the first connection with a part of a response, and each further one with the whole."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}/orders"
        self.answers: list[bytes] = []
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            connection, _ = self._listening.accept()
            with connection:
                request = b""
                while b"\r\n\r\n" not in request:
                    piece = connection.recv(65536)
                    if not piece:
                        return
                    request += piece
                connection.sendall(self.answers.pop(0))

    def close(self) -> None:
        with socket.create_connection(self._listening.getsockname()):
            pass
        self._thread.join()
        self._listening.close()


@pytest.fixture
def server() -> Iterator[Server]:
    started = Server()
    yield started
    started.close()


@pytest.fixture
def session() -> Iterator[requests.Session]:
    with requests.Session() as made:
        made.mount("http://", IdempotentAdapter(rules=RetryRules(backoff=0.0)))
        yield made


@pytest.mark.parametrize("through_a_proxy", [False, True], ids=["direct", "proxy"])
@pytest.mark.parametrize(
    ("whole", "method"),
    [
        (BY_LENGTH, "POST"),
        (BY_CHUNKS, "POST"),
        (BY_END, "POST"),
        (WITHOUT_BODY, "POST"),
        (AFTER_CONTINUE, "POST"),
        (REDIRECT, "POST"),
        (HEAD_ONLY, "HEAD"),
    ],
    ids=["length", "chunks", "end", "204", "100", "303", "HEAD"],
)
def test_a_response_that_is_cut_anywhere_is_asked_for_again(
    server: Server, session: requests.Session, whole: bytes, method: str, through_a_proxy: bool
) -> None:
    proxies = {"http": server.url} if through_a_proxy else None
    url = "http://shop.test/orders" if through_a_proxy else server.url
    wrong = []
    for cut in range(len(whole)):
        server.answers = [whole[:cut], whole]
        response = session.request(
            method,
            url,
            headers={"Idempotency-Key": "mine"},
            proxies=proxies,
            allow_redirects=False,
            timeout=10,
        )
        if server.answers or response.headers.get("X-Order") != "7":
            wrong.append((whole[:cut], response.status_code, dict(response.headers), response.content))
    assert not wrong


def test_a_whole_response_is_asked_for_once(server: Server, session: requests.Session) -> None:
    wholes = (BY_LENGTH, BY_CHUNKS, BY_END + b"ordered", WITHOUT_BODY, AFTER_CONTINUE)
    server.answers = list(wholes)
    bodies = [session.post(server.url, timeout=10).content for _ in wholes]
    assert bodies == [b"ordered", b"ordered", b"ordered", b"", b"ordered"]


def test_a_stream_that_is_cut_in_its_head_is_asked_for_again(
    server: Server, session: requests.Session
) -> None:
    server.answers = [BY_CHUNKS[:40], BY_CHUNKS]
    with session.post(server.url, stream=True, timeout=10) as response:
        assert response.headers["Transfer-Encoding"] == "chunked"
        assert b"".join(response.iter_content(None)) == b"ordered"


def test_a_stream_that_is_cut_in_its_body_is_an_error(server: Server, session: requests.Session) -> None:
    """Its last chunk's length, `07`, was cut to the 0 that ends a body."""
    server.answers = [BY_CHUNKS[: BY_CHUNKS.index(b"07\r\n") + 1]]
    with (
        session.post(server.url, stream=True, timeout=10) as response,
        pytest.raises(requests.exceptions.ChunkedEncodingError),
    ):
        list(response.iter_content(None))
