"""The table of the verbs that clients send over both wires: a row has what HTTP and the Redis protocol say of each.

To add a verb: a row here. An owner's verb makes its operation here too; any other verb has its work in `verbs.py`.
From the row come its command with the options, its model over HTTP, its route, its place in batches, its part of the
OpenAPI document, and its name in the rules of a socket. A field that no other verb has is a row of `fields.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import pydantic_core

from ..codec import WIDE_PLAIN, check_size, has_nan
from ..core.gate import Gate
from ..errors import ResultError
from ..kernel.id_place import IdPlace
from ..kernel.operations import OwnerOp, ReleaseOp, RenewOp, SettleOp, TouchOp
from .fields import FIELDS, WireField

_PART: Final = re.compile(r"\[[^]]+]|\S+")


class Usage:
    """How a command is written.

    Args:
        text: its name, its positional arguments in small letters, and its options in capitals, such as
            `FD.GET key [NS n] [DIGEST]`; what may be left out stands in brackets. The last positional argument may
            be a lease, which is a number; it may be left out if options follow.
        verb: the name of its verb.

    Attributes:
        text: the text.
        name: its name.
        places: the names of its positional arguments.
        readers: for each of them the name of its field, what errors call it, and the function that reads it.
        ends_in_lease: the last one is a lease.
        start: the index of the first option.
        least: the parts that it has at least, its name included.
        options: the names of its options.
        fields: the fields of all names.
    """

    def __init__(self, text: str, verb: str) -> None:
        name, *parts = _PART.findall(text)
        places = [part for part in parts if part.islower()]
        self.text = text
        self.name: bytes = name.encode()
        self.places = [part.strip("[]") for part in places]
        found = [(word, FIELDS[word]) for word in self.places if word in FIELDS]
        self.readers = [(field.name, f"the {word}", field.read) for word, field in found if field.read]
        self.ends_in_lease = self.places[-1:] == ["lease"]
        self.start = 1 + len(places)
        self.least = 1 + sum(part[0] != "[" for part in places)
        words = [part.strip("[]").split()[0] for part in parts]
        self.fields = {word: FIELDS.get(f"{verb} {word}") or FIELDS[word] for word in words}
        self.options = frozenset(word for word in self.fields if word.isupper())


Holding = tuple[bytes, bytes, int]
"""What an owner says of its claim: the store key, the owner field, and the fence; 0 for any."""
Make = Callable[[Holding, IdPlace | None], OwnerOp]
"""Makes an owner's operation on its claim; the place is that of its id, if a ledger remembers the claim."""
Change = Callable[[Gate, Any], Make]
"""Checks an owner's request to a namespace. Raises ResultError or ResultTooLargeError."""


@dataclass(frozen=True, eq=False)
class WireVerb:
    """What both wires say of a verb.

    Attributes:
        name: its name in counters and batches.
        command: how its command is written.
        address: its method and its path over HTTP.
        summary: what it does, in a few words.
        about: what a request asks for.
        answer: the model of its successful answers.
        problems: the names of its problems beside those that every request may have.
        item: what it is in a batch; "" if it may not stand in one.
        model: the name of its body's model, if that is another one.
        statuses: the statuses of successful answers.
        shaped: the model of its problems that carry the claim's answer.
        shows: it changes nothing.
        turns: it looks at many keys, so it waits for its turn.
        right: its name in the rules of a socket, if that is another one.
        change: what makes an owner's operation; None if the verb is not an owner's.
    """

    name: str
    command: str
    address: str
    summary: str
    about: str
    answer: str
    problems: tuple[str, ...] = ()
    item: str = ""
    model: str = ""
    statuses: tuple[int, ...] = (200,)
    shaped: str = "Problem"
    shows: bool = False
    turns: bool = False
    right: str = ""
    change: Change | None = None

    @cached_property
    def usage(self) -> Usage:
        """How its command is written."""
        return Usage(self.command, self.name)

    @property
    def method(self) -> str:
        """Its method over HTTP."""
        return self.address.partition(" ")[0]

    @property
    def path(self) -> str:
        """Its path over HTTP."""
        return self.address.partition(" ")[2]

    @property
    def of_owner(self) -> bool:
        """True if an owner does it to its claim."""
        return self.change is not None

    @property
    def of_ledger(self) -> bool:
        """True if its path has a ledger's name."""
        return "{name}" in self.path

    @property
    def rule(self) -> str:
        """Its name in the rules of a socket."""
        return self.right or self.name

    @property
    def fields(self) -> list[WireField]:
        """The fields of its request over HTTP, the namespace first; a ledger has its own namespace."""
        found = [field for word, field in self.usage.fields.items() if word != "NS"]
        return [each for each in (*[FIELDS["NS"]] * (not self.of_ledger), *found) if each.type is not None]


_LEDGER_NAMED: Final = ("unknown-ledger", "ledger-settings")
_OF_LEDGER: Final = (*_LEDGER_NAMED, "foreign-record")
_JUDGED: Final = ("in-progress", "key-reused")
_CLAIMED: Final[dict[str, Any]] = {"statuses": (201, 200), "shaped": "ClaimProblem"}


# What an owner does to its claim

_WIDE_NUMBER: Final = re.compile(rb"[0-9]{19}")
"""Digits of an integer over 64 bits, or of one that is nearly as long."""


def _complete(gate: Gate, ask: Any) -> Make:
    payload, ttl = _payload(gate, ask.result), ask.ttl

    def make(held: Holding, place: IdPlace | None) -> OwnerOp:
        keep_ms = ttl or (gate.keep_ms(succeeded=True) if place is None else place.record_ms)
        return SettleOp(*held, succeeded=True, keep_ms=keep_ms, payload=payload, also=place)

    return make


def _fail(gate: Gate, ask: Any) -> Make:
    payload, keep_ms = _payload(gate, ask.error), ask.ttl or gate.keep_ms(succeeded=False)
    return lambda held, place: SettleOp(*held, succeeded=False, keep_ms=keep_ms, payload=payload)


def _release(gate: Gate, ask: Any) -> Make:
    return lambda held, place: ReleaseOp(*held)


def _renew(gate: Gate, ask: Any) -> Make:
    terms = gate.terms_ms(ask.lease, None)
    return lambda held, place: RenewOp(*held, terms.lease_ms, terms.keep_ms)


def _touch(gate: Gate, ask: Any) -> Make:
    keep_ms = ask.ttl or gate.keep_ms(succeeded=True)
    return lambda held, place: TouchOp(*held, keep_ms)


def _payload(gate: Gate, value: Any) -> bytes:
    """Return a result as the bytes that are stored: bytes unchanged, and anything else as JSON.

    orjson would not do for that: it has no numbers above 64 bits, and its reader would give such a number to Python
    as a float. So JSON that may have one is marked for Python's own reader.
    """
    if value is None or isinstance(value, bytes):
        payload = value or b""
    else:
        payload = pydantic_core.to_json(value)
        if (b"NaN" in payload or b"Infinity" in payload) and has_nan(value):
            raise ResultError("a result must be JSON, which has no NaN and no infinity")
        if _WIDE_NUMBER.search(payload):
            payload += WIDE_PLAIN
    check_size(payload, gate.settings.max_result)
    return payload


def _of_owner(
    name: str,
    arguments: str,
    change: Change,
    summary: str,
    about: str,
    item: str,
    answer: str = "SettledAnswer",
) -> WireVerb:
    """Return the row of what an owner does to its claim."""
    command = f"FD.{name.upper()} key owner {arguments}[NS n] [FENCE n] [TOKEN] [REMEMBER ledger]"
    problems = ("claim-lost", *_LEDGER_NAMED)
    return WireVerb(
        name, command, f"POST /v1/claims/{name}", summary, about, answer, problems, item, change=change
    )


VERBS: Final = (
    WireVerb(
        "claim",
        "FD.CLAIM key [NS n] [FP text] [OWNER id] [LEASE ms] [TTL ms] [WAIT ms] [EPHEMERAL] [REMEMBER ledger]",
        "POST /v1/claims",
        "Ask to be the first for a key",
        "Ask to be the first for a key.",
        "ClaimAnswer",
        (*_JUDGED, *_OF_LEDGER),
        "A claim in a batch. If it waits, so does the batch's answer.",
        **_CLAIMED,
    ),
    _of_owner(
        "complete",
        "[result] [TTL ms] ",
        _complete,
        "Record success",
        "Record success: every duplicate gets `result`, for `ttl` or the namespace's (or ledger's), not the claim's.",
        "A completion in a batch.",
    ),
    _of_owner(
        "fail",
        "[error] [TTL ms] ",
        _fail,
        "Record a failure",
        "Record a failure for good: every duplicate gets `error`.",
        "A failure in a batch.",
    ),
    _of_owner(
        "release",
        "",
        _release,
        "Free a key",
        "Free the key: nothing happened, the next claimant may try.",
        "A release in a batch.",
    ),
    _of_owner(
        "renew",
        "[lease] ",
        _renew,
        "Start a lease anew",
        "Start the lease anew from now. Without `lease`: for the namespace's, or for what is left if that is longer.",
        "A renewal in a batch.",
        "RenewAnswer",
    ),
    _of_owner(
        "touch",
        "[TTL ms] ",
        _touch,
        "Keep a record for longer",
        "Let the record live for at least `ttl` from now. The lease does not change.",
        "A touch in a batch.",
    ),
    WireVerb(
        "issue",
        "FD.ISSUE [SUBJECT s] [TTL ms] [NS n]",
        "POST /v1/tokens",
        "Make a one-time token",
        "Make a one-time token.",
        "TokenAnswer",
        item="A token to issue in a batch.",
        statuses=(201,),
    ),
    WireVerb(
        "consume",
        "FD.CONSUME token [SUBJECT s] [NS n]",
        "POST /v1/tokens/consume",
        "Use a token up",
        "Use a token up in one step.",
        "ConsumeAnswer",
        (*_JUDGED, "token-used", "unknown-token"),
        "A token to consume in a batch.",
        shaped="ConsumeProblem",
    ),
    WireVerb(
        "redeem",
        "FD.REDEEM token [SUBJECT s] [NS n] [LEASE ms] [TTL ms] [WAIT ms] [EPHEMERAL]",
        "POST /v1/tokens/redeem",
        "Claim a token",
        "Claim a token: do the work, then complete it, and a second click gets that result.",
        "ClaimAnswer",
        (*_JUDGED, "unknown-token"),
        "A token to redeem in a batch.",
        **_CLAIMED,
    ),
    WireVerb(
        "get",
        "FD.GET key [NS n] [KIND k] [DIGEST]",
        "GET /v1/records",
        "Show a record",
        "Which record is meant.",
        "RecordAnswer",
        ("no-record", "foreign-record"),
        shows=True,
    ),
    WireVerb(
        "list",
        "FD.LIST [NS n] [KIND k] [PREFIX p] [STATE s] [OLDER ms] [LIMIT n] [WITHIN ms] [CURSOR c] [REASON text]",
        "GET /v1/records/list",
        "List records, to find what is stuck",
        "Which records to list.",
        "ListAnswer",
        shows=True,
        turns=True,
    ),
    WireVerb(
        "forget",
        "FD.FORGET key [NS n] [KIND k] [DIGEST] [REASON text]",
        "DELETE /v1/records",
        "Forget a key",
        "Which record is to be removed, and why.",
        "ForgetAnswer",
        ("foreign-record",),
    ),
    WireVerb(
        "first",
        "FD.FIRST [OWNER name] [NS n] ledger [id …]",
        "POST /v1/ledgers/{name}/first",
        "Remember ids, and say which are the first",
        "Ask which of these ids come for the first time, and remember them.",
        "FirstAnswer",
        (*_OF_LEDGER, "ledger-full"),
    ),
    WireVerb(
        "seen",
        "FD.SEEN [NS n] ledger [id …]",
        "POST /v1/ledgers/{name}/seen",
        "Look whether ids are remembered",
        "Ids of a ledger.",
        "SeenAnswer",
        _OF_LEDGER,
        model="IdsRequest",
        shows=True,
    ),
    WireVerb(
        "forget_id",
        "FD.FORGETID [NS n] [REASON text] ledger [id …]",
        "POST /v1/ledgers/{name}/forget",
        "Forget ids",
        "Make ids of a ledger new again.",
        "ForgottenAnswer",
        _OF_LEDGER,
        model="ForgetIdsRequest",
        right="forget",
    ),
    WireVerb(
        "ledger",
        "FD.LEDGER [NS n] ledger",
        "GET /v1/ledgers/{name}",
        "Show what a ledger holds",
        "Which ledger is meant.",
        "LedgerAnswer",
        _OF_LEDGER,
        shows=True,
        turns=True,
    ),
)
"""The verbs, each once."""
