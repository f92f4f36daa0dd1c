"""`DedupTask`: the base of Celery tasks that do their work once for each key, for any number of messages.

Main path: `DedupTask.__call__` → `TaskGate.run` → `BlockingWay.begin` → the task's body → `Attempt.succeed`.
"""

from __future__ import annotations

import base64
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from ..admin.takeover import Resolution, Takeover
from ..checks import Seconds
from ..errors import ConfigError, FailedError, InProgressError, error_text
from ..extras import needs
from ..messages.blocking import WAIT, Attempt, BlockingWay, check_gate
from ..messages.decisions import Action, Decision, log
from ..messages.headers import CONSUMER, KEY
from ..messages.keys import of_arguments
from ..messages.memory import check_memory, seconds_known
from ..messages.rules import ATTEMPTS, DeadLetterError, MessageRules
from ..sync.claim import Claim
from ..sync.gateway import Dedup
from ..sync.ledger import Ledger

with needs(__name__, "Celery", "'fastdedup[celery]'"):
    from celery import Task
    from celery.exceptions import Ignore, MaxRetriesExceededError, Reject, Retry

HELD: Final = "x-fastdedup-held"
"""How often a message was delayed by a twin at work or by an outage: such a delay spends no attempt."""
_REDELIVERY_SECONDS: Final = {"redis": 3_600.0, "rediss": 3_600.0, "sentinel": 3_600.0, "sqs": 1_800.0}
"""Transports that deliver a message again without an ack, and the default seconds until they do."""


class DedupTask(Task):
    """A Celery task whose body runs once for each key.

        @app.task(base=DedupTask, dedup=dedup, key=lambda order_id: f"order:{order_id}")
        def charge(order_id): ...

    A message whose key is done returns the first result, and its body does not run; its `AsyncResult`, callbacks and
    chord go on with that result. A message whose key is at work elsewhere waits for `wait` seconds, then comes again
    later. An exception frees the key: Celery's own settings decide whether the task is tried again.

    Attributes:
        dedup: the `fastdedup.sync.Dedup`.
        key: a function of the task's arguments, called with those that it names; it returns the key. By default the
            key is the task's id, which Celery keeps in retries and redeliveries, but not when a client sends twice.
        attempts: how often the body is begun for a key, crashes included; then the key has failed. By default 5, or
            `max_retries` + 1 if that is more.
        wait: seconds to wait in the worker's slot for a twin at work.
        fingerprint: a function of the task's arguments; another message with the same key and another fingerprint
            ends in a MismatchError.
        keep_result: keep the result for duplicates.
        remember: the ledger in which the gate remembers finished messages; without it each message's record stays. A
            duplicate that comes more than a minute later then returns None.
        resolve: a function that is not async, called with a `Takeover` before the body runs again, for example after
            a crash or a retry: it says whether an earlier attempt has done the work; see
            `fastdedup.sync.Dedup.claim`. "done" gives the task its result, and "unknown" fails for good. An error of
            the function is an attempt that failed: the message comes again later, and spends no retry of Celery's.
    """

    abstract = True
    dedup: Dedup | None = None
    key: Callable[..., str] | None = None
    attempts: int | None = None
    wait: Seconds | None = WAIT
    fingerprint: Callable[..., Any] | None = None
    keep_result: bool = True
    remember: Ledger | None = None
    resolve: Callable[[Takeover], Resolution] | None = None
    _gate: TaskGate | None = None

    @classmethod
    def bind(cls, app: Any) -> Any:
        """Check the settings, when the task becomes part of an app.

        Raises:
            ConfigError: a setting is wrong; the message names the task.
        """
        bound = super().bind(app)
        if cls.name.startswith("celery."):  # Celery's own, if this is the app's `task_cls`
            return bound
        try:
            cls._gate = TaskGate(cls)
        except ConfigError as error:
            raise ConfigError(f"task {cls.name!r}: {error}") from None
        return bound

    @property
    def claim(self) -> Claim | None:
        """The claim of the body that runs now: send `claim.fence` with your writes, check `claim.lost`."""
        attempt = _attempt_of(self.request)
        return None if attempt is None else attempt.claim

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the body once for its key. A direct call, `charge(7)`, is a plain call: it has no message."""
        request, gate = self.request, self._gate
        if gate is None or request.called_directly or _attempt_of(request) is not None:
            return super().__call__(*args, **kwargs)
        return gate.run(self, request, args, kwargs)

    def apply_async(self, args: Any = None, kwargs: Any = None, *more: Any, **options: Any) -> Any:
        """Send the task, with its key in a header: a later redelivery finds the same key after any change.

        Raises:
            InvalidKeyError: the arguments give no key.
        """
        headers = options.get("headers") or {}
        if _key_in(headers, self.name) is None and self._gate is not None and self._gate.has_rule:
            if self.typing and hasattr(self, "__header__"):
                self.__header__(*(args or ()), **(kwargs or {}))  # wrong arguments are Celery's own TypeError
            key = self._gate.key_of(args or (), kwargs or {})
            options["headers"] = {**headers, KEY: key, CONSUMER: self.name}
        return super().apply_async(args, kwargs, *more, **options)

    def retry(self, args: Any = None, kwargs: Any = None, exc: Any = None, *more: Any, **options: Any) -> Any:
        """Send the task again, like Celery; after the last attempt raise, like Celery after `max_retries`.

        A `DeadLetterError` is raised too: no further attempt can help.
        """
        attempt = _attempt_of(self.request)
        if attempt is not None and (attempt.is_last or isinstance(exc, DeadLetterError)):
            raise exc or MaxRetriesExceededError(
                f"Can't retry {self.name}[{self.request.id}]: attempt {attempt.number} at {attempt.key!r} is the last"
            )
        return super().retry(args, kwargs, exc, *more, **options)


class TaskGate:
    """The gate of one task: its checked rules, and Celery's answer for each decision.

    Raises:
        ConfigError: a setting is wrong.
    """

    def __init__(self, task: type[DedupTask]) -> None:
        dedup = check_gate(task.dedup)
        signature = _signature_of(task)
        key, mark = _plain(task, "key"), _plain(task, "fingerprint")
        self._rule = None if key is None else of_arguments(key, signature)
        rules = MessageRules(
            task.name,
            self._found_key,
            wait=WAIT if task.wait is None else task.wait,
            attempts=_attempts_of(task),
            fingerprint=None if mark is None else of_arguments(mark, signature, "fingerprint"),
            keep_result=task.keep_result,
        )
        self._way = BlockingWay(
            rules,
            dedup,
            "task",
            lambda error: _recorded(task.app, error),
            task.remember,
            _plain(task, "resolve"),
        )
        _check_ttl(seconds_known(dedup, task.remember), task.app)

    @property
    def has_rule(self) -> bool:
        """True if a call's arguments give the key."""
        return self._rule is not None

    def key_of(self, args: Any, kwargs: Any) -> str:
        """Return the key for a call's arguments.

        Raises:
            NoKeyError: the arguments give no key.
        """
        return self._way.rules.key_of((None, args, kwargs))

    def run(self, task: DedupTask, request: Any, args: Any, kwargs: Any) -> Any:
        """Run the task's body if this message is the first; else answer in its place."""
        found = self._begin(request, args, kwargs)
        while isinstance(found, Decision):
            if found.action is not Action.RETRY:
                return _answer(task, found)
            self._deliver_later(task, request, found)
            found = self._begin(request, args, kwargs)
        # For a retry with any arguments.
        request.headers = {**_headers_of(request), KEY: found.key, CONSUMER: task.name}
        request.headers.pop(HELD, None)
        request._protected = 1  # so Celery sees a call of the task within its own body as a plain call
        request.fastdedup_attempt = found
        return _work(task, found, args, kwargs)

    def _begin(self, request: Any, args: Any, kwargs: Any) -> Attempt | Decision:
        return self._way.begin((request, args, kwargs), failed=request.retries or 0)

    def _found_key(self, call: tuple[Any, Any, Any]) -> Any:
        request = call[0]
        sent = None if request is None else _key_in(_headers_of(request), self._way.rules.consumer)
        if sent is not None:
            return sent
        return request.id if self._rule is None else self._rule(call)

    def _deliver_later(self, task: DedupTask, request: Any, decision: Decision) -> None:
        """Send the message again with a countdown, and end this delivery. Neither an attempt nor a retry is spent.

        Returns, a moment later, only if the broker does not take it: the message may be acknowledged already.
        """
        reason = decision.error or InProgressError(f"{decision.key!r} is at work elsewhere", retry_after=1.0)
        if request.is_eager:
            raise reason  # there is no broker that could deliver it later
        headers, held = _headers_of(request), _count(_headers_of(request).get(HELD))
        countdown = self._way.delay(decision, held)
        again = task.signature_from_request(
            request,
            countdown=countdown,
            retries=request.retries,
            headers={**headers, KEY: decision.key, CONSUMER: task.name, HELD: held + 1},
        )
        if not self._way.deliver_later(again.apply_async):
            return
        log.info("task %r: a message comes again in %.1f s: %s", task.name, countdown, decision.reason)
        raise Retry(None, None, countdown, sig=again)


def _work(task: DedupTask, attempt: Attempt, args: Any, kwargs: Any) -> Any:
    """Run the body under its claim, and settle."""
    try:
        result = attempt.result_of(lambda: task.run(*args, **kwargs))
    except (Retry, Ignore, Reject):
        attempt.free()
        raise
    except Exception as error:
        attempt.fail(error)
        raise
    except BaseException:
        attempt.free()
        raise
    attempt.succeed(result, partial(_packed, task))
    return result


def _answer(task: DedupTask, decision: Decision) -> Any:
    """Return the first run's result to a duplicate, or raise its error."""
    error = decision.error
    if isinstance(error, FailedError):
        told = error.error
        is_celerys = isinstance(told, dict) and "exc_type" in told
        raise (task.backend.exception_to_python(told) if is_celerys else None) or error
    if error is not None:
        raise error
    return _unpacked(task, decision.result)


def _recorded(app: Any, error: BaseException) -> Any:
    """Return an error in the form that result backends keep, so that a duplicate's caller gets the same type."""
    try:
        return app.backend.prepare_exception(error, serializer="json")
    except Exception:  # noqa: BLE001 -- an exception of the user's own kind may refuse
        return error_text(error, repr)


def _packed(task: DedupTask, result: Any) -> Any:
    """Return a result in the form that its backend keeps, so that a duplicate's caller gets the same types.

    Raises:
        any error of the backend, which cannot keep it.
    """
    if result is None:
        return None
    text = task.backend.encode(result)
    return {"base64": base64.b64encode(text).decode()} if isinstance(text, bytes) else text


def _unpacked(task: DedupTask, kept: Any) -> Any:
    if kept is None:
        return None
    return task.backend.decode(base64.b64decode(kept["base64"]) if isinstance(kept, dict) else kept)


def _attempt_of(request: Any) -> Attempt | None:
    attempt: Attempt | None = getattr(request, "fastdedup_attempt", None)
    return attempt


def _headers_of(request: Any) -> dict[str, Any]:
    return request.headers or {}


def _key_in(headers: dict[str, Any], task: str) -> Any:
    """Return the key that headers carry for a task; None if there is none, or it is that of another task.

    A body may pass the headers of its own message on, with its key among them.
    """
    return headers.get(KEY) if headers.get(CONSUMER, task) == task else None


def _count(value: Any) -> int:
    return value if isinstance(value, int) and value > 0 else 0


# Settings


def _plain(task: type[DedupTask], name: str) -> Any:
    """Return an attribute of a class unchanged: a function, not a method."""
    found = inspect.getattr_static(task, name)
    return found.__func__ if isinstance(found, staticmethod) else found


def _signature_of(task: type[DedupTask]) -> inspect.Signature:
    """Return the signature of a task's body, without `self`."""
    found = inspect.getattr_static(task, "run")
    if isinstance(found, staticmethod):
        return inspect.signature(found.__func__)
    whole = inspect.signature(found)
    return whole.replace(parameters=list(whole.parameters.values())[1:])


def _attempts_of(task: type[DedupTask]) -> Any:
    """Return how often the body may begin. Celery's own retries must fit in, if the task sets their number."""
    retries: Any = task.max_retries
    is_set = any("max_retries" in vars(each) for each in task.__mro__ if each not in Task.__mro__)
    if task.attempts is None:
        if retries is None:
            raise ConfigError(
                "max_retries=None retries without end: set attempts= to say how often the body begins"
            )
        return max(ATTEMPTS, int(retries) + 1)
    if is_set and isinstance(retries, int) and isinstance(task.attempts, int) and task.attempts <= retries:
        raise ConfigError(
            f"attempts={task.attempts} ends the task before its max_retries={retries} does: "
            f"set attempts to {retries + 1} or more, or lower max_retries"
        )
    return task.attempts


def _check_ttl(ttl: float, app: Any) -> None:
    """Refuse a gate that forgets a key before the broker delivers its message again."""
    transport = str(app.conf.broker_url or "").partition(":")[0].partition("+")[0]
    options = app.conf.broker_transport_options or {}
    seconds = options.get("visibility_timeout", _REDELIVERY_SECONDS.get(transport))
    if seconds is not None:
        check_memory(ttl, float(seconds), "visibility_timeout")
