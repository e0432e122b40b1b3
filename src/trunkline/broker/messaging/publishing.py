"""Publications: collected per queue during a turn, appended once per queue at its end, confirmed when that is stored.

A protocol routes a message (`VirtualHost.route`) and calls `add` for each queue. At the end of the turn each queue that
got something appends it all as one, and the consumers that wait are served from memory; then every publisher that asked
for it is told (`Publisher.stored`), and finds in `queue.stored` and `queue.failed` what became of the queues it wrote to.

Durability: a queue's append waits for the disk if one of its messages was added with `disk`, which a protocol sets for
a persistent message to a durable queue whose sender wants to know. One fsync then serves all.

A queue that is deleted before its append is made or stored takes the messages with it. That is no failure of theirs: who
asked is told that they are stored, as if they had come a moment sooner (`append_failed`).

Dead letters come back here from the cursors: they are given their history (`dead_letters`), routed and added like any
other publication, in the same turn in which their queue gave them up.

Rules: order per publisher and queue is the order of `add`. `flush` may be called at any time; it leaves nothing pending.
A crash loses only what was not stored, of which nobody was told. Bounded: what is pending is what one turn read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from trunkline.broker.messaging.dead_letters import bury
from trunkline.broker.messaging.envelope import routing_fields_of
from trunkline.broker.messaging.queue import Publisher, Queue
from trunkline.broker.state.virtual_host import VirtualHost
from trunkline.broker.turn import Turn
from trunkline.clock import Clock
from trunkline.cursors.queue import Delivery, Message
from trunkline.cursors.queue.errors import QueueError, QueueFull
from trunkline.log.errors import LogError, UnknownTopicOrPartition
from trunkline.log.store import Durability
from trunkline.log.ticket import Appended
from trunkline.routing.errors import RoutingError

logger = logging.getLogger(__name__)


def append_failed(stored: asyncio.Future[Appended]) -> bool:
    """Whether the messages of an append that has ended are neither stored nor gone with their queue."""
    if stored.cancelled():
        return True
    error = stored.exception()
    return error is not None and not isinstance(error, UnknownTopicOrPartition)


class Publishing:
    def __init__(self, vhosts: Mapping[str, VirtualHost], clock: Clock, turn: Turn) -> None:
        self._vhosts = vhosts
        self._clock = clock
        self._turn = turn
        self._touched: list[Queue] = []
        self._publishers: dict[Publisher, None] = {}
        self._scheduled = False

    def add(
        self, queue: Queue, message: Message, *, disk: bool = False, origin: tuple[Publisher, int] | None = None
    ) -> None:
        if not queue.pending:
            self._touched.append(queue)
            if not self._scheduled:
                self._scheduled = True
                self._turn.collect(self.flush)
        queue.pending.append(message)
        if disk:
            queue.needs_disk = True
        if queue.may_reject:
            queue.origins.append(origin)

    def notify(self, publisher: Publisher) -> None:
        """Call `publisher.stored` once this turn's publications are appended."""
        self._publishers[publisher] = None
        if not self._scheduled:
            self._scheduled = True
            self._turn.collect(self.flush)

    def flush(self) -> None:
        self._scheduled = False
        while self._touched or self._publishers:
            touched, self._touched = self._touched, []
            publishers, self._publishers = self._publishers, {}
            for queue in touched:
                self._store(queue)
            for publisher in publishers:
                publisher.stored()
            for queue in touched:
                queue.stored = None
                queue.failed = False

    def _store(self, queue: Queue) -> None:
        messages, queue.pending = queue.pending, []
        origins, queue.origins = queue.origins, []
        durability = Durability.DISK if queue.needs_disk else Durability.OS if queue.durable else Durability.NONE
        queue.needs_disk = False
        try:
            queue.stored = queue.cursor.put(messages, durability)
        except QueueFull as full:
            queue.stored = full.stored
            for origin in origins[full.accepted :]:
                if origin is not None:
                    origin[0].rejected(origin[1])
        except (QueueError, LogError) as error:
            if queue.cursor.deleted or isinstance(error, UnknownTopicOrPartition):
                return
            queue.failed = True
            logger.warning(
                "queue %s of vhost %s did not take %d messages: %s", queue.name, queue.vhost, len(messages), error
            )

    # -- dead letters --------------------------------------------------------------------------------------------

    def dead_letter(self, queue: Queue, delivery: Delivery, reason: str) -> None:
        """What becomes of a message that a queue gives up."""
        target = queue.settings.dead_letter
        if target is None:
            return
        exchange, routing_key = target
        vhost = self._vhosts.get(queue.vhost)
        if vhost is None or exchange not in vhost.exchanges:
            return  # RabbitMQ, too, drops what has nowhere to go
        message = delivery.message
        letter = bury(
            message.headers,
            queue.name,
            reason,
            routing_key=routing_key,
            exchange=exchange,
            now_ms=self._clock.wall_ms(),
        )
        try:
            fields = routing_fields_of(letter.section, message.value)
            queues = vhost.router.forward(exchange, letter.routing_keys, fields)
        except RoutingError as error:
            logger.warning("a dead letter of queue %s was dropped: %s", queue.name, error)
            return
        again = message._replace(headers=letter.section, expires_ms=None, timestamp_ms=self._clock.wall_ms())
        for found in queues:
            if found.name not in letter.died_before_in:
                self.add(found, again)
