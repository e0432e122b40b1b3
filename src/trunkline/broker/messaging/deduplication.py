"""The deduplication window of a queue: a message whose id was sent within the last five minutes is not taken again.

The id of a message is a header of its record (`sqs.deduplication-id`), so that message and id are stored as one: a crash
leaves both or neither. The window is a fold of those records, read again at a start; the log is not trimmed past the oldest
of them, settled or not. What waits for its time is in the queue's state and is read there; if a crash came between its entry
into the queue and the end of its waiting, it stands in both places, and the waiting one is dropped.

Ids are told apart within a scope: all of the queue, or one group of it. Bounded by `MAX_IDS`: beyond it the oldest are forgotten.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import Final, NamedTuple

from trunkline.clock import Clock
from trunkline.cursors.queue import RestoredQueue, state
from trunkline.cursors.queue.journal import QueueJournal
from trunkline.log.errors import LogError
from trunkline.log.portions import read_portion
from trunkline.log.records import decode_headers
from trunkline.log.store import LogStore, TopicPartition
from trunkline.log.ticket import Ticket

_logger = logging.getLogger(__name__)

WINDOW_MS: Final = 300_000
MAX_IDS: Final = 2_000_000
DEDUPLICATION_HEADER: Final = "sqs.deduplication-id"
_NAME: Final = DEDUPLICATION_HEADER.encode()
_READ_BYTES: Final = 1 << 20
_NEVER: Final = 1 << 62
_identity = id


class Sent(NamedTuple):
    """A message of the window: when it was sent, and what its sender was told."""

    at_ms: int
    headers: bytes
    scoped: tuple[bytes | None, bytes]


class Deduplication:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._sent: dict[tuple[bytes | None, bytes], Sent] = {}
        self._order: deque[Sent] = deque()
        self._offsets: dict[int, int] = {}  # by the identity of what was sent; absent while it has no place

    def find(self, id: bytes, group: bytes | None) -> Sent | None:
        """What was sent with this id within the window; `group` is None where ids count in the whole queue."""
        self._forget_old()
        return self._sent.get((group, id))

    def note(self, id: bytes, group: bytes | None, headers: bytes, at_ms: int) -> Sent:
        """A message was sent. Who sends it says where it went (`placed`), or that it was not stored (`take_back`)."""
        sent = Sent(at_ms, headers, (group, id))
        self._sent[sent.scoped] = sent
        self._order.append(sent)
        if len(self._order) > MAX_IDS:
            self._drop_first()
        return sent

    def placed(self, sent: Sent, ticket: Ticket) -> None:
        """The append of the message has been made, alone or with others."""
        ticket.when_placed(lambda placed: self._placed(sent, placed))

    def take_back(self, sent: Sent) -> None:
        """It was not stored after all: its sender may try again."""
        if self._sent.get(sent.scoped) is sent:
            del self._sent[sent.scoped]

    def _placed(self, sent: Sent, ticket: Ticket) -> None:
        if ticket.place is None:
            self.take_back(sent)
        else:
            self._offsets[_identity(sent)] = ticket.place.base_offset

    def floor(self) -> int:
        """The first offset that a start would have to read."""
        self._forget_old()
        for sent in self._order:
            offset = self._offsets.get(_identity(sent))
            if offset is not None:
                return offset
        return _NEVER

    def _forget_old(self) -> None:
        horizon_ms = self._clock.wall_ms() - WINDOW_MS
        while self._order and self._order[0].at_ms <= horizon_ms:
            self._drop_first()

    def _drop_first(self) -> None:
        sent = self._order.popleft()
        self._offsets.pop(_identity(sent), None)
        self.take_back(sent)

    # -- at a start --------------------------------------------------------------------------------------------------

    async def rebuild(
        self,
        store: LogStore,
        tp: TopicPartition,
        journal: QueueJournal,
        restored: RestoredQueue | None,
        *,
        by_group: bool,
    ) -> None:
        """Rebuild the window from the log, and take out of `restored` what waits although it has entered the queue."""
        try:
            await self._read_log(store, tp, by_group=by_group)
            if restored is not None:
                await self._read_scheduled(journal, restored, by_group=by_group)
        except (LogError, ValueError) as error:
            _logger.error("the deduplication window of %s is empty, because it cannot be read: %s", tp, error)
        self._order = deque(sorted(self._order, key=lambda sent: sent.at_ms))

    async def _read_log(self, store: LogStore, tp: TopicPartition, *, by_group: bool) -> None:
        horizon_ms = self._clock.wall_ms() - WINDOW_MS
        first = await store.offset_for_time(tp, horizon_ms)
        if first is None:
            return
        position = max(first.offset, store.bounds(tp).log_start_offset)
        while True:
            portion = await read_portion(store, tp, position, _READ_BYTES)
            for offset, timestamp_ms, key, _, headers in portion.records:
                id = deduplication_id(headers)
                if id is not None and timestamp_ms > horizon_ms:
                    sent = self.note(id, key if by_group else None, headers, timestamp_ms)
                    self._offsets[_identity(sent)] = offset
            if portion.following == position:
                return
            position = portion.following

    async def _read_scheduled(self, journal: QueueJournal, restored: RestoredQueue, *, by_group: bool) -> None:
        for number, (_, state_offset) in list(restored.scheduled.items()):
            value = await journal.read_value(state_offset)
            if value is None:
                continue
            message = state.decode_scheduled(value)
            id = deduplication_id(message.headers)
            if id is None:
                continue
            entered = self._sent.get((message.key if by_group else None, id))
            if entered is None:
                self.note(id, message.key if by_group else None, message.headers, message.timestamp_ms)
            elif entered.headers == message.headers:
                del restored.scheduled[number]


def deduplication_id(headers: bytes) -> bytes | None:
    if _NAME not in headers:
        return None
    return next((value for name, value in decode_headers(headers) if name == DEDUPLICATION_HEADER), None)
