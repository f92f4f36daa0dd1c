"""Names the extra of a missing library."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def needs(who: str, library: str, install: str) -> Iterator[None]:
    """Import a library within the block; if it is missing, say what needs it and how to install it.

    Args:
        who: the module or function that needs it.
        library: its name.
        install: the arguments of `pip install`, such as `'fastdedup[aiohttp]'`.

    Raises:
        ImportError: it is not installed.
    """
    try:
        yield
    except ImportError as error:
        raise ImportError(f"{who} needs {library}: pip install {install}") from error
