"""What is particular to requests: streamed responses, files, pickled sessions, its own retries of logins."""

from __future__ import annotations

import io
import pickle
from typing import Any

import pytest
import requests

from fastdedup.client import RetryRules
from fastdedup.client.requests import IdempotentAdapter

from .callers import Waits
from .stripe import Server

CHUNKED = {"Transfer-Encoding": "chunked"}


def session(**options: Any) -> requests.Session:
    """A session with one connection: a response that is not closed blocks the next attempt."""
    made = requests.Session()
    made.mount("http://", IdempotentAdapter(sleep=Waits(), pool_maxsize=1, pool_block=True, **options))
    return made


@pytest.mark.timeout(20)
@pytest.mark.parametrize("stream", [False, True])
def test_the_responses_of_failed_attempts_are_closed(stripe: Server, stream: bool) -> None:
    stripe.state.faults.extend(["503"] * 3)
    stripe.state.refusal = CHUNKED if stream else {}
    with session() as http, http.post(f"{stripe.url}/charges", stream=stream, timeout=2) as response:
        assert response.status_code == 200


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


def test_a_form_with_a_file_is_sent_again(stripe: Server) -> None:
    stripe.state.faults.append("cut")
    with session() as http:
        assert (
            http.post(f"{stripe.url}/charges", files={"file": io.BytesIO(b"x")}, timeout=2).status_code == 200
        )
    assert len({one.body for one in stripe.state.seen}) == 1


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
