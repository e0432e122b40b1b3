"""Appending: the ticket tells the place, order is the order of the calls, and what is refused changes nothing."""

from __future__ import annotations

import asyncio

import pytest

from tests.contract.conftest import MakeStore
from tests.contract.scenario import NOW_MS, TP, batch, put, run, seen, values
from trunkline.clock import ManualClock
from trunkline.log.batch import build_marker
from trunkline.log.errors import (
    BatchTooLarge,
    CorruptBatch,
    InvalidRecord,
    InvalidTimestamp,
    OutOfOrderSequence,
    ProducerFenced,
    UnknownTopicOrPartition,
)
from trunkline.log.store import Durability, LogStore, TopicPartition
from trunkline.log.ticket import Ticket


@pytest.mark.parametrize("durability", list(Durability))
def test_the_ticket_tells_the_place(make_store: MakeStore, durability: Durability) -> None:
    async def scenario(store: LogStore) -> None:
        first = await store.append(TP, batch(b"a", b"b"), durability)
        second = await store.append(TP, batch(b"c"), durability)
        assert (first.base_offset, first.last_offset, first.duplicate) == (0, 1, False)
        assert (second.base_offset, second.last_offset) == (2, 2)
        assert store.bounds(TP).high_watermark == 3

    run(make_store, scenario)


def test_appends_that_nobody_waited_for_stand_in_the_order_of_the_calls(make_store: MakeStore) -> None:
    async def scenario(store: LogStore) -> None:
        sent = [b"%d" % number for number in range(50)]
        durabilities = list(Durability)
        tickets = [store.append(TP, batch(value), durabilities[n % 3]) for n, value in enumerate(sent)]
        places = [(await ticket).base_offset for ticket in tickets]
        assert places == list(range(50))
        assert values(await seen(store)) == sent

    run(make_store, scenario)


def test_the_place_is_told_before_the_ticket_completes_and_the_bounds_know_it(make_store: MakeStore) -> None:
    async def scenario(store: LogStore) -> None:
        told: list[tuple[int, bool]] = []

        def placed(ticket: Ticket) -> None:
            assert ticket.place is not None
            told.append((ticket.place.base_offset, store.bounds(TP).high_watermark > ticket.place.last_offset))

        tickets = [store.append(TP, batch(b"%d" % number), Durability.DISK) for number in range(20)]
        for ticket in tickets:
            ticket.when_placed(placed)
        for number, ticket in enumerate(tickets):
            assert await ticket == ticket.place
            assert len(told) > number
        assert told == [(number, True) for number in range(20)]

    run(make_store, scenario)


def test_a_refused_append_has_no_place(make_store: MakeStore) -> None:
    async def scenario(store: LogStore) -> None:
        async def refused() -> None:
            ticket = store.append(TP, batch(b"x")[:-1])
            ticket.when_placed(asked.append)
            await ticket

        asked: list[Ticket] = []
        with pytest.raises(CorruptBatch):
            await refused()
        await put(store, b"next")
        assert [ticket.place for ticket in asked] in ([], [None])
        assert values(await seen(store)) == [b"next"]

    run(make_store, scenario)


def test_several_batches_in_one_append_stand_together(make_store: MakeStore) -> None:
    async def scenario(store: LogStore) -> None:
        both = await store.append(TP, batch(b"a", b"b") + batch(b"c", compression="zstd"))
        assert (both.base_offset, both.last_offset) == (0, 2)
        assert values(await seen(store)) == [b"a", b"b", b"c"]

    run(make_store, scenario)


def test_a_batch_is_kept_byte_for_byte_but_for_its_place(make_store: MakeStore) -> None:
    async def scenario(store: LogStore) -> None:
        await put(store, b"before")
        sent = batch(b"a" * 500, b"b" * 500, compression="lz4")
        await store.append(TP, sent)
        piece = await store.read(TP, 1, 1 << 20)
        stored = bytes(piece.records)
        assert stored[:8] == (1).to_bytes(8, "big")
        assert stored[8:12] == sent[8:12]
        assert stored[16:] == sent[16:]

    run(make_store, scenario)


def test_what_is_not_a_sound_batch_is_refused_whole(make_store: MakeStore) -> None:
    async def scenario(store: LogStore) -> None:
        good = batch(b"good")
        broken = bytearray(good)
        broken[-1] ^= 1
        marker = build_marker(5, 0, commit=True, coordinator_epoch=0, timestamp_ms=NOW_MS)
        for bad, error in (
            (b"", CorruptBatch),
            (good[:40], CorruptBatch),
            (good[:-1], CorruptBatch),
            (bytes(broken), CorruptBatch),
            (good + bytes(broken), CorruptBatch),
            (good + marker, InvalidRecord),
            (batch(b"x" * 2_000_000), BatchTooLarge),
            (batch(b"x", timestamp_ms=NOW_MS + 10**9), InvalidTimestamp),
            (batch(b"x", transactional=True), InvalidRecord),
        ):
            with pytest.raises(error):
                await store.append(TP, bad)
        assert store.bounds(TP).high_watermark == 0
        with pytest.raises(UnknownTopicOrPartition):
            await store.append(TopicPartition("t", 2), good)
        with pytest.raises(UnknownTopicOrPartition):
            await store.append(TopicPartition("nowhere", 0), good)

    run(make_store, scenario)


def test_a_compacted_topic_takes_no_record_without_a_key(make_store: MakeStore) -> None:
    async def scenario(store: LogStore) -> None:
        await store.create_topic("compacted", 1, {"cleanup.policy": "compact"})
        compacted = TopicPartition("compacted", 0)
        with pytest.raises(InvalidRecord):
            await store.append(compacted, batch(b"x", key=None))
        await store.append(compacted, batch(b"x"))

    run(make_store, scenario)


def test_the_brokers_time_is_stamped_where_the_topic_asks_for_it(make_store: MakeStore, clock: ManualClock) -> None:
    async def scenario(store: LogStore) -> None:
        await store.configure_topic("t", {"message.timestamp.type": "LogAppendTime"})
        clock.advance(5000)
        appended = await put(store, b"a")
        assert appended.log_append_time_ms == clock.wall_ms()
        assert [record.timestamp_ms for record in await seen(store)] == [clock.wall_ms()]

    run(make_store, scenario)


def test_a_repeated_batch_of_a_producer_is_stored_once(make_store: MakeStore) -> None:
    async def scenario(store: LogStore) -> None:
        for sequence in range(6):
            await store.append(TP, batch(b"%d" % sequence, producer=7, sequence=sequence))
        again = await store.append(TP, batch(b"4", producer=7, sequence=4), Durability.DISK)
        assert (again.base_offset, again.last_offset, again.duplicate) == (4, 4, True)
        assert store.bounds(TP).high_watermark == 6
        with pytest.raises(OutOfOrderSequence):  # too long ago to be remembered
            await store.append(TP, batch(b"0", producer=7, sequence=0))
        with pytest.raises(OutOfOrderSequence):  # a gap
            await store.append(TP, batch(b"8", producer=7, sequence=8))
        await store.append(TP, batch(b"4", producer=8, sequence=4))  # another producer's numbers are its own
        assert values(await seen(store))[-1] == b"4"

    run(make_store, scenario)


def test_repeated_batches_among_new_ones_are_left_out(make_store: MakeStore) -> None:
    async def scenario(store: LogStore) -> None:
        first, second = batch(b"a", producer=7, sequence=0), batch(b"b", producer=7, sequence=1)
        await store.append(TP, first)
        both = await store.append(TP, first + second)
        assert (both.base_offset, both.last_offset) == (1, 1)
        assert (await store.append(TP, first + second)).duplicate
        assert values(await seen(store)) == [b"a", b"b"]

    run(make_store, scenario)


def test_an_older_epoch_is_fenced(make_store: MakeStore) -> None:
    async def scenario(store: LogStore) -> None:
        await store.append(TP, batch(b"old", producer=7, epoch=0, sequence=0))
        await store.append(TP, batch(b"new", producer=7, epoch=1, sequence=0))
        with pytest.raises(ProducerFenced):
            await store.append(TP, batch(b"zombie", producer=7, epoch=0, sequence=1))
        assert values(await seen(store)) == [b"old", b"new"]
        (state,) = await store.producers(TP)
        assert (state.producer_id, state.producer_epoch, state.last_sequence) == (7, 1, 0)

    run(make_store, scenario)


def test_partitions_are_independent(make_store: MakeStore) -> None:
    async def scenario(store: LogStore) -> None:
        other = TopicPartition("t", 1)
        tickets = [store.append(tp, batch(b"%d" % tp.partition), Durability.DISK) for tp in (TP, other, TP, other)]
        await asyncio.gather(*tickets)
        assert values(await seen(store)) == [b"0", b"0"]
        assert values(await seen(store, other)) == [b"1", b"1"]

    run(make_store, scenario)
