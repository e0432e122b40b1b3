"""Who gets a notification: the subscriptions of a topic whose filter policy it matches, found without asking each.

A policy over attributes that names strings is in the content index of `routing`, by those strings; what the index finds is then
checked against the whole policy. Where the index cannot say it (policies over bodies, ranges, negations; attributes that are
arrays) each such policy is asked. A policy that fails is a fault of ours: it is told of, and its subscription gets nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from trunkline.broker.complaints import Complaints
from trunkline.broker.state.notifications import Notifications, Subscription
from trunkline.protocols.aws.filter_policy import FilterPolicy, InvalidPolicy
from trunkline.protocols.aws.notification import Notification
from trunkline.routing.content_index import ContentIndex
from trunkline.routing.errors import RoutingError
from trunkline.routing.fields import Fields
from trunkline.routing.filter import Filter


class _TopicIndex:
    """The subscriptions of one topic."""

    def __init__(self, subscriptions: Iterable[Subscription]) -> None:
        self.all: list[str] = []  # without a policy
        self.asked: list[str] = []  # each with a policy that the index cannot say
        self.policies: dict[str, FilterPolicy] = {}
        self.index: ContentIndex[str] = ContentIndex()
        self.indexed: list[str] = []
        for subscription in subscriptions:
            if not subscription.token:
                self._add(subscription)

    def _add(self, subscription: Subscription) -> None:
        arn = subscription.arn
        policy = policy_of(subscription)
        if policy is None:
            self.all.append(arn)
            return
        self.policies[arn] = policy
        try:
            found = _as_filter(policy)
        except RoutingError:
            found = None
        if found is None:
            self.asked.append(arn)
        else:
            self.index.add(found, arn)
            self.indexed.append(arn)


def policy_of(subscription: Subscription) -> FilterPolicy | None:
    text = subscription.attributes.get("FilterPolicy", "")
    if not text or text == "{}":
        return None
    try:
        return FilterPolicy(text, in_body=subscription.attributes.get("FilterPolicyScope") == "MessageBody")
    except InvalidPolicy:  # it was checked when it was set: the record was changed by somebody
        return FilterPolicy('{"\\u0000": ["\\u0000"]}', in_body=False)


def _as_filter(policy: FilterPolicy) -> Filter | None:
    if not policy.hint:
        return None
    parts = []
    for name, values in policy.hint.items():
        quoted = name.replace('"', '""')
        choices = ", ".join("'" + value.replace("'", "''") + "'" for value in values)
        parts.append(f'"{quoted}" in ({choices})')
    return Filter(" and ".join(parts))


class Subscribers:
    def __init__(self, notifications: Notifications, complaints: Complaints) -> None:
        self._notifications = notifications
        self._complaints = complaints
        self._topics: dict[str, _TopicIndex] = {}

    def forget(self, topic: str) -> None:
        """The topic's subscriptions have changed."""
        self._topics.pop(topic, None)

    def of(self, topic: str, notification: Notification) -> list[Subscription]:
        known = self._topics.get(topic)
        if known is None:
            known = self._topics[topic] = _TopicIndex(self._notifications.of_topic(topic))
        found = list(known.all)
        if known.indexed:
            fields = notification.attribute_fields()
            candidates: Iterable[str] = known.indexed
            if not any(isinstance(value, list) for value in fields.values()):
                candidates = known.index.match(Fields(fields))
            found += [arn for arn in candidates if self._matches(known.policies[arn], notification)]
        found += [arn for arn in known.asked if self._matches(known.policies[arn], notification)]
        subscriptions = self._notifications.subscriptions
        return [subscriptions[arn] for arn in found if arn in subscriptions]

    def _matches(self, policy: FilterPolicy, notification: Notification) -> bool:
        try:
            return policy.matches(notification.body_fields() if policy.in_body else notification.attribute_fields())
        except Exception as error:
            self._complaints.add("filter policy", "", f"a filter policy failed: {policy.text[:200]}", error=error)
            return False
