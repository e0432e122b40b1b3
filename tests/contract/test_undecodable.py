"""Records that do not parse: refused where somebody decodes them, passed over, with the place, where they stand already."""

from __future__ import annotations

import pytest

from tests.contract.conftest import MakeStore
from tests.contract.scenario import NOW_MS, TP, batch, run
from tests.undecodable import UNDECODABLE, sealed
from trunkline.log.batch import BROKER_EPOCH, HEADER_BYTES
from trunkline.log.errors import InvalidRecord
from trunkline.log.portions import read_portion
from trunkline.log.store import LogStore


def _woken() -> None:
    return None


@pytest.mark.parametrize("form", UNDECODABLE)
def test_they_are_refused_as_long_as_somebody_decodes_the_partition(make_store: MakeStore, form: str) -> None:
    async def scenario(store: LogStore) -> None:
        store.watch(TP, _woken, decodes=True)
        with pytest.raises(InvalidRecord):
            await store.append(TP, UNDECODABLE[form], foreign=True)
        assert store.bounds(TP).high_watermark == 0
        store.unwatch(TP, _woken)
        await store.append(TP, UNDECODABLE[form], foreign=True)

    run(make_store, scenario)


@pytest.mark.parametrize("form", UNDECODABLE)
def test_what_stands_before_and_behind_them_is_read(make_store: MakeStore, form: str) -> None:
    async def scenario(store: LogStore) -> None:
        await store.append(TP, batch(b"before", timestamp_ms=NOW_MS - 1))
        await store.append(TP, UNDECODABLE[form], foreign=True)
        good = await store.append(TP, batch(b"behind"))
        found_values: list[bytes | None] = []
        following = 0
        while following < store.bounds(TP).high_watermark:
            records, following = await read_portion(store, TP, following, 1 << 20)
            found_values += [record[3] for record in records]
        assert found_values == [b"before", b"behind"]
        assert store.passed_over.batches == 1
        found = await store.offset_for_time(TP, NOW_MS)
        assert found is not None
        assert found.offset == good.base_offset

    run(make_store, scenario)


def test_a_batch_cannot_claim_more_records_than_it_can_hold(make_store: MakeStore) -> None:
    async def scenario(store: LogStore) -> None:
        for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
            with pytest.raises(InvalidRecord):
                await store.append(TP, sealed(b"", 2**31 - 1, codec=codec, packed=True), foreign=True)

    run(make_store, scenario)


def test_the_brokers_mark_is_the_brokers(make_store: MakeStore) -> None:
    async def scenario(store: LogStore) -> None:
        marked = sealed(batch(b"v")[HEADER_BYTES:], 1, producer_epoch=BROKER_EPOCH)
        with pytest.raises(InvalidRecord):
            await store.append(TP, marked, foreign=True)
        await store.append(TP, marked)

    run(make_store, scenario)
