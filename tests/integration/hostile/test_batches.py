"""Record batches that lie: refused with the code that Kafka uses, at no cost, and nothing of them is stored."""

from __future__ import annotations

import struct
from collections.abc import Callable

import cramjam
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.integration.hostile.conftest import Victim
from trunkline.log.batch import NewRecord, build_batch, seal_batch
from trunkline.protocols.kafka.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

pytestmark = [pytest.mark.ours_only("watches our own process"), pytest.mark.xdist_group("hostile")]

MEGABYTE = 1024 * 1024
NONE, CORRUPT_MESSAGE, UNKNOWN_TOPIC_OR_PARTITION, MESSAGE_TOO_LARGE = 0, 2, 3, 10
UNSUPPORTED_FOR_MESSAGE_FORMAT, OUT_OF_ORDER_SEQUENCE, INVALID_PRODUCER_EPOCH, INVALID_RECORD = 43, 45, 47, 87
UNSUPPORTED_COMPRESSION_TYPE = 76
ANSWER_SECONDS = 30.0
GOOD = build_batch([NewRecord(b"k", b"v")])


@pytest.fixture
def topic(victim: Victim, unique: Callable[[str], str]) -> str:
    return created(victim, unique("batches"), {})


def created(victim: Victim, name: str, config: dict[str, str]) -> str:
    admin = AdminClient({"bootstrap.servers": victim.bootstrap})
    admin.create_topics([NewTopic(name, 1, 1, config=config)])[name].result(ANSWER_SECONDS)
    return name


def altered(position: int, data: bytes, *, resealed: bool = False) -> bytes:
    """The good batch with some bytes replaced; `resealed` makes its checksum right again."""
    batch = bytearray(GOOD)
    batch[position : position + len(data)] = data
    if resealed:
        from crc32c import crc32c

        batch[17:21] = struct.pack(">I", crc32c(bytes(batch[21:])))
    return bytes(batch)


BAD = {
    "wrong checksum": (altered(17, b"\x00\x00\x00\x01"), {CORRUPT_MESSAGE}),
    "flipped payload": (altered(len(GOOD) - 1, b"\xff"), {CORRUPT_MESSAGE}),
    "2^31-1 records": (altered(57, struct.pack(">i", 2**31 - 1), resealed=True), {INVALID_RECORD, CORRUPT_MESSAGE}),
    "negative count": (altered(57, struct.pack(">i", -3), resealed=True), {INVALID_RECORD, CORRUPT_MESSAGE}),
    "huge offset delta": (altered(23, struct.pack(">i", 2**31 - 1), resealed=True), {INVALID_RECORD, CORRUPT_MESSAGE}),
    "negative offset delta": (altered(23, struct.pack(">i", -9), resealed=True), {INVALID_RECORD, CORRUPT_MESSAGE}),
    "length beyond the data": (altered(8, struct.pack(">i", 2**31 - 1)), {CORRUPT_MESSAGE, MESSAGE_TOO_LARGE}),
    "negative length": (altered(8, struct.pack(">i", -1)), {CORRUPT_MESSAGE, INVALID_RECORD}),
    "length too small": (altered(8, struct.pack(">i", 5)), {CORRUPT_MESSAGE, INVALID_RECORD}),
    "cut short": (GOOD[:-2], {CORRUPT_MESSAGE}),
    "half a header": (GOOD[:30], {CORRUPT_MESSAGE}),
    "magic 0": (altered(16, b"\x00"), {UNSUPPORTED_FOR_MESSAGE_FORMAT, INVALID_RECORD, CORRUPT_MESSAGE}),
    "magic 1": (altered(16, b"\x01"), {UNSUPPORTED_FOR_MESSAGE_FORMAT, INVALID_RECORD, CORRUPT_MESSAGE}),
    "magic 9": (altered(16, b"\x09"), {UNSUPPORTED_FOR_MESSAGE_FORMAT, INVALID_RECORD, CORRUPT_MESSAGE}),
    "control batch": (altered(21, struct.pack(">h", 0x20), resealed=True), {INVALID_RECORD}),
    "unknown codec": (
        altered(21, struct.pack(">h", 7), resealed=True),
        {CORRUPT_MESSAGE, INVALID_RECORD, UNSUPPORTED_COMPRESSION_TYPE},
    ),
    "rubbish after it": (GOOD + b"\x01" * 40, {CORRUPT_MESSAGE, INVALID_RECORD}),
    "nothing": (b"", {CORRUPT_MESSAGE, INVALID_RECORD}),
}


@pytest.mark.parametrize("case", BAD)
def test_a_batch_that_lies_is_refused_and_not_stored(victim: Victim, topic: str, case: str) -> None:
    batch, codes = BAD[case]
    with victim.connect() as peer:
        answer = peer.produce(topic, batch)
        assert answer.error_code in codes
        assert peer.produce(topic, GOOD).base_offset == 0, "nothing was stored, and the connection still serves"
        assert peer.fetch(topic).high_watermark == 1


def test_an_unknown_partition_is_refused(victim: Victim, topic: str) -> None:
    with victim.connect() as peer:
        assert peer.produce(topic, GOOD, partition=99).error_code == UNKNOWN_TOPIC_OR_PARTITION
        assert peer.produce(topic, GOOD, partition=-1).error_code == UNKNOWN_TOPIC_OR_PARTITION


def test_gaps_repeats_and_old_epochs_of_an_idempotent_producer(victim: Victim, topic: str) -> None:
    with victim.connect() as peer:
        identity = peer.ask(InitProducerIdRequest(transactional_id=None), 1, InitProducerIdResponse)

        def batch(sequence: int, epoch: int = identity.producer_epoch) -> bytes:
            return build_batch(
                [NewRecord(None, b"v")], producer_id=identity.producer_id, producer_epoch=epoch, base_sequence=sequence
            )

        assert peer.produce(topic, batch(0)).base_offset == 0
        assert peer.produce(topic, batch(5)).error_code == OUT_OF_ORDER_SEQUENCE
        assert peer.produce(topic, batch(1)).base_offset == 1
        repeated = peer.produce(topic, batch(1))
        assert (repeated.error_code, repeated.base_offset) == (NONE, 1), "a repeat is answered with where it stands"
        assert peer.produce(topic, batch(0, identity.producer_epoch + 1)).base_offset == 2
        assert peer.produce(topic, batch(2)).error_code == INVALID_PRODUCER_EPOCH
        assert peer.fetch(topic).high_watermark == 3


def zstd_bomb(size: int) -> bytes:
    """A few kilobytes of zstd that unpack to `size` zeros."""
    packer = cramjam.zstd.Compressor()
    zeros = bytes(16 * MEGABYTE)
    for _ in range(size // len(zeros)):
        packer.compress(zeros)
    return bytes(packer.finish())


def test_a_zstd_bomb_is_not_unpacked(victim: Victim, unique: Callable[[str], str]) -> None:
    """A compacted topic must look into each batch for keys: it may not pay for what the batch claims to hold."""
    topic = created(victim, unique("compacted"), {"cleanup.policy": "compact"})
    bomb = seal_batch(
        zstd_bomb(1024 * MEGABYTE),
        base_offset=0,
        attributes=4,
        last_offset_delta=0,
        base_timestamp_ms=0,
        max_timestamp_ms=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        record_count=1,
    )
    assert len(bomb) < MEGABYTE
    before = victim.resident_bytes()
    with victim.connect() as peer:
        for _ in range(5):
            assert peer.produce(topic, bomb).error_code in {CORRUPT_MESSAGE, INVALID_RECORD, MESSAGE_TOO_LARGE}
        assert peer.produce(topic, GOOD).base_offset == 0
    growth = victim.resident_bytes() - before
    assert growth < 160 * MEGABYTE, f"{growth // MEGABYTE} MB for a bomb of {len(bomb)} bytes"


def test_a_compacted_topic_refuses_records_without_keys(victim: Victim, unique: Callable[[str], str]) -> None:
    topic = created(victim, unique("compacted"), {"cleanup.policy": "compact"})
    with victim.connect() as peer:
        assert peer.produce(topic, build_batch([NewRecord(None, b"v")])).error_code == INVALID_RECORD
        assert peer.produce(topic, GOOD).base_offset == 0
