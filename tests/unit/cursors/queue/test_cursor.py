"""The promises of a queue, one by one, with messages pulled by `acquire`."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.cursors.queue.harness import (
    NOW_MS,
    QUEUE,
    TIGHT,
    TP,
    bodies,
    message,
    numbered,
    offsets,
    opened,
    run,
)
from trunkline.cursors.queue import (
    DELIVERY_LIMIT,
    EXPIRED,
    MAXLEN,
    Message,
    Overflow,
    QueueFull,
    QueueLimits,
    QueueSettings,
    ScheduleFull,
)
from trunkline.log.batch import NewRecord, build_batch
from trunkline.log.errors import StorageFailure
from trunkline.log.store import Durability

DEAD = ("dead", None)


def test_what_comes_back_goes_to_its_place_and_is_marked() -> None:
    async def check() -> None:
        async with opened() as bench:
            queue = bench.queue
            await queue.put(numbered(6))
            first = queue.acquire(4)
            assert bodies(first) == ["0", "1", "2", "3"]
            assert not any(delivery.redelivered for delivery in first)
            queue.release([2, 0])
            again = queue.acquire(10)
            assert [(d.offset, d.redelivered, d.delivery_count) for d in again] == [
                (0, True, 2), (2, True, 2), (4, False, 1), (5, False, 1),
            ]  # fmt: skip

    run(check())


def test_acknowledging_up_to_an_offset_settles_what_that_consumer_holds() -> None:
    async def check() -> None:
        async with opened() as bench:
            queue = bench.queue
            await queue.put(numbered(6))
            queue.acquire(2, consumer="a")
            queue.acquire(2, consumer="b")
            queue.acquire(2, consumer="a")
            assert queue.acknowledge_up_to(4, "a") == 3
            assert queue.held_by("a") == [5]
            assert queue.held_by("b") == [2, 3]
            assert queue.acknowledge([0, 1, 99]) == 0, "not leased any more"

    run(check())


def test_acknowledged_messages_are_not_seen_after_kill_9_and_the_others_are_marked() -> None:
    async def check() -> None:
        async with opened() as bench:
            await bench.queue.put(numbered(10))
            bench.queue.acquire(6)
            bench.queue.acknowledge([0, 1, 4])
            bench.turn()
            await bench.crash()
            found = await bench.take(10)
            assert [(d.offset, d.redelivered) for d in found] == [
                (2, True), (3, True), (5, True), (6, False), (7, False), (8, False), (9, False),
            ]  # fmt: skip

    run(check())


def test_messages_come_again_when_the_process_died_before_their_acknowledgement_was_written() -> None:
    async def check() -> None:
        async with opened() as bench:
            await bench.queue.put(numbered(3))
            bench.queue.acquire(3)
            bench.queue.acknowledge([0, 1, 2])
            bench.runtime.journal._touched.clear()  # as if killed before the end of the turn
            await bench.crash()
            assert [d.redelivered for d in await bench.take(5)] == [True, True, True]

    run(check())


def test_an_acknowledgement_is_on_disk_when_its_commit_says_so() -> None:
    async def check() -> None:
        async with opened() as bench:
            await bench.queue.put(numbered(3), Durability.DISK)
            bench.queue.acquire(3)
            bench.queue.acknowledge([0])
            committed = bench.queue.committed()
            assert committed is not None
            await committed
            assert bench.queue.committed() is None
            bench.queue.acknowledge([1])
            bench.turn()
            later = bench.queue.committed()
            assert later is not None, "written, but only to the operating system"
            await later

    run(check())


def test_a_log_that_lost_its_end_takes_the_state_back_with_it() -> None:
    """Offsets are used again then: what is put at them is new."""

    async def check() -> None:
        async with opened() as bench:
            await bench.queue.put(numbered(10))
            bench.queue.acquire(10)
            bench.queue.acknowledge([*range(5), 7, 9])
            bench.turn()
            await bench.close()
            log = next((bench.directory / f"{QUEUE}-0").glob("*.log"))
            log.write_bytes(b"")
            for name in (".clean_shutdown", "checkpoint.json"):
                (bench.directory / name).unlink()
            await bench.open()
            assert bench.store.bounds(TP).high_watermark == 0
            await bench.queue.put(numbered(10, 100))
            await bench.crash()
            found = await bench.take(20)
            assert bodies(found) == [str(number) for number in range(100, 110)]
            assert not any(delivery.redelivered for delivery in found)

    run(check())


def test_state_of_a_deleted_topic_of_the_same_name_is_not_used() -> None:
    async def check() -> None:
        async with opened() as bench:
            await bench.queue.put(numbered(5))
            bench.queue.acquire(5)
            bench.queue.acknowledge(range(5))
            bench.turn()
            await bench.store.delete_topic(QUEUE)
            bench.turn()
            assert bench.queue.gone
            await bench.store.create_topic(QUEUE, 1)
            await bench.restart()
            await bench.produce(b"new")
            assert bodies(await bench.take(5)) == ["new"]

    run(check())


def test_a_lease_that_ends_gives_the_message_to_the_next_and_one_that_is_extended_does_not() -> None:
    async def check() -> None:
        async with opened() as bench:
            queue = bench.queue
            await queue.put(numbered(2))
            queue.acquire(2, lease_ms=1000)
            await bench.advance(900)
            assert queue.extend(1, 1000)
            await bench.advance(100)
            assert offsets(queue.acquire(5)) == [0]
            await bench.advance(900)
            assert [(d.offset, d.delivery_count) for d in queue.acquire(5)] == [(1, 2)]
            assert queue.extend(1, 0), "at once"
            assert queue.ready == 1
            assert not queue.extend(1, 10)

    run(check())


def test_a_message_returned_more_often_than_allowed_is_dead_lettered() -> None:
    async def check() -> None:
        async with opened(QueueSettings(delivery_limit=2, dead_letter=DEAD)) as bench:
            await bench.queue.put(numbered(1))
            for _ in range(3):
                assert bodies(bench.queue.acquire(1)) == ["0"]
                bench.queue.release([0])
            assert [(d.delivery_count, reason) for d, reason in bench.dead] == [(3, DELIVERY_LIMIT)]
            assert bench.queue.stats()[:2] == (0, 0)

    run(check())


def test_the_delivery_count_survives_kill_9() -> None:
    async def check() -> None:
        async with opened(QueueSettings(delivery_limit=2, dead_letter=DEAD)) as bench:
            await bench.queue.put(numbered(1))
            for _ in range(2):
                await bench.take(1)
                bench.queue.release([0])
                bench.turn()
                await bench.crash()
            assert [d.delivery_count for d in await bench.take(1)] == [3]
            await bench.crash()
            assert [d.delivery_count for d in await bench.take(1)] == [4], "it was handed out when the process died"

    run(check())


def test_priorities_come_first_and_in_order_within_one() -> None:
    async def check() -> None:
        async with opened(QueueSettings(max_priority=5)) as bench:
            queue = bench.queue
            await queue.put([message(n, priority=p) for n, p in enumerate([0, 3, 9, 3, 5, 0])])
            assert bodies(queue.acquire(10)) == ["2", "4", "1", "3", "0", "5"]
            queue.release([0, 3, 5])
            assert bodies(queue.acquire(2)) == ["3", "0"]
            queue.acknowledge([1, 3])
            bench.turn()
            await bench.crash()
            found = await bench.take(10)
            assert [(d.offset, d.redelivered) for d in found] == [(2, True), (4, True), (0, True), (5, True)]

    run(check())


def test_with_priorities_only_what_was_handed_out_is_marked_after_kill_9() -> None:
    async def check() -> None:
        async with opened(QueueSettings(max_priority=5)) as bench:
            await bench.queue.put([message(n, priority=p) for n, p in enumerate([0, 1, 2])])
            assert bodies(bench.queue.acquire(1)) == ["2"]
            await bench.crash()
            assert [(d.offset, d.redelivered) for d in await bench.take(3)] == [(2, True), (1, False), (0, False)]

    run(check())


@pytest.mark.at_once(
    "a late store may have filled the look-ahead again, and then there is no room in it for the urgent one"
)
def test_an_urgent_message_overtakes_a_backlog_deeper_than_the_look_ahead() -> None:
    async def check() -> None:
        limits = QueueLimits(buffer_messages=10, read_bytes=300)
        async with opened(QueueSettings(max_priority=9), limits) as bench:
            for start in range(0, 60, 3):
                await bench.queue.put([message(number) for number in range(start, start + 3)])
            first = await bench.take(3)
            await bench.queue.put([message("urgent", priority=9), message("usual")])
            found = await bench.take(100)
            assert bodies(found)[0] == "urgent"
            assert sorted(offsets(first + found)) == list(range(62)), "each once"
            assert bodies(found)[1:] == [*map(str, range(3, 60)), "usual"]

    run(check())


def test_records_of_one_key_are_with_one_consumer_at_a_time() -> None:
    async def check() -> None:
        async with opened(QueueSettings(order_by_key=True)) as bench:
            queue = bench.queue
            await queue.put([message(f"{k}{n}", key=k.encode()) for n in range(2) for k in "ab"] + [message("free")])
            assert bodies(queue.acquire(1, consumer=1)) == ["a0"]
            assert bodies(queue.acquire(10, consumer=2)) == ["b0", "b1", "free"]
            assert queue.acquire(10, consumer=3) == []
            assert not await queue.load()
            assert queue.stats().ready == 1
            assert bodies(queue.acquire(10, consumer=1)) == ["a1"], "its own"
            queue.release([0])
            assert queue.acquire(10, consumer=3) == [], "a1 is still with 1"
            assert queue.acknowledge([2]) == 1
            assert bodies(queue.acquire(10, consumer=3)) == ["a0"]

    run(check())


def test_a_message_expires_by_its_own_time_or_the_queues() -> None:
    async def check() -> None:
        async with opened(QueueSettings(message_ttl_ms=1000, dead_letter=DEAD)) as bench:
            queue = bench.queue
            own = message("own", ttl_ms=300)
            await queue.put([own._replace(timestamp_ms=NOW_MS, expires_ms=NOW_MS + 300), message("queue's")])
            await bench.advance(300)
            assert queue.ready == 2, "its last millisecond"
            await bench.advance(1)
            assert [(d.message.value, reason) for d, reason in bench.dead] == [(b"own", EXPIRED)]
            await bench.advance(700)
            assert [d.message.value for d, _ in bench.dead] == [b"own", b"queue's"]
            assert queue.stats()[:2] == (0, 0)

    run(check())


def test_expiry_is_kept_in_the_record_and_found_again_after_a_restart_though_nobody_consumes() -> None:
    async def check() -> None:
        async with opened(QueueSettings(dead_letter=DEAD)) as bench:
            own = message("own", ttl_ms=300)._replace(timestamp_ms=NOW_MS, expires_ms=NOW_MS + 300)
            await bench.queue.put([own, message("stays")])
            await bench.restart()
            assert await bench.queue.load()
            await bench.advance(301)
            assert [(d.message.value, reason) for d, reason in bench.dead] == [(b"own", EXPIRED)]
            assert bodies(await bench.take(5)) == ["stays"]

    run(check())


def test_what_expired_behind_others_is_dead_lettered_when_it_comes_up() -> None:
    async def check() -> None:
        async with opened(QueueSettings(dead_letter=DEAD)) as bench:
            late = message("late", ttl_ms=10)._replace(timestamp_ms=NOW_MS, expires_ms=NOW_MS + 10)
            await bench.queue.put([message("a"), late, message("b")])
            await bench.advance(100)
            assert bench.dead == [], "not at the front"
            assert bodies(await bench.take(5)) == ["a", "b"]
            assert [reason for _, reason in bench.dead] == [EXPIRED]

    run(check())


@pytest.mark.parametrize("limits", [None, TIGHT], ids=["roomy", "tight"])
def test_a_full_queue_drops_its_oldest(limits: QueueLimits | None) -> None:
    async def check() -> None:
        async with opened(QueueSettings(max_length=3, dead_letter=DEAD), limits) as bench:
            for number in range(5):
                await bench.queue.put(numbered(2, number * 2))
                await bench.settle()
            assert bench.queue.ready == 3
            assert [d.message.value for d, _ in bench.dead] == [b"%d" % n for n in range(7)]
            assert {reason for _, reason in bench.dead} == {MAXLEN}
            assert bodies(await bench.take(9)) == ["7", "8", "9"]
            await bench.queue.put(numbered(3, 10))
            bench.queue.release([7, 8, 9])
            await bench.settle()
            assert bench.queue.ready == 3, "what comes back counts"

    run(check())


def test_a_full_queue_drops_its_oldest_by_bytes() -> None:
    async def check() -> None:
        async with opened(QueueSettings(max_bytes=25)) as bench:
            await bench.queue.put([Message(b"x" * 10) for _ in range(4)])
            assert bench.queue.stats().ready == 2
            assert bench.queue.ready_bytes == 20

    run(check())


@pytest.mark.parametrize("overflow", [Overflow.REJECT_PUBLISH, Overflow.REJECT_PUBLISH_DLX])
def test_a_full_queue_rejects_what_does_not_fit_and_says_what_did(overflow: Overflow) -> None:
    async def check() -> None:
        async with opened(QueueSettings(max_length=3, overflow=overflow, dead_letter=DEAD)) as bench:
            await bench.queue.put(numbered(2))
            with pytest.raises(QueueFull) as full:
                bench.queue.put(numbered(3, 2))
            assert full.value.accepted == 1
            assert full.value.stored is not None
            assert (await full.value.stored).last_offset == 2
            with pytest.raises(QueueFull) as full:
                bench.queue.put(numbered(1, 9))
            assert (full.value.accepted, full.value.stored) == (0, None)
            expected = [b"3", b"4", b"9"] if overflow is Overflow.REJECT_PUBLISH_DLX else []
            assert [d.message.value for d, _ in bench.dead] == expected
            assert bodies(await bench.take(9)) == ["0", "1", "2"]

    run(check())


def test_scheduled_messages_enter_when_due_can_be_listed_and_cancelled_and_survive_kill_9() -> None:
    async def check() -> None:
        async with opened() as bench:
            later = bench.queue.schedule(message("later"), NOW_MS + 2000)
            assert later.stored is not None
            await later.stored
            sooner = bench.queue.schedule(message("sooner", ttl_ms=50)._replace(timestamp_ms=NOW_MS, expires_ms=NOW_MS + 50), NOW_MS + 1000)  # fmt: skip
            never = bench.queue.schedule(message("never"), NOW_MS + 1500)
            assert bench.queue.cancel(never.id)
            assert not bench.queue.cancel(never.id)
            bench.turn()
            await bench.crash()
            assert [(entry.id, entry.due_ms) for entry in bench.queue.scheduled()] == [
                (sooner.id, NOW_MS + 1000), (later.id, NOW_MS + 2000),
            ]  # fmt: skip
            assert bench.queue.stats()[:3] == (0, 0, 2)
            await bench.advance(999)
            assert bench.queue.ready == 0
            await bench.advance(1)
            found = await bench.take(5)
            assert bodies(found) == ["sooner"]
            assert found[0].message.expires_ms == NOW_MS + 1050, "its time counts from when it entered"
            bench.turn()
            await bench.crash()
            await bench.advance(1000)
            assert bodies(await bench.take(5)) == ["later"], "the other one has expired"
            assert bench.queue.scheduled() == []

    run(check())


def test_the_number_of_scheduled_messages_is_bounded() -> None:
    async def check() -> None:
        async with opened(limits=QueueLimits(max_scheduled=2)) as bench:
            for _ in range(2):
                bench.queue.schedule(message("x"), NOW_MS + 1)
            with pytest.raises(ScheduleFull):
                bench.queue.schedule(message("x"), NOW_MS + 1)

    run(check())


def test_purging_leaves_what_is_leased() -> None:
    async def check() -> None:
        async with opened(limits=TIGHT) as bench:
            await bench.queue.put(numbered(20))
            held = offsets(await bench.take(2))
            assert await bench.queue.purge() == 18
            assert bench.queue.stats()[:2] == (0, 2)
            await bench.queue.put(numbered(1, 20))
            assert bodies(await bench.take(5)) == ["20"]
            bench.queue.release(held)
            assert offsets(await bench.take(5)) == held

    run(check())


def test_peeking_takes_nothing() -> None:
    async def check() -> None:
        async with opened(limits=TIGHT) as bench:
            await bench.queue.put(numbered(9))
            await bench.take(2)
            bench.queue.acknowledge([0])
            assert bodies(await bench.queue.peek(None, 3)) == ["2", "3", "4"]
            assert bodies(await bench.queue.peek(7, 5)) == ["7", "8"]
            assert bodies(await bench.take(9)) == [str(number) for number in range(2, 9)]

    run(check())


def test_records_of_a_kafka_producer_are_messages_and_those_of_an_aborted_transaction_are_not() -> None:
    async def check() -> None:
        async with opened() as bench:
            store = bench.store
            await bench.produce(b"plain")

            def transactional(value: bytes, sequence: int) -> bytes:
                return build_batch(
                    [NewRecord(None, value)], producer_id=7, producer_epoch=0, base_sequence=sequence,
                    transactional=True, timestamp_ms=NOW_MS,
                )  # fmt: skip

            await store.append(TP, transactional(b"aborted", 0))
            await bench.queue.put([message("behind")])
            assert bodies(await bench.take(9)) == ["plain"], "an open transaction holds back what follows it"
            await store.append_marker(TP, 7, 0, commit=False)
            assert bodies(await bench.take(9)) == ["behind"]
            await store.append(TP, transactional(b"committed", 1))
            await store.append_marker(TP, 7, 0, commit=True)
            found = await bench.take(9)
            assert bodies(found) == ["committed"]
            bench.queue.acknowledge([0, 2, 4])
            assert bench.queue.stats()[:2] == (0, 0)

    run(check())


def test_acknowledged_prefixes_free_their_segments_unless_they_are_retained() -> None:
    async def check(*, retain: bool) -> None:
        limits = QueueLimits(trim_bytes=2_000)
        async with opened(QueueSettings(retain=retain), limits, config={"segment.bytes": "1000"}) as bench:
            for start in range(0, 100, 10):
                await bench.queue.put([Message(b"x" * 100) for _ in range(10)])
                bench.queue.acquire(10)
                bench.queue.acknowledge(range(start, start + 10))
                await bench.settle()
            async with asyncio.timeout(50):
                while not retain and bench.store.bounds(TP).log_start_offset < 80:
                    await asyncio.sleep(0.01)
            assert (bench.store.bounds(TP).log_start_offset == 0) is retain
            await bench.restart()
            assert bench.queue.stats()[:2] == (0, 0)

    run(check(retain=False))
    run(check(retain=True))


def test_a_queue_stops_delivering_at_its_most_leases_and_goes_on_when_some_end() -> None:
    async def check() -> None:
        async with opened(limits=QueueLimits(max_leases=3)) as bench:
            await bench.queue.put(numbered(5))
            assert len(bench.queue.acquire(9)) == 3
            assert bench.queue.acquire(9) == []
            assert not await bench.queue.load(), "who tries until it gets something must not try for ever"
            bench.queue.acknowledge([1])
            assert await bench.queue.load()
            assert offsets(bench.queue.acquire(9)) == [3]

    run(check())


def test_a_large_put_is_split_into_batches_and_appended_as_one() -> None:
    async def check() -> None:
        async with opened(limits=QueueLimits(batch_bytes=1000)) as bench:
            appended = await bench.queue.put([Message(b"%03d" % n + b"x" * 300) for n in range(20)], Durability.DISK)
            assert (appended.base_offset, appended.last_offset) == (0, 19)
            await bench.crash()
            assert [d.message.value[:3] for d in await bench.take(99)] == [b"%03d" % n for n in range(20)]

    run(check())


@pytest.mark.parametrize("durable", [True, False])
def test_a_failing_disk_refuses_puts_and_keeps_acknowledgements_for_later(durable: bool) -> None:
    async def check() -> None:
        async with opened(durable=durable) as bench:
            await bench.queue.put(numbered(3))
            bench.queue.acquire(3)
            bench.queue.acknowledge([1])
            append = bench.store.append
            bench.store.append = _refuse  # type: ignore[assignment]
            bench.turn()
            with pytest.raises(StorageFailure):
                bench.queue.put(numbered(1))
            bench.store.append = append  # type: ignore[method-assign]
            assert bench.queue.stats()[:2] == (0, 2)
            bench.queue.acknowledge([0])
            bench.turn()
            if durable:
                await bench.crash()
                assert offsets(await bench.take(9)) == [2]

    run(check())


def _refuse(*_: object) -> None:
    raise StorageFailure("disk", "is full")
