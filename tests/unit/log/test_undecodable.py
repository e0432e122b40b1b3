"""Batches that cannot be decoded: refused where somebody will decode them, passed over where the log holds them already."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest

from tests.undecodable import UNDECODABLE, flood, sealed
from tests.unit.log.stores import NOW_MS, TP, batch_of, keyed, opened, run, with_topic
from trunkline.log import compression
from trunkline.log.batch import BROKER_EPOCH, NewRecord, build_batch, check_crc, iter_batches
from trunkline.log.decoding import DecodingLimits
from trunkline.log.embedded.store import EmbeddedStore
from trunkline.log.errors import InvalidRecord
from trunkline.log.limits import StoreLimits
from trunkline.log.portions import PORTION_RECORDS, read_portion
from trunkline.log.records import LightRecord
from trunkline.log.store import Buffer

COMPACT = {"cleanup.policy": "compact", "segment.bytes": "400", "min.cleanable.dirty.ratio": "0.01"}


def _woken() -> None:
    return None


async def read_all(store: EmbeddedStore) -> tuple[list[LightRecord], int]:
    """Every record of the partition, a portion at a time, and the offset behind them."""
    found: list[LightRecord] = []
    offset = 0
    while True:
        records, following = await read_portion(store, TP, offset, 1 << 20)
        assert len(records) <= PORTION_RECORDS
        found += records
        if following == offset:
            return found, offset
        offset = following


@pytest.mark.parametrize("form", UNDECODABLE)
def test_records_that_do_not_parse_are_refused_where_somebody_decodes_them(tmp_path: Path, form: str) -> None:
    async def main() -> None:
        async with with_topic(tmp_path) as store:
            store.watch(TP, _woken, decodes=True)
            with pytest.raises(InvalidRecord):
                store.append(TP, UNDECODABLE[form], foreign=True)
            assert store.bounds(TP).high_watermark == 0
            await store.append(TP, batch_of(b"good", compression="lz4"), foreign=True)
            store.unwatch(TP, _woken)
            await store.append(TP, UNDECODABLE[form], foreign=True)

    run(main())


@pytest.mark.parametrize("form", UNDECODABLE)
def test_a_compacted_topic_refuses_them(tmp_path: Path, form: str) -> None:
    async def main() -> None:
        async with with_topic(tmp_path, cleanup_policy="compact") as store:
            with pytest.raises(InvalidRecord):
                store.append(TP, UNDECODABLE[form], foreign=True)

    run(main())


@pytest.mark.parametrize("form", UNDECODABLE)
def test_what_is_in_the_log_already_is_passed_over_and_reported_once(
    tmp_path: Path, form: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with with_topic(tmp_path) as store:
            await store.append(TP, batch_of(b"before"))
            bad = await store.append(TP, UNDECODABLE[form], foreign=True)
            await store.append(TP, batch_of(b"behind"))
            for _ in range(3):
                records, end = await read_all(store)
                assert [record[3] for record in records] == [b"before", b"behind"]
                assert end == store.bounds(TP).high_watermark
            assert store.passed_over.batches == 1
            (said,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
            assert f"topic t, partition 0: the batch at offsets {bad.base_offset} to {bad.last_offset} " in said

    run(main())


def test_many_of_them_do_not_fill_the_brokers_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with with_topic(tmp_path) as store:
            for _ in range(1000):
                await store.append(TP, UNDECODABLE["zeros"], foreign=True)
            assert (await read_all(store))[0] == []
            assert store.passed_over.batches == 1000
            assert len(caplog.records) == 10

    run(main())


@pytest.mark.parametrize("form", UNDECODABLE)
def test_compaction_goes_on_before_and_behind_them_and_leaves_them(tmp_path: Path, form: str) -> None:
    async def main() -> None:
        async with with_topic(tmp_path, {**COMPACT, "cleanup.policy": "delete"}) as store:
            for number in range(20):
                await store.append(TP, keyed((b"k", b"v%d" % number)))
            bad = await store.append(TP, UNDECODABLE[form], foreign=True)
            for number in range(20, 40):
                await store.append(TP, keyed((b"k", b"v%d" % number)))
            await store.configure_topic("t", COMPACT)
            await store.run_cleaner_once()
            records, _ = await read_all(store)
            assert len(records) < 8
            assert records[-1][3] == b"v39"
            left = (await store.read(TP, bad.base_offset, 1 << 20)).records
            header, batch = next(iter_batches(left))
            assert header.base_offset == bad.base_offset
            assert bytes(batch[16:]) == UNDECODABLE[form][16:]
            check_crc(batch)

    run(main())


def test_a_time_is_found_behind_them(tmp_path: Path) -> None:
    async def main() -> None:
        async with with_topic(tmp_path) as store:
            for form in UNDECODABLE.values():
                await store.append(TP, form, foreign=True)
            good = await store.append(TP, batch_of(b"good"))
            found = await store.offset_for_time(TP, NOW_MS)
            assert found is not None
            assert found.offset == good.base_offset

    run(main())


@pytest.mark.parametrize("form", UNDECODABLE)
def test_a_topic_that_recompresses_refuses_them(tmp_path: Path, form: str) -> None:
    async def main() -> None:
        async with with_topic(tmp_path, compression_type="lz4") as store:
            with pytest.raises(InvalidRecord):
                store.append(TP, UNDECODABLE[form], foreign=True)
            await store.append(TP, batch_of(b"good", compression="zstd"), foreign=True)
            records, _ = await read_all(store)
            assert [record[3] for record in records] == [b"good"]

    run(main())


def test_a_batch_has_a_bounded_number_of_headers_where_somebody_decodes_them(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, limits=StoreLimits(decoding=DecodingLimits(max_batch_records=1000))) as store:
            await store.create_topic("t", 1)
            store.watch(TP, _woken, decodes=True)
            headers = tuple((f"h{number}", None) for number in range(100))
            await store.append(TP, build_batch([NewRecord(None, b"", headers)] * 10), foreign=True)
            with pytest.raises(InvalidRecord, match="more than 1000 headers"):
                store.append(TP, build_batch([NewRecord(None, b"", headers)] * 11), foreign=True)

    run(main())


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("decodes", [False, True])
def test_a_batch_without_a_body_that_claims_all_records_there_can_be_is_refused(
    tmp_path: Path, codec: str, decodes: bool
) -> None:
    async def main() -> None:
        async with with_topic(tmp_path) as store:
            if decodes:
                store.watch(TP, _woken, decodes=True)
            for body in (b"", b"x" * 20):
                with pytest.raises(InvalidRecord):
                    store.append(TP, sealed(body, 2**31 - 1, codec=codec, packed=True), foreign=True)

    run(main())


def test_a_batch_has_a_bounded_number_of_records_on_every_topic(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, limits=StoreLimits(decoding=DecodingLimits(max_batch_records=1000))) as store:
            await store.create_topic("t", 1)
            await store.append(TP, flood(1000), foreign=True)
            with pytest.raises(InvalidRecord, match="max_batch_records is 1000"):
                store.append(TP, flood(1001), foreign=True)

    run(main())


def test_more_records_than_the_limit_that_are_in_the_log_already_are_passed_over(tmp_path: Path) -> None:
    async def main() -> None:
        async with with_topic(tmp_path) as store:
            await store.append(TP, batch_of(b"before"))
            await store.append(TP, flood(2000), foreign=True)
            await store.append(TP, batch_of(b"behind"))
        async with opened(tmp_path, limits=StoreLimits(decoding=DecodingLimits(max_batch_records=1000))) as store:
            records, end = await read_all(store)
            assert [record[3] for record in records] == [b"before", b"behind"]
            assert end == 2002

    run(main())


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_large_batch_is_read_in_portions_from_any_offset(tmp_path: Path, codec: str) -> None:
    async def main() -> None:
        count = 2 * PORTION_RECORDS + 100
        async with with_topic(tmp_path) as store:
            await store.append(TP, batch_of(b"before"))
            await store.append(TP, flood(count, codec), foreign=True)
            await store.append(TP, batch_of(b"behind"))
            records, end = await read_all(store)
            assert [record[0] for record in records] == list(range(count + 2))
            assert end == count + 2
            records, _ = await read_portion(store, TP, count - 10, 1 << 20)
            assert [record[0] for record in records] == list(range(count - 10, count + 2))

    run(main())


def test_a_batch_that_unpacks_to_much_is_unpacked_in_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with with_topic(tmp_path) as store:
            await store.append(TP, batch_of(bytes(20 << 20), compression="zstd"), foreign=True)
            on_the_loop: list[int] = []
            decompress = compression.decompress

            def watched(codec: int, data: Buffer, max_decompressed_bytes: int) -> Buffer:
                if threading.current_thread() is threading.main_thread():
                    on_the_loop.append(max_decompressed_bytes)
                return decompress(codec, data, max_decompressed_bytes)

            monkeypatch.setattr(compression, "decompress", watched)
            records, _ = await read_portion(store, TP, 0, 1 << 20)
            assert [len(record[3] or b"") for record in records] == [20 << 20]
            assert max(on_the_loop) <= 1 << 20

    run(main())


def test_a_portion_is_bounded_in_bytes(tmp_path: Path) -> None:
    async def main() -> None:
        async with with_topic(tmp_path) as store:
            for _ in range(12):
                await store.append(TP, batch_of(bytes(3 << 20), compression="zstd"), foreign=True)
            records, following = await read_portion(store, TP, 0, 1 << 20)
            assert len(records) == following == 3
            records, _ = await read_all(store)
            assert [record[0] for record in records] == list(range(12))

    run(main())


def test_only_the_broker_can_write_the_brokers_mark(tmp_path: Path) -> None:
    async def main() -> None:
        async with with_topic(tmp_path) as store:
            body = batch_of(b"v")[61:]
            with pytest.raises(InvalidRecord, match="broker's own"):
                store.append(TP, sealed(body, 1, producer_epoch=BROKER_EPOCH), foreign=True)
            await store.append(TP, sealed(body, 1, producer_epoch=BROKER_EPOCH))
            await store.append(TP, sealed(body, 1, producer_epoch=0), foreign=True)

    run(main())
