"""A consumer: what basic.consume starts. It takes from a queue's cursor as much as its prefetch and its client allow.

Deliveries of a turn are encoded in one go. With `no_ack` the cursor has settled them already; otherwise they
stay with the channel until the client settles them. A client that does not take its deliveries off the connection gets
no more of them: the consumer has no credit while the connection is not writable.

A message that cannot be made a delivery, because of what somebody put into its record, is given up by its queue; the
others of the turn go out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

from trunkline.broker.messaging.queue import Queue
from trunkline.broker.messaging.settlements import Holder
from trunkline.cursors.queue import Delivery
from trunkline.protocols.amqp.codec import Message as Content
from trunkline.protocols.amqp.codec import encode_deliveries
from trunkline.protocols.amqp.connection import Connection
from trunkline.protocols.amqp.errors import NOT_IMPLEMENTED, FrameError
from trunkline.protocols.amqp.mapping import Envelope
from trunkline.protocols.amqp.prefetch import ChannelPrefetch, Share

_OFFSET: Final = "x-stream-offset"
_OFFSET_FIELD: Final = (
    bytes((len(_OFFSET),)) + _OFFSET.encode() + b"l"
)  # a signed 64-bit integer: Java's clients cast it


class Consuming(Protocol):
    """What a consumer asks of its channel."""

    session: Connection
    number: int
    prefetch: ChannelPrefetch  # of all consumers together
    next_tag: int
    unsettled: dict[int, Delivery]

    @property
    def open(self) -> bool: ...

    @property
    def flowing(self) -> bool: ...

    @property
    def consumers(self) -> Mapping[str, Consumer]: ...

    def consumer_cancelled(self, consumer: Consumer) -> None: ...


class Consumer(Holder):
    """One consumer of one queue, in the terms of the cursor's `QueueConsumer`."""

    __slots__ = (
        "_raw_tag", "arguments", "channel", "counts_deliveries", "exclusive", "lease_ms", "no_ack", "pool", "prefetch",
        "priority", "queue", "tag",
    )  # fmt: skip

    def __init__(
        self,
        channel: Consuming,
        queue: Queue,
        tag: str,
        *,
        no_ack: bool,
        exclusive: bool,
        prefetch: int,
        priority: int,
        arguments: dict[str, object],
    ) -> None:
        super().__init__()
        self.channel = channel
        self.queue = queue
        self.tag = tag
        self.no_ack = no_ack
        self.exclusive = exclusive
        self.prefetch = 0 if no_ack else prefetch
        self.priority = priority
        self.arguments = arguments
        self.pool: Share | None = None  # of this turn, if the channel's prefetch is shared with other consumers
        asked = arguments.get("x-delivery-count") is True
        self.counts_deliveries = asked or queue.arguments.get("x-queue-type") == "quorum"
        lease_ms = arguments.get("x-lease-ms")
        self.lease_ms = lease_ms if isinstance(lease_ms, int) else queue.settings.lease_ms
        self._raw_tag = tag.encode()

    def credit(self) -> int:
        channel = self.channel
        session = channel.session
        if not session.writable or not channel.open or not channel.flowing:
            return 0
        limits = session.limits
        if self.no_ack:
            return limits.turn_deliveries
        left = limits.turn_deliveries
        if self.prefetch:
            left = min(left, self.prefetch - self.unsettled)
            if left <= 0:
                return 0
        room = limits.max_unsettled_per_channel - len(channel.unsettled)
        if room <= 0:
            channel.prefetch.wait(self.queue.cursor)
            return 0
        self.pool = None
        if channel.prefetch.limit:
            share = channel.prefetch.share_of(self.queue.cursor)
            room = min(room, share.left)
            if len(channel.consumers) > 1:
                self.pool = share
        return min(left, room)

    def deliver(self, deliveries: list[Delivery]) -> None:
        try:
            frames = self._encoded(deliveries)
        except Exception:
            deliveries = self._without_undeliverable(deliveries)
            if not deliveries:
                return
            frames = self._encoded(deliveries)
        channel = self.channel
        first_tag = channel.next_tag
        channel.next_tag += len(deliveries)
        channel.session.send(frames)
        if not self.no_ack:
            self.unsettled += len(deliveries)
            channel.prefetch.held += len(deliveries)
            if self.pool is not None:
                self.pool.left -= len(deliveries)
            channel.unsettled.update(zip(range(first_tag, channel.next_tag), deliveries, strict=True))

    def _encoded(self, deliveries: list[Delivery]) -> bytes:
        channel = self.channel
        session = channel.session
        known = session.envelopes.by_section
        contents: list[Content] = []
        for delivery in deliveries:
            message = delivery[1]
            envelope = known.get(message[1])
            if envelope is None:
                envelope = session.envelopes.of_record(message[1])
            if envelope.addressed and not self.counts_deliveries:
                contents.append((envelope.exchange, envelope.routing_key, delivery[2], envelope.properties, message[0]))
            else:
                contents.append(content_of(envelope, delivery, self.queue, self._properties_of(envelope, delivery)))
        return encode_deliveries(channel.number, self._raw_tag, channel.next_tag, contents, session.frame_max_bytes)

    def _without_undeliverable(self, deliveries: list[Delivery]) -> list[Delivery]:
        kept: list[Delivery] = []
        for delivery in deliveries:
            try:
                self._encoded([delivery])
            except Exception as error:
                delivery.queue.give_up(delivery, error)
            else:
                kept.append(delivery)
        return kept

    def _properties_of(self, envelope: Envelope, delivery: Delivery) -> bytes:
        if self.counts_deliveries and delivery.delivery_count > 1:
            return envelope.with_header("x-delivery-count", delivery.delivery_count - 1)
        return envelope.properties

    def cancelled(self, reason: str) -> None:
        """The queue is gone, or took the consumer's place from it."""
        self.channel.consumer_cancelled(self)


class StreamConsumer(Consumer):
    """A consumer of a stream. Its prefetch is all the credit there is, and each delivery says its offset."""

    __slots__ = ("_around", "_around_of")

    def __init__(
        self,
        channel: Consuming,
        queue: Queue,
        tag: str,
        *,
        exclusive: bool,
        arguments: dict[str, object],
        prefetch: int,
    ) -> None:
        super().__init__(
            channel, queue, tag, no_ack=False, exclusive=exclusive, prefetch=prefetch, priority=0, arguments=arguments
        )
        self._around_of: Envelope | None = None
        self._around = (b"", b"", b"")

    def credit(self) -> int:
        channel = self.channel
        session = channel.session
        if not session.writable or not channel.open or not channel.flowing:
            return 0
        limits = session.limits
        room = limits.max_unsettled_per_channel - len(channel.unsettled)
        return max(min(limits.turn_deliveries, self.prefetch - self.unsettled, room), 0)

    def _encoded(self, deliveries: list[Delivery]) -> bytes:
        channel = self.channel
        session = channel.session
        contents: list[Content] = []
        for delivery in deliveries:
            envelope = session.envelopes.of_record(delivery.message.headers)
            if envelope is not self._around_of:
                self._around, self._around_of = envelope.around_fields(_OFFSET), envelope
            before, fields, behind = self._around
            table = fields + _OFFSET_FIELD + delivery.offset.to_bytes(8, "big")
            properties = before + len(table).to_bytes(4, "big") + table + behind
            contents.append(content_of(envelope, delivery, self.queue, properties))
        return encode_deliveries(channel.number, self._raw_tag, channel.next_tag, contents, session.frame_max_bytes)


def not_by_streams(what: str, queue: Queue) -> FrameError:
    text = f"{what} not supported by stream queues queue '{queue.name}' in vhost '{queue.vhost}'"
    return FrameError(NOT_IMPLEMENTED, text)


def content_of(envelope: Envelope, delivery: Delivery, queue: Queue, properties: bytes) -> Content:
    """A message that may be of another protocol, with these properties."""
    routing_key = envelope.routing_key if envelope.addressed else queue.name
    return envelope.exchange, routing_key, delivery.redelivered, properties, delivery.message.value
