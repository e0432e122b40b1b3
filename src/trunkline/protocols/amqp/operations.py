"""The methods that a client calls on an open channel, one function each.

`perform` takes a method up: it answers at once, or returns a coroutine that answers when what it waits for is done (a
queue's topic, a record on disk). Refusals are raised: the session closes the channel or the connection with them.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Coroutine
from typing import Any

from trunkline.broker.messaging import refusals
from trunkline.broker.messaging.queue import Queue, QueueDeclaration
from trunkline.broker.messaging.queue_arguments import read_priority, read_settings
from trunkline.broker.messaging.refusals import Reason, Refused
from trunkline.broker.messaging.typed_values import FieldValue, plain_value
from trunkline.broker.state.topology import Recorded, settled
from trunkline.broker.state.virtual_host import ExchangeInfo
from trunkline.cursors.queue import Delivery
from trunkline.protocols.amqp import methods as m
from trunkline.protocols.amqp.channel import REPLY_TO, REPLY_TO_PREFIX, Channel, Later
from trunkline.protocols.amqp.codec import encode_get_ok
from trunkline.protocols.amqp.confirms import Confirms
from trunkline.protocols.amqp.consumer import Consumer, content_of
from trunkline.protocols.amqp.errors import CHANNEL_ERROR, COMMAND_INVALID, NOT_ALLOWED, NOT_IMPLEMENTED, FrameError
from trunkline.protocols.amqp.transaction import Transaction
from trunkline.security.users import Access


def perform(channel: Channel, method: m.Method) -> Later:
    operation = _OPERATIONS.get(type(method))
    if operation is None:
        text = f"unexpected method {method.NAME}"
        raise FrameError(COMMAND_INVALID, text, method.CLASS_ID, method.METHOD_ID)
    channel.session.flush()
    return operation(channel, method)


def _arguments(table: dict[str, FieldValue]) -> dict[str, object]:
    return {name: plain_value(value) for name, value in table.items()}


def _answer(channel: Channel, recorded: Recorded, nowait: bool, reply: m.Method) -> Later:
    """Send the reply once the change is on disk. Who wants none need not wait either."""
    if recorded is None or nowait or recorded.done():
        if recorded is not None and recorded.done():
            recorded.result()
        if not nowait:
            channel.session.send_method(channel.number, reply)
        return None

    async def wait() -> None:
        await settled(recorded)
        if not nowait and channel.open:
            channel.session.send_method(channel.number, reply)

    return wait()


# -- channel -----------------------------------------------------------------------------------------------------------


def _channel_open(channel: Channel, method: m.ChannelOpen) -> Later:
    raise FrameError(CHANNEL_ERROR, "second 'channel.open' seen", 20, 10)


def _channel_close(channel: Channel, method: m.ChannelClose) -> Later:
    channel.session.channel_closed(channel)
    return None


def _channel_flow(channel: Channel, method: m.ChannelFlow) -> Later:
    """RabbitMQ does not let clients stop the flow; we do as the specification says."""
    channel.flowing = method.active
    channel.session.send_method(channel.number, m.ChannelFlowOk(method.active))
    if method.active:
        channel.wake()
    return None


def _ignore(channel: Channel, method: m.Method) -> Later:
    return None


def _access_request(channel: Channel, method: m.AccessRequest) -> Later:
    channel.session.send_method(channel.number, m.AccessRequestOk(1))
    return None


# -- exchanges ---------------------------------------------------------------------------------------------------------


def _exchange_declare(channel: Channel, method: m.ExchangeDeclare) -> Later:
    session = channel.session
    vhost = session.vhost
    name = _stripped(method.exchange)
    if not name:
        raise _default_exchange()
    if method.passive:
        if name not in vhost.exchanges:
            raise refusals.not_found("exchange", name, vhost.name)
        return _answer(channel, None, method.nowait, m.ExchangeDeclareOk())
    session.check_access(Access.CONFIGURE, "exchange", name)
    if name not in vhost.exchanges:
        _check_reserved("exchange", name, vhost.name)
    info = ExchangeInfo(
        name, method.type, method.durable, method.auto_delete, method.internal, _arguments(method.arguments)
    )
    alternate = info.alternate
    if alternate is not None and name not in vhost.exchanges:
        session.check_access(Access.READ, "exchange", name)
        session.check_access(Access.WRITE, "exchange", alternate)
    recorded = session.service.topology.declare_exchange(vhost, info)
    return _answer(channel, recorded, method.nowait, m.ExchangeDeclareOk())


def _exchange_delete(channel: Channel, method: m.ExchangeDelete) -> Later:
    session = channel.session
    name = _stripped(method.exchange)
    if not name:
        raise _default_exchange()
    _check_reserved("exchange", name, session.vhost.name)
    session.check_access(Access.CONFIGURE, "exchange", name)
    recorded = session.service.topology.delete_exchange(session.vhost, name, if_unused=method.if_unused)
    session.writable_exchanges.discard(name)
    return _answer(channel, recorded, method.nowait, m.ExchangeDeleteOk())


def _exchange_bind(channel: Channel, method: m.ExchangeBind) -> Later:
    session = channel.session
    _check_not_default(method.source, method.destination)
    session.check_access(Access.WRITE, "exchange", method.destination)
    session.check_access(Access.READ, "exchange", method.source)
    recorded = session.service.topology.bind(
        session.vhost,
        method.source,
        method.destination,
        method.routing_key,
        _arguments(method.arguments),
        to_exchange=True,
    )
    return _answer(channel, recorded, method.nowait, m.ExchangeBindOk())


def _exchange_unbind(channel: Channel, method: m.ExchangeUnbind) -> Later:
    session = channel.session
    _check_not_default(method.source, method.destination)
    session.check_access(Access.WRITE, "exchange", method.destination)
    session.check_access(Access.READ, "exchange", method.source)
    recorded = session.service.topology.unbind(
        session.vhost,
        method.source,
        method.destination,
        method.routing_key,
        _arguments(method.arguments),
        to_exchange=True,
    )
    return _answer(channel, recorded, method.nowait, m.ExchangeUnbindOk())


def _check_not_default(*names: str) -> None:
    if "" in names:
        raise _default_exchange()


def _default_exchange() -> Refused:
    return Refused(Reason.ACCESS_REFUSED, "operation not permitted on the default exchange")


def _check_reserved(kind: str, name: str, vhost: str) -> None:
    if name.startswith("amq."):
        raise Refused(Reason.ACCESS_REFUSED, f"{kind} name '{name}' contains reserved prefix 'amq.*'")


def _stripped(name: str) -> str:
    return name.replace("\r", "").replace("\n", "")


# -- queues ------------------------------------------------------------------------------------------------------------


def _queue_declare(channel: Channel, method: m.QueueDeclare) -> Later:
    session = channel.session
    vhost = session.vhost
    name = _stripped(method.queue)
    if method.passive or name == REPLY_TO or name.startswith(REPLY_TO_PREFIX):
        return _queue_declare_passive(channel, method, name)
    if not name:
        name = "amq.gen-" + base64.urlsafe_b64encode(os.urandom(16)).decode().rstrip("=")
    elif name not in vhost.queues:
        _check_reserved("queue", name, vhost.name)
    session.check_access(Access.CONFIGURE, "queue", name)
    arguments = _arguments(method.arguments)
    existing = vhost.queues.get(name)
    settings = read_settings(name, vhost.name, arguments) if existing is None else existing.cursor.settings
    if settings.dead_letter is not None and existing is None:
        session.check_access(Access.READ, "queue", name)
        session.check_access(Access.WRITE, "exchange", settings.dead_letter[0], "amq.default")
    declaration = QueueDeclaration(
        name,
        settings,
        durable=method.durable,
        auto_delete=method.auto_delete,
        exclusive=method.exclusive,
        arguments=arguments,
    )
    if existing is not None:
        existing.check_equivalent(declaration, session)
        channel.last_queue = name
        _declare_ok(channel, existing, method.nowait)
        return None

    async def declare() -> None:
        queue = await session.service.queues.declare(vhost, declaration, session)
        if queue.exclusive_owner is session:
            session.owns_queues = True
            if session.closed:  # the connection went while the queue was made
                session.service.queues.delete_owned(session)
        if channel.open:
            channel.last_queue = name
            _declare_ok(channel, queue, method.nowait)

    return declare()


def _queue_declare_passive(channel: Channel, method: m.QueueDeclare, name: str) -> Later:
    session = channel.session
    if name == REPLY_TO or name in session.replies:
        channel.session.send_method(channel.number, m.QueueDeclareOk(name, 0, 1))
        return None
    if not name or name.startswith(REPLY_TO_PREFIX):
        raise refusals.not_found("queue", name, session.vhost.name)
    return _with_queue(channel, name, lambda queue: _passive_ok(channel, queue, method.nowait))


def _passive_ok(channel: Channel, queue: Queue, nowait: bool) -> Later:
    channel.last_queue = queue.name
    _declare_ok(channel, queue, nowait)
    return None


def _declare_ok(channel: Channel, queue: Queue, nowait: bool) -> None:
    queue.cursor.touch()  # an existing queue is used by declaring it, also passively
    if not nowait:
        stats = queue.cursor.stats()
        channel.session.send_method(channel.number, m.QueueDeclareOk(queue.name, stats.ready, stats.consumers))


def _with_queue(channel: Channel, name: str, work: Callable[[Queue], Later], *, owner_only: bool = True) -> Later:
    """Do something with a queue that may first have to be opened: a Kafka topic is a queue as soon as it is named."""
    session = channel.session
    vhost = session.vhost
    name = _named(channel, name)
    queue = vhost.queues.get(name)
    if queue is not None:
        if owner_only:
            queue.check_owner(session)
        return work(queue)

    async def opened() -> None:
        found = await session.service.queues.open(vhost, name)
        if owner_only:
            found.check_owner(session)
        later = work(found)
        if later is not None:
            await later

    session.service.queues.check_openable(vhost, name)
    return opened()


def _named(channel: Channel, name: str) -> str:
    """An empty name means the queue that was declared last on this channel."""
    if name:
        return name
    if not channel.last_queue:
        raise Refused(Reason.NOT_FOUND, "no previously declared queue")
    return channel.last_queue


def _queue_bind(channel: Channel, method: m.QueueBind) -> Later:
    session = channel.session
    name = _named(channel, method.queue)
    routing_key = method.routing_key
    if not method.queue and not routing_key:
        routing_key = name
    _check_not_default(method.exchange)
    session.check_access(Access.WRITE, "queue", name)
    session.check_access(Access.READ, "exchange", method.exchange)

    def bind(queue: Queue) -> Later:
        topology = session.service.topology
        arguments = _arguments(method.arguments)
        recorded = topology.bind(session.vhost, method.exchange, queue.name, routing_key, arguments)
        return _answer(channel, recorded, method.nowait, m.QueueBindOk())

    return _with_queue(channel, name, bind)


def _queue_unbind(channel: Channel, method: m.QueueUnbind) -> Later:
    session = channel.session
    name = _named(channel, method.queue)
    routing_key = method.routing_key
    if not method.queue and not routing_key:
        routing_key = name
    _check_not_default(method.exchange)
    session.check_access(Access.WRITE, "queue", name)
    session.check_access(Access.READ, "exchange", method.exchange)

    queue = session.vhost.queues.get(name)
    if queue is not None:
        queue.check_owner(session)
    arguments = _arguments(method.arguments)
    recorded = session.service.topology.unbind(session.vhost, method.exchange, name, routing_key, arguments)
    return _answer(channel, recorded, False, m.QueueUnbindOk())


def _queue_purge(channel: Channel, method: m.QueuePurge) -> Later:
    channel.session.check_access(Access.READ, "queue", _named(channel, method.queue))

    async def purge(queue: Queue) -> None:
        count = await queue.cursor.purge()
        if not method.nowait:
            channel.session.send_method(channel.number, m.QueuePurgeOk(count))

    return _with_queue(channel, method.queue, purge)


def _queue_delete(channel: Channel, method: m.QueueDelete) -> Later:
    session = channel.session
    name = _named(channel, method.queue)
    session.check_access(Access.CONFIGURE, "queue", name)
    queue = session.vhost.queues.get(name)
    if queue is None:
        # As in RabbitMQ, deleting what is not there succeeds.
        if not method.nowait:
            session.send_method(channel.number, m.QueueDeleteOk(0))
        return None
    queue.check_owner(session)

    async def delete(queue: Queue) -> None:
        count = await session.service.queues.delete(queue, if_unused=method.if_unused, if_empty=method.if_empty)
        if not method.nowait and channel.open:
            session.send_method(channel.number, m.QueueDeleteOk(count))

    return delete(queue)


# -- basic -------------------------------------------------------------------------------------------------------------


def _basic_qos(channel: Channel, method: m.BasicQos) -> Later:
    if method.prefetch_size:
        text = f"prefetch_size!=0 ({method.prefetch_size})"
        raise FrameError(NOT_IMPLEMENTED, text, 60, 10)
    if method.global_:
        channel.prefetch.set_limit(method.prefetch_count)
    else:
        channel.consumer_prefetch = method.prefetch_count
    channel.session.send_method(channel.number, m.BasicQosOk())
    return None


def _basic_consume(channel: Channel, method: m.BasicConsume) -> Later:
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
    session.check_access(Access.READ, "queue", _named(channel, method.queue))
    arguments = _arguments(method.arguments)

    def consume(queue: Queue) -> Later:
        priority = read_priority(queue.name, queue.vhost, queue.arguments, arguments)
        consumer = Consumer(
            channel,
            queue,
            tag,
            no_ack=method.no_ack,
            exclusive=method.exclusive,
            prefetch=channel.consumer_prefetch,
            priority=priority,
            arguments=arguments,
        )
        channel.add_consumer(consumer)
        if not method.nowait:
            # Deliveries come at the end of the turn, and so after this.
            session.send_method(channel.number, m.BasicConsumeOk(tag))
        return None

    return _with_queue(channel, method.queue, consume)


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


def _basic_cancel(channel: Channel, method: m.BasicCancel) -> Later:
    channel.cancel_consumer(method.consumer_tag)
    if not method.nowait:
        channel.session.send_method(channel.number, m.BasicCancelOk(method.consumer_tag))
    return None


def _basic_get(channel: Channel, method: m.BasicGet) -> Later:
    session = channel.session
    session.check_access(Access.READ, "queue", _named(channel, method.queue))
    if channel.session.limits.max_unsettled_per_channel <= len(channel.unsettled):
        raise refusals.precondition("too many unacknowledged deliveries on this channel")

    def get(queue: Queue) -> Later:
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

    return _with_queue(channel, method.queue, get)


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
    return True


def _basic_recover(channel: Channel, method: m.BasicRecover) -> Later:
    if not method.requeue:
        raise FrameError(NOT_IMPLEMENTED, "requeue=false", 60, 110)
    channel.recover()
    channel.session.send_method(channel.number, m.BasicRecoverOk())
    return None


def _basic_recover_async(channel: Channel, method: m.BasicRecoverAsync) -> Later:
    if not method.requeue:
        raise FrameError(NOT_IMPLEMENTED, "requeue=false", 60, 100)
    channel.recover()
    return None


# -- confirm and tx ----------------------------------------------------------------------------------------------------


def _confirm_select(channel: Channel, method: m.ConfirmSelect) -> Later:
    if channel.transaction is not None:
        raise refusals.precondition("cannot switch from tx to confirm mode")
    if channel.confirms is None:
        channel.confirms = Confirms(channel.number, channel.session.send, channel.session.note_unconfirmed)
    if not method.nowait:
        channel.session.send_method(channel.number, m.ConfirmSelectOk())
    return None


def _tx_select(channel: Channel, method: m.TxSelect) -> Later:
    if channel.confirms is not None:
        raise refusals.precondition("cannot switch from confirm to tx mode")
    if channel.transaction is None:
        channel.transaction = Transaction(channel.session)
    channel.session.send_method(channel.number, m.TxSelectOk())
    return None


def _tx_commit(channel: Channel, method: m.TxCommit) -> Later:
    transaction = channel.transaction
    if transaction is None:
        raise refusals.precondition("channel is not transactional")
    return _commit(channel, transaction)


async def _commit(channel: Channel, transaction: Transaction) -> None:
    session = channel.session
    letters = []
    for publication in transaction.take_publications():
        queues = [queue for queue in publication.queues if not queue.cursor.deleted]
        if queues:
            message = publication.envelope.message(publication.body, session.now_ms)
            keyed = message._replace(key=publication.envelope.order_key)
            letters += [(queue, keyed if queue.orders_by_key else message) for queue in queues]
        elif publication.mandatory:
            channel.return_unroutable(publication.envelope, publication.body)
    await session.service.messaging.publish_atomically(letters)
    if channel.open:
        transaction.settle(channel)
        session.flush()
        await session.service.messaging.settlements_stored()
    if channel.open:
        session.send_method(channel.number, m.TxCommitOk())


def _tx_rollback(channel: Channel, method: m.TxRollback) -> Later:
    if channel.transaction is None:
        raise refusals.precondition("channel is not transactional")
    channel.transaction.roll_back(channel)
    channel.session.send_method(channel.number, m.TxRollbackOk())
    return None


_Operation = Callable[[Channel, Any], Coroutine[object, object, None] | None]
_OPERATIONS: dict[type[m.Method], _Operation] = {
    m.ChannelOpen: _channel_open,
    m.ChannelClose: _channel_close,
    m.ChannelCloseOk: _ignore,
    m.ChannelFlow: _channel_flow,
    m.ChannelFlowOk: _ignore,
    m.AccessRequest: _access_request,
    m.ExchangeDeclare: _exchange_declare,
    m.ExchangeDelete: _exchange_delete,
    m.ExchangeBind: _exchange_bind,
    m.ExchangeUnbind: _exchange_unbind,
    m.QueueDeclare: _queue_declare,
    m.QueueBind: _queue_bind,
    m.QueueUnbind: _queue_unbind,
    m.QueuePurge: _queue_purge,
    m.QueueDelete: _queue_delete,
    m.BasicQos: _basic_qos,
    m.BasicConsume: _basic_consume,
    m.BasicCancel: _basic_cancel,
    m.BasicCancelOk: _ignore,
    m.BasicGet: _basic_get,
    m.BasicRecover: _basic_recover,
    m.BasicRecoverAsync: _basic_recover_async,
    m.ConfirmSelect: _confirm_select,
    m.TxSelect: _tx_select,
    m.TxCommit: _tx_commit,
    m.TxRollback: _tx_rollback,
}
