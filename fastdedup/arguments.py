"""Rules that are functions of a call's arguments: `key=lambda order_id: f"order:{order_id}"`, or `by("order.id")`."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from inspect import Parameter, Signature
from typing import Any, Final

from .checks import shown, signature_of, with_article
from .errors import ConfigError, InvalidKeyError
from .keys import Fingerprint, key_part, mark_of

_VARIADIC: Final = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
_BY_PLACE: Final = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
_UNKNOWN: Final = Signature([Parameter("args", _VARIADIC[0]), Parameter("kwargs", _VARIADIC[1])])
"""The signature of a function that shows none."""
_NAME_THEM: Final = "name the arguments that it takes as the function does"


class ArgumentsRule:
    """A function of a call's arguments, called with those that it names.

    A function with more parameters than the rule is fine, and a call is one call however it names its arguments: for
    `def charge(order_id, times=1)` the calls `(7)`, `(order_id=7)` and `(7, times=1)` give the rule the same.

    Args:
        rule: the function.
        function: the signature of the calls, without `self`.
        what: the setting's name, for errors.
        label: the name of the called function, for errors.
        by_place: a rule that asks for a name which the function does not have is called like the function itself, if
            any call fits both: `key=lambda o: o.id` for `def place(order)`.

    Raises:
        ConfigError: the rule is no function, is async, or takes an argument that the function does not have.
    """

    def __init__(
        self,
        rule: Any,
        function: Signature,
        what: str = "key",
        *,
        label: str = "the task",
        by_place: bool = False,
    ) -> None:
        check_rule(rule, what, f"{label}'s")
        self._rule: Callable[..., Any] = rule
        self._function = function
        self._what = what
        self._label = label
        self._wanted = _named_parameters(rule, function)
        unknown = self._unknown()
        if by_place and (unknown or not self._wanted):  # a rule of no argument gives every call one key
            _check_place(rule, function, what, label)
            self._wanted = None
        elif unknown:
            raise ConfigError(
                f"{what}= takes {unknown!r}, which is not an argument of {label}: "
                f"it has {', '.join(function.parameters) or 'none'}"
            )
        self._enough = sys.maxsize
        """The number of arguments by place from which a call need not be bound."""
        self._places = self._places_of_wanted()

    def __call__(self, args: Any, kwargs: Any) -> Any:
        """Return what the rule makes of a call's arguments. Raises whatever it raises.

        Raises:
            TypeError: the function cannot be called with them, or the rule cannot.
        """
        try:
            if self._wanted is None:
                return self._rule(*args, **kwargs)
            if not kwargs and len(args) >= self._enough:  # to bind would cost more than all else here
                return self._rule(*args[self._places])
            return self._made_of_named(self._wanted, args, kwargs)
        except (KeyError, TypeError, InvalidKeyError):  # of a rule that the function's caller may not know
            self._check_call(args, kwargs)
            raise

    def _made_of_named(self, wanted: list[Parameter], args: Any, kwargs: Any) -> Any:
        bound = self._function.bind_partial(*args, **kwargs)
        bound.apply_defaults()
        # The arguments last, because a keyword may have the name of a positional-only argument.
        given = {**bound.kwargs, **bound.arguments}
        by_place = [each for each in wanted if each.kind is Parameter.POSITIONAL_ONLY]
        first = [
            given[each.name] if each.name in given or each.default is Parameter.empty else each.default
            for each in by_place
        ]
        rest = {
            each.name: given[each.name]
            for each in wanted
            if each.kind is not Parameter.POSITIONAL_ONLY and each.name in given
        }
        return self._rule(*first, **rest)

    def _check_call(self, args: Any, kwargs: Any) -> None:
        """Raise TypeError, which names the function, if it or a rule by place cannot take these arguments."""
        try:
            self._function.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self._label} was called with wrong arguments: {error}") from None
        taken = None if self._wanted is not None else signature_of(self._rule)
        if taken is None:
            return
        try:
            taken.bind(*args, **kwargs)
        except TypeError:
            raise TypeError(
                f"{self._what}= takes ({', '.join(taken.parameters)}), which does not fit this call of "
                f"{self._label}({', '.join(self._function.parameters)}): {_NAME_THEM}"
            ) from None

    def _unknown(self) -> str:
        """Return the first name that the rule needs and the function does not have; "" if there is none."""
        names = self._function.parameters
        if self._wanted is None or any(each.kind is Parameter.VAR_KEYWORD for each in names.values()):
            return ""
        needed = (each.name for each in self._wanted if each.default is Parameter.empty)
        return next((name for name in needed if name not in names), "")

    def _places_of_wanted(self) -> slice:
        """Return the places of the rule's arguments in a call without keywords, if they stand there side by side."""
        names = [each.name for each in self._function.parameters.values() if each.kind in _BY_PLACE]
        wanted = [each.name for each in self._wanted or () if each.kind in _BY_PLACE]
        if wanted and len(wanted) == len(self._wanted or ()) and wanted[0] in names:
            first = names.index(wanted[0])
            if names[first : first + len(wanted)] == wanted:
                self._enough = first + len(wanted)
                return slice(first, self._enough)
        return slice(0)


def check_rule(rule: Any, what: str, whose: str = "the call's") -> None:
    """Check that a rule is a function, and not async.

    Raises:
        ConfigError: it is not.
    """
    is_async = inspect.iscoroutinefunction(rule)
    if is_async or not callable(rule):
        # `@once` without () gives it the decorated function.
        given = f"the async function {_label_of(rule)}()" if is_async else shown(rule)
        raise ConfigError(
            f"{what}= must be a function of {whose} arguments, not async, got {given}: "
            f'for example {what}=lambda order_id: f"order:{{order_id}}"'
        )


def _label_of(function: Callable[..., Any]) -> str:
    """Return a function's name, for errors."""
    return str(getattr(function, "__qualname__", type(function).__name__))


def _named_parameters(rule: Callable[..., Any], function: Signature) -> list[Parameter] | None:
    """Return the parameters that a rule takes by their names; None if it is called in the function's own way."""
    signature = signature_of(rule)
    if signature is None:
        return None
    wanted = list(signature.parameters.values())
    if any(each.kind in _VARIADIC for each in wanted):
        return None
    if any(each.kind is Parameter.VAR_POSITIONAL for each in function.parameters.values()):
        return None
    return wanted


def _check_place(rule: Callable[..., Any], taken: Signature, what: str, label: str) -> None:
    """Check that a rule can be called with the same arguments as a function; a builtin passes."""
    wanted = signature_of(rule)
    if wanted is None:
        return
    most = max(len(taken.parameters), len(wanted.parameters))
    for positional in range(most + 1):
        needed = [*_needed_after(taken, positional), *_needed_after(wanted, positional)]
        with suppress(TypeError):  # such a call does not fit one of them
            for each in (taken, wanted):
                each.bind(*[None] * positional, **dict.fromkeys(needed))
            return
    raise ConfigError(
        f"{what}= takes ({', '.join(wanted.parameters)}), and no call of "
        f"{label}({', '.join(taken.parameters)}) fits: {_NAME_THEM}"
    )


def _needed_after(signature: Signature, positional: int) -> list[str]:
    """Return the names of the arguments that a call needs after this number of positional ones."""
    parameters = signature.parameters.values()
    rest = [each for each in parameters if each.kind in _BY_PLACE][positional:]
    rest += [each for each in parameters if each.kind is Parameter.KEYWORD_ONLY]
    return [each.name for each in rest if each.default is Parameter.empty]


class CallRules:
    """The key of each call of a decorated function, and what must be equal under one key.

    Args:
        key: see `Dedup.once`.
        fingerprint: see `Dedup.once`.
        name: see `Dedup.once`.

    Raises:
        ConfigError: a rule is not a function, or is async.
        InvalidKeyError: the name is not a text, or is empty.
    """

    def __init__(self, key: Any, fingerprint: Any = None, name: str | None = None) -> None:
        check_rule(key, "key")
        if fingerprint is not None:
            check_rule(fingerprint, "fingerprint")
        self.key = key
        """The function of the key."""
        self._fingerprint = fingerprint
        if name is not None and not isinstance(name, str):
            raise InvalidKeyError(f"name= must be text, got {shown(name)}")
        self.scope = "" if name is None else f"{key_part(name)}|"
        """The beginning of every key."""

    def of(self, function: Callable[..., Any]) -> Callable[[Any, Any], tuple[str, Fingerprint | None]]:
        """Return what makes the key of a call and its fingerprint, which is None if calls are not compared.

        Args:
            function: is about to be decorated.

        Raises:
            ConfigError: a rule is not a function, is async, or takes an argument that the function does not have.
        """
        signature = signature_of(function) or _UNKNOWN  # the rules of a function of C get what it gets
        label = _label_of(function)
        key_of = ArgumentsRule(self.key, signature, label=label, by_place=True).__call__
        value_of: ArgumentsRule | None = None
        if self._fingerprint is not None:
            value_of = ArgumentsRule(self._fingerprint, signature, "fingerprint", label=label, by_place=True)
        scope = self.scope

        def key_and_mark(args: Any, kwargs: Any) -> tuple[str, Fingerprint | None]:
            mark = None if value_of is None else mark_of(value_of(args, kwargs))
            key = key_of(args, kwargs)
            # An empty key stays empty, so that it is refused.
            return scope + key if scope and key and isinstance(key, str) else key, mark

        return key_and_mark


@dataclass(frozen=True)
class By:
    """A rule made of a call's arguments: see `by`."""

    paths: tuple[str, ...]

    @property
    def __signature__(self) -> Signature:
        """The names of the arguments, for `ArgumentsRule`."""
        names = dict.fromkeys(path.partition(".")[0] for path in self.paths)
        return Signature([Parameter(name, Parameter.KEYWORD_ONLY) for name in names])

    def __call__(self, /, **arguments: Any) -> str:
        """Return the key."""
        return "|".join([_part_at(arguments, path) for path in self.paths])


def by(*paths: str) -> Callable[..., str]:
    """Return a `key=` or `fingerprint=` that is made of a call's arguments: `by("order.id", "amount")`.

    The values are joined like the parts of `business_key`, which says what types they may have.

    Args:
        paths: the name of an argument, or of its field, or of a field of that, with dots between: a field is an
            attribute, or an item of a mapping.

    Raises:
        ConfigError: there is no path, or one is not a name with names behind it; or, when it decorates, the function
            does not have an argument.
        InvalidKeyError: (when called) a field is missing, or cannot be part of a key.
    """
    for path in paths:
        if not isinstance(path, str) or not all(name.isidentifier() for name in path.split(".")):
            raise ConfigError(f'by() takes paths such as "order.id", got {shown(path)}')
    if not paths:
        raise ConfigError('by() needs at least one path, such as by("order.id")')
    return By(paths)


def _part_at(arguments: Mapping[str, Any], path: str) -> str:
    """Return the part of the key that stands at a path."""
    value: Any = arguments
    for name in path.split("."):
        try:
            value = value[name] if isinstance(value, Mapping) else getattr(value, name)
        except (KeyError, AttributeError):
            kind = with_article(type(value).__name__)
            raise InvalidKeyError(f"by({path!r}): there is no {name!r} in {kind}") from None
    try:
        return key_part(value)
    except InvalidKeyError as error:
        raise InvalidKeyError(f"by({path!r}): {error}") from None
