"""The signature of a function under `Inbox.once`: its own, without the transaction."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
Q = ParamSpec("Q")
R_co = TypeVar("R_co", covariant=True)


class OnceFunction(Protocol[P, R_co]):
    """A function that is called without its transaction: its first argument, or the one after `self` or `cls`."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Call the function."""
        ...

    def __get__(
        self: OnceFunction[Concatenate[Any, Q], R_co], instance: object, owner: Any = None, /
    ) -> Callable[Q, R_co]:
        """Return the method of an instance. For checkers: the first argument was `self`, and not the transaction."""
        ...


def arguments_before(function: Callable[..., Any]) -> int:
    """Return how many arguments come before the transaction: 1 for a method's `self` or `cls`, or 0."""
    return 1 if next(iter(inspect.signature(function).parameters), "") in ("self", "cls") else 0


def hide_transaction(wrapper: Any) -> None:
    """Give a wrapper the signature of its calls."""
    before = arguments_before(wrapper)
    signature = inspect.signature(wrapper)
    parameters = list(signature.parameters.values())
    if len(parameters) > before and parameters[before].kind is not inspect.Parameter.VAR_POSITIONAL:
        wrapper.__annotations__ = {**wrapper.__annotations__}
        wrapper.__annotations__.pop(parameters.pop(before).name, None)
    wrapper.__signature__ = signature.replace(parameters=parameters)
