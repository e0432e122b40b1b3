"""Tables, properties and methods: round trips, pika and pamqp as oracles, and hostile bytes."""

from __future__ import annotations

import math
import struct
from contextlib import suppress
from datetime import UTC, datetime
from decimal import Decimal

import pamqp.commands
import pamqp.frame
import pamqp.header
import pika.data
import pika.spec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.amqp.codec_samples import fields, instances, methods, names, properties, tables
from trunkline.broker.messaging import typed_values as values
from trunkline.broker.messaging.typed_values import FieldValue, MalformedValue, Timestamp
from trunkline.protocols.amqp.arguments import decode_method, encode_arguments
from trunkline.protocols.amqp.codec import Properties, decode_properties, encode_method, encode_properties
from trunkline.protocols.amqp.errors import FrameError
from trunkline.protocols.amqp.methods import ConnectionClose, ConnectionStartOk, Method, QueueDeclare, all_methods


@given(fields)
def test_field_values_round_trip(value: FieldValue) -> None:
    assert values.decode_field(values.encode_field(value)) == value


@given(tables)
def test_tables_round_trip_whole_and_split(table: dict[str, FieldValue]) -> None:
    encoded = values.encode_fields(table)
    assert values.decode_table(encoded) == table
    split = values.split_table(encoded)
    assert values.join_table(split) == encoded
    assert {name: values.decode_field(value) for name, value in split} == table


@pytest.mark.parametrize(
    ("encoded", "value"),
    [
        (b"t\x01", True),
        (b"b\xff", -1),
        (b"B\xff", 255),
        (b"s\xff\xff", -1),
        (b"u\xff\xff", 65_535),
        (b"I\xff\xff\xff\xff", -1),
        (b"i\xff\xff\xff\xff", 2**32 - 1),
        (b"l" + b"\xff" * 8, -1),
        (b"L" + b"\xff" * 8, 2**64 - 1),
        (b"f" + struct.pack(">f", 1.5), 1.5),
        (b"d" + struct.pack(">d", -2.25), -2.25),
        (b"D\x02\x00\x00\x01\x3a", Decimal("3.14")),
        (b"D\x00\xff\xff\xff\xff", Decimal(-1)),
        (b"S\x00\x00\x00\x02hi", "hi"),
        (b"S\x00\x00\x00\x01\xff", b"\xff"),
        (b"x\x00\x00\x00\x01\x00", b"\x00"),
        (b"A\x00\x00\x00\x03t\x00V", [False, None]),
        (b"T" + (1_700_000_000).to_bytes(8, "big"), Timestamp(1_700_000_000)),
        (b"F\x00\x00\x00\x04\x01ab\x05", {"a": 5}),
        (b"V", None),
    ],
)
def test_every_type_is_read(encoded: bytes, value: FieldValue) -> None:
    read = values.decode_field(encoded)
    assert read == value
    assert type(read) is type(value)
    for short in range(len(encoded)):
        with pytest.raises(MalformedValue):
            values.decode_field(encoded[:short])


def test_floats_that_are_no_numbers_round_trip() -> None:
    read = values.decode_field(values.encode_field(math.nan))
    assert isinstance(read, float)
    assert math.isnan(read)


@pytest.mark.parametrize("value", [2**64, -(2**63) - 1, {"n" * 256: 1}, Decimal(2**31), Decimal("NaN"), Timestamp(-1)])
def test_what_does_not_fit_is_refused_when_written(value: FieldValue) -> None:
    with pytest.raises(ValueError, match=r"fit|digits"):
        values.encode_field(value)


def test_tables_nest_to_a_limit() -> None:
    encoded = b"V"
    for _ in range(values.MAX_TABLE_DEPTH - 1):
        encoded = b"A" + len(encoded).to_bytes(4, "big") + encoded
    values.decode_field(encoded)
    for _ in range(2):
        encoded = b"A" + len(encoded).to_bytes(4, "big") + encoded
    with pytest.raises(MalformedValue, match="nested"):
        values.decode_field(encoded)


@given(st.binary(max_size=60))
def test_hostile_tables_and_properties_raise_errors_of_their_own_only(noise: bytes) -> None:
    refused: list[FrameError] = []
    for decode in (values.decode_table, values.split_table, values.decode_field):
        with suppress(MalformedValue):
            decode(noise)
    try:
        decode_properties(noise)
    except FrameError as error:
        refused.append(error)
    assert {error.reply_code for error in refused} <= {502}


@given(properties)
def test_properties_round_trip(sample: Properties) -> None:
    section = encode_properties(sample)
    assert decode_properties(section) == sample
    for short in range(len(section)):
        with pytest.raises(FrameError):
            decode_properties(section[:short])


def test_ids_of_raw_bytes_survive() -> None:
    section = b"\x04\x00\x04\xff\x00\xfe\x80"
    assert encode_properties(decode_properties(section)) == section


@given(methods)
def test_methods_round_trip(method: Method) -> None:
    payload = encode_arguments(method)
    assert decode_method(method.CLASS_ID, method.METHOD_ID, payload[4:]) == method


@given(st.sampled_from(all_methods()), st.binary(max_size=60))
def test_hostile_arguments_raise_frame_errors_only(declared: type[Method], noise: bytes) -> None:
    try:
        outcome: Method | FrameError = decode_method(declared.CLASS_ID, declared.METHOD_ID, noise)
    except FrameError as error:
        outcome = error
    if isinstance(outcome, FrameError):
        numbers = (outcome.reply_code, outcome.class_id, outcome.method_id)
        assert numbers == (502, declared.CLASS_ID, declared.METHOD_ID)
        assert declared.NAME in outcome.text
    else:
        assert isinstance(outcome, declared)


def test_methods_are_made_and_matched_like_dataclasses() -> None:
    close = ConnectionClose(320, reply_text="bye")
    assert (close.class_id, close.method_id) == (0, 0)
    match close:
        case ConnectionClose(code, text):
            assert (code, text) == (320, "bye")
    with pytest.raises(AttributeError):
        close.reply_code = 200  # type: ignore[misc]
    for wrong in ((1, 2, 3, 4, 5), (1, "x", 0, 0, 0)):
        with pytest.raises(TypeError):
            ConnectionClose(*wrong)
    with pytest.raises(TypeError):
        ConnectionClose(1, "x", code=2)  # type: ignore[call-arg]


# -- oracles ---------------------------------------------------------------------------------------------------------

ARGUMENTS: dict[str, FieldValue] = {
    "octet": 9, "short": 0, "long": 131_072, "longlong": 2**40, "short string": "name", "long string": b"long",
    "table": {"key": "value", "nested": {"list": [True, None]}}, "bit": True,
}  # fmt: skip

# What pika can say too: it has no unsigned 64-bit numbers, writes floats not at all and timestamps as datetimes.
pika_scalars: st.SearchStrategy[FieldValue] = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**31), 2**31 - 1), names
)
pika_tables = st.dictionaries(names, pika_scalars | st.lists(pika_scalars, max_size=3), max_size=4)


@given(pika_tables)
def test_pika_writes_and_reads_the_same_tables(table: dict[str, FieldValue]) -> None:
    pieces: list[bytes] = []
    pika.data.encode_table(pieces, table)
    assert b"".join(pieces)[4:] == values.encode_fields(table)
    assert values.decode_table(b"".join(pieces)[4:]) == table


def test_pika_writes_the_same_timestamps_decimals_and_wide_integers() -> None:
    moment = datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC)
    for theirs, ours in (
        (moment, Timestamp(int(moment.timestamp()))),
        (Decimal("-12.34"), Decimal("-12.34")),
        (2**40, 2**40),
        (b"\x00\xff", b"\x00\xff"),
        ({"a": [1, {"b": "c"}]}, {"a": [1, {"b": "c"}]}),
    ):
        pieces: list[bytes] = []
        pika.data.encode_value(pieces, theirs)
        assert b"".join(pieces) == values.encode_field(ours)  # type: ignore[arg-type]


# pika reads long strings as the text of a bytes literal, and update-secret not at all: it is a client's, which only
# writes them. Its way of writing is compared below, with all others.
PIKA_READS = [declared for declared in all_methods() if "long string" not in dict(declared.WIRE).values()]


@settings(max_examples=15)
@pytest.mark.parametrize("declared", PIKA_READS, ids=lambda declared: declared.NAME)
@given(st.data())
def test_pika_reads_and_writes_methods_alike(declared: type[Method], data: st.DataObject) -> None:
    method = data.draw(instances(declared))
    for name, kind in declared.WIRE:
        if kind == "table":
            method.__dict__[name] = data.draw(pika_tables)
    payload = encode_arguments(method)
    peer = pika.spec.methods[(declared.CLASS_ID << 16) | declared.METHOD_ID]().decode(payload, 4)
    assert b"".join(peer.encode()) == payload[4:]
    assert list(peer.__dict__.values()) == list(method.__dict__.values())


@pytest.mark.parametrize("declared", [m for m in all_methods() if m not in PIKA_READS], ids=lambda m: m.NAME)
def test_pika_writes_long_strings_alike(declared: type[Method]) -> None:
    values_of = [ARGUMENTS[kind] for _, kind in declared.WIRE]
    peer = pika.spec.methods[(declared.CLASS_ID << 16) | declared.METHOD_ID](*values_of)
    assert decode_method(declared.CLASS_ID, declared.METHOD_ID, b"".join(peer.encode())) == declared(*values_of)


@given(properties)
def test_pika_reads_the_same_properties(sample: Properties) -> None:
    sample.headers = {"a": 1, "b": ["x", None]} if sample.headers is not None else None
    peer = pika.spec.BasicProperties()
    peer.decode(encode_properties(sample))
    for name in Properties.__dataclass_fields__:
        theirs = getattr(peer, name)
        assert (theirs.decode() if isinstance(theirs, bytes) else theirs) == getattr(sample, name), name
    assert b"".join(peer.encode()) == encode_properties(sample)


@pytest.mark.filterwarnings("ignore:This command is deprecated:DeprecationWarning")
@pytest.mark.parametrize("declared", [m for m in all_methods() if m.CLASS_ID != 30], ids=lambda m: m.NAME)
def test_pamqp_reads_and_writes_every_method_alike(declared: type[Method]) -> None:
    # pamqp insists on the values of reserved arguments.
    insisted: dict[str, FieldValue] = {"reserved_out_of_band": "0", "reserved_channel_id": b"0"}
    method = declared(
        *(
            insisted.get(name, getattr(declared, name)) if name.startswith("reserved_") else ARGUMENTS[kind]
            for name, kind in declared.WIRE
        )
    )
    sent = encode_method(3, method)
    used, channel, peer = pamqp.frame.unmarshal(sent)
    assert (used, channel) == (len(sent), 3)
    assert pamqp.frame.marshal(peer, 3) == sent


def test_arguments_of_a_real_client() -> None:
    """The first method that pamqp-based clients send, with the table that they send."""
    peer = pamqp.commands.Connection.StartOk(
        {"product": "test", "capabilities": {"basic.nack": True}}, "PLAIN", "\x00guest\x00guest", "en_US"
    )
    sent = pamqp.frame.marshal(peer, 0)
    assert decode_method(10, 11, sent[11:-1]) == ConnectionStartOk(
        {"product": "test", "capabilities": {"basic.nack": True}}, "PLAIN", b"\x00guest\x00guest", "en_US"
    )
    declare = QueueDeclare(0, "q", False, True, False, False, False, {"x-max-length": 5})
    used, _, theirs = pamqp.frame.unmarshal(encode_method(1, declare))
    assert used == len(encode_method(1, declare))
    assert (theirs.queue, theirs.durable, theirs.arguments) == ("q", True, {"x-max-length": 5})
