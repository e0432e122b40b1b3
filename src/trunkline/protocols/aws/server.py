"""The AWS server: SQS and SNS over HTTP, and what all their requests share."""

from __future__ import annotations

from collections.abc import Mapping

from trunkline.broker.core import BrokerCore
from trunkline.protocols.aws.access import Access
from trunkline.protocols.aws.call import Operation
from trunkline.protocols.aws.http_delivery import HttpDelivery, Post
from trunkline.protocols.aws.keys import Keys
from trunkline.protocols.aws.limits import AwsLimits
from trunkline.protocols.aws.message_ids import MessageIds
from trunkline.protocols.aws.messages import Messages
from trunkline.protocols.aws.move_tasks import MoveTasks
from trunkline.protocols.aws.operations import sns_operations, sqs_operations
from trunkline.protocols.aws.publishing import Publishing
from trunkline.protocols.aws.queue_operations import QueueOperations
from trunkline.protocols.aws.receipts import Receipts
from trunkline.protocols.aws.session import Requests
from trunkline.protocols.aws.sqs_queue import SqsQueues
from trunkline.protocols.aws.subscribers import Subscribers
from trunkline.protocols.aws.subscriptions import Subscriptions
from trunkline.protocols.aws.topics import Topics
from trunkline.protocols.http.server import HttpServer
from trunkline.protocols.listener.accepting import Secured


class AwsServer:
    def __init__(
        self,
        broker: BrokerCore,
        limits: AwsLimits | None = None,
        *,
        anonymous: bool = True,
        advertised_host: str | None = None,
        post: Post | None = None,
    ) -> None:
        """`post` is how notifications leave for HTTP endpoints; without it such subscriptions are refused."""
        limits = limits or AwsLimits()
        queues = SqsQueues(broker, limits)
        access = Access(broker, anonymous=anonymous)
        ids = MessageIds()
        messages = Messages(broker, queues, access, Receipts(broker.cluster_id), ids, limits)
        self._tasks = MoveTasks(broker, queues, access, messages.sending, limits)
        self._notifications = broker.messaging.notifications
        subscribers = Subscribers(self._notifications, broker.complaints)
        topics = Topics(broker, self._notifications, subscribers, access, limits)
        publishing = Publishing(broker, topics, subscribers, messages, queues, ids, limits)
        self._delivery = HttpDelivery(
            broker, self._notifications, messages.sending, publishing.give_up, post or _nowhere, limits
        )
        publishing.delivery = self._delivery
        subscriptions = Subscriptions(
            topics, self._notifications, subscribers, self._delivery, access, broker.clock, limits
        )
        operations: dict[str, dict[str, Operation]] = {
            "sqs": sqs_operations(QueueOperations(broker, queues, access, limits), messages, self._tasks),
            "sns": sns_operations(topics, subscriptions, publishing),
            "own": {"PutAccessKey": Keys(broker).put_access_key},
        }
        requests = Requests(operations, access, broker.complaints, limits, advertised_host=advertised_host)
        self._http = HttpServer(broker, requests)

    async def listen(self, host: str, port: int, listener: str, *, tls: Secured | None = None) -> tuple[str, int]:
        await self._delivery.start()
        return await self._http.listen(host, port, listener, tls=tls)

    async def close(self) -> None:
        await self._http.close()
        await self._tasks.close()
        await self._delivery.close()


async def _nowhere(url: str, headers: Mapping[str, str], body: bytes, timeout_s: float) -> int:
    raise OSError("this broker posts nothing")
