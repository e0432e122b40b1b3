"""The four codecs of Kafka record batches, never decompressing past a limit.

A codec's number is the low three bits of a batch's attributes. What is stored under each:

    1  gzip    one or more gzip members
    2  snappy  either the xerial stream of Java clients

                   82 53 4e 41 50 50 59 00   magic, ends in a zero byte
                   int32 version, int32 oldest compatible version
                   then chunks: int32 length, a raw snappy block

               or one raw snappy block (librdkafka); the magic tells which. We write the xerial stream: all clients read it.
    3  lz4     an LZ4 frame
    4  zstd    a zstd frame

A few kilobytes can decompress to gigabytes, so every decompression writes into a buffer that starts near the likely size
and grows up to `max_decompressed_bytes`. What is malformed is a `CorruptBatch`; what does not fit is one, too (`TooLarge`).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable

import cramjam

from trunkline.log.buffer import Buffer
from trunkline.log.decoding import DEFAULT_MAX_DECOMPRESSED_BYTES
from trunkline.log.errors import CorruptBatch

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
CODEC_NAMES = ("none", "gzip", "snappy", "lz4", "zstd")
CODEC_NUMBERS = {name: number for number, name in enumerate(CODEC_NAMES)} | {"uncompressed": NONE}

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_CHUNK_BYTES = 32 << 10
_INT32 = struct.Struct(">i")
_FIRST_GUESS_BYTES = 64 << 10
_GZIP_WINDOW = 16 + zlib.MAX_WBITS
# How many bytes one compressed byte can become, at the most, by codec; a zstd block of 4 bytes may be 128 KiB of one byte.
MAX_RATIOS = (1, 1_032, 64, 255, 32_768)


class TooLarge(CorruptBatch):
    """Decompresses to more than the limit that was given."""


def could_hold(codec: int, compressed_bytes: int, size_bytes: int) -> bool:
    """Whether compressed data of this size can decompress to so many bytes at all."""
    return size_bytes <= MAX_RATIOS[codec] * compressed_bytes


def compress(codec: int, data: Buffer) -> bytes:
    """Compress with codec number `codec`; 0 copies."""
    if codec == NONE:
        return bytes(data)
    if codec == GZIP:
        deflate = zlib.compressobj(6, zlib.DEFLATED, _GZIP_WINDOW)
        return deflate.compress(data) + deflate.flush()
    if codec == SNAPPY:
        return _compress_xerial(memoryview(data))
    if codec == LZ4:
        return _compress_lz4(bytes(data))
    if codec == ZSTD:
        return bytes(cramjam.zstd.compress(bytes(data)))
    raise CorruptBatch(f"unknown compression codec {codec}")


def _compress_lz4(data: bytes) -> bytes:
    """A frame of independent blocks: Kafka's Java code refuses linked ones, which are the library's default."""
    frame = cramjam.lz4.Compressor(content_checksum=False, block_linked=False)
    frame.compress(data)
    return bytes(frame.finish())


def decompress(codec: int, data: Buffer, max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES) -> Buffer:
    """Decompress; raises CorruptBatch for what is malformed, unknown, or larger than the limit."""
    if codec == NONE:
        return data
    if codec == GZIP:
        return _gunzip(data, max_decompressed_bytes)
    if codec == SNAPPY:
        return _unsnappy(bytes(data), max_decompressed_bytes)
    if codec == LZ4:
        return _grow(cramjam.lz4.decompress_into, bytes(data), max_decompressed_bytes, "lz4")
    if codec == ZSTD:
        return _grow(cramjam.zstd.decompress_into, bytes(data), max_decompressed_bytes, "zstd")
    raise CorruptBatch(f"unknown compression codec {codec}")


def _too_large(name: str, limit: int) -> TooLarge:
    return TooLarge(f"{name} data decompresses to more than {limit} bytes")


def _gunzip(data: Buffer, limit: int) -> bytes:
    parts: list[bytes] = []
    total = 0
    rest: Buffer = data
    try:
        while True:
            inflate = zlib.decompressobj(_GZIP_WINDOW)
            part = inflate.decompress(rest, limit - total + 1)
            total += len(part)
            if total > limit:
                raise _too_large("gzip", limit)
            if not inflate.eof:
                raise CorruptBatch("gzip data ends early")
            parts.append(part)
            rest = inflate.unused_data
            if not rest:
                return parts[0] if len(parts) == 1 else b"".join(parts)
    except zlib.error as error:
        raise CorruptBatch(f"malformed gzip data: {error}") from None


def _compress_xerial(data: memoryview) -> bytes:
    parts = [_XERIAL_HEADER]
    for start in range(0, len(data), _XERIAL_CHUNK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(bytes(data[start : start + _XERIAL_CHUNK_BYTES])))
        parts += (_INT32.pack(len(block)), block)
    return b"".join(parts)


def _unsnappy(data: bytes, limit: int) -> bytes:
    if not data.startswith(_XERIAL_MAGIC):
        return _unsnappy_block(data, limit, limit)
    if len(data) < len(_XERIAL_HEADER):
        raise CorruptBatch("snappy stream ends in its header")
    parts: list[bytes] = []
    left = limit
    position = len(_XERIAL_HEADER)
    while position < len(data):
        if position + 4 > len(data):
            raise CorruptBatch("snappy stream ends in a chunk length")
        (length,) = _INT32.unpack_from(data, position)
        position += 4
        if length < 0 or position + length > len(data):
            raise CorruptBatch(f"snappy chunk of {length} bytes does not fit its stream")
        parts.append(_unsnappy_block(data[position : position + length], left, limit))
        left -= len(parts[-1])
        position += length
    return b"".join(parts)


def _unsnappy_block(block: bytes, left: int, limit: int) -> bytes:
    try:
        length = int(cramjam.snappy.decompress_raw_len(block))
        if length > left:
            raise _too_large("snappy", limit)
        # The length is only a claim, and a snappy copy element of 3 bytes makes at most 64: refuse to allocate for a lie.
        if length > 64 * (len(block) + 1):
            raise CorruptBatch(f"snappy block of {len(block)} bytes claims to hold {length}")
        out = bytearray(length)
        written = int(cramjam.snappy.decompress_raw_into(block, out)) if length else 0
    except CorruptBatch:
        raise
    except Exception as error:
        raise CorruptBatch(f"malformed snappy data: {error}") from None
    if written != length:
        raise CorruptBatch(f"snappy block claims {length} bytes and holds {written}")
    return bytes(out)


def _grow(decompress_into: Callable[[bytes, bytearray], int], data: bytes, limit: int, name: str) -> memoryview:
    """Call `decompress_into` with ever larger buffers; the library says "write" when one was too small."""
    if not data:
        raise CorruptBatch(f"empty {name} data")
    size = min(limit, max(_FIRST_GUESS_BYTES, 4 * len(data)))
    while True:
        out = bytearray(size)
        try:
            written = int(decompress_into(data, out))
            return memoryview(out)[:written]
        except Exception as error:
            if "whole buffer" not in str(error):
                raise CorruptBatch(f"malformed {name} data: {error}") from None
        if size >= limit:
            raise _too_large(name, limit)
        size = min(limit, size * 4)
