"""A broker that answers what a test tells it to: real sockets, real frames, no log.

Each API has a handler that gets the decoded request and gives the response, or None to close the connection. What was
asked is kept in `requests`, with its version.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

from trunkline.protocols.kafka.apis import APIS, ApiKey
from trunkline.protocols.kafka.codec import decode_request, encode_response
from trunkline.protocols.kafka.messages.api_versions import ApiVersion, ApiVersionsResponse
from trunkline.protocols.kafka.messages.find_coordinator import FindCoordinatorResponse
from trunkline.protocols.kafka.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from trunkline.protocols.kafka.wire import Message

Handler = Callable[[Message], Message | None]
LENGTH = struct.Struct(">i")
NODE = 7


class FakeBroker:
    def __init__(
        self,
        handlers: Mapping[ApiKey, Handler] | None = None,
        *,
        topics: Mapping[str, int] | None = None,
        versions: Mapping[ApiKey, tuple[int, int]] | None = None,
    ) -> None:
        self.handlers: dict[ApiKey, Handler] = {
            ApiKey.API_VERSIONS: self._api_versions,
            ApiKey.METADATA: self._metadata,
            ApiKey.FIND_COORDINATOR: self._coordinator,
            **(handlers or {}),
        }
        self.topics = dict(topics or {})
        self.versions = versions or {ApiKey(key): (api.min_version, api.max_version) for key, api in APIS.items()}
        self.requests: list[tuple[int, Message]] = []
        self.connections = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._accepted: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        # Closing alone does not wake a thread that waits in accept.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._accepted:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._thread.join()

    def asked(self, kind: type[Message]) -> list[tuple[int, Message]]:
        return [(version, request) for version, request in self.requests if isinstance(request, kind)]

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._accepted.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as stream:
            try:
                while head := stream.read(LENGTH.size):
                    frame = memoryview(stream.read(LENGTH.unpack(head)[0]))
                    header, request = decode_request(frame)
                    self.requests.append((header.api_version, request))
                    response = self.handlers[ApiKey(header.api_key)](request)
                    if response is None:
                        return
                    for buffer in encode_response(header.api_key, header.api_version, header.correlation_id, response):
                        connection.sendall(buffer)
            except OSError:
                return

    def _api_versions(self, request: Message) -> Message:
        known = [
            ApiVersion(api_key=key, min_version=low, max_version=high) for key, (low, high) in self.versions.items()
        ]
        return ApiVersionsResponse(api_keys=known)

    def _metadata(self, request: Message) -> Message:
        names = getattr(request, "topics", None)
        asked = self.topics if names is None else [item.name for item in names]
        topics = []
        for name in asked:
            count = self.topics.get(name, 0)
            partitions = [
                MetadataResponsePartition(partition_index=at, leader_id=NODE, replica_nodes=[NODE], isr_nodes=[NODE])
                for at in range(count)
            ]
            topics.append(MetadataResponseTopic(error_code=0 if count else 3, name=name, partitions=partitions))
        brokers = [MetadataResponseBroker(node_id=NODE, host="127.0.0.1", port=self.port)]
        return MetadataResponse(brokers=brokers, controller_id=NODE, topics=topics)

    def _coordinator(self, request: Message) -> Message:
        return FindCoordinatorResponse(node_id=NODE, host="127.0.0.1", port=self.port)
