"""What a share partition promises, by example; the model test covers the rest."""

from __future__ import annotations

from uuid import UUID

import pytest

from trunkline.cursors.queue.progress import Progress
from trunkline.cursors.share import Acknowledgement, AcknowledgeType, Acquired, InvalidAcknowledgement, RecordNotHeld
from trunkline.cursors.share.partition import SharePartition, Span
from trunkline.log.topic import TopicPartition

GAP, ACCEPT, RELEASE, REJECT, RENEW = (int(kind) for kind in AcknowledgeType)
LIMIT = 5


class Group:
    def __init__(self, *sizes: int, data: bool = True) -> None:
        self.spans: list[Span] = []
        self.partition = SharePartition("g", TopicPartition("t", 0), Progress("id", UUID(int=1), 0, in_order=True))
        for size in sizes:
            self.append(size, data)

    def append(self, size: int, data: bool = True) -> None:
        first = self.spans[-1].last + 1 if self.spans else 0
        self.spans.append(Span(first, first + size - 1, data))

    def take(
        self, member: str = "anna", wanted: int = 500, *, batch: int = 500, strict: bool = False, locks: int = 2_000
    ) -> list[Acquired]:
        offset = self.partition.next_offset
        spans = [span for span in self.spans if span.last >= offset]
        return self.partition.acquire(
            member, spans, read_from=offset, max_records=wanted, batch_records=batch, strict=strict,
            max_locks=locks, delivery_limit=LIMIT, until_ms=1_000,
        )  # fmt: skip

    def say(self, kind: int | list[int], first: int, last: int, member: str = "anna", renewable: bool = True) -> None:
        types = [kind] if isinstance(kind, int) else kind
        said = [Acknowledgement(first, last, types)]
        self.partition.acknowledge(member, said, delivery_limit=LIMIT, renewable=renewable, until_ms=2_000)


def test_whole_batches_are_given_out_unless_the_member_is_strict() -> None:
    assert Group(10, 10).take(wanted=5) == [(0, 9, 1)]
    assert Group(10, 10).take(wanted=5, strict=True) == [(0, 4, 1)]


def test_ranges_are_of_about_the_size_that_is_asked_for() -> None:
    assert Group(*[10] * 6).take(batch=20) == [(0, 19, 1), (20, 39, 1), (40, 59, 1)]


def test_what_one_member_holds_another_does_not_get() -> None:
    group = Group(10, 10)
    assert group.take("anna", wanted=10) == [(0, 9, 1)]
    assert group.take("ben", wanted=10) == [(10, 19, 1)]
    assert group.take("ben") == []


def test_batches_without_data_are_passed_over() -> None:
    group = Group(5)
    group.append(1, data=False)
    group.append(5)
    assert group.take() == [(0, 4, 1), (6, 10, 1)]
    group.say(ACCEPT, 0, 4)
    assert group.partition.head == 6


def test_the_start_moves_only_over_what_is_done_with() -> None:
    group = Group(10)
    group.take()
    group.say(ACCEPT, 5, 9)
    assert (group.partition.head, group.partition.lag(10)) == (0, 5)
    group.say([ACCEPT, REJECT, GAP, ACCEPT, ACCEPT], 0, 4)
    assert (group.partition.head, group.partition.lag(10)) == (10, 0)


def test_a_released_record_comes_again_with_its_count_and_is_archived_after_its_last_delivery() -> None:
    group = Group(1)
    for count in range(1, LIMIT + 1):
        assert group.take() == [(0, 0, count)]
        group.say(RELEASE, 0, 0)
    assert group.take() == []
    assert group.partition.head == 1


def test_one_bad_record_is_set_apart_from_those_that_came_with_it() -> None:
    group = Group(8)
    archived: set[int] = set()
    for _ in range(200):
        taken = group.take()
        if not taken:
            break
        bad = [(first, last) for first, last, _ in taken if first <= 3 <= last]
        for first, last, count in taken:
            if (first, last) in bad:
                group.say(RELEASE, first, last)
                if count == LIMIT:
                    archived |= set(range(first, last + 1))
            else:
                group.say(ACCEPT, first, last)
    assert archived == {3}
    assert group.partition.head == 8


def test_no_more_is_held_than_may_be() -> None:
    group = Group(*[10] * 10)
    assert group.take(locks=30) == [(0, 29, 1)]
    assert group.take("ben", locks=30) == []
    assert not group.partition.can_give(30)
    group.say(ACCEPT, 0, 9)
    assert group.take("ben", locks=30) == [(30, 39, 1)]


def test_locks_end_by_themselves_unless_they_are_renewed() -> None:
    group = Group(4)
    group.take()
    group.say(RENEW, 2, 3)
    assert group.partition.release_late(1_500, LIMIT)
    assert group.take("ben") == [(0, 1, 2)]
    assert group.partition.next_deadline_ms() == 1_000
    assert group.partition.release_late(2_000, LIMIT)
    assert group.take("ben") == [(0, 1, 3), (2, 3, 2)]


def test_a_closed_session_gives_back_what_its_member_held() -> None:
    group = Group(2, 2)
    group.take("anna", wanted=2)
    group.take("ben", wanted=2)
    woken: list[int] = []
    group.partition.watch(lambda: woken.append(1))
    assert group.partition.release_all("anna", LIMIT)
    assert woken
    assert group.take("ben") == [(0, 1, 2)]


def test_only_the_holder_says_what_becomes_of_a_record() -> None:
    group = Group(10, 10)
    group.take("anna", wanted=10)
    group.take("ben", wanted=10)
    for first, last, member in ((0, 9, "ben"), (5, 12, "anna"), (8, 12, "ben")):
        with pytest.raises(RecordNotHeld):
            group.say(ACCEPT, first, last, member)
    group.say(RELEASE, 0, 4)
    with pytest.raises(RecordNotHeld):
        group.say(ACCEPT, 0, 9)  # part of it is no longer held: nothing of it is done
    group.say(ACCEPT, 5, 9)
    with pytest.raises(RecordNotHeld):
        group.say(ACCEPT, 5, 9)
    assert group.partition.head == 0


def test_what_was_never_given_out_cannot_be_acknowledged() -> None:
    group = Group(10, 10)
    group.take(wanted=10)
    for first, last in ((5, 10), (10, 12), (100, 100), (3, 2), (-5, 2)):
        with pytest.raises(InvalidAcknowledgement):
            group.say(ACCEPT, first, last)
    for types in ([], [ACCEPT, ACCEPT], [5], [-1]):
        with pytest.raises(InvalidAcknowledgement):
            group.say(types, 0, 9)
    group.say(ACCEPT, 0, 9)
    group.say(ACCEPT, 0, 9)  # done with long ago: nothing to say


def test_renewing_can_be_switched_off() -> None:
    group = Group(1)
    group.take()
    with pytest.raises(RecordNotHeld):
        group.say(RENEW, 0, 0, renewable=False)


def test_who_waits_is_woken_when_a_record_comes_back_or_more_can_be_held() -> None:
    group = Group(10)
    group.take()
    woken: list[str] = []
    group.partition.watch(lambda: woken.append("x"))
    group.say(RENEW, 0, 9)
    assert woken == []
    group.say(RELEASE, 5, 5)
    group.say(ACCEPT, 0, 4)
    assert len(woken) == 2


def test_a_log_that_is_trimmed_takes_records_along() -> None:
    group = Group(10, 10)
    group.take()
    assert group.partition.trim(15)
    assert group.partition.head == 15
    group.say(ACCEPT, 15, 19)
    assert group.partition.head == 20
    assert group.partition.trim(40)
    assert group.partition.next_offset == 40
