"""The tables of operations: what each service does, by name. What is in none is refused as `InvalidAction`."""

from __future__ import annotations

from trunkline.protocols.aws.call import Operation
from trunkline.protocols.aws.messages import Messages
from trunkline.protocols.aws.move_tasks import MoveTasks
from trunkline.protocols.aws.publishing import Publishing
from trunkline.protocols.aws.queue_operations import QueueOperations
from trunkline.protocols.aws.subscriptions import Subscriptions
from trunkline.protocols.aws.topics import Topics


def sqs_operations(queues: QueueOperations, messages: Messages, tasks: MoveTasks) -> dict[str, Operation]:
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


def sns_operations(topics: Topics, subscriptions: Subscriptions, publishing: Publishing) -> dict[str, Operation]:
    return {
        "AddPermission": topics.add_permission,
        "ConfirmSubscription": subscriptions.confirm_subscription,
        "CreateTopic": topics.create_topic,
        "DeleteTopic": topics.delete_topic,
        "GetSubscriptionAttributes": subscriptions.get_subscription_attributes,
        "GetTopicAttributes": topics.get_topic_attributes,
        "ListSubscriptions": subscriptions.list_subscriptions,
        "ListSubscriptionsByTopic": subscriptions.list_subscriptions_by_topic,
        "ListTagsForResource": topics.list_tags_for_resource,
        "ListTopics": topics.list_topics,
        "Publish": publishing.publish,
        "PublishBatch": publishing.publish_batch,
        "RemovePermission": topics.remove_permission,
        "SetSubscriptionAttributes": subscriptions.set_subscription_attributes,
        "SetTopicAttributes": topics.set_topic_attributes,
        "Subscribe": subscriptions.subscribe,
        "TagResource": topics.tag_resource,
        "Unsubscribe": subscriptions.unsubscribe,
        "UntagResource": topics.untag_resource,
    }
