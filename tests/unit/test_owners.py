"""Owners: text outside, a field inside, the same one whichever way it travelled."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastdedup import InvalidKeyError
from fastdedup.core.holder import HolderName, check_holder, holder_name
from fastdedup.errors import ConfigError
from fastdedup.kernel.owners import (
    Noted,
    draw_owner,
    draw_traced,
    is_drawn,
    notes_of,
    owner_field,
    owner_text,
    trace_of,
    veiled,
)

from ..programs import forked


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
    drawn = forked(lambda: b"".join(draw_owner() for _ in range(300)))
    theirs = {drawn[at : at + 11] for at in range(0, len(drawn), 11)}
    assert len(theirs) == 300
    assert theirs.isdisjoint(draw_owner() for _ in range(1000))


# Owners with notes


def test_an_owner_with_notes_is_one_like_any_other() -> None:
    """It travels as text and comes back as the same field, its notes can be read, and it is the library's own."""
    noted = Noted(lambda: ("billing@web-1:4711", "trace=4bf92f35"))
    field = noted.draw()
    assert owner_field(owner_text(field)) == field
    assert is_drawn(field)
    assert is_drawn(draw_owner())
    assert notes_of(owner_text(field)) == {"holder": "billing@web-1:4711", "trace": "4bf92f35"}
    assert len({noted.draw() for _ in range(2000)}) == 2000


def test_long_notes_are_cut_and_no_notes_cost_nothing() -> None:
    long = Noted(lambda: ("~é" * 40,)).draw()
    assert len(long) <= 64
    assert owner_field(owner_text(long)) == long
    assert notes_of(owner_text(long))["holder"].startswith("-é-é")
    assert len(Noted(lambda: ("",)).draw()) == len(draw_owner())


@given(owner=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=15))
def test_a_name_of_ones_own_has_no_notes(owner: str) -> None:
    assert notes_of(owner) == {}
    assert not is_drawn(owner_field(owner))


def test_a_holders_name_fits_whatever_the_host_is_called() -> None:
    assert holder_name("", "web-1.shop.example", 7) == "web-1:7"
    assert holder_name("billing", "web-1", 4711) == "billing@web-1:4711"
    pod = holder_name("x" * 20, "billing-" + "7" * 60 + "-x2k4q", 4194304)
    assert (len(pod), pod[-14:]) == (48, "-x2k4q:4194304")
    assert holder_name("", "\u00e9\x1b[2J", 7) == "---2J:7"


def test_a_forked_child_is_another_holder() -> None:
    name = HolderName("w")
    assert name()[0].endswith(f":{os.getpid()}")
    told, child = forked(lambda: f"{name()[0]} {os.getpid()}".encode()).decode().split()
    assert told.endswith(f":{child}")
    assert child != str(os.getpid())


@pytest.mark.parametrize("holder", ["", "a b", "x" * 21, "a~b", 7, None])
def test_a_label_that_no_record_can_hold_is_refused(holder: object) -> None:
    with pytest.raises(ConfigError, match="holder must be"):
        check_holder(holder)


@given(trace=st.binary(min_size=24, max_size=24), holder=st.text(max_size=48))
def test_a_trace_stands_beside_the_end_of_a_holders_name(trace: bytes, holder: str) -> None:
    drawn = Noted(lambda: (holder,)).draw()
    field = draw_traced(drawn, trace)
    assert len(field) <= 64
    assert is_drawn(field)
    assert owner_field(owner_text(field)) == field
    assert trace_of(field) == (trace if any(trace[:16]) and any(trace[16:]) else b"")
    assert (
        notes_of(owner_text(drawn)).get("holder", "").endswith(notes_of(owner_text(field)).get("holder", ""))
    )
    assert draw_traced(drawn, trace) != field, "the random end is another one"


def test_a_veiled_owner_tells_its_trace_alone() -> None:
    field = draw_traced(Noted(lambda: ("billing@web-1:4711",)).draw(), bytes(range(24)))
    hidden = veiled(field)
    assert trace_of(hidden) == bytes(range(24))
    assert owner_field(owner_text(hidden)) == hidden
    assert "web-1" not in owner_text(hidden)
    assert field[-14:] not in hidden
    assert veiled(draw_owner()) == veiled(owner_field("worker-1")) == b""


def test_an_owner_without_a_trace_costs_eleven_bytes() -> None:
    """A trace costs 40 bytes more, and a holder's name beside it at most 13."""
    plain, held = draw_owner(), Noted(lambda: ("h" * 48,)).draw()
    assert [len(plain), *(len(draw_traced(each, b"x" * 24)) for each in (plain, held))] == [11, 51, 64]
