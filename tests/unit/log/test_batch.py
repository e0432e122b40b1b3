"""The v2 batch layout: our own round trip, two other implementations as oracles, and garbage."""

from __future__ import annotations

import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AioBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AioBuilder
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch as KafkaBatch
from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaBuilder

from trunkline.log import batch as layout
from trunkline.log.batch import NewRecord, build_batch, build_marker, check_crc, iter_batches, iter_records, rebase
from trunkline.log.compression import CODEC_NAMES
from trunkline.log.errors import CorruptBatch

_maybe = st.none() | st.binary(max_size=50)
_headers = st.lists(st.tuples(st.text(max_size=8), _maybe), max_size=3)
_records = st.lists(
    st.builds(NewRecord, _maybe, _maybe, _headers, st.integers(0, 2**42)), min_size=1, max_size=20
)  # fmt: skip
_codecs = st.sampled_from(CODEC_NAMES)
_oracle_codecs = st.sampled_from(("none", "gzip"))


@given(_records, _codecs, st.integers(0, 2**60))
def test_what_is_built_is_read_back(records: list[NewRecord], codec: str, base: int) -> None:
    batch = build_batch(records, base_offset=base, compression=codec)
    check_crc(batch)
    read = list(iter_records(batch))
    assert [(r.key, r.value, list(r.headers), r.timestamp_ms) for r in read] == [
        (r.key, r.value, list(r.headers), r.timestamp_ms) for r in records
    ]
    assert [r.offset for r in read] == list(range(base, base + len(records)))


@given(_records, _oracle_codecs)
@settings(max_examples=50)
def test_kafka_python_and_aiokafka_read_what_we_build(records: list[NewRecord], codec: str) -> None:
    batch = build_batch(
        records, base_offset=7, compression=codec, producer_id=5, producer_epoch=2, base_sequence=9, transactional=True
    )
    for oracle in (KafkaBatch, AioBatch):
        parsed = oracle(bytearray(batch))
        assert parsed.validate_crc()
        assert parsed.producer_id == 5
        got = [(r.offset, r.timestamp, r.key, r.value, [(h[0], h[1]) for h in r.headers]) for r in parsed]
        assert got == [
            (7 + n, r.timestamp_ms, r.key, r.value, list(r.headers)) for n, r in enumerate(records)
        ]  # fmt: skip


@given(_records, _oracle_codecs)
@settings(max_examples=50)
def test_we_read_what_kafka_python_and_aiokafka_build(records: list[NewRecord], codec: str) -> None:
    for builder_type in (KafkaBuilder, AioBuilder):
        builder = builder_type(
            magic=2,
            compression_type=CODEC_NAMES.index(codec),
            is_transactional=0,
            producer_id=-1,
            producer_epoch=-1,
            base_sequence=-1,
            batch_size=1 << 20,
        )
        for number, record in enumerate(records):
            arguments = (number, record.timestamp_ms, record.key, record.value, list(record.headers))
            builder.append(*arguments)
        built = bytes(builder.build())
        check_crc(built)
        read = [(r.timestamp_ms, r.key, r.value, list(r.headers)) for r in iter_records(built)]
        assert read == [(r.timestamp_ms, r.key, r.value, list(r.headers)) for r in records]


@given(_records, _codecs, st.data())
def test_garbage_is_a_corrupt_batch_and_nothing_else(records: list[NewRecord], codec: str, data: st.DataObject) -> None:
    batch = bytearray(build_batch(records, compression=codec))
    for _ in range(data.draw(st.integers(1, 5))):
        batch[data.draw(st.integers(0, len(batch) - 1))] = data.draw(st.integers(0, 255))
    cut = batch[: data.draw(st.integers(0, len(batch)))]
    for piece in (batch, cut):
        try:
            for _, one in iter_batches(piece):
                list(iter_records(one, max_decompressed_bytes=1 << 20))
        except CorruptBatch:
            continue


@given(st.binary(max_size=300))
def test_random_bytes_are_a_corrupt_batch_or_nothing(garbage: bytes) -> None:
    try:
        for _, one in iter_batches(garbage):
            list(iter_records(one))
    except CorruptBatch:
        return
    assert garbage == b""


def test_every_changed_byte_behind_the_length_of_a_batch_is_noticed() -> None:
    batch = build_batch([NewRecord(b"key", b"value", [("h", b"x")])], timestamp_ms=5)
    for position in range(17, len(batch)):
        changed = bytearray(batch)
        changed[position] ^= 1
        with pytest.raises(CorruptBatch):
            check_crc(changed)


def test_rebase_gives_consecutive_offsets_and_keeps_the_checksums() -> None:
    buffer = bytearray(build_batch([NewRecord(None, b"a")] * 3) + build_batch([NewRecord(None, b"b")] * 2))
    assert rebase(buffer, 100, leader_epoch=7) == 105
    batches = list(iter_batches(buffer))
    assert [(h.base_offset, h.last_offset, h.leader_epoch) for h, _ in batches] == [(100, 102, 7), (103, 104, 7)]
    for _, one in batches:
        check_crc(one)


def test_a_marker_says_how_the_transaction_ended() -> None:
    for commit in (True, False):
        batch = build_marker(5, 1, commit=commit, coordinator_epoch=3, timestamp_ms=8)
        header = layout.parse_header(batch)
        assert header.control
        assert header.transactional
        assert layout.read_marker(batch) == layout.Marker(commit, 3)
        assert KafkaBatch(bytearray(batch)).is_control_batch


def test_sequences_wrap_after_the_largest() -> None:
    assert layout.advance_sequence(2**31 - 1, 1) == 0
    assert layout.advance_sequence(2**31 - 2, 4) == 2


def test_a_file_is_walked_batch_by_batch(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("file") / "x.log"
    one = build_batch([NewRecord(None, b"a" * 100)] * 3)
    path.write_bytes(one * 3)
    assert [position for position, _, _ in layout.iter_file(path)] == [0, len(one), 2 * len(one)]
    path.write_bytes(one + one[:-1])
    with pytest.raises(CorruptBatch, match=r"x\.log at"):
        list(layout.iter_file(path))
