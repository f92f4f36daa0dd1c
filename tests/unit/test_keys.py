"""Keys: what users pass, what the store sees, and the two helpers that make good ones."""

import json
import math
import os
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastdedup import ConfigError, Dedup, InvalidKeyError, business_key, fingerprint
from fastdedup import sync as synchronous
from fastdedup.kernel.keyspace import MAX_KEY_BYTES, READABLE_BYTES, Keyspace, Kind
from fastdedup.keys import check_namespace

from ..programs import ended

TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=200)
NAME = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6)
CLAIMS = Keyspace("shop", Kind.CLAIM)
HUGE = pytest.param(10**400, id="huge")

# The keyspace


def test_a_short_key_is_stored_as_it_is() -> None:
    """UUIDs and most business keys can be read in redis-cli."""
    assert CLAIMS.wire("order:7") == b"shop:=order:7"
    longest = "k" * READABLE_BYTES
    assert CLAIMS.wire(longest) == b"shop:=" + longest.encode()
    assert len("0f8fad5b-d9cb-469f-a165-70867728950e") <= READABLE_BYTES


@pytest.mark.parametrize("size", [READABLE_BYTES + 1, MAX_KEY_BYTES])
def test_a_longer_key_is_stored_as_a_16_byte_digest(size: int) -> None:
    """Then it costs the same whatever its length."""
    wire = CLAIMS.wire("k" * size)
    assert wire.startswith(b"shop:#")
    assert len(wire) == len(b"shop:#") + 16


def test_length_is_counted_in_bytes_not_in_characters() -> None:
    """Characters beyond ASCII take two bytes or more each."""
    fits = "é" * (READABLE_BYTES // 2)
    assert CLAIMS.wire(fits) == b"shop:=" + fits.encode()
    assert CLAIMS.wire(fits + "é").startswith(b"shop:#")


@pytest.mark.parametrize(("readable", "mark"), [(0, b"#"), (6, b"#"), (7, b"="), (MAX_KEY_BYTES, b"=")])
def test_readable_keys_sets_the_size(readable: int, mark: bytes) -> None:
    """0 digests all, 1024 none."""
    assert Keyspace("shop", Kind.CLAIM, readable=readable).wire("order:7")[5:6] == mark


def test_a_secret_is_always_digested() -> None:
    """The store never sees a token, however short."""
    wire = Keyspace("shop", Kind.TOKEN).wire_digest(b"secret")
    assert b"secret" not in wire
    assert wire.startswith(b"shop:!")


@given(
    key=TEXT,
    other=TEXT,
    namespaces=st.tuples(*[st.text("az:/.-", min_size=1, max_size=6)] * 2),
    kinds=st.tuples(*[st.sampled_from(Kind)] * 2),
    readable=st.sampled_from([0, 3, READABLE_BYTES, MAX_KEY_BYTES]),
)
def test_different_keys_kinds_and_namespaces_never_meet(
    key: str, other: str, namespaces: tuple[str, str], kinds: tuple[Kind, Kind], readable: int
) -> None:
    """Two store keys are equal only where namespace, kind and key are."""
    one = Keyspace(namespaces[0], kinds[0], readable=readable).wire(key)
    two = Keyspace(namespaces[1], kinds[1], readable=readable).wire(other)
    assert (one == two) == ((namespaces[0], kinds[0], key) == (namespaces[1], kinds[1], other))


def test_a_digest_never_meets_a_readable_key() -> None:
    """Each has a mark of its own, and no namespace holds one."""
    marks = [mark for kind in Kind for mark in kind.value]
    assert len(set(marks)) == len(marks)
    for mark in marks:
        with pytest.raises(ConfigError):
            check_namespace(mark.decode())


@given(key=st.text(st.characters(categories=["Cs"]), min_size=1, max_size=20))
def test_lone_surrogates_are_refused(key: str) -> None:
    """They have no UTF-8: to replace them would make two keys one."""
    with pytest.raises(InvalidKeyError, match="UTF-8"):
        CLAIMS.wire(key)


@pytest.mark.parametrize(
    ("key", "advice"),
    [
        ("", "empty"),
        ("k" * 1025, "at most 1024 bytes of UTF-8, got 1025"),
        ("é" * 513, "1026"),
        (b"order:7", "decode it"),
        (bytearray(b"order:7"), "decode it"),
        (memoryview(b"order:7"), "decode it"),
        (None, "got NoneType$"),
        (7, "got int; make it by business_key"),
        (["order:7"], "got list; make it by business_key"),
    ],
)
def test_an_unusable_key_is_refused_with_the_rule_it_breaks(key: Any, advice: str) -> None:
    """The message says which rule, and what to do."""
    with pytest.raises(InvalidKeyError, match=advice):
        CLAIMS.wire(key)


@pytest.mark.parametrize("readable", [0, MAX_KEY_BYTES])
def test_the_limit_of_a_key_is_the_same_whether_readable_or_not(readable: int) -> None:
    """1024 bytes."""
    with pytest.raises(InvalidKeyError, match="1025"):
        Keyspace("shop", Kind.CLAIM, readable=readable).wire("k" * 1025)
    with pytest.raises(InvalidKeyError, match="empty"):
        Keyspace("shop", Kind.CLAIM, readable=readable).wire("")


@pytest.mark.parametrize("readable", [-1, 1025, 40.0, True, "all", None])
def test_a_readable_size_beyond_that_of_any_key_is_refused(readable: Any) -> None:
    """It would lift the limit on keys."""
    with pytest.raises(ConfigError, match="readable_keys"):
        Dedup("memory://", readable_keys=readable)


@pytest.mark.parametrize("namespace", ["a", "shop:sms", "A-Z_0.9/x", "n" * 64])
def test_a_namespace_is_plain_text(namespace: str) -> None:
    """Letters, digits and _ . : / - pass as they are."""
    assert check_namespace(namespace) == namespace


@pytest.mark.parametrize("namespace", ["", "n" * 65, "shop=", "sh op", "shöp", "shop\n", None, b"shop", 7])
def test_a_namespace_with_anything_else_is_refused(namespace: Any) -> None:
    """No namespace holds the marks that end it."""
    with pytest.raises(ConfigError, match="a namespace must have 1 to 64 characters of"):
        check_namespace(namespace)


@pytest.mark.parametrize("make", [Dedup, synchronous.Dedup])
@pytest.mark.parametrize("name", [True, 1.5, 7, b"sms", "", "s s", object])
def test_the_name_of_a_scope_is_plain_text(make: Any, name: Any) -> None:
    """A value that is no text would silently make a namespace of its text: `shop:True`."""
    with pytest.raises(ConfigError, match="the name of a scope must have 1 to 64 characters of"):
        make("memory://", namespace="shop").scoped(name)


# business_key


@pytest.mark.parametrize("at", [600.0, 600, 600.001, 750, 899.999, math.nextafter(900, 0)])
def test_all_moments_of_a_slot_give_one_key(at: float) -> None:
    """A slot holds its first moment and every later one before the next slot's."""
    assert business_key("user:7", window=300, at=at) == business_key("user:7", window=300, at=600)


@pytest.mark.parametrize("at", [math.nextafter(600, 0), 599.999, 900, 0, -1])
def test_the_moments_on_both_sides_of_a_slot_do_not(at: float) -> None:
    """Slots start at exact multiples of the window: the moment before belongs to another one."""
    assert business_key("user:7", window=300, at=at) != business_key("user:7", window=300, at=600)


@given(slot=st.integers(1, 10**7), window=st.sampled_from([1, 7, 60, 300, 3600]))
def test_slot_edges_are_exact(slot: int, window: int) -> None:
    """No rounding moves an edge, today or in a hundred years."""
    edge = float(slot * window)
    before, on = (business_key("k", window=window, at=at) for at in (math.nextafter(edge, 0), edge))
    assert on == business_key("k", window=window, at=edge + window / 2)
    assert before != on


def test_without_a_time_now_places_the_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    """`at` defaults to the present moment."""
    monkeypatch.setattr("time.time", lambda: 1234.5)
    assert business_key("k", window=60) == business_key("k", window=60, at=1234.5)


def test_different_windows_give_different_keys() -> None:
    """Slot 2 of 300 s is not slot 2 of 60 s; 300 and 300.0 are the same window."""
    assert business_key("k", window=300, at=600) != business_key("k", window=60, at=120)
    assert business_key("k", window=300, at=600) == business_key("k", window=300.0, at=600)


def test_without_a_window_the_key_is_the_parts() -> None:
    """The usual key stays readable."""
    assert business_key("user:7", "sku:9", 3) == "user:7|sku:9|3"


PARTS = st.lists(st.text(st.sampled_from("ab|\\x0123."), min_size=1, max_size=6), min_size=1, max_size=4)
SLOTS = st.none() | st.tuples(st.sampled_from([1, 2.5, 300]), st.integers(0, 3000))


@given(one=PARTS, two=PARTS, slots=st.tuples(SLOTS, SLOTS))
def test_different_identities_never_share_a_key(one: list[str], two: list[str], slots: Any) -> None:
    """Separators and slots inside a part are escaped: no other parts, no other slot, give the same key."""

    def key(parts: list[str], slot: Any) -> str:
        return business_key(*parts) if slot is None else business_key(*parts, window=slot[0], at=slot[1])

    def identity(parts: list[str], slot: Any) -> Any:
        return parts, slot and (slot[0], slot[1] // slot[0])

    assert (key(one, slots[0]) == key(two, slots[1])) == (identity(one, slots[0]) == identity(two, slots[1]))


UNWRITABLE = (10**5000,)
EARLY = (datetime.min.replace(tzinfo=timezone(timedelta(hours=5))),)


@pytest.mark.parametrize(
    "parts", [(), ("",), ("a", ""), (None,), (1.5,), (True,), (b"a",), (["a"],), UNWRITABLE, EARLY]
)
def test_parts_that_identify_nothing_are_refused(parts: tuple[Any, ...]) -> None:
    """No part, an empty one, one whose text is not stable, or one that has no text."""
    with pytest.raises(InvalidKeyError, match=r"business key|business_key"):
        business_key(*parts)


@pytest.mark.parametrize("window", [0, -1, math.nan, math.inf, True, "300", HUGE, 5e-324])
def test_a_window_that_is_no_positive_time_is_refused(window: Any) -> None:
    """The message shows what was given."""
    with pytest.raises(InvalidKeyError, match="window"):
        business_key("k", window=window, at=600)


@pytest.mark.parametrize("at", [math.nan, math.inf, False, "now", HUGE])
def test_a_moment_that_is_no_time_is_refused(at: Any) -> None:
    """NaN would place every event into one slot."""
    with pytest.raises(InvalidKeyError, match="at"):
        business_key("k", window=300, at=at)


def test_a_moment_beyond_all_slots_is_refused() -> None:
    with pytest.raises(InvalidKeyError, match="at must be seconds since 1970"):
        business_key("k", window=0.001, at=1e308)


# fingerprint

BODY = {"sku": 9, "lines": [{"b": 1, "a": None}, 2.5, "é"], "user": "7", "paid": True}


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | NAME
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAME, inner, max_size=4),
    max_leaves=12,
)


@given(body=st.dictionaries(NAME, JSON, max_size=5))
def test_a_fingerprint_does_not_depend_on_key_order(body: dict[str, Any]) -> None:
    """The same request, serialised by another client, is the same."""
    assert fingerprint(dict(reversed(body.items()))) == fingerprint(body)


def test_what_is_no_subject_is_named_so() -> None:
    """A token's subject is a fingerprint, too, and its caller has not called fingerprint()."""
    for wrong in ({1}, "\ud800"):
        with pytest.raises(ConfigError, match="a fingerprint or a subject must be "):
            fingerprint(wrong)


def test_a_fingerprint_is_the_same_in_every_process() -> None:
    """Two workers, whatever their hash seed, agree about a request."""
    program = "import json, sys, fastdedup; print(fastdedup.fingerprint(json.loads(sys.argv[1])).hex())"
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    done = ended("-c", program, json.dumps(BODY), environment=environment, check=True)
    assert done.stdout.strip() == fingerprint(BODY).hex()


def test_a_fingerprint_is_the_same_in_every_version() -> None:
    """Records of an earlier release go on matching: this value may change with the record format only."""
    assert fingerprint({"a": 1, "b": "x"}).hex() == "9e84dc4386ebf0996b0e405785c6f849"


def test_bytes_text_and_json_are_never_confused() -> None:
    """A body, its text, and a JSON value that prints alike are three requests."""
    values = [b"7", "7", 7, ["7"], '"7"', b'"7"', "null", None]
    assert len({fingerprint(value) for value in values}) == len(values)


@pytest.mark.parametrize("same", [bytearray, memoryview, bytes])
def test_every_kind_of_bytes_is_bytes(same: Callable[[bytes], Any]) -> None:
    """A framework's buffer type changes nothing."""
    assert fingerprint(same(b"body")) == fingerprint(b"body")


@pytest.mark.parametrize("value", [{1, 2}, object(), {1: "a"}, 1j, {"a": b"bytes"}, ["\ud800"]])
def test_what_json_cannot_hold_is_refused(value: Any) -> None:
    """The message says what to pass instead."""
    with pytest.raises(ConfigError, match="pass the raw body or convert it"):
        fingerprint(value)


def test_text_that_utf8_cannot_hold_is_refused() -> None:
    """A lone surrogate has no bytes to digest."""
    with pytest.raises(ConfigError, match="UTF-8"):
        fingerprint("\ud800")


def test_null_beside_ordinary_floats_is_fine() -> None:
    """Only a null that stands for a NaN is refused."""
    assert fingerprint({"a": None, "b": (1.5, [2.5]), "c": "null"}) == fingerprint(
        {"c": "null", "b": [1.5, [2.5]], "a": None}
    )


def test_whole_numbers_beyond_64_bits_are_told_apart() -> None:
    wide = 2**64
    assert fingerprint({"a": wide, "b": [-wide]}) == fingerprint({"b": [-wide], "a": wide})
    assert len({fingerprint(value) for value in (wide, wide + 1, -wide, [wide], str(wide), float(wide))}) == 6
    for refused in ({1: wide}, [wide, math.nan], [wide, object()], 10**5000):
        with pytest.raises(ConfigError):
            fingerprint(refused)
