"""Reading a store's segments from outside, while it has them open."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from trunkline.log.batch import NewRecord, build_batch, iter_records
from trunkline.log.embedded.segment_files import batch_runs, is_open_here, topology_value
from trunkline.log.embedded.store import EmbeddedStore
from trunkline.log.store import Durability, TopicPartition

TP = TopicPartition("t", 0)
COUNT = 60


async def filled(directory: Path) -> EmbeddedStore:
    """One record a batch, a few batches a segment."""
    store = EmbeddedStore(directory)
    await store.start()
    await store.create_topic("t", 1, {"segment.bytes": "1000"})
    for number in range(COUNT):
        await store.append(TP, build_batch([NewRecord(b"k", b"%d" % number * 50)], timestamp_ms=1), Durability.DISK)
    return store


def offsets(directory: Path, start: int, end: int) -> list[int]:
    runs = batch_runs(str(directory), TP, start, end)
    return [record.offset for run in runs for _, batch in run for record in iter_records(batch)]


def test_a_range_is_read_across_segments(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = await filled(tmp_path)
        assert len(list((tmp_path / "t-0").glob("*.log"))) > 3
        for start, end in ((0, COUNT), (7, 8), (13, 41), (COUNT - 1, COUNT), (5, 5)):
            assert offsets(tmp_path, start, end) == list(range(start, end))
        await store.trim(TP, 30)
        assert offsets(tmp_path, 40, COUNT) == list(range(40, COUNT))
        await store.close()

    asyncio.run(scenario())


def test_a_file_that_goes_under_the_reader_ends_the_reading(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = await filled(tmp_path)
        runs = batch_runs(str(tmp_path), TP, 0, COUNT)
        next(runs)
        await store.delete_topic("t")
        with pytest.raises(OSError, match="No such file"):
            list(runs)
        await store.close()

    asyncio.run(scenario())


def test_the_open_directory_is_told_from_its_copy(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = await filled(tmp_path / "data")
        shutil.copytree(tmp_path / "data", tmp_path / "copy")
        assert is_open_here(str(tmp_path / "data"))
        (tmp_path / "copy" / ".lock").write_text("0")
        assert not is_open_here(str(tmp_path / "copy"))
        assert not is_open_here(str(tmp_path))
        await store.close()

    asyncio.run(scenario())


def test_the_latest_value_of_a_key_is_found_in_the_topology(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = await filled(tmp_path)
        for value in (b"old", b"new"):
            await store.append(
                TopicPartition("__topology", 0), build_batch([NewRecord(b"cluster", value)], timestamp_ms=1)
            )
        assert topology_value(str(tmp_path), b"cluster") == b"new"
        assert topology_value(str(tmp_path), b"another") is None
        await store.close()

    asyncio.run(scenario())
