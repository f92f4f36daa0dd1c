"""The examples of a page in `docs/`: each block of code by its language, and the statements of a block of SQL."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[2] / "docs"
REDIS = "redis://localhost:6379/0"
"""The Redis of all pages."""
_names: list[dict[str, Any]] = []


def forget() -> None:
    """Empty the namespaces in which blocks ran. Their functions and they hold each other, and the inboxes."""
    while _names:
        _names.pop().clear()


class Page:
    """One page of `docs/`, divided at its headings."""

    def __init__(self, name: str) -> None:
        self.name = f"docs/{name}"
        parts = re.split(r"^##+ (.+)\n", (DOCS / name).read_text(encoding="utf-8"), flags=re.MULTILINE)
        self.sections = {"": parts[0]} | dict(zip(parts[1::2], parts[2::2], strict=True))

    @property
    def text(self) -> str:
        """The whole page."""
        return "".join(self.sections.values())

    def blocks(self, section: str, language: str) -> list[str]:
        """Give the blocks of one section; "" names what stands before the first heading."""
        return re.findall(rf"^```{language}\n(.*?)^```", self.sections[section], re.DOTALL | re.MULTILINE)

    def all_blocks(self, language: str) -> list[str]:
        return [block for section in self.sections for block in self.blocks(section, language)]

    def run(self, block: str, **names: Any) -> dict[str, Any]:
        """Run a block of Python; give its names."""
        names["__name__"] = "page"
        _names.append(names)
        exec(compile(block, self.name, "exec"), names)
        return names


def names_of(code: str, page: str, redis_url: str = REDIS, **names: Any) -> dict[str, Any]:
    """Run Python of a page, with this Redis in place of the page's; give its names."""
    names.setdefault("__name__", "page")
    exec(compile(code.replace(REDIS, redis_url), f"docs/{page}", "exec", dont_inherit=True), names)
    return names


def statements(block: str) -> list[str]:
    """Divide a block of SQL; its comments are left out."""
    return [each.strip() for each in re.sub(r"--.*", "", block).split(";") if each.strip()]


def label(block: str) -> str:
    """Give the words before the colon in a block's first comment, such as "wrong, MariaDB"."""
    found = re.match(r"-- ([^:\n]+)", block)
    return found[1] if found else ""


def placed(statement: str) -> str:
    """Write each `:name` as psycopg and PyMySQL do."""
    return re.sub(r"(?<!:):([a-z]\w*)", r"%(\1)s", statement)
