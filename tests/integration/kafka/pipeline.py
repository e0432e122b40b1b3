"""One connection, several requests in one write: what a client that pipelines does, without a client in between."""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from trunkline.protocols.kafka.apis import ApiKey, load
from trunkline.protocols.kafka.codec import decode_response, encode_request
from trunkline.protocols.kafka.wire import Message

ANSWER_SECONDS = 30.0
CLIENT_ID = "pipeline"

Ask = tuple[Message, int]  # a request, and its version


class Pipeline:
    def __init__(self, host: str, port: int) -> None:
        self._socket = socket.create_connection((host, port), ANSWER_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._correlation_id = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def send(self, *asks: Ask) -> list[int]:
        """Write all requests at once; returns their correlation ids."""
        frames: list[bytes] = []
        ids: list[int] = []
        for request, version in asks:
            self._correlation_id += 1
            ids.append(self._correlation_id)
            frames += map(bytes, encode_request(request, version, self._correlation_id, CLIENT_ID))
        self._socket.sendall(b"".join(frames))
        return ids

    def receive(self, asks: Sequence[Ask], ids: Sequence[int]) -> list[Any]:
        """The answers to what was sent, in that order."""
        answers: list[Any] = []
        for (request, version), correlation_id in zip(asks, ids, strict=True):
            _, response = load(ApiKey(request.API_KEY))
            answers.append(decode_response(response, memoryview(self._frame()), version, correlation_id))
        return answers

    def ask(self, *asks: Ask) -> list[Any]:
        return self.receive(asks, self.send(*asks))

    def _frame(self) -> bytes:
        (size,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(size)

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = self._socket.recv(size - len(data))
            assert part, "the broker closed the connection"
            data += part
        return bytes(data)
