"""What a STOMP client is subscribed to, and what it does with the messages: SUBSCRIBE, UNSUBSCRIBE, ACK, NACK.

Rules kept:

1. A message's id names its subscription, the session and a number that counts up over the connection:
   `T_<id>@@<session>@@<number>`; `Q_<destination>@@…` for a subscription without an id.
2. In `client` mode ACK and NACK also settle what the subscription got before; in `client-individual` mode that message alone.
   In `auto` mode a message is settled when it is sent.
3. What a subscription holds goes back to its queue, in order and marked as redelivered, when it ends.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

from trunkline.broker.messaging.queue import Queue
from trunkline.broker.messaging.queue_arguments import Wish, read_wish
from trunkline.broker.messaging.refusals import Reason, Refused, not_found
from trunkline.broker.messaging.settlements import Holder, by_cursor, free, refuse
from trunkline.broker.messaging.typed_values import LATEST_S
from trunkline.cursors.queue import Delivery
from trunkline.cursors.queue.errors import ConsumerRefused, QueueGone
from trunkline.protocols.stomp import endpoints
from trunkline.protocols.stomp.codec import V1_2, Content, encode_messages, header_line
from trunkline.protocols.stomp.connection import Connection
from trunkline.protocols.stomp.destination import Destination, Kind, parse_destination
from trunkline.protocols.stomp.errors import StompError, invalid_header, missing
from trunkline.security.users import Access

_MODES: Final = ("auto", "client", "client-individual")
_MAX_PREFETCH: Final = 65_535
_MAX_PLACE_DIGITS: Final = 18
Taken = tuple[int, Delivery]


class Subscription(Holder):
    """One subscription, in the terms of the cursor's `QueueConsumer`. `tag` is what its messages' ids begin with."""

    __slots__ = (
        "_connection", "_head", "_ids", "_owner", "_prefetch", "_with_ack", "cumulative", "destination", "durable", "held",
        "no_ack", "pool", "priority", "queue", "tag",
    )  # fmt: skip

    def __init__(
        self, owner: Subscriptions, connection: Connection, tag: str, subscription: str | None, queue: Queue,
        destination: Destination, mode: str, prefetch: int, priority: int, *, durable: bool,
    ) -> None:  # fmt: skip
        super().__init__()
        self._owner = owner
        self._connection = connection
        self.tag = tag
        self.queue = queue
        self.destination = destination
        self.durable = durable  # its queue stays when it goes, unless told otherwise
        self.no_ack = mode == "auto"
        self.cumulative = mode == "client"
        self.priority = priority
        self.pool = None
        self.held: dict[int, Delivery] = {}
        self._prefetch = 0 if self.no_ack else prefetch
        version = connection.version
        named = b"" if subscription is None else header_line(b"subscription", subscription.encode(), version)
        self._head = b"MESSAGE\n" + named + b"destination:"
        self._ids = header_line(b"", f"{tag}@@{connection.session_id}@@".encode(), version)[1:-1]
        self._with_ack = version >= V1_2 and not self.no_ack

    def credit(self) -> int:
        connection = self._connection
        if not connection.writable:
            return 0
        limits = connection.limits
        left = limits.turn_deliveries
        if self.no_ack:
            return left
        if self._prefetch:
            left = min(left, self._prefetch - self.unsettled)
        return min(left, limits.max_unsettled - self._owner.unsettled)

    def deliver(self, deliveries: list[Delivery]) -> None:
        try:
            contents = [self._content(delivery) for delivery in deliveries]
        except Exception:
            deliveries, contents = self._without_undeliverable(deliveries)
        owner = self._owner
        first = owner.next_number
        owner.next_number += len(deliveries)
        self._connection.send(encode_messages(self._head, self._ids, self._with_ack, first, contents))
        if not self.no_ack:
            self.unsettled += len(deliveries)
            owner.unsettled += len(deliveries)
            self.held.update(zip(range(first, owner.next_number), deliveries, strict=True))

    def _content(self, delivery: Delivery) -> Content:
        message = delivery[1]
        envelopes = self._connection.envelopes
        envelope = envelopes.by_section.get(message[1]) or envelopes.of_record(message[1])
        destination = envelope.destination
        if not envelope.addressed:
            destination = envelopes.shown(f"/queue/{self.queue.name}")
        lines = envelope.lines
        if self.queue.is_stream:
            lines = b"x-stream-offset:%d\n" % delivery.offset + lines
        return destination, delivery[2], lines, message[0]

    def _without_undeliverable(self, deliveries: list[Delivery]) -> tuple[list[Delivery], list[Content]]:
        kept: list[Delivery] = []
        contents: list[Content] = []
        for delivery in deliveries:
            try:
                contents.append(self._content(delivery))
            except Exception as error:
                delivery.queue.give_up(delivery, error)
            else:
                kept.append(delivery)
        return kept, contents

    def cancelled(self, reason: str) -> None:
        """The queue is gone. STOMP has no other way to say so than an error, as RabbitMQ's plugin does."""
        if self._owner.forget(self):
            text = f"subscription '{self.tag[2:]}' was cancelled: {reason}\n"
            self._connection.fail(StompError("Server cancelled subscription", text))


class Subscriptions:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._by_tag: dict[str, Subscription] = {}
        self._replies: dict[str, str] = {}  # /temp-queue/ destination to the queue of this connection
        self.next_number = 1
        self.unsettled = 0

    def __len__(self) -> int:
        return len(self._by_tag)

    # -- subscribing -------------------------------------------------------------------------------------------------

    async def subscribe(self, headers: dict[str, str]) -> None:
        connection = self._connection
        text = headers.get("destination")
        if text is None:
            raise missing("SUBSCRIBE", "destination")
        tag, named = self._tag_of(headers, text)
        if tag in self._by_tag:
            raise StompError(
                "Duplicated subscription identifier", f"A subscription identified by '{tag}' already exists."
            )
        if len(self._by_tag) >= connection.limits.max_subscriptions:
            most = connection.limits.max_subscriptions
            raise StompError("Too many subscriptions", f"a connection has at most {most}\n")
        mode = headers.get("ack", "auto")
        if mode not in _MODES:
            raise invalid_header(f"'ack' must be one of {', '.join(_MODES)}")
        prefetch = _number(headers, "prefetch-count")
        destination = parse_destination(text)
        if destination.kind is Kind.TEMPORARY:
            raise StompError("Invalid destination", f"'{text}' is not a valid destination for 'SUBSCRIBE'\n")
        durable = destination.kind in (Kind.TOPIC, Kind.EXCHANGE) and endpoints.is_durable(headers)
        if durable and named is None and "x-queue-name" not in headers:
            raise StompError("Missing id", "a durable subscription must include an 'id' header\n")
        queue = await endpoints.queue_of(connection, destination, headers, named or text)
        if connection.closed:
            return
        wish = read_wish(queue.name, queue.vhost, queue.arguments, _consumer_arguments(headers))
        if queue.is_stream and (mode == "auto" or not prefetch):
            raise invalid_header("a stream needs 'prefetch-count', and 'ack' other than auto")
        begin = await queue.place_of(wish.place) if queue.is_stream else 0
        if connection.closed:
            return
        self._add(
            Subscription(
                self, connection, tag, named, queue, destination, mode, prefetch, wish.priority, durable=durable
            ),
            wish,
            begin,
        )

    def _add(self, subscription: Subscription, wish: Wish, begin: int = 0) -> None:
        queue = subscription.queue
        self._connection.check_access(Access.READ, "queue", queue.name)
        try:
            if queue.is_stream:
                queue.add_reader(subscription, begin)
            else:
                queue.add_consumer(subscription, no_ack=subscription.no_ack, selector=wish.selector)
        except QueueGone:
            raise not_found("queue", queue.name, queue.vhost) from None
        except ConsumerRefused:
            text = f"queue '{queue.name}' in vhost '{queue.vhost}' in exclusive use"
            raise Refused(Reason.ACCESS_REFUSED, text) from None
        self._by_tag[subscription.tag] = subscription

    async def of_replies(self, temporary: str) -> str:
        """The queue that replies to this /temp-queue/ destination come to; its messages come by themselves."""
        found = self._replies.get(temporary)
        if found is not None:
            return found
        connection = self._connection
        queue = await endpoints.temporary_queue(connection)
        if not connection.closed:
            self._replies[temporary] = queue.name
            destination = Destination(Kind.REPLY, queue.name)
            self._add(
                Subscription(
                    self, connection, f"T_{temporary}", temporary, queue, destination, "auto", 0, 0, durable=False
                ),
                Wish(),
            )
        return queue.name

    async def unsubscribe(self, headers: dict[str, str]) -> None:
        text = headers.get("destination")
        if text is None and "id" not in headers:
            raise StompError(
                "Missing destination or id", "UNSUBSCRIBE must include a 'destination' or 'id' header"
            )  # fmt: skip
        tag, named = self._tag_of(headers, text or "")
        subscription = self._by_tag.pop(tag, None)
        if subscription is None:
            shown = f"id='{named}'" if named is not None else f"destination='{text}'"
            raise StompError(
                "No subscription found",
                f'UNSUBSCRIBE must refer to an existing subscription.\nSubscription to "{shown}" not found.\n',
            )
        self._drop(subscription)
        queue = subscription.queue
        if subscription.durable and endpoints.is_durable(headers) and not queue.cursor.gone:
            self._connection.check_access(Access.CONFIGURE, "queue", queue.name)
            await self._connection.service.queues.delete(queue)

    @staticmethod
    def _tag_of(headers: dict[str, str], destination: str) -> tuple[str, str | None]:
        """RabbitMQ does without an id in all versions, and so do we."""
        named = headers.get("id")
        if named is not None:
            return f"T_{named}", named
        return f"Q_{destination}", None

    def forget(self, subscription: Subscription) -> bool:
        """Its queue is gone, and what it held with it."""
        self._replies = {each: queue for each, queue in self._replies.items() if queue != subscription.queue.name}
        self.unsettled -= len(subscription.held)
        subscription.held.clear()
        return self._by_tag.pop(subscription.tag, None) is not None

    def _drop(self, subscription: Subscription) -> None:
        subscription.queue.remove_consumer(subscription)
        held, subscription.held = subscription.held, {}
        self.release(held.items())

    # -- settling ------------------------------------------------------------------------------------------------------

    def take(self, command: str, found: str | None) -> list[Taken]:
        """The deliveries that an ACK or NACK of this id is about, which the client no longer holds."""
        parts = [] if found is None else found.rsplit("@@", 2)
        if found is None or len(parts) != 3 or not parts[2].isascii() or not parts[2].isdigit() or len(parts[2]) > 18:
            header = "id" if self._connection.version >= V1_2 else "message-id"
            raise invalid_header(f'"{command}" must include a valid "{header}" header')
        subscription = self._by_tag.get(parts[0])
        if subscription is None or parts[1] != self._connection.session_id:
            raise StompError("Subscription not found", f'Message with id "{found}" has no subscription')
        number, held = int(parts[2]), subscription.held
        if number not in held:
            raise StompError("precondition_failed", f"PRECONDITION_FAILED - unknown delivery tag {number}")
        if not subscription.cumulative:
            return [(number, held.pop(number))]
        taken: list[Taken] = []
        for each in held:
            if each > number:
                break
            taken.append((each, held[each]))
        for each, _ in taken:
            del held[each]
        return taken

    def acknowledge(self, taken: list[Taken]) -> None:
        self._connection.acknowledgements.add(taken)
        self._freed(taken)

    def refuse(self, taken: list[Taken], *, requeue: bool) -> None:
        deliveries = [delivery for _, delivery in taken]
        refuse(deliveries, requeue=requeue)
        free(deliveries)
        self._freed(taken)

    def freed(self, taken: list[Taken]) -> None:
        """These are off the client's hands, whatever became of them."""
        free(delivery for _, delivery in taken)
        self._freed(taken)

    def _freed(self, taken: list[Taken]) -> None:
        full = self.unsettled >= self._connection.limits.max_unsettled
        self.unsettled -= len(taken)
        if full:
            self.wake()

    def put_back(self, taken: Iterable[Taken]) -> None:
        """Settlements that an ABORT undoes: the client may settle these deliveries again."""
        for number, delivery in taken:
            subscription = delivery.consumer
            if isinstance(subscription, Subscription) and self._by_tag.get(subscription.tag) is subscription:
                subscription.held[number] = delivery
            else:
                self.release([(number, delivery)])
        for subscription in self._by_tag.values():
            subscription.held = dict(sorted(subscription.held.items()))

    def release(self, taken: Iterable[Taken]) -> None:
        """Back to their queues."""
        deliveries = [delivery for _, delivery in taken]
        self.unsettled -= len(deliveries)
        for cursor, offsets in by_cursor(deliveries).items():
            cursor.release(offsets)

    # -- life ----------------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """There may be credit again."""
        for queue in {subscription.queue for subscription in self._by_tag.values()}:
            queue.wake()

    def access_changed(self) -> None:
        """Who may read a queue no more is told so."""
        access, principal = self._connection.service.access, self._connection.principal
        for subscription in list(self._by_tag.values()):
            queue = subscription.queue
            if not access.allows_vhost(principal, queue.vhost, Access.READ, queue.name):
                self._drop(subscription)
                subscription.cancelled("access was refused")

    def close(self) -> None:
        subscriptions, self._by_tag = self._by_tag, {}
        for subscription in subscriptions.values():
            self._drop(subscription)


def _consumer_arguments(headers: dict[str, str]) -> dict[str, object]:
    """What a SUBSCRIBE asks for, as the arguments of an AMQP consumer: a selector is a filter."""
    arguments: dict[str, object] = {}
    if "x-priority" in headers:
        arguments["x-priority"] = _number(headers, "x-priority")
    if headers.get("selector", "").strip():
        arguments["x-filter"] = headers["selector"]
    if "x-stream-offset" in headers:
        arguments["x-stream-offset"] = _place(headers["x-stream-offset"])
    return arguments


def _place(text: str) -> object:
    """As RabbitMQ's plugin writes them: a word, `offset=5` or `timestamp=1700000000`, in seconds."""
    kind, _, number = text.partition("=")
    if kind in ("offset", "timestamp") and number.isascii() and number.isdigit() and len(number) <= _MAX_PLACE_DIGITS:
        return int(number) if kind == "offset" else datetime.fromtimestamp(min(int(number), LATEST_S), UTC)
    return text


def _number(headers: dict[str, str], name: str) -> int:
    value = headers.get(name, "0")
    if not value.isascii() or not value.isdigit() or len(value) > 9 or int(value) > _MAX_PREFETCH:
        raise invalid_header(f"'{name}' must be a number from 0 to {_MAX_PREFETCH}")
    return int(value)
