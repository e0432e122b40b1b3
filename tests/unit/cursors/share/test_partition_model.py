"""A share partition against a reference that knows every record by itself."""

from __future__ import annotations

from uuid import UUID

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from trunkline.cursors.queue import state
from trunkline.cursors.queue.progress import Progress
from trunkline.cursors.queue.restored import RestoredQueue
from trunkline.cursors.share import Acknowledgement, AcknowledgeType
from trunkline.cursors.share.errors import ShareError
from trunkline.cursors.share.partition import SharePartition, Span
from trunkline.log.topic import TopicPartition

TOPIC_ID = UUID(int=1)
MEMBERS = ("anna", "ben")
LOCK_MS, LIMIT, MAX_LOCKS = 1_000.0, 3, 40
GAP, ACCEPT, RELEASE, REJECT, RENEW = AcknowledgeType


class Record:
    """What the reference knows of one offset."""

    def __init__(self, has_data: bool) -> None:
        self.has_data = has_data
        self.done = False
        self.accepted = 0
        self.count = 0
        self.member: str | None = None
        self.until_ms = 0.0
        self.last_chance = False  # a restart came while it was out for the last time

    def give_back(self) -> None:
        self.member = None
        self.done = self.count >= LIMIT and not self.last_chance


class ShareModel(RuleBasedStateMachine):
    @initialize(start=st.integers(0, 50))
    def begin(self, start: int) -> None:
        self.start = start  # of the log
        self.spans: list[Span] = []
        self.records: dict[int, Record] = {}
        self.end = start  # of the log
        self.now_ms = 0.0
        self.journal: dict[bytes, bytes] = {}
        self.partition = self.made(start)

    def made(self, start: int) -> SharePartition:
        return SharePartition("g", TopicPartition("t", 0), Progress("id", TOPIC_ID, start, in_order=True))

    def write(self) -> None:
        for key, value in self.partition.progress.changes():
            if value is None:
                self.journal.pop(key, None)
            else:
                self.journal[key] = value

    # -- the log -----------------------------------------------------------------------------------------------------

    @rule(
        size=st.integers(1, 12), has_data=st.sampled_from([True, True, True, False]), skipped=st.sampled_from([0, 0, 3])
    )
    def append(self, size: int, has_data: bool, skipped: int) -> None:
        first = self.end + skipped  # compaction leaves offsets without a batch
        for offset in range(self.end, first):
            self.records[offset] = Record(has_data=False)
        self.spans.append(Span(first, first + size - 1, has_data))
        for offset in range(first, first + size):
            self.records[offset] = Record(has_data)
        self.end = first + size

    @precondition(lambda self: self.spans)
    @rule(data=st.data())
    def trim(self, data: st.DataObject) -> None:
        self.start = data.draw(st.sampled_from([span.first for span in self.spans]))
        self.spans = [span for span in self.spans if span.first >= self.start]
        self.partition.trim(self.start)
        for offset, record in self.records.items():
            if offset < self.start:
                record.done, record.member = True, None
        self.write()

    # -- members -----------------------------------------------------------------------------------------------------

    @rule(
        member=st.sampled_from(MEMBERS),
        wanted=st.integers(1, 20),
        batch=st.integers(1, 10),
        strict=st.booleans(),
        read=st.integers(1, 6),
    )
    def acquire(self, member: str, wanted: int, batch: int, strict: bool, read: int) -> None:
        offset = self.partition.next_offset
        spans = [span for span in self.spans if span.last >= offset][:read]
        before = {each: record.count for each, record in self.records.items()}
        until_ms = self.now_ms + LOCK_MS
        taken = self.partition.acquire(
            member, spans, read_from=offset, max_records=wanted, batch_records=batch, strict=strict,
            max_locks=MAX_LOCKS, delivery_limit=LIMIT, until_ms=until_ms,
        )  # fmt: skip
        offsets = [each for first, last, _ in taken for each in range(first, last + 1)]
        assert offsets == sorted(set(offsets))
        assert not strict or len(offsets) <= wanted
        for first, last, count in taken:
            for each in range(first, last + 1):
                record = self.records[each]
                assert record.has_data
                assert not record.done
                assert record.member is None
                assert count == before[each] + 1 or (record.last_chance and count == before[each])
                record.member, record.count, record.until_ms = member, count, until_ms
                record.last_chance = False
        # The broker is done with gaps as soon as it sees them.
        seen = spans[-1].last if spans else -1
        for each, record in self.records.items():
            passed = each < self.partition.end or each <= (offsets[-1] if offsets else -1)
            if not record.has_data and record.member is None and passed and each <= seen:
                record.done = True
        could = any(
            record.has_data and not record.done and record.member in (None, member)
            for each, record in self.records.items()
            if any(span.first <= each <= span.last for span in spans) and each >= offset
        )
        if could and self.partition.end - self.partition.head < MAX_LOCKS:
            assert taken or not any(
                record.has_data and not record.done and record.member is None
                for each, record in self.records.items()
                if each >= offset and any(span.first <= each <= span.last for span in spans)
            )
        self.write()

    @precondition(lambda self: any(record.member for record in self.records.values()))
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        member = data.draw(st.sampled_from([m for m in MEMBERS if any(r.member == m for r in self.records.values())]))
        held = sorted(each for each, record in self.records.items() if record.member == member)
        first = data.draw(st.sampled_from(held))
        last = first
        while last + 1 in self.records and self.records[last + 1].member == member and data.draw(st.integers(0, 9)):
            last += 1
        kinds = st.sampled_from([int(each) for each in AcknowledgeType])
        size = last - first + 1
        types = data.draw(
            st.one_of(st.lists(kinds, min_size=1, max_size=1), st.lists(kinds, min_size=size, max_size=size))
        )
        self.partition.acknowledge(
            member, [Acknowledgement(first, last, types)], delivery_limit=LIMIT, renewable=True,
            until_ms=self.now_ms + LOCK_MS,
        )  # fmt: skip
        for each in range(first, last + 1):
            record, kind = self.records[each], types[0] if len(types) == 1 else types[each - first]
            if kind == RENEW:
                record.until_ms = self.now_ms + LOCK_MS
            elif kind == RELEASE:
                record.give_back()
            else:
                record.member, record.done = None, True
                record.accepted += kind == ACCEPT
        self.write()

    @precondition(lambda self: self.records)
    @rule(data=st.data(), member=st.sampled_from(MEMBERS), kind=st.sampled_from([ACCEPT, RELEASE, RENEW]))
    def acknowledge_what_another_holds(self, data: st.DataObject, member: str, kind: int) -> None:
        first = data.draw(st.integers(0, self.end + 2))
        last = first + data.draw(st.integers(0, 5))
        good = all(
            each in self.records and self.records[each].member == member
            for each in range(max(first, self.partition.head), last + 1)
        )
        if good:
            return
        try:
            self.partition.acknowledge(
                member, [Acknowledgement(first, last, [kind])], delivery_limit=LIMIT, renewable=True, until_ms=0
            )
        except ShareError:
            return
        raise AssertionError(f"{member} could acknowledge {first} to {last}")

    @rule(member=st.sampled_from(MEMBERS))
    def close_session(self, member: str) -> None:
        self.partition.release_all(member, LIMIT)
        for record in self.records.values():
            if record.member == member:
                record.give_back()
        self.write()

    @rule(ms=st.sampled_from([100.0, 500.0, LOCK_MS]))
    def let_time_pass(self, ms: float) -> None:
        self.now_ms += ms
        self.partition.release_late(self.now_ms, LIMIT)
        for record in self.records.values():
            if record.member is not None and record.until_ms <= self.now_ms:
                record.give_back()
        self.write()

    @rule()
    def kill_and_restart(self) -> None:
        restored = RestoredQueue()
        for key, value in self.journal.items():
            found = state.decode_key(key)
            assert found is not None
            if found[0] == state.HEAD:
                restored.head = state.decode_head(value)
            else:
                restored.chunks[found[2]] = state.decode_chunk(value)
        if restored.head is None:
            return
        self.partition = self.made(restored.head.head)
        self.partition.restore(restored, self.start, self.end)
        for record in self.records.values():
            if record.member is not None:
                record.last_chance = record.count >= LIMIT
                record.member = None

    # -- what always holds -------------------------------------------------------------------------------------------

    @invariant()
    def it_is_what_the_reference_says(self) -> None:
        if not hasattr(self, "partition"):
            return
        partition = self.partition
        for each, record in self.records.items():
            if each >= partition.end:
                assert record.member is None
                assert not record.accepted
                continue
            assert (each in partition.progress.settled) == record.done, each
            if not record.done:
                assert partition.progress.prior(each) == record.count
            assert record.accepted <= 1
        in_flight = {each: run for run in partition.in_flight for each in range(run.first, run.last + 1)}
        expected = {
            each for each, record in self.records.items() if partition.head <= each < partition.end and not record.done
        }
        assert set(in_flight) == expected
        for each, run in in_flight.items():
            assert (run.member, run.count) == (self.records[each].member, self.records[each].count)
        assert partition.in_flight.free == sum(1 for run in in_flight.values() if run.member is None)


TestShareModel = ShareModel.TestCase
TestShareModel.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
