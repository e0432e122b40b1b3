"""A channel: publications, deliveries and their settlement, consumers, confirms, transactions.

Rules kept:

1. A channel is used in order: each method takes effect before the next is looked at. Publications and settlements take
   effect together at the end of the turn; everything that could see the difference (`queue.declare`, `basic.get`, a
   commit) first has them carried out.
2. Delivery tags count up from 1. A tag is settled once; settling one that is unknown ends the channel (406).
3. A return for an unroutable mandatory publication leaves before the publication's confirm.
4. When a channel ends, what it held goes back to the queues in order, marked as redelivered.

In `confirm` mode publications are numbered and confirmed (`confirms`); in `tx` mode publications and settlements wait for
the commit (`transaction`).
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Iterator

from trunkline.broker.messaging.confirms import Confirms
from trunkline.broker.messaging.refusals import Reason, Refused, not_found, precondition
from trunkline.broker.messaging.routes import delay, find_route
from trunkline.broker.messaging.settlements import by_cursor, free, refuse
from trunkline.broker.messaging.transaction import Taken, Transaction
from trunkline.broker.state.arguments import to_json
from trunkline.cursors.queue import Delivery, QueueCursor, Selector
from trunkline.cursors.queue.errors import ConsumerRefused, QueueGone, SelectorRefused
from trunkline.protocols.amqp import methods as m
from trunkline.protocols.amqp.codec import encode_confirm, encode_deliveries, encode_return
from trunkline.protocols.amqp.connection import Connection
from trunkline.protocols.amqp.consumer import Consumer, StreamConsumer, not_by_streams
from trunkline.protocols.amqp.errors import NO_ROUTE, NOT_IMPLEMENTED, PRECONDITION_FAILED, FrameError
from trunkline.protocols.amqp.frames import Ack, Nack, Publish, Reject
from trunkline.protocols.amqp.leases import ADDRESS as LEASES
from trunkline.protocols.amqp.leases import carry_out, take_over
from trunkline.protocols.amqp.management import ADDRESS as MANAGEMENT
from trunkline.protocols.amqp.mapping import Envelope, why_no_expiration
from trunkline.protocols.amqp.prefetch import ChannelPrefetch
from trunkline.protocols.amqp.shared import ADDRESS as SHARED
from trunkline.security.rules import Kind, Operation
from trunkline.security.users import Access

PUBLISH = (60, 40)
REPLY_TO = "amq.rabbitmq.reply-to"
REPLY_TO_PREFIX = REPLY_TO + "."
_UNROUTABLE = "NO_ROUTE"
PROTOCOL = "amqp"  # as the audit trail calls it
_MAX_KNOWN_EXCHANGES = 4_096  # names that a session remembers it may publish to

Later = Coroutine[object, object, None] | None  # what a method still has to wait for


class Channel:
    __slots__ = (
        "_publishing", "_released_before", "confirms", "consumer_prefetch", "consumers", "flowing", "last_queue", "leased", "next_tag",
        "number", "open", "prefetch", "reply_tag", "reply_token", "session", "transaction", "unsettled",
    )  # fmt: skip

    def __init__(self, session: Connection, number: int) -> None:
        self.session = session
        self.number = number
        self._publishing = session.service.publishing
        self.open = True
        self.flowing = True
        self.prefetch = ChannelPrefetch(session.service.turn, self._acknowledging)  # of all consumers together
        self.consumer_prefetch = 0  # of each consumer that comes
        self.consumers: dict[str, Consumer] = {}
        self.next_tag = 1
        self.unsettled: dict[int, Delivery] = {}
        self._released_before = 1  # no tag below this is unsettled
        self.leased = False  # some of its deliveries have a deadline
        self.last_queue = ""  # what an empty queue name means
        self.confirms: Confirms | None = None
        self.transaction: Transaction[Envelope] | None = None
        self.reply_tag: str | None = None  # the consumer of direct replies
        self.reply_token = ""

    # -- publishing ----------------------------------------------------------------------------------------------

    def publish(self, event: Publish) -> None:
        session = self.session
        envelope = session.envelopes.by_publication.get((event.exchange, event.routing_key, event.properties))
        if envelope is None:
            envelope = session.envelopes.of_publication(event.exchange, event.routing_key, event.properties)
        vhost = session.vhost
        if event.exchange not in session.writable_exchanges:
            self._check_write(event, envelope)
        if event.immediate:
            raise FrameError(NOT_IMPLEMENTED, "immediate=true", *PUBLISH)
        if not envelope.plain:
            envelope = self._check_properties(envelope)
        queues = envelope.queues if envelope.route_version == vhost.version else find_route(vhost, envelope, event.body)
        if self.transaction is not None:
            if not queues and event.routing_key == LEASES and not event.exchange:
                take_over(self, event.body)
                return
            self.transaction.publish(envelope, event.body, queues, event.mandatory)
            return
        confirms = self.confirms
        sequence = confirms.add(len(event.body)) if confirms is not None else 0
        if confirms is not None:
            self._publishing.notify(self)
        if not queues:
            if not self._reply_directly(envelope, event.body) and event.mandatory:
                self.return_unroutable(envelope, event.body)
            return
        if vhost.delayed_exchanges and event.exchange in vhost.delayed_exchanges and (envelope.delay_ms or 0) > 0:
            waiting = delay(queues, envelope, event.body, session.now_ms, confirmed=confirms is not None)
            if confirms is not None:
                confirms.stored += waiting
            return
        message = envelope.message(event.body, session.now_ms)
        for queue in queues:
            keyed = message._replace(key=envelope.order_key) if queue.orders_by_key else message
            if confirms is None:
                self._publishing.add(queue, keyed)
            else:
                confirms.queues[queue] = None
                self._publishing.add(
                    queue,
                    keyed,
                    disk=envelope.persistent and queue.durable,
                    origin=(self, sequence) if queue.may_reject else None,
                )

    def _check_write(self, event: Publish, envelope: Envelope) -> None:
        """May this user publish here? While nothing restricts anybody, the exchange alone decides, and is remembered."""
        session, exchange = self.session, event.exchange
        session.check_access(Access.WRITE, "exchange", exchange)
        control = session.service.access
        if not control.open:
            session.check_key(Access.WRITE, exchange, event.routing_key)
            for queue in find_route(session.vhost, envelope, event.body):
                control.check(session.principal, Operation.WRITE, Kind.TOPIC, queue.topic, protocol=PROTOCOL)
            return
        known = session.writable_exchanges
        if len(known) >= _MAX_KNOWN_EXCHANGES:
            known.clear()
        known.add(exchange)

    def _check_properties(self, envelope: Envelope) -> Envelope:
        user = envelope.user_id
        if user is not None and user != self.session.user:
            text = f"user_id property set to '{user}' but authenticated user was '{self.session.user}'"
            raise FrameError(PRECONDITION_FAILED, text, *PUBLISH)
        if envelope.expiration is not None and envelope.expiration_ms is None:
            text = f"invalid expiration '{envelope.expiration}': {why_no_expiration(envelope.expiration)}"
            raise FrameError(PRECONDITION_FAILED, text, *PUBLISH)
        if envelope.reply_to == REPLY_TO:
            if self.reply_tag is None:
                raise FrameError(PRECONDITION_FAILED, "fast reply consumer does not exist", *PUBLISH)
            return envelope.with_properties(reply_to=self.reply_token)
        return envelope

    def return_unroutable(self, envelope: Envelope, body: bytes) -> None:
        self.session.send(
            encode_return(
                self.number,
                NO_ROUTE,
                _UNROUTABLE,
                envelope.exchange,
                envelope.routing_key,
                envelope.properties,
                body,
                self.session.frame_max_bytes,
            )
        )

    def _reply_directly(self, envelope: Envelope, body: bytes) -> bool:
        """Hand a direct reply to the channel that waits for it, or a request to the broker itself.

        False if a mandatory message is still to be returned: a reply's address is no queue, as RabbitMQ sees it.
        """
        if envelope.exchange or not envelope.routing_key.startswith("amq."):
            return False
        if envelope.routing_key == LEASES:
            if not carry_out(self, body):
                self.rejected(self.confirms.sequence if self.confirms is not None else 0)
            return True
        if envelope.routing_key == MANAGEMENT:
            self.session.service.manage(self.session.principal, self.session.vhost, envelope, body)
            return True
        if envelope.routing_key == SHARED:
            self.session.service.share(self.session.vhost, envelope, body, self._may_share)
            return True
        channel = self.session.replies.get(envelope.routing_key)
        if channel is not None and channel.reply_tag is not None:
            channel.deliver_reply(envelope, body)
        return False

    def _may_share(self, access: Access, name: str) -> None:
        self.session.check_access(access, "queue", name)

    def deliver_reply(self, envelope: Envelope, body: bytes) -> None:
        """Hand a reply to the client, which waits for it here."""
        tag = self.next_tag
        self.next_tag += 1
        content = [(envelope.exchange, envelope.routing_key, False, envelope.properties, body)]
        raw_tag = (self.reply_tag or "").encode()
        self.session.send(encode_deliveries(self.number, raw_tag, tag, content, self.session.frame_max_bytes))

    # -- confirms: the broker's Publisher, who is also told of them -------------------------------------------------

    def tell_stored(self, last: int) -> None:
        self.session.send(encode_confirm(self.number, last, True))

    def tell_refused(self, first: int, last: int) -> None:
        self.session.send(encode_confirm(self.number, last, last > first, nack=True))

    def note_unconfirmed(self, more_bytes: int) -> None:
        self.session.flow.note_unconfirmed(more_bytes)

    def stored(self) -> None:
        if self.confirms is not None and self.open:
            self.confirms.end_turn()

    def rejected(self, sequence: int) -> None:
        if self.confirms is not None:
            self.confirms.reject(sequence)

    # -- settlement ----------------------------------------------------------------------------------------------

    def acknowledge(self, event: Ack) -> None:
        taken = self._take(event.tag, event.multiple, 80)
        if self.transaction is not None:
            self.transaction.acknowledge(taken)
        else:
            self.settle_acknowledged(taken)

    def refuse(self, event: Nack | Reject) -> None:
        if isinstance(event, Nack):
            taken = self._take(event.tag, event.multiple, 120)
        else:
            taken = self._take(event.tag, False, 90)
        for _, delivery in taken:
            if isinstance(delivery.consumer, StreamConsumer):
                raise not_by_streams("basic.nack and basic.reject", delivery.consumer.queue)
        if self.transaction is not None:
            self.transaction.refuse(taken, event.requeue)
        else:
            self.settle_refused([delivery for _, delivery in taken], event.requeue)

    def settle_acknowledged(self, taken: list[Taken]) -> None:
        self.prefetch.freed(self.session.acknowledgements.add(taken))

    def settle_refused(self, deliveries: list[Delivery], requeue: bool) -> None:
        refuse(deliveries, requeue=requeue)
        self.prefetch.freed(free(deliveries))

    def freed(self, deliveries: list[Delivery]) -> None:
        """These are off the client's hands."""
        self.prefetch.freed(free(deliveries))

    def take_over(self, channel: int, tags: list[int]) -> bool:
        """Let this channel's transaction acknowledge deliveries of another; False if one is not its consumer's any more."""
        found = self.session.take_deliveries(channel, tags)
        if self.transaction is None:
            raise precondition("channel is not transactional")
        self.transaction.acknowledge([(0, delivery) for delivery in found])
        return len(found) == len(tags)

    def surrender(self, tags: list[int]) -> list[Delivery]:
        """Those of the deliveries that are still its consumers', to another channel."""
        held = [(tag, self.unsettled.pop(tag)) for tag in tags if tag in self.unsettled]
        lasting = [delivery for _, delivery in self.still_held(held)]
        self.freed(lasting)
        return [delivery._replace(consumer=None) for delivery in lasting if delivery.queue.keep(delivery)]

    def settle(self, transaction: Transaction[Envelope]) -> None:
        """Carry out the settlements of a commit."""
        self.settle_acknowledged(transaction.acknowledged)
        for requeue in (True, False):
            chosen = [entry[1] for entry, asked in transaction.refused if asked is requeue]
            if chosen:
                self.settle_refused(chosen, requeue)
        transaction.clear()

    def _take(self, tag: int, multiple: bool, method_id: int) -> list[tuple[int, Delivery]]:
        unsettled = self.unsettled
        if not multiple:
            delivery = unsettled.pop(tag, None)
            if delivery is None:
                raise FrameError(PRECONDITION_FAILED, f"unknown delivery tag {tag}", 60, method_id)
            return self.still_held([(tag, delivery)]) if self.leased else [(tag, delivery)]
        if tag == 0:
            tag = self.next_tag - 1
        elif tag not in unsettled:
            raise FrameError(PRECONDITION_FAILED, f"unknown delivery tag {tag}", 60, method_id)
        # Each tag is looked at once in the life of a channel.
        span = range(self._released_before, tag + 1)
        self._released_before = max(self._released_before, tag + 1)
        taken = [(each, unsettled.pop(each)) for each in span if each in unsettled]
        return self.still_held(taken) if self.leased else taken

    def still_held(self, taken: list[Taken]) -> list[Taken]:
        """Without those whose lease is over: they are another consumer's now, or ready, and not ours to settle."""
        lost = [delivery for _, delivery in taken if not delivery.queue.holds(delivery)]
        if not lost:
            return taken
        self.prefetch.freed(free(lost))
        return [entry for entry in taken if entry[1].queue.holds(entry[1])]

    def put_back(self, taken: Iterable[tuple[int, Delivery]]) -> None:
        """Settlements that a rollback undoes: the client may settle these deliveries again."""
        self.unsettled.update(taken)
        self.unsettled = dict(sorted(self.unsettled.items()))
        self._released_before = next(iter(self.unsettled), self._released_before)

    def recover(self) -> None:
        """Give everything unsettled back to its queue. Redelivery to the same consumer alone is not offered."""
        deliveries = list(self.unsettled.values())
        self.unsettled.clear()
        self.settle_refused(deliveries, requeue=True)

    def about(self) -> dict[str, object]:
        """What there is to say of it, for people."""
        return {
            "number": self.number,
            "confirm": self.confirms is not None,
            "transactional": self.transaction is not None,
            "prefetch_count": self.consumer_prefetch,
            "messages_unacknowledged": len(self.unsettled),
            "consumers": [
                {
                    "consumer_tag": each.tag,
                    "queue": each.queue.name,
                    "vhost": each.queue.vhost,
                    "ack_required": not each.no_ack,
                    "exclusive": each.exclusive,
                    "prefetch_count": each.prefetch,
                    "arguments": to_json(each.arguments),
                }
                for each in self.consumers.values()
            ],
        }

    # -- consuming -----------------------------------------------------------------------------------------------

    def add_consumer(self, consumer: Consumer, selector: Selector | None = None) -> None:
        self._added(
            consumer,
            lambda: consumer.queue.add_consumer(
                consumer,
                no_ack=consumer.no_ack,
                exclusive=consumer.exclusive,
                selector=selector,
                lease_ms=consumer.lease_ms,
            ),
        )

    def _added(self, consumer: Consumer, add: Callable[[], None]) -> None:
        try:
            add()
        except SelectorRefused as error:
            raise precondition(str(error)) from None
        except QueueGone:
            raise not_found("queue", consumer.queue.name, consumer.queue.vhost) from None
        except ConsumerRefused:
            queue = consumer.queue
            text = f"queue '{queue.name}' in vhost '{queue.vhost}' in exclusive use"
            raise Refused(Reason.ACCESS_REFUSED, text) from None
        self.consumers[consumer.tag] = consumer
        self.leased = self.leased or consumer.lease_ms is not None

    async def add_reader(self, consumer: StreamConsumer, place: object) -> None:
        """Add a consumer of a stream, which begins at a place that may have to be looked for."""
        queue = consumer.queue
        begin = await queue.place_of(place)
        if self.open:
            self._added(consumer, lambda: queue.add_reader(consumer, begin, exclusive=consumer.exclusive))

    def cancel_consumer(self, tag: str) -> None:
        """Remove a consumer at its client's wish; what it holds stays with the channel."""
        if tag == self.reply_tag:
            self.forget_replies()
            return
        consumer = self.consumers.pop(tag, None)
        if consumer is not None:
            consumer.queue.remove_consumer(consumer)

    def consumer_cancelled(self, consumer: Consumer) -> None:
        """The queue is gone. What it delivered may still be acknowledged, without effect."""
        if self.consumers.pop(consumer.tag, None) is None:
            return
        if self.open and self.session.notify_cancel:
            self.session.send_method(self.number, m.BasicCancel(consumer.tag, True))

    def forget_replies(self) -> None:
        self.session.replies.pop(self.reply_token, None)
        self.reply_tag = None
        self.reply_token = ""

    def _acknowledging(self) -> Iterator[QueueCursor]:
        """The queues that are consumed from here, but for those whose messages are settled when they are sent."""
        return (consumer.queue.cursor for consumer in self.consumers.values() if not consumer.no_ack)

    def wake(self) -> None:
        """There may be credit again."""
        for queue in {consumer.queue for consumer in self.consumers.values()}:
            queue.wake()

    # -- the end -------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Let go of everything."""
        self.open = False
        self.prefetch.close()
        if self.confirms is not None:
            self.confirms.close()
        if self.reply_tag is not None:
            self.forget_replies()
        for consumer in self.consumers.values():
            consumer.queue.remove_consumer(consumer)
        self.consumers.clear()
        deliveries = list(self.unsettled.values())
        if self.leased:
            deliveries = [delivery for delivery in deliveries if delivery.queue.holds(delivery)]
        if self.transaction is not None:
            deliveries += [delivery for _, delivery in self.transaction.settled()]
            self.transaction.clear()
            self.transaction = None
        self.unsettled.clear()
        for cursor, offsets in by_cursor(deliveries).items():
            cursor.release(offsets)
