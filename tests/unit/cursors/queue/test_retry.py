"""Deliveries that are tried again later, leases that are another's by now, and what transactions settle."""

from __future__ import annotations

from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.cursors.queue.harness import message, opened, run
from trunkline.cursors.queue import Delivery, QueueSettings, state
from trunkline.cursors.queue.journal import QUEUE_STATE
from trunkline.log.records import encode_records
from trunkline.log.state_topic import state_record
from trunkline.log.store import Durability

BACKING_OFF = QueueSettings(backoff_ms=100, max_backoff_ms=300, delivery_limit=3, dead_letter=("", "dead"))


def counts(deliveries: list[Delivery]) -> list[tuple[int, int]]:
    return [(delivery.offset, delivery.delivery_count) for delivery in deliveries]


def test_what_is_returned_waits_longer_each_time_and_is_then_given_up() -> None:
    async def check() -> None:
        async with opened(BACKING_OFF) as bench:
            queue = bench.queue
            await queue.put([message(0), message(1)])
            assert counts(await bench.take(1)) == [(0, 1)]
            for count, wait_ms in ((2, 100), (3, 200), (4, 300)):
                assert queue.retry([0]) == 1
                assert offsets_ready(queue.acquire(5)) == ([1] if count == 2 else [])
                await bench.advance(wait_ms - 1)
                assert queue.acquire(5) == []
                await bench.advance(2)
                assert counts(queue.acquire(5)) == [(0, count)]
            assert queue.retry([0]) == 1
            await bench.advance(1000)
            assert [(delivery.offset, reason) for delivery, reason in bench.dead] == [(0, "delivery_limit")]

    run(check())


def offsets_ready(deliveries: list[Delivery]) -> list[int]:
    return [delivery.offset for delivery in deliveries]


def test_a_delay_that_is_said_counts_and_not_the_back_off() -> None:
    async def check() -> None:
        async with opened(BACKING_OFF) as bench:
            queue = bench.queue
            await queue.put([message(0)])
            await bench.take(1)
            queue.retry([0], 5000)
            await bench.advance(4999)
            assert queue.acquire(1) == []
            await bench.advance(2)
            assert counts(queue.acquire(1)) == [(0, 2)]
            queue.retry([0], 0)
            assert counts(queue.acquire(1)) == [(0, 3)], "at once"
            assert queue.retry([7]) == 0, "not leased"

    run(check())


def test_after_a_crash_what_waited_is_ready_and_its_count_is_known() -> None:
    async def check() -> None:
        async with opened(BACKING_OFF) as bench:
            await bench.queue.put([message(0)])
            await bench.take(1)
            bench.queue.retry([0], 60_000)
            bench.turn()
            await bench.crash()
            assert counts(await bench.take(1)) == [(0, 2)]

    run(check())


def test_a_delivery_is_held_until_its_lease_is_over_and_then_it_is_another() -> None:
    async def check() -> None:
        async with opened() as bench:
            queue = bench.queue
            await queue.put([message(0)])
            (first,) = await bench.take(1, lease_ms=100)
            assert queue.holds(first)
            await bench.advance(101)
            assert not queue.holds(first)
            (second,) = await bench.take(1, lease_ms=100)
            assert queue.holds(second)
            assert not queue.holds(first)
            assert not queue.keep(first)
            assert queue.keep(second)
            await bench.advance(10_000)
            assert queue.holds(second), "it has no deadline any more"

    run(check())


@pytest.mark.parametrize("committed", [True, False])
def test_what_a_transaction_settled_stays_settled_though_the_queue_did_not_say_so(committed: bool) -> None:
    """The crash comes after the transaction and before the queue's own records."""

    async def check() -> None:
        async with opened() as bench:
            queue = bench.queue
            await queue.put([message(number) for number in range(6)])
            await bench.take(6)
            bench.turn()
            record = queue.committing([1, 3, 4])
            assert record is not None
            if committed:
                batch = encode_records([state_record(*record)], timestamp_ms=bench.clock.wall_ms())
                await bench.store.append(QUEUE_STATE, batch, Durability.DISK)
            await bench.crash()
            expected = [0, 2, 5] if committed else [0, 1, 2, 3, 4, 5]
            assert offsets_ready(await bench.take(6)) == expected
            await bench.crash()
            assert offsets_ready(await bench.take(6)) == expected, "it was taken over into the queue's own records"

    run(check())


@given(st.lists(st.integers(0, 2**62), max_size=50))
def test_a_record_of_settled_offsets_comes_back(offsets: list[int]) -> None:
    committed = state.Committed(uuid4(), tuple(offsets))
    assert state.decode_committed(state.encode_committed(committed)) == committed


@given(st.binary(max_size=60))
def test_bytes_that_are_no_such_record_are_a_value_error(value: bytes) -> None:
    try:
        state.decode_committed(value)
    except ValueError:
        return
    assert value[0] == 1
    assert (len(value) - 17) % 8 == 0
