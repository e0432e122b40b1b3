"""Record batches made up at random: bodies, headers and names that no decent client writes, behind a right checksum."""

from __future__ import annotations

import json

from hypothesis import strategies as st

from tests.undecodable import UNDECODABLE, sealed
from trunkline.log.batch import HEADER_BYTES, NewRecord, build_batch

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
RESERVED = (
    "amqp.headers", "amqp.exchange", "amqp.routing-key", "amqp.priority", "amqp.expiration", "amqp.delivery-mode",
    "amqp.timestamp", "amqp.content-type", "amqp.reply-to", "amqp.user-id", "amqp.", "mqtt.qos", "mqtt.retain", "mqtt.topic",
    "mqtt.client", "mqtt.packet-id", "mqtt.expiry-s", "mqtt.payload-format", "mqtt.response-topic", "mqtt.user.x", "mqtt.",
    "x-death", "x-first-death-queue", "x-last-death-reason", "x-delay", "x-order-key", "CC", "BCC",
)  # fmt: skip

_text = st.text(max_size=12).map(lambda text: text.encode("utf-8", "ignore").decode())
_trees = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | _text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_text, inner, max_size=3),
    max_leaves=8,
)
_histories = st.lists(
    st.dictionaries(st.sampled_from(["queue", "reason", "count", "time", "exchange", "routing-keys"]), _trees),
    max_size=3,
)
_deep = st.builds(
    lambda depth, opening, closing: opening * depth + b"1" + closing * depth,
    st.sampled_from([10, 70, 900, 20_000]),
    st.sampled_from([b"[", b'{"a":', b'[{"x":']),
    st.sampled_from([b"]", b"}", b"}]", b""]),
)
_json = (_trees | _histories).map(lambda tree: json.dumps(tree).encode())
_numbers = st.integers(-10, 1 << 70).map(lambda number: b"%d" % number)
_values = st.none() | st.binary(max_size=60) | _json | _deep | _numbers | st.integers(0, 1 << 17).map(bytes)
_names = st.sampled_from(RESERVED) | _text | st.just("n" * 300)
_keys = st.none() | st.binary(max_size=30) | st.sampled_from([b"a/#", b"$SYS/broker/version", b"/" * 1000, b"\xff"])

records = st.builds(
    NewRecord,
    _keys,
    st.none() | st.binary(max_size=50),
    st.lists(st.tuples(_names, _values), max_size=5),
    st.sampled_from([-1, 0, 1, -(2**62), 1_700_000_000_000]),
)
well_formed = st.builds(build_batch, st.lists(records, min_size=1, max_size=4), compression=st.sampled_from(CODECS))


def _spoiled(batch: bytes, at: int, patch: bytes, count: int, codec: str) -> bytes:
    body = bytearray(batch[HEADER_BYTES:])
    body[at % len(body) : at % len(body) + len(patch)] = patch
    return sealed(bytes(body), count, codec=codec)


spoiled = st.builds(
    _spoiled,
    st.builds(build_batch, st.lists(records, min_size=1, max_size=3)),
    st.integers(0, 1 << 16),
    st.binary(min_size=1, max_size=6),
    st.integers(1, 4),
    st.sampled_from(CODECS),
)
boasting = st.builds(
    lambda body, count, codec: sealed(body, count, codec=codec, packed=True),
    st.binary(max_size=40),
    st.sampled_from([1, 2, 1000, 500_000, 500_001, 2**31 - 1]),
    st.sampled_from(CODECS),
)
batches = well_formed | spoiled | boasting | st.sampled_from(list(UNDECODABLE.values()))
