"""Messages pushed to consumers: whose turn it is, credit, exclusiveness, and the order of a turn."""

from __future__ import annotations

import pytest

from tests.unit.cursors.queue.harness import TIGHT, Consumer, Pool, bodies, message, numbered, offsets, opened, run
from trunkline.cursors.queue import ConsumerRefused, Delivery, QueueLimits, QueueSettings
from trunkline.cursors.queue.journal import QUEUE_STATE
from trunkline.log.store import LogStore


def test_consumers_take_turns_message_by_message() -> None:
    async def check() -> None:
        async with opened() as bench:
            one, two, three = Consumer(), Consumer(), Consumer()
            for consumer in (one, two, three):
                bench.queue.add_consumer(consumer)
            await bench.queue.put(numbered(4))
            bench.turn()
            await bench.queue.put(numbered(3, 4))
            bench.turn()
            assert (bodies(one.got), bodies(two.got), bodies(three.got)) == (["0", "3", "6"], ["1", "4"], ["2", "5"])

    run(check())


def test_who_is_next_stays_next_when_another_goes() -> None:
    async def check() -> None:
        async with opened() as bench:
            one, two, three = Consumer(), Consumer(), Consumer()
            for consumer in (one, two, three):
                bench.queue.add_consumer(consumer)
            await bench.queue.put(numbered(2))
            bench.turn()
            bench.queue.remove_consumer(one)
            await bench.queue.put(numbered(1, 2))
            bench.turn()
            assert (bodies(two.got), bodies(three.got)) == (["1"], ["2"])

    run(check())


@pytest.mark.parametrize("limits", [None, TIGHT], ids=["roomy", "tight"])
def test_credit_is_respected_and_everything_is_delivered_once(limits: QueueLimits | None) -> None:
    async def check() -> None:
        async with opened(limits=limits) as bench:
            small, large = Consumer(prefetch=2), Consumer(prefetch=5)
            await bench.queue.put(numbered(40))
            bench.queue.add_consumer(small)
            bench.queue.add_consumer(large)
            await bench.settle()
            assert (len(small.got), len(large.got)) == (2, 5)
            for _ in range(40):
                small.acknowledge()
                large.acknowledge(2)
                await bench.settle()
            assert sorted(offsets(small.got + large.got)) == list(range(40))
            for consumer in (small, large):
                assert offsets(consumer.got) == sorted(offsets(consumer.got))
            assert bench.queue.stats()[:2] == (0, 0)

    run(check())


def test_consumers_of_higher_priority_come_first_while_they_have_credit() -> None:
    async def check() -> None:
        async with opened() as bench:
            low, high = Consumer(), Consumer(prefetch=2, priority=5)
            bench.queue.add_consumer(low)
            bench.queue.add_consumer(high)
            await bench.queue.put(numbered(5))
            await bench.settle()
            assert bodies(high.got) == ["0", "1"]
            assert bodies(low.got) == ["2", "3", "4"]

    run(check())


@pytest.mark.parametrize("by_key", [False, True], ids=["in order", "by key"])
def test_consumers_that_draw_on_one_pool_take_turns_and_never_get_more_than_it_holds(by_key: bool) -> None:
    async def check() -> None:
        async with opened(QueueSettings(order_by_key=by_key)) as bench:
            pool = Pool(5)
            one, two, alone = Consumer(pool=pool), Consumer(pool=pool, prefetch=4), Consumer(prefetch=2)
            for consumer in (one, two, alone):
                bench.queue.add_consumer(consumer)
            await bench.queue.put([message(b"%d" % number) for number in range(20)])
            await bench.settle()
            assert [len(consumer.got) for consumer in (one, two, alone)] == [3, 2, 2]
            for _ in range(4):
                pool.left += 1
                bench.queue.wake()
                await bench.settle()
            assert [len(consumer.got) for consumer in (one, two, alone)] == [5, 4, 2]

    run(check())


def test_a_pool_serves_its_consumer_of_higher_priority() -> None:
    async def check() -> None:
        async with opened() as bench:
            pool = Pool(3)
            low, high = Consumer(pool=pool), Consumer(pool=pool, priority=1, prefetch=2)
            bench.queue.add_consumer(low)
            bench.queue.add_consumer(high)
            await bench.queue.put(numbered(10))
            await bench.settle()
            assert (bodies(high.got), bodies(low.got)) == (["0", "1"], ["2"])

    run(check())


def test_a_single_active_consumer_gets_everything_until_it_goes() -> None:
    async def check() -> None:
        async with opened(QueueSettings(single_active_consumer=True)) as bench:
            first, second = Consumer(prefetch=1), Consumer()
            bench.queue.add_consumer(first)
            bench.queue.add_consumer(second)
            assert bench.queue.consumers.active is first
            await bench.queue.put(numbered(3))
            await bench.settle()
            assert (bodies(first.got), second.got) == (["0"], [])
            bench.queue.remove_consumer(first, release=True)
            await bench.settle()
            assert bodies(second.got) == ["0", "1", "2"]
            assert [d.redelivered for d in second.got] == [True, False, False]

    run(check())


def test_an_exclusive_consumer_is_alone() -> None:
    async def check() -> None:
        async with opened() as bench:
            bench.queue.add_consumer(Consumer())
            with pytest.raises(ConsumerRefused):
                bench.queue.add_consumer(Consumer(), exclusive=True)
        async with opened() as bench:
            alone = Consumer()
            bench.queue.add_consumer(alone, exclusive=True)
            with pytest.raises(ConsumerRefused):
                bench.queue.add_consumer(Consumer())
            bench.queue.remove_consumer(alone)
            bench.queue.add_consumer(Consumer())

    run(check())


def test_messages_to_a_consumer_that_does_not_acknowledge_are_settled_when_handed_out() -> None:
    async def check() -> None:
        async with opened() as bench:
            consumer = Consumer()
            bench.queue.add_consumer(consumer, no_ack=True)
            await bench.queue.put(numbered(3))
            await bench.settle()
            assert bodies(consumer.got) == ["0", "1", "2"]
            assert bench.queue.stats()[:2] == (0, 0)
            await bench.crash()
            assert await bench.take(5) == []

    run(check())


def test_records_of_one_key_are_dealt_to_one_consumer_at_a_time() -> None:
    async def check() -> None:
        async with opened(QueueSettings(order_by_key=True), QueueLimits(turn_messages=7)) as bench:
            consumers = [Consumer(prefetch=3) for _ in range(3)]
            for consumer in consumers:
                bench.queue.add_consumer(consumer)
            await bench.queue.put([message(n, key=b"%d" % (n * n % 5)) for n in range(60)])
            order: dict[bytes | None, list[int]] = {}
            for _ in range(60):
                await bench.settle()
                owners: dict[bytes | None, set[object]] = {}
                for delivery in bench.queue._leases.held.values():
                    owners.setdefault(delivery.message.key, set()).add(delivery.consumer)
                assert all(len(of_key) == 1 for of_key in owners.values())
                for consumer in consumers:
                    held = [d for d in consumer.got if d.offset in bench.queue._leases][:1]
                    for delivery in held:
                        order.setdefault(delivery.message.key, []).append(delivery.offset)
                    consumer.acknowledge(1)
            assert bench.queue.stats()[:2] == (0, 0)
            assert sum(map(len, order.values())) == 60
            assert all(of_key == sorted(of_key) for of_key in order.values())

    run(check())


@pytest.mark.at_once("the record is on its way before the consumer is called, but has no place yet")
def test_that_a_message_was_delivered_is_written_before_the_consumer_sees_it() -> None:
    class Dying(Consumer):
        """Takes the broker down with it as soon as it is called."""

        store: LogStore

        def deliver(self, deliveries: list[Delivery]) -> None:
            super().deliver(deliveries)
            self.end_offset = self.store.bounds(QUEUE_STATE).high_watermark

    async def check() -> None:
        async with opened() as bench:
            consumer = Dying()
            consumer.store = bench.store
            bench.queue.add_consumer(consumer)
            await bench.queue.put(numbered(3))
            before = bench.store.bounds(QUEUE_STATE).high_watermark
            bench.turn()
            assert len(consumer.got) == 3
            assert consumer.end_offset > before
            assert not bench.runtime.journal.pending

    run(check())


def test_foreign_records_wake_a_consumer_that_waits() -> None:
    async def check() -> None:
        async with opened() as bench:
            consumer = Consumer()
            bench.queue.add_consumer(consumer)
            await bench.settle()
            await bench.produce(b"from Kafka", key=b"k")
            await bench.settle()
            assert [(d.message.value, d.message.key) for d in consumer.got] == [(b"from Kafka", b"k")]

    run(check())


def test_a_failing_consumer_leaves_the_others_alone() -> None:
    class Broken(Consumer):
        def deliver(self, deliveries: list[Delivery]) -> None:
            raise RuntimeError("a bug in a protocol")

    async def check() -> None:
        async with opened() as bench:
            good, broken = Consumer(), Broken()
            bench.queue.add_consumer(broken)
            bench.queue.add_consumer(good)
            await bench.queue.put(numbered(4))
            await bench.settle()
            assert sorted(bodies(good.got)) == ["0", "1", "2", "3"], "what it could not take has come back"
            assert len(bench.queue.consumers) == 1

    run(check())


def test_consumers_are_told_when_the_topic_is_deleted() -> None:
    async def check() -> None:
        async with opened() as bench:
            consumer = Consumer()
            bench.queue.add_consumer(consumer)
            await bench.store.delete_topic("work")
            await bench.settle()
            assert consumer.reason is not None
            assert bench.queue.gone

    run(check())
