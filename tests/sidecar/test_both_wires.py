"""Both wires say the same of the same field: what one of them refuses, the other one refuses too."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from itertools import count
from typing import Any, get_args

import httpx
import pytest
import redis

from fastdedup.sidecar import wire_verbs
from fastdedup.sidecar.fields import FIELDS, WireField
from fastdedup.sidecar.verbs import BEGIN
from fastdedup.sidecar.wire_verbs import VERBS, WireVerb

from .conftest import Running
from .running import client

NUMBERS = ["", "0", "1", "-1", "+1", "1_0", " 1", "1.0", "1e1", "٣", "1000", "1001", "2001", "5000"]
NUMBERS += ["315360000000", "315360000001", str(2**53 - 1), str(2**53), "9" * 17]
TEXTS = ["", "k", " ", "a\nb", "é" * 129, "#" + "0" * 32, "claim", "lock", "token", "machine", "processing"]
TEXTS += ["x" * size for size in (63, 64, 65, 256, 257, 1024, 1025, 4097, 8193)]
VERBS_OF_RECORDS = [verb for verb in VERBS if not verb.of_ledger]  # over HTTP a path names the ledger

Words = dict[str, str]
_fresh = count()


class Wires:
    """A client of both wires of one sidecar."""

    def __init__(self, raw: Any, http: httpx.Client) -> None:
        self._raw = raw
        self._http = http

    def refused(self, verb: WireVerb, words: Words) -> tuple[bool, bool]:
        """Send a request over the Redis protocol, and over HTTP; return whether each one refuses it as wrong."""
        over_resp = self._refused_by_resp(verb, with_places(verb, words))
        return over_resp, self._refused_by_http(verb, with_places(verb, words))

    def _refused_by_resp(self, verb: WireVerb, words: Words) -> bool:
        places = [words[word] for word in verb.usage.places if word in words]
        options = [(w, v) if FIELDS[w].read else (w,) for w, v in words.items() if w.isupper()]
        try:
            self._raw.execute_command(verb.usage.name, *places, *[part for pair in options for part in pair])
        except redis.ResponseError as error:
            return not str(error).startswith("CLAIMLOST")
        return False

    def _refused_by_http(self, verb: WireVerb, words: Words) -> bool:
        sent: dict[str, Any] = {}
        for word, value in words.items():
            field = verb.usage.fields[word]
            whole = takes_number(field) and verb.method == "POST" and re.fullmatch("-?[0-9]+", value)
            sent[field.name] = True if field.read is None else int(value) if whole else value
        how = {"json": sent} if verb.method == "POST" else {"params": sent}
        answer = self._http.request(verb.method, verb.path, **how)  # type: ignore[arg-type]
        assert answer.status_code < 500, answer.text
        return answer.status_code in {400, 422} or "unknown-ledger" in answer.text


@pytest.fixture
def wires(sidecar: Running) -> Iterator[Wires]:
    with client(sidecar.path) as raw, sidecar.http() as http:  # type: ignore[arg-type]
        yield Wires(raw, http)


def with_places(verb: WireVerb, words: Words) -> Words:
    """Return the words of a request with what it must have: no other request has these keys, so no claim waits."""
    return {word: f"k{next(_fresh)}" for word in verb.usage.places if word != "lease"} | words


def takes_number(field: WireField) -> bool:
    return int in get_args(field.type)


def edges_of(verb: WireVerb) -> Iterator[Words]:
    """Yield requests with one value at the edge of what its field takes; of a key, for each kind of key."""
    for word in verb.usage.fields:
        field = verb.usage.fields[word]
        if field.read is None or field.type is None:
            continue
        for value in NUMBERS if takes_number(field) else TEXTS:
            yield {word: value}
            if word == "key":
                yield from ({word: value, "KIND": "token"} for _ in verb.usage.options & {"KIND"})
                yield from ({word: value, each: ""} for each in verb.usage.options & {"TOKEN", "DIGEST"})


@pytest.mark.parametrize("verb", VERBS_OF_RECORDS, ids=lambda verb: verb.name)
def test_both_wires_refuse_the_same(wires: Wires, verb: WireVerb) -> None:
    found = [(words, wires.refused(verb, words)) for words in edges_of(verb)]
    assert len(found) > 10
    assert [(words, refused) for words, refused in found if refused[0] != refused[1]] == []


@pytest.mark.parametrize(
    ("name", "words", "refused"),
    [
        ("list", {"LIMIT": "1001"}, False),
        ("list", {"WITHIN": "5000"}, False),  # the default of the command line, of 0.1.0 too
        ("list", {"CURSOR": ""}, False),
        ("list", {"OLDER": "+1"}, True),
        ("consume", {"token": ""}, False),  # any text that is not a token is unknown
        ("get", {"key": "", "KIND": "token"}, True),
    ],
)
def test_a_field_is_refused_only_if_it_is_wrong(wires: Wires, name: str, words: Words, refused: bool) -> None:
    verb = next(verb for verb in VERBS if verb.name == name)
    assert wires.refused(verb, words) == (refused, refused)


def test_an_empty_token_is_unknown(sidecar: Running) -> None:
    with client(sidecar.path) as raw, sidecar.http() as http:  # type: ignore[arg-type]
        assert raw.execute_command("FD.CONSUME", "") == b"unknown"
        answer = http.post("/v1/tokens/consume", json={"token": ""})
        assert (answer.status_code, answer.json()["outcome"]) == (404, "unknown")


def test_the_gate_reads_numbers_as_the_other_requests_do(sidecar: Running) -> None:
    with sidecar.http() as http:
        key = {"idempotency-key": "k"}
        sent = [
            http.get(f"/v1/gate?principal=everyone&lease={lease}", headers=key) for lease in ("%2B1", "1_0")
        ]
    assert [answer.status_code for answer in sent] == [422, 422]


@pytest.mark.parametrize("wire", ["fastdedup.sidecar.http.verbs", "fastdedup.sidecar.resp.verb_commands"])
def test_a_verb_without_an_answer_on_a_wire_is_refused_at_import(
    monkeypatch: pytest.MonkeyPatch, wire: str
) -> None:
    """Fault: over RESP it failed only when a client asked for it."""
    monkeypatch.setattr(wire_verbs, "VERBS", (*VERBS, replace(VERBS[-1], name="new")))
    monkeypatch.setitem(BEGIN, "new", BEGIN["get"])
    monkeypatch.delitem(sys.modules, wire)
    with pytest.raises(KeyError, match="new"):
        import_module(wire)
