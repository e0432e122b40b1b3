"""A client with bad manners: a raw socket that can send anything, beside a decent one to see what comes back."""

from __future__ import annotations

import socket
import struct
from types import TracebackType
from typing import Self, TypeVar

from trunkline.log.batch import build_batch
from trunkline.protocols.kafka.apis import ApiKey, load
from trunkline.protocols.kafka.codec import decode_response, encode_request
from trunkline.protocols.kafka.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from trunkline.protocols.kafka.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from trunkline.protocols.kafka.wire import Message

ANSWER_SECONDS = 30.0
READ_BYTES = 1 << 16
CLIENT_ID = "hostile"
PRODUCE_VERSION = 9
FETCH_VERSION = 11

Answer = TypeVar("Answer", bound=Message)
__all__ = ["ANSWER_SECONDS", "Peer", "build_batch", "frame"]


def frame(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


class Peer:
    """One connection. Everything read is bounded by `ANSWER_SECONDS`."""

    def __init__(self, port: int, receive_buffer_bytes: int | None = None) -> None:
        self.socket = socket.socket()
        if receive_buffer_bytes is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        self.socket.settimeout(ANSWER_SECONDS)
        self.socket.connect(("127.0.0.1", port))
        self._correlation_id = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def read_exactly(self, size: int) -> bytes:
        parts: list[bytes] = []
        while size:
            part = self.socket.recv(min(size, READ_BYTES))
            assert part, "the broker closed the connection"
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def read_frame(self) -> bytes:
        (size,) = struct.unpack(">i", self.read_exactly(4))
        return self.read_exactly(size)

    def is_closed_by_the_broker(self) -> bool:
        """Wait for the broker to close; false when it sends something instead. Silence is a failure by timeout."""
        try:
            return self.socket.recv(1) == b""
        except (ConnectionResetError, BrokenPipeError):
            return True

    def encoded(self, request: Message, version: int) -> bytes:
        self._correlation_id += 1
        return b"".join(encode_request(request, version, self._correlation_id, CLIENT_ID))

    def ask(self, request: Message, version: int, answer: type[Answer]) -> Answer:
        """A proper request and its answer."""
        self.send(self.encoded(request, version))
        return decode_response(answer, memoryview(self.read_frame()), version, self._correlation_id)

    def produce(self, topic: str, batch: bytes, *, partition: int = 0, acks: int = 1) -> PartitionProduceResponse:
        data = PartitionProduceData(index=partition, records=memoryview(batch))
        request = ProduceRequest(
            acks=acks, timeout_ms=10_000, topic_data=[TopicProduceData(name=topic, partition_data=[data])]
        )
        answer = self.ask(request, PRODUCE_VERSION, ProduceResponse)
        return answer.responses[0].partition_responses[0]

    @staticmethod
    def fetch_request(topic: str, offset: int = 0, max_bytes: int = 1 << 20, partition: int = 0) -> FetchRequest:
        wanted = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=max_bytes)
        return FetchRequest(
            max_wait_ms=0, min_bytes=0, max_bytes=max_bytes, topics=[FetchTopic(topic=topic, partitions=[wanted])]
        )

    def fetch(self, topic: str, offset: int = 0, max_bytes: int = 1 << 20) -> PartitionData:
        answer = self.ask(self.fetch_request(topic, offset, max_bytes), FETCH_VERSION, FetchResponse)
        return answer.responses[0].partitions[0]

    def serves(self) -> bool:
        """Whether the broker answers a proper request on this connection."""
        request, answer = load(ApiKey.API_VERSIONS)
        return getattr(self.ask(request(), 0, answer), "error_code", None) == 0
