"""What is told as `once` decorates a function: a result that comes back as another type, and a key that two share."""

from __future__ import annotations

import dataclasses
import types
import typing
import warnings
from collections.abc import Callable, Iterator
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

from .codec import Codec, JSONCodec

_OTHERS = (tuple, set, frozenset, bytes, bytearray, date, time, timedelta, Decimal, Enum, UUID)
"""Types that JSON does not have: they come back as another type, or cannot be stored."""


class DecoratedFunctions:
    """The functions that one gate or inbox has decorated."""

    def __init__(self) -> None:
        # Mutable: the name of the function that was decorated first, by its scope and what its key is made of.
        self._names: dict[tuple[Any, ...], str] = {}

    def tell(self, function: Callable[..., Any], key: Any, scope: str, codec: Codec) -> None:
        """Warn if duplicates get another type than the first call, or another function's results.

        Args:
            function: it is about to be decorated.
            key: the function of its key.
            scope: where keys are apart: the namespace, or the inbox's name.
            codec: encodes its results.
        """
        if type(codec) is JSONCodec and (others := sorted(set(_other_types(_returned(function))))):
            _warn(
                function,
                f"{_name(function)}() is declared to return {', '.join(others)}, and results are kept as JSON: "
                "a duplicate gets another type, or the result cannot be stored. Return JSON values, or give codec=",
            )
        made_of = _made_of(key)
        if made_of is None:
            return
        first = self._names.setdefault((scope, made_of), _name(function))
        if first != _name(function):
            _warn(
                function,
                f"{first}() and {_name(function)}() have equal keys in {scope!r}, so one gets the results of the "
                "other: begin each key with a word of its own",
            )


def _warn(function: Any, text: str) -> None:
    """Warn at the function's own line."""
    code = getattr(function, "__code__", None)
    file, line = ("<unknown>", 1) if code is None else (code.co_filename, code.co_firstlineno)
    warnings.warn_explicit(text, UserWarning, file, line, module=function.__module__)


def _name(function: Any) -> str:
    return f"{function.__module__}.{getattr(function, '__qualname__', function)}"


def _made_of(key: Any) -> Any:
    """Return what tells key functions apart: their code; None if it depends on more than that."""
    if isinstance(key, types.FunctionType):
        if key.__closure__ or key.__defaults__ or key.__kwdefaults__:
            return None
        code = key.__code__
        return code.co_code, repr(code.co_consts), code.co_names
    return key if isinstance(key, type | types.BuiltinFunctionType) else None


def _returned(function: Any) -> Any:
    """Return the type that a function is declared to return; None if it declares no type that can be read."""
    try:
        return typing.get_type_hints(function).get("return")
    except Exception:  # noqa: BLE001 -- a name that only a checker knows; a warning is not worth an error
        return None


def _other_types(declared: Any) -> Iterator[str]:
    """Yield the names of the types within a declared one that JSON does not have."""
    kind = typing.get_origin(declared) or declared
    if isinstance(kind, type) and (
        issubclass(kind, _OTHERS) or dataclasses.is_dataclass(kind) or hasattr(kind, "model_dump")
    ):
        yield kind.__name__
    for part in typing.get_args(declared):
        yield from _other_types(part)
