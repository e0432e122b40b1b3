"""The listener's own duties: frames however they arrive, limits, idle connections."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from trunkline.broker.core import BrokerCore
from trunkline.broker.limits import BrokerLimits, BrokerSettings
from trunkline.clock import ManualClock
from trunkline.log.batch import NewRecord, build_batch
from trunkline.log.embedded.store import EmbeddedStore
from trunkline.log.store import TopicPartition
from trunkline.protocols.kafka.codec import decode_response, encode_request
from trunkline.protocols.kafka.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from trunkline.protocols.kafka.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from trunkline.protocols.kafka.server import KafkaServer

DEADLINE_S = 20
PRODUCE_VERSION = 9


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
        broker.listeners["kafka"] = await server.start("127.0.0.1", 0)
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


def test_a_client_that_reads_nothing_is_not_read_any_more(tmp_path: Path) -> None:
    async def scenario(listening: Listening) -> None:
        _, writer = await listening.connect()
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        request = b"".join(encode_request(ApiVersionsRequest(), 0, 1, None))
        while not listening.server.connections:
            await asyncio.sleep(0.001)
        (connection,) = listening.server.connections
        while connection._reading:
            writer.write(request * 100)
            await asyncio.sleep(0)
        assert connection._transport is not None
        assert connection._transport.get_write_buffer_size() < 2_000_000
        assert listening.broker.unsent_bytes > 0
        writer.transport.abort()
        while listening.server.connections:
            await asyncio.sleep(0.001)
        assert listening.broker.unsent_bytes == 0

    with_server(tmp_path, scenario)
