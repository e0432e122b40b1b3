"""Random harm to the files of a store: it starts, untouched partitions are complete, touched ones serve what is whole."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from hypothesis import Phase, given, settings

from tests.harm import Done, Harm, do_harm, harms
from tests.unit.log.stores import NOW_MS, batch_of, keyed, opened, put, run
from trunkline.clock import ManualClock
from trunkline.log.batch import iter_batches, iter_file, iter_records
from trunkline.log.embedded.store import EmbeddedStore
from trunkline.log.store import TopicPartition

EXAMPLES = int(os.environ.get("TRUNKLINE_DAMAGE_EXAMPLES", "25"))
TOPICS = ("plain", "other", "compacted", "transactional")

Content = dict[int, bytes | None]


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Content]]:
    """A store that was shut down in order, and what its topics hold."""
    directory = tmp_path_factory.mktemp("healthy")
    content: dict[str, Content] = {}

    async def main() -> None:
        clock = ManualClock(NOW_MS)
        async with opened(directory, clock=clock) as store:
            small = {"segment.bytes": "900", "index.interval.bytes": "150"}
            await store.create_topic("plain", 1, small)
            await store.create_topic("other", 1, small)
            await store.create_topic(
                "compacted", 1, {**small, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
            )
            await store.create_topic("transactional", 1, small)
            for number in range(60):
                for name in ("plain", "other"):
                    tp = TopicPartition(name, 0)
                    await store.append(
                        tp, batch_of(b"%s %d" % (name.encode(), number), pid=4, epoch=0, sequence=number)
                    )
                await store.append(TopicPartition("compacted", 0), keyed((b"%d" % (number % 11), b"%d" % number)))
                tp = TopicPartition("transactional", 0)
                await store.append(tp, batch_of(b"t%d" % number, pid=9, epoch=0, sequence=number, transactional=True))
                if number % 5 == 4:
                    await store.append_marker(tp, 9, 0, commit=number % 2 == 0)
            await store.run_cleaner_once()
            for name in TOPICS:
                content[name] = await read_all(store, name)
        assert len(content["plain"]) == 60
        assert 11 <= len(content["compacted"]) < 40

    run(main())
    return directory, content


async def read_all(store: EmbeddedStore, name: str) -> Content:
    tp = TopicPartition(name, 0)
    found: Content = {}
    offset = store.bounds(tp).log_start_offset
    while True:
        piece = await store.read(tp, offset, 400, verified=True)
        if not len(piece.records):
            return found
        for header, batch in iter_batches(piece.records):
            assert header.last_offset >= offset
            for record in iter_records(batch):
                assert record.offset not in found
                if not header.control:
                    found[record.offset] = record.value
            offset = header.last_offset + 1


def untouched_offsets(directory: Path, name: str, done: list[Done]) -> set[int]:
    """The offsets of the batches that no harm was done to."""
    found: set[int] = set()
    for path in sorted((directory / f"{name}-0").glob("*.log")):
        ranges = [
            (each.start, each.end)
            for each in done
            if (each.path.parent.name, each.path.name) == (path.parent.name, path.name)
        ]
        for position, header, batch in iter_file(path):
            if not any(start < position + header.size_bytes and position < end for start, end in ranges):
                found.update(record.offset for record in iter_records(batch) if not header.control)
    return found


def log_bytes(directory: Path) -> int:
    """How many bytes there are in segments and aside, zeros not counted: at the end of a segment they mean nothing."""
    files = [path.read_bytes() for path in directory.glob("*-0/*") if path.suffix in (".log", ".damaged")]
    return sum(len(content) - content.count(0) for content in files)


@pytest.mark.timeout(120 + 5 * EXAMPLES)
@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
def test_whatever_happens_to_files_what_is_whole_is_served(
    healthy: tuple[Path, dict[str, Content]], tmp_path_factory: pytest.TempPathFactory, clean: bool
) -> None:
    directory, content = healthy
    files = sorted(
        path.relative_to(directory)
        for path in directory.rglob("*")
        if path.is_file() and path.name not in (".lock", ".clean_shutdown")
    )

    @settings(max_examples=EXAMPLES, phases=[Phase.explicit, Phase.reuse, Phase.generate])
    @given(harms)
    def check(made_up: list[Harm]) -> None:
        victim = tmp_path_factory.mktemp("victim")
        shutil.copytree(directory, victim, dirs_exist_ok=True)
        if not clean:
            (victim / ".clean_shutdown").unlink()
        done = [each for harm in made_up for each in do_harm(victim, files, harm)]
        left = log_bytes(victim)
        run(serve(victim, done, left))
        shutil.rmtree(victim)

    async def serve(victim: Path, done: list[Done], left: int) -> None:
        touched = {each.path.parent.name for each in done}
        checkpoint_touched = any(each.path.name == "checkpoint.json" for each in done)
        for _ in range(2):
            async with opened(victim) as store:
                assert not (await store.directories())[0].failed
                for name in TOPICS:
                    found = await read_all(store, name)
                    found.pop(max(content[name]) + 1, None)
                    if f"{name}-0" not in touched:
                        assert found == content[name], f"{name} was not touched"
                        continue
                    assert found.items() <= content[name].items(), "nothing is served that was not written"
                    whole = untouched_offsets(directory, name, done)
                    assert whole <= found.keys(), f"{name}: {sorted(whole - found.keys())} are whole and not served"
                    await store.offset_for_time(TopicPartition(name, 0), NOW_MS)
        assert log_bytes(victim) >= left, "what was set aside is kept"
        async with opened(victim) as store:
            for name in TOPICS:
                appended = await put(store, b"more", tp=TopicPartition(name, 0))
                if not checkpoint_touched:
                    assert appended.base_offset > max(content[name]), "no offset is given twice"

    check()
