"""The files of a log are their owner's alone, whatever the umask is and whatever was there before."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from trunkline.clock import ManualClock
from trunkline.log.batch import NewRecord, build_batch
from trunkline.log.embedded.store import EmbeddedStore
from trunkline.log.store import Durability, TopicPartition

NARROW = TopicPartition("narrow", 0)


@pytest.fixture(autouse=True)
def _no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def shared(directory: Path) -> dict[str, str]:
    """What others than the owner have any rights to."""
    found = (directory, *directory.rglob("*"))
    return {str(path): stat.filemode(path.lstat().st_mode) for path in found if path.lstat().st_mode & 0o077}


async def used(directory: Path) -> None:
    """Everything that a store writes: segments, indexes, snapshots, markers, compaction, ephemeral topics, checkpoints."""
    clock = ManualClock()
    store = EmbeddedStore(directory, clock=clock)
    await store.start()
    config = {"segment.bytes": "1024", "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
    await store.create_topic(NARROW.topic, 1, config)
    for number in range(20):
        batch = build_batch([NewRecord(b"key", b"%d" % number * 200)], timestamp_ms=clock.wall_ms())
        await store.append(NARROW, batch, Durability.DISK)
    transactional = build_batch(
        [NewRecord(b"key", b"aborted")],
        timestamp_ms=clock.wall_ms(),
        producer_id=1,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
    )
    await store.append(NARROW, transactional, Durability.DISK)
    await store.append_marker(NARROW, 1, 0, commit=False)
    await store.run_cleaner_once()
    await store.create_ephemeral_topic("ephemeral", 1)
    await store.append(TopicPartition("ephemeral", 0), build_batch([NewRecord(b"", b"")], timestamp_ms=1))
    assert shared(directory) == {}
    await store.close()
    assert shared(directory) == {}


def test_nothing_that_a_store_makes_can_be_opened_by_others(tmp_path: Path) -> None:
    asyncio.run(used(tmp_path / "new" / "data"))
    assert {path.suffix for path in (tmp_path / "new" / "data").rglob("*")} >= {".log", ".txnindex", ".json"}


@pytest.mark.parametrize("mode", [0o2775, 0o2700], ids=["open to all", "private already"])
def test_what_others_can_open_is_closed_to_them_at_the_start(tmp_path: Path, mode: int) -> None:
    data, outside = tmp_path / "data", tmp_path / "outside"
    asyncio.run(used(data))
    outside.touch(0o644)
    for path in (data, *data.rglob("*")):
        path.chmod(0o2775 if path.is_dir() else 0o664)
    data.chmod(mode)
    (data / "narrow-0" / "link").symlink_to(outside)
    store = EmbeddedStore(data)

    async def restart() -> None:
        await store.start()
        await store.close()

    asyncio.run(restart())
    assert {path for path in shared(data) if not path.endswith("link")} == set()
    assert stat.S_IMODE(outside.stat().st_mode) == 0o644
    assert stat.S_IMODE(data.stat().st_mode) == 0o2700
