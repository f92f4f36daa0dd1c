"""The package's logger, and its lines of errors that functions of the user raised: no text that may hold a key."""

from __future__ import annotations

import logging
import traceback
from types import TracebackType

log = logging.getLogger("fastdedup")
_PACKAGE = __name__.partition(".")[0]


def log_failure(event: object, error: BaseException) -> None:
    """Log that the user's callback has raised an error on an event; `events.emit` describes the line."""
    log.error(
        "the on_event callback failed on %s in namespace %r: %s at %s",
        type(event).__name__,
        getattr(event, "namespace", ""),
        type(error).__name__,
        place_of(error),
    )


def log_batch_failure(error: BaseException) -> None:
    """Log that the user's callback for batches has raised an error."""
    log.error("the on_batch callback failed: %s at %s", type(error).__name__, place_of(error))


def place_of(error: BaseException) -> str:
    """Return the place that raised an error: its last three calls, for a log line.

    The calls in which this package called the user's code are left out.
    """
    called = error.__traceback__
    while called is not None and _is_ours(called):
        called = called.tb_next
    frames = traceback.extract_tb(called or error.__traceback__)[-3:]
    return " > ".join(f"{frame.name} ({frame.filename}:{frame.lineno})" for frame in frames)


def _is_ours(call: TracebackType) -> bool:
    return str(call.tb_frame.f_globals.get("__name__")).partition(".")[0] == _PACKAGE
