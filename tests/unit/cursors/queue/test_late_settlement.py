"""Messages settled after their lease has ended, settings that change while a queue is used, and what trimming must leave."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tests.unit.cursors.queue.harness import TIGHT, TP, bodies, message, numbered, opened, run
from trunkline.cursors.queue import QueueLimits, QueueSettings
from trunkline.cursors.queue.owner import DELIVERY_LIMIT, EXPIRED

SETTINGS = [QueueSettings(), QueueSettings(max_priority=3), QueueSettings(order_by_key=True)]


@pytest.mark.parametrize("settings", SETTINGS, ids=["fifo", "priorities", "by-key"])
@pytest.mark.parametrize("limits", [None, TIGHT], ids=["roomy", "tight"])
@pytest.mark.parametrize("crash", [False, True])
def test_who_had_a_message_last_may_settle_it_wherever_it_stands(
    settings: QueueSettings, limits: QueueLimits | None, crash: bool
) -> None:
    async def check() -> None:
        async with opened(settings, limits) as bench:
            await bench.queue.put(numbered(12))
            taken = await bench.take(10, consumer="slow", lease_ms=1000)
            if crash:
                await bench.crash()
            else:
                await bench.advance(1001)
            queue = bench.queue
            first, _, third = taken[0], taken[1], taken[2]
            again = await bench.take(1, consumer="next")
            assert again[0].offset == first.offset
            assert not queue.was_last(first.offset, 1)
            assert not queue.discard(first.offset, 1), "it was delivered again since"
            assert queue.was_last(third.offset, 1)
            assert queue.discard(third.offset, 1)
            assert queue.is_settled(third.offset)
            assert not queue.discard(third.offset, 1)
            assert queue.discard(9, 1), "also behind what is in memory"
            assert not queue.discard(10, 1), "which was never delivered"
            assert not queue.discard(99, 1)
            assert queue.ready == 9
            left = await bench.take(20, consumer="next")
            assert bodies(left) == ["1", "3", "4", "5", "6", "7", "8", "10", "11"]
            assert queue.discard(first.offset, 2), "while it is leased, by its lease"
            await bench.settle()
            await bench.crash()
            assert bench.queue.ready == 9

    run(check())


def test_settings_change_while_a_queue_is_used() -> None:
    async def check() -> None:
        async with opened() as bench:
            queue = bench.queue
            await queue.put(numbered(2))
            await bench.advance(5000)
            changed = replace(queue.settings, message_ttl_ms=10_000, dead_letter=("", "dead"), delivery_limit=1)
            queue.change(changed)
            for _ in range(2):
                queue.release([queue.acquire(1)[0].offset])
            assert [(d.message.value, reason) for d, reason in bench.dead] == [(b"0", DELIVERY_LIMIT)]
            await bench.advance(5001)
            assert [reason for _, reason in bench.dead] == [DELIVERY_LIMIT, EXPIRED]
            queue.change(replace(changed, drop_expired=True))
            await queue.put([message("dropped")])
            await bench.advance(10_001)
            assert queue.ready == 0
            assert len(bench.dead) == 2, "what expires is no dead letter now"
            queue.change(replace(changed, message_ttl_ms=None))
            await queue.put([message("stays")])
            await bench.advance(1_000_000)
            assert bodies(queue.acquire(1)) == ["stays"]

    run(check())


def test_what_is_settled_stays_in_the_log_as_long_as_somebody_wants_to_read_it() -> None:
    limits = QueueLimits(trim_bytes=100)

    async def check() -> None:
        async with opened(QueueSettings(), limits, config={"segment.bytes": "1024"}) as bench:
            queue = bench.queue
            floor = 3
            queue.keep_from(lambda: floor)
            for number in range(40):
                await queue.put([message(f"{number}" * 100)])
            for delivery in await bench.take(40):
                queue.acknowledge([delivery.offset])
            await bench.settle()
            assert bench.store.bounds(TP).log_start_offset <= 3
            floor = 40
            await queue.put([message("more" * 100)])
            queue.acknowledge([(await bench.take(1))[0].offset])
            async with asyncio.timeout(60):
                while bench.store.bounds(TP).log_start_offset <= 3:
                    await asyncio.sleep(0.01)

    run(check())
