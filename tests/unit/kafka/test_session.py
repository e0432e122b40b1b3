"""The session keeps requests and responses in order, whatever waits; no socket is involved."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.plain_wire import PlainWire
from trunkline.broker.core import BrokerCore
from trunkline.log.batch import NewRecord, build_batch
from trunkline.log.embedded.store import EmbeddedStore
from trunkline.log.store import TopicPartition
from trunkline.protocols.kafka import apis, handlers
from trunkline.protocols.kafka.apis import ApiKey, Request
from trunkline.protocols.kafka.codec import DecodeError, SpareBuffers, decode_response, encode_request
from trunkline.protocols.kafka.errors import ErrorCode
from trunkline.protocols.kafka.fetch_sessions import FetchSessions
from trunkline.protocols.kafka.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from trunkline.protocols.kafka.messages.create_topics import CreatableTopic, CreateTopicsRequest
from trunkline.protocols.kafka.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from trunkline.protocols.kafka.messages.metadata import MetadataRequest, MetadataResponse
from trunkline.protocols.kafka.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from trunkline.protocols.kafka.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
)
from trunkline.protocols.kafka.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from trunkline.protocols.kafka.session import Session
from trunkline.protocols.kafka.share_sessions import ShareSessions
from trunkline.protocols.listener.session import Buffer

FETCH_VERSION, PRODUCE_VERSION, METADATA_VERSION, CREATE_VERSION = 12, 9, 9, 5
DEADLINE_S = 20


class Client(PlainWire):
    """The other end of a session: counts correlation ids, keeps what was sent back."""

    def __init__(self, broker: BrokerCore) -> None:
        super().__init__(listener="kafka")
        self.sent: list[bytes] = []
        self.arrived = asyncio.Event()
        self.session = Session(broker, FetchSessions(), ShareSessions(), SpareBuffers(), self)
        self._correlation_id = 0

    def write(self, data: Buffer) -> None:
        self.sent.append(bytes(data))
        self.arrived.set()

    def close(self) -> None:
        super().close()
        self.arrived.set()

    def ask(self, request: Request, version: int) -> int:
        self._correlation_id += 1
        frame = b"".join(encode_request(request, version, self._correlation_id, "test"))
        self.session.receive(memoryview(frame)[4:])
        return self._correlation_id

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not condition():
                self.arrived.clear()
                await self.arrived.wait()


def with_client(data: Path, scenario: Callable[[Client, BrokerCore], Awaitable[None]]) -> None:
    async def run() -> None:
        broker = BrokerCore(EmbeddedStore(data))
        await broker.start()
        broker.listeners["kafka"] = ("127.0.0.1", 9092)
        client = Client(broker)
        try:
            await scenario(client, broker)
        finally:
            client.session.lost()
            await broker.close()

    asyncio.run(run())


def fetch_of(topic: str, max_wait_ms: int) -> FetchRequest:
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=1 << 20,
        session_epoch=-1,
        topics=[FetchTopic(topic=topic, partitions=[FetchPartition(partition=0, partition_max_bytes=1 << 20)])],
    )


def produce_of(topic: str, value: bytes, acks: int = 1) -> ProduceRequest:
    batch = memoryview(build_batch([NewRecord(b"k", value)], timestamp_ms=1_700_000_000_000))
    return ProduceRequest(
        acks=acks,
        timeout_ms=1000,
        topic_data=[TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=0, records=batch)])],
    )


def test_responses_leave_in_the_order_of_requests_although_the_first_waits(tmp_path: Path) -> None:
    async def scenario(client: Client, broker: BrokerCore) -> None:
        await broker.create_topic("t")
        fetch_id = client.ask(fetch_of("t", max_wait_ms=DEADLINE_S * 1000), FETCH_VERSION)
        metadata_id = client.ask(MetadataRequest(topics=None), METADATA_VERSION)
        assert client.sent == []
        assert client.session.inflight == 2
        other = Client(broker)
        other.ask(produce_of("t", b"wake"), PRODUCE_VERSION)
        await client.until(lambda: len(client.sent) == 2)
        fetched = decode_response(FetchResponse, memoryview(client.sent[0])[4:], FETCH_VERSION, fetch_id)
        assert b"wake" in bytes(fetched.responses[0].partitions[0].records or b"")
        decode_response(MetadataResponse, memoryview(client.sent[1])[4:], METADATA_VERSION, metadata_id)
        assert client.session.inflight == 0

    with_client(tmp_path, scenario)


def test_a_produce_is_in_the_log_before_the_next_request_is_looked_at(tmp_path: Path) -> None:
    async def scenario(client: Client, broker: BrokerCore) -> None:
        await broker.create_topic("t")
        client.ask(produce_of("t", b"first", acks=-1), PRODUCE_VERSION)
        fetch_id = client.ask(fetch_of("t", max_wait_ms=0), FETCH_VERSION)
        await client.until(lambda: len(client.sent) == 2)
        fetched = decode_response(FetchResponse, memoryview(client.sent[1])[4:], FETCH_VERSION, fetch_id)
        assert b"first" in bytes(fetched.responses[0].partitions[0].records or b"")

    with_client(tmp_path, scenario)


def test_a_batch_survives_the_reuse_of_the_buffer_it_came_in(tmp_path: Path) -> None:
    async def scenario(client: Client, broker: BrokerCore) -> None:
        await broker.create_topic("t")
        frame = bytearray(b"".join(encode_request(produce_of("t", b"kept"), PRODUCE_VERSION, 1, None))[4:])
        client.session.receive(memoryview(frame))
        frame[:] = bytes(len(frame))
        fetch_id = 1
        client._correlation_id = 0
        client.ask(fetch_of("t", max_wait_ms=0), FETCH_VERSION)
        fetched = decode_response(FetchResponse, memoryview(client.sent[1])[4:], FETCH_VERSION, fetch_id)
        assert b"kept" in bytes(fetched.responses[0].partitions[0].records or b"")

    with_client(tmp_path, scenario)


def create_of(topic: str) -> CreateTopicsRequest:
    wanted = CreatableTopic(name=topic, num_partitions=1, replication_factor=1)
    return CreateTopicsRequest(topics=[wanted], timeout_ms=1000)


def test_a_request_that_waits_for_an_earlier_one_owns_its_bytes(tmp_path: Path) -> None:
    async def scenario(client: Client, broker: BrokerCore) -> None:
        client.ask(create_of("t"), CREATE_VERSION)
        frame = bytearray(b"".join(encode_request(produce_of("t", b"kept"), PRODUCE_VERSION, 2, None))[4:])
        client.session.receive(memoryview(frame))
        assert client.session.holds_back
        frame[:] = bytes(len(frame))
        await client.until(lambda: len(client.sent) == 2)
        assert not client.session.holds_back
        answer = decode_response(ProduceResponse, memoryview(client.sent[1])[4:], PRODUCE_VERSION, 2)
        assert answer.responses[0].partition_responses[0].error_code == 0
        found = await broker.store.read(TopicPartition("t", 0), 0, 1 << 20)
        assert b"kept" in bytes(found.records)

    with_client(tmp_path, scenario)


def test_a_request_that_waits_for_an_earlier_one_is_dropped_with_the_connection(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    async def scenario(client: Client, broker: BrokerCore) -> None:
        client.ask(create_of("t"), CREATE_VERSION)
        client.ask(create_of("u"), CREATE_VERSION)
        client.session.lost()
        other = Client(broker)
        other.ask(create_of("v"), CREATE_VERSION)  # topics are created one after the other
        await other.until(lambda: bool(other.sent))
        assert broker.store.topic("u") is None

    with_client(tmp_path, scenario)
    gc.collect()
    assert [warning for warning in recwarn if "never awaited" in str(warning.message)] == []


def test_commits_in_a_row_share_the_wait_for_the_disk(tmp_path: Path) -> None:
    async def scenario(client: Client, broker: BrokerCore) -> None:
        await broker.create_topic("t")
        for offset in range(20):
            part = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata="")
            topic = OffsetCommitRequestTopic(name="t", partitions=[part])
            client.ask(OffsetCommitRequest(group_id="g", topics=[topic]), 8)
            assert not client.session.holds_back
        client.ask(OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=None)]), 8)
        assert client.session.holds_back
        await client.until(lambda: len(client.sent) == 21)
        answer = decode_response(OffsetFetchResponse, memoryview(client.sent[-1])[4:], 8, 21)
        assert answer.groups[0].topics[0].partitions[0].committed_offset == 19

    with_client(tmp_path, scenario)


def test_acks_0_gets_no_response_and_an_error_closes_the_connection(tmp_path: Path) -> None:
    async def scenario(client: Client, broker: BrokerCore) -> None:
        await broker.create_topic("t")
        client.ask(produce_of("t", b"quiet", acks=0), PRODUCE_VERSION)
        assert client.sent == []
        assert client.session.inflight == 0
        client.ask(produce_of("absent", b"lost", acks=0), PRODUCE_VERSION)
        assert client.closed

    with_client(tmp_path, scenario)


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (produce_of("absent", b"x"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (produce_of("t", b"x", acks=7), ErrorCode.INVALID_REQUIRED_ACKS),
        (produce_of("__topology", b"x"), ErrorCode.INVALID_TOPIC_EXCEPTION),
    ],
    ids=["unknown topic", "acks 7", "the broker's own topic"],
)
def test_a_refused_produce_says_why(tmp_path: Path, request_: ProduceRequest, code: ErrorCode) -> None:
    async def scenario(client: Client, broker: BrokerCore) -> None:
        await broker.create_topic("t")
        asked = client.ask(request_, PRODUCE_VERSION)
        answer = decode_response(ProduceResponse, memoryview(client.sent[0])[4:], PRODUCE_VERSION, asked)
        assert answer.responses[0].partition_responses[0].error_code == code

    with_client(tmp_path, scenario)


def test_a_produce_with_two_batches_or_a_stray_transaction_is_refused(tmp_path: Path) -> None:
    async def scenario(client: Client, broker: BrokerCore) -> None:
        await broker.create_topic("t")
        one = build_batch([NewRecord(b"k", b"v")], timestamp_ms=1_700_000_000_000)
        stray = build_batch(
            [NewRecord(b"k", b"v")],
            timestamp_ms=1_700_000_000_000,
            producer_id=7,
            producer_epoch=0,
            base_sequence=0,
            transactional=True,
        )
        for records, code in ((one + one, ErrorCode.INVALID_RECORD), (stray, ErrorCode.INVALID_TXN_STATE)):
            request = produce_of("t", b"")
            request.topic_data[0].partition_data[0].records = memoryview(records)
            asked = client.ask(request, PRODUCE_VERSION)
            answer = decode_response(ProduceResponse, memoryview(client.sent[-1])[4:], PRODUCE_VERSION, asked)
            assert answer.responses[0].partition_responses[0].error_code == code
        assert broker.store.bounds(TopicPartition("t", 0)).high_watermark == 0

    with_client(tmp_path, scenario)


def test_a_newer_api_versions_request_is_answered_in_version_0_with_error_35(tmp_path: Path) -> None:
    async def scenario(client: Client, broker: BrokerCore) -> None:
        newer = b"\x00\x12" + (99).to_bytes(2, "big") + (5).to_bytes(4, "big") + b"\xff\xff\x01a\x01b\x00"
        client.session.receive(memoryview(newer))
        answer = decode_response(ApiVersionsResponse, memoryview(client.sent[0])[4:], 0, 5)
        assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
        assert {row.api_key for row in answer.api_keys} == set(handlers.served())

    with_client(tmp_path, scenario)


@pytest.mark.parametrize(
    "frame", [b"", b"\x00", b"\x7f\xff\x00\x00\x00\x00\x00\x01\xff\xff", b"\x00\x03\x00\x63\x00\x00\x00\x01\xff\xff"]
)
def test_an_unknown_api_or_version_is_a_decode_error(tmp_path: Path, frame: bytes) -> None:
    async def scenario(client: Client, broker: BrokerCore) -> None:
        with pytest.raises(DecodeError):
            client.session.receive(memoryview(frame))

    with_client(tmp_path, scenario)


def test_produce_and_others_are_advertised_from_version_0(tmp_path: Path) -> None:
    async def scenario(client: Client, broker: BrokerCore) -> None:
        asked = client.ask(ApiVersionsRequest(), 0)
        answer = decode_response(ApiVersionsResponse, memoryview(client.sent[0])[4:], 0, asked)
        lowest = {row.api_key: row.min_version for row in answer.api_keys}
        assert lowest[ApiKey.PRODUCE] == lowest[ApiKey.FETCH] == lowest[ApiKey.METADATA] == 0

    with_client(tmp_path, scenario)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_fuzzed_bodies_never_raise_anything_but_decode_error(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    keys = data.draw(st.lists(st.sampled_from(sorted(handlers.served())), min_size=1, max_size=4))
    frames = []
    for key in keys:
        api = apis.APIS[key]
        version = data.draw(st.integers(api.min_version, api.max_version))
        body = data.draw(st.binary(max_size=80))
        header = key.to_bytes(2, "big") + version.to_bytes(2, "big") + b"\x00\x00\x00\x01\xff\xff"
        frames.append(header + (b"\x00" if api.is_flexible(version) else b"") + body)

    failures: list[str] = []
    listener = logging.Handler(logging.ERROR)
    listener.emit = lambda record: failures.append(record.getMessage())  # type: ignore[method-assign]

    async def scenario(client: Client, broker: BrokerCore) -> None:
        for frame in frames:
            try:
                client.session.receive(memoryview(frame))
            except DecodeError:
                return
            for _ in range(20):
                await asyncio.sleep(0)  # let the handler run; what still waits then, waits for other members

    logger = logging.getLogger("trunkline")
    logger.addHandler(listener)
    try:
        with_client(tmp_path_factory.mktemp("fuzz"), scenario)
    finally:
        logger.removeHandler(listener)
    assert failures == []


def test_every_api_in_the_table_has_its_handler() -> None:
    for key in handlers.served():
        assert handlers.find(key) is not None
    assert handlers.find(-1) is None
