"""The partition behind a queue: the queue's messages go in here, and its settled prefix is trimmed away.

Appends. A durable queue writes at once. A queue that is not durable may write behind: messages get their offsets, consumers
who wait for them get them, and at the end of the same turn they are written. Until then nobody else can append, because
nothing else runs; `end` counts them already. If that write fails the offsets are void, and so the queue ends (`failed`).

Trimming. When the settled prefix comes to about `trim_bytes`, the log is told; one trim at a time.

`appended` is called when others append to the partition, not for our own appends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from trunkline.cursors.queue.message import Message
from trunkline.cursors.queue.runtime import QueueRuntime
from trunkline.cursors.queue.traits import encode_messages, messages_of
from trunkline.log.errors import LogError
from trunkline.log.portions import read_portion
from trunkline.log.store import Bounds, Durability, TopicInfo, TopicPartition
from trunkline.log.ticket import Appended

_logger = logging.getLogger(__name__)

_RECORD_BYTES = 24  # of a record in the log, beside its body


class Backing:
    def __init__(
        self,
        topic: TopicInfo,
        runtime: QueueRuntime,
        *,
        durable: bool,
        appended: Callable[[], None],
        failed: Callable[[], None],
    ) -> None:
        self.tp = TopicPartition(topic.name, 0)
        self._topic_id = topic.id
        self._runtime = runtime
        self._store = runtime.store
        self._durable = durable
        self._appended = appended
        self._failed = failed
        self._writing = False
        self._closed = False
        self._unwritten: list[tuple[Sequence[Message], int, int]] = []  # messages, their size, the time
        self._trimming = False
        self._trimmed_to = self._store.bounds(self.tp).log_start_offset
        self._store.watch(self.tp, self._on_append, decodes=True)

    def _on_append(self) -> None:
        if not self._writing:
            self._appended()

    def close(self) -> None:
        """Take no notice of the log any more."""
        self._closed = True
        self._unwritten.clear()
        self._store.unwatch(self.tp, self._on_append)

    @property
    def there(self) -> bool:
        """Whether the topic is still the one that the queue was opened on."""
        info = self._store.topic(self.tp.topic)
        return info is not None and info.id == self._topic_id

    def bounds(self) -> Bounds:
        return self._store.bounds(self.tp)

    # -- messages ----------------------------------------------------------------------------------------------------

    def append(
        self, messages: Sequence[Message], size: int, now_ms: int, durability: Durability, known_end: int
    ) -> tuple[int, asyncio.Future[Appended]]:
        """Give messages their offsets; returns the first, and when they are stored as well as `durability` asks.

        `known_end` is the end of the queue as its cursor knows it. When it is not the end of the log, because a transaction
        is open or others appended, the cursor will look at the log: then nothing is written behind.
        """
        base = self._store.bounds(self.tp).high_watermark
        for earlier, _, _ in self._unwritten:
            base += len(earlier)
        if self._durable or base != known_end or not (self._unwritten or self._runtime.put_off(self._write_behind)):
            self._write_behind()
            return base, self._write(messages, size, now_ms, durability)
        self._unwritten.append((messages, size, now_ms))
        stored: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        stored.set_result(Appended(base, base + len(messages) - 1, -1, self._trimmed_to))
        return base, stored

    def _write(
        self, messages: Sequence[Message], size: int, now_ms: int, durability: Durability
    ) -> asyncio.Future[Appended]:
        batches = encode_messages(messages, size, now_ms, self._runtime.limits.batch_bytes)
        self._writing = True
        try:
            return self._store.append(self.tp, batches, durability)
        finally:
            self._writing = False

    def _write_behind(self) -> None:
        unwritten, self._unwritten = self._unwritten, []
        try:
            for messages, size, now_ms in unwritten:
                self._write(messages, size, now_ms, Durability.NONE)
        except LogError as error:
            _logger.error("queue %s ends, because its messages cannot be written: %s", self.tp.topic, error)
            self._failed()

    async def read(self, offset: int) -> tuple[list[int], list[Message], int]:
        """Committed messages from an offset on, their offsets, and where to read on."""
        portion = await read_portion(self._store, self.tp, offset, self._runtime.limits.read_bytes)
        return *messages_of(portion.records), portion.following

    # -- trim --------------------------------------------------------------------------------------------------------

    def trim(self, head: Callable[[], int], mean_bytes: int) -> None:
        """Free what lies before `head`, when there is about a segment of it. `mean_bytes` is that of a message."""
        if self._trimming or self._closed or self._runtime.closed:
            return
        to = head()
        if (to - self._trimmed_to) * (mean_bytes + _RECORD_BYTES) < self._runtime.limits.trim_bytes:
            return
        self._trimming = True
        task = asyncio.get_running_loop().create_task(self._trim_to(to, head, mean_bytes), name=f"trim {self.tp.topic}")
        self._runtime.start_task(task)

    async def _trim_to(self, to: int, head: Callable[[], int], mean_bytes: int) -> None:
        try:
            self._trimmed_to = await self._store.trim(self.tp, to)
        except LogError as error:
            _logger.error("the settled messages of %s stay for now: %s", self.tp.topic, error)
            self._trimmed_to = to
        finally:
            self._trimming = False
        self.trim(head, mean_bytes)  # the head may have moved on meanwhile
