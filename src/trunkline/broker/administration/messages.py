"""Messages by hand: one is published to an exchange, or some are taken from a queue to look at, as RabbitMQ's page does it.

A publication is stored in all of its queues, or none, before this returns. What is taken is settled before this returns: put
back or gone, as asked.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Final

from trunkline.broker.messaging import refusals
from trunkline.broker.messaging.envelope import (
    APP_ID_HEADER,
    CLUSTER_ID_HEADER,
    CONTENT_ENCODING_HEADER,
    CONTENT_TYPE_HEADER,
    CORRELATION_ID_HEADER,
    EXCHANGE_HEADER,
    MESSAGE_ID_HEADER,
    REPLY_TO_HEADER,
    ROUTING_KEY_HEADER,
    TIMESTAMP_HEADER,
    TYPE_HEADER,
    USER_ID_HEADER,
    Envelope,
    Headers,
    read_section,
)
from trunkline.broker.messaging.messaging import Messaging
from trunkline.broker.messaging.routes import delay, find_route, is_delayed
from trunkline.broker.messaging.typed_values import FieldValue, decode_field, encode_fields, plain_value
from trunkline.broker.state.arguments import from_json
from trunkline.broker.state.virtual_host import VirtualHost
from trunkline.clock import Clock
from trunkline.cursors.queue import Delivery
from trunkline.cursors.queue.traits import DELIVERY_MODE_HEADER, EXPIRATION_HEADER, PRIORITY_HEADER

Json = dict[str, object]

MAX_TAKEN: Final = 1_000
_MAX_TAKEN_BYTES: Final = 16 << 20
_TEXTS: Final = {
    "content_type": CONTENT_TYPE_HEADER,
    "content_encoding": CONTENT_ENCODING_HEADER,
    "correlation_id": CORRELATION_ID_HEADER,
    "reply_to": REPLY_TO_HEADER,
    "message_id": MESSAGE_ID_HEADER,
    "type": TYPE_HEADER,
    "user_id": USER_ID_HEADER,
    "app_id": APP_ID_HEADER,
    "cluster_id": CLUSTER_ID_HEADER,
    "expiration": EXPIRATION_HEADER,
}
_NUMBERS: Final = {
    "delivery_mode": DELIVERY_MODE_HEADER,
    "priority": PRIORITY_HEADER,
    "timestamp": TIMESTAMP_HEADER,
}
# What becomes of a message that was taken: whether it stays, and whether it counts as seen.
_AFTERWARDS: Final = {
    "ack_requeue_true": True,
    "reject_requeue_true": True,
    "ack_requeue_false": False,
    "reject_requeue_false": False,
}


class MessagesByHand:
    def __init__(self, messaging: Messaging, clock: Clock) -> None:
        self._messaging = messaging
        self._clock = clock

    async def publish(
        self, vhost: VirtualHost, exchange: str, routing_key: str, properties: Mapping[str, object], body: bytes
    ) -> bool:
        """Whether it was routed to a queue."""
        envelope = _envelope(exchange, routing_key, properties)
        queues = find_route(vhost, envelope, body)
        now_ms = self._clock.wall_ms()
        if is_delayed(vhost, envelope):
            for stored in delay(queues, envelope, body, now_ms, confirmed=True):
                await stored
        elif queues:
            message = envelope.message(body, now_ms)
            keyed = message._replace(key=envelope.order_key)
            await self._messaging.publish_atomically(
                [(queue, keyed if queue.orders_by_key else message) for queue in queues]
            )
        return bool(queues)

    async def take(self, vhost: str, name: str, count: int, afterwards: str) -> list[tuple[Delivery, int]]:
        """The next messages, each with how many were left ready behind it. `afterwards` is RabbitMQ's `ackmode`."""
        if afterwards not in _AFTERWARDS:
            raise refusals.precondition(f"ackmode is one of {', '.join(_AFTERWARDS)}")
        queue = self._messaging.queues.require(name, vhost)
        queue.check_owner(self)
        cursor = queue.cursor
        found: list[tuple[Delivery, int]] = []
        while len(found) < min(count, MAX_TAKEN):
            taken = cursor.acquire(1, _MAX_TAKEN_BYTES, consumer=self)
            if not taken and not (cursor.ready and await cursor.load()):
                break
            found += [(delivery, cursor.ready) for delivery in taken]
        offsets = [delivery.offset for delivery, _ in found]
        if _AFTERWARDS[afterwards]:
            cursor.release(offsets)
        elif afterwards.startswith("reject"):
            cursor.reject(offsets)
        else:
            cursor.acknowledge(offsets)
        await self._messaging.settlements_stored()
        return found


def _envelope(exchange: str, routing_key: str, properties: Mapping[str, object]) -> Envelope:
    envelope = Envelope(exchange, routing_key)
    record: Headers = []
    for name, header in _TEXTS.items():
        value = properties.get(name)
        if value is not None:
            record.append((header, str(value).encode()))
    for name, header in _NUMBERS.items():
        value = properties.get(name)
        if value is not None:
            record.append((header, str(_whole(name, value)).encode()))
    envelope.persistent = properties.get("delivery_mode") == 2
    priority = properties.get("priority")
    envelope.priority = 0 if priority is None else min(255, _whole("priority", priority))
    expiration = properties.get("expiration")
    if expiration is not None:
        envelope.expiration_ms = _whole("expiration", expiration)
    headers = properties.get("headers")
    if isinstance(headers, dict):
        table: dict[str, FieldValue] = {str(key): _field(from_json(value)) for key, value in headers.items()}
        try:
            envelope.fields = encode_fields(table)
        except ValueError as error:
            raise refusals.precondition(f"a header cannot be sent: {error}") from None
    envelope.seal(record)
    return envelope


def _field(value: object) -> FieldValue:
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return value
    if isinstance(value, list):
        return [_field(inner) for inner in value]
    if isinstance(value, dict):
        return {str(name): _field(inner) for name, inner in value.items()}
    return str(value)


def _whole(name: str, value: object) -> int:
    try:
        number = int(str(value))
    except ValueError:
        number = -1
    if isinstance(value, bool) or number < 0:
        raise refusals.precondition(f"{name} must be a whole number")
    return number


def message_document(delivery: Delivery, left: int, *, encoding: str, truncate: int | None) -> Json:
    """A message that was taken, in RabbitMQ's form."""
    section = read_section(delivery.message.headers)
    texts = {name: (value or b"").decode("utf-8", "replace") for name, value in section.reserved.items()}
    properties: Json = {name: texts[header] for name, header in _TEXTS.items() if header in texts}
    for name, header in _NUMBERS.items():
        if texts.get(header, "").isdigit():
            properties[name] = int(texts[header])
    headers = {name: _shown(plain_value(decode_field(encoded))) for name, encoded in section.table}
    if headers:
        properties["headers"] = headers
    body = delivery.message.value
    part = body if truncate is None else body[:truncate]
    payload, shown_as = base64.b64encode(part).decode(), "base64"
    if encoding != "base64":
        try:
            payload, shown_as = part.decode(), "string"
        except UnicodeDecodeError:
            pass
    return {
        "payload_bytes": len(body),
        "redelivered": delivery.redelivered,
        "exchange": texts.get(EXCHANGE_HEADER, ""),
        "routing_key": texts.get(ROUTING_KEY_HEADER, ""),
        "message_count": left,
        "properties": properties or [],
        "payload": payload,
        "payload_encoding": shown_as,
    }


def _shown(value: object) -> object:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, list):
        return [_shown(inner) for inner in value]
    if isinstance(value, dict):
        return {name: _shown(inner) for name, inner in value.items()}
    return str(value)
