"""Message ids: UUIDs that tell when a message was sent, and in which order.

    48 bits milliseconds since 1970 | version 7 | 12 bits, then (behind the variant) 10 bits of a counter | 52 random bits

So what a sender is told (id, sequence number, time) need not be kept beside the id, and is the same for whoever receives the
message later, from whichever queue: the broker keeps the id in the record's header `amqp.message-id`. Messages of other
protocols that have no id get one of version 8, made of the record's timestamp and offset: the same at each delivery.
"""

from __future__ import annotations

import hashlib
import os
from typing import Final

_COUNTER_BITS: Final = 22
_RANDOM_BITS: Final = 52
_OURS: Final = frozenset("78")


class MessageIds:
    def __init__(self) -> None:
        self._last = 0
        self._random = b""

    def new(self, now_ms: int) -> str:
        """Greater than all before it, as long as the clock does not go back over a restart."""
        self._last = max(now_ms << _COUNTER_BITS, self._last + 1)
        if len(self._random) < 7:
            self._random = os.urandom(7 * 512)
        chance = int.from_bytes(self._random[:7], "big") >> 4
        self._random = self._random[7:]
        return _written(self._last, 7, chance)


def derived_id(topic: str, offset: int, timestamp_ms: int) -> str:
    """The id of a record that has none."""
    digest = hashlib.blake2b(topic.encode(), digest_size=7, salt=offset.to_bytes(16, "big")).digest()
    place = max(timestamp_ms, 0) << _COUNTER_BITS | offset & ((1 << _COUNTER_BITS) - 1)
    return _written(place, 8, int.from_bytes(digest, "big") >> 4)


def _written(place: int, version: int, chance: int) -> str:
    milliseconds = place >> _COUNTER_BITS & 0xFFFFFFFFFFFF
    high, low = place >> 10 & 0xFFF, place & 0x3FF
    number = milliseconds << 80 | version << 76 | high << 64 | 2 << 62 | low << _RANDOM_BITS | chance
    text = f"{number:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def _place_of(id: str) -> int | None:
    if len(id) != 36 or id[14] not in _OURS:
        return None
    try:
        number = int(id.replace("-", ""), 16)
    except ValueError:
        return None
    return (number >> 80) << _COUNTER_BITS | (number >> 64 & 0xFFF) << 10 | number >> _RANDOM_BITS & 0x3FF


def sent_ms_of(id: str) -> int | None:
    """When the message with this id was sent; None if the id does not tell."""
    place = _place_of(id)
    return None if place is None else place >> _COUNTER_BITS


def sequence_of(id: str) -> str:
    """Twenty digits that are larger for what was sent later."""
    return f"{_place_of(id) or 0:020d}"
