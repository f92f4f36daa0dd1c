"""The rules of a client: which requests get a key, which are sent again, and after what time. No I/O."""

from __future__ import annotations

import random
import re
import ssl
import time
import uuid
from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from math import inf
from typing import Any

from ..backoff import Backoff
from ..checks import Seconds, check_count, check_flag, check_seconds, named, shown
from ..downstream import ClaimedWork, present_work
from ..errors import ConfigError, InvalidKeyError

PASSING = frozenset({408, 409, 429, 502, 503, 504})
"""The statuses that may change at the next attempt.

408, 429 and most 503: the request was not executed. 409: an earlier attempt is still at work. 502 and 504: a proxy
has lost the server, and knows no more than a client that has lost it. 500 is left out: it is the answer of a handler
that failed, and may have done half of its work.
"""
_REPLAYED = ("idempotency-replayed", "idempotent-replayed")
"""The headers that mark a stored response: fastdedup's and Stripe's. A retry gets the same response."""
_VERDICT = "stripe-should-retry"
"""Stripe's own answer whether to retry, true or false. It has priority over the status."""
_BARE = re.compile(r"[!#-+\--:<-\[\]-~]{1,255}")
_QUOTABLE = re.compile(r"[ -~]{1,255}")
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_DELAY = re.compile(r"[0-9]+(?:\.[0-9]+)?")
_FAR_YEAR = re.compile(r"(?<=[A-Za-z] )[0-9]{5,}(?= )")
_LENGTH = re.compile(r"[0-9]{1,18}")


def new_key() -> str:
    """Return a new key: a UUID of version 4 as text."""
    return str(uuid.uuid4())


@dataclass(frozen=True, slots=True)
class Retry:
    """The fact that a request is about to be sent again, for logs and metrics."""

    key: str
    """The value of its Idempotency-Key header."""
    attempt: int
    """The number of the attempt that is over; the first is 1."""
    wait: float
    """Seconds until the next attempt."""
    status: int | None
    """The status of the response; None if no response came."""
    error: Exception | None
    """The error in place of a response."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryRules:
    """The settings of a client. A request without a key is sent once.

    Raises:
        ConfigError: a setting cannot be used; the message names it.
    """

    methods: Collection[str] = ("POST", "PATCH")
    """The methods whose requests get a key. A request of any method that comes with a key is retried under it."""
    header: str = "Idempotency-Key"
    make_key: Callable[[], str] = new_key
    """Makes a key of at most 255 printable ASCII characters, for one request.

    By default a UUID; inside a claim (`async with dedup.claim(…)`, `once`) it is then one of the claim, the same for
    every attempt at its work. A function of your own is called there too, and may use `claim.downstream`."""
    quoted: bool = False
    """True: the key is sent as "key", a String of RFC 8941, which a server may insist upon that follows the IETF's
    draft to the letter. False: it is sent bare, like Stripe's. fastdedup's servers take both as the same."""
    statuses: Collection[int] = PASSING
    """The statuses after which a request is sent again."""
    attempts: int = 6
    """The most times that a request is sent."""
    within: Seconds = 60.0
    """Seconds after the first attempt's start in which a further one may start. An attempt that runs is not cut
    short: its own timeouts, set at the client, end it."""
    backoff: Seconds = 0.2
    """The longest wait before the second attempt, in seconds. It doubles with each attempt, and the wait is drawn
    between zero and it. If the server sends `Retry-After`, the drawn time is added to it."""
    max_backoff: Seconds = 10.0
    """The most that `backoff` grows to, in seconds."""
    buffer: int = 1024 * 1024
    """The longest body that httpx's transports hold in memory, in bytes: of a request, so that a file or a form can
    be sent again, and of a response, so that a request is sent again if its response was cut."""
    on_retry: Callable[[Retry], object] | None = None
    """Called before each wait, in the caller's thread or event loop."""
    jitter: Callable[[], float] = random.random
    """Returns a random number between 0 and 1; a test gives its own function."""
    clock: Callable[[], float] = time.monotonic
    """Returns seconds on a clock that is never set; a test gives its own function."""

    def __post_init__(self) -> None:
        self._set("methods", frozenset(method.upper() for method in _texts(self.methods, "methods")))
        self._set("statuses", _statuses(self.statuses))
        if not isinstance(self.header, str) or not _NAME.fullmatch(self.header):
            raise ConfigError(f"header must be the name of a header, got {self.header!r}")
        check_flag(self.quoted, "quoted")
        for name in ("make_key", "on_retry", "jitter", "clock"):
            value = getattr(self, name)
            if not callable(value) and (name, value) != ("on_retry", None):
                raise ConfigError(f"{name} must be a function, got {shown(value)}")
        for name, least in (("within", 0.001), ("backoff", 0.0), ("max_backoff", 0.0)):
            self._set(name, check_seconds(getattr(self, name), name, least=least))
        check_count(self.attempts, "attempts")
        check_count(self.buffer, "buffer", least=0)

    def begin(self, method: str, headers: MutableMapping[str, Any], url: str = "") -> Attempts | None:
        """Give a request its key, and return its attempts; None if it has no key. Errors: see `key_for`.

        Inside a claim a request gets a key of the claim, which a further attempt at the work sends again.
        """
        own = headers.get(self.header)
        key = self.key_for(method, own, url)
        if key is None:
            return None
        if own is None:
            headers[self.header] = key
        return Attempts(self, key, fresh=own is None and self._work() is None, made=own is None)

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def _work(self) -> ClaimedWork | None:
        """Return the work under a claim that this request is a part of, if its key must come from there."""
        return present_work() if self.make_key is new_key else None

    def key_for(self, method: str, own: str | bytes | None, url: str = "") -> str | None:
        """Return the header's value for a request, or None if it gets no key.

        Args:
            method: the request's method, in capitals.
            own: the value of the header that the caller has given it, if any. It is kept.
            url: the request's address; inside a claim the key is made from it.

        Raises:
            InvalidKeyError: the caller's header is empty, or `make_key` returned no valid key.
        """
        if own is not None:
            return _text_of(own, self.header)
        return self._new_value(method, url) if method in self.methods else None

    def _new_value(self, method: str, url: str) -> str:
        work = self._work() if url else None
        key = self.make_key() if work is None else work.key_for(method, url)
        allowed = _QUOTABLE if self.quoted else _BARE
        if not isinstance(key, str) or not allowed.fullmatch(key):
            besides = "" if self.quoted else ', without spaces and any of ",;\\ (or with quoted=True)'
            raise InvalidKeyError(
                f"make_key must return 1 to 255 printable ASCII characters{besides}, got {_seen(key)}"
            )
        return '"' + re.sub(r'(["\\])', r"\\\1", key) + '"' if self.quoted else key

    def fits(self, headers: Mapping[str, str]) -> bool:
        """Return whether a body has a known length, of at most `buffer` bytes."""
        length = headers.get("content-length")
        if length is None or headers.get("transfer-encoding") is not None or not _LENGTH.fullmatch(length):
            return False
        return int(length) <= self.buffer


class Attempts:
    """The attempts of one request. After each, one of two methods returns whether and when the next one comes.

    Args:
        rules: the settings.
        key: the value of the request's key header.
        fresh: whether the key was made for these attempts, so that no other client knows it.
        made: whether the key was made here, so that its header is not the caller's own.

    Attributes:
        repeatable: whether the request's body can be sent again.
    """

    def __init__(self, rules: RetryRules, key: str, *, fresh: bool, made: bool | None = None) -> None:
        self.fresh = fresh
        self.made = fresh if made is None else made
        self.repeatable = True
        self._rules = rules
        self._key = key
        self._began = rules.clock()
        # Mutable: the attempts that are over.
        self._over = 0

    async def final_response(
        self,
        send: Callable[[], Awaitable[Any]],
        close: Callable[[Any], Awaitable[object]],
        sleep: Callable[[float], Awaitable[object]],
        lost: tuple[type[Exception], ...],
    ) -> Any:
        """Send a request until its response is final; return that response. A flow: see `fastdedup.flows`.

        Args:
            send: sends it once; returns a response with `status_code` and `headers`.
            close: closes a response that is not the final one.
            sleep: waits for the given seconds.
            lost: the errors after which it is unknown whether the server has the request. The last one is raised.
        """
        while True:
            try:
                response = await send()
            except lost as error:
                retry = self.after_error(error)
                if retry is None:
                    raise
            else:
                retry = self.after_response(response.status_code, response.headers)
                if retry is None:
                    return response
                await close(response)
            if self._rules.on_retry is not None:
                self._rules.on_retry(retry)
            await sleep(retry.wait)

    def after_response(self, status: int, headers: Mapping[str, str]) -> Retry | None:
        """Return the retry that follows a response, or None if the caller gets the response."""
        self._over += 1
        told = told_seconds(headers)
        if not self._asks_again(status, headers, told):
            return None
        wait = self._wait(told)
        return None if wait is None else Retry(self._key, self._over, wait, status, None)

    def after_error(self, error: Exception) -> Retry | None:
        """Return the retry that follows a lost connection or a timeout, or None if the caller gets the error.

        In that case the error gets a note that says why.
        """
        self._over += 1
        wait = None if lasting(error) else self._wait(None)
        if wait is not None:
            return Retry(self._key, self._over, wait, None, error)
        if not self.repeatable:
            error.add_note(
                "fastdedup: not sent again, because its body cannot be read twice: send bytes or text"
            )
        elif not lasting(error):
            error.add_note(
                f"fastdedup: attempt {self._over} under this {self._rules.header} was the last; whether the request "
                "took effect is unknown"
            )
        return None

    def _asks_again(self, status: int, headers: Mapping[str, str], told: float | None) -> bool:
        if status < 400 or any(headers.get(name, "").lower() == "true" for name in _REPLAYED):
            return False
        verdict = headers.get(_VERDICT, "").lower()
        if verdict in ("true", "false"):
            return verdict == "true"
        # No other client knows a fresh key: a 409 at its first use is the handler's own.
        alone = self.fresh and self._over == 1
        return status in self._rules.statuses and not (status == 409 and told is None and alone)

    def _wait(self, told: float | None) -> float | None:
        """Return the seconds to wait, or None if no attempt is left, or the server asks for too much time."""
        rules = self._rules
        assert isinstance(rules.within, float)
        left = self._began + rules.within - rules.clock()
        least = told or 0.0
        if not self.repeatable or self._over >= rules.attempts or left <= 0.0 or least > left:
            return None
        return min(least + self._backoff(), left)

    def _backoff(self) -> float:
        rules = self._rules
        assert isinstance(rules.backoff, float)
        assert isinstance(rules.max_backoff, float)
        backoff = Backoff(rules.backoff, rules.max_backoff, growth=2.0, steady=0.0)
        return backoff.pause(self._over - 1, rules.jitter)


def told_seconds(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that Retry-After asks for, or None if it is missing or malformed.

    A date is compared with the server's own `Date`, because clocks differ; one in the past is zero seconds. A time
    beyond all numbers and dates is infinite: it is not a reason to retry at once.
    """
    value = headers.get("retry-after", "").strip()
    if _DELAY.fullmatch(value):
        return float(value)
    then = _date(value)
    if then is None:
        near, far = _FAR_YEAR.subn("9999", value)
        return inf if far and _date(near) is not None else None
    now = _date(headers.get("date", "")) or datetime.now(UTC)
    return max(0.0, (then - now).total_seconds())


def lasting(error: BaseException | None) -> bool:
    """Return whether an error would come again: a certificate that cannot be trusted."""
    for _ in range(20):  # each library wraps the error a few times
        if error is None or isinstance(error, ssl.SSLCertVerificationError):
            break
        error = error.__cause__ or error.__context__
    return isinstance(error, ssl.SSLCertVerificationError)


def _date(value: str) -> datetime | None:
    try:
        date = parsedate_to_datetime(value)
    except (ValueError, TypeError, OverflowError, IndexError):
        return None
    return date if date.tzinfo is not None else date.replace(tzinfo=UTC)


def _text_of(own: str | bytes, header: str) -> str:
    text = own.decode("latin-1") if isinstance(own, bytes) else own
    if not text.strip(' \t"'):
        raise InvalidKeyError(
            f"the header {header} is empty: give a key, or leave the header out to get one made"
        )
    return text


def _seen(key: Any) -> str:
    return f"text of {len(key)} characters" if isinstance(key, str) else named(key)


def _texts(values: Any, name: str) -> list[str]:
    if isinstance(values, str) or not isinstance(values, Collection):
        raise ConfigError(f"{name} must be a list such as ['POST'], got {shown(values)}")
    if not all(isinstance(value, str) and value for value in values):
        raise ConfigError(f"{name} must be a list of text, got {list(values)!r}")
    return list(values)


def _statuses(values: Any) -> frozenset[int]:
    if isinstance(values, str | bytes) or not isinstance(values, Collection):
        raise ConfigError(f"statuses must be a list such as [409, 503], got {shown(values)}")
    if not all(type(value) is int and 400 <= value <= 599 for value in values):
        raise ConfigError(f"statuses must be whole numbers from 400 to 599, got {list(values)!r}")
    return frozenset(values)
