"""`fastdedup demo --web`: its options. Modules that need the extra are imported inside of functions."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from importlib.util import find_spec
from typing import Any

import click
from click.core import ParameterSource

_EXTRA = ("fastapi", "uvicorn", "python_multipart")
_SHARED = ("stock",)
Command = Callable[..., Any]

_OPTIONS = (
    click.option(
        "--web", is_flag=True, help="Open a shop for your browser instead, with a Redis of its own."
    ),
    click.option(
        "--port", type=click.IntRange(0, 65_535), help="The port on 127.0.0.1, with --web.  [default: any]"
    ),
    click.option(
        "--workers", type=click.IntRange(1, 16), help="How many processes, with --web.  [default: 2]"
    ),
    click.option(
        "--opens-in",
        type=click.FloatRange(min=0),
        help="Seconds until the sale opens, with --web.  [default: 0]",
    ),
    click.option(
        "--token-ttl",
        type=click.FloatRange(min=0, min_open=True),
        help="Seconds in which a form can be sent, with --web.  [default: 300]",
    ),
)


def web_options(command: Command) -> Command:
    """Let a command open the shop where it is called with `--web`."""

    @wraps(command)
    def either(*, web: bool, **given: Any) -> Any:
        names = ("port", "workers", "opens_in", "token_ttl")
        ours = {name: value for name in names if (value := given.pop(name)) is not None}
        if not web:
            _refuse(ours, "needs --web")
            return command(**given)
        _refuse(_said(given), "cannot be used with --web, which has its own Redis and you as the buyer")
        return web_demo(stock=given["stock"], **ours)

    for option in reversed(_OPTIONS):
        either = option(either)
    return either


def _said(given: dict[str, Any]) -> list[str]:
    source = click.get_current_context().get_parameter_source
    return [name for name in given if name not in _SHARED and source(name) is ParameterSource.COMMANDLINE]


def _refuse(names: Any, why: str) -> None:
    for name in names:
        raise click.UsageError(f"--{'json' if name == 'as_json' else name.replace('_', '-')} {why}")


def web_demo(**options: Any) -> None:
    """Serve the shop until Ctrl-C or SIGTERM, and print its address. The options are those of `ShopOptions`.

    Raises:
        ClickException: the extra is not installed.
        DedupError: the shop cannot run; see `run`.
    """
    for name in _EXTRA:
        if not _installed(name):
            raise click.ClickException(f"the web demo needs {name}: pip install 'fastdedup[sidecar,web]'")
    from ..demo.shop.run import ShopOptions, run

    run(ShopOptions(**options), _greet)


def _greet(url: str) -> None:
    click.echo(f"The shop is open: {url}\nCtrl-C closes it, and leaves nothing behind.")


def _installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ValueError:  # sys.modules has None for this name
        return False
