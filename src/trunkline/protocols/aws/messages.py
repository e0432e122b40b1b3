"""Operations on messages: send, receive, delete, change of visibility; each single and in batches.

What a client is told is in the log: a send is answered when it is on disk, a delete when its settlement is, both together with
everything else of their turn. A receive is answered at once if messages are there, in the output of the turn, when the journal
has noted them as delivered; else by whoever deals to it while it waits (`receiving`).

Where Amazon leaves it open, or differs between its pages:
- A handle whose time is over still deletes the message if nobody has received it since. If somebody has, a standard queue
  answers 200 and keeps the message; a FIFO queue refuses the handle.
- A second delete is answered 200.
- After a restart of the broker everything is visible again; handles and receive counts go on.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from trunkline.broker.core import BrokerCore
from trunkline.broker.messaging.deduplication import Deduplication, Sent
from trunkline.broker.messaging.envelope import MESSAGE_ID_HEADER
from trunkline.broker.messaging.sending import Outcome, Placed, Sending, Told
from trunkline.cursors.queue import ConsumerRefused, Delivery, QueueCursor, QueueGone
from trunkline.log.records import decode_headers
from trunkline.log.ticket import Appended
from trunkline.protocols.aws.access import Access, Asked
from trunkline.protocols.aws.call import (
    LATER,
    Answer,
    Call,
    Later,
    Parameters,
    Result,
    optional_int,
    optional_text,
    structures,
    texts,
)
from trunkline.protocols.aws.contents import Content, Wanted, read_content, read_wanted, shown
from trunkline.protocols.aws.errors import AwsError, invalid, invalid_value, missing, no_such_queue
from trunkline.protocols.aws.limits import AwsLimits
from trunkline.protocols.aws.message_attributes import legal
from trunkline.protocols.aws.message_ids import MessageIds, sequence_of
from trunkline.protocols.aws.names import name_in_url
from trunkline.protocols.aws.receipts import Receipt, Receipts
from trunkline.protocols.aws.receiving import Receiver
from trunkline.protocols.aws.sqs_queue import Attempt, SqsQueue, SqsQueues

_ENTRY_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,80}")
_GROUP: Final = re.compile(r"[A-Za-z0-9!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]{1,128}")
_ATTEMPT_MS: Final = 300_000
Answered = Callable[["Result | AwsError"], None]
_identity = id


class Messages:
    def __init__(
        self,
        broker: BrokerCore,
        queues: SqsQueues,
        access: Access,
        receipts: Receipts,
        ids: MessageIds,
        limits: AwsLimits,
    ) -> None:
        self._broker = broker
        self._queues = queues
        self._access = access
        self._receipts = receipts
        self._ids = ids
        self._limits = limits
        self._clock = broker.clock
        self._turn = broker.turn
        self._messaging = broker.messaging
        self.sending = Sending(broker.messaging.publishing)
        self._storing: dict[int, list[Told]] = {}  # duplicates of what is being stored wait for it
        self._deleting: dict[QueueCursor, list[Receipt]] = {}
        self._deleted: list[Callable[[AwsError | None], None]] = []

    def _with_queue(self, call: Call, asked: Asked, work: Callable[[Call, SqsQueue], Answer]) -> Answer:
        """Do something with the queue that the call names; a topic that is no queue yet is opened first."""
        name = name_in_url(call.text("QueueUrl"))
        self._access.check(call, asked, name)
        found = self._queues.get(name)
        if found is not None:
            return work(call, found)
        return self._opened(call, name, work)

    async def _opened(self, call: Call, name: str, work: Callable[[Call, SqsQueue], Answer]) -> Result | Later:
        result = work(call, await self._queues.open(name))
        return result if isinstance(result, dict | Later) else await result

    # -- send --------------------------------------------------------------------------------------------------------

    def send_message(self, call: Call) -> Answer:
        return self._with_queue(call, Asked.WRITE, self._send_message)

    def _send_message(self, call: Call, queue: SqsQueue) -> Answer:
        content = read_content(call.parameters, self._limits)
        if content.size_bytes > queue.max_bytes:
            raise invalid(f"One or more parameters are invalid. Reason: Message must be shorter than {queue.max_bytes} bytes.")  # fmt: skip
        self._send(call, queue, call.parameters, content, call.answer)
        return LATER

    def _send(self, call: Call, queue: SqsQueue, parameters: Parameters, content: Content, answer: Answered) -> None:
        delay_s = optional_int(parameters, "DelaySeconds", 0, self._limits.max_delay_s)
        group = identifier(parameters, "MessageGroupId")
        deduplication_id = identifier(parameters, "MessageDeduplicationId")
        if queue.fifo:
            if delay_s:
                raise invalid_value(delay_s, "DelaySeconds", "The request include parameter that is not valid for this queue type.")  # fmt: skip
            delay_s = None
            if group is None:
                raise missing("MessageGroupId")
            if deduplication_id is None:
                if not queue.content_based:
                    raise invalid("The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided explicitly")  # fmt: skip
                deduplication_id = hashlib.sha256(content.body).hexdigest()
        elif deduplication_id is not None:
            raise invalid_value(deduplication_id, "MessageDeduplicationId", "The request include parameter that is not valid for this queue type.")  # fmt: skip
        told = content.digests()
        if queue.fifo and group is not None and deduplication_id is not None:
            earlier = self._earlier(queue, group, deduplication_id)
            if earlier is not None:
                self._answer_duplicate(earlier, told, answer)
                return
        id = self._ids.new(self._clock.wall_ms())
        told["MessageId"] = id
        if queue.fifo:
            told["SequenceNumber"] = sequence_of(id)
        self._put(
            queue,
            content,
            id,
            sender=self._access.sender(call),
            group=group,
            deduplication_id=deduplication_id,
            due_s=queue.delay_s if delay_s is None else delay_s,
            told=lambda how: answer(_outcome(how, told)),
        )

    def send_content(
        self, queue: SqsQueue, content: Content, *, group: str | None, deduplication_id: str | None, told: Told
    ) -> None:
        """Send something that is no client's request. What was sent before counts as stored."""
        if queue.fifo and group is not None and deduplication_id is not None:
            earlier = self._earlier(queue, group, deduplication_id)
            if earlier is not None:
                waiting = self._storing.get(_identity(earlier))
                if waiting is None:
                    told(Outcome.STORED)
                else:
                    waiting.append(told)
                return
        id = self._ids.new(self._clock.wall_ms())
        self._put(queue, content, id, group=group, deduplication_id=deduplication_id, due_s=queue.delay_s, told=told)

    def _earlier(self, queue: SqsQueue, group: str, deduplication_id: str) -> Sent | None:
        window = queue.queue.deduplication
        return None if window is None else window.find(deduplication_id.encode(), _scope(queue, group))

    def _put(
        self,
        queue: SqsQueue,
        content: Content,
        id: str,
        *,
        group: str | None,
        deduplication_id: str | None,
        due_s: int,
        told: Told,
        sender: str = "",
    ) -> None:
        now_ms = self._clock.wall_ms()
        message = content.message(id, now_ms, sender=sender, group=group, deduplication_id=deduplication_id)
        window = queue.queue.deduplication
        placed: Placed | None = None
        if window is not None and deduplication_id is not None and group is not None:
            sent = window.note(deduplication_id.encode(), _scope(queue, group), message.headers, now_ms)
            told = self._storing_once(window, sent, told)
            placed = partial(window.placed, sent)
        if due_s:
            self.sending.schedule(queue.queue, message, now_ms + due_s * 1000, told)
        else:
            self.sending.send(queue.queue, message, told, placed)

    def _storing_once(self, window: Deduplication, sent: Sent, told: Told) -> Told:
        """Tell also the duplicates that come while a message is being stored."""
        key = _identity(sent)
        self._storing[key] = []

        def stored(how: Outcome) -> None:
            if how is not Outcome.STORED:
                window.take_back(sent)
            told(how)
            for duplicate in self._storing.pop(key):
                duplicate(how)

        return stored

    def _answer_duplicate(self, earlier: Sent, told: Result, answer: Answered) -> None:
        """As if it had been taken: with the id of the message that was. Not before that one is stored."""
        first = dict(decode_headers(earlier.headers)).get(MESSAGE_ID_HEADER)
        told["MessageId"] = (first or b"").decode("utf-8", "replace")
        told["SequenceNumber"] = sequence_of(str(told["MessageId"]))
        waiting = self._storing.get(_identity(earlier))
        if waiting is None:
            self._turn.output(lambda: answer(told))
        else:
            waiting.append(lambda how: answer(_outcome(how, told)))

    def send_message_batch(self, call: Call) -> Answer:
        return self._with_queue(call, Asked.WRITE, self._send_batch)

    async def _send_batch(self, call: Call, queue: SqsQueue) -> Result:
        entries = _entries(call, self._limits)
        contents: list[Content | AwsError] = []
        for entry in entries:
            try:
                contents.append(read_content(entry, self._limits))
            except AwsError as error:
                contents.append(error)
        total = sum(content.size_bytes for content in contents if isinstance(content, Content))
        if total > self._limits.max_message_bytes:
            raise AwsError("BatchRequestTooLong", f"Batch requests cannot be longer than {self._limits.max_message_bytes} bytes. You have sent {total} bytes.")  # fmt: skip
        batch = Batch(entries)
        for place, (entry, content) in enumerate(zip(entries, contents, strict=True)):
            if isinstance(content, AwsError):
                batch.settle(place, content)
            elif content.size_bytes > queue.max_bytes:
                batch.settle(place, invalid(f"One or more parameters are invalid. Reason: Message must be shorter than {queue.max_bytes} bytes."))  # fmt: skip
            else:
                try:
                    self._send(call, queue, entry, content, batch.settler(place))
                except AwsError as error:
                    batch.settle(place, error)
        return await batch.result()

    # -- receive -----------------------------------------------------------------------------------------------------

    def receive_message(self, call: Call) -> Answer:
        return self._with_queue(call, Asked.READ, self._receive)

    def _receive(self, call: Call, queue: SqsQueue) -> Answer:
        limits, parameters = self._limits, call.parameters
        most = optional_int(parameters, "MaxNumberOfMessages", 1, limits.max_receive_messages) or 1
        visibility_s = optional_int(parameters, "VisibilityTimeout", 0, limits.max_visibility_s)
        wait_s = optional_int(parameters, "WaitTimeSeconds", 0, limits.max_wait_s)
        system = texts(parameters, "AttributeNames") + texts(parameters, "MessageSystemAttributeNames")
        wanted = read_wanted(system, texts(parameters, "MessageAttributeNames"))
        attempt = identifier(parameters, "ReceiveRequestAttemptId")
        cursor = queue.cursor
        lease_ms = (queue.visibility_s if visibility_s is None else visibility_s) * 1000
        if attempt is not None and queue.fifo:
            again = self._repeat(queue, attempt, lease_ms)
            if again is not None:
                return _messages(
                    [self._shown(call, queue, each, wanted, again.received_ms) for each in again.deliveries]
                )
        if cursor.unacked >= limits.max_in_flight:
            raise AwsError("OverLimit", f"Too many messages in flight: {cursor.unacked}.")
        if cursor.consumers.exclusive:
            raise AwsError("UnsupportedOperation", "An AMQP client consumes from the queue exclusively.")

        def show(deliveries: list[Delivery]) -> Result:
            now_ms = self._clock.wall_ms()
            if attempt is not None and queue.fifo and deliveries:
                self._remember(queue, attempt, deliveries, now_ms)
            return _messages([self._shown(call, queue, each, wanted, now_ms) for each in deliveries])

        deliveries = cursor.acquire_in_turn(most, limits.max_message_bytes, object() if queue.fifo else None, lease_ms)
        wait_s = queue.wait_s if wait_s is None else wait_s
        if deliveries:
            self._turn.output(lambda: call.answer(show(deliveries)))
            return LATER
        if not wait_s and not cursor.ready:
            return {}
        return self._receive_later(queue, most, lease_ms, wait_s, show)

    async def _receive_later(
        self,
        queue: SqsQueue,
        most: int,
        lease_ms: int,
        wait_s: int,
        show: Callable[[list[Delivery]], Result],
    ) -> Result:
        cursor = queue.cursor
        deliveries: list[Delivery] = []
        if cursor.ready and await cursor.load():
            key = object() if queue.fifo else None
            deliveries = cursor.acquire(most, self._limits.max_message_bytes, key, lease_ms)
        if not deliveries and wait_s:
            try:
                deliveries = await Receiver(most).receive(cursor, lease_ms, wait_s)
            except QueueGone:
                raise no_such_queue() from None
            except ConsumerRefused as error:
                raise AwsError("UnsupportedOperation", str(error)) from None
        return show(deliveries)

    def _shown(self, call: Call, queue: SqsQueue, delivery: Delivery, wanted: Wanted, now_ms: int) -> dict[str, object]:
        receipt = Receipt(delivery.offset, delivery.delivery_count, now_ms)
        handle = self._receipts.handle(queue.topic_id, receipt)
        first_ms = queue.note_received(delivery, now_ms)
        return shown(delivery, queue.cursor.topic, handle, wanted, first_ms, call.region)

    def _remember(self, queue: SqsQueue, attempt: str, deliveries: list[Delivery], now_ms: int) -> None:
        attempts = queue.attempts
        now = self._clock.monotonic_ms()
        while attempts and (len(attempts) >= self._limits.max_attempts or next(iter(attempts.values())).until_ms < now):
            attempts.popitem(last=False)
        attempts[attempt] = Attempt(now + _ATTEMPT_MS, deliveries, now_ms)

    def _repeat(self, queue: SqsQueue, attempt: str, lease_ms: int) -> Attempt | None:
        """The same messages again, for a receiver that did not get the answer: if it still has all of them."""
        earlier = queue.attempts.get(attempt)
        if earlier is None or earlier.until_ms < self._clock.monotonic_ms():
            return None
        if not all(queue.cursor.is_leased(each.offset, each.delivery_count) for each in earlier.deliveries):
            del queue.attempts[attempt]
            return None
        for each in earlier.deliveries:
            queue.cursor.extend(each.offset, max(lease_ms, 1))
        return earlier

    # -- delete ------------------------------------------------------------------------------------------------------

    def delete_message(self, call: Call) -> Answer:
        return self._with_queue(call, Asked.READ, self._delete_message)

    def _delete_message(self, call: Call, queue: SqsQueue) -> Answer:
        handle = call.text("ReceiptHandle")
        self._delete(queue, handle, lambda error: call.answer(error or {}))
        return LATER

    def _delete(self, queue: SqsQueue, handle: str, told: Callable[[AwsError | None], None]) -> None:
        receipt = self._receipts.read(handle, queue.topic_id)
        cursor = queue.cursor
        last = cursor.was_last(receipt.offset, receipt.delivery_count) or cursor.is_settled(receipt.offset)
        if queue.fifo and not last:
            raise invalid_value(handle, "ReceiptHandle", "The receipt handle has expired.")
        if not self._deleted:
            self._turn.collect(self._carry_out)
        self._deleting.setdefault(cursor, []).append(receipt)
        self._deleted.append(told)
        queue.first_received.pop(receipt.offset, None)

    def _carry_out(self) -> None:
        """Settle what this turn deletes, a queue at a time, and tell of it when all of that is on disk."""
        deleting, self._deleting = self._deleting, {}
        told, self._deleted = self._deleted, []
        for cursor, receipts in deleting.items():
            held = [each.offset for each in receipts if cursor.is_leased(each.offset, each.delivery_count)]
            if held:
                cursor.acknowledge(held)
            if len(held) < len(receipts):
                for each in receipts:
                    if not cursor.is_settled(each.offset):
                        cursor.discard(each.offset, each.delivery_count)
        stored = self._messaging.commit_settlements()
        if stored is None or stored.done():
            self._turn.output(lambda: _tell_all(told, stored))
        else:
            stored.add_done_callback(lambda done: _tell_all(told, done))

    async def delete_message_batch(self, call: Call) -> Result:
        queue = await self._queue(call, Asked.READ)
        batch = Batch(_entries(call, self._limits))
        for place, entry in enumerate(batch.entries):
            try:
                settle = batch.settler(place)
                self._delete(queue, _text(entry, "ReceiptHandle"), lambda error, settle=settle: settle(error or {}))  # type: ignore[misc]
            except AwsError as error:
                batch.settle(place, error)
        return await batch.result()

    async def _queue(self, call: Call, asked: Asked) -> SqsQueue:
        name = name_in_url(call.text("QueueUrl"))
        self._access.check(call, asked, name)
        return self._queues.get(name) or await self._queues.open(name)

    # -- visibility --------------------------------------------------------------------------------------------------

    async def change_message_visibility(self, call: Call) -> Result:
        queue = await self._queue(call, Asked.READ)
        self._change(queue, call.parameters)
        return {}

    async def change_message_visibility_batch(self, call: Call) -> Result:
        queue = await self._queue(call, Asked.READ)
        batch = Batch(_entries(call, self._limits))
        for place, entry in enumerate(batch.entries):
            try:
                self._change(queue, entry)
            except AwsError as error:
                batch.settle(place, error)
            else:
                batch.settle(place, {})
        return await batch.result()

    def _change(self, queue: SqsQueue, parameters: Parameters) -> None:
        handle = _text(parameters, "ReceiptHandle")
        most = self._limits.max_visibility_s
        visibility_s = optional_int(parameters, "VisibilityTimeout", 0, most)
        if visibility_s is None:
            raise missing("VisibilityTimeout")
        receipt = self._receipts.read(handle, queue.topic_id)
        cursor = queue.cursor
        if not cursor.is_leased(receipt.offset, receipt.delivery_count):
            if cursor.is_settled(receipt.offset):
                raise invalid_value(handle, "ReceiptHandle", "Message does not exist or is not available for visibility timeout change.")  # fmt: skip
            raise AwsError("MessageNotInflight", "The message referred to isn't in flight.")
        if self._clock.wall_ms() + visibility_s * 1000 > receipt.received_ms + most * 1000:
            raise invalid_value(visibility_s, "VisibilityTimeout", f"Total VisibilityTimeout for the message is beyond the limit [{most} seconds]")  # fmt: skip
        cursor.extend(receipt.offset, visibility_s * 1000)


class Batch:
    """The entries of a batch, each answered by itself."""

    def __init__(self, entries: Sequence[Parameters]) -> None:
        self.entries = entries
        self._results: list[Result | AwsError | None] = [None] * len(entries)
        self._left = len(entries)
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def settle(self, place: int, result: Result | AwsError) -> None:
        self._results[place] = result
        self._left -= 1
        if not self._left and not self._done.done():
            self._done.set_result(None)

    def settler(self, place: int) -> Answered:
        return lambda result: self.settle(place, result)

    async def result(self) -> Result:
        await self._done
        successful: list[object] = []
        failed: list[object] = []
        for entry, result in zip(self.entries, self._results, strict=True):
            if isinstance(result, AwsError):
                told = {"Id": entry["Id"], "SenderFault": result.senders_fault, "Code": result.code}
                failed.append({**told, "Message": result.message})
            else:
                successful.append({"Id": entry["Id"], **(result or {})})
        answer: Result = {"Successful": successful}
        if failed:
            answer["Failed"] = failed
        return answer


def _entries(call: Call, limits: AwsLimits) -> Sequence[Parameters]:
    entries = structures(call.parameters, "Entries")
    if not entries:
        raise AwsError(
            "EmptyBatchRequest", f"There should be at least one {call.operation}RequestEntry in the request."
        )
    if len(entries) > limits.max_batch_entries:
        raise AwsError("TooManyEntriesInBatchRequest", f"Maximum number of entries per request are {limits.max_batch_entries}. You have sent {len(entries)}.")  # fmt: skip
    seen: set[str] = set()
    for entry in entries:
        id = optional_text(entry, "Id")
        if id is None or _ENTRY_ID.fullmatch(id) is None:
            raise AwsError("InvalidBatchEntryId", "A batch entry id can only contain alphanumeric characters, hyphens and underscores. It can be at most 80 letters long.")  # fmt: skip
        if id in seen:
            raise AwsError("BatchEntryIdsNotDistinct", f"Id {id} repeated.")
        seen.add(id)
    return entries


def _scope(queue: SqsQueue, group: str) -> bytes | None:
    return group.encode() if queue.queue.settings.deduplicate_by_key else None


def _text(parameters: Parameters, name: str) -> str:
    value = optional_text(parameters, name)
    if not value:
        raise missing(name)
    return value


def identifier(parameters: Parameters, name: str) -> str | None:
    value = optional_text(parameters, name)
    if value is not None and (_GROUP.fullmatch(value) is None or not legal(value)):
        raise invalid_value(value[:200], name, f"{name} can only include alphanumeric and punctuation characters. 1 to 128 in length.")  # fmt: skip
    return value


def _messages(messages: list[dict[str, object]]) -> Result:
    return {"Messages": messages} if messages else {}


def _outcome(how: Outcome, told: Result) -> Result | AwsError:
    if how is Outcome.STORED:
        return told
    if how is Outcome.GONE:
        return no_such_queue()
    if how is Outcome.FULL:
        return AwsError("OverLimit", "The queue is full and takes no messages.")
    return AwsError("ServiceUnavailable", "The message could not be stored.")


def _tell_all(told: list[Callable[[AwsError | None], None]], stored: asyncio.Future[Appended] | None) -> None:
    failed = stored is not None and (stored.cancelled() or stored.exception() is not None)
    error = AwsError("ServiceUnavailable", "The deletion could not be stored.") if failed else None
    for each in told:
        each(error)
