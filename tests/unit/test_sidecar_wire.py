"""What a store and the sidecar say to each other: packed by the scripts' faces, read back the same, or refused."""

from __future__ import annotations

from copy import copy
from hashlib import sha256
from typing import Any, cast

import hiredis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastdedup import ConfigError, Outcome, ResultTooLargeError, UnavailableError
from fastdedup.kernel.codes import Code
from fastdedup.kernel.operations import (
    AdoptOp,
    ClaimOp,
    ForgetOp,
    IssueOp,
    Op,
    ReadOp,
    ReleaseOp,
    RenewOp,
    SettleOp,
    TouchOp,
    TransitionOp,
    Verdict,
)
from fastdedup.kernel.records import Holding, Stored, holding_bytes
from fastdedup.kernel.replies import Adopted, RefusedAlone, StoredForm, StoreRefusal, TransitionReply, Weight
from fastdedup.kernel.terms import Mode, terms
from fastdedup.kernel.verbs import IdUse, Verb
from fastdedup.ledger.forms import LedgerForm
from fastdedup.ledger.operations import (
    FirstOp,
    ForgetIdOp,
    LedgerOp,
    LedgerPlace,
    LedgerTerms,
    SeenOp,
    WeighOp,
)
from fastdedup.sidecar.resp.frames import FrameError, Frames
from fastdedup.stores.redis.arguments import ARGUMENTS
from fastdedup.stores.redis.verbs import FACES
from fastdedup.stores.sidecar.answers import UNSURE, Fill, Present, encode, read
from fastdedup.stores.sidecar.store import RunCall, SidecarStore
from fastdedup.stores.sidecar.wire import (
    BY_NAME,
    MAX_ARGUMENTS,
    MAX_OPERATIONS,
    WHY,
    RunKind,
    outage_of,
    pack_run,
    runs_of,
    unpack,
)

from ..ops import move

OWNER = b"\0" + b"0123456789"
NAMED = b"\x05alice"
MARK = bytes(range(16))


def sent_again() -> TransitionOp:
    op = move(b"t:@m/1", "b", "a", change=OWNER[1:], keep_ms=5)
    op.resent = True
    return op


def stored(state: str = "P", **options: object) -> Stored:
    facts = {"owner": NAMED, "fence": 7, "attempt": 3, "left_ms": -5, "ttl_ms": 9, "fingerprint": MARK}
    return Stored(state, **{**facts, "payload": b"p", "token": True, **options})  # type: ignore[arg-type]


FORM = LedgerForm(capacity=1000, width=7, window_ms=60_000, secret=bytes(32))
BUCKET = b"t:~orders{AAAB}"


def looking(until_ms: int, from_ms: int = 0) -> LedgerTerms:
    """The terms of an operation that remembers nothing."""
    found = LedgerTerms(FORM, "set", until_ms)
    found.from_ms = from_ms
    found.keep_ms = found.young = found.named = found.most = 1
    return found


BATCHES: list[list[Op]] = [
    [
        ClaimOp(b"t:=a", terms(Mode.CLAIM, 5, 10, False), OWNER, None),
        ClaimOp(b"t:=b", terms(Mode.CLAIM, 5, 10, False), NAMED, MARK),
        ClaimOp(b"t:?c", terms(Mode.CONSUME, 7, 10, True), OWNER, MARK),
    ],
    [
        SettleOp(b"t:=a", OWNER, 2**52, succeeded=True, keep_ms=9, payload=b""),
        SettleOp(b"t:=b", NAMED, 0, succeeded=False, keep_ms=9, payload=b"\r\n$1"),
        SettleOp(b"t:=c", NAMED, 0, succeeded=False, keep_ms=9, payload=b"x" * 1000),
    ],
    [ReleaseOp(b"t:=a", OWNER, 1), ReleaseOp(b"t:=b", NAMED, 0)],
    [RenewOp(b"t:=a", OWNER, 1, 5, 6), RenewOp(b"t:=b", NAMED, 0, 7, 8)],
    [TouchOp(b"t:=a", OWNER, 1, 5), TouchOp(b"t:=b", NAMED, 0, 7)],
    [IssueOp(b"t:?a", OWNER, None, 5), IssueOp(b"t:?b", OWNER, MARK, 5)],
    [
        TransitionOp(
            b"t:@m/1",
            to="b",
            initial="a",
            sources=frozenset(sources),
            version=version,
            change=OWNER[1:],
            keep_ms=5,
        )
        for sources, version in (("ac", None), ("", 3))
    ],
    [sent_again()],
    [ReadOp(b"t:=a"), ReadOp(b"t:=b")],
    [ForgetOp(b"t:=a")],
    [
        AdoptOp(b"t:=a", stored(), Holding(NAMED, 2**52)),
        AdoptOp(b"t:=b", stored("S", fingerprint=None, token=False, left_ms=8), None),
        AdoptOp(
            b"t:@c",
            stored("M", owner=OWNER[1:], attempt=0, fingerprint=None, token=False),
            Holding(OWNER[1:], 6),
        ),
    ],
    [
        FirstOp(BUCKET, b"d" * 12, LedgerTerms(FORM, "set", 2**41), b"id"),
        FirstOp(b"t:~far/away{AAAAAA}", b"e" * 12, LedgerTerms(FORM, "append", 2**41)),
    ],
    [
        SeenOp(BUCKET, b"d" * 7, looking(2**41), "ü".encode()),
        SeenOp(BUCKET, b"d" * 12, looking(2**41, 2**40)),
    ],
    [
        ClaimOp(
            BUCKET + b"=a",
            terms(Mode.CLAIM, 5, 10, False, True),
            OWNER,
            None,
            LedgerPlace(BUCKET, b"d" * 7, looking(2**41)),
        ),
        ClaimOp(
            BUCKET + b"#" + MARK,
            terms(Mode.CLAIM, 5, 10, True, True),
            NAMED,
            MARK,
            LedgerPlace(BUCKET, b"e" * 7, looking(-5)),
        ),
    ],
    [
        SettleOp(
            BUCKET + b"=a",
            NAMED,
            7,
            succeeded=True,
            keep_ms=9,
            payload=b"p",
            also=LedgerPlace(BUCKET, b"d" * 7, LedgerTerms(FORM, "set", 2**41), b"a"),
        )
    ],
    [ForgetIdOp(BUCKET, b"d" * 12, looking(2**52)), ForgetIdOp(BUCKET, b"d" * 7, looking(2**41))],
    [WeighOp(BUCKET, looking(0))],
    [
        LedgerOp(b"t:~orders", FORM.text(), 86_400_000, b"former", 2**41),
        LedgerOp(b"t:~orders", b"", 0),
    ],
]


PACKED = [
    "d497c7a96e2874b5",
    "6963fc2c3e66c5e3",
    "137ff7b64ebbae6d",
    "a6af870898046af4",
    "fafc09a6be749221",
    "895860405a16ee5b",
    "be320219098274cc",
    "1e99c040b4b606f1",
    "077cb0046abfec34",
    "17496c699b3a7610",
    "b08f45daef1f8b42",
    "b1570cab36abed32",
    "95cc6455778b613f",
    "ff7089516f3ec051",
    "6e6af6183bb8b7f5",
    "218b97a3624113b7",
    "e61204b581a1d20d",
    "2b36ccf9df8bb645",
]
"""The beginning of the digest of each batch's command."""


WIRES = dict.fromkeys((Verb.FIRST, Verb.SEEN, Verb.FORGET_ID, Verb.WEIGH), BUCKET) | {
    Verb.LEDGER: b"t:~orders",
    "claim_remembered": BUCKET + b"=a",
    "settle_remembered": BUCKET + b"=a",
}
SETTLING = [b"1", b"9", b"9", b"7", b"9", b"4", b"20", b"9", b"60000"]


def kind_of(ops: list[Op]) -> RunKind:
    [(kind, _)] = runs_of(ops[0].verb, ops)
    return kind


def sent(ops: list[Op], *, reasons: bool = True, patience: bool = True) -> tuple[list[bytes], list[bytes]]:
    """Return the keys and the arguments that a sidecar gets of these operations."""
    packed = pack_run(kind_of(ops), ops, reasons=reasons, patience=patience)
    [command] = Frames(max_bytes=65_536, max_arguments=3).feed(packed)
    assert command[:3] == [b"FD.RUN", kind_of(ops).name.encode(), b"%d" % len(ops)]
    return command[3 : 3 + len(ops)], command[3 + len(ops) :]


def facts(thing: object) -> object:
    """Everything that an operation or a reply says."""
    if isinstance(thing, Code | bytes | str | int | Holding | None):
        return thing
    if isinstance(thing, LedgerPlace):
        return thing.bucket, thing.digest, facts(thing.terms), thing.id
    names = [name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())]
    engines = {"at", "future", "followers", "witness", "counted", "floor_us", "hops"}
    left_out = engines | {"key", "named", "header", "shared", "ledger", "present", "answer"}
    if isinstance(thing, ClaimOp | FirstOp):
        left_out |= {"resent"}  # what became of an earlier sending, for the gate alone
    return type(thing).__name__, {name: facts(getattr(thing, name)) for name in names if name not in left_out}


def test_every_verb_has_a_batch_here() -> None:
    assert {kind_of(ops).name for ops in BATCHES} == {kind.name for kind in BY_NAME.values()}


@pytest.mark.parametrize("ops", BATCHES, ids=lambda ops: ops[0].verb.value)
def test_operations_are_read_as_they_were_packed(ops: list[Op]) -> None:
    keys, args = sent(ops)
    assert [facts(op) for op in unpack(kind_of(ops), keys, args)] == [facts(op) for op in ops]


@pytest.mark.parametrize("ops", BATCHES, ids=lambda ops: ops[0].verb.value)
def test_the_bytes_of_a_batch_stay(ops: list[Op]) -> None:
    """A store may ask an older sidecar, and a newer one."""
    packed = pack_run(kind_of(ops), ops, reasons=True, patience=True)
    assert sha256(packed).hexdigest()[:16] == PACKED[BATCHES.index(ops)]


def test_plain_claims_are_packed_as_their_row_says() -> None:
    """They have a packing of their own, which is compiled."""
    assert ARGUMENTS[Verb.CLAIM].pack(BATCHES[0]) == FACES[Verb.CLAIM].call(BATCHES[0])[1]


def test_a_client_that_does_not_know_pending_waits_for_no_other_call() -> None:
    """Version 0.1.0 has random bytes where later ones say how long they wait."""
    (ops,) = (ops for ops in BATCHES if ops[0].verb is Verb.FIRST)
    read = unpack(BY_NAME[Verb.FIRST.encode()], *sent(ops, patience=False))
    assert [op.entry for op in read] == [op.entry[:-1] + b"\0" for op in ops]


def test_nothing_is_kept_of_a_ledger_whose_namespace_is_too_long() -> None:
    """The terms of ledgers are kept by their names: one as long as a frame would stay in memory, 5,000 times."""
    (ops,) = (ops for ops in BATCHES if ops[0].verb is Verb.FIRST)
    _, args = sent(ops)
    for namespace in (b"n" * 64, b"n" * 65, b"n" * 900_000):
        keys = [namespace + op.wire[op.wire.index(b":~") :] for op in ops]
        if len(namespace) == 64:
            assert [op.wire for op in unpack(BY_NAME[Verb.FIRST.encode()], keys, args)] == keys
        else:
            with pytest.raises(ValueError, match="the key must be that of a ledger's bucket"):
                unpack(BY_NAME[Verb.FIRST.encode()], keys, args)


def test_answers_are_read_as_they_were_written() -> None:
    verdict = Verdict(
        Outcome.SUCCEEDED, fence=1, attempt=2, left_ms=3, payload=b"\r\n", fresh=False, degraded=True
    )
    short = Verdict(Outcome.ACQUIRED, fence=2**52, attempt=1, left_ms=30_000)
    short.underreplicated = True
    moved = TransitionReply(Code.OK, "paid", 7)
    moved.degraded = moved.underreplicated = True
    answers = [
        *[short] * 3,
        verdict,
        Code.FOREIGN,
        *[Code.OK] * 2,
        moved,
        TransitionReply(Code.STALE, "ü", 0),
        stored(),
        stored("S", fingerprint=None, token=False),
        Adopted(Code.OURS_STANDS, NAMED, 9, settled=True),
        Adopted(Code.OK, b"", 0),
        UNSURE,
        StoredForm(b"{}", 2**41),
        Weight(3, 2, 99),
        Fill(1, 7.5),
        Present(1, NAMED),
    ]
    reader = hiredis.Reader()
    reader.feed(encode(answers))
    assert [facts(answer) for answer in read(reader.gets(), 256)] == [facts(answer) for answer in answers]
    assert sha256(encode(answers)).hexdigest()[:16] == "7436ad15fab11e71", "an older store reads these bytes"
    assert len(encode([short] * 256)) < 100, "fresh claims of a batch are one run"


@pytest.mark.parametrize("count", [0, -1, 4, 2**62])
def test_a_count_that_no_sidecar_sends_makes_no_list_of_that_size(count: int) -> None:
    with pytest.raises(ValueError, match="behind 1 of 4 at most"):
        read([1, 1, Code.OK.value, count, 1, Code.OK.value], 4)


def test_refusals_are_one_instance_each_and_keep_what_they_say() -> None:
    reader = hiredis.Reader()
    refused = UnavailableError("no\nroom", retry_after=2.5)
    alone = RefusedAlone("not this key", retry_after=0.5)
    reader.feed(encode([refused, refused, ResultTooLargeError("large"), alone]))
    first, second, third, last = read(reader.gets(), 4)
    assert type(first) is StoreRefusal
    assert isinstance(last, RefusedAlone)
    assert (str(last), last.retry_after) == ("not this key", 0.5)
    assert (str(first), first.retry_after) == ("no\nroom", 2.5)
    assert first is not second
    assert isinstance(third, ResultTooLargeError)


@pytest.mark.parametrize(
    ("verb", "args"),
    [
        (Verb.CLAIM, [b"1", b"5", b"9", b"steal", b"0", OWNER]),
        (Verb.CLAIM, [b"1", b"0", b"9", b"claim", b"0", OWNER]),
        (Verb.CLAIM, [b"1", b"5", b"9", b"claim", b"0", OWNER + b"x"]),
        (Verb.CLAIM, [b"1", b"5", b"9", b"claim", b"0", b"\x45alice"]),
        (Verb.CLAIM, [b"2", b"5", b"9", b"claim", b"0", OWNER, OWNER]),
        (Verb.CLAIM, [b"9", b"5", b"9", b"claim", b"0", OWNER]),
        (Verb.CLAIM, [b"1", b"5", b"9", b"claim", b"0", b""]),
        (Verb.CLAIM, [b"1", b"5", b"9", b"claim", b"0", b"\x80short"]),
        (Verb.CLAIM, []),
        (Verb.SETTLE, [b"1", b"X", b"9", bytes(7) + OWNER, b""]),
        (Verb.SETTLE, [b"1", b"S", b"9" * 18, bytes(7) + OWNER, b""]),
        (Verb.RELEASE, [b"short"]),
        (Verb.RELEASE, []),
        (Verb.ISSUE, [b"1", b"5", OWNER]),
        (Verb.TRANSITION, [b"5", b"short", b"", b"b", b"a", b"\na\n", b""]),
        (Verb.TRANSITION, [b"5", OWNER[1:], b"", b"\xff", b"a", b"\na\n", b""]),
        (Verb.TRANSITION, [b"5", OWNER[1:], b"", b"", b"a", b"\na\n", b""]),
        (Verb.TRANSITION, [b"5", OWNER[1:], b"", b"b", b"a", b"\na\n", b"2"]),
        (Verb.TRANSITION, [b"5", OWNER[1:], b"", b"b", b"a", b"\na\n"]),
        (Verb.READ, [b"x"]),
        (Verb.ADOPT, [b"5", b"5", b"", b"\1P" + bytes(30)]),
        (Verb.ADOPT, [b"5", b"5", b"", b"\1X" + bytes(40)]),
        (Verb.ADOPT, [b"5", b"5", bytes(7) + b"\x05alic", b"\1P" + bytes(40)]),
        (Verb.ADOPT, [b"5", b"5", b"\x05alice", b"\1P" + bytes(40)]),
        (Verb.ADOPT, [b"5", b"5", OWNER[1:], b"\1M" + bytes(40)]),
        (Verb.FIRST, [b"1", b"0", b"9", b"7", b"9", b"4", b"20", b"9", b"d" * 12]),
        (Verb.FIRST, [b"1", b"9", b"9", b"17", b"9", b"4", b"20", b"9", b"d" * 22]),
        (Verb.FIRST, [b"1", b"9", b"9", b"7", b"9", b"4", b"99999", b"9", b"d" * 12]),
        (Verb.FIRST, [b"1", b"9", b"9", b"7", b"9", b"4", b"20", b"9", b"d" * 11]),
        (Verb.SEEN, [b"1", b"9", b"7", b"9", b"0", b"d" * 11]),
        (Verb.FORGET_ID, [b"1", b"9", b"7", b"9", b"d" * 8]),
        (Verb.FORGET_ID, [b"1", b"9", b"7", b"9" * 17, b"d" * 7]),
        (
            "claim_remembered",
            [b"1", b"5", b"9", b"redeem", b"0", b"9", b"7", b"9", OWNER, b"d" * 7],
        ),
        ("claim_remembered", [b"1", b"5", b"9", b"claim", b"0", b"9", b"7", b"9", OWNER, b"d" * 6]),
        ("claim_remembered", [b"1", b"5", b"9", b"claim", b"0", b"9", b"7", b"9", b"x", b"d" * 7]),
        ("settle_remembered", [*SETTLING, bytes(7) + OWNER, b"", b"d" * 12]),
        ("settle_remembered", [*SETTLING, OWNER, b"", b"d" * 7 + bytes(5)]),
        (Verb.WEIGH, [b"9"]),
        (Verb.LEDGER, [b"9", b"", b"{}", b"1"]),
        (Verb.LEDGER, [b"0", b"", FORM.text(), b"1"]),
        (Verb.LEDGER, [b"9", b"x" * 2000, FORM.text(), b"1"]),
    ],
)
def test_what_no_store_sends_is_refused(verb: str, args: list[bytes]) -> None:
    kind = BY_NAME[verb.encode()]
    if verb == Verb.ADOPT and len(args[3]) == 32:
        args[3] = args[3][:17] + b"\x3f" + args[3][18:]
    with pytest.raises(ConfigError, match="FD"):
        unpack(kind, [WIRES.get(verb, b"t:=a")], [*args, b"id"] if kind.ids is not IdUse.NONE else args)


@pytest.mark.parametrize("wire", [b"t:~orders", b"t:~orders{A}", b"t:~orders{AAAA}x", b"t:=orders{AAAA}"])
def test_an_id_is_remembered_in_a_bucket_only(wire: bytes) -> None:
    with pytest.raises(ConfigError, match="bucket"):
        unpack(BY_NAME[Verb.SEEN.encode()], [wire], [b"1", b"9", b"7", b"9", b"0", b"d" * 7, b"id"])


@pytest.mark.parametrize("wire", [BUCKET, b"t:~orders{Q}AAAB", b"t:~orders{A}AAB", b"t:~orders{A}"])
def test_an_integer_is_remembered_in_a_dense_bucket_only(wire: bytes) -> None:
    """The script finds the nonces by the bucket's key."""
    args = [b"1", b"9", b"9", b"9", b"16", b"1", b"9", b"9", b"d" * 14, b"7"]
    assert unpack(BY_NAME[Verb.FIRST.encode()], [b"t:~orders{A}AAAB"], args)
    with pytest.raises(ConfigError, match="bucket"):
        unpack(BY_NAME[Verb.FIRST.encode()], [wire], args)
    with pytest.raises(ConfigError, match="out of bounds"):
        unpack(BY_NAME[Verb.FIRST.encode()], [b"t:~orders{A}AAAB"], [*args[:4], b"129", *args[5:]])


@pytest.mark.parametrize("text", [b"+9", b" 9", b"1_0", b"9.0", b"", b"-9", b"0" * 17])
def test_a_number_is_digits_alone(text: bytes) -> None:
    """As in every other command."""
    proof = holding_bytes(OWNER, 7)
    assert unpack(BY_NAME[Verb.RENEW.encode()], [b"t:=a"], [b"1", b"9", b"19", proof])
    with pytest.raises(ConfigError):
        unpack(BY_NAME[Verb.RENEW.encode()], [b"t:=a"], [b"1", text, b"19", proof])


@pytest.mark.parametrize("wire", [BUCKET, b"t:=a", b"t:~orders=a", b"t:~orders{AAAB}?a", b"t:~o{A}=a"])
def test_a_claim_for_a_ledger_lies_beside_a_bucket(wire: bytes) -> None:
    args = [b"1", b"5", b"9", b"claim", b"0", b"9", b"7", b"9", OWNER, b"d" * 7, b"a"]
    assert unpack(BY_NAME[b"claim_remembered"], [BUCKET + b"=a"], args)
    with pytest.raises(ConfigError, match="beside a ledger's bucket"):
        unpack(BY_NAME[b"claim_remembered"], [wire], args)


def test_a_mixed_batch_has_a_run_for_each_stretch() -> None:
    """Claims with a ledger have a name of their own on the wire, which older sidecars know."""
    with_ledger, plain = next(ops for ops in BATCHES if kind_of(ops).name == "claim_remembered"), BATCHES[0]
    batch = [*plain, *with_ledger, plain[0]]
    runs = [(kind.name, list(ops)) for kind, ops in runs_of(Verb.CLAIM, batch)]
    assert runs == [("claim", plain), ("claim_remembered", with_ledger), ("claim", plain[:1])]


@given(
    st.sampled_from(list(BY_NAME.values())), st.lists(st.binary(max_size=40), max_size=12), st.integers(1, 4)
)
def test_whatever_comes_is_read_or_refused(kind: RunKind, args: list[bytes], count: int) -> None:
    try:
        ops = unpack(kind, [b"t:=a"] * count, args)
    except ConfigError:
        return
    assert len(ops) == count
    kind.arguments.pack(ops)


def test_a_batch_may_have_more_arguments_than_other_commands() -> None:
    frames = Frames(max_bytes=1_000_000, max_arguments=8)
    batch = hiredis.pack_command(("FD.RUN", *["x"] * (MAX_ARGUMENTS - 1)))
    assert MAX_ARGUMENTS >= 3 + 8 * MAX_OPERATIONS
    for pieces in (1, 700):
        got = [
            command
            for at in range(0, len(batch), -(-len(batch) // pieces))
            for command in frames.feed(batch[at : at + -(-len(batch) // pieces)])
        ]
        assert [len(command) for command in got] == [MAX_ARGUMENTS]
    for name, count in (("FD.CLAIM", 9), ("FD.RUN", MAX_ARGUMENTS + 1)):
        with pytest.raises(FrameError, match="arguments"):
            Frames(max_bytes=1_000_000, max_arguments=8).feed(
                hiredis.pack_command((name, *["x"] * (count - 1)))
            )


def test_a_command_that_was_executed_is_marked_before_it_goes_out_again() -> None:
    """The sidecar answered the first one, and was leaving when the second one came: both are sent again."""
    executed, refused = sent_again(), sent_again()
    executed.resent = refused.resent = False
    store = SidecarStore("sidecar:///run/none.sock", timeout=1.0)
    parcels = [RunCall([executed], b"1"), RunCall([refused], b"2")]
    with pytest.raises(ConnectionError):
        store._answers(parcels, [[1, 2, 0, b"b", 1, 0], hiredis.ReplyError("UNAVAILABLE 1 leaving")])
    assert (executed.resent, refused.resent) == (True, False)


def test_reasons_stand_before_the_arguments() -> None:
    removals = [copy(op) for op in BATCHES[[ops[0].verb for ops in BATCHES].index(Verb.FORGET_ID)]]
    forgettings: list[Op] = [ForgetOp(b"t:=a"), ForgetOp(b"t:=b", "ticket ü")]
    for ops in (forgettings, removals):
        cast(Any, ops[-1]).reason = "ticket ü"
        keys, args = sent(ops)
        found = unpack(kind_of(ops), keys, args)
        assert [facts(op) for op in found] == [facts(op) for op in ops]
        assert WHY in args
        assert WHY not in sent(ops, reasons=False)[1], "a sidecar of version 0.1.0 takes no more than this"
    assert sent([ForgetOp(b"t:=a")])[1] == []


@pytest.mark.parametrize(
    ("reply", "seconds", "text"),
    [
        ("UNAVAILABLE 2500 over the quota", 2.5, "over the quota"),
        ("ERR max number of clients reached: 9", 1.0, "max number of clients reached: 9"),
        ("max number of clients reached: 9", 1.0, "max number of clients reached: 9"),  # as redis-py has it
    ],
)
def test_an_outage_says_when_to_ask_again(reply: str, seconds: float, text: str) -> None:
    outage = outage_of(reply)
    assert outage is not None
    assert (str(outage), outage.retry_after) == (text, seconds)
    assert outage_of("ERR unknown command 'GET'") is None


@pytest.mark.parametrize("reasons", [[b"a"], [b"a", b"\xff"], [b"a", b"x" * 257]])
def test_reasons_that_cannot_be_used_are_refused(reasons: list[bytes]) -> None:
    with pytest.raises(ConfigError, match="malformed"):
        unpack(BY_NAME[Verb.FORGET.encode()], [b"t:=a", b"t:=b"], [WHY, *reasons])
