"""Requests made up at random: any generated message class, filled by its declared types, and ways to spoil its bytes."""

from __future__ import annotations

import random
import sys
import types
from dataclasses import fields, is_dataclass
from typing import Union, get_args, get_origin, get_type_hints
from uuid import UUID

from trunkline.log.batch import NewRecord, build_batch
from trunkline.protocols.kafka.wire import Message

DEPTH_MAX = 6
ELEMENTS_MAX = 2
NUMBERS = (-1, -1, 0, 0, 1, 2, 3, 7, 100, 127)  # every integer type holds these
TEXTS = (
    "",
    "a",
    "specimen",
    "specimen-2",
    "canary.",
    "__consumer_offsets",
    "é" * 20,
    "." * 30,
    "retention.ms",
    "%s\x00",
)
BLOBS = (b"", b"\x00", b"\x00\x01\x00\x00\x00\x01\x00\x01t\x00\x00\x00\x00", b"\xff" * 40)


def specimen(kind: type[Message], rng: random.Random) -> Message:
    """A request that its own codec can encode."""
    made = _filled(kind, rng, 0)
    assert isinstance(made, kind)
    return made


def _filled(kind: type[object], rng: random.Random, depth: int) -> object:
    assert is_dataclass(kind)
    hints = get_type_hints(kind, vars(sys.modules[kind.__module__]))
    return kind(**{field.name: _value(hints[field.name], rng, depth + 1) for field in fields(kind)})


def _value(hint: object, rng: random.Random, depth: int) -> object:
    if get_origin(hint) in {Union, types.UnionType}:
        choices = get_args(hint)
        if memoryview in choices:  # record batches
            return rng.choice([None, memoryview(_batch(rng)), memoryview(rng.choice(BLOBS))])
        return _value(rng.choice(choices), rng, depth)
    if get_origin(hint) is list:
        count = 0 if depth > DEPTH_MAX else rng.randint(0, ELEMENTS_MAX)
        return [_value(get_args(hint)[0], rng, depth) for _ in range(count)]
    if hint is bool:
        return rng.random() < 0.5
    if hint is int:
        return rng.choice(NUMBERS)
    if hint is float:
        return rng.choice([0.0, -1.0, 1e300])
    if hint is str:
        return rng.choice(TEXTS)
    if hint is bytes:
        return rng.choice(BLOBS)
    if hint is UUID:
        return UUID(int=rng.choice([0, 1, rng.getrandbits(128)]))
    if hint is type(None):
        return None
    assert isinstance(hint, type), f"no specimen of {hint}"
    return _filled(hint, rng, depth)


def _batch(rng: random.Random) -> bytes:
    records = [NewRecord(rng.choice([None, b"k"]), rng.randbytes(rng.randint(0, 50))) for _ in range(rng.randint(1, 3))]
    codec = rng.choice(["none", "gzip", "snappy", "lz4", "zstd"])
    transactional = rng.random() < 0.2
    return build_batch(
        records,
        compression=codec,
        transactional=transactional,
        producer_id=rng.choice(NUMBERS),
        producer_epoch=rng.choice([-1, 0, 1]),
        base_sequence=rng.choice([-1, 0, 5]),
    )


def spoiled(body: bytes, rng: random.Random) -> bytes:
    """The same bytes with a few changed, lost, added or doubled."""
    data = bytearray(body)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data) + 1)
        way = rng.randrange(6)
        if way == 0 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif way == 1 and at < len(data):
            data[at] = rng.choice([0, 1, 0x7F, 0x80, 0xFF])
        elif way == 2:
            del data[at : at + rng.randint(1, 8)]
        elif way == 3:
            data[at:at] = rng.randbytes(rng.randint(1, 8))
        elif way == 4:
            data[at:at] = data[at : at + rng.randint(1, 30)]
        else:
            data[at : at + 4] = rng.choice([b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x00\x00\x00\x00"])
    return bytes(data)
