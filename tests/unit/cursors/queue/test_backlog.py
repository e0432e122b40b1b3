"""A deep queue: its start reads no messages, and its memory does not grow with its depth."""

from __future__ import annotations

import gc
import tracemalloc

from tests.unit.cursors.queue.harness import TP, Consumer, message, opened, run
from trunkline.cursors.queue import Message, QueueLimits

DEPTH = 200_000
LIMITS = QueueLimits(buffer_messages=4_096, buffer_bytes=1 << 20)


def test_a_deep_queue_is_filled_reopened_and_drained_in_bounded_memory() -> None:
    async def check() -> None:
        async with opened(limits=LIMITS) as bench:
            body = message(b"x" * 100)
            batch = [body] * 1_000
            tracemalloc.start()
            for _ in range(DEPTH // len(batch)):
                await bench.queue.put(batch)
            gc.collect()
            filled, _ = tracemalloc.get_traced_memory()
            assert bench.queue.ready == DEPTH
            assert filled < 12 << 20
            reads = 0
            read = bench.store.read

            await bench.restart()

            async def counted(*arguments: object, **more: object) -> object:
                nonlocal reads
                reads += arguments[0] == TP
                return await read(*arguments, **more)  # type: ignore[arg-type]

            read = bench.store.read
            bench.store.read = counted  # type: ignore[assignment, method-assign]
            assert bench.queue.ready == DEPTH
            assert reads == 0, "depth is arithmetic on offsets"
            tracemalloc.reset_peak()
            taken = 0
            while taken < DEPTH:
                deliveries = bench.queue.acquire(1_000)
                if not deliveries:
                    assert await bench.queue.load()
                    continue
                assert deliveries[0].offset == taken
                bench.queue.acknowledge([delivery.offset for delivery in deliveries])
                taken += len(deliveries)
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert bench.queue.stats()[:2] == (0, 0)
            assert peak < 16 << 20

    run(check())


def test_a_consumer_that_never_acknowledges_holds_no_more_than_the_limit() -> None:
    async def check() -> None:
        async with opened(limits=QueueLimits(max_leases=2_000, buffer_messages=1_000, read_bytes=1_000)) as bench:
            consumer = Consumer()
            bench.queue.add_consumer(consumer)
            for _ in range(10):
                bench.queue.put([Message(b"x" * 50)] * 1_000)
                await bench.settle()
            assert len(consumer.got) == 2_000
            assert bench.queue.stats()[:2] == (8_000, 2_000)
            assert bench.queue.loaded <= bench.runtime.limits.turn_messages + 1_000, "and one read"
            bench.queue.release(range(2_000))
            bench.queue.remove_consumer(consumer)
            assert [d.offset for d in await bench.take(2_000)] == list(range(2_000))

    run(check())


def test_every_other_message_settled_costs_a_bit_each() -> None:
    async def check() -> None:
        async with opened(limits=LIMITS) as bench:
            for _ in range(20):
                bench.queue.put([Message(b"x")] * 1_000)
            for _ in range(20):
                held = [delivery.offset for delivery in await bench.take(1_000)]
                bench.queue.acknowledge(held[1::2])
            bench.turn()
            await bench.crash()
            assert bench.queue.ready == 10_000
            found = await bench.take(10_000)
            assert [d.offset for d in found] == list(range(0, 20_000, 2))
            assert all(d.redelivered for d in found)

    run(check())
