"""The AWS server: SQS and SNS over HTTP, and what all their requests share."""

from __future__ import annotations

from trunkline.broker.core import BrokerCore
from trunkline.protocols.aws.access import Access
from trunkline.protocols.aws.call import Operation
from trunkline.protocols.aws.limits import AwsLimits
from trunkline.protocols.aws.message_ids import MessageIds
from trunkline.protocols.aws.messages import Messages
from trunkline.protocols.aws.move_tasks import MoveTasks
from trunkline.protocols.aws.queue_operations import QueueOperations
from trunkline.protocols.aws.receipts import Receipts
from trunkline.protocols.aws.session import Requests
from trunkline.protocols.aws.sqs_queue import SqsQueues
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
    ) -> None:
        limits = limits or AwsLimits()
        queues = SqsQueues(broker, limits)
        access = Access(broker, anonymous=anonymous)
        messages = Messages(broker, queues, access, Receipts(broker.cluster_id), MessageIds(), limits)
        self._tasks = MoveTasks(broker, queues, access, messages.sending, limits)
        sqs = _sqs(QueueOperations(broker, queues, access, limits), messages, self._tasks)
        requests = Requests({"sqs": sqs, "sns": {}}, access, broker.complaints, limits, advertised_host=advertised_host)
        self._http = HttpServer(broker, requests)

    async def listen(self, host: str, port: int, listener: str, *, tls: Secured | None = None) -> tuple[str, int]:
        return await self._http.listen(host, port, listener, tls=tls)

    async def close(self) -> None:
        await self._http.close()
        await self._tasks.close()


def _sqs(queues: QueueOperations, messages: Messages, tasks: MoveTasks) -> dict[str, Operation]:
    return {
        "AddPermission": queues.add_permission,
        "CancelMessageMoveTask": tasks.cancel_message_move_task,
        "ChangeMessageVisibility": messages.change_message_visibility,
        "ChangeMessageVisibilityBatch": messages.change_message_visibility_batch,
        "CreateQueue": queues.create_queue,
        "DeleteMessage": messages.delete_message,
        "DeleteMessageBatch": messages.delete_message_batch,
        "DeleteQueue": queues.delete_queue,
        "GetQueueAttributes": queues.get_queue_attributes,
        "GetQueueUrl": queues.get_queue_url,
        "ListDeadLetterSourceQueues": queues.list_dead_letter_source_queues,
        "ListMessageMoveTasks": tasks.list_message_move_tasks,
        "ListQueueTags": queues.list_queue_tags,
        "ListQueues": queues.list_queues,
        "PurgeQueue": queues.purge_queue,
        "ReceiveMessage": messages.receive_message,
        "RemovePermission": queues.remove_permission,
        "SendMessage": messages.send_message,
        "SendMessageBatch": messages.send_message_batch,
        "SetQueueAttributes": queues.set_queue_attributes,
        "StartMessageMoveTask": tasks.start_message_move_task,
        "TagQueue": queues.tag_queue,
        "UntagQueue": queues.untag_queue,
    }
