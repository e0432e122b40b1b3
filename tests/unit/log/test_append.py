"""What an append takes, what it refuses, and what it promises about sequences."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.log.stores import NOW_MS, TP, batch_of, keyed, put, records_of, run, values, with_topic
from trunkline.clock import ManualClock
from trunkline.log.batch import NewRecord, build_batch, build_marker, check_crc, iter_batches, iter_records
from trunkline.log.embedded.store import EmbeddedStore
from trunkline.log.errors import (
    BatchTooLarge,
    CorruptBatch,
    InvalidRecord,
    InvalidTimestamp,
    InvalidTransactionState,
    LogError,
    OutOfOrderSequence,
    ProducerFenced,
    UnknownTopicOrPartition,
    UnsupportedFormat,
)
from trunkline.log.store import Durability, TopicPartition
from trunkline.log.ticket import Appended


def test_appended_batches_are_stored_verbatim_but_for_their_place(tmp_path: Path) -> None:
    async def main() -> None:
        async with with_topic(tmp_path) as store:
            for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
                batch = batch_of(b"a", b"b", compression=codec)
                appended = await store.append(TP, batch)
                stored = bytes((await store.read(TP, appended.base_offset, 1 << 20)).records)
                assert stored[16:] == batch[16:]
                check_crc(stored)
                header, _ = next(iter_batches(stored))
                assert (header.base_offset, header.last_offset) == (appended.base_offset, appended.last_offset)

    run(main())


def test_a_readonly_buffer_and_a_view_of_a_larger_one_are_taken_and_left_untouched(tmp_path: Path) -> None:
    async def main() -> None:
        async with with_topic(tmp_path) as store:
            batch = batch_of(b"a")
            frame = bytearray(b"head" + batch + b"tail")
            await store.append(TP, memoryview(frame)[4:-4])
            await store.append(TP, memoryview(frame)[4:-4].toreadonly())
            assert frame == b"head" + batch + b"tail"
            assert values(await records_of(store)) == [b"a", b"a"]

    run(main())


@pytest.mark.parametrize("durability", list(Durability))
def test_every_durability_completes_the_future(tmp_path: Path, durability: Durability) -> None:
    async def main() -> None:
        async with with_topic(tmp_path) as store:
            assert await store.append(TP, batch_of(b"a", b"b"), durability) == Appended(0, 1, -1, 0)
            future = store.append(TP, batch_of(b"c"), durability)
            assert future.done() == (durability is not Durability.DISK)
            assert store.bounds(TP).high_watermark == 3
            await future

    run(main())


def _refused(tmp_path: Path, error: type[LogError], buffer: bytes, **config: str) -> None:
    async def main() -> None:
        async with with_topic(tmp_path, config) as store:
            with pytest.raises(error):
                store.append(TP, buffer)
            assert store.bounds(TP).high_watermark == 0
            assert (await store.directories())[0].sizes[TP] == 0

    run(main())


def _with(batch: bytes, layout: str, position: int, value: int, *, seal: bool = True) -> bytes:
    changed = bytearray(batch)
    struct.pack_into(layout, changed, position, value)
    if seal:
        from trunkline.log.checksum import crc32c_of

        struct.pack_into(">I", changed, 17, crc32c_of(bytes(changed[21:])))
    return bytes(changed)


_GOOD = batch_of(b"a", b"b")


@pytest.mark.parametrize(
    ("error", "buffer"),
    [
        (CorruptBatch, b""),
        (CorruptBatch, b"x" * 60),
        (CorruptBatch, _GOOD[:-1]),
        (CorruptBatch, _GOOD + b"x"),
        (CorruptBatch, _GOOD[:-1] + b"?"),
        (CorruptBatch, _with(_GOOD, ">i", 8, 2**31 - 1, seal=False)),
        (CorruptBatch, _with(_GOOD, ">i", 8, -1, seal=False)),
        (CorruptBatch, _with(_GOOD, ">b", 16, 3, seal=False)),
        (CorruptBatch, _with(_GOOD, ">h", 21, 5)),
        (UnsupportedFormat, _with(_GOOD, ">b", 16, 0, seal=False)),
        (UnsupportedFormat, _with(_GOOD, ">b", 16, 1, seal=False)),
        (UnsupportedFormat, b"\0" * 34),
        (InvalidRecord, _with(_GOOD, ">i", 57, 3)),
        (InvalidRecord, _with(_GOOD, ">i", 57, 0)),
        (InvalidRecord, _with(_GOOD, ">i", 57, -1)),
        (InvalidRecord, _with(_GOOD, ">i", 23, 7)),
        (InvalidRecord, build_marker(1, 0, commit=True, coordinator_epoch=0, timestamp_ms=NOW_MS)),
        (InvalidRecord, batch_of(b"a", transactional=True)),
        (InvalidRecord, batch_of(b"a", pid=5, epoch=-1, sequence=0)),
        (InvalidRecord, batch_of(b"a", pid=5, epoch=0, sequence=-1)),
        (InvalidTimestamp, _with(_GOOD, ">h", 21, 8)),
        (InvalidTimestamp, batch_of(b"a", timestamp_ms=NOW_MS + 3_600_001)),
    ],
)
def test_bad_batches_are_refused_and_leave_nothing(tmp_path: Path, error: type[LogError], buffer: bytes) -> None:
    _refused(tmp_path, error, buffer)


def test_a_good_batch_before_a_bad_one_is_not_stored_either(tmp_path: Path) -> None:
    _refused(tmp_path, CorruptBatch, _GOOD + _GOOD[:-1] + b"?")


def test_a_batch_above_max_message_bytes_is_refused(tmp_path: Path) -> None:
    _refused(tmp_path, BatchTooLarge, batch_of(b"x" * 1000), max_message_bytes="500")


def test_timestamps_too_far_in_the_past_are_refused(tmp_path: Path) -> None:
    _refused(tmp_path, InvalidTimestamp, batch_of(b"a", timestamp_ms=NOW_MS - 11), message_timestamp_before_max_ms="10")


def test_a_record_without_key_is_refused_by_a_compacted_topic(tmp_path: Path) -> None:
    _refused(tmp_path, InvalidRecord, batch_of(b"a", key=None, compression="zstd"), cleanup_policy="compact")


def test_unknown_partitions_are_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with with_topic(tmp_path) as store:
            for tp in (TopicPartition("t", 1), TopicPartition("u", 0)):
                with pytest.raises(UnknownTopicOrPartition):
                    store.append(tp, _GOOD)
                with pytest.raises(UnknownTopicOrPartition):
                    await store.read(tp, 0, 1)

    run(main())


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_log_append_time_stamps_every_record_with_the_brokers_clock(tmp_path: Path, codec: str) -> None:
    async def main() -> None:
        clock = ManualClock(NOW_MS + 500)
        async with with_topic(tmp_path, clock=clock, message_timestamp_type="LogAppendTime") as store:
            appended = await store.append(TP, batch_of(b"a", b"b", timestamp_ms=3, compression=codec))
            assert appended.log_append_time_ms == NOW_MS + 500
            piece = await store.read(TP, 0, 1 << 20)
            check_crc(piece.records)
            assert [r.timestamp_ms for r in iter_records(piece.records)] == [NOW_MS + 500] * 2

    run(main())


@pytest.mark.parametrize("sent", ["none", "gzip", "snappy"])
@pytest.mark.parametrize("wanted", ["uncompressed", "gzip", "lz4", "zstd"])
def test_compression_type_recompresses(tmp_path: Path, sent: str, wanted: str) -> None:
    async def main() -> None:
        async with with_topic(tmp_path, compression_type=wanted) as store:
            await store.append(TP, batch_of(b"a", b"b", compression=sent, pid=4, epoch=0, sequence=0))
            header, batch = next(iter_batches((await store.read(TP, 0, 1 << 20)).records))
            check_crc(batch)
            assert header.compression == ("none" if wanted == "uncompressed" else wanted)
            assert (header.producer_id, header.base_sequence, header.max_timestamp_ms) == (4, 0, NOW_MS)
            assert [r.value for r in iter_records(batch)] == [b"a", b"b"]

    run(main())


# -- sequences ---------------------------------------------------------------------------------------------------


async def _send(store: EmbeddedStore, sequence: int, count: int = 1, *, pid: int = 7, epoch: int = 0) -> Appended:
    return await store.append(TP, batch_of(*[b"v"] * count, pid=pid, epoch=epoch, sequence=sequence))


def test_each_of_the_last_five_batches_is_recognised_also_after_a_restart(tmp_path: Path) -> None:
    async def main() -> None:
        async with with_topic(tmp_path) as store:
            sent = [await _send(store, 2 * n, 2) for n in range(6)]
        async with with_topic(tmp_path) as store:
            for number in range(1, 6):
                again = await _send(store, 2 * number, 2)
                assert again.duplicate
                assert (again.base_offset, again.last_offset) == (sent[number].base_offset, sent[number].last_offset)
            with pytest.raises(OutOfOrderSequence):  # whoever was told that it is stored would not send it again
                await _send(store, 0, 2)
            assert store.bounds(TP).high_watermark == 12
            assert (await _send(store, 12)).base_offset == 12

    run(main())


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("commit", [False, True])
def test_in_a_transaction_only_its_own_batches_can_be_repeated(tmp_path: Path, commit: bool, restarted: bool) -> None:
    async def main() -> None:
        def batch(sequence: int, count: int = 3) -> bytes:
            return batch_of(*[b"v"] * count, pid=7, epoch=0, sequence=sequence, transactional=True)

        async with with_topic(tmp_path) as store:
            await store.append(TP, batch(0))
            assert (await store.append(TP, batch(0))).duplicate
            await store.append_marker(TP, 7, 0, commit=commit)
            if not restarted:
                await _refuse_what_ended(store, batch)
        async with with_topic(tmp_path) as store:
            await _refuse_what_ended(store, batch)

    async def _refuse_what_ended(store: EmbeddedStore, batch: Callable[..., bytes]) -> None:
        end = store.bounds(TP).high_watermark
        for count in (1, 2, 3, 4):
            with pytest.raises(OutOfOrderSequence):
                await store.append(TP, batch(0, count))
        sequence = (await store.producers(TP))[0].last_sequence + 1
        assert (await store.append(TP, batch(sequence))).base_offset == end
        with pytest.raises(OutOfOrderSequence):
            await store.append(TP, batch(0))
        again = await store.append(TP, batch(sequence))
        assert again.duplicate
        assert again.base_offset == end
        await store.append_marker(TP, 7, 0, commit=True)

    run(main())


def test_gaps_are_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with with_topic(tmp_path) as store:
            await _send(store, 0, 3)
            for sequence in (4, 100):
                with pytest.raises(OutOfOrderSequence):
                    await _send(store, sequence)
            assert (await _send(store, 3)).last_offset == 3

    run(main())


def test_a_producer_that_is_not_known_may_begin_anywhere(tmp_path: Path) -> None:
    async def main() -> None:
        async with with_topic(tmp_path) as store:
            assert (await _send(store, 41)).base_offset == 0
            assert (await _send(store, 42)).base_offset == 1

    run(main())


def test_sequences_go_on_at_zero_after_the_largest(tmp_path: Path) -> None:
    async def main() -> None:
        async with with_topic(tmp_path) as store:
            last = 2**31 - 1
            await _send(store, last - 1, 4)  # ends at sequence 1
            assert (await _send(store, last - 1, 4)).duplicate
            assert not (await _send(store, 2)).duplicate
            with pytest.raises(OutOfOrderSequence):
                await _send(store, 4)

    run(main())


def test_an_old_epoch_is_fenced_and_a_new_one_begins_at_zero(tmp_path: Path) -> None:
    async def main() -> None:
        async with with_topic(tmp_path) as store:
            await _send(store, 0, epoch=3)
            with pytest.raises(ProducerFenced):
                await _send(store, 1, epoch=2)
            with pytest.raises(OutOfOrderSequence):
                await _send(store, 1, epoch=4)
            await _send(store, 0, epoch=4)
            with pytest.raises(ProducerFenced):
                await _send(store, 1, epoch=3)

    run(main())


def test_several_batches_of_a_producer_in_one_append_are_checked_in_order(tmp_path: Path) -> None:
    async def main() -> None:
        async with with_topic(tmp_path) as store:
            one, two, four = (batch_of(b"v", pid=7, epoch=0, sequence=n) for n in (0, 1, 3))
            with pytest.raises(OutOfOrderSequence):
                store.append(TP, one + two + four)
            assert store.bounds(TP).high_watermark == 0
            assert (await store.append(TP, one + two)).last_offset == 1
            again = await store.append(TP, one + two)
            assert again.duplicate
            assert (again.base_offset, again.last_offset) == (0, 1)

    run(main())


def test_a_non_transactional_batch_inside_a_transaction_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with with_topic(tmp_path) as store:
            await store.append(TP, batch_of(b"v", pid=7, epoch=0, sequence=0, transactional=True))
            with pytest.raises(InvalidTransactionState):
                await _send(store, 1)

    run(main())


def test_an_idle_producer_is_forgotten_after_a_day_unless_in_a_transaction(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock(NOW_MS)
        async with with_topic(tmp_path, clock=clock) as store:
            await _send(store, 0, pid=1)
            await store.append(TP, batch_of(b"v", pid=2, epoch=0, sequence=0, transactional=True))
            clock.advance(86_400_000)
            await store.run_cleaner_once()
            assert len(await store.producers(TP)) == 2
            clock.advance(1)
            await store.run_cleaner_once()
            (left,) = await store.producers(TP)
            assert left.producer_id == 2
            assert left.transaction_start_offset == 1

    run(main())


def test_a_duplicate_asked_for_on_disk_waits_for_the_disk(tmp_path: Path) -> None:
    async def main() -> None:
        async with with_topic(tmp_path) as store:
            batch = batch_of(b"v", pid=7, epoch=0, sequence=0)
            assert store.append(TP, batch, Durability.OS).done()
            again = store.append(TP, batch, Durability.DISK)
            assert not again.done()
            assert (await again).duplicate
            assert store.append(TP, batch, Durability.DISK).done()

    run(main())


def test_keys_are_not_needed_where_nothing_is_compacted(tmp_path: Path) -> None:
    async def main() -> None:
        async with with_topic(tmp_path) as store:
            await store.append(TP, build_batch([NewRecord(None, None)], timestamp_ms=-1))
            await store.append(TP, keyed((b"k", None)))
            await put(store, b"x")
            assert values(await records_of(store)) == [None, None, b"x"]

    run(main())
