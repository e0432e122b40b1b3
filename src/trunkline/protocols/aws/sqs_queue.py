"""A queue as SQS sees it: its attributes, read once, and what receivers may ask for again.

`Queues` gives them by name. A queue that another protocol declared, or a topic of one partition, is a queue here without
being asked for: by its name.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from trunkline.broker.core import BrokerCore
from trunkline.broker.messaging.queue import Queue, QueueDeclaration
from trunkline.broker.messaging.refusals import Refused
from trunkline.cursors.queue import Delivery, QueueCursor
from trunkline.protocols.aws.attributes import NUMBERS, kept_of
from trunkline.protocols.aws.errors import no_such_queue
from trunkline.protocols.aws.limits import AwsLimits
from trunkline.protocols.aws.names import FIFO

_MAX_FIRST_RECEIVES = 150_000


class Attempt(NamedTuple):
    """A receive that may be repeated by its id."""

    until_ms: float
    deliveries: list[Delivery]
    received_ms: int


class SqsQueue:
    __slots__ = ("attempts", "content_based", "cursor", "declaration", "delay_s", "fifo", "first_received", "max_bytes", "name",
                 "queue", "topic_id", "visibility_s", "wait_s")  # fmt: skip

    def __init__(self, queue: Queue, topic_id: bytes, limits: AwsLimits) -> None:
        self.queue = queue
        self.name = queue.name
        self.cursor: QueueCursor = queue.cursor
        self.topic_id = topic_id
        self.fifo = queue.orders_by_key and queue.name.endswith(FIFO)
        self.first_received: OrderedDict[int, int] = (
            OrderedDict()
        )  # by offset: of those received more than once, or held
        self.attempts: OrderedDict[str, Attempt] = OrderedDict()
        self.read(queue.declaration, limits)

    def read(self, declaration: QueueDeclaration, limits: AwsLimits) -> None:
        """Its attributes, after they have changed."""
        self.declaration = declaration
        given = kept_of(declaration).attributes
        numbers = {name: int(given.get(name, span.default)) for name, span in NUMBERS.items()}
        self.visibility_s = numbers["VisibilityTimeout"]
        self.wait_s = numbers["ReceiveMessageWaitTimeSeconds"]
        self.delay_s = numbers["DelaySeconds"]
        self.max_bytes = min(numbers["MaximumMessageSize"], limits.max_message_bytes)
        self.content_based = given.get("ContentBasedDeduplication") == "true"

    def note_received(self, delivery: Delivery, now_ms: int) -> int:
        """When the message was first received. After a restart that is not known of what was received before."""
        first = self.first_received
        if delivery.delivery_count == 1:
            first[delivery.offset] = now_ms
            if len(first) > _MAX_FIRST_RECEIVES:
                first.popitem(last=False)
            return now_ms
        return first.setdefault(delivery.offset, now_ms)


class SqsQueues:
    def __init__(self, broker: BrokerCore, limits: AwsLimits) -> None:
        self._broker = broker
        self._limits = limits
        self._known: dict[str, SqsQueue] = {}
        self.vhost = broker.messaging.topology.vhosts["/"]

    def get(self, name: str) -> SqsQueue | None:
        """The queue, if it is there; one on a topic of another protocol must be opened first."""
        queue = self.vhost.queues.get(name)
        found = self._known.get(name)
        if queue is None or queue.exclusive or queue.cursor.gone:
            if found is not None:
                del self._known[name]
            return None
        if found is None or found.queue is not queue:
            topic = self._broker.topic(queue.topic)
            found = self._known[name] = SqsQueue(queue, b"" if topic is None else topic.id.bytes, self._limits)
        elif found.declaration is not queue.declaration:
            found.read(queue.declaration, self._limits)
        return found

    async def open(self, name: str) -> SqsQueue:
        """The queue of that name, or the topic of that name as a queue."""
        try:
            await self._broker.messaging.queues.open(self.vhost, name)
        except Refused:
            raise no_such_queue() from None
        found = self.get(name)
        if found is None:
            raise no_such_queue()
        return found

    def names(self) -> list[str]:
        return sorted(name for name, queue in self.vhost.queues.items() if not queue.exclusive)
