"""FastStream on a real NATS: JetStream, and what core NATS does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import nats as nats_py
import pytest
from faststream.nats import JStream, NatsBroker, PullSub
from nats.aio.msg import Msg
from nats.errors import OutboundBufferLimitError
from nats.js.api import ConsumerConfig

from fastdedup.integrations.faststream import message_id, offset

from ..brokers import NatsServer
from ..waiting import wait_until
from .faststream_lab import Cases, Lab, Make, fault, maker

DURABLE = "billing"


class NatsLab(Lab):
    makes_places = False
    limit = 65_535

    def broker(self, *middlewares: Any) -> Any:
        return NatsBroker(self.server.url, middlewares=middlewares, graceful_timeout=5.0)

    def stream(self, place: str) -> JStream:
        return JStream(place, subjects=[place])

    def subscribe(self, broker: Any, **options: Any) -> Any:
        return broker.subscriber(
            self.place,
            stream=self.stream(self.place),
            **{
                "durable": DURABLE,
                "pull_sub": PullSub(batch_size=8, timeout=0.2),
                "max_workers": 4,
                **options,
            },
        )

    def subscribe_dead(self, broker: Any) -> Any:
        return broker.subscriber(self.dead_place, stream=self.stream(self.dead_place))

    async def publish(self, order: Any, headers: dict[str, str]) -> None:
        await self.observer.publish(order, self.place, headers=headers, stream=self.place)

    async def left(self) -> int:
        client = await nats_py.connect(self.server.url)
        about = await client.jetstream().consumer_info(self.place, DURABLE)
        await client.close()
        return int(about.num_ack_pending + about.num_pending)


@pytest.fixture
def make(nats: NatsServer, redis_url: str) -> Make:
    return maker(NatsLab, nats, redis_url)


class TestJetStream(Cases):
    """Every case, on JetStream."""


async def test_the_message_id_is_the_header_of_nats(make: Make) -> None:
    async with make(key=message_id, attempts=1) as lab:
        lab.then = fault
        async with lab.open():
            await lab.publish(7, {"Nats-Msg-Id": "order-7"})
            await lab.publish(8, {"message_id": "order-8"})
            await wait_until(lambda: len(lab.dead) == 2, description="two dead letters")
        reasons = {each.get("x-fastdedup-key"): each["x-fastdedup-reason"] for each in lab.dead}
        assert reasons == {"order-7": "failed", None: "no_key"}
        assert not any(
            "Nats-Msg-Id" in each for each in lab.dead
        )  # a stream would drop them as published twice


async def test_a_messages_place_in_the_stream_is_its_key(make: Make) -> None:
    async with make(key=offset, attempts=2) as lab:
        lab.then = fault
        async with lab.open():
            await lab.publish(7, {})
            await wait_until(lambda: lab.dead, description="a dead letter")
        assert lab.runs == [7, 7]
        assert lab.dead[0]["x-fastdedup-key"].startswith(f"{lab.place}/1@")


async def test_a_failed_message_is_delivered_again_after_its_delay(make: Make) -> None:
    async with make() as lab:
        times: list[float] = []
        loop = asyncio.get_running_loop()

        def fail_once() -> None:
            times.append(loop.time())
            if len(times) == 1:
                fault()

        lab.then = fail_once
        async with lab.open():
            await lab.order(7)
            await wait_until(lambda: len(times) == 2, description="a second delivery")
        assert times[1] - times[0] >= 0.04
        assert lab.raws[-1].metadata.num_delivered == 2


@pytest.mark.parametrize(
    ("pull", "waits"),
    [(True, {"ack_wait": 1.0}), (False, {"ack_wait": 1.0}), (True, {"backoff": [1.0, 20.0]})],
    ids=["pull", "push", "backoff"],
)
async def test_work_longer_than_the_ack_wait_is_not_delivered_again(
    make: Make, monkeypatch: pytest.MonkeyPatch, pull: bool, waits: dict[str, Any]
) -> None:
    """The signs of life go on after an error of the first."""
    signs: list[str] = []
    in_progress = Msg.in_progress

    async def fails_first(message: Msg) -> None:
        signs.append(message.subject)
        if len(signs) == 1:
            raise OutboundBufferLimitError
        await in_progress(message)

    monkeypatch.setattr(Msg, "in_progress", fails_first)
    async with make() as lab:
        lab.then = lambda: wait_until(lambda: len(signs) == 7, description="two ack_waits are over")
        options = {} if pull else {"pull_sub": None, "max_workers": 1, "durable": None}
        async with lab.open(config=ConsumerConfig(**waits), **options):
            await lab.order(7)
            await wait_until(lambda: lab.counts.first, description="it is done")
        assert (lab.runs, lab.counts.delivered) == ([7], 1)


async def test_a_dead_letter_without_a_place_is_terminated(make: Make) -> None:
    async with make(dead_letter=None, attempts=1) as lab:
        lab.then = fault
        async with lab.open():
            await lab.order(7)
            await wait_until(lambda: lab.counts.dead_lettered, description="a dead letter")
        assert (lab.runs, await lab.left()) == ([7], 0)


@asynccontextmanager
async def started(broker: NatsBroker) -> AsyncIterator[None]:
    """Run a broker whose subscriptions the server knows: core NATS drops what comes before."""
    await broker.start()
    try:
        for _ in range(2):  # the first one overtakes what was not written yet
            await broker._connection.flush()
        yield
    finally:
        await broker.stop()


async def test_core_nats_is_guarded_too(make: Make) -> None:
    async with make(attempts=2) as lab:
        lab.then = lambda: fault() if lab.runs[-1] == 8 else None
        observer, broker = lab.broker(), lab.broker(lab.guard)
        observer.subscriber(lab.dead_place)(lab.on_dead)
        broker.subscriber(lab.place, queue="billing")(lab.on_order)
        async with started(observer), started(broker):
            for number in (7, 7, 8):
                await observer.publish(number, lab.place, headers={"order-id": f"order-{number}"})
            await wait_until(
                lambda: lab.dead and lab.counts.duplicate, description="a dead letter, a duplicate"
            )
        assert (lab.runs, lab.dead[0]["x-fastdedup-key"]) == ([7, 8, 8], "order-8")


@pytest.mark.parametrize("left", [100, 1])
async def test_a_dead_letter_of_core_nats_is_no_larger_than_the_server_takes(make: Make, left: int) -> None:
    """The server closed the connection, and the dead letter was lost: nobody is told what core NATS drops."""
    async with make(attempts=1) as lab:
        lab.then = fault
        observer, broker = lab.broker(), lab.broker(lab.guard)
        observer.subscriber(lab.dead_place)(lab.on_dead)
        broker.subscriber(lab.place, queue="billing")(lab.on_order)
        headers = {
            "order-id": "order-7",
            "trace": "",
            "content-type": "application/json",
            "correlation_id": "7",
        }
        lines = "NATS/1.0\r\n\r\n" + "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        async with started(observer), started(broker):
            client = observer._connection
            headers["trace"] = "t" * (client.max_payload - len(lines) - len("7") - left)
            await client.publish(lab.place, b"7", headers=headers)
            await wait_until(lambda: lab.dead, description="a dead letter")
        assert lab.dead[0]["body"] == 7
        assert lab.dead[0]["x-fastdedup-attempts"] == "1"
        assert ("trace" in lab.dead[0]) == (left == 100)
