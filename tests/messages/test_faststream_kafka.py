"""FastStream on a broker of Kafka's protocol, by aiokafka and by confluent-kafka."""

from __future__ import annotations

from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from faststream import AckPolicy
from faststream.confluent import KafkaBroker as ConfluentBroker
from faststream.kafka import KafkaBroker

from fastdedup.integrations.faststream import offset

from ..brokers import FAST_GROUP, KafkaServer
from ..waiting import wait_until
from .faststream_lab import Cases, Lab, Make, bury_large, fault, maker

GROUP = "billing"


class KafkaLab(Lab):
    limit = 2000

    def broker(self, *middlewares: Any) -> Any:
        options = {"max_request_size": self.limit} if middlewares else {}
        return KafkaBroker(self.server.url, middlewares=middlewares, graceful_timeout=5.0, **options)

    def subscribe(self, broker: Any, **options: Any) -> Any:
        options = {"ack_policy": AckPolicy.ACK, "group_id": self.group, **FAST_GROUP, **options}
        return broker.subscriber(self.place, auto_offset_reset="earliest", **options)

    def subscribe_dead(self, broker: Any) -> Any:
        return broker.subscriber(self.dead_place, auto_offset_reset="earliest")

    @property
    def group(self) -> str:
        return f"{GROUP}-{self.place}"

    async def publish(self, order: Any, headers: dict[str, str]) -> None:
        await self.observer.publish(order, self.place, headers=headers, key=b"customer-1")

    async def left(self) -> int:
        consumer = AIOKafkaConsumer(bootstrap_servers=self.server.url, group_id=self.group)
        await consumer.start()
        partition = TopicPartition(self.place, 0)
        consumer.assign([partition])
        ends = await consumer.end_offsets([partition])
        done = await consumer.committed(partition)
        await consumer.stop()
        return int(ends[partition] - (done or 0))


class ConfluentLab(KafkaLab):
    def broker(self, *middlewares: Any) -> Any:
        config = {"session.timeout.ms": 2000, "heartbeat.interval.ms": 100}
        config |= {"message.max.bytes": self.limit} if middlewares else {}
        return ConfluentBroker(self.server.url, middlewares=middlewares, graceful_timeout=5.0, config=config)

    def subscribe(self, broker: Any, **options: Any) -> Any:
        options = {"ack_policy": AckPolicy.ACK, "group_id": self.group, "polling_interval": 0.01, **options}
        return broker.subscriber(self.place, auto_offset_reset="earliest", **options)

    def subscribe_dead(self, broker: Any) -> Any:
        options = {"group_id": f"{self.group}-dead", "polling_interval": 0.01}
        return broker.subscriber(self.dead_place, auto_offset_reset="earliest", **options)


@pytest.fixture
def make(kafka: KafkaServer, redis_url: str) -> Make:
    return maker(KafkaLab, kafka, redis_url)


class TestAiokafka(Cases):
    """Every case, by aiokafka."""


async def test_confluents_records_are_guarded_too(make: Make) -> None:
    async with make(kind=ConfluentLab, attempts=2) as lab:
        lab.then = lambda: fault() if lab.runs[-1] == 8 else None
        async with lab.open():
            for number in (7, 7, 8):
                await lab.order(number)
            await wait_until(lambda: lab.dead, description="a dead letter")
        assert lab.runs == [7, 8, 8]
        assert (lab.counts.duplicate, lab.dead[0]["x-fastdedup-key"]) == (1, "order-8")
        assert await lab.left() == 0


async def test_a_dead_letter_by_confluent_is_no_larger_than_it_publishes(make: Make) -> None:
    async with make(kind=ConfluentLab, attempts=1) as lab:
        await bury_large(lab)


@pytest.mark.parametrize("kind", [KafkaLab, ConfluentLab])
async def test_a_records_place_is_its_key(make: Make, kind: type[KafkaLab]) -> None:
    async with make(kind=kind, key=offset, attempts=1) as lab:
        lab.then = fault
        async with lab.open():
            await lab.publish(7, {})
            await wait_until(lambda: lab.dead, description="a dead letter")
        assert lab.dead[0]["x-fastdedup-key"].startswith(f"{lab.place}/0/0@")


async def test_a_record_that_was_not_done_comes_to_the_next_consumer(make: Make) -> None:
    """By confluent-kafka, which joins a group again in half of aiokafka's time."""
    async with make(kind=ConfluentLab, retry_delay=0.2) as lab:
        lab.then = lambda: fault() if len(lab.runs) == 1 else None
        async with lab.observed():
            async with lab.consumer():
                await lab.order(7)
                await wait_until(lambda: lab.runs, description="a failed attempt")
            assert await lab.left() == 1
            async with lab.consumer():
                await wait_until(lambda: lab.counts.first, description="it is done")
        assert (lab.runs, await lab.left()) == ([7, 7], 0)
