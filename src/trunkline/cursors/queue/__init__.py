"""Queues: records leased to consumers. See cursor for the rules, runtime for what all queues of a broker share."""

from trunkline.cursors.queue.consumers import QueueConsumer
from trunkline.cursors.queue.cursor import QueueCursor
from trunkline.cursors.queue.errors import (
    ConsumerRefused,
    QueueError,
    QueueFull,
    QueueGone,
    ScheduleFull,
    SelectorRefused,
)
from trunkline.cursors.queue.limits import QueueLimits
from trunkline.cursors.queue.message import NO_HEADERS, Delivery, Lessor, Message, QueueStats
from trunkline.cursors.queue.owner import DELIVERY_LIMIT, EXPIRED, MAXLEN, REJECTED, QueueOwner
from trunkline.cursors.queue.restored import RestoredQueue, restore_queues
from trunkline.cursors.queue.runtime import QueueRuntime
from trunkline.cursors.queue.schedule import ScheduledMessage, Scheduling
from trunkline.cursors.queue.selector import Selector, SelectorIndex
from trunkline.cursors.queue.settings import MAX_PRIORITY, Overflow, QueueSettings

__all__ = [
    "DELIVERY_LIMIT",
    "EXPIRED",
    "MAXLEN",
    "MAX_PRIORITY",
    "NO_HEADERS",
    "REJECTED",
    "ConsumerRefused",
    "Delivery",
    "Lessor",
    "Message",
    "Overflow",
    "QueueConsumer",
    "QueueCursor",
    "QueueError",
    "QueueFull",
    "QueueGone",
    "QueueLimits",
    "QueueOwner",
    "QueueRuntime",
    "QueueSettings",
    "QueueStats",
    "RestoredQueue",
    "ScheduleFull",
    "ScheduledMessage",
    "Scheduling",
    "Selector",
    "SelectorIndex",
    "SelectorRefused",
    "restore_queues",
]
