"""`check-config --example` prints every setting there is, and what it prints is a configuration."""

from __future__ import annotations

import re
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest
from click.testing import CliRunner

import fastdedup.cli.main
from fastdedup.sidecar.limits import Limits
from fastdedup.sidecar.service.config import Config, load
from fastdedup.sidecar.service.example import EXAMPLES, LEDGER, example_file
from fastdedup.sidecar.service.tables import LedgerConfig, NamespaceConfig


@pytest.fixture(scope="module")
def text() -> str:
    result = CliRunner().invoke(fastdedup.cli.main.cli, ["check-config", "--example"])
    assert result.exit_code == 0, result.output
    return result.stdout


def uncommented(text: str) -> str:
    return re.sub(r"(?m)^#(?=[\w\[])", "", text)


def test_check_config_accepts_it_as_it_is(text: str, tmp_path: Path) -> None:
    file = tmp_path / "fastdedup.toml"
    file.write_text(text)
    result = CliRunner().invoke(fastdedup.cli.main.cli, ["check-config", str(file)])
    assert result.exit_code == 0, result.output
    assert load(file, environment=False).model_dump() == load(environment=False).model_dump()


def test_each_line_shows_the_default_or_a_value_that_is_accepted(text: str, tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("secret")
    file = tmp_path / "fastdedup.toml"
    wanted = uncommented(text).replace("/run/secrets/redis", str(password)).replace("memory://", "redis://h")
    file.write_text(wanted)
    config, default = load(file, environment=False), load(environment=False)
    for name in Config.model_fields.keys() - EXAMPLES.keys() - {"url", "limits", "namespaces", "ledgers"}:
        assert getattr(config, name) == getattr(default, name), name
    for each in fields(Limits):
        if each.name not in EXAMPLES:
            assert getattr(config.limits, each.name) == each.default, each.name
    assert config.ledger_options() == {"orders": LedgerConfig(**LEDGER).model_dump()}
    own = config.other_namespaces()["sms"]
    assert {name: repr(value) for name, value in own.items()} == {
        name: repr(value) for name, value in default.default_options().items()
    }


def test_every_setting_is_there_once_with_its_text(text: str) -> None:
    whole = tomllib.loads(uncommented(text))
    assert whole.keys() == Config.model_fields.keys()
    assert whole["limits"].keys() == {each.name for each in fields(Limits)}
    assert whole["namespaces"]["sms"].keys() == NamespaceConfig.model_fields.keys()
    assert whole["ledgers"]["orders"].keys() == LedgerConfig.model_fields.keys()
    for block in text.split("\n\n")[1:]:
        assert re.match(r"# .*[^\n]", block), f"no text stands above {block!r}"


def test_each_example_is_of_a_setting_without_a_default() -> None:
    without = {name for name, field in Config.model_fields.items() if field.get_default() is None}
    factories = {name for name, field in Config.model_fields.items() if field.default_factory is not None}
    without |= {each.name for each in fields(Limits) if each.default is None}
    assert without - factories == EXAMPLES.keys()


@pytest.mark.parametrize("words", [[], ["--example", "fastdedup.toml"]])
def test_either_a_file_or_the_example_is_asked_for(words: list[str]) -> None:
    result = CliRunner().invoke(fastdedup.cli.main.cli, ["check-config", *words])
    assert (result.exit_code, "--example" in result.output) == (2, True)


def test_lines_of_text_are_not_wide() -> None:
    assert max(map(len, example_file().splitlines())) <= 120
