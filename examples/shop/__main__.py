"""Open the shop for your browser: `python -m examples.shop`, or `make demo-web`; `--help` shows the options.

It needs `pip install 'fastdedup[sidecar,web]'` and a redis-server on the PATH.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import click

from fastdedup import DedupError

from .run import ShopOptions, run

_NEEDED = ("fastapi", "uvicorn", "python_multipart")
"""The packages that the workers import."""


@click.command(context_settings={"show_default": True})
@click.option("--port", type=click.IntRange(0, 65_535), default=0, help="The port on 127.0.0.1; 0 for any.")
@click.option("--workers", type=click.IntRange(1, 16), default=2, help="How many processes.")
@click.option("--stock", type=click.IntRange(min=0), default=100, help="Units for sale.")
@click.option("--opens-in", type=click.FloatRange(min=0), default=0.0, help="Seconds until the sale opens.")
@click.option(
    "--token-ttl",
    type=click.FloatRange(min=0, min_open=True),
    default=300.0,
    help="Seconds in which a form can be sent.",
)
def main(**options: Any) -> None:
    """Open a shop in which you can click, buy and crash Redis, until Ctrl-C. It has a Redis of its own."""
    for name in _NEEDED:
        if not _installed(name):
            raise click.ClickException(f"the shop needs {name}: pip install 'fastdedup[sidecar,web]'")
    try:
        run(ShopOptions(**options), _greet)
    except DedupError as error:
        raise click.ClickException(" ".join(str(error).split())) from None


def _greet(url: str) -> None:
    click.echo(f"The shop is open: {url}\nCtrl-C closes it, and leaves nothing behind.")


def _installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ValueError:  # sys.modules has None for this name
        return False


if __name__ == "__main__":
    main()
