"""The queues of destinations: found, or made and bound, in the name of a connection.

| destination | its queue |
|---|---|
| /queue/x | x; made durable where it is not there, unless the headers of a SUBSCRIBE say otherwise |
| /amq/queue/x, /reply-queue/x | x, which must be there |
| /topic/k, /exchange/e/k | one of the subscription's own, bound by k: exclusive and gone with it; or durable, by its id |

The headers `durable`, `auto-delete`, `exclusive`, `x-queue-name` and those of queue arguments (`x-message-ttl` …) say how a
queue is made. A queue that is there is taken as it is when a SUBSCRIBE has none of them; with some, they must be as it was made.
"""

from __future__ import annotations

import base64
import hashlib
import os
from typing import Final

from trunkline.broker.messaging.queue import Queue, QueueDeclaration
from trunkline.broker.messaging.queue_arguments import read_settings
from trunkline.broker.state.topology import settled
from trunkline.protocols.stomp.connection import Connection
from trunkline.protocols.stomp.destination import Destination, Kind
from trunkline.protocols.stomp.errors import invalid_header
from trunkline.security.users import Access

_NAME_HEADER: Final = "x-queue-name"
_PREFIX: Final = "stomp-subscription-"
_FLAGS: Final = {"true": True, "false": False}
# As RabbitMQ's plugin reads them; what is not among them is not an argument of a queue.
_NUMBERS: Final = frozenset(
    {
        "x-max-length",
        "x-max-length-bytes",
        "x-message-ttl",
        "x-expires",
        "x-max-priority",
        "x-delivery-limit",
        "x-stream-max-segment-size-bytes",
    }
)
_TEXTS: Final = frozenset(
    {"x-dead-letter-exchange", "x-dead-letter-routing-key", "x-overflow", "x-queue-type", "x-queue-mode",
     "x-max-age", "x-queue-leader-locator"}
)  # fmt: skip
_BOOLEANS: Final = frozenset({"x-single-active-consumer", "x-order-by-key", "x-retain"})
_SAYS_HOW: Final = frozenset({"durable", "auto-delete", "exclusive"})


def flag(headers: dict[str, str], name: str, *, default: bool) -> bool:
    value = headers.get(name)
    if value is None:
        return default
    if value not in _FLAGS:
        raise invalid_header(f"'{name}' must be true or false")
    return _FLAGS[value]


def arguments_of(headers: dict[str, str]) -> dict[str, object]:
    arguments: dict[str, object] = {}
    for name, value in headers.items():
        if name in _NUMBERS:
            if not value.isascii() or not value.isdigit() or len(value) > 18:
                raise invalid_header(f"'{name}' must be a number")
            arguments[name] = int(value)
        elif name in _TEXTS:
            arguments[name] = value
        elif name in _BOOLEANS:
            arguments[name] = flag(headers, name, default=False)
    return arguments


async def declare_plain(connection: Connection, name: str) -> Queue:
    """The queue of that name, made durable where it is not there: what a SEND to /queue/ needs."""
    return await _declare(connection, QueueDeclaration(name, read_settings(name, connection.vhost.name, {})))


async def temporary_queue(connection: Connection) -> Queue:
    """A new queue of the connection's own."""
    name = "amq.gen-" + _random()
    settings = read_settings(name, connection.vhost.name, {})
    return await _declare(connection, QueueDeclaration(name, settings, durable=False, exclusive=True, auto_delete=True))


async def queue_of(
    connection: Connection, destination: Destination, headers: dict[str, str], subscription: str
) -> Queue:
    """The queue that a SUBSCRIBE reads from."""
    vhost = connection.vhost
    if destination.kind in (Kind.AMQ_QUEUE, Kind.REPLY):
        return await _existing(connection, destination.name)
    arguments = arguments_of(headers)
    if destination.kind is Kind.QUEUE:
        name = destination.name
        found = vhost.queues.get(name)
        if found is not None and not arguments and not _SAYS_HOW & headers.keys():
            return await _existing(connection, name)
        wish = QueueDeclaration(
            name,
            read_settings(name, vhost.name, arguments),
            durable=flag(headers, "durable", default=True),
            auto_delete=flag(headers, "auto-delete", default=False),
            exclusive=flag(headers, "exclusive", default=False),
            arguments=arguments,
        )
        return await _declare(connection, wish)
    durable = is_durable(headers)
    name = subscription_queue(destination, headers, subscription)
    wish = QueueDeclaration(
        name,
        read_settings(name, vhost.name, arguments),
        durable=durable,
        auto_delete=flag(headers, "auto-delete", default=not durable),
        exclusive=flag(headers, "exclusive", default=not durable),
        arguments=arguments,
    )
    connection.check_access(Access.READ, "exchange", destination.name)
    connection.check_key(Access.READ, destination.name, destination.key)
    if destination.name not in vhost.exchanges:
        connection.service.topology.bind(vhost, destination.name, name, destination.key, {})  # says what is missing
    queue = await _declare(connection, wish)
    connection.check_access(Access.WRITE, "queue", name)
    await settled(connection.service.topology.bind(vhost, destination.name, name, destination.key, {}))
    return queue


def is_durable(headers: dict[str, str]) -> bool:
    """`persistent` is what `durable` was called first."""
    return flag(headers, "durable", default=flag(headers, "persistent", default=False))


def subscription_queue(destination: Destination, headers: dict[str, str], subscription: str) -> str:
    named = headers.get(_NAME_HEADER)
    if named:
        return named
    if not is_durable(headers):
        return _PREFIX + _random()
    digest = hashlib.sha256(f"{destination.name}\0{destination.key}\0{subscription}".encode()).digest()
    return _PREFIX + base64.urlsafe_b64encode(digest[:16]).decode().rstrip("=")


async def _existing(connection: Connection, name: str) -> Queue:
    queues = connection.service.queues
    connection.check_access(Access.READ, "queue", name)
    queue = connection.vhost.queues.get(name) or await queues.open(connection.vhost, name)
    queue.check_owner(connection)
    return queue


async def _declare(connection: Connection, wish: QueueDeclaration) -> Queue:
    connection.check_access(Access.CONFIGURE, "queue", wish.name)
    if wish.settings.dead_letter is not None:
        connection.check_access(Access.READ, "queue", wish.name)
        connection.check_access(Access.WRITE, "exchange", wish.settings.dead_letter[0])
    queues = connection.service.queues
    queue = await queues.declare(connection.vhost, wish, connection)
    if connection.closed and queue.exclusive_owner is connection:  # it went while the queue was made
        queues.delete_owned(connection)
    return queue


def _random() -> str:
    return base64.urlsafe_b64encode(os.urandom(16)).decode().rstrip("=")
