"""Each client against a server by Stripe's rules: what is lost is asked for again, and acts once."""

from __future__ import annotations

import io
import re
import ssl
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
import requests
import trustme

from fastdedup.client import Retry, RetryRules
from fastdedup.client.httpx import IdempotentTransport
from fastdedup.client.requests import IdempotentAdapter
from fastdedup.errors import InvalidKeyError

from ..servers import free_port
from .callers import CALLERS, Caller, Waits, until
from .stripe import Server, serving


@pytest.fixture
def url(stripe: Server) -> str:
    return f"{stripe.url}/charges"


# Keys


def test_each_request_has_a_key_of_its_own(call: Caller, stripe: Server, url: str) -> None:
    answers = [call(url) for _ in range(2)]
    assert len(set(stripe.state.keys)) == 2
    assert [answer.key for answer in answers] == stripe.state.keys
    assert len(stripe.state.effects) == 2


def test_a_request_without_a_key_is_sent_once(call: Caller, stripe: Server, url: str) -> None:
    stripe.state.faults.extend(["503", "cut"])
    assert call(url, method="GET").status == 503
    with pytest.raises(call.lost):
        call(url, method="PUT")
    assert stripe.state.keys == [None, None]


def test_a_callers_own_key_is_kept_and_retried(call: Caller, stripe: Server, url: str) -> None:
    stripe.state.faults.extend(["lose", "503"])
    answer = call(url, method="PUT", headers={"idempotency-key": "mine"})
    assert (answer.status, answer.headers["idempotent-replayed"]) == (200, "true")
    assert stripe.state.keys == ["mine"] * 3
    assert len(stripe.state.effects) == 1


def test_an_empty_own_key_is_not_sent(call: Caller, stripe: Server, url: str) -> None:
    with pytest.raises(InvalidKeyError):
        call(url, headers={"Idempotency-Key": ""})
    assert not stripe.state.seen


def test_the_header_and_the_key_can_be_chosen(call: Caller, stripe: Server, url: str) -> None:
    rules = RetryRules(header="PayPal-Request-Id", make_key=lambda: "a b", quoted=True)
    stripe.state.faults.append("503")
    call(url, rules=rules)
    assert [one.headers["paypal-request-id"] for one in stripe.state.seen] == ['"a b"'] * 2


# Retries


@pytest.mark.parametrize("fault", ["cut", "lose", "half"])
def test_a_lost_connection_is_retried_and_acts_once(
    call: Caller, stripe: Server, url: str, fault: str
) -> None:
    stripe.state.faults.extend([fault, fault])
    answer = call(url)
    assert (answer.status, answer.body) == (200, b'{"charge": 1}')
    assert answer.headers.get("idempotent-replayed") == (None if fault == "cut" else "true")
    assert stripe.state.keys == [answer.key] * 3
    assert len(stripe.state.effects) == 1


def test_a_refused_connection_is_retried(call: Caller) -> None:
    with ExitStack() as stack:
        port = free_port()
        waits = Waits(lambda number: stack.enter_context(serving(port)) if number == 2 else None)
        assert call(f"http://127.0.0.1:{port}/charges", sleep=waits).status == 200
    assert len(waits.seconds) == 2


def test_a_timeout_then_a_conflict_then_the_first_result(call: Caller, stripe: Server, url: str) -> None:
    """The first attempt is still at work when the second comes: 409, and no Retry-After, as Stripe says it."""
    state = stripe.state
    state.faults.append("slow")
    told: list[int | None] = []

    def then(number: int) -> None:
        if number == 2:
            state.finish.set()
            until(lambda: not state.running, "the first attempt is done")

    rules = RetryRules(on_retry=lambda retry: told.append(retry.status))
    answer = call(url, timeout=1.0, rules=rules, sleep=Waits(then))
    assert (answer.status, answer.headers["idempotent-replayed"]) == (200, "true")
    assert told == [None, 409]
    assert len(set(state.keys)) == 1
    assert len(state.effects) == 1


@pytest.mark.parametrize("status", ["408", "429", "502", "503", "504"])
def test_a_passing_status_is_retried_after_what_the_server_says(
    call: Caller, stripe: Server, url: str, status: str
) -> None:
    stripe.state.faults.append(status)
    stripe.state.refusal["Retry-After"] = "7"
    waits = Waits()
    assert call(url, sleep=waits, rules=RetryRules(jitter=lambda: 0.5)).status == 200
    assert waits.seconds == [7.1]
    assert len(stripe.state.effects) == 1


@pytest.mark.parametrize("body", [b"wrong", b"declined", b"broken"])
def test_a_final_answer_is_returned_at_once(call: Caller, stripe: Server, url: str, body: bytes) -> None:
    """400: refused. 402, 500: the result of the work."""
    assert call(url, body=body).status in (400, 402, 500)
    assert len(stripe.state.seen) == 1


def test_a_stored_error_is_not_asked_for_again(call: Caller, stripe: Server, url: str) -> None:
    stripe.state.faults.append("lose")
    rules = RetryRules(statuses=[500])
    answer = call(url, body=b"broken", rules=rules)
    assert (answer.status, answer.headers["idempotent-replayed"]) == (500, "true")
    assert len(stripe.state.seen) == 2


def test_a_key_of_another_body_is_refused_and_not_retried(call: Caller, stripe: Server, url: str) -> None:
    own = {"Idempotency-Key": "mine"}
    call(url, body=b"1", headers=own)
    answer = call(url, body=b"2", headers=own)
    assert (answer.status, b"idempotency_error" in answer.body) == (400, True)
    assert len(stripe.state.seen) == 2


def test_the_last_response_is_returned(call: Caller, stripe: Server, url: str) -> None:
    stripe.state.faults.extend(["cut", "503", "503"])
    assert call(url, rules=RetryRules(attempts=3)).status == 503
    assert len(stripe.state.seen) == 3


def test_the_last_error_is_raised_and_says_how_often(call: Caller, stripe: Server, url: str) -> None:
    stripe.state.faults.extend(["503", "cut"])
    with pytest.raises(call.lost) as caught:
        call(url, rules=RetryRules(attempts=2))
    (note,) = caught.value.__notes__
    assert "attempt 2 under this Idempotency-Key was the last" in note


def test_what_the_server_asks_for_beyond_the_time_is_the_callers(
    call: Caller, stripe: Server, url: str
) -> None:
    stripe.state.faults.append("503")
    stripe.state.refusal["Retry-After"] = "3600"
    waits = Waits()
    answer = call(url, sleep=waits)
    assert (answer.status, answer.headers["retry-after"], waits.seconds) == (503, "3600", [])


def test_a_retry_is_told(call: Caller, stripe: Server, url: str) -> None:
    stripe.state.faults.extend(["503", "cut"])
    retries: list[Retry] = []
    answer = call(url, rules=RetryRules(on_retry=retries.append))
    assert [(one.key, one.attempt, one.status) for one in retries] == [
        (answer.key, 1, 503),
        (answer.key, 2, None),
    ]
    assert isinstance(retries[1].error, call.lost)


def test_an_error_of_on_retry_is_the_callers(call: Caller, stripe: Server, url: str) -> None:
    stripe.state.faults.append("503")

    def faulty(retry: Retry) -> None:
        raise LookupError("mine")

    with pytest.raises(LookupError):
        call(url, rules=RetryRules(on_retry=faulty))


def test_a_certificate_that_is_not_trusted_is_not_asked_for_again(call: Caller, stripe: Server) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
    stripe.socket = context.wrap_socket(stripe.socket, server_side=True)
    retries: list[Retry] = []
    with pytest.raises(call.lost, match="CERTIFICATE_VERIFY_FAILED"):
        call(stripe.url.replace("http", "https"), rules=RetryRules(on_retry=retries.append))
    assert retries == []


# Bodies


def test_a_body_of_unknown_length_is_sent_once(call: Caller, stripe: Server, url: str) -> None:
    stripe.state.faults.append("cut")
    with pytest.raises(call.lost) as caught:
        call(url, body=(part for part in (b"a", b"b")))
    assert "cannot be read twice" in caught.value.__notes__[0]
    assert len(stripe.state.seen) == 1
    assert stripe.state.keys != [None]


def test_a_file_is_sent_again_as_a_whole(stripe: Server, url: str) -> None:
    """Httpx's synchronous client and requests take files as bodies."""
    for call in (CALLERS["httpx"], CALLERS["requests"]):
        stripe.state.faults.extend(["cut", "503"])
        assert call(url, body=io.BytesIO(b"whole")).status == 200
    assert [one.body for one in stripe.state.seen] == [b"whole"] * 6


# Redirects


@pytest.mark.parametrize("there", ["same", "other"])
def test_a_redirect_has_a_key_of_its_own_and_keeps_it(call: Caller, stripe: Server, there: str) -> None:
    """The first key belongs to the first address on its server, and another host must not learn it."""
    with serving() as other:
        target = stripe if there == "same" else other
        target.state.faults.extend(["", "lose"] if there == "same" else ["lose"])
        answer = call(f"{stripe.url}/moved", headers={"X-To": f"{target.url}/charges"})
        seen = [one for one in target.state.seen if one.path == "/charges"]
    assert (answer.status, answer.headers["idempotent-replayed"]) == (200, "true")
    assert [one.key for one in seen] == [answer.key] * 2
    assert stripe.state.seen[0].key not in (None, answer.key)
    assert len(target.state.effects) == 1


def test_a_redirect_to_a_host_of_another_transport_has_no_key(stripe: Server) -> None:
    with serving() as other:
        mounted = {stripe.url: IdempotentTransport(sleep=Waits())}
        with httpx.Client(mounts=mounted, follow_redirects=True) as client:
            client.post(f"{stripe.url}/moved", headers={"X-To": f"{other.url}/charges"})
        with requests.Session() as session:
            session.mount(stripe.url, IdempotentAdapter(sleep=Waits()))
            session.post(f"{stripe.url}/moved", headers={"X-To": f"{other.url}/charges"})
    assert None not in stripe.state.keys
    assert other.state.keys == [None, None]


def test_a_redirect_to_get_has_no_key(call: Caller, stripe: Server) -> None:
    assert call(f"{stripe.url}/see-other").status == 200
    assert [one.method for one in stripe.state.seen] == ["POST", "GET"]
    assert stripe.state.keys[1] is None


def test_a_callers_own_key_goes_with_its_redirect(call: Caller, stripe: Server) -> None:
    """As the caller's request starts anew under it, the new key's effect would come twice."""
    headers: dict[str, Any] = {"Idempotency-Key": "mine", "X-To": f"{stripe.url}/charges"}
    assert call(f"{stripe.url}/moved", headers=headers).status == 200
    assert stripe.state.keys == ["mine", "mine"]


# docs/client.md: its snippets run


PAGE = (Path(__file__).parents[2] / "docs" / "client.md").read_text()
SNIPPETS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("number", range(len(SNIPPETS)))
def test_a_snippet_runs_and_its_request_acts_once(number: int, stripe: Server) -> None:
    snippet = SNIPPETS[number].replace("http://localhost:8000", stripe.url)
    stripe.state.faults.extend(["lose", "503", "cut", ""] if "error.request" in snippet else ["lose"])
    exec(compile(snippet, "docs/client.md", "exec"), {"__name__": "page"})
    assert len(stripe.state.effects) == 1
    assert len(stripe.state.seen) == (4 if "error.request" in snippet else 2)
    assert len(set(stripe.state.keys)) == 1
