"""The compiled build of the main path: its decorator, and whether this build is one. See `scripts/hatch_build.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr as mypyc_attr
else:
    # At run time the decorator has no effect, so mypy_extensions need not be installed.
    def mypyc_attr(**_: Any) -> Any:
        """Mark a class for mypyc: `allow_interpreted_subclasses` if pure Python classes may derive from it."""
        return lambda cls: cls


def is_compiled() -> bool:
    """True if the modules of the main path are compiled."""
    from .kernel import engine

    return not engine.__file__.endswith(".py")


def build() -> str:
    """Return the kind of this build: "compiled" or "pure Python"."""
    return "compiled" if is_compiled() else "pure Python"
