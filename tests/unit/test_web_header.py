"""The Idempotency-Key header: an Item of RFC 8941 whose value is a String, or what most clients send."""

from __future__ import annotations

import contextlib
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastdedup.web.header import MAX_KEY, BadKey, parse

PRINTABLE = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), min_size=1, max_size=MAX_KEY)
UUID = "8e03978e-40d5-43e8-bc93-6894a57f9324"


@pytest.mark.parametrize(
    ("field", "key"),
    [
        (f'"{UUID}"', UUID),
        (UUID, UUID),
        ('"a b"', "a b"),
        (r'"a\"b\\c"', 'a"b\\c'),
        ('  "k"  ', "k"),
        ('\t"k";a \t', "k"),
        ("\t k \t", "k"),
        ('"k";a', "k"),
        ('"k";a=1', "k"),
        ('"k"; a=-1.5;b="x\\"y";c=tok/en:*;d=:aGk=:;e=?0', "k"),
        ('"k";*a.b_c-d=x', "k"),
        ('" "', " "),
        ('"a,b"', "a,b"),
        ('"a;b=c"', "a;b=c"),
        ("a/b=c@d?e!f'g(h)", "a/b=c@d?e!f'g(h)"),
        ("?1", "?1"),
        ("42", "42"),
        ('"' + "k" * MAX_KEY + '"', "k" * MAX_KEY),
        ('"' + '\\"' * MAX_KEY + '"', '"' * MAX_KEY),
        ("k" * MAX_KEY, "k" * MAX_KEY),
    ],
)
def test_a_good_key_is_read(field: str, key: str) -> None:
    assert parse([field.encode()]) == key


@pytest.mark.parametrize(
    "field",
    [
        b"",
        b" ",
        b'""',
        b'"',
        b'"k',
        b'k"',
        b'"k"x',
        b'"k" x',
        b'"k";',
        b'"k";A=1',
        b'"k";a=',
        b'"k";a="',
        b'"k" ;a=1',
        b'"k"\t;a',
        rb'"\k"',
        b'"k\\"',
        b"a,b",
        b'"a", "b"',
        b'("a" "b")',
        b"a;b=1",
        b"two words",
        b"a\\b",
        "é".encode(),
        "é".encode("latin-1"),
        '"é"'.encode(),
        b"a\x00b",
        b'"a\x1fb"',
        b'"a\x7fb"',
        b'"a\nb"',
        b'"k"\n',
        b"k\n",
        b"k" * (MAX_KEY + 1),
        b'"' + b"k" * (MAX_KEY + 1) + b'"',
        b'"k";a=' + b"1" * 3000,
    ],
)
def test_a_bad_key_is_refused(field: bytes) -> None:
    with pytest.raises(BadKey) as refused:
        parse([field])
    assert str(refused.value)


def test_no_header_is_no_key() -> None:
    assert parse([]) is None


@pytest.mark.parametrize("second", [b'"k"', b'"l"', b""])
def test_two_headers_are_refused_whatever_they_hold(second: bytes) -> None:
    with pytest.raises(BadKey, match="2 Idempotency-Key headers"):
        parse([b'"k"', second])


@given(key=PRINTABLE)
def test_every_printable_text_can_be_sent_as_a_string(key: str) -> None:
    escaped = key.replace("\\", "\\\\").replace('"', '\\"')
    assert parse([f'"{escaped}"'.encode()]) == key


@given(field=st.binary(max_size=300))
def test_whatever_is_sent_is_a_key_or_refused(field: bytes) -> None:
    try:
        key = parse([field])
    except BadKey:
        return
    assert key is not None
    assert 1 <= len(key) <= MAX_KEY
    assert all(" " <= char <= "~" for char in key)


@pytest.mark.parametrize(
    "field",
    [
        b'"' + b"\\\\" * 1000,
        b'"' + b'\\"' * 1000 + b"\\",
        b'"k"' + b";a" * 1000 + b"!",
        b'"k"' + b"; " * 1000 + b"!",
        b'"k";' + b" " * 2000 + b"!",
        b'"k";a=' + b"1" * 2000 + b"!",
        b'"k"' + b";a=1" * 500 + b";",
        b'"k"' + b';a="' * 500,
        b'"k";a=:' + b"A" * 2000,
        b'"k"' + b" " * 2000 + b"!",
        b" " * 2000 + b"!",
        b" \t" * 1000 + b'"',
        b"k" * 2000 + b",",
        b'"k";a=' + b"t" * 2000 + b'"',
        b'"k";' + b"*" * 2000 + b"!",
    ],
)
def test_no_header_takes_long_to_read(field: bytes) -> None:
    """Doubling the input at most about doubles the time: no backtracking. A hundred in half a second."""
    begun = time.thread_time()
    for _ in range(100):
        with contextlib.suppress(BadKey):
            parse([field])
    assert time.thread_time() - begun < 0.5
