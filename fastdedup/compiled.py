"""The main path can be compiled (see `hatch_build.py`): whether it is, and what its modules say to the compiler."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr as mypyc_attr
else:
    # At run time it says nothing, so the package that it is from is not needed.
    def mypyc_attr(**_: Any) -> Any:
        """Mark a class for mypyc: `allow_interpreted_subclasses` where others may derive from it."""
        return lambda cls: cls


def is_compiled() -> bool:
    """True where the modules that every claim runs through are compiled ones."""
    from .engine import engine

    return not engine.__file__.endswith(".py")


def build() -> str:
    """Return which of the two this is, in words."""
    return "compiled" if is_compiled() else "pure Python"
