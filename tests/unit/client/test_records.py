"""Producing and reading: what is in the requests, and which of the fetched records are shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.client.fake_broker import FakeBroker
from tests.unit.client.test_client import connect
from trunkline.client import ClientError
from trunkline.client.partitioner import partition_for_key
from trunkline.client.producer import Producer
from trunkline.client.reader import Reader
from trunkline.log.batch import NewRecord, build_batch, build_marker, iter_batches, iter_records, whole_batches
from trunkline.log.errors import CorruptBatch
from trunkline.log.store import TopicPartition
from trunkline.protocols.kafka.apis import ApiKey
from trunkline.protocols.kafka.messages.fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from trunkline.protocols.kafka.messages.init_producer_id import InitProducerIdResponse
from trunkline.protocols.kafka.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from trunkline.protocols.kafka.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from trunkline.protocols.kafka.wire import Message

TP = TopicPartition("t", 0)


def identify(request: Message) -> Message:
    return InitProducerIdResponse(producer_id=9, producer_epoch=1)


def produced(broker: FakeBroker) -> list[tuple[int, bytes]]:
    """Each batch that was sent, with its partition."""
    found = []
    for _, request in broker.asked(ProduceRequest):
        assert isinstance(request, ProduceRequest)
        for topic in request.topic_data:
            found += [(item.index, bytes(item.records or b"")) for item in topic.partition_data]
    return found


def accept(*codes: int) -> Callable[[Message], Message]:
    """Answers each batch with the next code, and with success when they are used up."""
    left = iter(codes)

    def answer(request: Message) -> Message:
        assert isinstance(request, ProduceRequest)
        results = [
            PartitionProduceResponse(index=item.index, error_code=next(left, 0), base_offset=100)
            for topic in request.topic_data
            for item in topic.partition_data
        ]
        return ProduceResponse(responses=[TopicProduceResponse(name="t", partition_responses=results)])

    return answer


def test_records_with_a_key_go_where_kafkas_partitioner_sends_them() -> None:
    handlers = {ApiKey.PRODUCE: accept(), ApiKey.INIT_PRODUCER_ID: identify}
    with FakeBroker(handlers, topics={"t": 5}) as broker:
        producer = Producer(connect(broker), "t")
        keys = [b"key-%d" % number for number in range(40)]
        for key in keys:
            producer.send(key, b"value", [("name", None)])
        producer.flush()
        seen = {record.key: index for index, batch in produced(broker) for record in iter_records(batch)}
        assert seen == {key: partition_for_key(key, 5) for key in keys}
        assert producer.sent_records == 40


def test_records_without_a_key_stay_together_until_a_batch_is_full() -> None:
    handlers = {ApiKey.PRODUCE: accept(), ApiKey.INIT_PRODUCER_ID: identify}
    with FakeBroker(handlers, topics={"t": 3}) as broker:
        producer = Producer(connect(broker), "t", batch_bytes=1000)
        for _ in range(6):
            producer.send(None, b"x" * 450)
        producer.flush()
        batches = produced(broker)
        assert [len(list(iter_records(batch))) for _, batch in batches] == [2, 2, 2]
        assert len({index for index, _ in batches}) == 3


def test_a_batch_is_sent_again_with_the_same_sequence_numbers() -> None:
    handlers = {ApiKey.PRODUCE: accept(6, 0, 0), ApiKey.INIT_PRODUCER_ID: identify}
    with FakeBroker(handlers, topics={"t": 1}) as broker:
        producer = Producer(connect(broker), "t")
        producer.send(None, b"1")
        producer.send(None, b"2")
        producer.flush()
        producer.send(None, b"3")
        producer.flush()
        headers = [next(iter_batches(batch))[0] for _, batch in produced(broker)]
        assert [(header.producer_id, header.base_sequence, header.record_count) for header in headers] == [
            (9, 0, 2),
            (9, 0, 2),
            (9, 2, 1),
        ]
        assert producer.sent_records == 3


def test_a_batch_that_was_stored_by_a_lost_attempt_counts_as_sent() -> None:
    handlers = {ApiKey.PRODUCE: accept(46), ApiKey.INIT_PRODUCER_ID: identify}
    with FakeBroker(handlers, topics={"t": 1}) as broker:
        producer = Producer(connect(broker), "t")
        producer.send(None, b"1")
        producer.flush()
        assert producer.sent_records == 1


def test_what_is_refused_for_good_is_an_error() -> None:
    handlers = {ApiKey.PRODUCE: accept(10), ApiKey.INIT_PRODUCER_ID: identify}
    with FakeBroker(handlers, topics={"t": 1}) as broker:
        producer = Producer(connect(broker), "t")
        producer.send(None, b"1")
        with pytest.raises(ClientError, match="t-0: the record is larger") as caught:
            producer.flush()
        assert "max.message.bytes" in caught.value.hint
        assert producer.sent_records == 0


def test_acks_0_waits_for_nothing_and_acks_1_is_not_idempotent() -> None:
    with FakeBroker({ApiKey.PRODUCE: accept()}, topics={"t": 1}) as broker:
        client = connect(broker)
        producer = Producer(client, "t", acks=1)
        producer.send(None, b"1")
        producer.flush()
        ((_, batch),) = produced(broker)
        assert next(iter_batches(batch))[0].producer_id == -1


def test_a_partition_that_does_not_exist_is_refused() -> None:
    with (
        FakeBroker({ApiKey.INIT_PRODUCER_ID: identify}, topics={"t": 1}) as broker,
        pytest.raises(ClientError, match="t-1"),
    ):
        Producer(connect(broker), "t").send(None, b"1", partition=1)


def serving(log: bytes, aborted: Sequence[AbortedTransaction] = ()) -> Callable[[Message], Message]:
    """Answers a fetch with the batches of `log` that end at or after the offset, as a broker does."""

    def answer(request: Message) -> Message:
        assert isinstance(request, FetchRequest)
        offset = request.topics[0].partitions[0].fetch_offset
        found = b"".join(bytes(batch) for header, batch in iter_batches(log) if header.last_offset >= offset)
        data = PartitionData(partition_index=0, records=found, aborted_transactions=list(aborted))
        return FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[data])])

    return answer


def read(broker: FakeBroker, offset: int = 0, *, committed: bool = False) -> tuple[list[int], int]:
    reader = Reader(connect(broker), {TP: offset}, committed=committed)
    return [item.record.offset for item in reader.poll()], reader.positions[TP]


def batch(offset: int, count: int, producer_id: int = -1) -> bytes:
    records = [NewRecord(None, b"%d" % number, (), 1) for number in range(count)]
    if producer_id < 0:
        return build_batch(records, base_offset=offset)
    return build_batch(
        records, base_offset=offset, producer_id=producer_id, producer_epoch=0, base_sequence=0, transactional=True
    )


def marker(offset: int, producer_id: int, *, commit: bool) -> bytes:
    return build_marker(producer_id, 0, commit=commit, coordinator_epoch=0, timestamp_ms=1, base_offset=offset)


def test_reading_starts_in_the_middle_of_a_batch() -> None:
    with FakeBroker({ApiKey.FETCH: serving(batch(0, 5) + batch(5, 2))}, topics={"t": 1}) as broker:
        assert read(broker, 3) == ([3, 4, 5, 6], 7)


def test_a_reader_that_stops_early_goes_on_where_it_stopped() -> None:
    with FakeBroker({ApiKey.FETCH: serving(batch(0, 5))}, topics={"t": 1}) as broker:
        reader = Reader(connect(broker), {TP: 0})
        for item in reader.poll():
            if item.record.offset == 1:
                break
        assert [item.record.offset for item in reader.poll()] == [2, 3, 4]


def test_control_batches_are_skipped_and_passed() -> None:
    log = batch(0, 2, producer_id=1) + marker(2, 1, commit=True)
    with FakeBroker({ApiKey.FETCH: serving(log)}, topics={"t": 1}) as broker:
        assert read(broker) == ([0, 1], 3)


def test_committed_reading_hides_aborted_transactions_only() -> None:
    log = (
        batch(0, 1, producer_id=1)
        + batch(1, 1, producer_id=2)
        + batch(2, 1)
        + marker(3, 1, commit=False)
        + batch(4, 1, producer_id=1)
        + marker(5, 1, commit=True)
        + batch(6, 1, producer_id=2)
        + marker(7, 2, commit=True)
    )
    aborted = [AbortedTransaction(producer_id=1, first_offset=0)]
    with FakeBroker({ApiKey.FETCH: serving(log, aborted)}, topics={"t": 1}) as broker:
        assert read(broker, committed=True) == ([1, 2, 4, 6], 8)
        assert read(broker, committed=False) == ([0, 1, 2, 4, 6], 8)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([-1, 1, 2, 3]), st.sampled_from(["data", "commit", "abort"])), max_size=25))
def test_committed_reading_equals_a_plain_model(steps: list[tuple[int, str]]) -> None:
    log, offset = b"", 0
    open_since: dict[int, list[int]] = {}
    visible: set[int] = set()
    aborted: list[AbortedTransaction] = []
    for producer, step in steps:
        if step == "data":
            log += batch(offset, 1, producer)
            if producer < 0:
                visible.add(offset)
            else:
                open_since.setdefault(producer, []).append(offset)
        elif producer in open_since:
            offsets = open_since.pop(producer)
            log += marker(offset, producer, commit=step == "commit")
            if step == "commit":
                visible.update(offsets)
            else:
                aborted.append(AbortedTransaction(producer_id=producer, first_offset=offsets[0]))
        else:
            continue
        offset += 1
    # A committed fetch stops where the oldest open transaction begins.
    stable = min((offsets[0] for offsets in open_since.values()), default=offset)
    log = b"".join(bytes(part) for header, part in iter_batches(log) if header.base_offset < stable)
    with FakeBroker({ApiKey.FETCH: serving(log, aborted)}, topics={"t": 1}) as broker:
        offsets_read, position = read(broker, committed=True)
    assert offsets_read == sorted(at for at in visible if at < stable)
    assert position == stable


def test_a_batch_that_is_cut_off_is_left_for_the_next_fetch() -> None:
    log = batch(0, 2) + batch(2, 2)
    assert [len(part) for part in whole_batches(log[:-1])] == [len(batch(0, 2))]
    assert list(whole_batches(log[:10])) == []
    assert list(whole_batches(None)) == []


def test_formats_before_v2_are_refused_by_name() -> None:
    with pytest.raises(CorruptBatch, match="older than Kafka"):
        list(whole_batches(bytes(100)))


def test_damaged_records_are_an_error_that_names_the_partition() -> None:
    log = bytearray(batch(0, 2))
    log[-1] ^= 1
    with (
        FakeBroker({ApiKey.FETCH: serving(bytes(log))}, topics={"t": 1}) as broker,
        pytest.raises(ClientError, match="partition t-0 near offset 0: batch checksum"),
    ):
        read(broker)


def out_of_range(request: Message) -> Message:
    data = PartitionData(partition_index=0, error_code=1)
    return FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[data])])


def ends(request: Message) -> Message:
    assert isinstance(request, ListOffsetsRequest)
    offset = 10 if request.topics[0].partitions[0].timestamp == -2 else 20
    partition = ListOffsetsPartitionResponse(partition_index=0, offset=offset)
    return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="t", partitions=[partition])])


def test_records_that_retention_removed_are_skipped_and_said_so() -> None:
    with FakeBroker({ApiKey.FETCH: out_of_range, ApiKey.LIST_OFFSETS: ends}, topics={"t": 1}) as broker:
        reader = Reader(connect(broker), {TP: 3})
        assert list(reader.poll()) == []
        assert reader.positions == {TP: 10}
        assert reader.moved == {TP: 10}


def test_an_offset_past_the_end_is_an_error() -> None:
    with (
        FakeBroker({ApiKey.FETCH: out_of_range, ApiKey.LIST_OFFSETS: ends}, topics={"t": 1}) as broker,
        pytest.raises(ClientError, match="offset 99 is past the end, 20"),
    ):
        list(Reader(connect(broker), {TP: 99}).poll())


def test_reading_goes_on_after_a_lost_connection() -> None:
    log = batch(0, 1)
    answers: Iterator[Callable[[Message], Message | None]] = iter([lambda request: None, serving(log)])

    def answer(request: Message) -> Message | None:
        return next(answers)(request)

    with FakeBroker({ApiKey.FETCH: answer}, topics={"t": 1}) as broker:
        reader = Reader(connect(broker), {TP: 0})
        assert [item.record.offset for item in reader.poll()] == []
        assert [item.record.offset for item in reader.poll()] == [0]
