"""The command line: figures and records for people, ``--json`` for programs.

To add a command: write it in the module of its kind, name it in that module's `COMMANDS`, and here in `_MODULES`. Let
`DedupError` and `OSError` pass: the group prints them. A command's module is imported when the command is asked for:
all of them together take half a second, for the benchmark's contestants and for progress bars.
"""

from __future__ import annotations

from errno import EPIPE
from importlib import import_module
from typing import Any, Final

import click
import rich  # noqa: F401 -- if the extra is missing, each command says so

from ..compiled import build
from ..errors import DedupError, UnavailableError
from .terminal import is_answering

_MODULES: Final = {
    "bench": "bench",
    "check-config": "sidecar",
    "completion": "completion",
    "conformance": "conformance",
    "dead-letters": "dead_letters",
    "demo": "demo",
    "deploy": "sidecar",
    "forget": "records",
    "healthcheck": "sidecar",
    "inbox": "inbox",
    "inspect": "records",
    "ledger": "ledger",
    "list": "records",
    "serve": "sidecar",
    "top": "sidecar",
}
"""The module of this package that has a command, by the command's name."""


class _Group(click.Group):
    """Imports a command when it is asked for; prints its error as one line on stderr, and exits with 1.

    Its error is a `DedupError`, or one of the system, such as a full disk. click itself is quiet after a closed pipe.
    An `AnsweringCommand` exits with 2 or 3 after an error, and with 2 after Ctrl-C.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands, sorted."""
        return sorted(_MODULES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, or None if there is none of this name."""
        if cmd_name not in _MODULES:
            return None
        module = import_module(f".{_MODULES[cmd_name]}", __package__)
        commands: tuple[click.Command, ...] = module.COMMANDS
        return next(command for command in commands if command.name == cmd_name)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (DedupError, OSError) as error:
            if isinstance(error, OSError) and error.errno == EPIPE:
                raise
            code = 1
            if is_answering(ctx):
                code = 3 if isinstance(error, UnavailableError) else 2
            click.ClickException(" ".join(str(error).split())).show()
            raise SystemExit(code) from error
        except KeyboardInterrupt:
            # None while the command's module is imported. Click would exit with 1.
            if ctx.invoked_subcommand is None or is_answering(ctx):
                raise SystemExit(2) from None
            raise


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="fastdedup", message=f"%(prog)s %(version)s, {build()}")
def cli() -> None:
    """Are you the first? A dedup gateway on Redis, and its records."""
