"""FastStream on a real RabbitMQ."""

from __future__ import annotations

import asyncio
from typing import Any

import aio_pika
import amqp
import pytest
from faststream import AckPolicy, BaseMiddleware
from faststream.rabbit import RabbitBroker, RabbitQueue

from fastdedup.integrations.faststream import message_id
from fastdedup.messages.headers import again_headers

from ..brokers import RabbitServer
from ..waiting import wait_until
from .faststream_lab import Cases, Lab, Make, fault, maker


class RabbitLab(Lab):
    makes_places = False
    limit = 131_072

    def broker(self, *middlewares: Any) -> Any:
        return RabbitBroker(self.server.url, middlewares=middlewares, graceful_timeout=5.0)

    def subscribe(self, broker: Any, **options: Any) -> Any:
        queue = RabbitQueue(self.place, durable=True, arguments=options.pop("arguments", None))
        return broker.subscriber(queue, **options)

    def subscribe_dead(self, broker: Any) -> Any:
        return broker.subscriber(RabbitQueue(self.dead_place, durable=True))

    async def publish(self, order: Any, headers: dict[str, str], **more: Any) -> None:
        await self.observer.publish(order, self.place, headers=headers, **more)

    async def publish_bare(self, order: Any) -> None:
        """Publish without a message id, by another client: aiormq makes one up for each publication."""

        def publish() -> None:
            host = f"127.0.0.1:{self.server.port}"
            with amqp.Connection(host) as connection, connection.channel() as channel:
                message = amqp.Message(str(order), content_type="application/json")
                channel.basic_publish(message, routing_key=self.place)

        await asyncio.to_thread(publish)

    async def left(self) -> int:
        async with await aio_pika.connect(self.server.url) as connection:
            channel = await connection.channel()
            queue = await channel.declare_queue(self.place, passive=True)
            assert queue.declaration_result.message_count is not None
            return queue.declaration_result.message_count


@pytest.fixture
def make(rabbitmq: RabbitServer, redis_url: str) -> Make:
    return maker(RabbitLab, rabbitmq, redis_url)


class TestRabbit(Cases):
    """Every case, on RabbitMQ."""


async def test_the_message_id_is_that_of_the_wire(make: Make) -> None:
    async with make(key=message_id) as lab:
        async with lab.open():
            await lab.publish(7, {}, message_id="order-7")
            await lab.publish(7, {}, message_id="order-7")
            await lab.publish_bare(8)
            await wait_until(
                lambda: lab.dead and lab.counts.duplicate, description="a duplicate, a dead letter"
            )
        assert lab.runs == [7]
        assert lab.dead[0]["x-fastdedup-reason"] == "no_key"
        assert lab.dead[0]["x-fastdedup-queue"] == lab.place  # where `fastdedup dead-letters` puts it again


async def test_a_dead_letter_without_an_id_gets_none_when_it_is_taken_again(make: Make) -> None:
    """The client makes an id up for each copy; as a key it would let the work be done once for each copy."""
    async with make(key=message_id) as lab:
        async with lab.open():
            await lab.publish_bare(7)
            await wait_until(lambda: lab.dead, description="a dead letter")
            again = {name: value for name, value in lab.dead[0].items() if name != "body"}
            await lab.publish(7, again_headers(again))
            await wait_until(lambda: len(lab.dead) == 2, description="a dead letter again")
        assert lab.runs == []


async def test_a_rejected_message_goes_to_the_queues_own_dead_letters(make: Make) -> None:
    async with make(dead_letter=None, attempts=1) as lab:
        lab.then = fault
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": lab.dead_place}
        async with lab.open(arguments=arguments):
            await lab.order(7)
            await wait_until(lambda: lab.dead, description="a dead letter")
        assert lab.dead[0]["x-death"]
        assert await lab.left() == 0


@pytest.mark.parametrize("policy", [AckPolicy.ACK, AckPolicy.NACK_ON_ERROR, AckPolicy.MANUAL])
async def test_every_ack_policy_settles_once(make: Make, policy: AckPolicy) -> None:
    """An ack that is sent twice closes the channel, and then nothing comes any more."""
    async with make(attempts=2) as lab:
        lab.then = lambda: fault() if lab.runs[-1] == 7 else None
        async with lab.open(ack_policy=policy):
            for number in (7, 8, 8):
                await lab.order(number)
            await wait_until(lambda: lab.dead and lab.counts.duplicate, description="all are settled")
        assert sorted(lab.runs) == [7, 7, 8]
        assert await lab.left() == 0


class FailsOnce(BaseMiddleware):  # type: ignore[type-arg,misc]
    """Fails the first publication of a result."""

    failed = False

    async def publish_scope(self, call_next: Any, cmd: Any) -> Any:
        if cmd.destination.endswith("-dead") and not FailsOnce.failed:
            FailsOnce.failed = True
            raise ConnectionError("the broker is gone")
        return await call_next(cmd)


async def test_a_result_that_was_not_published_comes_with_the_next_delivery(make: Make) -> None:
    async with make(keep_result=True) as lab:
        lab.then = lambda: "invoice 7"
        broker = lab.broker(lab.guard, FailsOnce)
        lab.subscribe(broker)(broker.publisher(lab.dead_place)(lab.on_order))
        async with lab.observed():
            await broker.start()
            await lab.order(7)
            await wait_until(lambda: lab.dead, description="the result")
            await broker.stop()
        assert (lab.runs, lab.dead[0]["body"], lab.counts.duplicate) == ([7], "invoice 7", 1)
        assert await lab.left() == 0


async def test_an_outage_of_the_gate_costs_no_delivery(server: Any, make: Make) -> None:
    async with make(url=server.url, timeout=0.1) as lab:
        async with lab.open():
            server.kill()
            await lab.order(7)
            await wait_until(lambda: lab.guard.is_paused, description="it is held")
            server.start()
            await wait_until(lambda: lab.counts.first, description="it is done")
        assert (lab.runs, lab.counts.delivered, lab.raws[0].redelivered) == ([7], 1, False)
        assert await lab.left() == 0


async def test_a_consumer_that_stops_gives_its_message_to_another(make: Make) -> None:
    async with make(retry_delay=0.3) as lab:
        lab.then = lambda: fault() if len(lab.runs) == 1 else None
        async with lab.observed():
            async with lab.consumer():
                await lab.order(7)
                await wait_until(lambda: lab.runs, description="a failed attempt")
            assert len(lab.runs) == 1
            async with lab.consumer():
                await wait_until(lambda: len(lab.runs) == 2, description="another attempt")
        assert await lab.left() == 0
