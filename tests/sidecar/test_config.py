"""The sidecar's settings: where they come from, which wins, what each mistake is told; the example; SIGHUP."""

from __future__ import annotations

import os
import re
import signal
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import redis
from click.testing import CliRunner, Result

import fastdedup.cli.main
from fastdedup import Dedup, LocalLRU, Reject
from fastdedup.sidecar.limits import Limits
from fastdedup.sidecar.namespaces import Namespaces, RawCodec
from fastdedup.sidecar.service.config import Config, load
from fastdedup.sidecar.service.mistakes import Mistakes, line_of
from fastdedup.sidecar.service.reload import Merged
from fastdedup.sidecar.service.run import ServiceServer
from fastdedup.sidecar.service.tables import LedgerConfig, NamespaceConfig
from fastdedup.sidecar.service.texts import EXAMPLES, LEDGER, example_file

from ..programs import until
from .running import Sidecar, client


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("FASTDEDUP_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def write(text: str) -> Path:
        file = tmp_path / "fastdedup.toml"
        file.write_text(text)
        return file

    return write


def mistakes_in(file: Path | None, **flags: Any) -> list[str]:
    with pytest.raises(Mistakes) as caught:
        load(file, flags)
    return [line.removeprefix(f"{file}:") for line in caught.value.lines]


# Sources


def test_without_anything_it_is_a_memory_store_that_rejects() -> None:
    config = load()
    assert (config.url, config.namespace) == ("memory://", "fastdedup")
    assert isinstance(config.default_options()["on_unavailable"], Reject)
    assert config.make_limits() == Limits()


def test_flags_win_over_the_environment_and_that_over_the_file(
    write: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write('lease = 1\nttl = 1\ntimeout = 1\nnamespace = "file"\n')
    monkeypatch.setenv("FASTDEDUP_LEASE", "2")
    monkeypatch.setenv("FASTDEDUP_TTL", "2")
    config = load(file, {"lease": 3})
    assert (config.lease, config.ttl, config.timeout, config.namespace) == (3, 2, 1, "file")


def test_tables_of_file_and_environment_are_merged(write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write("[namespaces.sms]\nlease = 1\nttl = 1\n[limits]\nbatch = 7\n")
    monkeypatch.setenv("FASTDEDUP_NAMESPACES__SMS__LEASE", "2")
    monkeypatch.setenv("FASTDEDUP_NAMESPACES__MAIL__ON_UNAVAILABLE", "local")
    monkeypatch.setenv("FASTDEDUP_LIMITS__FRAME", "2000")
    config = load(file)
    assert config.other_namespaces()["sms"] == {"lease": 2, "ttl": 1}
    assert isinstance(config.other_namespaces()["mail"]["on_unavailable"], LocalLRU)
    assert (config.make_limits().batch, config.make_limits().frame) == (7, 2000)


def test_a_list_of_the_environment_is_commas_or_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FASTDEDUP_ALLOW_UIDS", "0, 33")
    monkeypatch.setenv("FASTDEDUP_ALLOW_GIDS", "[5]")
    config = load()
    assert (config.allow_uids, config.allow_gids) == ((0, 33), (5,))
    monkeypatch.setenv("FASTDEDUP_ALLOW_UIDS", "33")
    assert load().allow_uids == (33,)


def test_users_and_groups_can_be_named(write: Any) -> None:
    config = load(write('allow_uids = ["root", 33]\nallow_gids = ["root"]\n'))
    assert (config.allow_uids, config.allow_gids) == ((0, 33), (0,))


@pytest.mark.parametrize(
    ("written", "size"),
    [
        ('"local"', 100_000),
        ('{ policy = "local", maxsize = 10 }', 10),
    ],
)
def test_a_policy_is_a_word_or_a_table(write: Any, written: str, size: int) -> None:
    config = load(write(f"[namespaces.sms]\non_unavailable = {written}\n"))
    policy = config.other_namespaces()["sms"]["on_unavailable"]
    assert repr(policy) == f"LocalLRU(maxsize={size})"


def test_the_default_namespace_may_have_a_table_too(write: Any) -> None:
    config = load(write('namespace = "shop"\nlease = 5\nttl = 6\n[namespaces.shop]\nlease = 7\n'))
    assert (config.default_options()["lease"], config.default_options()["ttl"]) == (7, 6)
    assert config.other_namespaces() == {}


def test_the_file_alone_is_checked_where_the_environment_is_not_asked(
    write: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FASTDEDUP_LEASE", "nonsense")
    assert load(write("ttl = 3\n"), environment=False).lease == 30


# Mistakes

WRONG = """\
url = "reddis://user:secret@localhost"
timeout = true
lese = 3

[limits]
connections = 0
fram = 3

[namespaces.sms]
lease = -1
on_unavailable = { policy = "locl", maxsize = 10000 }

[namespaces."bad name"]
ttl = 1

[namespaces.mail]
on_unavailable = "rejct"
max_result = "many"
leese = 5
"""


def test_every_mistake_is_named_at_once_with_its_line_in_order(write: Any) -> None:
    found = mistakes_in(write(WRONG))
    assert [line.partition(" ")[0] for line in found] == [
        f"{n}:" for n in (1, 2, 3, 6, 7, 10, 11, 13, 17, 18, 19)
    ]
    told = dict(line.split(": ", 2)[1:3] for line in found)
    assert told["lese"] == "unknown key; did you mean lease?"
    assert told["limits.fram"] == "unknown key; did you mean frame?"
    assert told["namespaces.mail.leese"] == "unknown key; did you mean lease?"
    assert "did you mean local?" in told["namespaces.sms.on_unavailable.policy"]
    assert "from 0.001 to ten years, got -1" in told["namespaces.sms.lease"]
    assert "number" in told["timeout"]
    assert "whole number" in told["namespaces.mail.max_result"]
    assert "many" not in "".join(found), "text may be a secret: it is not shown"
    assert "secret" not in "".join(found)


def test_a_mistake_in_toml_itself_has_its_line(write: Any) -> None:
    (told,) = mistakes_in(write("lease = 3\nttl = = 4\n"))
    assert "not valid TOML" in told
    assert "line 2" in told


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    (told,) = mistakes_in(tmp_path / "none.toml")
    assert "No such file" in told


def test_a_mistake_of_the_environment_or_a_flag_is_called_by_its_name(
    write: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FASTDEDUP_LEASE", "soon")
    monkeypatch.setenv("FASTDEDUP_LIMITS__BATCH", "0")
    monkeypatch.setenv("FASTDEDUP_ALLOW_UIDS", "nobody-at-all")
    found = mistakes_in(write("ttl = 3\n"), on_unavailable="loc")
    places = {line.partition(": ")[0] for line in found}
    assert places == {
        "FASTDEDUP_LEASE",
        "FASTDEDUP_LIMITS__BATCH",
        "FASTDEDUP_ALLOW_UIDS",
        "--on-unavailable",
    }


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('on_unavailable = { policy = "reject", maxsize = 3 }', "maxsize: only the policy 'local'"),
        ('url = "memory://"\nreplicas = 1', "memory:// has no replicas"),
        ("namespace = 'white space'", "a namespace must have 1 to 64"),
        ("lease = true", "must be a number"),
        ("allow_uids = [true]", "must be a number"),
        ("allow_gids = ['no-such-group']", "no such group"),
        ('lease = "soon"', "must be a number, such as 30.0"),
        ('[limits]\nconnections = "many"', "must be a whole number, such as 1000"),
        (
            '[[sockets]]\npath = "/run/a.sock"\nnamespaces = "a"',
            'must be a list in brackets, such as ["payments"]',
        ),
        ("limits = 3", "dictionary"),
        ("namespaces = 3", "dictionary"),
        ('password_file = "/no/such/file"', "password_file: there is no such file"),
        (f'password_file = "{__file__}"', "password_file: memory:// has no login"),
        (f'url = "redis://:secret@h"\npassword_file = "{__file__}"', "a password in the URL"),
        ("[namespaces.sms.deeper]\nx = 1", "unknown key"),
        (f'password_file = "{"x" * 300}"', "password_file: there is no such file"),
        ('socket = "~no-such-user/x"', "no home folder"),
        ('socket = "a\\u0000b"', "no zero byte"),
        ("allow_uids = [4294967295]", "less than or equal to 4294967294"),
        ('[[sockets]]\npath = "/run/a.sock"\ngroup = 99999999999', "less than or equal to 4294967294"),
        (f"lease = {'[' * 3000}", "not valid TOML"),
    ],
)
def test_what_does_not_go_together_is_a_mistake(write: Any, text: str, told: str) -> None:
    assert told in " ".join(mistakes_in(write(text)))


def test_the_line_of_a_key_is_found_in_tables_dotted_keys_and_quotes() -> None:
    text = "a = 1\n[t]\nb = 1\n'c d' = 2\n[t.u]\nb = 3\nx.y = 4\n"
    assert line_of(text, ["a"]) == 1
    assert line_of(text, ["t", "b"]) == 3
    assert line_of(text, ["t", "c d"]) == 4
    assert line_of(text, ["t", "u", "b"]) == 6
    assert line_of(text, ["t", "u", "x", "y"]) == 7
    assert line_of(text, ["t", "u", "x", "y", "inside"]) == 7
    assert line_of(text, ["none"]) == 0


# The command


def check(file: Path) -> Result:
    return CliRunner().invoke(fastdedup.cli.main.cli, ["check-config", str(file)])


def test_check_config_says_ok_and_what_it_comes_to(write: Any) -> None:
    file = write(
        'url = "redis://user:secret@host:6379/0"\nallow_gids = [33]\n[namespaces.sms]\nttl = 60\n'
        'on_unavailable = { policy = "local", maxsize = 10 }\n'
    )
    result = check(file)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith(f"ok: {file}\n")
    for part in (
        "redis://host:6379/0",
        "gid 33",
        "fastdedup (default)",
        "lease 30 s",
        "ttl 1 d",
        "ttl 1 min",
    ):
        assert part in result.stdout
    assert "LocalLRU(maxsize=10)" in result.stdout
    assert "secret" not in result.stdout


def test_check_config_prints_a_line_for_each_mistake_and_fails(write: Any) -> None:
    result = check(write(WRONG))
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.count("\n") == 11
    assert ":3: lese: unknown key; did you mean lease?\n" in result.stderr


def test_each_setting_of_the_file_can_be_printed_and_read_again(write: Any) -> None:
    assert Config.model_fields.keys() >= {"url", "socket", "limits", "namespaces", "log_keys"}
    config = load(write('log_format = "json"\nlog_level = "debug"\nlog_keys = true\nsocket = "/x/y.sock"\n'))
    assert (config.log_format, config.log_level, config.log_keys) == ("json", "debug", True)
    assert str(config.socket) == "/x/y.sock"


# `check-config --example` prints every setting there is, and what it prints is a configuration


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


# SIGHUP: what takes effect at once, and what is said about the rest


RELOADED = """
grace = {grace}
timeout = {timeout}
log_format = "json"
{more}
[[sockets]]
path = "{run}/tenant.sock"
{rules}
"""


def test_sighup_changes_rules_and_names_what_needs_a_restart() -> None:
    sidecar = Sidecar()
    file = sidecar.folder / "fastdedup.toml"
    sidecar.options += ["--config", str(file)]
    tenant = sidecar.folder / "tenant.sock"

    def write(*, grace: int = 5, timeout: float = 0.25, more: str = "", rules: str = "") -> None:
        text = RELOADED.format(grace=grace, timeout=timeout, more=more, rules=rules, run=sidecar.folder)
        file.write_text(text)

    write()
    with sidecar, client(tenant) as former, sidecar.client() as main:
        assert former.execute_command("FD.CLAIM", "one")[0] == b"acquired"
        assert main.ping()

        write(grace=1, timeout=0.5, rules='verbs = "read"\nmode = "0600"')
        sidecar.process.send_signal(signal.SIGHUP)
        until(lambda: "need a restart" in sidecar.log, "it is reloaded")
        assert f'"changed":["grace","sockets[{tenant}].verbs"]' in sidecar.log
        assert f'"settings":["timeout","sockets[{tenant}].mode"]' in sidecar.log
        with client(tenant) as new, pytest.raises(redis.exceptions.NoPermissionError):
            new.execute_command("FD.CLAIM", "two")
        with pytest.raises(redis.RedisError):  # by the former rules nobody goes on
            former.execute_command("FD.CLAIM", "two")
        assert main.ping()  # whose rules are the same

        write(more='log_levle = "debug"', rules="allow_stores = true")
        sidecar.process.send_signal(signal.SIGHUP)
        until(lambda: "not reloaded" in sidecar.log, "it is refused")
        assert "did you mean log_level?" in sidecar.log
        with client(tenant) as new, pytest.raises(redis.exceptions.NoPermissionError):
            new.execute_command("FD.CLAIM", "two")
        assert sidecar.end() == 0


def test_half_a_second_of_grace_is_some_grace() -> None:
    """It was rounded to 0 whole seconds, which uvicorn takes, also after a reload."""
    short = Config(grace=0.5)
    namespaces = Namespaces(Dedup("memory://", codec=RawCodec()))
    server = ServiceServer(short, namespaces, lambda: None, [])
    assert server.config.timeout_graceful_shutdown == 1
    server.config.timeout_graceful_shutdown = None
    server.change_rules(Merged(Config(), short))
    assert server.config.timeout_graceful_shutdown == 1


def test_settings_in_tables_are_named_one_by_one(tmp_path: Path) -> None:
    a, b = ({"path": str(tmp_path / name)} for name in "ab")
    old = Config(limits={"frame": 1000}, namespaces={"mail": {"lease": 5}}, sockets=(a,))
    new = Config(limits={"batch": 10}, namespaces={"shop": {}}, sockets=(b,), log_level="debug")
    news = Merged(old, new)
    assert news.changed == ["log_level"]
    assert news.left == [
        "limits.frame",
        "limits.batch",
        "namespaces.mail",
        "namespaces.shop",
        f"sockets[{tmp_path}/b]",
        f"sockets[{tmp_path}/a]",
    ]
    assert news.config == old.model_copy(update={"log_level": "debug"})


def test_a_list_of_users_stays_with_the_mode_that_needs_it(tmp_path: Path) -> None:
    """The mode takes effect when the socket is bound: until then it would have let every user in."""
    path = str(tmp_path / "shop.sock")
    old = Config(sockets=({"path": path, "mode": "0666", "allow_uids": [1000]},))
    closed = Merged(old, Config(sockets=({"path": path, "mode": "0660", "pending": 5},)))
    assert closed.config.sockets[0].allow_uids == (1000,)
    assert closed.config.sockets[0].pending == 5
    assert closed.left == [f"sockets[{path}].mode", f"sockets[{path}].allow_uids"]
    other = Merged(old, Config(sockets=({"path": path, "mode": "0666", "allow_uids": [1001]},)))
    assert other.config.sockets[0].allow_uids == (1001,)
