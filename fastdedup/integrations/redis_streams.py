"""Redis Streams with redis-py: a consumer of a group whose handler does its work once for each entry.

    async with Consumer(redis, dedup, stream="orders", group="billing", key=field("id")) as consumer:
        await consumer.run(on_order)

Main path: `Consumer.run` → XREADGROUP, XAUTOCLAIM → `Deliveries.handle` → XACK.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final, Unpack

from redis import RedisError, ResponseError
from redis.asyncio import Redis, RedisCluster
from redis.client import NEVER_DECODE
from redis.commands.core import StreamCommands
from redis.exceptions import RedisClusterException

from ..extras import needs

with needs(__name__, "anyio", "'fastdedup[redis-streams]'"):
    import anyio

from ..checks import Seconds, check_place, milliseconds, wrong_type
from ..errors import ConfigError
from ..gateway import Dedup
from ..messages.consumer import MessageJob
from ..messages.decisions import Decision, log
from ..messages.headers import ORIGIN
from ..messages.keys import KeyRule, text_of
from ..messages.pulling import PullingConsumer
from ..messages.room import Headers, Letter, lay
from ..messages.rules import DeadLetterError
from ..messages.settings import ConsumerSettings
from ..messages.shared_call import SharedCall
from ..stores.redis.errors import is_outage

LIMIT: Final = 256
"""Entries in hand at once, by default."""
_BLOCK: Final = 0.5
"""Seconds that a read waits for entries."""
_PREFIX: Final = "fastdedup-"
_LONG_GONE_MS: Final = 3_600_000
_FAULTS: Final = (RedisError, RedisClusterException, OSError)

__all__ = ["Consumer", "DeadLetterError", "StreamEntry", "entry_id", "field"]


@dataclass(frozen=True, slots=True)
class StreamEntry:
    """An entry of a stream.

    Attributes:
        stream: the stream's name.
        id: the entry's id.
        fields: its fields, in bytes unless the client decodes them, and can.
        deliveries: how often it was delivered, this delivery included.
    """

    stream: str
    id: str
    fields: Mapping[Any, Any]
    deliveries: int = 1


def entry_id(entry: StreamEntry) -> str:
    """Return the entry's stream and id.

    A redelivery has the same. A message that its publisher adds again has others: then use `field`.
    """
    return f"{entry.stream}:{entry.id}"


def field(name: str) -> Callable[[StreamEntry], str | None]:
    """Return a rule: the key is a field's value."""
    return lambda entry: text_of(entry.fields.get(name, entry.fields.get(name.encode())))


class Consumer(PullingConsumer[StreamEntry]):
    """Consumes a stream as a member of a group; the handler's work is done once for each entry.

    Use it as an async context manager, and call `run` in it. An entry is acknowledged when it is done. One that was
    not done is tried again here, after `retry_delay` seconds, and is a dead letter after `attempts`. Entries of a
    member that died are taken over.

    Args:
        redis: a redis.asyncio client; the consumer takes up to five connections of its pool at once, a long read
            one of them.
        dedup: the gate, open before the consumer runs; None if an inbox decides alone.
        stream: the stream's name.
        group: the group's name; the group exists.
        key: a function of the entry: `field("id")`, `entry_id`, or your own.
        dead_letter: a stream for dead letters. By default a dead letter is logged, and stays in its own stream.
        limit: entries in hand at once.
        idle: seconds without a sign from a member after which it counts as dead, and its entry is taken.
        settings: those that all consumers have, see `fastdedup.messages.settings.ConsumerSettings`: inbox, begin,
            remember, resolve, name, wait, attempts, retry_delay, lease, fingerprint, grace.

    Raises:
        ConfigError: a setting is wrong; the message names it.
    """

    def __init__(
        self,
        redis: Redis | RedisCluster,
        dedup: Dedup | None,
        *,
        stream: str,
        group: str,
        key: KeyRule,
        dead_letter: str | None = None,
        limit: int = LIMIT,
        idle: Seconds = 60.0,
        **settings: Unpack[ConsumerSettings],
    ) -> None:
        _check_client(redis)
        check_place(stream, "stream")
        check_place(group, "group")
        if dead_letter is not None and check_place(dead_letter, "dead_letter") == stream:
            raise ConfigError(f"dead_letter must be another stream, got {dead_letter!r}")
        super().__init__(group, dedup, key, settings, limit=limit)
        self._dead_letter = dead_letter
        self._redis: Any = redis
        self._undecoded: Any = _UndecodedStreams(redis)  # type: ignore[abstract] # redis-py's protocol is for its types
        self._encoder: Any = redis.get_encoder()
        self._stream = stream
        self._group = group
        self._member = f"{_PREFIX}{secrets.token_hex(8)}"
        self._idle_ms = milliseconds(idle, "idle")
        self._sign_after = self._idle_ms / 3000
        self._deliveries.check_memory(self._idle_ms / 1000, "idle")
        self._acknowledging = SharedCall(self._acknowledge, self._start_beside)
        self._giving_back = SharedCall(self._hand_over, self._start_beside)
        self._laying = anyio.Lock()
        # Mutable: the time of the next look for the entries of dead members, and the entry to begin at.
        self._next_look = 0.0
        self._cursor = "0-0"

    async def _open(self) -> None:
        try:
            groups = await self._redis.xinfo_groups(self._stream)
        except ResponseError as error:
            if "no such key" not in str(error):
                raise
            groups = []
        if self._group not in {_text(each["name"]) for each in groups}:
            raise ConfigError(
                f"the stream {self._stream!r} has no group {self._group!r}: await redis.xgroup_create("
                f"{self._stream!r}, {self._group!r}, id='0', mkstream=True)"
            )
        await self._forget_the_long_gone()

    async def _forget_the_long_gone(self) -> None:
        """Remove members that ended long ago and have no entries: each consumer is a new member."""
        for member in await self._redis.xinfo_consumers(self._stream, self._group):
            ours = _text(member["name"]).startswith(_PREFIX)
            if ours and not member["pending"] and member["idle"] > _LONG_GONE_MS:
                await self._redis.xgroup_delconsumer(self._stream, self._group, member["name"])

    # Taking

    async def _take(self, room: int) -> Sequence[StreamEntry]:
        if monotonic() >= self._next_look and (found := await self._take_over(room)):
            return found
        reply = await self._undecoded.xreadgroup(
            self._group, self._member, {self._stream: ">"}, count=room, block=round(_BLOCK * 1000)
        )
        return [StreamEntry(self._stream, entry, self._decoded(fields)) for entry, fields in _entries(reply)]

    def _outage_of(self, error: Exception) -> str | None:
        return f"its Redis does not answer: {error}" if _is_outage(error) else None

    async def _take_over(self, room: int) -> list[StreamEntry]:
        """Take entries over from members that died."""
        # Before the call, because an entry that is acknowledged meanwhile was this member's.
        in_hand = {job.message.id for job in self._jobs}
        reply = await self._undecoded.xautoclaim(
            self._stream, self._group, self._member, self._idle_ms, start_id=self._cursor, count=room
        )
        self._cursor = _text(reply[0])
        if self._cursor == "0-0":  # all were looked at
            self._next_look = monotonic() + self._idle_ms / 2000
        found = {_text(entry): fields for entry, fields in reply[1] if fields}
        found = {entry: fields for entry, fields in found.items() if entry not in in_hand}
        counts = await self._deliveries_of(found) if self._counts_deliveries else {}
        return [
            StreamEntry(self._stream, entry, self._decoded(fields), counts.get(entry, 2))
            for entry, fields in found.items()
        ]

    def _decoded(self, fields: Mapping[Any, Any]) -> Mapping[Any, Any]:
        """Return an entry's fields as the client gives them; what it cannot decode stays in bytes."""
        if not self._encoder.decode_responses:
            return fields
        return {self._text_if_any(name): self._text_if_any(value) for name, value in fields.items()}

    def _text_if_any(self, value: Any) -> Any:
        try:
            return self._encoder.decode(value)
        except UnicodeDecodeError:
            return value

    async def _deliveries_of(self, entries: Collection[str]) -> dict[str, int]:
        """Return how often these entries were delivered."""
        if not entries:
            return {}
        async with self._redis.pipeline(transaction=False) as pipe:
            for entry in entries:
                pipe.xpending_range(self._stream, self._group, min=entry, max=entry, count=1)
            replies = await pipe.execute()
        return {
            _text(each["message_id"]): int(each["times_delivered"]) for reply in replies for each in reply
        }

    async def _keep(self, messages: Sequence[StreamEntry]) -> None:
        await self._set_idle(0, [entry.id for entry in messages])

    async def _give_back(self, job: MessageJob[StreamEntry]) -> None:
        await self._giving_back.ask(job.message.id)

    async def _hand_over(self, ids: list[str]) -> None:
        """Let the next member that looks take these entries over."""
        await self._set_idle(self._idle_ms, ids)

    async def _set_idle(self, idle_ms: int, ids: list[str]) -> None:
        if ids:
            with _outages():
                await self._redis.xclaim(
                    self._stream, self._group, self._member, 0, ids, idle=idle_ms, justid=True
                )

    # Working

    async def _work_on(self, job: MessageJob[StreamEntry]) -> None:
        entry = job.message
        headers = {_text(name): value for name, value in entry.fields.items()}
        await self._decide(job, headers, entry.deliveries)
        await self._acknowledging.ask(entry.id)

    async def _acknowledge(self, ids: list[str]) -> None:
        with _outages() as outages:
            await self._redis.xack(self._stream, self._group, *ids)
        for error in outages:
            log.warning(
                "consumer %r: XACK failed, so %s from %s on will be delivered again: %s",
                self.name,
                "an entry" if len(ids) == 1 else f"{len(ids)} entries",
                ids[0],
                error,
            )

    async def _comes_again(self, job: MessageJob[StreamEntry], decision: Decision) -> bool:
        return False

    async def _lay(self, message: StreamEntry, decision: Decision) -> None:
        letter = Letter(message.fields.items(), {ORIGIN: entry_id(message)})
        await lay(letter, decision, self.name, None if self._dead_letter is None else self._publish)

    async def _publish(self, headers: Headers) -> None:
        async with self._laying:
            await self._redis.xadd(self._dead_letter, dict(headers))


class _UndecodedStreams(StreamCommands):
    """The commands of streams, of a client that may decode replies: these stay in bytes.

    A single entry that cannot be decoded would be an error of each reply that has it, and so end each consumer.
    """

    def __init__(self, redis: Redis | RedisCluster) -> None:
        self._redis: Any = redis

    def execute_command(self, *command: Any, **options: Any) -> Any:
        """Send a command by the client."""
        return self._redis.execute_command(*command, **options, **{NEVER_DECODE: True})


@contextmanager
def _outages() -> Iterator[list[Exception]]:
    """Let every error through but an outage of Redis, which goes into the list."""
    outages: list[Exception] = []
    try:
        yield outages
    except Exception as error:
        if not _is_outage(error):
            raise
        outages.append(error)


def _is_outage(error: Exception) -> bool:
    return isinstance(error, _FAULTS) and is_outage(error)


def _text(value: Any) -> str:
    return value.decode(errors="surrogateescape") if isinstance(value, bytes) else str(value)


def _entries(reply: Any) -> Iterator[tuple[str, Mapping[Any, Any]]]:
    """Yield the id and fields of XREADGROUP's entries: a list in RESP2, a dict of lists in lists in RESP3."""
    for entries in reply.values() if isinstance(reply, dict) else (each[1] for each in reply or ()):
        for entry in entries[0] if entries and isinstance(entries[0], list) else entries:
            yield _text(entry[0]), entry[1]


def _check_client(redis: Any) -> None:
    if not isinstance(redis, Redis | RedisCluster):
        raise wrong_type(redis, "redis", "redis.asyncio.Redis or RedisCluster")
    pool = getattr(redis, "connection_pool", None)
    timeout = None if pool is None else pool.connection_kwargs.get("socket_timeout")
    if timeout is not None and timeout <= _BLOCK:
        raise ConfigError(
            f"redis must have a socket_timeout above {_BLOCK:g} s, because its reads wait so long, got {timeout!r}"
        )
