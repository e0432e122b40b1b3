"""The codecs: both forms of snappy, limits that hold, and garbage."""

from __future__ import annotations

import tracemalloc
import zlib

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.log import compression
from trunkline.log.compression import CODEC_NUMBERS, GZIP, LZ4, SNAPPY, ZSTD, compress, decompress
from trunkline.log.errors import CorruptBatch

_REAL = (GZIP, SNAPPY, LZ4, ZSTD)


@given(st.sampled_from(_REAL), st.binary(max_size=2000), st.integers(1, 60))
def test_round_trip(codec: int, data: bytes, times: int) -> None:
    assert bytes(decompress(codec, compress(codec, data * times))) == data * times


def test_raw_snappy_of_librdkafka_and_the_stream_of_java_are_both_read() -> None:
    data = b"hello " * 20_000
    raw = bytes(cramjam.snappy.compress_raw(data))
    stream = compress(SNAPPY, data)
    assert stream.startswith(b"\x82SNAPPY\x00")
    assert decompress(SNAPPY, raw) == decompress(SNAPPY, stream) == data


def test_gzip_of_several_members_is_one_text() -> None:
    def member(data: bytes) -> bytes:
        deflate = zlib.compressobj(6, zlib.DEFLATED, 31)
        return deflate.compress(data) + deflate.flush()

    assert decompress(GZIP, member(b"ab") + member(b"cd")) == b"abcd"


@pytest.mark.parametrize("codec", _REAL)
def test_a_bomb_is_refused_within_bounded_memory(codec: int) -> None:
    bomb = compress(codec, bytes(32 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(CorruptBatch, match="more than 1048576 bytes"):
            decompress(codec, bomb, 1 << 20)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


@given(st.sampled_from(_REAL), st.binary(max_size=200))
def test_garbage_is_corrupt_and_nothing_else(codec: int, garbage: bytes) -> None:
    try:
        decompress(codec, garbage, 1 << 20)
    except CorruptBatch:
        pass


@given(st.sampled_from(_REAL), st.binary(min_size=1, max_size=500), st.data())
def test_truncated_data_is_corrupt_or_shorter(codec: int, data: bytes, draw: st.DataObject) -> None:
    packed = compress(codec, data)
    cut = packed[: draw.draw(st.integers(0, len(packed) - 1))]
    try:
        assert len(decompress(codec, cut)) <= len(data)
    except CorruptBatch:
        pass


def test_unknown_codecs_are_corrupt() -> None:
    for codec in (5, 6, 7):
        with pytest.raises(CorruptBatch):
            decompress(codec, b"x")
        with pytest.raises(CorruptBatch):
            compress(codec, b"x")


def test_kafka_calls_no_compression_uncompressed() -> None:
    assert CODEC_NUMBERS["uncompressed"] == CODEC_NUMBERS["none"] == compression.NONE
