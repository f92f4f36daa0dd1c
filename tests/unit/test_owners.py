"""Owners: text outside, a field inside, the same one whichever way it travelled."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastdedup import InvalidKeyError
from fastdedup.protocol.owners import draw_owner, owner_field, owner_text


def test_a_drawn_owner_is_ten_random_bytes() -> None:
    """Its length byte is 0, its text 20 hexadecimal digits."""
    field = draw_owner()
    assert (len(field), field[0], len(owner_text(field))) == (11, 0, 20)


def test_no_owner_is_drawn_twice() -> None:
    """More than a pool holds, so the refill is among them."""
    assert len({draw_owner() for _ in range(2000)}) == 2000


def test_a_drawn_owner_that_went_out_as_text_comes_back_as_the_same_field() -> None:
    """An HTTP client may settle what it claimed."""
    field = draw_owner()
    assert owner_field(owner_text(field)) == field


@given(owner=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=15))
def test_any_text_is_an_owner_and_comes_back(owner: str) -> None:
    """Up to 63 bytes of UTF-8."""
    assert owner_text(owner_field(owner)) == owner


@given(one=st.text("0f\0é", min_size=1, max_size=21), two=st.text("0f\0é", min_size=1, max_size=21))
def test_different_owners_have_different_fields(one: str, two: str) -> None:
    """Also where one of them looks like a drawn one."""
    assert (owner_field(one) == owner_field(two)) == (one == two)


@pytest.mark.parametrize("owner", ["x" * 63, "é" * 31])
def test_63_bytes_are_the_limit(owner: str) -> None:
    """The field's length byte shares its bits with the record's marks."""
    assert owner_field(owner)[0] == len(owner.encode())


@pytest.mark.parametrize(
    ("owner", "rule"),
    [
        ("", "1 to 63 bytes of UTF-8, got 0"),
        ("x" * 64, "got 64"),
        ("é" * 32, "got 64"),
        ("\ud800", "UTF-8 can encode"),
        (b"worker", "an owner must be text, got bytes"),
        (None, "got NoneType"),
        (7, "got int"),
    ],
)
def test_an_unusable_owner_is_refused_with_the_rule(owner: str, rule: str) -> None:
    """The message says which rule it breaks."""
    with pytest.raises(InvalidKeyError, match=rule):
        owner_field(owner)


def test_a_forked_child_draws_owners_of_its_own() -> None:
    """It inherits the pool; two processes with one owner would hold one key."""
    draw_owner()  # so that the pool is filled when it is inherited
    receive, send = os.pipe()
    child = os.fork()
    if not child:
        os.write(send, b"".join(draw_owner() for _ in range(300)))
        os._exit(0)
    os.close(send)
    with os.fdopen(receive, "rb") as pipe:
        drawn = pipe.read()
    os.waitpid(child, 0)
    theirs = {drawn[at : at + 11] for at in range(0, len(drawn), 11)}
    assert len(theirs) == 300
    assert theirs.isdisjoint(draw_owner() for _ in range(1000))
