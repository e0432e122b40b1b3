"""Notifications on their way to HTTP endpoints.

What has to go out is in a queue, `sns.http`: durable like everything that was answered with 200. A delivery is a lease of it: posted,
then settled; if the endpoint fails, the lease lasts as long as the delivery policy says, and then the message is delivered again. So
retries need nothing of their own, and go on after a restart. A message is given up after the last retry, or at once for a status of
4xx (429 is for later): to the dead-letter queue that the subscription's redrive policy names, else it is dropped and told of.

Bounded: `max_http_deliveries` at once, some of them to one endpoint; the rest waits in the queue.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from trunkline.broker.core import BrokerCore
from trunkline.broker.messaging.queue import Queue, QueueDeclaration
from trunkline.broker.messaging.sending import Outcome, Sending, Told
from trunkline.broker.state.notifications import Notifications, Subscription
from trunkline.cursors.queue import Delivery, Message
from trunkline.cursors.queue.consumers import CreditPool
from trunkline.log.errors import LogError
from trunkline.log.records import decode_headers, encode_headers
from trunkline.protocols.aws.limits import AwsLimits

QUEUE: Final = "sns.http"
_SUBSCRIPTION: Final = "sns.subscription"
_TIMEOUT_S: Final = 15.0
_LEASE_MS: Final = 60_000
_BUSY_MS: Final = 50
_PER_ENDPOINT: Final = 8
_HEADER: Final = "http."

Post = Callable[[str, Mapping[str, str], bytes, float], Awaitable[int]]
GiveUp = Callable[[Subscription, bytes], None]


class RetryPolicy:
    """When a delivery is tried again: Amazon's healthyRetryPolicy, with its defaults."""

    def __init__(self, document: Mapping[str, object] | None = None) -> None:
        given = document or {}
        self.retries = _number(given, "numRetries", 3, 100)
        self._at_once = _number(given, "numNoDelayRetries", 0, 100)
        self._at_least = _number(given, "numMinDelayRetries", 0, 100)
        self._at_most = _number(given, "numMaxDelayRetries", 0, 100)
        self._least_s = _number(given, "minDelayTarget", 20, 3600)
        self._most_s = max(_number(given, "maxDelayTarget", 20, 3600), self._least_s)
        self._function = str(given.get("backoffFunction", "linear"))

    def delay_s(self, retry: int) -> float:
        """How long to wait before this retry, counted from 1."""
        if retry <= self._at_once:
            return 0.0
        place = retry - self._at_once - self._at_least
        if place <= 0:
            return self._least_s
        between = self.retries - self._at_once - self._at_least - self._at_most
        if place >= between:
            return self._most_s
        share = place / between
        if self._function in ("exponential", "geometric"):
            share = (2**place - 1) / (2**between - 1)
        return self._least_s + (self._most_s - self._least_s) * share


def retry_policy_of(attributes: Mapping[str, str], topic_attributes: Mapping[str, str]) -> RetryPolicy:
    try:
        own = json.loads(attributes.get("DeliveryPolicy") or "{}")
        healthy = own.get("healthyRetryPolicy") if isinstance(own, dict) else None
        if healthy is None:
            common = json.loads(topic_attributes.get("DeliveryPolicy") or "{}")
            healthy = common.get("http", {}).get("defaultHealthyRetryPolicy") if isinstance(common, dict) else None
        return RetryPolicy(healthy if isinstance(healthy, dict) else None)
    except (ValueError, RecursionError, AttributeError):
        return RetryPolicy()


class HttpDelivery:
    """Is a `QueueConsumer` of the queue."""

    priority = 0
    pool: CreditPool | None = None

    def __init__(
        self,
        broker: BrokerCore,
        notifications: Notifications,
        sending: Sending,
        give_up: GiveUp,
        post: Post,
        limits: AwsLimits,
    ) -> None:
        self._broker = broker
        self._notifications = notifications
        self._sending = sending
        self._give_up = give_up
        self._post = post
        self._limits = limits
        self._queue: Queue | None = None
        self._making: asyncio.Lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._busy: Counter[str] = Counter()

    async def start(self) -> None:
        """Go on with what a broker before this one left."""
        if QUEUE in self._broker.messaging.topology.vhosts["/"].queues:
            await self.open()

    async def open(self) -> None:
        async with self._making:
            if self._queue is None or self._queue.cursor.gone:
                vhost = self._broker.messaging.topology.vhosts["/"]
                self._queue = await self._broker.messaging.queues.declare(vhost, QueueDeclaration(QUEUE))
                self._queue.cursor.add_consumer(self, lease_ms=_LEASE_MS)

    async def close(self) -> None:
        if self._queue is not None and not self._queue.cursor.gone:
            self._queue.cursor.remove_consumer(self)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def add(self, subscription: Subscription, headers: Mapping[str, str], body: str, told: Told) -> None:
        """Have this posted; `told` when it is stored."""
        queue = self._queue
        if queue is None or queue.cursor.gone or queue.cursor.ready >= self._limits.max_waiting_deliveries:
            told(Outcome.FULL)
            return
        kept: list[tuple[str, bytes | None]] = [(_SUBSCRIPTION, subscription.arn.encode())]
        kept += [(_HEADER + name, value.encode()) for name, value in headers.items()]
        message = Message(body.encode(), encode_headers(kept), None, self._broker.clock.wall_ms())
        self._sending.send(queue, message, told)

    # -- consumer ----------------------------------------------------------------------------------------------------

    def credit(self) -> int:
        return self._limits.max_http_deliveries - len(self._tasks)

    def deliver(self, deliveries: list[Delivery]) -> None:
        loop = asyncio.get_running_loop()
        for delivery in deliveries:
            task = loop.create_task(self._deliver(delivery), name="http delivery")
            self._tasks.add(task)
            task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._broker.complaints.add("SNS", "", "a delivery failed", error=task.exception())
        if self._queue is not None and not self._queue.cursor.gone:
            self._queue.cursor.wake()

    def cancelled(self, reason: str) -> None:
        self._queue = None

    async def _deliver(self, delivery: Delivery) -> None:
        found = {
            name: (value or b"").decode("utf-8", "replace") for name, value in decode_headers(delivery.message.headers)
        }
        subscription = self._notifications.subscriptions.get(found.get(_SUBSCRIPTION, ""))
        if subscription is None:
            delivery.queue.acknowledge([delivery.offset])  # it was ended meanwhile
            return
        endpoint = subscription.endpoint
        if self._busy[endpoint] >= _PER_ENDPOINT:
            await asyncio.sleep(_BUSY_MS / 1000)
            delivery.queue.release([delivery.offset], redelivered=False)
            return
        self._busy[endpoint] += 1
        try:
            headers = {name.removeprefix(_HEADER): value for name, value in found.items() if name.startswith(_HEADER)}
            status = await self._try(endpoint, headers, delivery.message.value)
        finally:
            self._busy[endpoint] -= 1
            if not self._busy[endpoint]:
                del self._busy[endpoint]
        if 200 <= status < 300:
            delivery.queue.acknowledge([delivery.offset])
            return
        topic = self._notifications.topics.get(subscription.topic)
        policy = retry_policy_of(subscription.attributes, {} if topic is None else topic.attributes)
        retry = delivery.delivery_count
        if retry > policy.retries or (400 <= status < 500 and status != 429):
            self._give_up(subscription, delivery.message.value)
            delivery.queue.acknowledge([delivery.offset])
        else:
            delivery.queue.extend(delivery.offset, int(policy.delay_s(retry) * 1000))

    async def _try(self, endpoint: str, headers: Mapping[str, str], body: bytes) -> int:
        """The status of the answer; 0 for none."""
        try:
            return await self._post(endpoint, headers, body, _TIMEOUT_S)
        except (OSError, LogError):
            return 0


def _number(given: Mapping[str, object], name: str, default: int, most: int) -> int:
    value = given.get(name)
    return min(max(value, 0), most) if isinstance(value, int) and not isinstance(value, bool) else default
