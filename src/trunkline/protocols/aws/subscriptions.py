"""Operations on subscriptions: subscribe, confirm, unsubscribe, list, attributes.

A queue is subscribed at once; an HTTP endpoint when it confirms, with the token that it is sent. E-mail, text messages, mobile push,
Lambda and Firehose are refused: this broker cannot deliver to them, and says so rather than taking the subscription.
"""

from __future__ import annotations

import json
import secrets
import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import Final
from urllib.parse import urlsplit

from trunkline.broker.messaging.sending import Outcome
from trunkline.broker.state.notifications import Notifications, NotificationTopic, Subscription
from trunkline.clock import Clock
from trunkline.protocols.aws.access import Access, Asked
from trunkline.protocols.aws.call import Call, Result, optional_text, text_map
from trunkline.protocols.aws.errors import invalid_parameter, sns_error
from trunkline.protocols.aws.filter_policy import FilterPolicy, InvalidPolicy
from trunkline.protocols.aws.http_delivery import HttpDelivery
from trunkline.protocols.aws.limits import AwsLimits
from trunkline.protocols.aws.names import ACCOUNT, FIFO, name_in_arn
from trunkline.protocols.aws.notification import confirmation
from trunkline.protocols.aws.paging import page
from trunkline.protocols.aws.subscribers import Subscribers
from trunkline.protocols.aws.topics import Topics

_WEB: Final = ("http", "https")
_ELSEWHERE: Final = frozenset({"email", "email-json", "sms", "application", "lambda", "firehose"})
_SETTABLE: Final = frozenset(
    {"RawMessageDelivery", "FilterPolicy", "FilterPolicyScope", "RedrivePolicy", "DeliveryPolicy", "SubscriptionRoleArn", "ReplayPolicy"}
)  # fmt: skip
_PAGE: Final = 100


class Subscriptions:
    def __init__(
        self,
        topics: Topics,
        notifications: Notifications,
        subscribers: Subscribers,
        delivery: HttpDelivery,
        access: Access,
        clock: Clock,
        limits: AwsLimits,
    ) -> None:
        self._topics = topics
        self._notifications = notifications
        self._subscribers = subscribers
        self._delivery = delivery
        self._access = access
        self._clock = clock
        self._limits = limits

    async def subscribe(self, call: Call) -> Result:
        topic = self._topics.find(call, Asked.READ)
        protocol = optional_text(call.parameters, "Protocol") or ""
        endpoint = optional_text(call.parameters, "Endpoint") or ""
        self._check_endpoint(call, topic, protocol, endpoint)
        attributes = check_attributes(text_map(call.parameters, "Attributes"), self._limits)
        found = next((each for each in self._notifications.of_topic(topic.name) if (each.protocol, each.endpoint) == (protocol, endpoint)), None)  # fmt: skip
        if found is not None:
            if any(found.attributes.get(name) != value for name, value in attributes.items()):
                raise invalid_parameter("Attributes Reason: Subscription already exists with different attributes")
            if found.token:
                await self._ask(call, topic, found)
            return {"SubscriptionArn": self._shown_arn(call, found)}
        if len(self._notifications.subscriptions) >= self._limits.max_subscriptions:
            raise sns_error("SubscriptionLimitExceeded", f"There are {self._limits.max_subscriptions} subscriptions already.", status=403)  # fmt: skip
        token = secrets.token_hex(64) if protocol in _WEB else ""
        owner = self._access.sender(call)
        made = Subscription(f"{topic.arn}:{uuid.uuid4()}", topic.name, protocol, endpoint, attributes, token, owner)
        await self._notifications.put_subscription(made)
        self._subscribers.forget(topic.name)
        if token:
            await self._ask(call, topic, made)
        return {"SubscriptionArn": self._shown_arn(call, made)}

    def _check_endpoint(self, call: Call, topic: NotificationTopic, protocol: str, endpoint: str) -> None:
        if protocol in _ELSEWHERE:
            raise invalid_parameter(
                f"Protocol Reason: this broker delivers to sqs, http and https, and not to {protocol}"
            )
        if protocol in _WEB:
            parts = urlsplit(endpoint)
            if parts.scheme != protocol or not parts.hostname or any(each in endpoint for each in "\r\n \t"):
                raise invalid_parameter("Endpoint must match the specified protocol")
            if topic.name.endswith(FIFO):
                raise invalid_parameter("Endpoint Reason: FIFO topics deliver to SQS queues only")
        elif protocol == "sqs":
            name = name_in_arn(endpoint, "sqs")
            if name is None:
                raise invalid_parameter("SQS endpoint ARN")
            if name.endswith(FIFO) and not topic.name.endswith(FIFO):
                raise invalid_parameter("Endpoint Reason: FIFO SQS Queues can not be subscribed to standard SNS topics")
            self._access.check(call, Asked.WRITE, name)
        else:
            raise invalid_parameter(f"Protocol Reason: {protocol[:40]!r} is none of sqs, http and https")

    def _shown_arn(self, call: Call, subscription: Subscription) -> str:
        wanted = str(call.parameters.get("ReturnSubscriptionArn", "")).lower() == "true"
        return subscription.arn if wanted or not subscription.token else "pending confirmation"

    async def _ask(self, call: Call, topic: NotificationTopic, subscription: Subscription) -> None:
        """Send an endpoint the token that confirms it."""
        await self._delivery.open()
        id = str(uuid.uuid4())
        base_url = f"{call.scheme}://{call.host}"
        body = confirmation(subscription, id, base_url, self._clock.wall_ms(), topic.arn)
        headers = delivery_headers("SubscriptionConfirmation", id, topic.arn)
        self._delivery.add(subscription, headers, body, _nothing)

    async def confirm_subscription(self, call: Call) -> Result:
        topic = self._topics.find(call, Asked.READ)
        token = call.text("Token")
        for subscription in self._notifications.of_topic(topic.name):
            if subscription.token and secrets.compare_digest(subscription.token.encode(), token.encode()):
                await self._notifications.put_subscription(replace(subscription, token=""))
                self._subscribers.forget(topic.name)
                return {"SubscriptionArn": subscription.arn}
        raise invalid_parameter("Token")

    async def unsubscribe(self, call: Call) -> Result:
        arn = call.text("SubscriptionArn")
        found = self._notifications.subscriptions.get(arn)
        if found is None:
            if len(arn.split(":")) < 6:
                raise invalid_parameter("SubscriptionArn Reason: An ARN must have at least 6 elements")
            return {}
        self._access.check(call, Asked.READ, found.topic, kind="exchange")
        self._subscribers.forget(found.topic)
        recorded = self._notifications.remove_subscription(arn)
        if recorded is not None:
            await recorded
        return {}

    # -- lists and attributes ------------------------------------------------------------------------------------------

    def list_subscriptions(self, call: Call) -> Result:
        return self._listed(call, self._notifications.subscriptions)

    def list_subscriptions_by_topic(self, call: Call) -> Result:
        topic = self._topics.find(call, Asked.LOOK)
        return self._listed(call, self._notifications.by_topic.get(topic.name, {}))

    def _listed(self, call: Call, known: Mapping[str, Subscription]) -> Result:
        arns, token = page(sorted(known), optional_text(call.parameters, "NextToken"), _PAGE)
        listed = [
            {
                "SubscriptionArn": "PendingConfirmation" if known[arn].token else arn,
                "Owner": ACCOUNT,
                "Protocol": known[arn].protocol,
                "Endpoint": known[arn].endpoint,
                "TopicArn": self._notifications.topics[known[arn].topic].arn,
            }
            for arn in arns
        ]
        result: Result = {"Subscriptions": listed}
        if token:
            result["NextToken"] = token
        return result

    def _find(self, call: Call, asked: Asked) -> Subscription:
        found = self._notifications.subscriptions.get(call.text("SubscriptionArn"))
        if found is None:
            raise sns_error("NotFound", "Subscription does not exist", status=404)
        self._access.check(call, asked, found.topic, kind="exchange")
        return found

    def get_subscription_attributes(self, call: Call) -> Result:
        found = self._find(call, Asked.LOOK)
        shown = {
            "SubscriptionArn": found.arn,
            "TopicArn": self._notifications.topics[found.topic].arn,
            "Protocol": found.protocol,
            "Endpoint": found.endpoint,
            "Owner": ACCOUNT,
            "PendingConfirmation": "true" if found.token else "false",
            "ConfirmationWasAuthenticated": "true",
            "RawMessageDelivery": "false",
            "SubscriptionPrincipal": f"arn:aws:iam::{ACCOUNT}:user/{found.owner or 'anonymous'}",
            **found.attributes,
        }
        if found.attributes.get("FilterPolicy"):
            shown.setdefault("FilterPolicyScope", "MessageAttributes")
        return {"Attributes": {name: value for name, value in shown.items() if value}}

    async def set_subscription_attributes(self, call: Call) -> Result:
        found = self._find(call, Asked.READ)
        name, value = call.text("AttributeName"), optional_text(call.parameters, "AttributeValue") or ""
        changed = check_attributes({**found.attributes, name: value}, self._limits)
        await self._notifications.put_subscription(replace(found, attributes=changed))
        self._subscribers.forget(found.topic)
        return {}


def check_attributes(given: Mapping[str, str], limits: AwsLimits) -> dict[str, str]:
    """The attributes of a subscription, if they can be."""
    for name, value in given.items():
        if name not in _SETTABLE:
            raise invalid_parameter(f"AttributeName: {name[:80]}")
        if name == "RawMessageDelivery" and value.lower() not in ("true", "false"):
            raise invalid_parameter("Attributes Reason: RawMessageDelivery: must be true or false")
        if name == "FilterPolicyScope" and value not in ("MessageAttributes", "MessageBody"):
            raise invalid_parameter("FilterPolicyScope Reason: must be MessageAttributes or MessageBody")
        if name in ("RedrivePolicy", "DeliveryPolicy") and value:
            _check_document(name, value)
    text = given.get("FilterPolicy", "")
    if text:
        if len(text) > limits.max_filter_bytes:
            raise invalid_parameter("FilterPolicy: Filter policy is too complex")
        try:
            FilterPolicy(text, in_body=given.get("FilterPolicyScope") == "MessageBody")
        except InvalidPolicy as error:
            raise invalid_parameter(f"FilterPolicy: {error}") from None
    return {name: value.lower() if name == "RawMessageDelivery" else value for name, value in given.items()}


def _check_document(name: str, text: str) -> None:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise invalid_parameter(f"{name}: failed to parse JSON")
    if name == "RedrivePolicy" and name_in_arn(str(document.get("deadLetterTargetArn", "")), "sqs") is None:
        raise invalid_parameter("RedrivePolicy: deadLetterTargetArn is an invalid arn")


def delivery_headers(kind: str, id: str, topic: str, subscription: str = "", *, raw: bool = False) -> dict[str, str]:
    headers = {
        "content-type": "text/plain; charset=UTF-8",
        "user-agent": "Amazon Simple Notification Service Agent",
        "x-amz-sns-message-type": kind,
        "x-amz-sns-message-id": id,
        "x-amz-sns-topic-arn": topic,
    }
    if subscription:
        headers["x-amz-sns-subscription-arn"] = subscription
    if raw:
        headers["x-amz-sns-rawdelivery"] = "true"
    return headers


def _nothing(how: Outcome) -> None:
    """Nobody waits for it: the endpoint is asked again by subscribing again."""
