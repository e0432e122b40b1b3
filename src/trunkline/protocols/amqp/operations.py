"""The other methods that a client calls on an open channel, one function each: consuming, confirms, transactions.

Each answers at once, or returns a coroutine that answers when what it waits for is done. Refusals are raised: the session
closes the channel or the connection with them.
"""

from __future__ import annotations

import asyncio
import base64
import os

from trunkline.broker.messaging import refusals
from trunkline.broker.messaging.confirms import Confirms
from trunkline.broker.messaging.queue import Queue
from trunkline.broker.messaging.queue_arguments import Wish, read_wish
from trunkline.broker.messaging.selection import ANY_MESSAGE
from trunkline.broker.messaging.settlements import release
from trunkline.broker.messaging.transaction import Transaction
from trunkline.cursors.queue import Delivery, Selector, SelectorRefused
from trunkline.protocols.amqp import methods as m
from trunkline.protocols.amqp.channel import REPLY_TO, REPLY_TO_PREFIX, Channel, Later
from trunkline.protocols.amqp.codec import encode_deliveries, encode_get_ok
from trunkline.protocols.amqp.consumer import Consumer, StreamConsumer, content_of, not_by_streams
from trunkline.protocols.amqp.declarations import arguments_of, queue_named, with_queue
from trunkline.protocols.amqp.errors import NOT_ALLOWED, NOT_IMPLEMENTED, FrameError
from trunkline.protocols.amqp.mapping import Envelope
from trunkline.security.users import Access

# -- channel -----------------------------------------------------------------------------------------------------------


def channel_flow(channel: Channel, method: m.ChannelFlow) -> Later:
    """RabbitMQ does not let clients stop the flow; we do as the specification says."""
    channel.flowing = method.active
    channel.session.send_method(channel.number, m.ChannelFlowOk(method.active))
    if method.active:
        channel.wake()
    return None


# -- basic -------------------------------------------------------------------------------------------------------------


def basic_qos(channel: Channel, method: m.BasicQos) -> Later:
    if method.prefetch_size:
        text = f"prefetch_size!=0 ({method.prefetch_size})"
        raise FrameError(NOT_IMPLEMENTED, text, 60, 10)
    if method.global_:
        channel.prefetch.set_limit(method.prefetch_count)
    else:
        channel.consumer_prefetch = method.prefetch_count
    channel.session.send_method(channel.number, m.BasicQosOk())
    return None


def basic_consume(channel: Channel, method: m.BasicConsume) -> Later:
    session = channel.session
    tag = method.consumer_tag
    if not tag:
        tag = "amq.ctag-" + base64.urlsafe_b64encode(os.urandom(16)).decode().rstrip("=")
    if tag in channel.consumers or tag == channel.reply_tag:
        raise FrameError(NOT_ALLOWED, f"attempt to reuse consumer tag '{tag}'", 60, 20)
    if len(channel.consumers) >= session.limits.max_consumers_per_channel:
        text = f"reached the maximum of {session.limits.max_consumers_per_channel} consumers per channel"
        raise FrameError(NOT_ALLOWED, text, 60, 20)
    if method.queue == REPLY_TO:
        return _consume_replies(channel, method, tag)
    session.check_access(Access.READ, "queue", queue_named(channel, method.queue))
    arguments = arguments_of(method.arguments)

    def consume(queue: Queue) -> Later:
        wish = read_wish(queue.name, queue.vhost, queue.arguments, arguments)
        if queue.is_stream:
            return _consume_stream(channel, method, queue, tag, wish)
        if wish.once:
            return _consume_once(channel, method, queue, tag, wish)
        consumer = Consumer(
            channel,
            queue,
            tag,
            no_ack=method.no_ack,
            exclusive=method.exclusive,
            prefetch=channel.consumer_prefetch,
            priority=wish.priority,
            arguments=arguments,
        )
        channel.add_consumer(consumer, wish.selector)
        if wish.expires_ms is not None:
            asyncio.get_running_loop().call_later(wish.expires_ms / 1000, _expire, channel, consumer)
        if not method.nowait:
            # Deliveries come at the end of the turn, and so after this.
            session.send_method(channel.number, m.BasicConsumeOk(tag))
        return None

    return with_queue(channel, method.queue, consume)


def _expire(channel: Channel, consumer: Consumer) -> None:
    """A consumer's time is over, unless it was cancelled before."""
    if channel.open and channel.consumers.get(consumer.tag) is consumer:
        consumer.queue.cursor.remove_consumer(consumer)
        channel.consumer_cancelled(consumer)


async def _consume_stream(channel: Channel, method: m.BasicConsume, queue: Queue, tag: str, wish: Wish) -> None:
    if not channel.consumer_prefetch:
        text = f"consumer prefetch count is not set for 'queue '{queue.name}' in vhost '{queue.vhost}''"
        raise refusals.precondition(text)
    if method.no_ack:
        raise not_by_streams("automatic acknowledgement", queue)
    consumer = StreamConsumer(
        channel,
        queue,
        tag,
        exclusive=method.exclusive,
        prefetch=channel.consumer_prefetch,
        arguments=arguments_of(method.arguments),
    )
    await channel.add_reader(consumer, wish.place)
    if not method.nowait and channel.open:
        # Reading is a task of its own, and so deliveries come after this.
        channel.session.send_method(channel.number, m.BasicConsumeOk(tag))


async def _consume_once(channel: Channel, method: m.BasicConsume, queue: Queue, tag: str, wish: Wish) -> None:
    """basic.get with arguments, for which it has no room: consume-ok, the message if there is one, and the consumer is cancelled."""
    session, cursor = channel.session, queue.cursor
    if not session.notify_cancel:
        raise refusals.precondition("x-get and x-browse need a client that can be told of a cancelled consumer")
    if session.limits.max_unsettled_per_channel <= len(channel.unsettled):
        raise refusals.precondition("too many unacknowledged deliveries on this channel")
    selector = wish.selector
    if selector is None and wish.browse:
        selector = ANY_MESSAGE
    try:
        found = _first(channel, queue, method, wish.browse, selector)
    except SelectorRefused as error:
        raise refusals.precondition(str(error)) from None
    if not method.nowait:
        session.send_method(channel.number, m.BasicConsumeOk(tag))
    while channel.open:
        if found and _deliver_once(
            channel,
            queue,
            found[0],
            tag,
            held=not (method.no_ack or wish.browse),
            counted=method.arguments.get("x-delivery-count") is True,
        ):
            break
        if wish.browse and found:
            break  # it cannot be delivered, and nobody may give up what nobody has taken
        if not found and not await cursor.load(selector):
            break
        found = _first(channel, queue, method, wish.browse, selector)
    if channel.open:
        session.send_method(channel.number, m.BasicCancel(tag, True))


def _first(
    channel: Channel, queue: Queue, method: m.BasicConsume, browse: bool, selector: Selector | None
) -> list[Delivery]:
    if browse and selector is not None:
        looked = queue.cursor.look(selector)
        return [] if looked is None else [looked]
    lease_ms = method.arguments.get("x-lease-ms")
    if isinstance(lease_ms, int):
        channel.leased = True
    return queue.cursor.acquire(
        1,
        consumer=channel,
        lease_ms=lease_ms if isinstance(lease_ms, int) else None,
        no_ack=method.no_ack,
        selector=selector,
    )


def _deliver_once(channel: Channel, queue: Queue, delivery: Delivery, tag: str, *, held: bool, counted: bool) -> bool:
    """False: it cannot be delivered; the queue has given it up if it was taken."""
    session = channel.session
    try:
        envelope = session.envelopes.of_record(delivery.message.headers)
        properties = envelope.properties
        if counted and delivery.delivery_count > 1:
            properties = envelope.with_header("x-delivery-count", delivery.delivery_count - 1)
        content = content_of(envelope, delivery, queue, properties)
        frames = encode_deliveries(channel.number, tag.encode(), channel.next_tag, [content], session.frame_max_bytes)
    except Exception as error:
        if delivery.consumer is not None:
            queue.cursor.give_up(delivery, error)
        return False
    session.send(frames)
    if held:
        channel.unsettled[channel.next_tag] = delivery
        channel.leased = channel.leased or queue.settings.lease_ms is not None
    channel.next_tag += 1
    return True


def _consume_replies(channel: Channel, method: m.BasicConsume, tag: str) -> Later:
    session = channel.session
    if channel.reply_tag is not None:
        raise refusals.precondition("reply consumer already set")
    if not method.no_ack:
        raise refusals.precondition("reply consumer cannot acknowledge")
    channel.reply_tag = tag
    channel.reply_token = REPLY_TO_PREFIX + base64.urlsafe_b64encode(os.urandom(18)).decode()
    session.replies[channel.reply_token] = channel
    if not method.nowait:
        session.send_method(channel.number, m.BasicConsumeOk(tag))
    return None


def basic_cancel(channel: Channel, method: m.BasicCancel) -> Later:
    channel.cancel_consumer(method.consumer_tag)
    if not method.nowait:
        channel.session.send_method(channel.number, m.BasicCancelOk(method.consumer_tag))
    return None


def basic_get(channel: Channel, method: m.BasicGet) -> Later:
    session = channel.session
    session.check_access(Access.READ, "queue", queue_named(channel, method.queue))
    if channel.session.limits.max_unsettled_per_channel <= len(channel.unsettled):
        raise refusals.precondition("too many unacknowledged deliveries on this channel")

    def get(queue: Queue) -> Later:
        if queue.is_stream:
            raise not_by_streams("basic.get", queue)
        found = queue.cursor.acquire(1, consumer=channel, no_ack=method.no_ack)
        if (found or not queue.cursor.ready) and _get_answer(channel, queue, found, method.no_ack):
            return None
        return load(queue)

    async def load(queue: Queue) -> None:
        """What is ready is not in memory."""
        while await queue.cursor.load() and channel.open:
            found = queue.cursor.acquire(1, consumer=channel, no_ack=method.no_ack)
            if found and _get_answer(channel, queue, found, method.no_ack):
                return
        if channel.open:
            _get_answer(channel, queue, [], method.no_ack)

    return with_queue(channel, method.queue, get)


def _get_answer(channel: Channel, queue: Queue, found: list[Delivery], no_ack: bool) -> bool:
    """False: what was found cannot be delivered, and the queue has given it up."""
    session = channel.session
    if not found:
        session.send_method(channel.number, m.BasicGetEmpty())
        return True
    tag = channel.next_tag
    try:
        envelope = session.envelopes.of_record(found[0].message.headers)
        properties = envelope.properties
        if queue.arguments.get("x-queue-type") == "quorum":
            # As in RabbitMQ, which tells who gets a message from the first delivery on, and who consumes from the second.
            properties = envelope.with_header("x-delivery-count", found[0].delivery_count - 1)
        content = content_of(envelope, found[0], queue, properties)
        frames = encode_get_ok(channel.number, tag, content, queue.cursor.ready, session.frame_max_bytes)
    except Exception as error:
        queue.cursor.give_up(found[0], error)
        return False
    session.send(frames)
    channel.next_tag += 1
    if not no_ack:
        channel.unsettled[tag] = found[0]
        channel.leased = channel.leased or queue.settings.lease_ms is not None
    return True


def basic_recover(channel: Channel, method: m.BasicRecover) -> Later:
    if not method.requeue:
        raise FrameError(NOT_IMPLEMENTED, "requeue=false", 60, 110)
    channel.recover()
    channel.session.send_method(channel.number, m.BasicRecoverOk())
    return None


def basic_recover_async(channel: Channel, method: m.BasicRecoverAsync) -> Later:
    if not method.requeue:
        raise FrameError(NOT_IMPLEMENTED, "requeue=false", 60, 100)
    channel.recover()
    return None


# -- confirm and tx ----------------------------------------------------------------------------------------------------


def confirm_select(channel: Channel, method: m.ConfirmSelect) -> Later:
    if channel.transaction is not None:
        raise refusals.precondition("cannot switch from tx to confirm mode")
    if channel.confirms is None:
        channel.confirms = Confirms(channel)
    if not method.nowait:
        channel.session.send_method(channel.number, m.ConfirmSelectOk())
    return None


def tx_select(channel: Channel, method: m.TxSelect) -> Later:
    if channel.confirms is not None:
        raise refusals.precondition("cannot switch from confirm to tx mode")
    if channel.transaction is None:
        channel.transaction = Transaction(channel.session.limits, channel.session.note_transaction)
    channel.session.send_method(channel.number, m.TxSelectOk())
    return None


def tx_commit(channel: Channel, method: m.TxCommit) -> Later:
    transaction = channel.transaction
    if transaction is None:
        raise refusals.precondition("channel is not transactional")
    return _commit(channel, transaction)


async def _commit(channel: Channel, transaction: Transaction[Envelope]) -> None:
    session = channel.session
    letters, unroutable = transaction.take_letters(session.now_ms)
    for publication in unroutable:
        if publication.mandatory:
            channel.return_unroutable(publication.envelope, publication.body)
    # From here on they are the transaction's: a connection that goes meanwhile does not give them back.
    deliveries = [delivery for _, delivery in transaction.acknowledged]
    transaction.acknowledged = []
    held = [delivery for delivery in deliveries if delivery.consumer is None or delivery.queue.keep(delivery)]
    try:
        await session.service.messaging.publish_atomically(letters, held)
    except BaseException:
        release(held)
        raise
    finally:
        channel.freed(deliveries)
    if channel.open:
        channel.settle(transaction)
        session.flush()
        await session.service.messaging.settlements_stored()
    if channel.open:
        session.send_method(channel.number, m.TxCommitOk())


def tx_rollback(channel: Channel, method: m.TxRollback) -> Later:
    if channel.transaction is None:
        raise refusals.precondition("channel is not transactional")
    settled = channel.transaction.settled()
    channel.put_back(entry for entry in settled if entry[1].consumer is not None)
    release(delivery for _, delivery in settled if delivery.consumer is None)  # they came on other channels
    channel.transaction.clear()
    channel.session.send_method(channel.number, m.TxRollbackOk())
    return None
