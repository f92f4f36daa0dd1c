"""The common part of the commands at a store: their options, and the event loop in which they run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from .terminal import Command, json_option, with_options

T = TypeVar("T")


def gate_options(
    *, namespace: str, json: str = "an object", url: str | None = None
) -> Callable[[Command], Command]:
    """Add the options that every command has. Without a default `url` the command needs a shared store.

    `json`: what the command prints with `--json`.
    """
    return with_options(
        click.option(
            "--url",
            envvar="FASTDEDUP_URL",
            show_envvar=True,
            default=url,
            show_default=url is not None,
            callback=None if url else _shared_store,
            help="The store, such as redis://localhost:6379/0 or unix:///run/redis.sock.",
        ),
        click.option(
            "--namespace",
            envvar="FASTDEDUP_NAMESPACE",
            show_envvar=True,
            default=namespace,
            show_default=True,
            help="The prefix of the keys.",
        ),
        json_option(json),
    )


def _shared_store(ctx: click.Context, param: click.Parameter, url: str | None) -> str:
    if ctx.params.get("socket") is not None:
        if ctx.get_parameter_source("url") is ParameterSource.COMMANDLINE:
            raise click.UsageError("give --socket or --url, not both: a sidecar has a store of its own")
        return ""
    if not url:
        raise click.UsageError("the store is missing: give --url, or set FASTDEDUP_URL")
    if url.lower().startswith("memory:"):
        raise click.BadParameter(
            "a memory:// store lives inside one process, and this command is another process; "
            "name the Redis of your service",
            ctx,
            param,
        )
    return url


def run(main: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine, which runs in an event loop of its own."""
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(main)


def ask(main: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that asks a gate once. The command prints its error, so the log does not."""
    logging.getLogger("fastdedup").addHandler(logging.NullHandler())
    return run(main)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's loop factory if uvloop is installed (never on Windows), otherwise None."""
    try:
        from uvloop import new_event_loop
    except ImportError:
        return None
    return new_event_loop
