"""SIGHUP: what takes effect at once, and what is said about the rest."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import redis

from fastdedup.sidecar.service.config import Config
from fastdedup.sidecar.service.reload import Merged

from ..programs import until
from .running import Sidecar, client

CONFIG = """
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
        text = CONFIG.format(grace=grace, timeout=timeout, more=more, rules=rules, run=sidecar.folder)
        file.write_text(text)

    write()
    with sidecar, client(tenant) as former, sidecar.client() as main:
        assert sidecar.process is not None
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
