"""A crash that left damage in the files: the broker starts by itself and serves everything that is whole.

One broker is filled, killed with SIGKILL, and each topic's files are damaged in a way of their own. Then the broker is
started once, and every topic must have what its damage cannot have touched, take new records, and never serve a byte of
rubbish.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.crash.clients import client_config
from tests.crash.kafka_campaign import read_all
from tests.crash.ledger import Place
from tests.integration.hostile.peer import Peer
from tests.integration.server import ServerProcess
from trunkline.log.batch import NewRecord, build_batch

pytestmark = [pytest.mark.crash, pytest.mark.xdist_group("torn writes")]

BATCHES = 30
ANSWER_SECONDS = 30.0
RUBBISH = bytes(range(256)) * 20
LENGTH = struct.Struct(">i")


def active_segment(directory: Path) -> Path:
    return max(directory.glob("*.log"))


def last_batch(segment: Path) -> tuple[int, bytes]:
    """Where the last batch of a segment begins, and its bytes."""
    data = segment.read_bytes()
    position = 0
    while True:
        size = 12 + LENGTH.unpack_from(data, position + 8)[0]
        if position + size >= len(data):
            return position, data[position:]
        position += size


def append(segment: Path, data: bytes) -> None:
    with segment.open("ab") as file:
        file.write(data)


def following(segment: Path) -> bytes:
    """A batch that would be the next one: the last, moved to the offset after it."""
    _, batch = last_batch(segment)
    (base,) = struct.unpack_from(">q", batch)
    (delta,) = struct.unpack_from(">i", batch, 23)
    return struct.pack(">q", base + delta + 1) + batch[8:]


def rubbish(directory: Path) -> int:
    append(active_segment(directory), RUBBISH)
    return 0


def zeros(directory: Path) -> int:
    append(active_segment(directory), bytes(8192))
    return 0


def one_byte(directory: Path) -> int:
    append(active_segment(directory), b"\x00")
    return 0


def half_a_batch(directory: Path) -> int:
    segment = active_segment(directory)
    batch = following(segment)
    append(segment, batch[: len(batch) // 2])
    return 0


def half_a_header(directory: Path) -> int:
    segment = active_segment(directory)
    append(segment, following(segment)[:30])
    return 0


def batch_with_wrong_checksum(directory: Path) -> int:
    segment = active_segment(directory)
    batch = bytearray(following(segment))
    batch[-1] ^= 0x40
    append(segment, bytes(batch))
    return 0


def huge_length(directory: Path) -> int:
    segment = active_segment(directory)
    batch = bytearray(following(segment))
    LENGTH.pack_into(batch, 8, 2**31 - 1)
    append(segment, bytes(batch))
    return 0


def cut_last_batch(directory: Path) -> int:
    segment = active_segment(directory)
    os.truncate(segment, segment.stat().st_size - 5)
    return 1


def flip_in_last_batch(directory: Path) -> int:
    segment = active_segment(directory)
    position, batch = last_batch(segment)
    with segment.open("r+b") as file:
        file.seek(position + len(batch) - 3)
        file.write(bytes([batch[-3] ^ 0xFF]))
    return 1


def rubbish_in_indexes(directory: Path) -> int:
    for suffix in ("index", "timeindex"):
        for index in directory.glob(f"*.{suffix}"):
            index.write_bytes(RUBBISH[:1001])
    return 0


def no_indexes(directory: Path) -> int:
    for suffix in ("index", "timeindex", "txnindex"):
        for index in directory.glob(f"*.{suffix}"):
            index.unlink()
    return 0


def rubbish_in_snapshots(directory: Path) -> int:
    for snapshot in directory.glob("*.snapshot"):
        snapshot.write_bytes(RUBBISH[:77])
    return 0


def left_over_files(directory: Path) -> int:
    """What a crash in the middle of a clean-up leaves."""
    (directory / "00000000000000000003.log.cleaned").write_bytes(RUBBISH)
    (directory / "00000000000000000000.log.deleted").write_bytes(RUBBISH)
    return 0


# Each returns how many batches at the end it destroyed.
DAMAGES: list[Callable[[Path], int]] = [
    rubbish,
    zeros,
    one_byte,
    half_a_batch,
    half_a_header,
    batch_with_wrong_checksum,
    huge_length,
    cut_last_batch,
    flip_in_last_batch,
    rubbish_in_indexes,
    no_indexes,
    rubbish_in_snapshots,
    left_over_files,
]


@dataclass
class Recovered:
    server: ServerProcess
    lost: dict[str, int]  # topic -> how many of its last records its damage destroyed


@pytest.fixture(scope="module")
def recovered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recovered]:
    server = ServerProcess(tmp_path_factory.mktemp("torn"))
    server.start()
    try:
        topics = [topic_of(damage) for damage in DAMAGES]
        small = {"segment.bytes": "4096", "index.interval.bytes": "128"}
        admin = AdminClient(client_config(server.bootstrap))
        for created in admin.create_topics([NewTopic(t, 1, 1, config=small) for t in topics]).values():
            created.result(ANSWER_SECONDS)
        # What was never fsynced may be cut; the rest of the topics are written so that producers' state is on disk too.
        unsynced = Producer(client_config(server.bootstrap, acks=1, enable_idempotence=False, linger_ms=0))
        synced = Producer(client_config(server.bootstrap, acks="all", enable_idempotence=True, linger_ms=0))
        for i in range(BATCHES):
            for damage in DAMAGES:
                producer = unsynced if damage in {cut_last_batch, flip_in_last_batch} else synced
                producer.produce(topic_of(damage), b"%d|%s" % (i, b"v" * 300))
            assert unsynced.flush(ANSWER_SECONDS) == 0
            assert synced.flush(ANSWER_SECONDS) == 0
        server.kill()
        lost = {topic_of(damage): damage(server.data / f"{topic_of(damage)}-0") for damage in DAMAGES}
        server.start()
        yield Recovered(server, lost)
    finally:
        server.close()


def topic_of(damage: Callable[[Path], int]) -> str:
    return damage.__name__.replace("_", "-")


def values(server: ServerProcess, topic: str, missing: int | None = None) -> list[bytes]:
    consumer = Consumer(
        client_config(
            server.bootstrap, group_id="reader", enable_partition_eof=True, check_crcs=True, fetch_wait_max_ms=20
        )
    )
    try:
        found = read_all(consumer, [Place(topic, 0)])[Place(topic, 0)]
        expected = [n for n in range(len(found) + (missing is not None)) if n != missing]
        assert list(found) == expected, "offsets without a gap from 0, but for the one that is missing"
        return [found[offset] for offset in sorted(found)]
    finally:
        consumer.close()


@pytest.mark.parametrize("damage", DAMAGES, ids=topic_of)
def test_everything_before_the_damage_is_served_and_the_log_goes_on(
    damage: Callable[[Path], int], recovered: Recovered
) -> None:
    topic = topic_of(damage)
    whole = [b"%d|%s" % (i, b"v" * 300) for i in range(BATCHES - recovered.lost[topic])]
    assert values(recovered.server, topic) == whole
    producer = Producer(client_config(recovered.server.bootstrap, acks="all", linger_ms=0))
    producer.produce(topic, b"after")
    assert producer.flush(ANSWER_SECONDS) == 0
    assert values(recovered.server, topic) == [*whole, b"after"]


def test_recovery_logs_no_traceback(recovered: Recovered) -> None:
    assert "Traceback" not in recovered.server.log.read_text(errors="replace"), recovered.server.log_tail()


def flip_in_newest(directory: Path) -> Path:
    newest = active_segment(directory)
    data = bytearray(newest.read_bytes())
    data[100] ^= 0xFF
    newest.write_bytes(bytes(data))
    return newest


def rubbish_for_a_length_in_oldest(directory: Path) -> Path:
    oldest = min(directory.glob("*.log"))
    with oldest.open("r+b") as file:
        file.seek(8)
        file.write(LENGTH.pack(-7))
    return oldest


@pytest.mark.parametrize("damage", [flip_in_newest, rubbish_for_a_length_in_oldest])
def test_damage_to_what_was_fsynced_costs_its_batch_alone(damage: Callable[[Path], Path], tmp_path: Path) -> None:
    """Not a torn tail, so nothing is thrown away: the file is named, the damage is kept, and the rest is served."""
    server = ServerProcess(tmp_path)
    server.start()
    try:
        small = {"segment.bytes": "4096"}
        admin = AdminClient(client_config(server.bootstrap))
        topics = ["damaged", "sound"]
        for created in admin.create_topics([NewTopic(t, 1, 1, config=small) for t in topics]).values():
            created.result(ANSWER_SECONDS)
        producer = Producer(client_config(server.bootstrap, acks="all", linger_ms=0))
        for i in range(BATCHES):
            for topic in topics:
                producer.produce(topic, b"%d|%s" % (i, b"v" * 300))
            assert producer.flush(ANSWER_SECONDS) == 0
        assert server.stop() == 0  # everything is fsynced now, and the checkpoint says so
        server.start()
        server.kill()
        file = damage(server.data / "damaged-0")
        before = file.read_bytes()
        server.start()
        assert len(values(server, "sound")) == BATCHES
        lost = int(file.stem)  # the first batch of the file, in both cases
        expected = [b"%d|%s" % (i, b"v" * 300) for i in range(BATCHES) if i != lost]
        assert values(server, "damaged", missing=lost) == expected
        with Peer(server.port) as peer:
            for topic in topics:
                assert peer.produce(topic, build_batch([NewRecord(None, b"still taken")])).base_offset == BATCHES
        (kept,) = file.parent.glob("*.damaged")
        assert before.startswith(kept.read_bytes()), "evidence is not thrown away"
        log = server.log.read_text(errors="replace")
        assert str(file) in log, f"the damaged file is not named in\n{log}"
        assert "Traceback" not in log, log
    finally:
        server.close()
