"""Reading segment files directly gives what fetching gives, and only where the files are the broker's own."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.server import ServerProcess
from tests.spark.feeding import feed, feed_transaction, make_topic
from trunkline.client.client import Client
from trunkline.client.topics import LATEST, Topics
from trunkline.log.embedded import segment_files
from trunkline.pipeline import segments
from trunkline.pipeline.planning import OffsetRange
from trunkline.pipeline.ranges import RangeReader, ReadSettings

RECORDS = 3000


@pytest.fixture(autouse=True)
def _short_ranges_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "MIN_RECORDS", 10)


def read(client: Client, wanted: OffsetRange, *, local: bool, committed: bool = True) -> list[tuple[int, bytes]]:
    settings = ReadSettings(committed, False, True, 10_000, local)
    found: list[tuple[int, bytes]] = []
    for batch in RangeReader(client, wanted, settings).batches():
        found += zip(batch.column("offset").to_pylist(), batch.column("value").to_pylist(), strict=True)
    return found


def from_files(broker: ServerProcess, wanted: OffsetRange, *, committed: bool = True) -> int:
    """How many batches the files give by themselves."""
    return sum(len(run) for run in segments.local_batches(str(broker.data), wanted, committed=committed))


def test_files_give_what_fetches_give(broker: ServerProcess, client: Client, unique: Callable[[str], str]) -> None:
    topic = make_topic(client, unique("files"), segment_bytes="65536")
    feed(client, topic, [b"%06d" % number * 20 for number in range(RECORDS)], batch_bytes=9_000, compression="lz4")
    feed(client, topic, [b"%06d" % number * 20 for number in range(RECORDS)], batch_bytes=9_000)
    assert len(list((broker.data / f"{topic}-0").glob("*.log"))) > 3
    assert segments.find_log(client) == str(broker.data)
    for start, end in ((0, 2 * RECORDS), (1, 2 * RECORDS - 1), (RECORDS - 777, RECORDS + 1234), (5990, 6000)):
        wanted = OffsetRange(topic, 0, start, end)
        assert from_files(broker, wanted) > 0
        found = read(client, wanted, local=True)
        assert [offset for offset, _ in found] == list(range(start, end))
        assert found == read(client, wanted, local=False)


def test_files_are_read_up_to_the_zeros_that_await_the_next_records(
    broker: ServerProcess, client: Client, unique: Callable[[str], str]
) -> None:
    topic = make_topic(client, unique("ahead"))
    for number in range(40):
        feed(client, topic, [b"%06d" % number * 1500])
    (log,) = (broker.data / f"{topic}-0").glob("*.log")
    assert log.read_bytes()[-1000:] == bytes(1000)
    assert from_files(broker, OffsetRange(topic, 0, 0, 40)) == 40
    assert from_files(broker, OffsetRange(topic, 0, 20, 40)) == 20


def test_the_broker_answers_for_transactions(
    broker: ServerProcess, client: Client, unique: Callable[[str], str]
) -> None:
    topic = make_topic(client, unique("mixed"))
    feed(client, topic, [b"plain %d" % number for number in range(100)])
    feed_transaction(broker.bootstrap, topic, [b"aborted %d" % number for number in range(100)], commit=False)
    feed_transaction(broker.bootstrap, topic, [b"committed %d" % number for number in range(100)], commit=True)
    (end,) = Topics(client).offsets([OffsetRange(topic, 0, 0, 0).tp], LATEST).values()
    wanted = OffsetRange(topic, 0, 0, end)
    values = [value for _, value in read(client, wanted, local=True)]
    assert values == [b"%s %d" % (kind, number) for kind in (b"plain", b"committed") for number in range(100)]
    assert 0 < from_files(broker, wanted) < from_files(broker, wanted, committed=False)
    everything = read(client, wanted, local=True, committed=False)
    assert len(everything) == 300
    assert everything == read(client, wanted, local=False, committed=False)


def test_files_that_vanish_are_fetched(broker: ServerProcess, client: Client, unique: Callable[[str], str]) -> None:
    topic = make_topic(client, unique("vanish"), segment_bytes="65536")
    feed(client, topic, [b"%06d" % number * 20 for number in range(RECORDS)], batch_bytes=9_000)
    wanted = OffsetRange(topic, 0, 0, RECORDS)
    runs = segments.local_batches(str(broker.data), wanted, committed=True)
    first = next(runs)
    later = sorted((broker.data / f"{topic}-0").glob("*.log"))[1]
    away = later.with_suffix(".away")
    later.rename(away)
    try:
        assert list(runs) == []
        assert first[-1][0].last_offset < RECORDS - 1
    finally:
        away.rename(later)
    assert len(read(client, wanted, local=True)) == RECORDS


def test_a_copy_of_the_directory_and_another_cluster_are_not_taken_for_the_brokers_own(
    broker: ServerProcess, client: Client, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(broker.data, copy, ignore=shutil.ignore_patterns("*-0", "*-1", "*-2"))
    shutil.copytree(broker.data / "__topology-0", copy / "__topology-0")
    (copy / ".lock").write_text("2147483646\n")
    assert not segment_files.is_open_here(str(copy))
    assert segments._cluster_of(str(copy)) == client.metadata([]).id
    assert segments._cluster_of(str(tmp_path)) is None
    other = ServerProcess(tmp_path / "other")
    other.start()
    try:
        with Client(other.bootstrap) as elsewhere:
            assert segments.find_log(elsewhere) == str(other.data)
            assert segments._cluster_of(str(other.data)) != segments._cluster_of(str(broker.data))
    finally:
        other.close()
