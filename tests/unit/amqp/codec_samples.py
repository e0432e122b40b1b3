"""Strategies for AMQP values, methods and streams of frames."""

from __future__ import annotations

from decimal import Decimal
from itertools import pairwise

from hypothesis import strategies as st

from trunkline.broker.messaging.typed_values import FieldValue, Timestamp
from trunkline.protocols.amqp.codec import Properties, encode_method, encode_properties, encode_publish
from trunkline.protocols.amqp.frames import Ack, Event, Heartbeat, MethodFrame, Nack, Publish, Reject
from trunkline.protocols.amqp.methods import BasicAck, BasicNack, BasicReject, Method, all_methods

MIN_FRAME_MAX_BYTES = 4096

names = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
decimals = st.builds(
    lambda unscaled, scale: Decimal(unscaled).scaleb(-scale), st.integers(-(2**31), 2**31 - 1), st.integers(0, 20)
)
scalars: st.SearchStrategy[FieldValue] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(allow_nan=False),
    names,
    # `bytes` is what a long string that is not UTF-8 becomes too; either way it is written as a byte array.
    st.binary(max_size=20),
    st.builds(Timestamp, st.integers(0, 2**64 - 1)),
    decimals,
)
fields: st.SearchStrategy[FieldValue] = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3), max_leaves=8
)
tables = st.dictionaries(names, fields, max_size=4)

properties = st.builds(
    Properties,
    content_type=st.none() | names,
    content_encoding=st.none() | names,
    headers=st.none() | tables,
    delivery_mode=st.none() | st.integers(0, 255),
    priority=st.none() | st.integers(0, 255),
    correlation_id=st.none() | names,
    reply_to=st.none() | names,
    expiration=st.none() | names,
    message_id=st.none() | names,
    timestamp=st.none() | st.integers(0, 2**64 - 1),
    type=st.none() | names,
    user_id=st.none() | names,
    app_id=st.none() | names,
    cluster_id=st.none() | names,
)

_ARGUMENTS: dict[str, st.SearchStrategy[FieldValue]] = {
    "octet": st.integers(0, 255),
    "short": st.integers(0, 2**16 - 1),
    "long": st.integers(0, 2**32 - 1),
    "longlong": st.integers(0, 2**64 - 1),
    "short string": names,
    "long string": st.binary(max_size=40),
    "table": tables,
    "bit": st.booleans(),
}


def instances(declared: type[Method]) -> st.SearchStrategy[Method]:
    return st.tuples(*(_ARGUMENTS[kind] for _, kind in declared.WIRE)).map(lambda values: declared(*values))


methods = st.sampled_from(all_methods()).flatmap(instances)
plain_methods = st.sampled_from(
    [declared for declared in all_methods() if not declared.HAS_CONTENT]
).flatmap(instances)  # fmt: skip
channels = st.integers(1, 3)


def event_of(channel: int, method: Method) -> Event:
    if isinstance(method, BasicAck):
        return Ack(channel, method.delivery_tag, method.multiple)
    if isinstance(method, BasicNack):
        return Nack(channel, method.delivery_tag, method.multiple, method.requeue)
    if isinstance(method, BasicReject):
        return Reject(channel, method.delivery_tag, method.requeue)
    return MethodFrame(channel, method)


@st.composite
def streams(draw: st.DrawFn) -> tuple[bytes, list[Event]]:
    """The bytes of a client, and what they mean. Bodies reach over several of the smallest frames."""
    sent = bytearray()
    meant: list[Event] = []
    for kind in draw(st.lists(st.sampled_from("ppppmh"), max_size=8)):
        channel = draw(channels)
        if kind == "h":
            sent += b"\x08\x00\x00\x00\x00\x00\x00\xce"
            meant.append(Heartbeat())
        elif kind == "m":
            method = draw(plain_methods)
            sent += encode_method(channel, method)
            meant.append(event_of(channel, method))
        else:
            body = draw(st.binary(max_size=30)) * draw(st.sampled_from([1, 1, 1, 300]))
            section = encode_properties(draw(properties))
            exchange, key = draw(names), draw(names)
            mandatory, immediate = draw(st.booleans()), draw(st.booleans())
            sent += encode_publish(
                channel, exchange, key, section, body, MIN_FRAME_MAX_BYTES, mandatory=mandatory, immediate=immediate
            )
            meant.append(Publish(channel, exchange, key, mandatory, immediate, section, body))
    return bytes(sent), meant


def cut(data: bytes, places: list[int]) -> list[bytes]:
    """`data` in pieces, cut at `places` (taken modulo its length)."""
    marks = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[start:end] for start, end in pairwise(marks)]
