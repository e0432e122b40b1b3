"""Every client behind one pair of verbs: write these records, read that many.

A `Client` hides what differs between the five clients so that a test can say "written by each, read by each". What a
client cannot express is stated on it (`headers`, `null_values`), and the tests leave exactly that out.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Protocol

import kafka
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AIOTopicPartition
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.aio import AIOConsumer, AIOProducer

from tests.integration.kafka import settings
from tests.integration.waiting import DEADLINE_SECONDS, wait_until

COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")
KCAT_SECONDS = 60


@dataclass(frozen=True)
class Sent:
    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int | None = None


@dataclass(frozen=True)
class Received:
    value: bytes | None
    key: bytes | None
    timestamp_ms: int
    offset: int
    partition: int
    headers: tuple[tuple[str, bytes | None], ...] = field(default=())


class Client(Protocol):
    name: str
    headers: bool  # can attach headers to one record
    null_headers: bool  # can write a header without a value
    null_values: bool  # can write a tombstone next to an empty value
    timestamps: bool  # lets the caller choose the timestamp

    def write(self, bootstrap: str, topic: str, records: Sequence[Sent], compression: str = "none") -> None: ...
    def read(self, bootstrap: str, topic: str, count: int, partition: int = 0) -> list[Received]: ...


class Confluent:
    name = "confluent"
    headers = True
    null_headers = True
    null_values = True
    timestamps = True

    def write(self, bootstrap: str, topic: str, records: Sequence[Sent], compression: str = "none") -> None:
        producer = Producer(settings.confluent_producer(bootstrap, compression_type=compression, linger_ms=20))
        errors: list[object] = []
        for record in records:
            producer.produce(
                topic,
                value=record.value,
                key=record.key,
                partition=0,
                headers=list(record.headers),
                timestamp=record.timestamp_ms or 0,
                on_delivery=lambda error, _: errors.append(error) if error else None,
            )
        assert producer.flush(DEADLINE_SECONDS) == 0
        assert errors == []

    def read(self, bootstrap: str, topic: str, count: int, partition: int = 0) -> list[Received]:
        consumer = Consumer(settings.confluent_consumer(bootstrap, "reader"))
        consumer.assign([TopicPartition(topic, partition, 0)])
        found: list[Received] = []

        def enough() -> bool:
            for message in consumer.consume(count, 0.2):
                assert message.error() is None, message.error()
                found.append(
                    Received(
                        message.value(),
                        message.key(),
                        message.timestamp()[1],
                        message.offset(),
                        message.partition(),
                        tuple((name, value) for name, value in message.headers() or ()),
                    )
                )
            return len(found) >= count

        with closing(consumer):
            wait_until(enough, what=f"{count} records of {topic}")
        return found


class ConfluentAsyncio:
    name = "confluent-asyncio"
    headers = False  # AIOProducer refuses headers and timestamps
    null_headers = False
    null_values = True
    timestamps = False

    def write(self, bootstrap: str, topic: str, records: Sequence[Sent], compression: str = "none") -> None:
        async def main() -> None:
            producer = AIOProducer(settings.confluent_producer(bootstrap, compression_type=compression))
            try:
                futures = [await producer.produce(topic, record.value, record.key, partition=0) for record in records]
                await producer.flush()
                await asyncio.wait_for(asyncio.gather(*futures), DEADLINE_SECONDS)
            finally:
                await producer.close()

        asyncio.run(main())

    def read(self, bootstrap: str, topic: str, count: int, partition: int = 0) -> list[Received]:
        async def main() -> list[Received]:
            consumer = AIOConsumer(settings.confluent_consumer(bootstrap, "reader"))
            found: list[Received] = []
            try:
                await consumer.assign([TopicPartition(topic, partition, 0)])
                while len(found) < count:
                    for message in await consumer.consume(count, 0.2):
                        assert message.error() is None, message.error()
                        found.append(
                            Received(
                                message.value(),
                                message.key(),
                                message.timestamp()[1],
                                message.offset(),
                                message.partition(),
                                tuple((name, value) for name, value in message.headers() or ()),
                            )
                        )
            finally:
                await consumer.close()
            return found

        return asyncio.run(asyncio.wait_for(main(), DEADLINE_SECONDS))


class AIOKafka:
    name = "aiokafka"
    headers = True
    null_headers = True
    null_values = True
    timestamps = True

    def write(self, bootstrap: str, topic: str, records: Sequence[Sent], compression: str = "none") -> None:
        async def main() -> None:
            codec = None if compression == "none" else compression
            async with AIOKafkaProducer(
                **settings.aiokafka(bootstrap, compression_type=codec, linger_ms=20)
            ) as producer:
                futures = [
                    await producer.send(
                        topic,
                        value=record.value,
                        key=record.key,
                        partition=0,
                        timestamp_ms=record.timestamp_ms,
                        headers=list(record.headers),
                    )
                    for record in records
                ]
                await asyncio.wait_for(asyncio.gather(*futures), DEADLINE_SECONDS)

        asyncio.run(main())

    def read(self, bootstrap: str, topic: str, count: int, partition: int = 0) -> list[Received]:
        async def main() -> list[Received]:
            found: list[Received] = []
            async with AIOKafkaConsumer(**settings.aiokafka_consumer(bootstrap, None)) as consumer:
                where = AIOTopicPartition(topic, partition)
                consumer.assign([where])
                consumer.seek(where, 0)
                while len(found) < count:
                    for messages in (await consumer.getmany(timeout_ms=200)).values():
                        found += [
                            Received(
                                each.value, each.key, each.timestamp, each.offset, each.partition, tuple(each.headers)
                            )
                            for each in messages
                        ]
            return found

        return asyncio.run(asyncio.wait_for(main(), DEADLINE_SECONDS))


class KafkaPython:
    name = "kafka-python"
    headers = True
    null_headers = False
    null_values = True
    timestamps = True

    def write(self, bootstrap: str, topic: str, records: Sequence[Sent], compression: str = "none") -> None:
        codec = None if compression == "none" else compression
        producer = kafka.KafkaProducer(**settings.kafka_python(bootstrap, compression_type=codec, linger_ms=20))
        with closing(producer):
            futures = [
                producer.send(
                    topic,
                    value=record.value,
                    key=record.key,
                    partition=0,
                    timestamp_ms=record.timestamp_ms,
                    headers=list(record.headers),
                )
                for record in records
            ]
            producer.flush(DEADLINE_SECONDS)
            for future in futures:
                future.get(DEADLINE_SECONDS)

    def read(self, bootstrap: str, topic: str, count: int, partition: int = 0) -> list[Received]:
        consumer = kafka.KafkaConsumer(**settings.kafka_python_consumer(bootstrap, None))
        where = kafka.TopicPartition(topic, partition)
        consumer.assign([where])
        consumer.seek(where, 0)
        found: list[Received] = []

        def enough() -> bool:
            for messages in consumer.poll(timeout_ms=200).values():
                found.extend(
                    Received(each.value, each.key, each.timestamp, each.offset, each.partition, tuple(each.headers))
                    for each in messages
                )
            return len(found) >= count

        with closing(consumer):
            wait_until(enough, what=f"{count} records of {topic}")
        return found


class Kcat:
    """kcat reads records from a file, one a line, key and value split by a tab; empty fields are nulls (`-Z`)."""

    name = "kcat"
    headers = False  # kcat gives the same headers to every record of a run
    null_headers = False
    null_values = False  # with -Z an empty value is a null, without it never is
    timestamps = False

    def write(self, bootstrap: str, topic: str, records: Sequence[Sent], compression: str = "none") -> None:
        lines = b"".join((record.key or b"") + b"\t" + (record.value or b"") + b"\n" for record in records)
        run_kcat(bootstrap, "-P", "-t", topic, "-p", "0", "-K", "\\t", "-z", compression, "-Z", stdin=lines)

    def read(self, bootstrap: str, topic: str, count: int, partition: int = 0) -> list[Received]:
        out = run_kcat(
            bootstrap, "-C", "-t", topic, "-p", str(partition), "-o", "beginning", "-c", str(count), "-J", "-q"
        )
        found = []
        for line in out.splitlines():
            message = json.loads(line)
            headers = message.get("headers", [])
            found.append(
                Received(
                    _encoded(message["payload"]),
                    _encoded(message["key"]),
                    message["ts"],
                    message["offset"],
                    message["partition"],
                    tuple((headers[i], _encoded(headers[i + 1])) for i in range(0, len(headers), 2)),
                )
            )
        return found


def _encoded(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def run_kcat(bootstrap: str, *arguments: str, stdin: bytes = b"", check: bool = True) -> bytes:
    """Run kcat and return what it printed; its errors become the assertion's message."""
    path = shutil.which("kcat")
    assert path is not None, "kcat is not installed: `apt-get install kcat` (make setup says how)"
    quick = ["-X", "fetch.wait.max.ms=100", "-X", "allow.auto.create.topics=false"] if "-P" not in arguments else []
    command = [path, "-b", bootstrap, *quick, *arguments]
    done = subprocess.run(command, input=stdin, capture_output=True, timeout=KCAT_SECONDS, check=False)
    if check:
        assert done.returncode == 0, f"kcat {' '.join(arguments)}: {done.stderr.decode(errors='replace')}"
        return done.stdout
    return done.stdout + done.stderr


CLIENTS: tuple[Client, ...] = (Confluent(), ConfluentAsyncio(), AIOKafka(), KafkaPython(), Kcat())


def client_name(client: Client) -> str:
    return client.name
