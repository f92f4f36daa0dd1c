"""`fastdedup completion`: prints the script that completes commands and options in a shell."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

_VARIABLE = "_FASTDEDUP_COMPLETE"  # click's name for the command `fastdedup`


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print a script that completes commands in your shell.

    \b
    bash, in ~/.bashrc:  eval "$(fastdedup completion bash)"
    zsh, in ~/.zshrc:    eval "$(fastdedup completion zsh)"
    fish:                fastdedup completion fish | source
    """
    completer = get_completion_class(shell)
    assert completer is not None  # click has one for each choice above
    click.echo(completer(ctx.find_root().command, {}, "fastdedup", _VARIABLE).source())


COMMANDS = (completion,)
