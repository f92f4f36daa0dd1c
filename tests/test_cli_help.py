"""The help of every command, on a terminal of 80 columns, and what a shell completes."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from fastdedup.cli.main import _MODULES, cli

from .programs import ended


def commands(command: click.Command, *path: str) -> Iterator[tuple[str, ...]]:
    yield path
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            each = command.get_command(context, name)
            assert each is not None
            yield from commands(each, *path, name)


@pytest.mark.parametrize("path", list(commands(cli)), ids=" ".join)
def test_help_fits_eighty_columns_with_no_line_cut(path: tuple[str, ...]) -> None:
    result = CliRunner().invoke(cli, [*path, "--help"], prog_name="fastdedup", env={"COLUMNS": "80"})
    assert result.exit_code == 0
    assert [
        line for line in result.output.splitlines() if len(line) > 80 or re.search(r"[^.\]]\.\.\.$", line)
    ] == []


def test_each_command_is_found_by_its_name() -> None:
    modules = [
        importlib.import_module(f"fastdedup.cli.{module}") for module in sorted(set(_MODULES.values()))
    ]
    made = {command.name: module.__name__ for module in modules for command in module.COMMANDS}
    assert made == {name: f"fastdedup.cli.{module}" for name, module in _MODULES.items()}


def test_a_command_that_is_not_asked_for_is_not_imported() -> None:
    """The command line took 0.2 s longer to begin, for the benchmark's contestants."""
    look = "import sys; from fastdedup.__main__ import main; sys.argv[1:] = ['--version']\ntry: main()\n"
    look += "finally: print(*sorted({'redis', 'rich.progress', 'fastdedup.cli.bench'} & set(sys.modules)))"
    done = ended("-c", look, check=True)
    assert done.stdout.splitlines()[1:] == [""]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_completes_in_each_shell(shell: str) -> None:
    result = CliRunner().invoke(cli, ["completion", shell])
    assert result.exit_code == 0, result.output
    assert f"_FASTDEDUP_COMPLETE={shell}_complete" in result.stdout


def test_the_script_asks_the_command_for_its_words() -> None:
    asked = {"_FASTDEDUP_COMPLETE": "bash_complete", "COMP_WORDS": "fastdedup comp", "COMP_CWORD": "1"}
    result = CliRunner().invoke(cli, [], prog_name="fastdedup", env=asked)
    assert result.stdout == "plain,completion\n"
