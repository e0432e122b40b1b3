"""Putting exactly once: a queue is a topic, and a Kafka producer with sequence numbers writes to it.

However often a message has to be sent again, because the connection or the broker was lost before it was acknowledged, the broker
stores it once: it knows the producer's id and the number of its last messages, from its log, also after it was killed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from trunkline.api import bodies
from trunkline.api.errors import Refused
from trunkline.api.message import KEY_HEADER, MessageId
from trunkline.api.stream import explained_kafka
from trunkline.broker.messaging.typed_values import FieldValue
from trunkline.client.client import Client
from trunkline.client.errors import ClientError
from trunkline.client.producer import Producer

Headers = list[tuple[str, bytes | None]]


class OncePutter:
    """For one queue of the virtual host "/": there the topic has the queue's name."""

    def __init__(self, bootstrap: str, queue: str, timeout: float, new_id: Callable[[], str]) -> None:
        self._client = Client(bootstrap, timeout_ms=round(timeout * 1000), known_to_run=True)
        self._queue = queue
        self._new_id = new_id
        self._thread = ThreadPoolExecutor(1, f"trunkline-put-{queue}")
        self._producer: Producer | None = None

    async def put(
        self,
        values: Sequence[object],
        *,
        key: str | None = None,
        headers: Mapping[str, FieldValue] | None = None,
        priority: int = 0,
        expires: float | None = None,
    ) -> list[MessageId]:
        """In one order, and stored when it returns."""
        ids: list[MessageId] = []
        records: list[tuple[bytes, Headers]] = []
        for value in values:
            body, content_type, type_name = bodies.encode(value)
            number = MessageId(self._new_id())
            ids.append(number)
            table: Headers = [
                ("amqp.exchange", b""),
                ("amqp.routing-key", self._queue.encode()),
                ("amqp.content-type", content_type.encode()),
                ("amqp.delivery-mode", b"2"),
                ("amqp.message-id", number.encode()),
            ]
            if type_name is not None:
                table.append(("amqp.type", type_name.encode()))
            if priority:
                table.append(("amqp.priority", str(priority).encode()))
            if expires is not None:
                table.append(("amqp.expiration", str(round(expires * 1000)).encode()))
            table += _headers({**(headers or {}), **({} if key is None else {KEY_HEADER: key})})
            records.append((body, table))
        await asyncio.get_running_loop().run_in_executor(self._thread, self._write, key, records)
        return ids

    def _write(self, key: str | None, records: Sequence[tuple[bytes, Headers]]) -> None:
        try:
            if self._producer is None:
                self._producer = Producer(self._client, self._queue, create=False)
            for body, headers in records:
                self._producer.send(None if key is None else key.encode(), body, headers)
            self._producer.flush()
        except ClientError as error:
            self._producer = None
            raise explained_kafka(error) from None

    async def close(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, self._client.close)
        self._thread.shutdown(wait=False)


def _headers(table: Mapping[str, FieldValue]) -> Headers:
    found: Headers = []
    for name, value in table.items():
        if not isinstance(value, str | bytes):
            raise Refused("PRECONDITION_FAILED", f"header {name!r}: with exactly-once a header is text or bytes")
        found.append((name, value.encode() if isinstance(value, str) else value))
    return found
