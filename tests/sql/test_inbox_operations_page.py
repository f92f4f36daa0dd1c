"""`docs/inbox-operations.md` is true: its SQL, its commands, its Python."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine

from fastdedup.cli.inbox import inbox
from fastdedup.sql.dialects import dialect_of

from .fresh import INBOX, faults_of

PAGE = (Path(__file__).parents[2] / "docs/inbox-operations.md").read_text(encoding="utf-8")


def block(language: str, heading: str) -> str:
    """Give the first block of code below a heading."""
    found = re.search(rf"^#+ {heading}\n.*?```{language}\n(.*?)```", PAGE, re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1]


def test_the_sql_is_what_ddl_prints() -> None:
    assert dialect_of("postgresql", INBOX).ddl() == block("sql", "Create the table")


def test_the_alembic_snippet_makes_the_table(tmp_path: Path) -> None:
    names: dict[str, Any] = {"__name__": "page"}
    exec(block("python", "Alembic"), names)
    engine = create_engine(f"sqlite:///{tmp_path}/a.db")
    names["Base"].metadata.create_all(engine)
    assert faults_of(engine) == []
    engine.dispose()


def test_every_command_can_be_given() -> None:
    lines = re.findall(r"fastdedup inbox (\w+ -.*?)(?:`|\n)", PAGE)
    assert len(lines) >= 4
    for line in lines:
        name, *options = shlex.split(line)
        needed = [] if name == "ddl" or "--url" in options else ["--url", "sqlite://"]
        inbox.commands[name].make_context(name, [*options, *needed])


def test_every_option_of_the_page_is_one() -> None:
    known = {option for command in inbox.commands.values() for each in command.params for option in each.opts}
    others = {"--autogenerate", "--fake"}  # of Alembic and Django
    assert set(re.findall(r"--\w+", PAGE)) - others <= known
