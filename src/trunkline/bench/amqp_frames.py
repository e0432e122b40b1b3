"""Frames made before the clock starts, and deliveries checked after it has stopped.

    body      u64 sequence number, padding, u64 sequence number once more
    delivery  always of one length in a measurement: consumer tag, exchange, length of routing key, properties and size
              of body are the same for all

So a publisher only sends slices of one buffer, a consumer only fills one and divides by a length, and what is measured is
the broker. `check` then looks at both copies of every sequence number: one message missing, repeated, out of order or
damaged makes the measurement fail.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from trunkline.bench.librdkafka import LoadError
from trunkline.protocols.amqp.codec import encode_confirm, encode_deliveries, encode_publish
from trunkline.protocols.amqp.properties import PERSISTENT, Properties, encode_properties

FRAME_MAX_BYTES = 131_072
CHANNEL = 1
CONSUMER_TAG = "c"
ACK_BYTES = 21
_SEQUENCE = struct.Struct(">Q")
_MIN_BODY_BYTES = 2 * _SEQUENCE.size


def property_section(*, persistent: bool) -> bytes:
    return encode_properties(Properties(delivery_mode=PERSISTENT if persistent else None))


def body_of(sequence: int, size_bytes: int) -> bytes:
    number = _SEQUENCE.pack(sequence)
    return number + b"." * (size_bytes - _MIN_BODY_BYTES) + number


def publications(exchange: str, keys: Sequence[str], size_bytes: int, persistent: bool, count: int) -> bytes:
    """`count` publications with the routing keys in turn; all of one length, as the keys are."""
    if len({len(key) for key in keys}) != 1 or size_bytes < _MIN_BODY_BYTES:
        raise ValueError(f"keys of one length and at least {_MIN_BODY_BYTES} bytes of body are needed")
    properties = property_section(persistent=persistent)
    body = body_of(0, size_bytes)
    starts = []
    for key in keys:
        frame = encode_publish(CHANNEL, exchange, key, properties, body, FRAME_MAX_BYTES)
        starts.append(frame[: len(frame) - 1 - size_bytes])
    middle, end = body[_SEQUENCE.size : -_SEQUENCE.size], frame[-1:]
    pieces: list[bytes] = []
    for sequence in range(count):
        number = _SEQUENCE.pack(sequence)
        pieces += (starts[sequence % len(starts)], number, middle, number, end)
    return b"".join(pieces)


def acknowledgements(count: int) -> bytes:
    """basic.ack of each delivery tag from 1, `ACK_BYTES` each."""
    return b"".join(encode_confirm(CHANNEL, tag, multiple=False) for tag in range(1, count + 1))


def acknowledgement_up_to(tag: int) -> bytes:
    return encode_confirm(CHANNEL, tag, multiple=True)


class Deliveries:
    """How deliveries of one measurement look on the wire."""

    def __init__(self, exchange: str, key: str, size_bytes: int, persistent: bool) -> None:
        message = (exchange, key, False, property_section(persistent=persistent), body_of(0, size_bytes))
        frame = encode_deliveries(CHANNEL, CONSUMER_TAG.encode(), 1, [message], FRAME_MAX_BYTES)
        self.length_bytes = len(frame)
        self.body_at = len(frame) - 1 - size_bytes
        self._size_bytes = size_bytes
        between = size_bytes - _MIN_BODY_BYTES
        # Delivery tag, then the two sequence numbers.
        tag_at = 7 + 4 + 1 + len(CONSUMER_TAG)
        self._fields = struct.Struct(f">{tag_at}xQ{self.body_at - tag_at - 8}xQ{between}xQx")

    def check(self, received: memoryview, count: int) -> None:
        """Every message once, in order and undamaged; LoadError if not."""
        expected = 0
        for tag, first, last in self._fields.iter_unpack(received[: count * self.length_bytes]):
            if tag != expected + 1 or first != expected or last != expected:
                raise LoadError(f"delivery {expected} has tag {tag} and carries {first} and {last}")
            expected += 1
        if expected != count:
            raise LoadError(f"{expected:,} of {count:,} messages can be read")


class Confirms:
    """Counts a broker's confirms: each publication once, single or multiple, in any order."""

    _FIELDS = struct.Struct(">BHIHHQBB")

    def __init__(self) -> None:
        self.confirmed = 0
        self._below = 0  # all up to here
        self._beyond: set[int] = set()
        self._rest = b""

    def feed(self, data: bytes) -> None:
        data = self._rest + data
        whole = len(data) - len(data) % ACK_BYTES
        for kind, _, _, class_id, method_id, tag, multiple, _ in self._FIELDS.iter_unpack(data[:whole]):
            if kind != 1 or class_id != 60 or method_id != 80:
                raise LoadError(f"the broker sent method {class_id}.{method_id} where confirms were expected")
            if multiple:
                self._confirm_up_to(tag)
            elif tag == self._below + 1:
                self._below = tag
            else:
                self._beyond.add(tag)
            while self._beyond and self._below + 1 in self._beyond:
                self._below += 1
                self._beyond.discard(self._below)
        self._rest = data[whole:]
        self.confirmed = self._below + len(self._beyond)

    def _confirm_up_to(self, tag: int) -> None:
        if tag > self._below:
            self._below = tag
            self._beyond = {each for each in self._beyond if each > tag}
