"""Amazon SQS with boto3 or aiobotocore: a consumer whose handler does its work once for each message.

    async with Consumer(client, dedup, queue_url=url) as consumer:
        await consumer.run(on_order)

Main path: `Consumer.run` → ReceiveMessage → `Deliveries.handle` → DeleteMessageBatch, or ChangeMessageVisibility.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Unpack

from ..extras import needs

with needs(__name__, "boto3 or aiobotocore", "'fastdedup[sqs]'"):
    import anyio
    from botocore.exceptions import (
        BotoCoreError,
        ClientError,
        CredentialRetrievalError,
        HTTPClientError,
        IncompleteReadError,
        MetadataRetrievalError,
    )
    from botocore.exceptions import ConnectionError as UnreachedError

from ..checks import check_place
from ..errors import ConfigError
from ..gateway import Dedup
from ..keys import business_key
from ..messages.consumer import MessageJob
from ..messages.decisions import Action, Decision, log
from ..messages.headers import KEY, ORIGIN
from ..messages.key_turns import KeyTurns
from ..messages.keys import KeyRule, body_digest, text_of
from ..messages.pulling import PullingConsumer
from ..messages.room import Headers, Letter, lay
from ..messages.rules import DeadLetterError
from ..messages.settings import ConsumerSettings
from ..messages.shared_call import SharedCall

LIMIT: Final = 64
"""Messages in hand at once, by default."""
_FIFO: Final = ".fifo"
MESSAGE_ID: Final = "message-id"
"""The message attribute that `identity` reads first on a standard queue."""
_POLL: Final = 1
"""Seconds that a receive waits for messages: `stop` waits for it at most as long."""
_BATCH: Final = 10
"""The most messages, and message attributes, that SQS takes in one call."""
_LONGEST: Final = 43_200
"""The longest visibility timeout: 12 hours."""
_THREADS: Final = 10
"""Calls of boto3 at once: its pool has so many connections, unless its Config says otherwise."""
_FAULTS: Final = (BotoCoreError, ClientError)
_AWAY: Final = (
    CredentialRetrievalError,
    HTTPClientError,
    IncompleteReadError,
    MetadataRetrievalError,
    UnreachedError,
)
_AWAY_CODES: Final = ("InternalError", "InternalFailure", "OverLimit", "ServiceUnavailable", "Throttl")
"""Parts of the codes of errors that end by themselves. OverLimit: too many messages of the queue are in hand."""
_UNFIT: Final = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""The characters that SQS does not take in an attribute."""

__all__ = [
    "Consumer",
    "DeadLetterError",
    "SqsMessage",
    "attribute",
    "body",
    "deduplication_id",
    "identity",
    "message_id",
]


@dataclass(frozen=True, eq=False, slots=True)
class SqsMessage:
    """A message of a queue.

    Attributes:
        id: the id that SQS gave it.
        body: its text.
        attributes: its message attributes: text, or bytes.
        system: what SQS says of it, such as `ApproximateReceiveCount`, `MessageGroupId`.
        raw: the message as the client returned it.
        ids_are_of_groups: another group may have another message with the same `MessageDeduplicationId`, because the
            queue's `DeduplicationScope` is `messageGroup`.
    """

    id: str
    body: str
    attributes: Mapping[str, Any]
    system: Mapping[str, str]
    raw: Mapping[str, Any]
    ids_are_of_groups: bool = False


def message_id(message: SqsMessage) -> str:
    """Return the id that SQS gave the message.

    A redelivery has the same. A message that its publisher sends again has another one.
    """
    return message.id


def deduplication_id(message: SqsMessage) -> str | None:
    """Return the `MessageDeduplicationId` of a FIFO queue, by which SQS drops a second send for 5 minutes.

    The key has the group too if the ids of a group are its own.
    """
    found = message.system.get("MessageDeduplicationId")
    if not found or not message.ids_are_of_groups:
        return found
    return business_key(message.system["MessageGroupId"], found)


def attribute(name: str) -> Callable[[SqsMessage], str | None]:
    """Return a rule: the key is the text of a message attribute's value."""
    return lambda message: text_of(message.attributes.get(name))


def body(message: SqsMessage) -> str:
    """Return a digest of the message's body. Two orders with equal bodies are one order then."""
    return body_digest(message.body.encode())


def identity(message: SqsMessage) -> str | None:
    """Return the `MessageDeduplicationId`; without it the attribute `message-id`; else the id that SQS gave."""
    return deduplication_id(message) or text_of(message.attributes.get(MESSAGE_ID)) or message.id


class Consumer(PullingConsumer[SqsMessage]):
    """Consumes a queue; the handler's work is done once for each message.

    Use it as an async context manager, and call `run` in it. A message is deleted when it is done, visible again
    after `retry_delay` seconds if it was not, and goes to the dead-letter queue after `attempts`. Its visibility is
    extended while it is in hand. Messages of one group of a FIFO queue run one after the other; one that was not
    done is tried again in its place, and those after it wait for it.

    Args:
        client: an SQS client of boto3, whose calls run in threads, or of aiobotocore.
        dedup: the gate, open before the consumer runs; None if an inbox decides alone.
        queue_url: the queue's URL.
        key: a function of the message: `identity`, `deduplication_id`, `attribute("order-id")`, `message_id`, `body`,
            or your own.
        dead_letter: the URL of a queue for dead letters; by default the target of the queue's redrive policy.
        limit: messages in hand at once.
        settings: those that all consumers have, see `fastdedup.messages.settings.ConsumerSettings`: inbox, begin,
            remember, resolve, wait, attempts, retry_delay, lease, fingerprint, name, grace.

    Raises:
        ConfigError: a setting is wrong; the message names it.
    """

    def __init__(
        self,
        client: Any,
        dedup: Dedup | None,
        *,
        queue_url: str,
        key: KeyRule = identity,
        dead_letter: str | None = None,
        limit: int = LIMIT,
        **settings: Unpack[ConsumerSettings],
    ) -> None:
        self._client = client
        self._is_async = _is_async(client)
        check_place(queue_url, "queue_url", "the URL of a queue")
        self._is_fifo = queue_url.endswith(_FIFO)
        if dead_letter is not None and (
            check_place(dead_letter, "dead_letter", "the URL of a queue") == queue_url
            or dead_letter.endswith(_FIFO) != self._is_fifo
        ):
            raise ConfigError(f"dead_letter must be another queue of the same kind, got {dead_letter!r}")
        super().__init__(queue_url.rsplit("/", 1)[-1], dedup, key, settings, limit=limit)
        self._dead_letter = dead_letter
        self._url = queue_url
        self._threads = anyio.CapacityLimiter(_THREADS)
        self._deleting = SharedCall(self._delete, self._start_beside)
        self._turns = KeyTurns()
        # Mutable: the queue's visibility timeout and the kind of its ids, read once.
        self._visibility = 0
        self._ids_are_of_groups = False

    async def _call(self, name: str, **given: Any) -> dict[str, Any]:
        call = partial(getattr(self._client, name), **given)
        if not self._is_async:
            async with self._threads:
                return await _in_thread(call)
        found: dict[str, Any] = await call()
        return found

    async def _open(self) -> None:
        reply = await self._call("get_queue_attributes", QueueUrl=self._url, AttributeNames=["All"])
        found = reply["Attributes"]
        self._visibility = int(found["VisibilityTimeout"])
        self._ids_are_of_groups = found.get("DeduplicationScope") == "messageGroup"
        if not self._visibility:
            raise ConfigError(f"the queue {self._url!r} must have a VisibilityTimeout above 0 s, got 0")
        self._deliveries.check_memory(self._visibility, "VisibilityTimeout")
        self._deliveries.follow(self._visibility)
        self._sign_after = self._visibility / 3
        policy = json.loads(found.get("RedrivePolicy") or "{}")
        attempts, most = self._deliveries.rules.attempts, int(policy.get("maxReceiveCount", 0))
        if policy and most < attempts:
            raise ConfigError(
                f"the queue {self._url!r} gives a message up after {most} deliveries (maxReceiveCount): set it to "
                f"attempts={attempts} or more; deliveries that wait for another one count too"
            )
        if self._dead_letter is None:
            if not policy:
                raise ConfigError(
                    f"the queue {self._url!r} has no RedrivePolicy: SQS deletes what is settled, so give "
                    "dead_letter=, the URL of a queue for dead letters"
                )
            *_, account, name = policy["deadLetterTargetArn"].split(":")
            place = {"QueueName": name, "QueueOwnerAWSAccountId": account}
            self._dead_letter = (await self._call("get_queue_url", **place))["QueueUrl"]

    async def _take(self, room: int) -> Sequence[SqsMessage]:
        reply = await self._call(
            "receive_message",
            QueueUrl=self._url,
            MaxNumberOfMessages=min(room, _BATCH),
            WaitTimeSeconds=_POLL,
            VisibilityTimeout=self._visibility,
            AttributeNames=["All"],
            MessageAttributeNames=["All"],
        )
        return [_message(each, self._ids_are_of_groups) for each in reply.get("Messages", ())]

    def _outage_of(self, error: Exception) -> str | None:
        return f"SQS does not answer: {error}" if _is_away(error) else None

    async def _keep(self, messages: Sequence[SqsMessage]) -> None:
        handles = [each.raw["ReceiptHandle"] for each in messages]
        for entries in _entries(handles, VisibilityTimeout=self._visibility):
            with suppress(*_FAULTS):
                await self._call("change_message_visibility_batch", QueueUrl=self._url, Entries=entries)

    async def _work_on(self, job: MessageJob[SqsMessage]) -> None:
        message = job.message
        received = int(message.system.get("ApproximateReceiveCount", 1))
        async with self._turns.of(message.system["MessageGroupId"] if self._is_fifo else None):
            decision = await self._decide(job, message.attributes, received)
        # It is extended no more: its outcome decides when it is visible.
        if decision.action is Action.RETRY:
            await self._show_again(message, self._retry_delay)
        else:
            await self._deleting.ask(message.raw["ReceiptHandle"])

    async def _comes_again(self, job: MessageJob[SqsMessage], decision: Decision) -> bool:
        # In a group's order: messages that went back with it would have spent a delivery, though none was begun.
        return not self._is_fifo

    async def _show_again(self, message: SqsMessage, after: float) -> None:
        """Let SQS deliver a message again, after so many seconds; if that fails, after its visibility timeout."""
        with suppress(*_FAULTS):
            await self._call(
                "change_message_visibility",
                QueueUrl=self._url,
                ReceiptHandle=message.raw["ReceiptHandle"],
                VisibilityTimeout=min(math.ceil(after), _LONGEST),
            )

    async def _give_back(self, job: MessageJob[SqsMessage]) -> None:
        await self._show_again(job.message, 0.0)

    async def _delete(self, handles: list[str]) -> None:
        for entries in _entries(handles):
            try:
                reply = await self._call("delete_message_batch", QueueUrl=self._url, Entries=entries)
                faults: list[Any] = [each["Code"] for each in reply.get("Failed", ())]
            except _FAULTS as error:
                faults = [error] * len(entries)
            if faults:
                log.warning(
                    "consumer %r: messages are delivered again, because their delete failed: %d, the first by %s",
                    self.name,
                    len(faults),
                    faults[0],
                )

    async def _lay(self, message: SqsMessage, decision: Decision) -> None:
        theirs = message.raw.get("MessageAttributes", {})
        letter = Letter(theirs.items(), {ORIGIN: f"{self._url}:{message.id}"}, needed=(KEY,))
        await lay(letter, decision, self.name, partial(self._publish, message), _is_too_large)

    async def _publish(self, message: SqsMessage, headers: Headers) -> None:
        attributes = {name: _attribute(value) for name, value in headers if value != ""}
        if len(attributes) > _BATCH:
            raise _TooManyError
        more = {"MessageGroupId": message.system["MessageGroupId"]} if self._is_fifo else {}
        if "MessageDeduplicationId" in message.system:
            more["MessageDeduplicationId"] = f"dead:{message.id}"
        place = {"QueueUrl": self._dead_letter, "MessageBody": message.body}
        await self._call("send_message", **place, MessageAttributes=attributes, **more)


async def _in_thread(call: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return what a call of boto3 returns. If the queue hangs, neither a cancelled task nor the process waits for it.

    A thread of anyio or of an executor would keep the process until boto3's read_timeout, a minute for each try.
    """
    done = Future[dict[str, Any]]()
    done.set_running_or_notify_cancel()  # a task that leaves it does not end it
    context = copy_context()

    def work() -> None:
        try:
            done.set_result(context.run(call))
        except StopIteration as error:  # which no future takes
            done.set_exception(RuntimeError(repr(error)))
        except BaseException as error:  # noqa: BLE001 -- raised in the task
            done.set_exception(error)

    threading.Thread(target=work, name="fastdedup-sqs", daemon=True).start()
    return await asyncio.wrap_future(done)


class _TooManyError(Exception):
    """SQS takes no more than ten message attributes."""


def _is_too_large(error: Exception) -> bool:
    codes = ("InvalidParameterValue", "MessageTooLong")
    return isinstance(error, _TooManyError) or (
        isinstance(error, ClientError) and any(each in _code(error) for each in codes)
    )


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _is_away(error: Exception) -> bool:
    if not isinstance(error, ClientError):
        return isinstance(error, _AWAY)
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return status >= 500 or any(each in _code(error) for each in _AWAY_CODES)


def _attribute(value: Any) -> dict[str, Any]:
    if isinstance(value, dict):  # one of the message itself
        return {
            name: each for name, each in value.items() if name in ("DataType", "StringValue", "BinaryValue")
        }
    return {"DataType": "String", "StringValue": _UNFIT.sub("\ufffd", str(value))}


def _message(raw: Mapping[str, Any], ids_are_of_groups: bool) -> SqsMessage:
    attributes = {
        name: each.get("StringValue", each.get("BinaryValue"))
        for name, each in raw.get("MessageAttributes", {}).items()
    }
    system = raw.get("Attributes", {})
    return SqsMessage(raw["MessageId"], raw["Body"], attributes, system, raw, ids_are_of_groups)


def _entries(handles: Collection[str], **more: Any) -> Iterator[list[dict[str, Any]]]:
    """Yield the entries of a call for each ten messages."""
    entries = [{"Id": str(place), "ReceiptHandle": each, **more} for place, each in enumerate(handles)]
    for start in range(0, len(entries), _BATCH):
        yield entries[start : start + _BATCH]


def _is_async(client: Any) -> bool:
    modules = [each.__module__.split(".")[0] for each in type(client).__mro__]
    if "botocore" not in modules or not hasattr(client, "receive_message"):
        kind = f"{type(client).__module__}.{type(client).__name__}"
        raise ConfigError(f"client must be an SQS client of boto3 or aiobotocore, got {kind}")
    return "aiobotocore" in modules
