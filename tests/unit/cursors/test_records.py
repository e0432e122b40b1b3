"""Records of `__consumer_offsets`: exact bytes for what Kafka defines, and nothing but UnreadableRecord for garbage."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.cursors.stream import records as r
from trunkline.cursors.stream.subscription import subscribed_topics

TEXT = st.text(max_size=40)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)


def test_an_offset_record_has_kafkas_layout() -> None:
    assert r.offset_key("grp", "top", 7) == b"\x00\x01\x00\x03grp\x00\x03top\x00\x00\x00\x07"
    value = r.offset_value(r.OffsetValue(5, 2, "m", 9))
    assert value == b"\x00\x03" + struct.pack(">qi", 5, 2) + b"\x00\x01m" + struct.pack(">q", 9)


def test_a_group_record_has_kafkas_layout() -> None:
    assert r.classic_key("grp") == b"\x00\x02\x00\x03grp"
    member = r.ClassicMemberValue("m", None, "c", "/h", 2, 1, b"sub", b"as")
    value = r.classic_value(r.ClassicValue("consumer", 4, "range", "m", 9, (member,)))
    head = b"\x00\x03\x00\x08consumer" + struct.pack(">i", 4) + b"\x00\x05range\x00\x01m" + struct.pack(">qi", 9, 1)
    tail = b"\x00\x01m\xff\xff\x00\x01c\x00\x02/h" + struct.pack(">ii", 2, 1) + b"\x00\x00\x00\x03sub\x00\x00\x00\x02as"
    assert value == head + tail


@given(st.builds(r.OffsetKey, TEXT, TEXT, INT32), st.builds(r.OffsetValue, INT64, INT32, TEXT, INT64))
def test_offsets_round_trip(key: r.OffsetKey, value: r.OffsetValue) -> None:
    assert r.read_key(r.offset_key(*key)) == key
    assert r.read_offset_value(r.offset_value(value)) == value


MEMBERS = st.builds(
    r.ClassicMemberValue,
    TEXT,
    st.none() | TEXT,
    TEXT,
    TEXT,
    INT32,
    INT32,
    st.binary(max_size=30),
    st.binary(max_size=30),
)
GROUPS = st.builds(
    r.ClassicValue, TEXT, INT32, st.none() | TEXT, st.none() | TEXT, INT64, st.lists(MEMBERS, max_size=4).map(tuple)
)


@given(GROUPS)
def test_groups_round_trip(value: r.ClassicValue) -> None:
    assert r.read_classic_value(r.classic_value(value)) == value


@given(TEXT, TEXT)
def test_consumer_keys_round_trip(group: str, member: str) -> None:
    assert r.read_key(r.consumer_group_key(group)) == r.ConsumerGroupKey(group)
    assert r.read_key(r.consumer_member_key(group, member)) == r.ConsumerMemberKey(group, member)


def test_older_values_are_read() -> None:
    v1 = struct.pack(">hq", 1, 5) + b"\x00\x01m" + struct.pack(">qq", 9, 10)
    assert r.read_offset_value(v1) == r.OffsetValue(5, -1, "m", 9)
    v0 = b"\x00\x00\x00\x01c" + struct.pack(">i", 2) + b"\xff\xff\xff\xff" + struct.pack(">i", 1)
    member = b"\x00\x01m\x00\x01c\x00\x01h" + struct.pack(">i", 30) + b"\x00\x00\x00\x00" + b"\xff\xff\xff\xff"
    read = r.read_classic_value(v0 + member)
    assert read.members == (r.ClassicMemberValue("m", None, "c", "h", 30, 30, b"", b""),)
    assert read.state_timestamp_ms == -1


@given(st.binary(max_size=80))
def test_garbage_is_unreadable_and_nothing_worse(data: bytes) -> None:
    for read in (r.read_key, r.read_offset_value, r.read_classic_value, r.read_json_value):
        try:
            read(data)
        except r.UnreadableRecord:
            pass


@given(GROUPS, st.data())
def test_a_cut_group_record_is_unreadable(value: r.ClassicValue, data: st.DataObject) -> None:
    whole = r.classic_value(value)
    with pytest.raises(r.UnreadableRecord):
        r.read_classic_value(whole[: data.draw(st.integers(0, len(whole) - 1))])


@given(st.binary(max_size=60))
def test_metadata_that_is_no_subscription_is_none_or_a_set_of_names(data: bytes) -> None:
    found = subscribed_topics(data)
    assert found is None or all(isinstance(name, str) for name in found)


def test_a_subscription_names_its_topics() -> None:
    assert subscribed_topics(struct.pack(">hi", 3, 2) + b"\x00\x01a\x00\x02bc" + b"rest") == frozenset({"a", "bc"})
    assert subscribed_topics(struct.pack(">hi", 0, 2) + b"\x00\x01a") is None
    assert subscribed_topics(struct.pack(">hi", 0, 2**31 - 1)) is None
