"""Readers: each reads the results of one type, and says which values it would not bring back."""

from __future__ import annotations

import contextlib
import functools
import operator
import sys
import types
import typing
from collections.abc import Iterable, Iterator
from enum import Enum
from typing import Any, Final

from ..codec import ONE_WAY, WIDE, JSONCodec, decode, extra_is_missing
from ..errors import ConfigError, ResultError, error_text
from .values import SCALARS, difference, is_plain, plain_json, same, step

_UNIONS: Final = (typing.Union, types.UnionType)
_QUALIFIERS: Final = ("Required", "NotRequired", "ReadOnly", "Annotated")
"""Names of forms whose first argument is the type; by name, because `typing_extensions` has its own."""
_PLAIN: Final = (*SCALARS, None, Any, object, dict, list, typing.NoReturn, typing.Never)
_ENDLESS: Final = {"callable", "generator", "is-subclass"}
"""Kinds of values in pydantic's schemas that JSON never brings back."""
_CHANGING: Final = {"function-before", "function-wrap"}
"""Kinds of schemas whose function, the user's own, sees the JSON first."""
_NO_KEYS: Final = {"tuple", "named-tuple", "none", "frozenset", "dataclass"}
"""Kinds of keys of a dict that pydantic writes as a text, and never reads from it."""
ADVICE: Final = (
    "use JSON values, dataclasses, Pydantic models or standard types, or give a codec= of your own"
)


class ResultReader:
    """Reads results of a type of plain JSON; `declared` is that type. No declared type is `Any`."""

    def __init__(self, declared: Any) -> None:
        self.declared = declared

    def bytes_of(self, result: Any) -> bytes:
        """Return the JSON that this reader reads.

        Raises:
            ResultError: a duplicate would read something else; the message says what.
        """
        return plain_json(result)

    def read(self, payload: bytes, key: str) -> Any:
        """Return the result of a payload, which is not empty.

        Raises:
            ResultError: it is no such result.
        """
        return decode(JSON, payload, key)

    def takes(self, value: Any) -> bool:
        """True if a value that was read is of this type, as far as plain Python can tell."""
        return _fits(self.declared, value)


def not_of_type(payload: bytes, key: str, declared: Any, kind: str = "") -> ResultError:
    """Return the error for a result that was stored for another type. `kind`: of the error that says so."""
    return ResultError(
        f"the result of {len(payload)} bytes under {key!r} is no {shown(declared)}{kind}: another version of this "
        "type has stored it, or it was completed with another type"
    )


class TypedResultReader(ResultReader):
    """Reads results of any other type, by a `TypeAdapter` of pydantic."""

    def __init__(self, declared: Any, adapter: Any) -> None:
        super().__init__(declared)
        self._adapter = adapter

    def bytes_of(self, result: Any) -> bytes:
        """See `ResultReader.bytes_of`."""
        try:
            payload: bytes = self._adapter.dump_json(result, by_alias=True, round_trip=True, warnings=False)
            found = self._adapter.validate_json(payload)
        except Exception as error:  # noqa: BLE001 -- any error of the user's validators means the same
            raise ResultError(f"pydantic does not bring it back: {_first_error(error)}") from None
        if same(result, found):
            return payload + WIDE
        if type(found) is not type(result):
            raise ResultError(f"it would come back as {shown(type(found))}")
        raise ResultError(f"it would come back with another content{difference(result, found)}")

    def read(self, payload: bytes, key: str) -> Any:
        """See `ResultReader.read`."""
        if payload.endswith(ONE_WAY):
            raise ResultError(
                f"the result under {key!r} cannot come back as {shown(self.declared)}: it was completed with a value "
                "that its JSON does not bring back (an alias of its own for writing, an excluded or private field, a "
                "validator that changes it, the fold of a time), so complete with JSON that this type reads"
            )
        try:
            return self._adapter.validate_json(payload)
        except Exception as error:  # noqa: BLE001 -- the error may hold the content, so it is not passed on
            kind = type(error).__name__
        raise not_of_type(payload, key, self.declared, f" ({kind})")

    def takes(self, value: Any) -> bool:
        """See `ResultReader.takes`."""
        return value is not None or _fits(self.declared, None)

    def check(self) -> str:
        """Return what in the type JSON never brings back; "" if nothing is known."""
        schema = self._adapter.core_schema
        schema["type"]  # raises an error if a name is not known yet
        return next(self._never_back(schema), "")

    def _never_back(self, schema: Any, is_changed: bool = False) -> Iterator[str]:
        """Yield what never comes back. `is_changed`: a function of the user may make a value of it that does."""
        if isinstance(schema, list | tuple):
            for each in schema:
                yield from self._never_back(each, is_changed)
        if not isinstance(schema, dict):
            return
        kind = schema.get("type")
        is_changed = is_changed or kind in _CHANGING
        if kind in _ENDLESS:
            yield f"a {kind}"
        elif kind == "call" and not isinstance(schema["function"], type):  # a named tuple's is its class
            yield "a function"
        elif _imports(schema.get("function")):
            yield "an ImportString, because it would import what the stored text names"
        elif kind == "enum" and not is_changed:
            yield from self._members_lost(schema.get("members", ()))
        elif kind == "literal" and not is_changed:
            yield from self._literals_lost(schema.get("expected", ()))
        elif kind == "dict" and not is_changed:
            yield from _key_lost(schema.get("keys_schema", {}))
        for name, each in schema.items():
            if name not in ("default", "metadata", "serialization", "members"):
                yield from self._never_back(each, is_changed)

    def _members_lost(self, members: Iterable[Enum]) -> Iterator[str]:
        for member in members:
            try:
                TypedResultReader(type(member), _adapter(type(member))).bytes_of(member)
            except ResultError:
                yield f"the value of {member}"

    def _literals_lost(self, expected: Iterable[Any]) -> Iterator[str]:
        for each in expected:
            if type(each) in SCALARS:
                continue
            literal: Any = typing.Literal.__getitem__(each)
            try:
                TypedResultReader(literal, _adapter(literal)).bytes_of(each)
            except ResultError:
                yield f"the literal {each!r}"


def _key_lost(key: dict[str, Any]) -> Iterator[str]:
    if key.get("type") in _NO_KEYS and "serialization" not in key:
        yield f"a key that is a {key['type']}"


def _imports(function: Any) -> bool:
    return isinstance(function, dict) and getattr(function.get("function"), "__name__", "") == "import_string"


@functools.lru_cache(maxsize=1024)
def _cached_reader(declared: Any, order: Any) -> ResultReader:
    # `order` is a part of the cache's key.
    return _made_reader(declared)


def _in_order(declared: Any) -> Any:
    """Return a type with its parts, which is equal only to the same type with its parts in the same order.

    `str | bytes` and `bytes | str` are equal to Python, and pydantic reads some JSON differently for each.
    """
    parts = typing.get_args(declared)
    return (declared, *map(_in_order, parts)) if parts else declared


def reader_of(declared: Any) -> ResultReader:
    """Return the reader of a type.

    Raises:
        ConfigError: the type cannot come back from JSON, or needs an extra that is not installed.
        NameError: it has a name that is not known yet.
    """
    try:
        return _cached_reader(declared, _in_order(declared))
    except TypeError:  # it cannot be hashed
        return _made_reader(declared)


def _made_reader(declared: Any) -> ResultReader:
    if is_plain_type(declared):
        return ResultReader(declared)
    try:
        from pydantic import PydanticUndefinedAnnotation, PydanticUserError
    except ImportError:
        raise extra_is_missing(f"a result of type {shown(declared)}") from None
    try:
        reader = TypedResultReader(declared, _adapter(declared))
        lost = reader.check()
    except PydanticUndefinedAnnotation as error:
        raise NameError(str(error)) from None
    except Exception as error:  # noqa: BLE001 -- pydantic raises many types for a type that it does not know
        if isinstance(error, PydanticUserError) and error.code == "class-not-fully-defined":
            raise NameError(_first_line(error)) from None
        raise ConfigError(
            f"a result of type {shown(declared)} cannot come back to duplicates: {_first_line(error)}; {ADVICE}"
        ) from None
    if lost:
        raise ConfigError(
            f"a result of type {shown(declared)} cannot come back to duplicates: {lost}; {ADVICE}"
        )
    return reader


def _adapter(declared: Any) -> Any:
    from pydantic import ConfigDict, TypeAdapter

    settings = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64", ser_json_inf_nan="strings")
    # Only of an optional type, pydantic takes settings in each case; the dataclasses inside inherit them.
    with contextlib.suppress(RecursionError):  # a TypedDict within itself: pydantic says what to do
        declared = _portable(declared)
    optional: Any = typing.Optional[_apart(declared)]  # noqa: UP045
    return TypeAdapter(optional, config=settings)


def _apart(declared: Any) -> Any:
    """Return a type that `typing` does not take for an equal one that it was given before: see `_in_order`."""
    return typing.Annotated[declared, object()]


def is_plain_type(declared: Any, within: tuple[Any, ...] = ()) -> bool:
    """True for a type whose values JSON brings back without pydantic. `within`: the types that it is a part of."""
    if declared in (*_PLAIN, *within) or isinstance(declared, typing.TypeVar):
        return True  # a type that is a part of itself has no other parts than those that are looked at
    origin, parts = typing.get_origin(declared), typing.get_args(declared)
    if origin is typing.Literal:
        return is_plain(list(parts))
    if origin is dict:
        parts = parts[1:] if parts[:1] in ((), (str,)) else (bytes,)
    elif _qualifies(origin):
        parts = parts[:1]
    elif isinstance(declared, typing.NewType):
        parts = (declared.__supertype__,)
    elif typing.is_typeddict(declared):
        parts = tuple(typing.get_type_hints(declared).values())
    elif not parts and (value := getattr(declared, "__value__", None)) is not None:  # of `type Name = …`
        parts = (value,)
    elif origin is not list and origin not in _UNIONS:
        return False
    return all(is_plain_type(each, (*within, declared)) for each in parts)


def _qualifies(origin: Any) -> bool:
    return getattr(origin, "__name__", getattr(origin, "_name", None)) in _QUALIFIERS


def _portable(declared: Any) -> Any:
    """Return a type with `typing_extensions.TypedDict` for `typing.TypedDict`: pydantic asks for that on 3.11."""
    if sys.version_info >= (3, 12):
        return declared
    if isinstance(declared, type) and typing.is_typeddict(declared) and type(declared).__module__ == "typing":
        return _typed_dict(declared)
    origin, parts = typing.get_origin(declared), typing.get_args(declared)
    if origin is None or origin is typing.Literal or not parts:
        return declared
    new = tuple(each if each is ... or isinstance(each, list) else _portable(each) for each in parts)
    if all(map(operator.is_, new, parts)):
        return declared
    if origin in _UNIONS:
        return functools.reduce(operator.or_, new)
    if hasattr(declared, "__metadata__"):
        return typing.Annotated[(_portable(declared.__origin__), *declared.__metadata__)]
    return origin[new]


@functools.lru_cache(maxsize=1024)
def _typed_dict(declared: Any) -> Any:
    import typing_extensions

    fields = {}
    for name, (hint, is_required) in _fields_of(declared).items():
        mark = typing_extensions.Required if is_required else typing_extensions.NotRequired
        fields[name] = mark[_apart(_portable(hint))]
    return typing_extensions.TypedDict(declared.__name__, fields)  # type: ignore[operator]


def _fields_of(declared: Any) -> dict[str, tuple[Any, bool]]:
    """Return the type of each field of a TypedDict, and whether the field is required."""
    fields = {}
    for name, hint in typing.get_type_hints(declared, include_extras=True).items():
        # From the hint itself: with postponed annotations, typing calls each field required.
        qualifier = getattr(typing.get_origin(hint), "_name", None)
        is_marked = qualifier in ("Required", "NotRequired")
        is_required = qualifier == "Required" if is_marked else name in declared.__required_keys__
        fields[name] = (typing.get_args(hint)[0] if is_marked else hint, is_required)
    return fields


def shown(declared: Any) -> str:
    """Return the name of a type for an error."""
    return (
        declared.__qualname__
        if isinstance(declared, type) and not typing.get_args(declared)
        else str(declared)
    )


def _first_line(error: BaseException) -> str:
    """Return the first line of an error's text: pydantic shows values and links in the others."""
    return error_text(error).partition("\n")[0]


def _first_error(error: Exception) -> str:
    """Return an error's first line; if values are not valid, also the path of the first one, and why."""
    from pydantic import ValidationError

    text = _first_line(error)
    if not isinstance(error, ValidationError):
        return text
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    path = "".join(map(step, first["loc"]))
    return f"{text}: {path}: {first['msg']}" if path else f"{text}: {first['msg']}"


def _fits(declared: Any, value: Any) -> bool:
    """True if a value is of a declared type, at all depths of plain JSON, or if that is unknown."""
    kind, parts = typing.get_origin(declared) or declared, typing.get_args(declared)
    if kind in _UNIONS:
        return any(_fits(each, value) for each in parts)
    if _qualifies(kind):
        return _fits(parts[0], value)
    if kind is typing.Literal:
        return any(each == value and type(each) is type(value) for each in parts)
    if isinstance(kind, typing.NewType):
        return _fits(kind.__supertype__, value)
    if not isinstance(kind, type) and hasattr(kind, "__value__"):  # of `type Name = …`
        return _fits(kind.__value__, value)
    if kind is None or value is None:
        return value is None and kind in (None, types.NoneType, Any, object)
    if typing.is_typeddict(kind):
        return type(value) is dict and all(
            _fits(hint, value[name]) if name in value else not is_required
            for name, (hint, is_required) in _fields_of(kind).items()
        )
    if not isinstance(kind, type) or kind in (object, Any):
        return True
    if kind is float:
        return type(value) in (int, float)
    if type(value) is list and kind is list:
        return all(_fits(each, item) for each in parts for item in value)
    if type(value) is dict and kind is dict:
        return all(_fits(each, item) for each in parts[1:] for item in value.values())
    with contextlib.suppress(TypeError):  # of a Protocol that is for type checkers alone
        return isinstance(value, kind)
    return True


JSON: Final = JSONCodec()
