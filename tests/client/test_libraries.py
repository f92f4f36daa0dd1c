"""What is particular to httpx and to requests: connections, streams, forms, files, cancellation, trio, pickles."""

from __future__ import annotations

import asyncio
import io
import pickle
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any

import anyio
import httpx
import pytest
import requests

from fastdedup.client import RetryRules
from fastdedup.client.httpx import AsyncIdempotentTransport, IdempotentTransport
from fastdedup.client.requests import IdempotentAdapter

from ..waiting import cancel
from .callers import TRUST, Waits
from .stripe import Server

ONE = httpx.Limits(max_connections=1)
"""A pool of one connection: a response that is not closed blocks the next attempt."""
CHUNKED = {"Transfer-Encoding": "chunked"}
"""A response that goes on, of unknown length."""


def client(**options: Any) -> httpx.Client:
    transport = IdempotentTransport(httpx.HTTPTransport(limits=ONE, verify=TRUST), sleep=Waits(), **options)
    return httpx.Client(transport=transport, timeout=2.0)


def async_client(**options: Any) -> httpx.AsyncClient:
    sleep = options.pop("sleep", Waits().awaited)
    transport = AsyncIdempotentTransport(
        httpx.AsyncHTTPTransport(limits=ONE, verify=TRUST), sleep=sleep, **options
    )
    return httpx.AsyncClient(transport=transport, timeout=2.0)


def by_httpx(url: str, **sent: Any) -> int:
    with client() as http:
        return http.post(url, **sent).status_code


def by_httpx_async(url: str, **sent: Any) -> int:
    async def call() -> int:
        async with async_client() as http:
            return (await http.post(url, **sent)).status_code

    return asyncio.run(call())


def by_requests(url: str, *, stream: bool = False, **sent: Any) -> int:
    with session() as http, http.post(url, timeout=2, stream=stream, **sent) as response:
        return response.status_code


LIBRARIES = [by_httpx, by_httpx_async, by_requests]


@pytest.mark.timeout(20)
@pytest.mark.parametrize("post", [*LIBRARIES, partial(by_requests, stream=True)])
@pytest.mark.parametrize("headers", [{}, CHUNKED], ids=["whole", "goes on"])
def test_the_responses_of_failed_attempts_are_closed(
    stripe: Server, post: Callable[..., int], headers: dict[str, str]
) -> None:
    """There is one connection: a response that is not closed blocks the next attempt."""
    stripe.state.faults.append("503")
    stripe.state.refusal = headers
    assert post(f"{stripe.url}/charges") == 200


@pytest.mark.parametrize("post", LIBRARIES)
def test_a_form_with_a_file_is_sent_again(stripe: Server, post: Callable[..., int]) -> None:
    stripe.state.faults.extend(["503", "cut"])
    assert post(f"{stripe.url}/charges", files={"file": io.BytesIO(b"x")}) == 200
    assert len(stripe.state.seen) == 3
    assert len({one.body for one in stripe.state.seen}) == 1


async def test_a_wait_can_be_cancelled_and_holds_no_connection(stripe: Server) -> None:
    stripe.state.faults.append("503")
    stripe.state.refusal = CHUNKED
    waiting = asyncio.Event()

    async def sleep(seconds: float) -> None:
        waiting.set()
        await asyncio.Event().wait()

    async with async_client(sleep=sleep) as http:
        task = asyncio.create_task(http.post(f"{stripe.url}/charges"))
        await waiting.wait()
        await cancel(task)
        assert (await http.post(f"{stripe.url}/charges")).status_code == 200
    assert len(stripe.state.seen) == 2


def test_it_waits_under_trio_as_well() -> None:
    answers = iter([503, 200])

    async def call() -> int:
        transport = httpx.MockTransport(lambda request: httpx.Response(next(answers)))
        rules = RetryRules(backoff=0.001)
        async with httpx.AsyncClient(transport=AsyncIdempotentTransport(transport, rules=rules)) as http:
            return (await http.post("http://shop.test/")).status_code

    assert anyio.run(call, backend="trio") == 200


def test_a_response_that_goes_on_is_handed_on_as_it_comes(stripe: Server) -> None:
    """Reading it here would keep an event stream back for ever."""
    stripe.state.faults.append("404")
    stripe.state.refusal = CHUNKED
    with client() as http, http.stream("POST", f"{stripe.url}/charges") as response:
        assert next(response.iter_raw()) == b'{"error": {"type": "api_error"}}'


def test_a_response_over_the_buffer_is_handed_on_as_it_comes(stripe: Server) -> None:
    stripe.state.faults.append("half")
    with client(rules=RetryRules(buffer=5)) as http, pytest.raises(httpx.RemoteProtocolError):
        http.post(f"{stripe.url}/charges")
    assert len(stripe.state.seen) == 1


def test_a_short_response_can_still_be_streamed(stripe: Server) -> None:
    with client() as http, http.stream("POST", f"{stripe.url}/charges") as response:
        assert b"".join(response.iter_bytes()) == b'{"charge": 1}'


@pytest.mark.parametrize("size", [5, 2000], ids=["held", "too large"])
def test_a_form_with_a_file_is_sent_again_if_it_can_be_held(stripe: Server, size: int) -> None:
    stripe.state.faults.append("503")
    with client(rules=RetryRules(buffer=1000)) as http:
        answer = http.post(f"{stripe.url}/charges", files={"file": io.BytesIO(b"x" * size)})
    assert answer.status_code == (200 if size == 5 else 503)
    assert len({one.body for one in stripe.state.seen}) == 1


def test_an_iterator_that_is_read_up_is_not_sent_again_empty(stripe: Server) -> None:
    """Httpx itself would send it again, without a byte."""

    class Once:
        def __init__(self) -> None:
            self.parts = iter([b"a"])

        def __iter__(self) -> Iterator[bytes]:
            return self.parts

    class OnceAwaited(httpx.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            yield b"a"

    stripe.state.faults.extend(["cut", "cut"])
    with client() as http, pytest.raises(httpx.RemoteProtocolError):
        http.post(f"{stripe.url}/charges", content=Once())

    async def call() -> None:
        async with async_client() as http:
            await http.post(f"{stripe.url}/charges", content=OnceAwaited())

    with pytest.raises(httpx.RemoteProtocolError):
        asyncio.run(call())
    assert [one.body for one in stripe.state.seen] == [b"a", b"a"]


def test_a_request_sent_again_by_hand_keeps_its_key(stripe: Server) -> None:
    """Also as the request of an error, once the attempts are over."""
    stripe.state.faults.append("lose")
    with client(rules=RetryRules(attempts=1)) as http:
        with pytest.raises(httpx.RemoteProtocolError) as caught:
            http.post(f"{stripe.url}/charges")
        answer = http.send(caught.value.request)
    assert answer.headers["idempotent-replayed"] == "true"
    assert len(stripe.state.effects) == 1


def test_a_login_that_answers_a_challenge_keeps_the_key(stripe: Server) -> None:
    class Login(httpx.Auth):
        def auth_flow(self, request: httpx.Request) -> Any:
            response = yield request
            if response.status_code == 401:
                request.headers["Authorization"] = "Bearer new"
                yield request

    stripe.state.faults.append("401")
    with client() as http:
        assert http.post(f"{stripe.url}/charges", auth=Login()).status_code == 200
    assert len(set(stripe.state.keys)) == 1


def test_threads_share_a_transport(stripe: Server) -> None:
    """Each thread's requests keep their own keys, and act once."""
    stripe.state.faults.extend(["lose", "503", "cut", ""] * 8)
    transport = IdempotentTransport(sleep=Waits(), rules=RetryRules(attempts=30))
    with httpx.Client(transport=transport, timeout=5.0) as http:

        def work(name: int) -> None:
            for number in range(4):
                assert http.post(f"{stripe.url}/charges", content=f"{name}.{number}").status_code == 200

        threads = [threading.Thread(target=work, args=(name,)) for name in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(stripe.state.effects) == sorted(f"{n}.{m}".encode() for n in range(6) for m in range(4))


def test_a_key_set_by_hand_after_a_made_one_is_the_callers(stripe: Server) -> None:
    with client() as http:
        request = http.build_request("POST", f"{stripe.url}/charges")
        http.send(request)
        request.headers["Idempotency-Key"] = "mine"
        http.send(request)
    assert stripe.state.keys[1] == "mine"
    assert len(set(stripe.state.keys)) == 2


def test_it_opens_and_closes_the_transport_that_it_wraps() -> None:
    calls: list[str] = []

    class Wrapped(httpx.MockTransport):
        def __enter__(self) -> Wrapped:
            calls.append("enter")
            return self

        def __exit__(self, *exc: object) -> None:
            calls.append("exit")

        def close(self) -> None:
            calls.append("close")

        async def __aenter__(self) -> Wrapped:
            return self.__enter__()

        async def __aexit__(self, *exc: object) -> None:
            self.__exit__()

        async def aclose(self) -> None:
            self.close()

    wrapped = Wrapped(lambda request: httpx.Response(200))
    with httpx.Client(transport=IdempotentTransport(wrapped)):
        pass
    httpx.Client(transport=IdempotentTransport(wrapped)).close()

    async def both() -> None:
        async with httpx.AsyncClient(transport=AsyncIdempotentTransport(wrapped)):
            pass
        await httpx.AsyncClient(transport=AsyncIdempotentTransport(wrapped)).aclose()

    asyncio.run(both())
    assert calls == ["enter", "exit", "close"] * 2


def test_a_request_is_pickled_with_its_key() -> None:
    transport = IdempotentTransport(httpx.MockTransport(lambda request: httpx.Response(200)))
    with httpx.Client(transport=transport) as http:
        request = http.post("http://shop.test/").request
    assert (
        pickle.loads(pickle.dumps(request)).headers["idempotency-key"] == request.headers["idempotency-key"]
    )


# requests: streamed responses, files, pickled sessions, its own retries of logins


def session(**options: Any) -> requests.Session:
    """A session with one connection: a response that is not closed blocks the next attempt."""
    made = requests.Session()
    made.mount("http://", IdempotentAdapter(sleep=Waits(), pool_maxsize=1, pool_block=True, **options))
    return made


def test_a_streamed_response_is_handed_on_as_it_comes(stripe: Server) -> None:
    stripe.state.faults.append("404")
    stripe.state.refusal = CHUNKED
    with session() as http, http.post(f"{stripe.url}/charges", stream=True, timeout=2) as response:
        assert next(response.iter_content(None)) == b'{"error": {"type": "api_error"}}'


def test_a_file_is_sent_again_from_where_it_stood(stripe: Server) -> None:
    stripe.state.faults.extend(["503", "cut"])
    file = io.BytesIO(b"skipped, sent")
    file.seek(9)
    with session() as http:
        assert http.post(f"{stripe.url}/charges", data=file, timeout=2).status_code == 200
    assert [one.body for one in stripe.state.seen] == [b"sent"] * 3


def test_a_file_that_cannot_be_rewound_is_sent_once(stripe: Server) -> None:
    class Pipe(io.BytesIO):
        def seekable(self) -> bool:
            return False

    stripe.state.faults.append("503")
    with session() as http:
        assert http.post(f"{stripe.url}/charges", data=Pipe(b"x"), timeout=2).status_code == 503
    assert len(stripe.state.seen) == 1


def test_a_refusal_whose_body_cannot_be_decoded_is_retried(stripe: Server) -> None:
    """Its status says that the request was not carried out; it came to the caller as a ContentDecodingError."""
    stripe.state.faults.extend(["503", "503"])
    stripe.state.refusal = {"Content-Encoding": "gzip"}
    with session() as http:
        assert http.post(f"{stripe.url}/charges", timeout=2).status_code == 200
    assert len(stripe.state.seen) == 3


@pytest.mark.timeout(20)
def test_a_body_that_cannot_be_decoded_is_the_callers_error(stripe: Server) -> None:
    """Its connection is given up, although the error keeps the response alive."""
    stripe.state.faults.append("404")
    stripe.state.refusal = {"Content-Encoding": "gzip", **CHUNKED}
    with session() as http:
        with pytest.raises(requests.exceptions.ContentDecodingError) as caught:
            http.post(f"{stripe.url}/charges", timeout=2)
        assert http.post(f"{stripe.url}/charges", timeout=2).status_code == 200
    assert caught.tb
    assert len(stripe.state.seen) == 2


def test_a_key_given_as_bytes_is_kept(stripe: Server) -> None:
    stripe.state.faults.append("503")
    with session() as http:
        http.post(f"{stripe.url}/charges", headers={"Idempotency-Key": b"mine"}, timeout=2)
    assert stripe.state.keys == ["mine", "mine"]


def test_a_copy_of_the_request_keeps_its_key(stripe: Server) -> None:
    """A hook that logs in sends a copy, and a program may send an error's request again."""
    stripe.state.faults.append("lose")
    with session(rules=RetryRules(attempts=1)) as http:
        with pytest.raises(requests.ConnectionError) as caught:
            http.post(f"{stripe.url}/charges", timeout=2)
        assert isinstance(caught.value.request, requests.PreparedRequest)
        answer = http.send(caught.value.request.copy(), timeout=2)
    assert answer.headers["Idempotent-Replayed"] == "true"
    assert len(stripe.state.effects) == 1


def test_a_session_is_pickled_with_its_adapter(stripe: Server) -> None:
    stripe.state.faults.append("503")
    made = requests.Session()
    made.mount("http://", IdempotentAdapter(rules=RetryRules(attempts=2, backoff=0.001)))
    with pickle.loads(pickle.dumps(made)) as http:
        response = http.post(f"{stripe.url}/charges", timeout=2)
    assert (response.status_code, len(stripe.state.seen)) == (200, 2)
    assert pickle.loads(pickle.dumps(response)).request.headers["Idempotency-Key"] == stripe.state.keys[0]
