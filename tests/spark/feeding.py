"""Records put into topics for the Spark tests, by our own client and, for transactions, by a real Kafka client."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from confluent_kafka import Producer as KafkaProducer

from trunkline.client.client import Client
from trunkline.client.producer import Producer
from trunkline.client.reader import Reader
from trunkline.client.topics import EARLIEST, LATEST, Topics
from trunkline.log.batch import Record
from trunkline.log.store import TopicPartition
from trunkline.protocols.kafka.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)

FLUSH_S = 30.0


def make_topic(client: Client, name: str, partitions: int = 1, **config: str) -> str:
    Topics(client).create(name, partitions, {key.replace("_", "."): value for key, value in config.items()})
    return name


def feed(
    client: Client,
    topic: str,
    values: Iterable[bytes | None],
    *,
    partition: int | None = None,
    compression: str = "none",
    batch_bytes: int = 256 * 1024,
    headers: Sequence[tuple[str, bytes | None]] = (),
    timestamps_ms: Sequence[int] | None = None,
) -> None:
    """Each value with the key `k<number>`."""
    producer = Producer(client, topic, compression=compression, batch_bytes=batch_bytes)
    for number, value in enumerate(values):
        stamp = None if timestamps_ms is None else timestamps_ms[number]
        producer.send(b"k%d" % number, value, headers, partition=partition, timestamp_ms=stamp)
    producer.flush()


def feed_transaction(bootstrap: str, topic: str, values: Iterable[bytes], *, commit: bool) -> None:
    """One transaction of a real Kafka client, ended as asked."""
    producer = KafkaProducer({"bootstrap.servers": bootstrap, "transactional.id": f"feeding-{topic}"})
    producer.init_transactions(FLUSH_S)
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value, partition=0)
    producer.flush(FLUSH_S)
    if commit:
        producer.commit_transaction(FLUSH_S)
    else:
        producer.abort_transaction(FLUSH_S)


def records_of(client: Client, topic: str, *, committed: bool = True) -> list[Record]:
    """Everything in a topic, as a consumer sees it."""
    partitions = [TopicPartition(topic, part.index) for part in client.metadata([topic]).topics[topic].partitions]
    starts = Topics(client).offsets(partitions, EARLIEST)
    ends = Topics(client).offsets(partitions, LATEST, committed=committed)
    reader = Reader(client, starts, committed=committed)
    found: list[Record] = []
    while any(reader.positions[tp] < ends[tp] for tp in partitions):
        found += [item.record for item in reader.poll(100)]
    return found


def values_of(client: Client, topic: str) -> list[bytes]:
    return [record.value or b"" for record in records_of(client, topic)]


def trim(client: Client, topic: str, offset: int) -> None:
    """Remove what is before an offset of partition 0, as retention does."""
    part = DeleteRecordsPartition(partition_index=0, offset=offset)
    request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=topic, partitions=[part])], timeout_ms=10_000)
    (answer,) = client.any_broker().request(request, DeleteRecordsResponse).topics
    assert [item.error_code for item in answer.partitions] == [0]
