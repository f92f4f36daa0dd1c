"""The sidecar's commands. To add a command: write it below, and name it in `COMMANDS`, which `cli.main` registers.

Modules that need the extra are imported inside of functions, under `extra()`: the command line works without them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import click

from ..checks import check_seconds
from ..sidecar.paths import default_socket
from ..sidecar.service.deploy import FILES, printed
from .terminal import Command, with_options

_EXTRA = {"httptools", "prometheus_client", "pydantic", "pydantic_settings", "uvicorn", "uvloop"}
_POSIX = {"fcntl", "grp", "pwd", "resource"}
_FILE = click.Path(dir_okay=False, path_type=Path)


@contextmanager
def extra() -> Iterator[None]:
    """Name the extra to install if an import inside fails."""
    try:
        yield
    except ModuleNotFoundError as error:
        name = (error.name or "").partition(".")[0]
        if name in _POSIX or (name == "uvloop" and os.name == "nt"):
            raise click.ClickException(
                f"the sidecar runs on Linux and macOS, and this system has no {name}: "
                "let your programs here use Redis without a sidecar, or run it in a container"
            ) from None
        if name not in _EXTRA:
            raise  # a broken installation: installing the extra would not help
        raise click.ClickException(
            f"the sidecar needs {error.name}: pip install 'fastdedup[sidecar]'"
        ) from None


def socket_option(command: Command) -> Command:
    """Add the option `--socket`, for the commands that talk to a running sidecar."""
    return click.option(
        "--socket",
        type=_FILE,
        envvar="FASTDEDUP_SOCKET",
        show_envvar=True,
        help="The sidecar's socket; by default that of `fastdedup serve`.",
        callback=lambda ctx, param, value: value or default_socket(),
    )(command)


def _flags(*names: tuple[str, Any, str]) -> Callable[[Command], Command]:
    """Return options without defaults: a value that is not given comes from the environment or the file."""
    return with_options(
        *[click.option(name, type=kind, default=None, help=text) for name, kind, text in names]
    )


@click.command(short_help="Serve the gate on a Unix socket, by HTTP and RESP.")
@click.option("--config", type=_FILE, envvar="FASTDEDUP_CONFIG", show_envvar=True, help="A TOML file.")
@_flags(
    ("--url", str, "The store; memory:// by default."),
    ("--password-file", _FILE, "A file with the store's password, read anew for each connection."),
    ("--socket", _FILE, "The socket's path; it is made with mode 0660."),
    ("--namespace", str, "The namespace of requests without a namespace."),
    ("--lease", float, "Seconds that an owner has for its work."),
    ("--ttl", float, "Seconds that a success is remembered."),
    ("--timeout", float, "Seconds, the deadline of one operation at the store."),
    ("--replicas", int, "Replicas that must confirm each write."),
    ("--on-unavailable", str, "The policy while the store cannot answer: reject or local."),
    ("--grace", float, "Seconds that requests under way have to end after SIGTERM."),
    ("--metrics-address", str, "Also serve metrics and health over TCP, such as 127.0.0.1:9464."),
    ("--log-level", str, "debug, info, warning or error."),
    ("--log-format", str, "text, or json for programs."),
)
@click.option(
    "--log-keys", is_flag=True, default=None, help="Show keys in clear in the log; tokens are never shown."
)
@click.option(
    "--allow-stores", is_flag=True, default=None, help="Serve sidecar:// stores, which may write any record."
)
@click.option(
    "--take-over", is_flag=True, help="Take the socket over from the sidecar that serves it, which then ends."
)
def serve(config: Path | None, take_over: bool, **flags: Any) -> None:
    """Serve the gate on a Unix socket, by HTTP and the Redis protocol, to programs in any language on this host.

    Every option can also be set as FASTDEDUP_<OPTION> and in the file, which may also have a table for each
    namespace: see `fastdedup check-config`.
    """
    with extra():
        from ..sidecar.service.config import load
        from ..sidecar.service.run import run
        from ..sidecar.service.texts import greeting

    given = {name: value for name, value in flags.items() if value is not None}
    settings = _load(config, given)

    def greet(where: str) -> None:
        if settings.log_format == "text":
            with suppress(OSError):  # a full disk, or a pipe without a reader, ends no sidecar
                click.echo(greeting(settings, where))

    raise SystemExit(
        run(settings, on_listening=greet, take_over=take_over, read_again=lambda: load(config, given))
    )


@click.command(name="check-config")
@click.argument("file", type=_FILE, required=False)
@click.option("--example", is_flag=True, help="Print a file with every setting, its meaning and its default.")
def check_config(file: Path | None, example: bool) -> None:
    """Check FILE, a sidecar's TOML configuration. Prints each mistake with its line, and exits with 1 if any."""
    if example == (file is not None):
        raise click.UsageError("name the FILE to check, or say --example")
    with extra():
        from ..sidecar.service.texts import example_file, summary

    if file is None:
        click.echo(example_file(), nl=False)
        return
    settings = _load(file, {}, environment=False)
    click.echo(f"ok: {file}")
    for line in summary(settings):
        click.echo(f"  {line}")


def _load(file: Path | None, flags: dict[str, Any], *, environment: bool = True) -> Any:
    """Read the settings; after mistakes print each on its own line and exit with 1."""
    with extra():
        from ..sidecar.service.config import load
        from ..sidecar.service.mistakes import Mistakes

    try:
        return load(file, flags, environment=environment)
    except Mistakes as mistakes:
        for line in mistakes.lines:
            click.echo(line, err=True)
        raise SystemExit(1) from None


@click.command()
@socket_option
@click.option("--ready", is_flag=True, help="Also ask whether the store answers.")
def healthcheck(socket: Path, ready: bool) -> None:
    """Check a sidecar's health, for probes. Exits with 1 if it does not answer or is not healthy."""
    from ..sidecar.client import fetch

    status, body = fetch(socket, "/readyz" if ready else "/healthz")
    click.echo(body.decode(errors="replace").strip(), err=status != 200)
    if status != 200:
        raise SystemExit(1)


@click.command(short_help="Watch a sidecar at work: rates, outcomes, latencies.")
@socket_option
@click.option("--once", is_flag=True, help="Print one frame and end.")
@click.option(
    "--every", type=float, default=1.0, show_default=True, help="Seconds between frames, at least 0.05."
)
def top(socket: Path, once: bool, every: float) -> None:
    """Watch a sidecar at work: rates, outcomes, latencies, the breaker. Ctrl-C ends the command."""
    with extra():
        from .top import watch

    watch(socket, once=once, every=check_seconds(every, "--every", least=0.05))


@click.command(short_help="Print files for the sidecar: units, manifests, alerts.")
@click.argument("what", type=click.Choice(list(FILES)))
def deploy(what: str) -> None:
    """Print files for the sidecar: units, a Dockerfile, a manifest, an nginx that asks it, alerts, a dashboard.

    Read them before use.
    """
    click.echo(printed(what), nl=False)


COMMANDS = (serve, check_config, healthcheck, top, deploy)
