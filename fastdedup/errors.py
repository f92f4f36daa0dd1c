"""Every error that fastdedup raises. Expected answers are outcomes, not errors: see `Outcome`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class DedupError(Exception):
    """Root of all errors of this library. Never raised itself."""


class ConfigError(DedupError, ValueError):
    """A setting, a URL, a state machine or a server cannot be used; the message says what to change."""


class UsageError(DedupError, RuntimeError):
    """A call that the program should not make: on a closed `Dedup`, from another event loop, settling twice."""


class InvalidKeyError(DedupError, ValueError):
    """The key (or owner, subject, token) is empty, too long or not UTF-8 text; or `replay()` finds no such token."""


class ResultError(DedupError, TypeError):
    """A result or error cannot be stored, or `returns=` refuses it; or the stored bytes cannot be read."""


class ResultWarning(ResultError, UserWarning):
    """The work of `once` is done, and its caller gets the result, but duplicates cannot: they get FailedError.

    It is a warning. If warnings are errors, like in many tests, it is raised, and `result` is the result.
    """

    def __init__(self, message: str, result: Any = None) -> None:
        super().__init__(message)
        self.result = result


class ResultTooLargeError(DedupError, ValueError):
    """The encoded result exceeds `max_result` bytes. The claim stays live: complete it with less."""


class ForeignRecordError(DedupError):
    """The key holds a value that this version of fastdedup did not write, or that is larger than `max_result` allows.

    Nothing was changed.
    """


class UnavailableError(DedupError):
    """The store did not answer in time or refused to serve, and the policy does not answer in its place (HTTP 503).

    Whether the operation took effect is unknown; repeating it with the same owner is safe.

    Attributes:
        retry_after: seconds after which another try makes sense (HTTP `Retry-After`).
        owner: the owner's text if a claim has failed, else None. If the claim had taken effect, claiming again
            with `owner=error.owner` gets it back.
        unrecorded: True if a claim's `complete` or `fail` gave up: the work is done, and its outcome is probably not
            recorded. A retry that finds the key free does the work again.
    """

    def __init__(self, message: str, *, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        self.owner: str | None = None
        self.unrecorded = False


class ShortfallError(UnavailableError):
    """The operation was done, and too few replicas confirmed it in time (`replicas=`, `on_shortfall="raise"`).

    A claim is released again, unless another call of its `owner` has it too. A token's use and an id of a ledger are
    undone, unless the caller named the owner. Any other operation has taken effect on the primary, and repeating it
    asks the replicas again. The fallback policy is not asked, because the store answers.
    """


class UnknownTransitionError(UnavailableError):
    """It is unknown whether this call moved the machine: the reply was lost, and other calls moved it since.

    This call will not move it later. Read `state` and `version`, and decide again; a transition with
    `version=` moves from that version only, however often it is called.

    Attributes:
        state: the machine's present state.
        version: the number of the machine's changes.
    """

    def __init__(self, message: str, *, state: str = "", version: int = 0, retry_after: float = 1.0) -> None:
        super().__init__(message, retry_after=retry_after)
        self.state = state
        self.version = version


class LedgerFullError(UnavailableError):
    """A bucket of the ledger has no room: it holds 12 to 18 times as many ids as planned. Nothing was remembered.

    Give it a larger capacity by `Ledger.resize`; if claims use it (`remember=`), take a ledger of another name.
    """


class ClaimLostError(DedupError):
    """This owner no longer holds the key, so nothing was changed, unless its text says that a reply was lost.

    Another owner has taken the key over after the lease ended; or the record was settled elsewhere, was forgotten,
    has expired, or the store lost its data. The end of the lease alone does not lose the key: until another owner
    claims it, its owner may settle and renew it. Only `renew=True` gives up when the lease ends without a renewal.

    Attributes:
        outage: True if the store did not answer the renewals until the lease had ended, or if it is unknown whether
            a claim was settled: no other owner is known.
    """

    def __init__(self, message: str, *, outage: bool = False) -> None:
        super().__init__(message)
        self.outage = outage


class InProgressError(DedupError):
    """Another owner is at work on this key (HTTP 409).

    Attributes:
        retry_after: the most seconds until the owner's lease ends.
    """

    # Every argument but the message has a default: pickle, and queues such as Celery, make an error of its message.
    def __init__(self, message: str, *, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class MismatchError(DedupError):
    """The key was used before with another fingerprint, or the token was issued for another subject (HTTP 422)."""


class FailedError(DedupError):
    """The first run was recorded as a failure: by `fail()`, a last attempt, or because its result cannot be stored.

    Attributes:
        error: the recorded error, such as the value given to `fail()`.
    """

    def __init__(self, message: str, *, error: object = None) -> None:
        super().__init__(message)
        self.error = error


class RetryTransaction(DedupError):
    """The database has ended this transaction for the sake of another: run the whole transaction again.

    The reason is a serialization failure, a deadlock, or a lock that was not given in time: SQLSTATE 40001 and
    40P01, MySQL's errors 1213, 1020 and 1205, SQLITE_BUSY. So is a statement of the inbox that has waited for a twin
    for longer than the database lets a statement take. Nothing of the transaction has happened. `Inbox.once` runs it
    again.
    """


def is_answer(error: BaseException) -> bool:
    """True for an error that tells what the store answered; False if it gave no answer.

    An error of the user's own policy says nothing about the store either.
    """
    return isinstance(error, DedupError) and not isinstance(error, UnavailableError)


def error_text(error: BaseException, form: Callable[[BaseException], str] = str) -> str:
    """Return an error's text; if its own code raises instead of giving one, a text that says so."""
    try:
        return form(error)
    except Exception as fault:  # noqa: BLE001 -- the user's code, whose fault must not stop fastdedup
        return f"{type(error).__name__} without a text: its own code raised {type(fault).__name__}"


def describe_error(error: BaseException) -> str:
    """Return an error's type and text."""
    return f"{type(error).__name__}: {error_text(error)}"


def first_run_failed(key: str, error: object) -> FailedError:
    """Return the error for a duplicate of a run that failed. `error`: what that run recorded, or None."""
    text = f"the first run of {key!r} failed"
    return FailedError(text if error is None else f"{text}: {error!r}", error=error)


def foreign(key: str) -> ForeignRecordError:
    """Return the error for a key that holds a value of another program."""
    return ForeignRecordError(
        f"the store holds a value under {key!r} that this version of fastdedup did not write; "
        "choose another namespace, or remove that key"
    )


def too_large(key: str) -> ForeignRecordError:
    """Return the error for a key whose value is larger than any record that this process reads."""
    return ForeignRecordError(
        f"the store holds a value under {key!r} that is larger than max_result allows; "
        "if fastdedup wrote it, raise max_result; else choose another namespace, or remove that key"
    )
