"""A source: one partition of a log topic that publications are written to and delivered from.

`delivered_to` is the offset up to which everything has been offered to the sessions that follow live. As a rule that is
the end of the log: a publication is appended and offered in the same turn, from memory. When someone else appends (a Kafka
producer), the source is `behind`: from then on nothing is offered from memory until what is in the log has been read and
offered in its order. Only committed records are read, so an open transaction of a Kafka producer holds up what follows it,
as it does for any reader of committed records.

The last offset of each topic name is known, as far as it was written since the start (`MAX_KNOWN_NAMES`): a session that comes
back and whose filters match nothing written since its place need not read the log to find that out.

An append of this broker that has no place yet (see `log.ticket`) is waited for, in the order of the appends: until then
a wake may be its own, and is looked at when the last of them has its place.

Records that are no publications (control batches, aborted transactions, batches that cannot be decoded) are left out by
the reading (see `log.portions`).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence

from trunkline.broker.messaging.mapping import filter_matches
from trunkline.clock import Clock
from trunkline.log.batch import BROKER_EPOCH, BatchHeader
from trunkline.log.errors import BatchTooLarge, LogError, OffsetOutOfRange
from trunkline.log.portions import read_portion
from trunkline.log.records import LightNewRecord, LightRecord, encode_records
from trunkline.log.store import Durability, LogStore, TopicPartition
from trunkline.log.ticket import Ticket
from trunkline.protocols.mqtt.message import Message, topic_of, traits_of
from trunkline.protocols.mqtt.run import Run

logger = logging.getLogger(__name__)

MAX_KNOWN_NAMES = 100_000
_RECORDS_PER_MATCH = 0.5  # a filter is matched against a name in the time in which half a record is read


class Source:
    __slots__ = ("_appending", "_changed", "_clock", "_last", "_last_from", "_placed_to", "_store", "_undeliverable",
                 "_undeliverable_to", "_unplaced", "_woken", "behind", "delivered_to", "news", "open", "tp")  # fmt: skip

    def __init__(self, store: LogStore, clock: Clock, tp: TopicPartition, changed: Callable[[Source], None]) -> None:
        """`changed` is called when the source has fallen behind: someone must read it."""
        self._store = store
        self._clock = clock
        self.tp = tp
        self._changed = changed
        self.open = True
        self._appending = False
        self._unplaced: deque[tuple[Ticket, Callable[[], None]]] = deque()  # in the order of the appends
        self._woken = False  # while some have no place
        self.news = False  # whether something may have come since the last reading began
        bounds = store.bounds(tp)
        self.delivered_to = bounds.last_stable_offset
        self.behind = bounds.last_stable_offset < bounds.high_watermark
        self._placed_to = bounds.high_watermark
        self._undeliverable = 0
        self._undeliverable_to = -1  # records up to here that are left out have been counted
        self._last: dict[str, int] = {}  # topic name -> offset of its last publication
        self._last_from = self.delivered_to  # from this offset on, `_last` knows every name
        store.watch(tp, self._wake, decodes=True)

    def close(self) -> None:
        self.open = False
        self._store.unwatch(self.tp, self._wake)

    def _wake(self) -> None:
        if self._appending:
            return
        if self._unplaced and not self.behind:
            self._woken = True
        else:
            self.fall_behind()

    def fall_behind(self) -> None:
        """There is something to be read before anything is offered from memory."""
        self.behind = self.news = True
        self._changed(self)

    # -- names -------------------------------------------------------------------------------------------------------

    def delivered(self, topic: str, offset: int) -> None:
        """A publication of this topic, at this offset, was offered to those who follow live."""
        self.delivered_to = offset + 1
        last = self._last
        if topic not in last and len(last) >= MAX_KNOWN_NAMES:
            last.clear()
            self._last_from = offset
        last[topic] = offset

    def nothing_since(self, offset: int, filters: Sequence[Sequence[str]]) -> bool:
        """Whether it is known that no publication from `offset` on matches any of the filters (each as its levels)."""
        if offset < self._last_from:
            return False
        last = self._last
        wild = [levels for levels in filters if "+" in levels or levels[-1] == "#"]
        if any(last.get("/".join(levels), -1) >= offset for levels in filters):
            return False
        if not wild:
            return True
        if len(last) * len(wild) > (self.delivered_to - offset) * _RECORDS_PER_MATCH:
            return False  # reading is cheaper than finding out
        for name, at in last.items():
            if at >= offset:
                levels_of_name = name.split("/")
                if any(filter_matches(levels, levels_of_name) for levels in wild):
                    return False
        return True

    # -- append ------------------------------------------------------------------------------------------------------

    def append(self, records: list[LightNewRecord], durability: Durability) -> Ticket:
        """Write the records as one batch, marked as the broker's own."""
        batch = encode_records(records, timestamp_ms=self._clock.wall_ms(), producer_epoch=BROKER_EPOCH)
        info = self._store.topic(self.tp.topic)
        if info is not None and len(batch) > info.config.max_message_bytes:
            raise BatchTooLarge(
                f"the batch has {len(batch)} bytes"
            )  # at once, so that the order stays, whatever the store
        self._appending = True
        try:
            ticket = self._store.append(self.tp, batch, durability)
        finally:
            self._appending = False
        if ticket.place is not None:
            self._placed_to = ticket.place.last_offset + 1
        return ticket

    @property
    def awaits_places(self) -> bool:
        """Whether something was appended that has no place yet."""
        return bool(self._unplaced)

    def when_placed(self, ticket: Ticket, call: Callable[[], None]) -> None:
        """Call when the place is known, or it is known that there is none, of this append and of all before it."""
        self._unplaced.append((ticket, call))
        ticket.when_placed(self._place_known)

    def _place_known(self, _: Ticket) -> None:
        unplaced = self._unplaced
        while unplaced and (unplaced[0][0].place is not None or unplaced[0][0].done()):
            ticket, call = unplaced.popleft()
            if ticket.place is not None:
                self._placed_to = max(self._placed_to, ticket.place.last_offset + 1)
            call()
        if not unplaced and self._woken:
            self._woken = False
            if not self.behind and self._store.bounds(self.tp).high_watermark > self.delivered_to:
                self.fall_behind()  # somebody else has appended, too

    # -- read --------------------------------------------------------------------------------------------------------

    async def read(
        self, offset: int, max_bytes: int, wanted: Callable[[str], bool] | None = None
    ) -> tuple[list[Run], int]:
        """Publications from `offset` on, and the offset that follows them; the same offset at the end of what can be read.

        With `wanted`, only those of topics of which it is true.
        """
        records, following = await self.read_records(offset, max_bytes)
        try:
            return self._runs_of(records, wanted), following
        except Exception:
            return self._runs_one_by_one(records, wanted), following

    def _runs_one_by_one(self, records: list[LightRecord], wanted: Callable[[str], bool] | None) -> list[Run]:
        """Without the records that are no publications, whatever is wrong with them."""
        runs: list[Run] = []
        for record in records:
            try:
                runs += self._runs_of([record], wanted)
            except Exception as error:
                self.undeliverable(record[0], error)
        return runs

    def undeliverable(self, offset: int, why: object) -> None:
        """A record cannot be sent to anyone, for what is in it. Told of the first, and whenever their number has doubled."""
        if offset <= self._undeliverable_to:
            return
        self._undeliverable_to = offset
        self._undeliverable += 1
        if self._undeliverable & (self._undeliverable - 1) == 0:
            logger.error(
                "%s: the record at offset %d is left out (number %d): %s", self.tp, offset, self._undeliverable, why
            )

    def _runs_of(self, records: list[LightRecord], wanted: Callable[[str], bool] | None) -> list[Run]:
        runs: list[Run] = []
        run: Run | None = None
        key: bytes | None = None
        section = b""
        next_offset = -1
        for record in records:
            # A section with an expiry means another time with each timestamp: those begin a run each.
            if run is not None and record[0] == next_offset and record[4] == section and record[2] == key:
                run.payloads.append(record[3] or b"")
            else:
                run = None
                topic = topic_of(record, self.tp.topic)
                if wanted is None or wanted(topic):
                    found = run_of(record, self, topic)
                    runs.append(found)
                    if found.expires_ms is None:
                        run = found
                _, _, key, _, section = record
            next_offset = record[0] + 1
        return runs

    async def read_records(
        self, offset: int, max_bytes: int, wanted: Callable[[BatchHeader], bool] | None = None
    ) -> tuple[list[LightRecord], int]:
        try:
            return await read_portion(self._store, self.tp, offset, max_bytes, wanted)
        except OffsetOutOfRange:
            return [], self._store.bounds(self.tp).log_start_offset  # retention went past us, or the topic is a new one

    def end_offset(self) -> int:
        """The end of what is known to be in the log: all that this broker has acknowledged is in front of it.

        Nothing is that waits for its place, though it may have been read already behind what others wrote.
        """
        return self._placed_to if self._unplaced else max(self._placed_to, self.delivered_to)

    async def read_at(self, offset: int, max_bytes: int) -> Message | None:
        """The publication at this offset, if it is still there."""
        try:
            runs, _ = await self.read(offset, max_bytes)
        except LogError:
            return None
        return runs[0].messages[0] if runs and runs[0].offset == offset else None


def run_of(record: LightRecord, source: Source, topic: str) -> Run:
    """A run of the one publication that a record holds; `topic` is what `topic_of` said."""
    offset, timestamp_ms, _, value, section = record
    traits = traits_of(section)
    expires_ms = None if traits.expiry_s is None else timestamp_ms + traits.expiry_s * 1000
    return Run(
        topic,
        [value or b""],
        traits.qos,
        traits.retain,
        traits.properties,
        expires_ms,
        traits.publisher,
        source.tp,
        offset,
    )
