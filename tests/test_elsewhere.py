"""Windows, as far as a POSIX system can show it: the modules and names that it lacks are taken away."""

from __future__ import annotations

from pathlib import Path

from .programs import ended

ROOT = Path(__file__).parent.parent
SCRIPT = """
import asyncio, os, pkgutil, signal, socket, sys
from importlib import import_module

for name in ("fcntl", "grp", "pwd", "resource", "termios", "uvloop"):
    sys.modules[name] = None
unix_sockets = socket.AF_UNIX
del socket.AF_UNIX, os.fork, os.register_at_fork, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT

import fastdedup

# The integrations import frameworks and take seconds; the shop starts a Redis of its own; aiomysql wants pwd itself.
LEFT_OUT = {"integrations", "django", "shop", "aiomysql", "__main__"}
import fastdedup.integrations.asgi
missing = {}
for module in pkgutil.walk_packages(fastdedup.__path__, "fastdedup."):
    if not set(module.name.split(".")) & LEFT_OUT:
        try:
            import_module(module.name)
        except ImportError as error:
            missing[module.name] = str(error)
print(sorted(name for name in missing if not name.startswith("fastdedup.sidecar.service.")))

from click.testing import CliRunner
from fastdedup.cli.main import cli

print(CliRunner().invoke(cli, ["serve"]).stderr.strip())

async def main():
    async with fastdedup.Dedup("memory://") as dedup:
        return (await dedup.claim("a")).acquired

socket.AF_UNIX = unix_sockets  # this system's event loop wants it, Windows' does not
print(asyncio.run(main()))
"""


def test_all_but_the_sidecar_is_imported_on_windows() -> None:
    done = ended("-c", SCRIPT, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    missing, serve, acquired = done.stdout.splitlines()
    assert missing == "[]"
    assert serve.startswith("Error: the sidecar runs on Linux and macOS, and this system has no ")
    assert acquired == "True"
