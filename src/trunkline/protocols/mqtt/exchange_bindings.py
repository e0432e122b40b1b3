"""Bindings of AMQP queues to MQTT topics.

A queue of the virtual host `/` that is bound to the exchange `amq.topic` gets MQTT publications too, as in RabbitMQ: the
topic name with `.` for `/` is the routing key, so `sensors.*.temperature` binds what `sensors/+/temperature` subscribes to.
The copy has the record headers of the publication and an address (`broker/messaging/envelope`); QoS 1 and 2 are persistent, and then acknowledged when the queues have stored them too.

A queue at its maximum refuses silently: MQTT has no way to tell a publisher.

Routes are kept with the topic's own (`Route.queues`) until a binding changes, so a topic that no queue is bound to costs
one comparison per run of publications.
"""

from __future__ import annotations

import asyncio
from typing import Final

from trunkline.broker.messaging.envelope import addressed
from trunkline.broker.messaging.messaging import Messaging
from trunkline.broker.messaging.queue import Queue
from trunkline.cursors.queue import Message as QueueMessage
from trunkline.log.ticket import Appended
from trunkline.protocols.mqtt.routes import Route
from trunkline.protocols.mqtt.run import Run
from trunkline.security.users import DEFAULT_VHOST

EXCHANGE: Final = "amq.topic"
MAX_ROUTING_KEY_BYTES: Final = 255
MAX_REMEMBERED: Final = 4_096
MAX_REMEMBERED_BYTES: Final = 1_024


class ExchangeBindings:
    """Publishes to the queues. It is the `Publisher` that the queues' appends are reported to."""

    def __init__(self, messaging: Messaging) -> None:
        self._messaging = messaging
        self._sections: dict[tuple[bytes, str], bytes] = {}
        self._touched: dict[Queue, None] = {}
        self._waiting: list[asyncio.Future[Appended]] = []
        self._failed = False
        self.refused = 0

    def bound(self, route: Route) -> bool:
        """Whether queues are bound to the topic; to be asked before `forward`."""
        vhost = self._messaging.topology.vhosts.get(DEFAULT_VHOST)
        if vhost is None:
            return False
        if route.queues_version != vhost.version:
            route.queues_version = vhost.version
            key = routing_key(route.topic)
            route.queues = (
                (vhost.route_by_key(EXCHANGE, key) or ()) if len(key.encode()) <= MAX_ROUTING_KEY_BYTES else ()
            )
        return bool(route.queues)

    def forward(self, route: Route, run: Run, section: bytes) -> None:
        """Add a run of publications to the queues that are bound to its topic. `section` is their records' headers."""
        for queue in route.queues:
            self._touched[queue] = None
            for payload in run.payloads:
                self._messaging.publishing.add(
                    queue,
                    QueueMessage(
                        payload,
                        self._section(section, route.topic),
                        expires_ms=run.expires_ms,
                        persistent=run.qos > 0,
                    ),
                    disk=run.qos > 0 and queue.durable,
                    origin=(self, 0),
                )

    def flush(self) -> tuple[list[asyncio.Future[Appended]], bool]:
        """Append what was added; returns what has to be waited for, and whether all queues took it."""
        if not self._touched:
            return [], True
        self._messaging.publishing.notify(self)
        self._messaging.publishing.flush()
        self._touched.clear()
        waiting, self._waiting = self._waiting, []
        failed, self._failed = self._failed, False
        return waiting, not failed

    def stored(self) -> None:
        for queue in self._touched:
            self._failed = self._failed or queue.failed
            if queue.stored is not None and not queue.stored.done():
                self._waiting.append(queue.stored)

    def rejected(self, sequence: int) -> None:
        self.refused += 1

    def _section(self, section: bytes, topic: str) -> bytes:
        found = self._sections.get((section, topic))
        if found is None:
            found = addressed(section, EXCHANGE, routing_key(topic))
            if len(found) <= MAX_REMEMBERED_BYTES:
                if len(self._sections) >= MAX_REMEMBERED:
                    self._sections.clear()
                self._sections[section, topic] = found
        return found


def routing_key(topic: str) -> str:
    return topic.replace("/", ".")
