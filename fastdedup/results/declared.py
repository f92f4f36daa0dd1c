"""The results of one decorated function, and of a caller who names the type."""

from __future__ import annotations

import functools
import inspect
import sys
import types
import typing
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from ..checks import with_article
from ..codec import UNSTORABLE, WIDE, WIDE_PLAIN, Codec, Encoded, JSONCodec, decode
from ..errors import ConfigError, ResultError, ResultWarning, describe_error, error_text, first_run_failed
from .readers import ADVICE, JSON, ResultReader, TypedResultReader, not_of_type, reader_of, shown
from .values import plain_json

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    R = TypeVar("R", default=Any)
else:
    R = typing.TypeVar("R")  # it has a default from Python 3.13 on
"""The type of a claim's result. Without a declared type, JSON brings back `Any`."""
_UNSTORED: Final = {"type": ResultError.__name__, "message": UNSTORABLE}
_ROW: Final = b"\xff"
"""Begins the error in a row."""


class LostResult:
    """A result that duplicates cannot get: its work is recorded as done, and they get an error that says why.

    Attributes:
        result: the first caller gets it.
        why: what duplicates would get otherwise, and what to do.
    """

    __slots__ = ("_function", "result", "why")

    def __init__(self, function: Callable[..., Any], result: Any, why: str) -> None:
        self._function = function
        self.why = why.encode(errors="backslashreplace").decode()  # it may quote an error of the user's code
        self.result = result

    def warn(self) -> None:
        """Warn at the function's own line. The work is recorded by then.

        Raises:
            ResultWarning: warnings are errors.
        """
        text = f"the work is done, but duplicates get an error: {self.why}"
        warn_at(self._function, ResultWarning(text, self.result))

    def row(self, limit: int) -> bytes:
        """Return what an inbox's row holds in place of the result: no JSON, so no reader takes it for a result."""
        error = _ROW + plain_json({**_UNSTORED, "why": self.why})
        return error if len(error) <= limit else _ROW + plain_json(_UNSTORED)

    async def record(self, settlement: Any) -> None:
        """Record by a claim's `Settlement` that the work is done. Errors: see `Settlement.record`."""
        await settlement.record(
            {**_UNSTORED, "why": self.why},
            succeeded=False,
            instead=lambda _: _UNSTORED,  # for a small `max_result`
        )


class Results:
    """The results of one decorated function: how they are stored, and how duplicates read them.

    Args:
        function: the decorated function.
        codec: the codec of its results. A codec of the user decides by itself: nothing is checked here.

    Raises:
        ConfigError: the declared type cannot come back, or needs an extra that is not installed.
    """

    def __init__(self, function: Callable[..., Any], codec: Codec) -> None:
        self._function = function
        # Mutable: set once all names of the declared type are known.
        self.are_known = False
        """True if all names of the declared type are known; else call `prepare` before the work."""
        self.is_plain = True
        """True if JSON brings each of its values back."""
        self.typed: Results | None = None
        """What `Claim.replay` takes: None if any JSON is a result."""
        self._advice = f"Declare the type that it returns, or {ADVICE}"
        self._bytes_of: Callable[[Any], bytes] | None = None
        self._reader = ResultReader(Any)
        if type(codec) is not JSONCodec:
            self.are_known = True
        elif (reader := self._found(_names_around(function))) is not None:
            self._read_by(reader)

    def prepare(self) -> None:
        """Read the declared type, if it had names that were not known when the function was decorated.

        Before the work begins. A name that only a type checker knows counts as no declared type.

        Raises:
            ConfigError: see `Results`.
        """
        reader = self._found({})
        if reader is None:
            written = _annotations(_written(self._function)).get("return")
            self._advice = (
                f"Its declared type {written!r} has a name that is not known at run time: import it outside of "
                f"`if TYPE_CHECKING:`, or {ADVICE}"
            )
        self._read_by(reader or self._reader)

    def _read_by(self, reader: ResultReader) -> None:
        # A plain value is encoded without a call in between.
        self.is_plain = not isinstance(reader, TypedResultReader)
        self._bytes_of = plain_json if self.is_plain else reader.bytes_of
        self.typed = None if reader.declared in (Any, object) else self
        self._reader = reader
        self.are_known = True

    def _found(self, names: dict[str, Any]) -> ResultReader | None:
        try:
            declared = _declared(self._function, names)
        except Exception:  # noqa: BLE001 -- a name that is not known, or no type at all: an error is for checkers
            return None
        try:
            return reader_of(declared)
        except NameError:
            return None
        except ConfigError as error:
            raise ConfigError(f"{name_of(self._function)}(): {error}") from None

    def kept(self, result: Any) -> Any:
        """Return what `complete` stores for a result, or `LostResult` if a duplicate would not get the same."""
        if self._bytes_of is None or result is None:
            return result
        try:
            return Encoded((self._bytes_of(result),))
        except Exception as error:  # noqa: BLE001 -- the result's own code, such as `__eq__`, may raise any error
            why = _why_lost(self._reader, result, error)
            return LostResult(
                self._function, result, f"{name_of(self._function)}() returned {why}. {self._advice}"
            )

    def read(self, payload: bytes, key: str) -> Any:
        """Return the result that was stored for a duplicate.

        JSON that was stored for no type, or by version 0.1.0 for any type, comes back unchanged if it is not of the
        declared type. So does no other result: a former version of the function may have declared another type.

        Raises:
            ResultError: it cannot be read.
        """
        if not payload:
            return None
        if not payload.endswith(WIDE):
            return decode(JSON, payload, key) if self.is_plain else self._read_plain(payload, key)
        if payload.endswith(WIDE_PLAIN):
            return self._read_plain(payload, key)
        value = self._reader.read(payload, key)
        if self.is_plain and not self._reader.takes(value):
            raise not_of_type(payload, key, self._reader.declared)
        return value

    def _read_plain(self, payload: bytes, key: str) -> Any:
        try:
            return self._reader.read(payload, key)
        except ResultError:
            return decode(JSON, payload, key)


def _why_lost(reader: ResultReader, result: Any, error: Exception) -> str:
    why = error_text(error) if isinstance(error, ResultError) else describe_error(error)
    declared = "" if reader.declared is Any else f" for the declared {shown(reader.declared)}"
    return f"{_kind_of(result)}{declared}: {why}"


def _kind_of(value: Any) -> str:
    return with_article(shown(type(value)))


def name_of(function: Any) -> str:
    """Return the name of a function with its module."""
    return f"{function.__module__}.{getattr(function, '__qualname__', function)}"


def warn_at(function: Any, warning: Warning) -> None:
    """Warn at the function's own line, by default once for each text."""
    code = getattr(function, "__code__", None)
    file, line = ("<unknown>", 1) if code is None else (code.co_filename, code.co_firstlineno)
    told = getattr(function, "__globals__", {}).setdefault("__warningregistry__", {})
    warnings.warn_explicit(warning, None, file, line, function.__module__, told)


def _declared(function: Any, names: dict[str, Any]) -> Any:
    """Return the type that a function is declared to return; `Any` if it declares none.

    `names`: known beside those of the function's module.

    Raises:
        NameError: it has a name that is not known, or not yet.
        any other error: it is no type.
    """
    function = _written(function)
    declared = _annotations(function).get("return", Any)
    # The return type alone: the names of the arguments' types may be unknown.
    return typing.get_type_hints(
        types.SimpleNamespace(__annotations__={"return": declared}),
        getattr(function, "__globals__", {}),
        names,
        include_extras=True,
    )["return"]


def _written(function: Any) -> Any:
    """Return the function itself, without what is around it: a partial, a bound object, `functools.wraps`."""
    while isinstance(function, functools.partial):
        function = function.func
    if not inspect.isroutine(function):  # an object that is called
        function = type(function).__call__
    function = inspect.unwrap(function)
    return getattr(function, "__func__", function)


def _annotations(function: Any) -> dict[str, Any]:
    if sys.version_info >= (3, 14):
        import annotationlib

        return annotationlib.get_annotations(function, format=annotationlib.Format.FORWARDREF)
    return dict(getattr(function, "__annotations__", None) or {})


def _names_around(function: Any) -> dict[str, Any]:
    """Return the names of the blocks that the function is written in: a type may be defined in a function, too.

    Other functions are on the stack as well, such as a helper that decorates. Their names mean other things.
    """
    function = _written(function)
    known, path = getattr(function, "__globals__", None), getattr(function, "__qualname__", "")
    names: dict[str, Any] = {}
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_globals is known and path.startswith(f"{frame.f_code.co_qualname}."):
            names = {**frame.f_locals, **names}
        frame = frame.f_back
    return names


def check_row(payload: bytes, key: str, codec: Codec) -> None:
    """Raise FailedError if a row holds the error of a `LostResult`."""
    if payload.startswith(_ROW) and type(codec) is JSONCodec:
        raise first_run_failed(key, decode(codec, payload[len(_ROW) :], key))


def reader_for(declared: Any, codec: Codec) -> ResultReader:
    """Return the reader of a type that a caller names. With a codec of the user, it only compares types.

    Raises:
        ConfigError: the type cannot come back, or needs an extra that is not installed.
    """
    try:
        return reader_of(declared) if type(codec) is JSONCodec else ResultReader(declared)
    except NameError as error:
        raise _unknown(declared, error) from None


def _unknown(declared: Any, error: NameError) -> ConfigError:
    return ConfigError(f"the type {shown(declared)} has a name that is not known: {error}")


def json_for(reader: ResultReader, result: Any) -> bytes:
    """Return the JSON of a result of `complete` for the reader of its declared type.

    Raises:
        ResultError: a duplicate would read something else, or nothing.
    """
    try:
        if not reader.takes(result):
            raise ResultError("it is of another type")
        return reader.bytes_of(result)
    except Exception as error:  # noqa: BLE001 -- the result's own code, such as `__eq__`, may raise any error
        raise ResultError(f"cannot store {_why_lost(reader, result, error)}; {ADVICE}") from None


def read_as(declared: Any, payload: bytes, key: str, codec: Codec) -> Any:
    """Return the result of a payload as the type that the caller names, or as a decorated function declares it.

    `declared`: that type, its `ResultReader`, or a function's `Results`.

    Raises:
        ConfigError: the type cannot come back, or needs an extra that is not installed.
        ResultError: the result is not of this type, or cannot be read.
    """
    if isinstance(declared, Results):
        return declared.read(payload, key) if type(codec) is JSONCodec else decode(codec, payload, key)
    reader = declared if isinstance(declared, ResultReader) else reader_for(declared, codec)
    try:
        is_read = payload and type(codec) is JSONCodec
        value = reader.read(payload, key) if is_read else decode(codec, payload, key)
        is_taken = reader.takes(value)
    except NameError as error:
        raise _unknown(reader.declared, error) from None
    if not is_taken:
        found = "no result" if value is None else _kind_of(value)
        raise ResultError(
            f"{key!r} was completed with {found}, not with {with_article(shown(reader.declared))}"
        )
    return value
