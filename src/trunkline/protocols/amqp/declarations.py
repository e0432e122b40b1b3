"""The methods that declare, bind and delete exchanges and queues, one function each.

Each answers at once, or returns a coroutine that answers when what it waits for is done (a queue's topic, a record on
disk). Refusals are raised: the session closes the channel or the connection with them.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Callable

from trunkline.broker.messaging import refusals
from trunkline.broker.messaging.queue import Queue, QueueDeclaration
from trunkline.broker.messaging.queue_arguments import read_settings
from trunkline.broker.messaging.refusals import Reason, Refused
from trunkline.broker.messaging.typed_values import FieldValue, plain_value
from trunkline.broker.state.topology import settled
from trunkline.broker.state.virtual_host import ExchangeInfo
from trunkline.log.ticket import Recorded
from trunkline.protocols.amqp import methods as m
from trunkline.protocols.amqp.channel import PROTOCOL, REPLY_TO, REPLY_TO_PREFIX, Channel, Later
from trunkline.protocols.amqp.connection import Connection
from trunkline.protocols.amqp.consumer import not_by_streams
from trunkline.security.limits import MAX_QUEUES, VHOST
from trunkline.security.rules import Operation
from trunkline.security.users import Access


def arguments_of(table: dict[str, FieldValue]) -> dict[str, object]:
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


# -- exchanges ---------------------------------------------------------------------------------------------------------


def exchange_declare(channel: Channel, method: m.ExchangeDeclare) -> Later:
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
        name, method.type, method.durable, method.auto_delete, method.internal, arguments_of(method.arguments)
    )
    alternate = info.alternate
    if alternate is not None and name not in vhost.exchanges:
        session.check_access(Access.READ, "exchange", name)
        session.check_access(Access.WRITE, "exchange", alternate)
    recorded = session.service.topology.declare_exchange(vhost, info)
    return _answer(channel, recorded, method.nowait, m.ExchangeDeclareOk())


def exchange_delete(channel: Channel, method: m.ExchangeDelete) -> Later:
    session = channel.session
    name = _stripped(method.exchange)
    if not name:
        raise _default_exchange()
    _check_reserved("exchange", name, session.vhost.name)
    session.check_access(Access.CONFIGURE, "exchange", name)
    recorded = session.service.topology.delete_exchange(session.vhost, name, if_unused=method.if_unused)
    session.writable_exchanges.discard(name)
    return _answer(channel, recorded, method.nowait, m.ExchangeDeleteOk())


def exchange_bind(channel: Channel, method: m.ExchangeBind) -> Later:
    session = channel.session
    _check_not_default(method.source, method.destination)
    session.check_access(Access.WRITE, "exchange", method.destination)
    session.check_access(Access.READ, "exchange", method.source)
    session.check_key(Access.READ, method.source, method.routing_key)
    recorded = session.service.topology.bind(
        session.vhost,
        method.source,
        method.destination,
        method.routing_key,
        arguments_of(method.arguments),
        to_exchange=True,
    )
    return _answer(channel, recorded, method.nowait, m.ExchangeBindOk())


def exchange_unbind(channel: Channel, method: m.ExchangeUnbind) -> Later:
    session = channel.session
    _check_not_default(method.source, method.destination)
    session.check_access(Access.WRITE, "exchange", method.destination)
    session.check_access(Access.READ, "exchange", method.source)
    session.check_key(Access.READ, method.source, method.routing_key)
    recorded = session.service.topology.unbind(
        session.vhost,
        method.source,
        method.destination,
        method.routing_key,
        arguments_of(method.arguments),
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


def queue_declare(channel: Channel, method: m.QueueDeclare) -> Later:
    session = channel.session
    vhost = session.vhost
    name = _stripped(method.queue)
    if method.passive or name == REPLY_TO or name.startswith(REPLY_TO_PREFIX):
        return _queue_declare_passive(channel, method, name)
    if not name:
        name = "amq.gen-" + base64.urlsafe_b64encode(os.urandom(16)).decode().rstrip("=")
    elif name not in vhost.queues:
        _check_reserved("queue", name, vhost.name)
    makes = name not in vhost.queues and not session.service.queues.topics.may_adopt(vhost.name, name)
    session.check_access(Access.CONFIGURE, "queue", name, Operation.CREATE if makes else None)
    arguments = arguments_of(method.arguments)
    existing = vhost.queues.get(name)
    settings = read_settings(name, vhost.name, arguments) if existing is None else existing.cursor.settings
    if settings.dead_letter is not None and existing is None:
        session.check_access(Access.READ, "queue", name)
        session.check_access(Access.WRITE, "exchange", settings.dead_letter[0])
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

    _check_limit(session, name)

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


def _check_limit(session: Connection, name: str) -> None:
    vhost = session.vhost
    most = session.service.user_limits.of(VHOST, vhost.name, MAX_QUEUES)
    if most is not None and len(vhost.queues) >= most:
        text = f"cannot declare queue '{name}': queue limit in vhost '{vhost.name}' ({most}) is reached"
        raise refusals.precondition(text)


def _queue_declare_passive(channel: Channel, method: m.QueueDeclare, name: str) -> Later:
    session = channel.session
    if name == REPLY_TO or name in session.replies:
        channel.session.send_method(channel.number, m.QueueDeclareOk(name, 0, 1))
        return None
    if not name or name.startswith(REPLY_TO_PREFIX):
        raise refusals.not_found("queue", name, session.vhost.name)
    if session.service.access.hides(session.principal, session.vhost.name, name):
        raise session.service.access.refused_vhost(
            session.principal, session.vhost.name, Access.READ, name, "queue", protocol=PROTOCOL
        )
    return with_queue(channel, name, lambda queue: _passive_ok(channel, queue, method.nowait))


def _passive_ok(channel: Channel, queue: Queue, nowait: bool) -> Later:
    channel.last_queue = queue.name
    _declare_ok(channel, queue, nowait)
    return None


def _declare_ok(channel: Channel, queue: Queue, nowait: bool) -> None:
    queue.cursor.touch()  # an existing queue is used by declaring it, also passively
    if not nowait:
        stats = queue.cursor.stats()
        channel.session.send_method(channel.number, m.QueueDeclareOk(queue.name, stats.ready, stats.consumers))


def with_queue(channel: Channel, name: str, work: Callable[[Queue], Later]) -> Later:
    """Do something with a queue that may first have to be opened: a Kafka topic is a queue as soon as it is named."""
    session = channel.session
    vhost = session.vhost
    name = queue_named(channel, name)
    queue = vhost.queues.get(name)
    if queue is not None:
        queue.check_owner(session)
        return work(queue)

    async def opened() -> None:
        found = await session.service.queues.open(vhost, name)
        found.check_owner(session)
        later = work(found)
        if later is not None:
            await later

    session.service.queues.check_openable(vhost, name)
    return opened()


def queue_named(channel: Channel, name: str) -> str:
    """An empty name means the queue that was declared last on this channel."""
    if name:
        return name
    if not channel.last_queue:
        raise Refused(Reason.NOT_FOUND, "no previously declared queue")
    return channel.last_queue


def queue_bind(channel: Channel, method: m.QueueBind) -> Later:
    session = channel.session
    name = queue_named(channel, method.queue)
    routing_key = method.routing_key
    if not method.queue and not routing_key:
        routing_key = name
    _check_not_default(method.exchange)
    session.check_access(Access.WRITE, "queue", name)
    session.check_access(Access.READ, "exchange", method.exchange)
    session.check_key(Access.READ, method.exchange, routing_key)

    def bind(queue: Queue) -> Later:
        topology = session.service.topology
        arguments = arguments_of(method.arguments)
        recorded = topology.bind(session.vhost, method.exchange, queue.name, routing_key, arguments)
        return _answer(channel, recorded, method.nowait, m.QueueBindOk())

    return with_queue(channel, name, bind)


def queue_unbind(channel: Channel, method: m.QueueUnbind) -> Later:
    session = channel.session
    name = queue_named(channel, method.queue)
    routing_key = method.routing_key
    if not method.queue and not routing_key:
        routing_key = name
    _check_not_default(method.exchange)
    session.check_access(Access.WRITE, "queue", name)
    session.check_access(Access.READ, "exchange", method.exchange)
    session.check_key(Access.READ, method.exchange, routing_key)

    queue = session.vhost.queues.get(name)
    if queue is not None:
        queue.check_owner(session)
    arguments = arguments_of(method.arguments)
    recorded = session.service.topology.unbind(session.vhost, method.exchange, name, routing_key, arguments)
    return _answer(channel, recorded, False, m.QueueUnbindOk())


def queue_purge(channel: Channel, method: m.QueuePurge) -> Later:
    channel.session.check_access(Access.READ, "queue", queue_named(channel, method.queue))

    async def purge(queue: Queue) -> None:
        if queue.is_stream:
            raise not_by_streams("queue.purge", queue)
        count = await queue.cursor.purge()
        if not method.nowait:
            channel.session.send_method(channel.number, m.QueuePurgeOk(count))

    return with_queue(channel, method.queue, purge)


def queue_delete(channel: Channel, method: m.QueueDelete) -> Later:
    session = channel.session
    name = queue_named(channel, method.queue)
    queue = session.vhost.queues.get(name)
    deletes = queue is not None and not queue.adopted
    session.check_access(Access.CONFIGURE, "queue", name, Operation.DELETE if deletes else None)
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
