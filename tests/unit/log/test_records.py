"""The fast record codec against the readable one: same bytes, same records, same batches refused."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from trunkline.log import records
from trunkline.log.batch import HEADER_BYTES, NewRecord, build_batch, iter_records
from trunkline.log.errors import CorruptBatch

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
blobs = st.none() | st.binary(max_size=200)
headers = st.lists(st.tuples(texts, blobs), max_size=4)
timestamps = st.integers(0, 2**41) | st.just(-1)
new_records = st.lists(st.builds(NewRecord, blobs, blobs, headers, timestamps), min_size=1, max_size=70)


def light(record: NewRecord) -> records.LightNewRecord:
    return record.key, record.value, records.encode_headers(record.headers), record.timestamp_ms


@given(new_records, st.integers(0, 2**62), st.sampled_from(["none", "lz4", "zstd"]))
def test_builds_the_reference_batch_byte_for_byte(items: list[NewRecord], offset: int, compression: str) -> None:
    built = records.encode_records(
        [light(item) for item in items], base_offset=offset, timestamp_ms=1_700_000_000_000, compression=compression
    )
    assert built == build_batch(items, base_offset=offset, timestamp_ms=1_700_000_000_000, compression=compression)


@given(new_records, st.integers(0, 2**62), st.sampled_from(["none", "gzip", "snappy", "lz4", "zstd"]))
def test_reads_what_the_reference_reads(items: list[NewRecord], offset: int, compression: str) -> None:
    batch = build_batch(items, base_offset=offset, compression=compression)
    read = records.iter_light(memoryview(batch))
    assert [(*record[:4], records.decode_headers(record[4])) for record in read] == [
        (record.offset, record.timestamp_ms, record.key, record.value, list(record.headers))
        for record in iter_records(batch)
    ]


def outcome_of_reference(batch: bytes) -> list[object] | None:
    try:
        return [(r.offset, r.timestamp_ms, r.key, r.value, list(r.headers)) for r in iter_records(batch)]
    except CorruptBatch:
        return None


def outcome(batch: bytes) -> list[object] | None:
    try:
        return [(*record[:4], records.decode_headers(record[4])) for record in records.iter_light(batch)]
    except CorruptBatch:
        return None


@given(new_records, st.data())
def test_refuses_what_the_reference_refuses(items: list[NewRecord], data: st.DataObject) -> None:
    damaged = bytearray(build_batch(items))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(HEADER_BYTES, len(damaged) - 1) | st.sampled_from([22, 26, 30, 38, 60]))
        damaged[at] = data.draw(st.integers(0, 255))
    assert outcome(bytes(damaged)) == outcome_of_reference(bytes(damaged))


@given(st.binary(min_size=1, max_size=60))
@example(b"\x18\x00" + b"\xff" * 9 + b"\x01" + b"\x00\x01\x01\x00")
@example(b"\x18\x00" + b"\xff" * 9 + b"\x02" + b"\x00\x01\x01\x00")
@example(b"\x18\x00" + b"\xff" * 10 + b"\x01" + b"\x00\x01\x01\x00")
def test_refuses_the_same_noise(noise: bytes) -> None:
    header = bytearray(build_batch([NewRecord(None, None)])[:HEADER_BYTES])
    header[8:12] = (HEADER_BYTES - 12 + len(noise)).to_bytes(4, "big")
    assert outcome(bytes(header) + noise) == outcome_of_reference(bytes(header) + noise)


@given(headers)
def test_header_section_round_trips(items: list[tuple[str, bytes | None]]) -> None:
    section = records.encode_headers(items)
    assert records.decode_headers(section) == items
    for cut in range(len(section)):
        with pytest.raises(CorruptBatch):
            records.decode_headers(section[:cut])


def test_timestamps_at_the_ends_of_their_range() -> None:
    stamps = [0, 2**62, 5, 2**40]
    batch = records.encode_records([(None, b"v", records.NO_HEADERS, stamp) for stamp in stamps])
    assert [record[1] for record in records.iter_light(batch)] == stamps
    assert batch == build_batch([NewRecord(None, b"v", (), stamp) for stamp in stamps])


def test_a_batch_has_at_least_one_record() -> None:
    with pytest.raises(ValueError, match="at least one"):
        records.encode_records([])
