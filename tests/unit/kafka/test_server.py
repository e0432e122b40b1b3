"""The listener's own duties: frames however they arrive, limits, idle connections."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from trunkline.broker.core import BrokerCore
from trunkline.broker.limits import BrokerLimits, BrokerSettings
from trunkline.clock import ManualClock
from trunkline.log.batch import NewRecord, build_batch
from trunkline.log.embedded.store import EmbeddedStore
from trunkline.log.store import Slice, TopicPartition
from trunkline.protocols.kafka.codec import decode_response, encode_request
from trunkline.protocols.kafka.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from trunkline.protocols.kafka.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from trunkline.protocols.kafka.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from trunkline.protocols.kafka.server import KafkaServer

DEADLINE_S = 20
PRODUCE_VERSION = 9
FETCH_VERSION = 11


class Listening:
    def __init__(self, server: KafkaServer, broker: BrokerCore, clock: ManualClock, port: int) -> None:
        self.server, self.broker, self.clock, self.port = server, broker, clock, port

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)


def with_server(data: Path, scenario: Callable[[Listening], Awaitable[None]], **limits: int) -> None:
    async def run() -> None:
        clock = ManualClock()
        settings = BrokerSettings(limits=BrokerLimits(**limits))
        broker = BrokerCore(EmbeddedStore(data, clock=clock), clock=clock, settings=settings)
        await broker.start()
        server = KafkaServer(broker)
        broker.listeners["kafka"] = await server.listen("127.0.0.1", 0, "kafka")
        try:
            async with asyncio.timeout(DEADLINE_S):
                await scenario(Listening(server, broker, clock, broker.listeners["kafka"][1]))
        finally:
            await server.close()
            await broker.close()

    asyncio.run(run())


async def answer(reader: asyncio.StreamReader) -> bytes:
    length = int.from_bytes(await reader.readexactly(4), "big")
    return await reader.readexactly(length)


def produce(correlation_id: int, value: bytes) -> bytes:
    batch = memoryview(build_batch([NewRecord(None, value)], timestamp_ms=1_700_000_000_000))
    request = ProduceRequest(
        acks=1,
        timeout_ms=1000,
        topic_data=[TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=batch)])],
    )
    return b"".join(encode_request(request, PRODUCE_VERSION, correlation_id, "test"))


@pytest.mark.parametrize("size", [1, 100, 300_000, 900_000])
@pytest.mark.parametrize("piece", [1 << 20, 70_001, 997])
def test_requests_of_every_size_arrive_whole_in_whatever_pieces(tmp_path: Path, size: int, piece: int) -> None:
    async def scenario(listening: Listening) -> None:
        await listening.broker.create_topic("t")
        reader, writer = await listening.connect()
        stream = b"".join(produce(number, bytes([number]) * size) for number in range(1, 4))
        for start in range(0, len(stream), piece):
            writer.write(stream[start : start + piece])
            await writer.drain()
        for number in range(1, 4):
            response = decode_response(ProduceResponse, memoryview(await answer(reader)), PRODUCE_VERSION, number)
            assert response.responses[0].partition_responses[0].base_offset == number - 1
        found = await listening.broker.store.read(TopicPartition("t", 0), 0, 10_000_000)
        for number in range(1, 4):
            assert bytes([number]) * size in bytes(found.records)
        writer.close()

    with_server(tmp_path, scenario)


@pytest.mark.parametrize("length", [-1, 2**31 - 1, 100 * 1024 * 1024 + 1])
def test_an_impossible_length_closes_the_connection(tmp_path: Path, length: int) -> None:
    async def scenario(listening: Listening) -> None:
        reader, writer = await listening.connect()
        writer.write((length & 0xFFFFFFFF).to_bytes(4, "big") + b"garbage")
        assert await reader.read() == b""

    with_server(tmp_path, scenario)


def test_one_connection_too_many_is_closed_and_the_others_stay(tmp_path: Path) -> None:
    async def scenario(listening: Listening) -> None:
        first_reader, first_writer = await listening.connect()
        await listening.connect()
        third_reader, _ = await listening.connect()
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await third_reader.readexactly(1)
        assert listening.server.refused == 1
        first_writer.write(b"".join(encode_request(ApiVersionsRequest(), 0, 1, None)))
        decode_response(ApiVersionsResponse, memoryview(await answer(first_reader)), 0, 1)

    with_server(tmp_path, scenario, max_connections=2)


def test_a_silent_connection_is_closed_and_an_active_one_is_not(tmp_path: Path) -> None:
    async def scenario(listening: Listening) -> None:
        silent_reader, _ = await listening.connect()
        active_reader, active_writer = await listening.connect()
        while len(listening.server.connections) < 2:
            await asyncio.sleep(0.001)
        listening.clock.advance(300)
        active_writer.write(b"".join(encode_request(ApiVersionsRequest(), 0, 1, None)))
        await answer(active_reader)
        listening.clock.advance(250)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await silent_reader.readexactly(1)
        assert len(listening.server.connections) == 1

    with_server(tmp_path, scenario, max_idle_ms=500)


def fetch(correlation_id: int, max_bytes: int) -> bytes:
    part = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=max_bytes)
    request = FetchRequest(
        max_wait_ms=0, min_bytes=1, max_bytes=max_bytes, topics=[FetchTopic(topic="t", partitions=[part])]
    )
    return b"".join(encode_request(request, FETCH_VERSION, correlation_id, "test"))


async def fill(broker: BrokerCore, batches: int) -> bytes:
    """Write a topic of 100 KB batches; returns what a fetch of it all must give."""
    await broker.create_topic("t")
    tp = TopicPartition("t", 0)
    for number in range(batches):
        value = number.to_bytes(4, "big") * 25_000
        await broker.store.append(tp, build_batch([NewRecord(None, value)], timestamp_ms=1_700_000_000_000))
    return bytes((await broker.store.read(tp, 0, 1 << 30)).records)


def test_large_and_small_answers_reach_a_slow_client_whole_and_in_order(tmp_path: Path) -> None:
    async def scenario(listening: Listening) -> None:
        wanted = await fill(listening.broker, 200)
        reader, writer = await listening.connect()
        sizes = [50_000_000, 100, 3_000_000, 50_000_000, 250_000, 700_000]
        for number, size in enumerate(sizes):
            writer.write(fetch(number, size))
        while not listening.broker.counters.unsent_bytes:  # the first answer does not fit the socket
            await asyncio.sleep(0.001)
        for number, size in enumerate(sizes):
            frame = memoryview(await answer(reader))
            response = decode_response(FetchResponse, frame, FETCH_VERSION, number)
            records = response.responses[0].partitions[0].records
            assert records is not None
            assert min(size, len(wanted)) - 101_000 < len(records) <= max(size, 101_000)
            assert bytes(records) == wanted[: len(records)]
        while listening.broker.counters.unsent_bytes:
            await asyncio.sleep(0.001)
        writer.close()

    with_server(tmp_path, scenario)


def test_a_client_that_leaves_in_the_middle_of_an_answer_leaves_nothing_behind(tmp_path: Path) -> None:
    async def scenario(listening: Listening) -> None:
        await fill(listening.broker, 200)
        reader, writer = await listening.connect()
        writer.write(fetch(1, 50_000_000) + fetch(2, 50_000_000))
        await reader.readexactly(1_000_000)
        while not listening.broker.counters.unsent_bytes:
            await asyncio.sleep(0.001)
        writer.transport.abort()
        while listening.server.connections or listening.broker.counters.unsent_bytes:
            await asyncio.sleep(0.001)
        await listening.broker.delete_topic("t")
        assert not [target for target in open_files() if str(tmp_path / "t-0") in target and ".log" in target]

    with_server(tmp_path, scenario)


def test_fetches_that_wait_for_the_disk_together_stay_within_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(listening: Listening) -> None:
        broker = listening.broker
        await fill(broker, 100)
        read, disk, asked = broker.store.read, asyncio.Event(), []

        async def slow_read(tp: TopicPartition, offset: int, max_bytes: int, **options: bool) -> Slice:
            asked.append(max_bytes)
            await disk.wait()
            return await read(tp, offset, max_bytes, **options)

        monkeypatch.setattr(broker.store, "read", slow_read)
        clients = [await listening.connect() for _ in range(5)]
        for _, writer in clients:
            writer.write(b"".join(fetch(number, 3_000_000) for number in range(4)))
        while len(asked) < 20:
            await asyncio.sleep(0.001)
        assert asked[:3] == [3_000_000] * 3
        assert sum(asked) <= 10_000_000 + 20 * 65_536
        disk.set()
        for reader, writer in clients:
            for number in range(4):
                response = decode_response(FetchResponse, memoryview(await answer(reader)), FETCH_VERSION, number)
                assert response.responses[0].partitions[0].records
            writer.close()
        while broker.counters.unsent_bytes:
            await asyncio.sleep(0.001)

    with_server(tmp_path, scenario, max_unsent_bytes=10_000_000)


def test_answers_that_wait_for_one_before_them_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(listening: Listening) -> None:
        broker = listening.broker
        await fill(broker, 30)
        read, disk, calls = broker.store.read, asyncio.Event(), 0

        async def first_is_slow(tp: TopicPartition, offset: int, max_bytes: int, **options: bool) -> Slice:
            nonlocal calls
            calls += 1
            if calls == 1:
                await disk.wait()
            return await read(tp, offset, max_bytes, **options)

        monkeypatch.setattr(broker.store, "read", first_is_slow)
        reader, writer = await listening.connect()
        writer.write(fetch(0, 1) + fetch(1, 2_000_000) + fetch(2, 2_000_000))
        while broker.counters.unsent_bytes < 3_600_000:
            await asyncio.sleep(0.001)
        disk.set()
        for number in range(3):
            decode_response(FetchResponse, memoryview(await answer(reader)), FETCH_VERSION, number)
        while broker.counters.unsent_bytes:
            await asyncio.sleep(0.001)
        writer.write(fetch(3, 2_000_000))
        await answer(reader)
        writer.close()

    with_server(tmp_path, scenario)


def test_a_fetch_that_waits_reads_only_what_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(listening: Listening) -> None:
        broker = listening.broker
        await broker.create_topic("t", 4)
        read, asked = broker.store.read, []

        async def counted(tp: TopicPartition, offset: int, max_bytes: int, **options: bool) -> Slice:
            asked.append(tp.partition)
            return await read(tp, offset, max_bytes, **options)

        monkeypatch.setattr(broker.store, "read", counted)
        parts = [FetchPartition(partition=number, fetch_offset=0, partition_max_bytes=100_000) for number in range(4)]
        request = FetchRequest(
            max_wait_ms=60_000, min_bytes=1000, max_bytes=100_000, topics=[FetchTopic(topic="t", partitions=parts)]
        )
        reader, writer = await listening.connect()
        writer.write(b"".join(encode_request(request, FETCH_VERSION, 1, "test")))
        while len(asked) < 4:
            await asyncio.sleep(0.001)
        await broker.store.append(TopicPartition("t", 2), build_batch([NewRecord(None, b"few")], timestamp_ms=1))
        while len(asked) < 5:
            await asyncio.sleep(0.001)
        assert asked == [0, 1, 2, 3, 2]
        await broker.store.append(TopicPartition("t", 3), build_batch([NewRecord(None, bytes(2000))], timestamp_ms=1))
        response = decode_response(FetchResponse, memoryview(await answer(reader)), FETCH_VERSION, 1)
        found = {part.partition_index: bool(part.records) for part in response.responses[0].partitions}
        assert found == {0: False, 1: False, 2: True, 3: True}, "what was found before counts, too"
        writer.close()

    with_server(tmp_path, scenario)


def open_files() -> list[str]:
    links = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
    return [os.readlink(link) for link in links if os.path.lexists(link)]


def test_a_client_that_reads_nothing_is_not_read_any_more(tmp_path: Path) -> None:
    async def scenario(listening: Listening) -> None:
        _, writer = await listening.connect()
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        request = b"".join(encode_request(ApiVersionsRequest(), 0, 1, None))
        while not listening.server.connections:
            await asyncio.sleep(0.001)
        (connection,) = listening.server.connections
        assert connection._transport is not None
        while connection._transport.is_reading():
            writer.write(request * 100)
            await asyncio.sleep(0)
        assert connection._transport.get_write_buffer_size() < 2_000_000
        assert listening.broker.counters.unsent_bytes > 0
        writer.transport.abort()
        while listening.server.connections:
            await asyncio.sleep(0.001)
        assert listening.broker.counters.unsent_bytes == 0

    with_server(tmp_path, scenario)


def test_input_that_is_not_complete_counts_and_the_largest_is_closed(tmp_path: Path) -> None:
    async def scenario(listening: Listening) -> None:
        budget = listening.broker.input
        large_reader, large_writer = await listening.connect()
        small_reader, small_writer = await listening.connect()
        large_writer.write((900_000).to_bytes(4, "big") + bytes(500_000))
        while budget.held_bytes < 500_000:
            await asyncio.sleep(0.001)
        request = b"".join(encode_request(ApiVersionsRequest(), 0, 1, None))
        small_writer.write(request[:-1])
        while budget.holders < 2:
            await asyncio.sleep(0.001)
        small_writer.write(request[-1:])
        await answer(small_reader)
        assert budget.holders == 1, "what is complete counts no more"
        small_writer.write((900_000).to_bytes(4, "big") + bytes(450_000))
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await large_reader.readexactly(1)
        assert budget.let_go == 1
        small_writer.write(bytes(450_000))
        small_writer.close()
        large_writer.close()
        while listening.server.connections:
            await asyncio.sleep(0.001)
        assert (budget.held_bytes, listening.broker.counters.connections) == (0, 0)

    with_server(tmp_path, scenario, max_input_bytes=1_200_000)


def test_a_request_must_be_complete_in_time_but_not_one_that_waits_for_us(tmp_path: Path) -> None:
    async def scenario(listening: Listening) -> None:
        slow_reader, slow_writer = await listening.connect()
        slow_writer.write((100).to_bytes(4, "big"))
        while not listening.broker.input.holders:
            await asyncio.sleep(0.001)
        listening.clock.advance(400)
        slow_writer.write(b"a byte or two")
        while listening.broker.input.held_bytes < 5:
            await asyncio.sleep(0.001)
        listening.clock.advance(400)
        assert await slow_reader.read() == b""

    with_server(tmp_path, scenario, max_request_ms=500)


def test_connections_of_all_listeners_together_leave_room_for_files(tmp_path: Path) -> None:
    async def scenario(listening: Listening) -> None:
        first_reader, first_writer = await listening.connect()
        await listening.connect()
        third_reader, _ = await listening.connect()
        assert await third_reader.read() == b""
        assert listening.server.refused == 1
        first_writer.write(b"".join(encode_request(ApiVersionsRequest(), 0, 1, None)))
        assert await answer(first_reader)

    with_server(tmp_path, scenario, max_open_connections=2)
