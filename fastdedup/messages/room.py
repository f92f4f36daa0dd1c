"""Dead letters: their headers, and which of them are left out if one is too large. Main path: `lay`.

A dead letter has some hundred bytes of headers more than its message, and the message may be as large as the broker
allows. The consumer would retry for ever to publish a dead letter that the broker never takes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from .decisions import Decision, log
from .headers import AGAIN, AT, ATTEMPTS, CONSUMER, ERROR, KEY, LEFT_OUT, ORIGIN, QUEUE, REASON
from .headers import dead_letter_headers as headers_of
from .keys import text_of

Headers = list[tuple[str, Any]]
"""Names and values: on Kafka a name may come twice."""
_SHORT_ERROR: Final = 100
_TOLD: Final = (ERROR, AT, CONSUMER, KEY, ORIGIN, REASON, QUEUE)
"""Headers of this package that only inform, the least needed first."""
_NAMES: Final = 100
"""The most characters for the names of the headers that were left out."""


class Letter(NamedTuple):
    """What a dead letter keeps of its message.

    Attributes:
        headers: the message's own.
        place: headers that name the place of the message: `ORIGIN`, or `QUEUE`.
        needed: names of headers of this package that hold what the copy itself does not: they are left out as late
            as the message's own.
        spare: names of other headers, which are left out before the message's own.
    """

    headers: Iterable[tuple[Any, Any]]
    place: Mapping[str, str] = {}
    needed: Collection[str] = ()
    spare: Collection[str] = ()


async def lay(
    letter: Letter,
    decision: Decision,
    consumer: str,
    publish: Callable[[Headers], Awaitable[None]] | None,
    is_too_large: Callable[[Exception], bool] = lambda error: False,
) -> None:
    """Publish a message as a dead letter: with its cause, and as many of its headers as the broker has room for.

    Args:
        letter: what it keeps of its message.
        decision: its cause.
        consumer: the name of the consumer that gave it up.
        publish: publishes the message with the given headers; returns once the broker has confirmed it. None if there
            is no place for it: it is logged, and stays in its own place.
        is_too_large: whether an error of `publish` says that fewer headers may help.

    Raises:
        any error of `publish`: the last error if even the attempts alone are too large.
    """
    if publish is None:
        log.error("the dead letter stays at %s, and is skipped", *letter.place.values())
        return
    ours = {**headers_of(decision, consumer), **letter.place}
    theirs = [pair for pair in letter.headers if text_of(pair[0]) not in {*ours, AGAIN}]
    versions = lighter([*theirs, *ours.items()], letter.spare, letter.needed)
    whole = version = next(versions)
    while True:
        try:
            await publish(version)
            break
        except Exception as error:
            smaller = (
                next((each for each in versions if each != version), None) if is_too_large(error) else None
            )
            if smaller is None:
                raise
            version = smaller
    if (names := dict(version).get(LEFT_OUT)) != dict(whole).get(LEFT_OUT):
        log.error("the broker has no room for all headers of a dead letter; left out: %r", names)


def lighter(
    headers: Iterable[tuple[str, Any]], spare: Collection[str] = (), needed: Collection[str] = ()
) -> Iterator[Headers]:
    """Yield a dead letter's headers, then less and less of them; those of the message itself go last.

    Of these a header that is the message's key is the very last, because without it the message could not be
    delivered again. If no header is the key, a header that holds the key or is a part of it may be its source. A key
    that is a digest of a header does not show which header that is.

    The count of attempts stays. If a header of the message is left out, `LEFT_OUT` names it; if only the key's header
    is left, it says only how many are missing.
    """
    rest = list(headers)
    key = text_of(dict(rest).get(KEY)) or ""
    yield rest
    rest = [(name, value[:_SHORT_ERROR] if name == ERROR else value) for name, value in rest]
    yield rest
    for some in (spare, *((name,) for name in _TOLD if name not in needed)):
        rest = [pair for pair in rest if pair[0] not in some]
        yield rest
    before = [text_of(value) for name, value in rest if name == LEFT_OUT]
    attempts = [pair for pair in rest if pair[0] == ATTEMPTS]
    theirs = sorted((pair for pair in rest if pair[0] not in (ATTEMPTS, LEFT_OUT)), key=_size_of)
    keyed = [pair for pair in theirs if key and text_of(pair[1]) == key]
    keyed = keyed or [pair for pair in theirs if _may_hold(pair[1], key)]
    theirs = [pair for pair in theirs if pair not in keyed]
    names: list[str] = []
    count = 1
    while theirs:
        theirs, out = theirs[:-count], theirs[-count:]
        names += [name for name, _ in reversed(out)]
        yield [*theirs, *keyed, *attempts, _left_out(names, before)]
        count *= 2  # there may be thousands of small ones
    if keyed:
        if names:
            yield [*keyed, *attempts, (LEFT_OUT, f"{len(names)} headers")]
        yield [*attempts, _left_out([*(name for name, _ in reversed(keyed)), *names], before)]


def _left_out(names: Iterable[str], before: Iterable[str | None]) -> tuple[str, str]:
    return LEFT_OUT, ", ".join(filter(None, (*names, *before)))[:_NAMES]


def _may_hold(value: Any, key: str) -> bool:
    """True if the key may have been made of this header's value."""
    text = text_of(value)
    if not text or not key:
        return False
    return text in key or key in text


def _size_of(pair: tuple[str, Any]) -> int:
    name, value = pair
    return len(name) + len(value if isinstance(value, str | bytes | bytearray) else repr(value))
