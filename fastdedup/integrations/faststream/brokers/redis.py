"""Redis in FastStream: streams with a group; lists and channels, which deliver a message once and no more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ....errors import ConfigError
from ..settings import GuardSettings
from .base import BrokerWay, as_text, need_dead_letter, refuse_ack_first, refuse_batches, refuse_loop


class RedisWay(BrokerWay):
    """Redis. A message that was not done is held in place; one of a consumer that died waits to be claimed."""

    def message_id(self, raw: Any) -> str | None:
        """Return the stream and the entry's id; lists and channels have no ids."""
        return self.offset(raw)

    def offset(self, raw: Any) -> str | None:
        """Return the stream and the entry's id, which begins with its time."""
        ids = raw.get("message_ids")
        return f"{raw['channel']}/{ids[0].decode()}" if ids else None

    def name_of(self, subscriber: Any) -> str:
        """Return the stream and its group; the list; the channel."""
        if stream := _part(subscriber, "stream_sub"):
            return f"redis:stream:{stream.name}:{stream.group}"
        kind, place = _place(subscriber)
        return f"redis:{kind}:{place}"

    def check(self, subscriber: Any, settings: GuardSettings) -> None:
        """Raise ConfigError for a stream without a group, or whose entries are acknowledged when they are read."""
        refuse_batches(subscriber)
        if stream := _part(subscriber, "stream_sub"):
            if not stream.group or stream.no_ack:
                raise ConfigError(
                    f"the entries of the stream {stream.name!r} are never acknowledged, so a crash would lose them: "
                    "give StreamSub(…, group=…, consumer=…) without no_ack"
                )
            refuse_ack_first(subscriber)
        need_dead_letter(settings, "Redis")
        refuse_loop(settings, [_place(subscriber)[1]])

    def delivers_again(self, subscriber: Any) -> bool:
        """Return False: an entry that is given back only waits among the pending ones."""
        return False

    async def ack(self, message: Any, subscriber: Any) -> None:
        """Acknowledge a message. Before FastStream 0.7.8 an entry does not know its group."""
        stream = _part(subscriber, "stream_sub")
        if stream is None or hasattr(message, "group"):
            await message.ack()
        else:
            await message.ack(redis=subscriber._client, group=stream.group)

    async def bury(
        self, message: Any, subscriber: Any, publisher: Any, destination: str, headers: Mapping[str, Any]
    ) -> None:
        """Add a copy to a list, for a list's message, or to a stream."""
        where = {"list" if _part(subscriber, "list_sub") else "stream": destination}
        await publisher.publish(message.body, headers=as_text(headers), **where)


def _part(subscriber: Any, name: str) -> Any:
    return getattr(subscriber, name, None)


def _place(subscriber: Any) -> tuple[str, str]:
    """Return the kind of place that a subscriber reads, and its name."""
    for kind, name in (("stream", "stream_sub"), ("list", "list_sub"), ("channel", "channel")):
        if found := _part(subscriber, name):
            return kind, found.name
    raise ConfigError(f"DedupMiddleware guards streams, lists and channels, got {type(subscriber).__name__}")
