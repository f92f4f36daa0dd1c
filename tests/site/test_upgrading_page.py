"""docs/upgrading.md and the changes of the newest version: their statements, imports and lengths."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

import fastdedup.kernel.operations as kernel
from fastdedup.cli.main import cli
from fastdedup.fallback.base import OrphanPolicy
from fastdedup.sql.dialects import dialect_of
from fastdedup.sql.dialects.base import TableName

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "upgrading.md").read_text(encoding="utf-8")
NEWEST = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").split("\n## ")[1]


@pytest.mark.parametrize("dialect", ["postgresql", "mysql", "mariadb", "sqlite"])
def test_the_page_has_the_statement_of_each_database(dialect: str) -> None:
    assert dialect_of(dialect, TableName("fastdedup_inbox")).add_fingerprint().strip() in PAGE


@pytest.mark.parametrize("command", ["deploy prometheus", "deploy grafana"])
def test_the_commands_of_the_page_run(command: str) -> None:
    assert f"fastdedup {command} >" in PAGE
    assert CliRunner().invoke(cli, command.split()).exit_code == 0


def test_a_sidecar_can_be_taken_over() -> None:
    assert "--take-over" in CliRunner().invoke(cli, ["serve", "--help"]).output


def test_the_new_names_of_policies_and_stores_exist() -> None:
    assert "`TransitionReply`" in PAGE
    assert hasattr(kernel, "TransitionReply")
    assert "underreplicated" in kernel.TransitionReply.__slots__
    assert hasattr(OrphanPolicy, "note_orphan")


def test_the_changes_of_a_version_have_at_most_sixty_lines() -> None:
    lines = NEWEST.splitlines()
    assert len(lines) <= 60
    assert max(map(len, lines)) <= 200
