"""The reference shows every public name, and every public name has a docstring to show."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
DIRECTIVES = {
    name
    for page in (ROOT / "docs" / "reference").glob("*.md")
    for name in re.findall(r"^::: (\S+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
}
INTEGRATIONS = [
    f"fastdedup.integrations.{path.stem}"
    for path in sorted((ROOT / "fastdedup" / "integrations").iterdir())
    if (source := path / "__init__.py" if path.is_dir() else path).is_file()
    and re.search(r"^__all__ = ", source.read_text("utf-8"), re.MULTILINE)
]
NEED_SETTINGS = (
    "fastdedup.integrations.django",
    "fastdedup.integrations.drf",
    "fastdedup.integrations.ninja",
)
"""They are imported with Django's settings only; ruff's D1 holds their docstrings."""
MODULES = sorted(
    name for name in DIRECTIVES if not re.search(r"\.[A-Z]\w*$", name) and name not in NEED_SETTINGS
)


def public(module: Any) -> list[str]:
    """What a module offers: its `__all__`, else what it defines without an underscore."""
    if hasattr(module, "__all__"):
        return [name for name in module.__all__ if name != "__version__"]
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", "") == module.__name__
    ]


def undocumented(name: str, value: Any) -> list[str]:
    """The names below a class or function, itself included, that have no docstring."""
    if not (inspect.isclass(value) or inspect.isroutine(value)):
        return []
    lacking = [] if (value.__doc__ or "").strip() else [name]
    if inspect.isclass(value):
        for member, of_class in vars(value).items():
            if not member.startswith("_") and (inspect.isroutine(of_class) or isinstance(of_class, property)):
                lacking += [] if inspect.getdoc(getattr(value, member)) else [f"{name}.{member}"]
    return lacking


def test_the_reference_has_every_public_module() -> None:
    wanted = {"fastdedup", "fastdedup.events", "fastdedup.sync", "fastdedup.sql", "fastdedup.sync.sql"}
    wanted |= {"fastdedup.messages", "fastdedup.client", "fastdedup.testing", *INTEGRATIONS}
    assert wanted <= DIRECTIVES


@pytest.mark.parametrize("name", MODULES)
def test_every_public_name_has_a_docstring(name: str) -> None:
    module = importlib.import_module(name)
    lacking = [each for offered in public(module) for each in undocumented(offered, getattr(module, offered))]
    assert not lacking
