"""Publications to topics: checked, matched with the subscriptions, and sent to each of their queues and endpoints.

All copies of a publication are added to one turn, and so are on disk together; it is answered when they are. What a queue does not
take (it is gone, or at its maximum) goes to the dead-letter queue of the subscription's redrive policy, if there is one; else it
is dropped and told of. The publisher hears of neither: as with Amazon, a publication is taken or refused as a whole.

FIFO topics: group and deduplication id go along with each copy, and FIFO queues deduplicate by themselves, durably; the topic's own
window, which also serves standard queues, is in memory.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence

from trunkline.broker.core import BrokerCore
from trunkline.broker.messaging.deduplication import Deduplication
from trunkline.broker.messaging.sending import Outcome
from trunkline.broker.state.notifications import NotificationTopic, Subscription
from trunkline.protocols.aws.access import Asked
from trunkline.protocols.aws.call import LATER, Answer, Call, Parameters, Result, optional_text, structures
from trunkline.protocols.aws.contents import Content
from trunkline.protocols.aws.errors import AwsError, invalid_parameter, sns_error
from trunkline.protocols.aws.http_delivery import HttpDelivery
from trunkline.protocols.aws.limits import AwsLimits
from trunkline.protocols.aws.message_attributes import legal, read_attributes
from trunkline.protocols.aws.message_ids import MessageIds, sequence_of
from trunkline.protocols.aws.messages import Batch, Messages, identifier
from trunkline.protocols.aws.names import FIFO, name_in_arn
from trunkline.protocols.aws.notification import Notification
from trunkline.protocols.aws.sqs_queue import SqsQueues
from trunkline.protocols.aws.subscribers import Subscribers
from trunkline.protocols.aws.subscriptions import delivery_headers
from trunkline.protocols.aws.topics import Topics

_MAX_BYTES = 262_144
_MAX_SUBJECT_CHARS = 100


class Publishing:
    def __init__(
        self,
        broker: BrokerCore,
        topics: Topics,
        subscribers: Subscribers,
        messages: Messages,
        queues: SqsQueues,
        ids: MessageIds,
        limits: AwsLimits,
    ) -> None:
        self._clock = broker.clock
        self._turn = broker.turn
        self._complaints = broker.complaints
        self._topics = topics
        self._subscribers = subscribers
        self._messages = messages
        self._queues = queues
        self._ids = ids
        self._limits = limits
        self._windows: dict[str, Deduplication] = {}
        self.delivery: HttpDelivery | None = None  # set by who makes both

    def publish(self, call: Call) -> Answer:
        for elsewhere in ("PhoneNumber", "TargetArn"):
            target = optional_text(call.parameters, elsewhere)
            if target and (elsewhere == "PhoneNumber" or name_in_arn(target, "sns") is None or ":endpoint/" in target):
                raise invalid_parameter(f"{elsewhere} Reason: this broker publishes to topics, not to phones and apps")
        parameter = "TopicArn" if call.parameters.get("TopicArn") else "TargetArn"
        topic = self._topics.find(call, Asked.WRITE, parameter)
        self._publish(call, topic, call.parameters, call.answer)
        return LATER

    async def publish_batch(self, call: Call) -> Result:
        topic = self._topics.find(call, Asked.WRITE)
        entries = structures(call.parameters, "PublishBatchRequestEntries")
        _check_entries(entries, self._limits)
        total = sum(len(str(entry.get("Message", "")).encode()) for entry in entries)
        if total > _MAX_BYTES:
            raise sns_error(
                "BatchRequestTooLong", "The length of all the messages put together is more than the limit."
            )
        batch = Batch(entries)
        for place, entry in enumerate(entries):
            try:
                self._publish(call, topic, entry, batch.settler(place))
            except AwsError as error:
                batch.settle(place, error)
        result = await batch.result()
        result.setdefault("Failed", [])
        return result

    def _publish(
        self, call: Call, topic: NotificationTopic, parameters: Parameters, answer: Callable[[Result | AwsError], None]
    ) -> None:
        notification = self._read(call, topic, parameters)
        told: Result = {"MessageId": notification.id}
        if topic.name.endswith(FIFO):
            first = self._seen_before(topic, notification)
            if first is not None:
                told["MessageId"] = first
            told["SequenceNumber"] = sequence_of(str(told["MessageId"]))
            if first is not None:
                self._turn.output(lambda: answer(told))
                return
        subscriptions = self._subscribers.of(topic.name, notification)
        waiting = len(subscriptions)
        if not waiting:
            self._turn.output(lambda: answer(told))
            return

        def done() -> None:
            nonlocal waiting
            waiting -= 1
            if not waiting:
                answer(told)

        for subscription in subscriptions:
            self._send(subscription, notification, done)

    def _seen_before(self, topic: NotificationTopic, notification: Notification) -> str | None:
        window = self._windows.setdefault(topic.name, Deduplication(self._clock))
        id = (notification.deduplication_id or "").encode()
        earlier = window.find(id, None)
        if earlier is not None:
            return earlier.headers.decode()
        window.note(id, None, notification.id.encode(), notification.sent_ms)
        return None

    # -- what is published -------------------------------------------------------------------------------------------

    def _read(self, call: Call, topic: NotificationTopic, parameters: Parameters) -> Notification:
        text = optional_text(parameters, "Message")
        if not text:
            raise invalid_parameter("Empty message")
        if not legal(text):
            raise invalid_parameter("Message Reason: it has characters that are not allowed")
        subject = optional_text(parameters, "Subject")
        if subject is not None and (not 1 <= len(subject) <= _MAX_SUBJECT_CHARS or not subject.isprintable()):
            raise invalid_parameter("Subject")
        try:
            attributes = read_attributes(
                parameters.get("MessageAttributes"), self._limits._replace(max_message_attributes=100)
            )
        except AwsError as error:
            raise sns_error("ParameterValueInvalid", error.message) from None
        texts = _texts(text) if optional_text(parameters, "MessageStructure") == "json" else {}
        text = texts.get("default", text)
        if len(text.encode()) + sum(each.size_bytes for each in attributes) > _MAX_BYTES:
            raise invalid_parameter("Message too long")
        now_ms = self._clock.wall_ms()
        id = self._ids.new(now_ms)
        group, deduplication_id = (
            identifier(parameters, "MessageGroupId"),
            identifier(parameters, "MessageDeduplicationId"),
        )
        fifo = topic.name.endswith(FIFO)
        if fifo and group is None:
            raise invalid_parameter("The MessageGroupId parameter is required for FIFO topics")
        if fifo and deduplication_id is None:
            if topic.attributes.get("ContentBasedDeduplication") != "true":
                raise invalid_parameter("The topic should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided explicitly")  # fmt: skip
            deduplication_id = hashlib.sha256(text.encode()).hexdigest()
        if not fifo and deduplication_id is not None:
            raise invalid_parameter("MessageDeduplicationId Reason: The request includes MessageDeduplicationId parameter that is not valid for this topic type")  # fmt: skip
        return Notification(
            id,
            topic.arn,
            text,
            texts,
            subject,
            attributes,
            group,
            deduplication_id,
            sequence_of(id) if fifo else None,
            now_ms,
            f"{call.scheme}://{call.host}",
        )

    # -- to each subscriber --------------------------------------------------------------------------------------------

    def _send(self, subscription: Subscription, notification: Notification, done: Callable[[], None]) -> None:
        raw = subscription.attributes.get("RawMessageDelivery") == "true"
        if subscription.protocol == "sqs":
            self._to_queue(subscription, notification, raw=raw, done=done)
            return
        if self.delivery is None:
            done()
            return
        body = notification.text_for(subscription.protocol) if raw else notification.wrapped(subscription)
        headers = delivery_headers("Notification", notification.id, notification.topic_arn, subscription.arn, raw=raw)
        self.delivery.add(subscription, headers, body, lambda how: self._told(subscription, body, how, done))

    def _to_queue(self, subscription: Subscription, notification: Notification, *, raw: bool, done: Callable[[], None]) -> None:  # fmt: skip
        text = notification.text_for("sqs") if raw else notification.wrapped(subscription)
        attributes = notification.attributes if raw else []
        queue = self._queues.get(name_in_arn(subscription.endpoint, "sqs") or "")
        if queue is None:
            self._told(subscription, text, Outcome.GONE, done)
            return
        content = Content(text.encode(), attributes, [])
        if len(attributes) > self._limits.max_message_attributes or content.size_bytes > queue.max_bytes:
            self._told(subscription, text, Outcome.FULL, done)
            return
        self._messages.send_content(
            queue,
            content,
            group=notification.group,
            deduplication_id=notification.deduplication_id if queue.fifo else None,
            told=lambda how: self._told(subscription, text, how, done),
        )

    def _told(self, subscription: Subscription, text: str, how: Outcome, done: Callable[[], None]) -> None:
        if how is not Outcome.STORED:
            self.give_up(subscription, text.encode())
        done()

    def give_up(self, subscription: Subscription, body: bytes) -> None:
        """A notification that its subscriber cannot be given."""
        policy = subscription.attributes.get("RedrivePolicy")
        arn = str(json.loads(policy).get("deadLetterTargetArn", "")) if policy else ""
        queue = self._queues.get(name_in_arn(arn, "sqs") or "")
        if queue is None:
            self._complaints.add(
                "SNS", subscription.endpoint, f"a notification for {subscription.endpoint} was dropped"
            )
            return
        content = Content(body, [], [])
        group = "dead-letters" if queue.fifo else None
        deduplication_id = hashlib.sha256(body).hexdigest() if queue.fifo else None
        self._messages.send_content(
            queue, content, group=group, deduplication_id=deduplication_id, told=lambda how: None
        )


def _texts(text: str) -> dict[str, str]:
    """The texts of a message for several protocols."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise invalid_parameter("Message Structure - JSON message body failed to parse")
    if not isinstance(document.get("default"), str):
        raise invalid_parameter("Message Structure - No default entry in JSON message body")
    return {str(name): value for name, value in document.items() if isinstance(value, str)}


def _check_entries(entries: Sequence[Parameters], limits: AwsLimits) -> None:
    if not entries:
        raise sns_error("EmptyBatchRequest", "The batch request doesn't contain any entries.")
    if len(entries) > limits.max_batch_entries:
        raise sns_error("TooManyEntriesInBatchRequest", "The batch request contains more entries than permissible.")
    ids = [entry.get("Id") for entry in entries]
    for id in ids:
        if not isinstance(id, str) or not 1 <= len(id) <= 80 or not id.replace("-", "").replace("_", "").isalnum():
            raise sns_error("InvalidBatchEntryId", "The Id of a batch entry in a batch request doesn't abide by the specification.")  # fmt: skip
    if len(set(ids)) != len(ids):
        raise sns_error("BatchEntryIdsNotDistinct", "Two or more batch entries in the request have the same Id.")
