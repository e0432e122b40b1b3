"""Messages that are appended and have no place yet: counted, dealt to nobody, and taken over in the order of the log."""

from __future__ import annotations

from random import Random

import pytest

from tests.late_log import LateLog
from tests.stores import seed
from tests.unit.cursors.queue.harness import (
    NOW_MS,
    TIGHT,
    TP,
    Bench,
    Consumer,
    bodies,
    message,
    numbered,
    opened,
    run,
)
from trunkline.cursors.queue import Overflow, QueueFull, QueueLimits, QueueSettings
from trunkline.log.batch import NewRecord, build_batch
from trunkline.log.errors import LogError, StorageFailure
from trunkline.log.store import Durability


def _late(bench: Bench) -> LateLog:
    assert isinstance(bench.store, LateLog)
    return bench.store


async def _produce_elsewhere(bench: Bench, *values: bytes) -> None:
    """As somebody else does who writes to the same log."""
    await _late(bench).below.append(TP, build_batch([NewRecord(None, value) for value in values], timestamp_ms=NOW_MS))


def test_they_are_counted_at_once_and_delivered_once_they_have_a_place() -> None:
    async def check() -> None:
        async with opened(late=True) as bench:
            consumer = Consumer()
            bench.queue.add_consumer(consumer)
            tickets = [bench.queue.put(numbered(2, start)) for start in (0, 2, 4)]
            bench.turn()
            assert [ticket.place for ticket in tickets] == [None] * 3
            assert consumer.got == []
            assert (bench.queue.stats().ready, bench.queue.stats().published) == (6, 6)
            bench.queue.remove_consumer(consumer)
            for ticket in tickets:
                await ticket
            assert bench.queue.loaded == 6, "what continues the queue is not read back"
            bench.queue.add_consumer(consumer)
            bench.turn()
            assert bodies(consumer.got) == ["0", "1", "2", "3", "4", "5"]
            assert [delivery.offset for delivery in consumer.got] == list(range(6))

    run(check())


def test_whoever_asks_for_a_message_waits_for_those_that_are_under_way() -> None:
    async def check() -> None:
        async with opened(late=True) as bench:
            bench.queue.put(numbered(2))
            assert bodies(await bench.take(2)) == ["0", "1"]
            bench.queue.put(numbered(3, 2))
            assert bodies(await bench.queue.peek(None, 5)) == ["2", "3", "4"]
            bench.queue.put(numbered(1, 5))
            assert await bench.queue.purge() == 4
            assert await bench.take(1) == []

    run(check())


def test_what_others_append_in_between_stands_where_the_log_has_it() -> None:
    async def check() -> None:
        async with opened(late=True) as bench:
            first = bench.queue.put(numbered(2))
            await _produce_elsewhere(bench, b"theirs")
            second = bench.queue.put(numbered(1, 2))
            assert (await first).base_offset == 1
            assert (await second).base_offset == 3
            assert bodies(await bench.take(4)) == ["theirs", "0", "1", "2"]
            await bench.settle()
            assert bench.queue.stats()[:2] == (0, 4)

    run(check())


def test_a_refused_append_leaves_nothing_behind() -> None:
    async def check() -> None:
        async with opened(late=True) as bench:
            _late(bench).faults = 1.0
            ticket = bench.queue.put(numbered(3))
            assert bench.queue.ready == 3
            with pytest.raises(StorageFailure):
                await ticket
            _late(bench).heal()
            await bench.settle()
            assert (bench.queue.ready, bench.queue.ready_bytes, bench.queue.stats().published) == (0, 0, 0)
            await _put(bench, b"next")
            assert bodies(await bench.take(2)) == ["next"]

    run(check())


def test_a_full_queue_counts_what_is_under_way() -> None:
    async def check() -> None:
        settings = QueueSettings(max_length=3, overflow=Overflow.REJECT_PUBLISH)
        async with opened(settings, late=True) as bench:
            bench.queue.put(numbered(2))
            with pytest.raises(QueueFull) as full:
                bench.queue.put(numbered(2, 2))
            assert full.value.accepted == 1
            assert bodies(await bench.take(9)) == ["0", "1", "2"]

    run(check())


def test_the_head_is_dropped_when_what_pushes_it_out_has_a_place() -> None:
    async def check() -> None:
        async with opened(QueueSettings(max_length=2, dead_letter=("dead", None)), late=True) as bench:
            await bench.queue.put(numbered(2))
            ticket = bench.queue.put(numbered(3, 2))
            assert bench.queue.ready == 2
            assert bench.dead == []
            await ticket
            assert [delivery.message.value for delivery, _ in bench.dead] == [b"0", b"1", b"2"]
            assert bodies(await bench.take(9)) == ["3", "4"]

    run(check())


def test_a_queue_may_go_while_messages_are_under_way() -> None:
    async def check() -> None:
        async with opened(late=True) as bench:
            consumer = Consumer()
            bench.queue.add_consumer(consumer)
            ticket = bench.queue.put(numbered(3))
            bench.queue.vanish("it was deleted")
            await ticket
            await bench.settle()
            assert consumer.got == []
            assert bench.queue.ready == 0
            assert bench.runtime.held_bytes == 0

    run(check())


def test_a_message_with_no_time_to_live_is_for_a_consumer_who_waits_however_late_its_place_is_known() -> None:
    async def check() -> None:
        async with opened(late=True) as bench:
            consumer = Consumer()
            bench.queue.add_consumer(consumer)
            ticket = bench.queue.put([message("brief")._replace(expires_ms=NOW_MS, timestamp_ms=NOW_MS)])
            bench.turn()
            bench.clock.advance(50)
            await ticket
            bench.turn()
            assert bodies(consumer.got) == ["brief"]

    run(check())


def test_the_body_of_a_scheduled_message_is_kept_until_its_record_has_a_place() -> None:
    async def check() -> None:
        async with opened(limits=QueueLimits(max_scheduled_bytes=0), late=True) as bench:
            scheduling = bench.queue.schedule(message("later"), NOW_MS + 100)
            (entry,) = bench.queue.scheduled()
            assert (entry.state_offset, entry.message is not None) == (-1, True)
            assert scheduling.stored is not None
            place = await scheduling.stored
            (entry,) = bench.queue.scheduled()
            assert (entry.state_offset, entry.message) == (place.base_offset, None)
            await bench.advance(200)
            assert bodies(await bench.take(1)) == ["later"]
            await bench.settle()
            assert bench.queue.scheduled() == []

    run(check())


def test_a_scheduled_message_whose_record_is_refused_is_not_scheduled() -> None:
    async def check() -> None:
        async with opened(late=True) as bench:
            _late(bench).faults = 1.0
            scheduling = bench.queue.schedule(message("never"), NOW_MS + 100)
            assert scheduling.stored is not None
            with pytest.raises(StorageFailure):
                await scheduling.stored
            await bench.settle()
            assert bench.queue.scheduled() == []

    run(check())


def test_a_scheduled_message_that_is_refused_when_it_is_due_tries_again() -> None:
    async def check() -> None:
        async with opened(late=True) as bench:
            scheduling = bench.queue.schedule(message("later"), NOW_MS + 100)
            assert scheduling.stored is not None
            await scheduling.stored
            _late(bench).faults = 1.0
            await bench.advance(200)
            assert len(bench.queue.scheduled()) == 1
            assert bench.queue.ready == 0
            _late(bench).heal()
            while bench.queue.scheduled():
                await bench.advance(2_000)  # until the outage is over, too
            assert bodies(await bench.take(9)) == ["later"]

    run(check())


def test_settlements_that_are_refused_are_written_again() -> None:
    async def check() -> None:
        async with opened(late=True) as bench:
            await bench.queue.put(numbered(3))
            taken = await bench.take(2)
            await bench.settle()
            _late(bench).faults = 1.0
            bench.queue.acknowledge([taken[0].offset, taken[1].offset])
            bench.turn()
            await bench.answered()
            assert bench.runtime.journal.pending
            _late(bench).heal()
            await bench.answered()
            while bench.runtime.journal.pending:
                committed = bench.queue.committed()
                try:
                    assert committed is not None
                    await committed
                except StorageFailure:
                    await bench.answered()
            await bench.crash()
            assert bodies(await bench.take(9)) == ["2"]

    run(check())


async def _put(bench: Bench, value: bytes) -> None:
    """As a publisher does who tries again."""
    while True:
        try:
            await bench.queue.put([message(value)], Durability.DISK)
        except LogError:
            await bench.answered()
        else:
            return


@pytest.mark.parametrize("limits", [None, TIGHT], ids=["roomy", "tight"])
def test_everything_comes_once_and_in_the_order_of_the_log_whoever_wrote_it(limits: QueueLimits | None) -> None:
    async def check() -> None:
        chance = Random(seed())
        async with opened(limits=limits, late=True) as bench:
            late = _late(bench)
            consumer = Consumer(prefetch=5)
            bench.queue.add_consumer(consumer)
            tickets = []
            for number in range(300):
                late.faults = 0.05 if number % 3 else 0.0
                if chance.random() < 0.3:
                    await _produce_elsewhere(bench, b"%d" % number)
                else:
                    tickets.append(bench.queue.put([message(number)]))
                if chance.random() < 0.3:
                    await tickets[-1].until_placed() if tickets else None
                bench.turn()
                consumer.acknowledge()
            late.heal()
            # News of what others appended last may still be on its way to the queue.
            while await late.rest() or bench.queue.ready or bench.queue.unacked:
                await bench.advance(1_000)  # a read that failed is tried again after a while
                consumer.acknowledge()
            log = await bench.queue._backing.read(0)
            stands: list[bytes] = []
            while log[0]:
                stands += [each.value for each in log[1]]
                log = await bench.queue._backing.read(log[2])
            assert [delivery.message.value for delivery in consumer.got] == stands
            assert len(set(stands)) == len(stands) > 150
            for ticket in tickets:
                assert ticket.done()

    run(check())
