"""What a classic consumer subscribes to: the head of its metadata, which the broker otherwise never reads.

    int16 version, int32 count, then per topic: int16 length and UTF-8 name; what follows is for the assignor.

Another protocol's metadata is anything at all, so what does not fit is `None`, not an error.
"""

from __future__ import annotations

import struct

_HEAD = struct.Struct(">hi")
_LENGTH = struct.Struct(">h")


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    if len(metadata) < _HEAD.size:
        return None
    version, count = _HEAD.unpack_from(metadata)
    position = _HEAD.size
    if version < 0 or not 0 <= count <= len(metadata):
        return None
    topics: set[str] = set()
    for _ in range(count):
        if position + _LENGTH.size > len(metadata):
            return None
        (length,) = _LENGTH.unpack_from(metadata, position)
        position += _LENGTH.size
        name = metadata[position : position + length] if length >= 0 else b""
        if length < 0 or len(name) < length:
            return None
        try:
            topics.add(name.decode())
        except UnicodeDecodeError:
            return None
        position += length
    return frozenset(topics)
