"""Codecs of users, made of two functions."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any, NamedTuple


class CodecOf(NamedTuple):
    """A codec that a user has written. `stores_errors`: it stores errors as well, as version 0.1.0 did."""

    dumps: Callable[[Any], Any]
    loads: Callable[[bytes], Any]
    stores_errors: bool = False


PICKLE = CodecOf(pickle.dumps, pickle.loads)


def reads_nothing(error: Exception, content: bytes = b"?") -> CodecOf:
    """Return a codec that cannot read what it is given, because another one has written it."""

    def loads(data: bytes) -> Any:
        raise error

    return CodecOf(lambda value: content, loads)
