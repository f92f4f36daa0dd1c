"""The help of every command, on a terminal of 80 columns, and what a shell completes."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from fastdedup.cli.main import cli


def commands(command: click.Command, *path: str) -> Iterator[tuple[str, ...]]:
    yield path
    if isinstance(command, click.Group):
        for name, each in command.commands.items():
            yield from commands(each, *path, name)


@pytest.mark.parametrize("path", list(commands(cli)), ids=" ".join)
def test_help_fits_eighty_columns_with_no_line_cut(path: tuple[str, ...]) -> None:
    result = CliRunner().invoke(cli, [*path, "--help"], prog_name="fastdedup", env={"COLUMNS": "80"})
    assert result.exit_code == 0
    assert [
        line for line in result.output.splitlines() if len(line) > 80 or re.search(r"[^.\]]\.\.\.$", line)
    ] == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_completes_in_each_shell(shell: str) -> None:
    result = CliRunner().invoke(cli, ["completion", shell])
    assert result.exit_code == 0, result.output
    assert f"_FASTDEDUP_COMPLETE={shell}_complete" in result.stdout


def test_the_script_asks_the_command_for_its_words() -> None:
    asked = {"_FASTDEDUP_COMPLETE": "bash_complete", "COMP_WORDS": "fastdedup comp", "COMP_CWORD": "1"}
    result = CliRunner().invoke(cli, [], prog_name="fastdedup", env=asked)
    assert result.stdout == "plain,completion\n"
