"""Move tasks: the messages of a dead-letter queue go back to the queues that they came from, or to another one.

A task takes messages as a receiver does and sends each on before it deletes it: a crash in between leaves a message in both
queues, never in none. It ends when the queue was empty, when it is cancelled, or when a message has nowhere to go. Tasks are
known as long as the broker runs; one that a restart ended is started again by whoever wants it to go on.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import uuid
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from trunkline.broker.core import BrokerCore
from trunkline.broker.messaging.queue import Queue
from trunkline.broker.messaging.sending import Outcome, Sending
from trunkline.cursors.queue import Delivery
from trunkline.log.records import decode_headers, encode_headers
from trunkline.protocols.aws.access import Access, Asked
from trunkline.protocols.aws.call import Call, Result, optional_int, optional_text
from trunkline.protocols.aws.errors import AwsError, invalid, invalid_value
from trunkline.protocols.aws.limits import AwsLimits
from trunkline.protocols.aws.names import name_in_arn
from trunkline.protocols.aws.sqs_queue import SqsQueue, SqsQueues

_BATCH: Final = 100
_LEASE_MS: Final = 60_000
_REMEMBERED: Final = 10
_DIED_IN: Final = "x-last-death-queue"
_HISTORY: Final = ("x-death", "x-first-death-", "x-last-death-")


@dataclass(slots=True)
class MoveTask:
    source: str
    source_arn: str
    destination_arn: str | None
    rate: int | None
    started_ms: int
    to_move: int
    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    status: str = "RUNNING"
    moved: int = 0
    failure: str = ""
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    work: asyncio.Task[None] | None = None

    @property
    def handle(self) -> str:
        return base64.b64encode(json.dumps({"taskId": self.id, "sourceArn": self.source_arn}).encode()).decode()

    def shown(self) -> dict[str, object]:
        told: dict[str, object] = {
            "Status": self.status,
            "SourceArn": self.source_arn,
            "ApproximateNumberOfMessagesMoved": self.moved,
            "ApproximateNumberOfMessagesToMove": self.to_move,
            "StartedTimestamp": self.started_ms,
        }
        if self.status == "RUNNING":
            told["TaskHandle"] = self.handle
        if self.destination_arn is not None:
            told["DestinationArn"] = self.destination_arn
        if self.rate is not None:
            told["MaxNumberOfMessagesPerSecond"] = self.rate
        if self.failure:
            told["FailureReason"] = self.failure
        return told


class MoveTasks:
    def __init__(
        self, broker: BrokerCore, queues: SqsQueues, access: Access, sending: Sending, limits: AwsLimits
    ) -> None:
        self._broker = broker
        self._queues = queues
        self._access = access
        self._sending = sending
        self._limits = limits
        self._tasks: dict[str, deque[MoveTask]] = {}

    async def start_message_move_task(self, call: Call) -> Result:
        arn = call.text("SourceArn")
        source = self._by_arn(arn)
        self._access.check(call, Asked.READ, source.name)
        if not any(_dies_into(queue, source.name) for queue in self._queues.vhost.queues.values()):
            raise invalid("Source queue must be configured as a Dead Letter Queue.")
        destination = optional_text(call.parameters, "DestinationArn")
        if destination:
            target = self._by_arn(destination)
            self._access.check(call, Asked.WRITE, target.name)
            if target.fifo != source.fifo:
                raise invalid_value(
                    destination, "DestinationArn", "Source and destination must be of one type of queue."
                )
        rate = optional_int(call.parameters, "MaxNumberOfMessagesPerSecond", 1, self._limits.max_move_rate)
        running = sum(task.status == "RUNNING" for tasks in self._tasks.values() for task in tasks)
        known = self._tasks.setdefault(source.name, deque(maxlen=_REMEMBERED))
        if any(task.status in ("RUNNING", "CANCELLING") for task in known):
            raise invalid("There is already a task running. Only one active task is allowed for a source queue arn at a given time.")  # fmt: skip
        if running >= self._limits.max_move_tasks:
            raise AwsError("OverLimit", f"{self._limits.max_move_tasks} tasks are running already.")
        stats = source.cursor.stats()
        task = MoveTask(source.name, arn, destination, rate, self._broker.clock.wall_ms(), stats.ready)
        known.appendleft(task)
        target_name = None if not destination else name_in_arn(destination, "sqs")
        task.work = asyncio.get_running_loop().create_task(self._run(task, source, target_name), name="move task")
        return {"TaskHandle": task.handle}

    def _by_arn(self, arn: str) -> SqsQueue:
        name = name_in_arn(arn, "sqs")
        found = None if name is None else self._queues.get(name)
        if found is None:
            raise AwsError("ResourceNotFoundException", "The resource that you specified for the SourceArn parameter doesn't exist.")  # fmt: skip
        return found

    def list_message_move_tasks(self, call: Call) -> Result:
        source = self._by_arn(call.text("SourceArn"))
        self._access.check(call, Asked.LOOK, source.name)
        most = optional_int(call.parameters, "MaxResults", 1, _REMEMBERED) or 1
        return {"Results": [task.shown() for task in list(self._tasks.get(source.name, ()))[:most]]}

    async def cancel_message_move_task(self, call: Call) -> Result:
        handle = call.text("TaskHandle")
        task = self._by_handle(handle)
        if task is None:
            raise AwsError("ResourceNotFoundException", "Task does not exist.")
        self._access.check(call, Asked.READ, task.source)
        if task.status != "RUNNING":
            raise invalid(f"Task is not running: it is {task.status}.")
        task.status = "CANCELLING"
        task.stopping.set()
        if task.work is not None:
            await asyncio.shield(task.work)
        return {"ApproximateNumberOfMessagesMoved": task.moved}

    def _by_handle(self, handle: str) -> MoveTask | None:
        try:
            document = json.loads(base64.b64decode(handle, validate=True))
        except (binascii.Error, ValueError, RecursionError):
            raise invalid_value(handle[:200], "TaskHandle", "The handle is not valid.") from None
        id = document.get("taskId") if isinstance(document, dict) else None
        return next((task for tasks in self._tasks.values() for task in tasks if task.id == id), None)

    async def close(self) -> None:
        tasks = [task for known in self._tasks.values() for task in known if task.work is not None]
        for task in tasks:
            task.stopping.set()
        await asyncio.gather(*(task.work for task in tasks if task.work is not None), return_exceptions=True)

    # -- the work ----------------------------------------------------------------------------------------------------

    async def _run(self, task: MoveTask, source: SqsQueue, target: str | None) -> None:
        cursor = source.cursor
        try:
            while not cursor.gone and not task.stopping.is_set():
                batch = cursor.acquire(min(_BATCH, task.rate or _BATCH), consumer=task, lease_ms=_LEASE_MS)
                if not batch:
                    if await cursor.load():
                        continue
                    break
                try:
                    await self._move(task, source, batch, target)
                finally:
                    cursor.release(cursor.held_by(task), redelivered=False)
                if task.rate is not None:
                    await _pause(task.stopping, len(batch) / task.rate)
            task.status = "CANCELLED" if task.stopping.is_set() else "COMPLETED"
        except AwsError as error:
            task.status, task.failure = "FAILED", error.message

    async def _move(self, task: MoveTask, source: SqsQueue, batch: list[Delivery], target: str | None) -> None:
        loop = asyncio.get_running_loop()
        waiting: list[tuple[Delivery, asyncio.Future[Outcome]]] = []
        for delivery in batch:
            queue = self._queues.vhost.queues.get(_origin(delivery) if target is None else target)
            if queue is None or queue is source.queue:
                raise AwsError("ResourceNotFoundException", "CouldNotDetermineMessageSource")
            again = delivery.message._replace(
                headers=_without_history(delivery.message.headers), timestamp_ms=self._broker.clock.wall_ms()
            )
            stored: asyncio.Future[Outcome] = loop.create_future()
            self._sending.send(queue, again, stored.set_result)
            waiting.append((delivery, stored))
        for delivery, stored in waiting:
            if await stored is not Outcome.STORED:
                raise AwsError(
                    "ServiceUnavailable", f"The destination did not take a message: {stored.result().value}."
                )
            source.cursor.acknowledge([delivery.offset])
            task.moved += 1
        await self._broker.messaging.settlements_stored()


async def _pause(stopping: asyncio.Event, seconds: float) -> None:
    try:
        await asyncio.wait_for(stopping.wait(), seconds)
    except TimeoutError:
        pass


def _dies_into(queue: Queue, name: str) -> bool:
    return queue.settings.dead_letter == ("", name)


def _origin(delivery: Delivery) -> str:
    """The queue that a message died in."""
    value = dict(decode_headers(delivery.message.headers)).get(_DIED_IN)
    return "" if value is None else value.decode("utf-8", "replace")


def _without_history(section: bytes) -> bytes:
    kept = [(name, value) for name, value in decode_headers(section) if not name.startswith(_HISTORY)]
    return encode_headers(kept)
