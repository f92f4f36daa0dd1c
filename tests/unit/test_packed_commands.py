"""Commands as bytes: what hiredis would make of them."""

import hiredis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastdedup.stores.redis.scripts import pack, pack_parts

PARTS = st.one_of(
    st.binary(max_size=64),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=64),
    st.integers(-(2**53), 2**53),
)


@given(st.lists(PARTS, min_size=1, max_size=40))
def test_it_packs_as_hiredis_does(command: list[str | bytes | int]) -> None:
    assert pack_parts(command) == pack(*command) == hiredis.pack_command(tuple(command))


@pytest.mark.parametrize("size", [0, 1, 9, 10, 1022, 1023, 1024, 1025, 70_000])
def test_arguments_of_any_size(size: int) -> None:
    command = ("SET", b"x" * size, "y" * size)
    assert pack(*command) == hiredis.pack_command(command)


@pytest.mark.parametrize("part", [None, 1.5, [], bytearray(b"x"), object()])
def test_what_is_no_argument_is_refused(part: object) -> None:
    with pytest.raises(TypeError, match="an argument must be text, bytes or a whole number"):
        pack_parts(["SET", part])
