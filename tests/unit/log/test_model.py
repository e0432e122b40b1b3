"""Random histories against a plain list: appends, rolls, trims, compactions, restarts and crashes."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.log.stores import NOW_MS, TP, keyed, records_of
from trunkline.clock import ManualClock
from trunkline.log.embedded import ahead, partition
from trunkline.log.embedded.store import EmbeddedStore
from trunkline.log.store import Durability

_keys = st.integers(0, 5)
_step = st.one_of(
    st.tuples(st.just("append"), st.lists(st.tuples(_keys, st.booleans()), min_size=1, max_size=4)),
    st.tuples(st.just("append"), st.lists(st.tuples(_keys, st.booleans()), min_size=1, max_size=4)),
    st.tuples(st.just("trim"), st.integers(0, 60)),
    st.tuples(st.just("clean"), st.none()),
    st.tuples(st.just("reopen"), st.none()),
    st.tuples(st.just("crash"), st.integers(0, 200)),
)


@pytest.fixture(scope="module", autouse=True)
def _as_if_logs_were_long() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(partition, "_MIN_RESERVED_BYTES", 100)
        patch.setattr(ahead, "_LEAST_BYTES", 1)
        yield


class Model:
    """What must be there: the latest of each key at its offset, tombstones perhaps, nothing before the start."""

    def __init__(self) -> None:
        self.records: list[tuple[bytes, bytes | None]] = []
        self.start = 0

    def check(self, found: list[tuple[int, bytes | None, bytes | None]]) -> None:
        offsets = [offset for offset, _, _ in found]
        assert offsets == sorted(set(offsets))
        for offset, key, value in found:
            assert offset >= self.start
            assert self.records[offset] == (key, value)
        latest = {key: offset for offset, (key, _) in enumerate(self.records)}
        for offset in latest.values():
            if offset >= self.start and self.records[offset][1] is not None:
                assert offset in offsets


@given(st.lists(_step, max_size=25), st.sampled_from(["300", "600", "100000"]), st.sampled_from(["0", "4096"]))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_history_keeps_what_the_list_keeps(steps: list[tuple[str, object]], segment: str, interval: str) -> None:
    async def main(directory: Path) -> None:
        clock = ManualClock(NOW_MS)
        model = Model()
        store = EmbeddedStore(directory / "0", clock=clock)
        await store.start()
        config = {
            "cleanup.policy": "compact",
            "segment.bytes": segment,
            "index.interval.bytes": interval,
            "delete.retention.ms": "3",
            "min.cleanable.dirty.ratio": "0",
        }
        await store.create_topic("t", 1, config)
        generation = 0
        for action, argument in steps:
            clock.advance(1)
            if action == "append":
                assert isinstance(argument, list)
                pairs = [(b"%d" % key, None if gone else b"%d" % clock.wall_ms()) for key, gone in argument]
                durability = Durability.DISK if len(pairs) == 4 else Durability.OS
                appended = await store.append(TP, keyed(*pairs, timestamp_ms=clock.wall_ms()), durability)
                assert appended.base_offset == len(model.records)
                model.records += pairs
            elif action == "trim":
                assert isinstance(argument, int)
                if argument <= len(model.records):
                    model.start = max(model.start, argument)
                    assert await store.trim(TP, argument) == model.start
            elif action == "clean":
                await store.run_cleaner_once()
            else:
                generation += 1
                target = directory / str(generation)
                if action == "crash":
                    assert isinstance(argument, int)
                    shutil.copytree(directory / str(generation - 1), target)
                    _scribble(target, argument)
                    await store.close()
                else:
                    await store.close()
                    os.rename(directory / str(generation - 1), target)
                store = EmbeddedStore(target, clock=clock)
                await store.start()
            assert store.bounds(TP).high_watermark == len(model.records)
            assert store.bounds(TP).log_start_offset == model.start
            model.check([(r.offset, r.key, r.value) for r in await records_of(store, max_bytes=500)])
        await store.close()

    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(main(Path(directory)))


def _scribble(target: Path, size: int) -> None:
    """A torn append at the end of the active segment, and indexes that were never written."""
    partition = target / "t-0"
    logs = sorted(partition.glob("*.log"))
    if logs:
        with logs[-1].open("ab") as file:
            file.write(keyed((b"torn", b"x" * 200))[:size])
    for path in partition.glob("*.index"):
        if size % 2:
            path.unlink()
