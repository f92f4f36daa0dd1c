"""Requests to the next hop have the same key at each attempt, and a response that was cut is asked for again."""

from __future__ import annotations

import asyncio
import gc
import socket
import sys
import threading
import weakref
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
import requests

from fastdedup import Dedup, downstream
from fastdedup.client import RetryRules
from fastdedup.client.requests import IdempotentAdapter
from fastdedup.downstream import ClaimedWork, downstream_key, enter, leave, present_work

from ..fixtures import fixture_with
from ..programs import ended, forked

# The key of a request within claimed work is the same at every attempt, and another one for each address.
# Where the work itself imported the client, the first one of a process got a random key, and the attempt
# after a crash another one. Two addresses that begin with the same 900 characters shared a key, so that the
# second request was answered with the first one's response. Where a claim that a generator held ended
# within another claim's block, the requests of that block got random keys, and later ones, outside of every
# claim, those of the claim that was over.


PROGRAM = """
import asyncio
import httpx
from fastdedup import Dedup, downstream
{early}

async def main():
    async with Dedup("memory://", namespace="shop") as dedup, dedup.claim("order:42"):
        from fastdedup.client.httpx import AsyncIdempotentTransport
        told = lambda request: httpx.Response(200, text=request.headers["Idempotency-Key"])
        transport = AsyncIdempotentTransport(httpx.MockTransport(told))
        async with httpx.AsyncClient(transport=transport) as client:
            print((await client.post("https://bank.test/charges")).text)

asyncio.run(main())
"""


def test_a_key_does_not_depend_on_when_the_client_is_imported() -> None:
    keys = [
        ended("-c", PROGRAM.format(early=early), check=True).stdout
        for early in ("", "import fastdedup.client.httpx")
    ]
    assert keys[0] == keys[1] != ""


@pytest.mark.parametrize("length", [900, 901, 5000])
def test_long_addresses_have_keys_of_their_own(length: int) -> None:
    work, again = ClaimedWork(b"shop:=order:42"), ClaimedWork(b"shop:=order:42")
    urls = ["https://bank.test/" + "x" * length + end for end in ("/ann", "/bob")]
    keys = [work.key_for("POST", url) for url in urls]
    assert len({*keys}) == 2
    assert [again.key_for("POST", url) for url in urls] == keys


def test_other_addresses_keep_their_keys() -> None:
    """They are the same in a process of an older version, which may have begun the work."""
    work = ClaimedWork(b"shop:=order:42")
    key = work.key_for("post", "https://user:password@bank.test/charges?reference=7")
    assert key == downstream_key(b"shop:=order:42", "POST https://bank.test/charges 1")


async def messages(dedup: Dedup) -> AsyncIterator[str]:
    async with dedup.claim("message:1"):
        yield "one"


def key() -> str | None:
    work = present_work()
    return None if work is None else work.key_for("POST", "https://bank.test/charges")


async def test_a_generator_that_ends_within_another_block_leaves_its_keys_alone() -> None:
    async with Dedup("memory://", namespace="shop") as dedup:
        received = messages(dedup)
        await anext(received)
        async with dedup.claim("order:42") as claim:
            await anext(received, None)
            assert key() == claim.downstream("POST https://bank.test/charges 1")
        assert key() is None


async def test_a_generator_that_another_context_ends_leaves_no_keys() -> None:
    """As the event loop ends one that its task has left."""
    async with Dedup("memory://", namespace="shop") as dedup:
        received = messages(dedup)
        await anext(received)
        await asyncio.create_task(anext(received, None))  # type: ignore[arg-type]
        assert key() is None
        async with dedup.claim("order:42") as claim:
            assert key() == claim.downstream("POST https://bank.test/charges 1")
        assert key() is None


async def test_a_task_that_outlasts_its_claim_keeps_its_keys() -> None:
    async def later() -> str | None:
        async with dedup.claim("inner"):
            began.set()
            await over.wait()
        return key()

    began, over = asyncio.Event(), asyncio.Event()
    async with Dedup("memory://", namespace="shop") as dedup:
        async with dedup.claim("order:42") as claim:
            task = asyncio.create_task(later())
            await began.wait()
        over.set()
        assert await task == claim.downstream("POST https://bank.test/charges 1")


def test_works_end_in_any_order() -> None:
    outer, middle, inner = enter(b"outer"), enter(b"middle"), enter(b"inner")
    leave(outer)
    leave(middle)
    assert present_work() is inner
    leave(inner)
    assert present_work() is None


def test_threads_that_ask_at_once_have_keys_of_their_own() -> None:
    """Each request counted, and then read the count that another thread had raised meanwhile."""
    work = ClaimedWork(b"shop:=order:42")
    former = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            keys = list(pool.map(lambda _: work.key_for("POST", "https://bank.test/charges"), range(4000)))
    finally:
        sys.setswitchinterval(former)
    assert len({*keys}) == len(keys)


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")  # Python 3.12+
def test_a_forked_process_is_no_part_of_the_work() -> None:
    """Siblings counted alike: different requests of theirs had one key, and the second got the first one's answer."""
    work = enter(b"shop:=order:42")
    assert forked(lambda: repr(present_work()).encode()) == b"None"
    assert present_work() is work
    leave(work)


async def test_works_that_are_left_elsewhere_are_not_kept() -> None:
    """Each kept the one before it: a dispatcher that enters, and tasks that leave."""

    async def left(work: ClaimedWork) -> None:
        leave(work)

    works: list[weakref.ref[Works]] = []
    for _ in range(50):
        work = Works(b"shop:=order:42", None)
        work.entered = downstream.PRESENT.set(work)
        works.append(weakref.ref(work))
        await asyncio.create_task(left(work))
    del work
    gc.collect()
    assert len([each for each in works if each() is not None]) <= 2


async def test_works_of_a_chain_are_not_kept() -> None:
    """Each kept the one before it: hand over hand, and where a body starts its successor."""
    works: list[weakref.ref[Works]] = []

    def entered() -> ClaimedWork:
        work = Works(b"shop:=order:42", downstream.unfinished(downstream.PRESENT.get()))
        work.entered = downstream.PRESENT.set(work)
        works.append(weakref.ref(work))
        return work

    links: list[asyncio.Task[None]] = []

    async def link(left: int) -> None:
        work = entered()
        if left:
            links.append(asyncio.create_task(link(left - 1)))
        leave(work)

    former = entered()
    for _ in range(50):
        present = entered()
        leave(former)
        former = present
    leave(former)
    await asyncio.create_task(link(50))
    for each in links:
        await each
    del former, present, each
    links.clear()
    gc.collect()
    assert len(works) == 102
    assert len([each for each in works if each() is not None]) <= 2


class Works(ClaimedWork):
    """One that can be seen to be gone."""

    __slots__ = ("__weakref__",)


# requests took a response whose head was cut for a whole one: 200 without its headers, and without its
# body.


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


server = fixture_with(lambda: closing(Server()))


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
