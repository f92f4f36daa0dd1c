"""The warning of `once` when it decorates two functions that share a key."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any, Final

from .arguments import By, CallRules
from .results.declared import name_of, warn_at

_MOST: Final = 10_000
"""The number of functions that are compared."""


class DecoratedFunctions:
    """The functions that one gate or inbox has decorated. `len`: how many are remembered."""

    def __init__(self) -> None:
        # Mutable: the name of the function that was decorated first, by its scope and the code of its key; at most
        # _MOST, because a program may decorate for each of its tenants.
        self._names: dict[tuple[Any, ...], str] = {}

    def __len__(self) -> int:
        return len(self._names)

    def tell(self, function: Callable[..., Any], rules: CallRules, scope: str) -> None:
        """Warn if duplicates get another function's results.

        Args:
            function: the function that is about to be decorated.
            rules: of its calls.
            scope: the name that separates its keys from others: the namespace, or the inbox's name.
        """
        made_of = _made_of(rules.key)
        if made_of is None:
            return
        place = (scope, rules.scope, made_of)
        if len(self._names) >= _MOST and place not in self._names:
            return
        first = self._names.setdefault(place, name_of(function))
        if first != name_of(function):
            text = (
                f"{first}() and {name_of(function)}() have equal keys in {scope!r}, so one gets the results of the "
                'other: give each a name=, for example once(key=…, name="charge")'
            )
            warn_at(function, UserWarning(text))


def _made_of(key: Any) -> Any:
    """Return the code of a key function, which distinguishes it; None if its result depends on more than its code."""
    if isinstance(key, types.FunctionType):
        if key.__closure__ or key.__defaults__ or key.__kwdefaults__:
            return None
        code = key.__code__
        return code.co_code, repr(code.co_consts), code.co_names
    return key if isinstance(key, type | types.BuiltinFunctionType | By) else None
