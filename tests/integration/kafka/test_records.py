"""What one client writes, every client reads: values, keys, headers, timestamps, in every compression."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_LOG_APPEND_TIME, TopicPartition

from tests.integration.kafka.clients import CLIENTS, COMPRESSIONS, Client, Sent, client_name, run_kcat
from tests.integration.kafka.conftest import ClientFactory, MemberFactory, TopicFactory
from tests.integration.kafka.deliveries import deliver, delivery_error, take
from tests.integration.kafka.settings import HOUR_AGO_MS
from tests.integration.server import ExistingBroker, RunningBroker

CODEC_OF = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
BATCH_HEADER = struct.Struct(">qiibIh")  # base offset, length, leader epoch, magic, crc, attributes


def records_for(writer: Client, compression: str) -> list[Sent]:
    """Records in all the shapes that the writer can express; long enough runs of the same text that every codec compresses."""
    timestamp_ms = HOUR_AGO_MS + 17 if writer.timestamps else None
    shapes = [Sent(f"{compression}-{number}".encode() + b"-padding" * 40, b"key-%d" % number) for number in range(20)]
    shapes.append(Sent(b"no key"))
    if writer.null_values:
        shapes += [Sent(b"", b"empty value"), Sent(None, b"tombstone"), Sent(b"", b"")]
    else:
        shapes.append(Sent(None, b"tombstone"))
    if writer.headers:
        shapes.append(Sent(b"headers", b"h", (("a", b"1"), ("a", b""), ("ünïcode", "ß".encode()))))
    if writer.null_headers:
        shapes.append(Sent(b"null header", b"h", (("a", None), ("a", b"1"))))
    return [Sent(each.value, each.key, each.headers, timestamp_ms) for each in shapes]


@pytest.mark.parametrize("reader", CLIENTS, ids=client_name)
@pytest.mark.parametrize("writer", CLIENTS, ids=client_name)
def test_records_of_each_client_are_read_by_each_client(
    writer: Client, reader: Client, broker: RunningBroker, topic: TopicFactory
) -> None:
    name = topic()
    sent = []
    started_ms = int(time.time() * 1000)
    for compression in COMPRESSIONS:
        records = records_for(writer, compression)
        writer.write(broker.bootstrap, name, records, compression)
        sent += records
    received = reader.read(broker.bootstrap, name, len(sent))
    assert [each.offset for each in received] == list(range(len(sent)))
    assert [(each.value, each.key) for each in received] == [(each.value, each.key) for each in sent]
    assert [each.headers for each in received] == [each.headers for each in sent]
    for before, after in zip(sent, received, strict=True):
        if before.timestamp_ms is not None:
            assert after.timestamp_ms == before.timestamp_ms
        else:
            assert started_ms <= after.timestamp_ms <= int(time.time() * 1000)


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("writer", CLIENTS, ids=client_name)
def test_batches_stay_in_the_compression_of_their_producer(
    writer: Client, compression: str, broker: RunningBroker, topic: TopicFactory
) -> None:
    if isinstance(broker, ExistingBroker):
        pytest.skip("the files of an existing broker are not known")
    name = topic()
    writer.write(broker.bootstrap, name, [Sent(b"padding" * 100, b"key")] * 20, compression)
    assert len(CLIENTS[0].read(broker.bootstrap, name, 20)) == 20
    [segment] = broker.data.rglob(f"{name}-0/*.log")
    codecs, raw, position = set(), segment.read_bytes(), 0
    while position + BATCH_HEADER.size <= len(raw):
        _, length, _, magic, _, attributes = BATCH_HEADER.unpack_from(raw, position)
        if length == 0:
            break
        assert magic == 2
        codecs.add(attributes & 7)
        position += 12 + length
    assert codecs == {CODEC_OF[compression]}


def test_a_large_message_arrives_whole(
    broker: RunningBroker,
    topic: TopicFactory,
    producer: ClientFactory,
    consumer: MemberFactory,
    unique: Callable[[str], str],
) -> None:
    name = topic(max_message_bytes=20_000_000)
    value = bytes(range(256)) * 40_000
    deliver(producer(message_max_bytes=20_000_000), name, [value, b"after"])
    reader = consumer(unique("group"))
    reader.assign([TopicPartition(name, 0, 0)])
    assert [message.value() for message in take(reader, 2)] == [value, b"after"]


@pytest.mark.parametrize("reader", CLIENTS[:4], ids=client_name)
def test_a_message_above_the_fetch_limit_is_still_delivered(
    reader: Client, broker: RunningBroker, topic: TopicFactory, producer: ClientFactory
) -> None:
    """A first batch larger than the fetch's limits is sent whole, so that a consumer never gets stuck."""
    name = topic(max_message_bytes=4_000_000)
    value = b"x" * 3_000_000
    deliver(producer(message_max_bytes=4_000_000), name, [value])
    [received] = reader.read(broker.bootstrap, name, 1)
    assert received.value == value


def test_create_time_is_kept_and_log_append_time_is_the_brokers(
    topic: TopicFactory, producer: ClientFactory, consumer: MemberFactory, unique: Callable[[str], str]
) -> None:
    created, appended = topic(), topic(message_timestamp_type="LogAppendTime")
    before_ms = int(time.time() * 1000)
    for name in (created, appended):
        deliver(producer(), name, [b"old"], timestamp=HOUR_AGO_MS)
    reader = consumer(unique("group"))
    reader.assign([TopicPartition(created, 0, 0)])
    assert take(reader, 1)[0].timestamp() == (TIMESTAMP_CREATE_TIME, HOUR_AGO_MS)
    reader.assign([TopicPartition(appended, 0, 0)])
    kind, timestamp_ms = take(reader, 1)[0].timestamp()
    assert kind == TIMESTAMP_LOG_APPEND_TIME
    assert before_ms <= timestamp_ms <= int(time.time() * 1000)


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_log_append_time_is_seen_by_every_client(compression: str, broker: RunningBroker, topic: TopicFactory) -> None:
    name = topic(message_timestamp_type="LogAppendTime")
    before_ms = int(time.time() * 1000)
    CLIENTS[0].write(broker.bootstrap, name, [Sent(b"x" * 100, None, (), HOUR_AGO_MS)] * 3, compression)
    seen = {reader.name: [each.timestamp_ms for each in reader.read(broker.bootstrap, name, 3)] for reader in CLIENTS}
    assert len({tuple(times) for times in seen.values()}) == 1, seen
    assert all(before_ms <= timestamp_ms <= int(time.time() * 1000) for timestamp_ms in seen["confluent"])


def test_a_timestamp_too_far_ahead_is_refused(topic: TopicFactory, producer: ClientFactory) -> None:
    name = topic(message_timestamp_after_max_ms=1000)
    error = delivery_error(producer(), name, b"tomorrow", timestamp=int(time.time() * 1000) + 86_400_000)
    assert error.name() == "INVALID_TIMESTAMP"


def test_a_delivery_report_names_partition_offset_and_timestamp(topic: TopicFactory, producer: ClientFactory) -> None:
    name = topic(2)
    client = producer()
    messages = deliver(client, name, [b"a", b"b"], partition=1, timestamp=HOUR_AGO_MS)
    assert [(each.partition(), each.offset()) for each in messages] == [(1, 0), (1, 1)]
    assert {each.timestamp() for each in messages} == {(TIMESTAMP_CREATE_TIME, HOUR_AGO_MS)}


def test_kcat_writes_headers_that_all_clients_read(broker: RunningBroker, topic: TopicFactory) -> None:
    name = topic()
    run_kcat(broker.bootstrap, "-P", "-t", name, "-H", "trace=42", "-H", "empty=", stdin=b"hello\n")
    for reader in CLIENTS:
        [message] = reader.read(broker.bootstrap, name, 1)
        assert message.headers == (("trace", b"42"), ("empty", b"")), reader.name
