"""Operations on queues: create, delete, list, attributes, tags, purge, permissions, dead-letter sources.

Two of Amazon's refusals do not exist here: a name can be used again at once after its queue was deleted, and a queue purged
again at once, since both are done when they are answered.
"""

from __future__ import annotations

import json
from typing import Final

from trunkline.broker.core import BrokerCore
from trunkline.broker.messaging.queue import QueueDeclaration
from trunkline.broker.messaging.refusals import Reason, Refused
from trunkline.cursors.queue import QueueSettings
from trunkline.protocols.aws import attributes as queue_attributes
from trunkline.protocols.aws.access import Access, Asked
from trunkline.protocols.aws.attributes import (
    ARGUMENT,
    NUMBERS,
    Kept,
    kept_of,
    read_redrive_allow_policy,
    read_redrive_policy,
    settings_of,
)
from trunkline.protocols.aws.call import Call, Result, optional_int, optional_text, text_map, texts
from trunkline.protocols.aws.errors import AwsError, invalid, invalid_value, missing, no_such_queue
from trunkline.protocols.aws.limits import AwsLimits
from trunkline.protocols.aws.names import FIFO, check_new_queue, name_in_url, queue_arn, queue_url
from trunkline.protocols.aws.paging import page
from trunkline.protocols.aws.sqs_queue import SqsQueue, SqsQueues
from trunkline.protocols.aws.tags import check_tags

_MAX_STATEMENTS: Final = 20


class QueueOperations:
    def __init__(self, broker: BrokerCore, queues: SqsQueues, access: Access, limits: AwsLimits) -> None:
        self._registry = broker.messaging.queues
        self._clock = broker.clock
        self._broker = broker
        self._queues = queues
        self._access = access
        self._limits = limits

    async def find(self, call: Call, asked: Asked) -> SqsQueue:
        """The queue that the call names."""
        name = name_in_url(call.text("QueueUrl"))
        self._access.check(call, asked, name)
        return self._queues.get(name) or await self._queues.open(name)

    # -- come and go -------------------------------------------------------------------------------------------------

    async def create_queue(self, call: Call) -> Result:
        name = call.text("QueueName")
        self._access.check(call, Asked.CREATE, name)
        given = text_map(call.parameters, "Attributes", "attributes")
        tags = text_map(call.parameters, "tags", "Tags", "tag")
        check_tags(tags, self._limits)
        fifo = given.get("FifoQueue", "false").lower() == "true"
        checked = queue_attributes.check(given, self._limits, fifo=fifo or name.endswith(FIFO))
        found = self._queues.get(name)
        if found is None:
            check_new_queue(name)
            if fifo != name.endswith(FIFO):
                raise invalid("The name of a FIFO queue can only include alphanumeric characters, hyphens, or underscores, must end with .fifo suffix and be 1 to 80 in length.")  # fmt: skip
            if checked.get("FifoQueue") == "false":
                raise AwsError("InvalidAttributeName", "Unknown Attribute FifoQueue.")
            _check_throughput(checked)
            self._check_redrive(call, name, checked)
            await self._declare(name, checked, tags, fifo=fifo)
            return {"QueueUrl": queue_url(call, name)}
        current = queue_attributes.all_of(found.queue, queue_arn(call, name), self._limits)
        for attribute, value in checked.items():
            if _meant(attribute, current.get(attribute, "")) != _meant(attribute, value):
                raise AwsError("QueueNameExists", f"A queue already exists with the same name and a different value for attribute {attribute}")  # fmt: skip
        return {"QueueUrl": queue_url(call, name)}

    async def _declare(self, name: str, checked: dict[str, str], tags: dict[str, str], *, fifo: bool) -> None:
        now_s = self._clock.wall_ms() // 1000
        settings = QueueSettings(order_by_key=fifo, deduplicate=fifo)
        if self._broker.topic(name) is None:
            default = str(NUMBERS["MessageRetentionPeriod"].default)
            settings = settings_of(settings, {"MessageRetentionPeriod": default, **checked})
        else:  # of another protocol: its records stay where they are, for as long as its own settings say
            settings = settings_of(QueueSettings(order_by_key=fifo, deduplicate=fifo, retain=True), checked)
        arguments = {ARGUMENT: Kept(checked, tags, now_s, now_s).argument()}
        try:
            await self._registry.declare(self._queues.vhost, QueueDeclaration(name, settings, arguments=arguments))
        except Refused as error:
            raise _refused(error) from None

    async def delete_queue(self, call: Call) -> Result:
        queue = await self.find(call, Asked.DELETE)
        try:
            await self._registry.delete(queue.queue)
        except Refused as error:
            raise _refused(error) from None
        return {}

    async def get_queue_url(self, call: Call) -> Result:
        name = call.text("QueueName")
        self._access.check(call, Asked.LOOK, name)
        if self._queues.get(name) is None:
            await self._queues.open(name)
        return {"QueueUrl": queue_url(call, name)}

    async def purge_queue(self, call: Call) -> Result:
        queue = await self.find(call, Asked.READ)
        await queue.cursor.purge()
        for waiting in queue.cursor.scheduled():
            queue.cursor.cancel(waiting.id)
        await self._broker.messaging.settlements_stored()
        return {}

    # -- lists -------------------------------------------------------------------------------------------------------

    def list_queues(self, call: Call) -> Result:
        prefix = optional_text(call.parameters, "QueueNamePrefix") or ""
        names = [name for name in self._queues.names() if name.startswith(prefix)]
        return self._page(call, names, "QueueUrls")

    async def list_dead_letter_source_queues(self, call: Call) -> Result:
        target = await self.find(call, Asked.LOOK)
        names = [name for name in self._queues.names() if self._target_of(name) == target.name]
        return self._page(call, names, "queueUrls")

    def _target_of(self, name: str) -> str | None:
        queue = self._queues.vhost.queues[name]
        letters = queue.settings.dead_letter
        return letters[1] if letters is not None and letters[0] == "" else None

    def _page(self, call: Call, names: list[str], member: str) -> Result:
        most = optional_int(call.parameters, "MaxResults", 1, self._limits.max_list_results)
        size = self._limits.max_list_results if most is None else most
        found, token = page(names, optional_text(call.parameters, "NextToken"), size)
        result: Result = {member: [queue_url(call, name) for name in found]}
        if token is not None and most is not None:
            result["NextToken"] = token
        return result

    # -- attributes --------------------------------------------------------------------------------------------------

    async def get_queue_attributes(self, call: Call) -> Result:
        queue = await self.find(call, Asked.LOOK)
        names = texts(call.parameters, "AttributeNames")
        arn = queue_arn(call, queue.name)
        found = queue_attributes.shown(queue.queue, arn, names, self._limits)
        return {"Attributes": found} if found else {}

    async def set_queue_attributes(self, call: Call) -> Result:
        queue = await self.find(call, Asked.ALTER)
        given = text_map(call.parameters, "Attributes")
        if not given:
            raise missing("Attribute.Name")
        if given.get("FifoQueue", "true" if queue.fifo else "false").lower() != ("true" if queue.fifo else "false"):
            raise AwsError("InvalidAttributeName", "Unknown Attribute FifoQueue.")
        checked = queue_attributes.check(given, self._limits, fifo=queue.fifo)
        self._check_redrive(call, queue.name, checked)
        kept = kept_of(queue.queue.declaration)
        changed = {**kept.attributes, **checked}
        _check_throughput(changed)
        await self._keep(queue, kept._replace(attributes=changed))
        return {}

    async def _keep(self, queue: SqsQueue, kept: Kept) -> None:
        kept = kept._replace(modified_s=self._clock.wall_ms() // 1000)
        await self._registry.change(queue.queue, queue_attributes.declared(queue.queue.declaration, kept))

    def _check_redrive(self, call: Call, name: str, checked: dict[str, str]) -> None:
        policy = read_redrive_policy(checked.get("RedrivePolicy", ""))
        if policy is None:
            return
        text = checked["RedrivePolicy"]
        target = self._queues.get(policy.target)
        if target is None:
            raise invalid_value(text[:500], "RedrivePolicy", "Dead letter target does not exist.")
        self._access.check(call, Asked.WRITE, policy.target)
        if target.fifo != name.endswith(FIFO):
            raise invalid_value(text[:500], "RedrivePolicy", "Dead-letter queue must be same type of queue as the source.")  # fmt: skip
        allowed = read_redrive_allow_policy(kept_of(target.queue.declaration).attributes.get("RedriveAllowPolicy", ""))
        if not allowed.allows(name):
            raise invalid_value(text[:500], "RedrivePolicy", "The dead-letter queue does not allow this source queue.")

    # -- tags --------------------------------------------------------------------------------------------------------

    async def tag_queue(self, call: Call) -> Result:
        queue = await self.find(call, Asked.ALTER)
        kept = kept_of(queue.queue.declaration)
        tags = {**kept.tags, **text_map(call.parameters, "Tags")}
        check_tags(tags, self._limits)
        await self._keep(queue, kept._replace(tags=tags))
        return {}

    async def untag_queue(self, call: Call) -> Result:
        queue = await self.find(call, Asked.ALTER)
        kept = kept_of(queue.queue.declaration)
        gone = set(texts(call.parameters, "TagKeys"))
        await self._keep(queue, kept._replace(tags={name: tag for name, tag in kept.tags.items() if name not in gone}))
        return {}

    async def list_queue_tags(self, call: Call) -> Result:
        queue = await self.find(call, Asked.LOOK)
        tags = dict(kept_of(queue.queue.declaration).tags)
        return {"Tags": tags} if tags else {}

    # -- permissions ---------------------------------------------------------------------------------------------------

    async def add_permission(self, call: Call) -> Result:
        """Kept and shown as the queue's policy. Who may do what is decided by the broker's own permissions."""
        queue = await self.find(call, Asked.ALTER)
        label = call.text("Label")
        accounts, actions = texts(call.parameters, "AWSAccountIds"), texts(call.parameters, "Actions")
        if not accounts:
            raise missing("AWSAccountId")
        if not actions:
            raise missing("ActionName")
        policy, statements = _policy_of(queue)
        if any(isinstance(each, dict) and each.get("Sid") == label for each in statements):
            raise invalid_value(label, "Label", "Already exists.")
        if len(statements) >= _MAX_STATEMENTS:
            raise AwsError("OverLimit", f"{_MAX_STATEMENTS} statements are the most that a policy has.")
        statement = {
            "Sid": label,
            "Effect": "Allow",
            "Principal": {"AWS": [f"arn:aws:iam::{account}:root" for account in accounts]},
            "Action": [f"SQS:{action}" for action in actions],
            "Resource": queue_arn(call, queue.name),
        }
        await self._keep_policy(queue, {**policy, "Statement": [*statements, statement]})
        return {}

    async def remove_permission(self, call: Call) -> Result:
        queue = await self.find(call, Asked.ALTER)
        label = call.text("Label")
        policy, statements = _policy_of(queue)
        left = [each for each in statements if not (isinstance(each, dict) and each.get("Sid") == label)]
        if len(left) == len(statements):
            raise invalid_value(label, "Label", "can't find label.")
        await self._keep_policy(queue, {**policy, "Statement": left} if left else None)
        return {}

    async def _keep_policy(self, queue: SqsQueue, policy: dict[str, object] | None) -> None:
        kept = kept_of(queue.queue.declaration)
        text = "" if policy is None else json.dumps(policy, separators=(",", ":"))
        await self._keep(queue, kept._replace(attributes={**kept.attributes, "Policy": text}))


def _policy_of(queue: SqsQueue) -> tuple[dict[str, object], list[object]]:
    text = kept_of(queue.queue.declaration).attributes.get("Policy", "")
    policy: dict[str, object] = json.loads(text) if text else {"Version": "2012-10-17", "Id": f"{queue.name}/policy"}
    statements = policy.get("Statement", [])
    return policy, statements if isinstance(statements, list) else [statements]


def _check_throughput(attributes: dict[str, str]) -> None:
    by_group = attributes.get("FifoThroughputLimit") == "perMessageGroupId"
    if by_group and attributes.get("DeduplicationScope") != "messageGroup":
        raise invalid("FifoThroughputLimit can be perMessageGroupId only where DeduplicationScope is messageGroup.")


def _meant(attribute: str, value: str) -> object:
    """Two documents are the same if they say the same."""
    if value and attribute in ("RedrivePolicy", "RedriveAllowPolicy", "Policy"):
        document = json.loads(value)
        if isinstance(document, dict) and "maxReceiveCount" in document:
            document["maxReceiveCount"] = int(document["maxReceiveCount"])
        return document
    return value


def _refused(error: Refused) -> AwsError:
    if error.reason is Reason.NOT_FOUND:
        return no_such_queue()
    if error.reason is Reason.RESOURCE_ERROR:
        return AwsError("OverLimit", error.text)
    if error.reason is Reason.ACCESS_REFUSED:
        return AwsError("AccessDenied", error.text)
    return AwsError("UnsupportedOperation", error.text)
