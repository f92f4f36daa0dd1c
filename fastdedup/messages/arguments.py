"""Rules that are functions of a task's arguments: `key=lambda order_id: f"order:{order_id}"`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from inspect import Parameter, Signature
from typing import Any

from ..errors import ConfigError

_VARIADIC = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


class ArgumentsRule:
    """A function of a task's arguments, called with those that it names.

    A task with more parameters than the rule is fine, and a call is one call however it names its arguments: for
    `def charge(order_id, times=1)` the calls `(7)`, `(order_id=7)` and `(7, times=1)` give the rule the same.

    Args:
        rule: the function.
        task: the task's own signature, without `self`.
        what: the setting's name, for errors.

    Raises:
        ConfigError: the rule is no function, is async, or takes an argument that the task does not have.
    """

    def __init__(self, rule: Any, task: Signature, what: str = "key") -> None:
        if not callable(rule) or inspect.iscoroutinefunction(rule):
            raise ConfigError(
                f"{what}= must be a function of the task's arguments, not async: "
                f'for example {what}=lambda order_id: f"order:{{order_id}}"'
            )
        self._rule: Callable[..., Any] = rule
        self._task = task
        self._wanted = _named_parameters(rule, task)
        self._check(what)

    def __call__(self, args: Any, kwargs: Any) -> Any:
        """Return what the rule makes of a call's arguments. Raises whatever it raises."""
        if self._wanted is None:
            return self._rule(*args, **kwargs)
        bound = self._task.bind_partial(*args, **kwargs)
        bound.apply_defaults()
        given = {**bound.arguments, **bound.kwargs}
        first = [given[each.name] for each in self._wanted if each.kind is Parameter.POSITIONAL_ONLY]
        rest = {
            each.name: given[each.name]
            for each in self._wanted
            if each.kind is not Parameter.POSITIONAL_ONLY and each.name in given
        }
        return self._rule(*first, **rest)

    def _check(self, what: str) -> None:
        names = self._task.parameters
        if self._wanted is None or any(each.kind is Parameter.VAR_KEYWORD for each in names.values()):
            return
        for each in self._wanted:
            if each.name not in names and each.default is Parameter.empty:
                raise ConfigError(
                    f"{what}= takes {each.name!r}, which is no argument of the task: "
                    f"it has {', '.join(names) or 'none'}"
                )


def _named_parameters(rule: Callable[..., Any], task: Signature) -> list[Parameter] | None:
    """Return the parameters that a rule is given by their names; None where it is called as the task is."""
    try:
        wanted = list(inspect.signature(rule).parameters.values())
    except (TypeError, ValueError):  # a function of C, which tells no signature
        return None
    if any(each.kind in _VARIADIC for each in wanted):
        return None
    if any(each.kind is Parameter.VAR_POSITIONAL for each in task.parameters.values()):
        return None
    return wanted
