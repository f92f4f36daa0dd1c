"""The brokers of the tests: each takes messages and keeps what it says it keeps. Every server ends with the tests."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aio_pika
import nats as nats_client
import psutil
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from confluent_kafka import Consumer

from .brokers import FAST_GROUP, Broker, KafkaServer, NatsServer, RabbitServer
from .database_server import ROOT, runs
from .waiting import wait_until

KILLED_TESTS = """
import time
from tests.{module} import {kind}
server = {kind}()
server.{start}()
print(server.pid, server.folder, flush=True)
time.sleep(60)
"""


@pytest.fixture(params=["rabbitmq", "nats", "kafka"])
def broker(request: pytest.FixtureRequest) -> Broker:
    """This worker's broker of each kind."""
    running: Broker = request.getfixturevalue(request.param)
    return running


async def test_rabbitmq_keeps_durable_messages_over_a_kill() -> None:
    message = aio_pika.Message(b"kept", delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
    with RabbitServer("{consumer_timeout, 5000}") as server:
        async with rabbit_channel(server) as channel:
            for kind in ("classic", "quorum"):
                await channel.declare_queue(kind, durable=True, arguments={"x-queue-type": kind})
                await channel.default_exchange.publish(
                    message, routing_key=kind
                )  # returns once it is confirmed
        await wait_until(lambda: server.would_keep("quorum"), description="the quorum queue is on disk")
        processes = psutil.Process(server.pid).children(recursive=True)
        server.restart()
        assert not any(map(runs, processes))
        async with rabbit_channel(server) as channel:
            for kind in ("classic", "quorum"):
                queue = await channel.get_queue(kind)
                assert (await queue.get(timeout=10)).body == b"kept"


@asynccontextmanager
async def rabbit_channel(server: RabbitServer) -> AsyncIterator[aio_pika.abc.AbstractChannel]:
    async with await aio_pika.connect(server.url) as connection:
        yield await connection.channel()


async def test_nats_keeps_a_stream_over_a_kill() -> None:
    with NatsServer() as server:
        client = await nats_client.connect(server.url)
        await client.jetstream().add_stream(name="orders", subjects=["orders"])
        await client.jetstream().publish("orders", b"kept")
        await client.close()
        server.restart()
        client = await nats_client.connect(server.url)
        subscription = await client.jetstream().pull_subscribe("orders", durable="c")
        (message,) = await subscription.fetch(1, timeout=10)
        assert message.data == b"kept"
        await client.close()


async def test_a_killed_kafka_broker_comes_back_empty() -> None:
    with KafkaServer() as server:
        await make_topic(server, "orders", 1)
        await produce(server, "orders", b"lost")
        server.restart()
        async with administrator(server) as admin:
            assert "orders" not in await admin.list_topics()


async def test_kafka_keeps_what_a_group_committed(kafka: KafkaServer) -> None:
    topic, group = kafka.name("topic"), kafka.name("group")
    await make_topic(kafka, topic, 1)
    await produce(kafka, topic, b"first", b"second")
    async with member(kafka, topic, group) as consumer:
        assert (await consumer.getone()).value == b"first"
        await consumer.commit({TopicPartition(topic, 0): 1})
    async with member(kafka, topic, group) as consumer:
        message = await consumer.getone()
        assert (message.value, message.headers) == (b"second", (("kind", b"order"),))


async def test_kafka_shares_partitions_among_a_group(kafka: KafkaServer) -> None:
    topic, group = kafka.name("topic"), kafka.name("group")
    await make_topic(kafka, topic, 2)
    async with member(kafka, topic, group) as first:
        assert len(first.assignment()) == 2
        async with member(kafka, topic, group) as second:
            await wait_until(
                lambda: len(first.assignment()) == len(second.assignment()) == 1, description="a rebalance"
            )
            assert not first.assignment() & second.assignment()
        await wait_until(lambda: len(first.assignment()) == 2, description="a rebalance after the other left")


async def test_confluents_client_reads_what_aiokafka_wrote(kafka: KafkaServer) -> None:
    topic = kafka.name("topic")
    await make_topic(kafka, topic, 1)
    await produce(kafka, topic, b"same")
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.url,
            "group.id": kafka.name("group"),
            "auto.offset.reset": "earliest",
            "max.poll.interval.ms": 1000,  # its rebalance timeout
            "session.timeout.ms": 1000,
        }
    )
    consumer.subscribe([topic])
    message = await asyncio.to_thread(consumer.poll, 20)
    assert message is not None
    assert message.value() == b"same"
    await asyncio.to_thread(consumer.close)


async def make_topic(server: KafkaServer, topic: str, partitions: int) -> None:
    async with administrator(server) as admin:
        await admin.create_topics([NewTopic(topic, partitions, 1)])


@asynccontextmanager
async def administrator(server: KafkaServer) -> AsyncIterator[AIOKafkaAdminClient]:
    admin = AIOKafkaAdminClient(bootstrap_servers=server.url)
    await admin.start()
    yield admin
    await admin.close()


async def produce(server: KafkaServer, topic: str, *values: bytes) -> None:
    async with AIOKafkaProducer(bootstrap_servers=server.url) as producer:
        for value in values:
            await producer.send_and_wait(topic, value, headers=[("kind", b"order")])


def member(server: KafkaServer, topic: str, group: str) -> AIOKafkaConsumer:
    return AIOKafkaConsumer(
        topic,
        bootstrap_servers=server.url,
        group_id=group,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        **FAST_GROUP,
    )


def test_a_broker_listens_on_loopback_alone(broker: Broker) -> None:
    first = psutil.Process(broker.pid)
    connections = [c for process in (first, *first.children()) for c in process.net_connections("inet")]
    listening = {c.laddr.ip for c in connections if c.status == psutil.CONN_LISTEN}
    assert listening <= {"127.0.0.1", "::1"}


async def test_a_frozen_broker_answers_once_thawed(broker: Broker) -> None:
    with broker.frozen():
        asked = asyncio.create_task(asyncio.to_thread(broker._wait_until_up))
        done, _ = await asyncio.wait([asked], timeout=0.1)
        assert not done
    await asked


def test_names_of_a_broker_never_meet(broker: Broker) -> None:
    assert broker.name("orders") != broker.name("orders")


def test_a_broker_that_does_not_start_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    server = NatsServer()
    monkeypatch.setattr(server, "_command", lambda: ["sh", "-c", "echo refused; exit 1"])
    with pytest.raises(AssertionError, match="refused"):
        server.start()
    assert not server.folder.exists()


@pytest.mark.parametrize(
    ("module", "kind", "start"),
    [
        ("brokers", "RabbitServer", "_launch"),
        ("brokers", "NatsServer", "_launch"),
        ("brokers", "KafkaServer", "_launch"),
        ("databases", "PostgresServer", "start"),
        ("databases", "MariaServer", "start"),
    ],
)
async def test_a_server_ends_with_killed_tests(module: str, kind: str, start: str) -> None:
    first, folder = left_by_killed_tests(module=module, kind=kind, start=start)
    await wait_until(lambda: not members_of(first), description="the server ended")
    await wait_until(lambda: not folder.exists(), description="its folder was removed")


def left_by_killed_tests(**server: str) -> tuple[int, Path]:
    """Kill a process that launched a server; give the server's process and folder."""
    command = [sys.executable, "-c", KILLED_TESTS.format(**server)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as tests:
        assert tests.stdout is not None
        pid, folder = tests.stdout.readline().split()
        assert members_of(int(pid))
        tests.kill()
    return int(pid), Path(folder)


def members_of(group: int) -> list[psutil.Process]:
    """Give the processes of a group that run."""
    return [process for process in psutil.process_iter() if runs(process) and group_of(process) == group]


def group_of(process: psutil.Process) -> int | None:
    try:
        return os.getpgid(process.pid)
    except ProcessLookupError:
        return None
