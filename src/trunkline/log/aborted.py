"""The aborted transactions that end in a segment.

On disk, beside `<base offset>.log`: `.txnindex`, in Kafka's format, 34 bytes per entry, in the order of the markers:

    int16 version (0), int64 producer id, int64 first offset, int64 last offset (the marker's), int64 last stable offset

Most segments have none and then no file. A transaction is entered in the segment that holds its abort marker, so a reader
of records at offset o looks at the segment of o and the later ones. An entry is written before its marker is acknowledged;
a crash may leave one without its marker or tear the last: recovery writes the file of a segment that it scans anew.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

_ENTRY = struct.Struct(">hqqqq")
ENTRY_BYTES = _ENTRY.size


class AbortedEntry(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def encode_aborted(entries: Iterable[AbortedEntry]) -> bytes:
    return b"".join(_ENTRY.pack(0, *entry) for entry in entries)


def decode_aborted(raw: bytes) -> list[AbortedEntry]:
    whole = len(raw) - len(raw) % ENTRY_BYTES
    return [AbortedEntry(*fields[1:]) for fields in _ENTRY.iter_unpack(raw[:whole]) if fields[0] == 0]
