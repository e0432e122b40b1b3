"""The records of `__transaction_state`, byte for byte as Kafka writes them, and what damaged ones do."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.broker.transactions.log import TRANSACTION_STATE
from trunkline.broker.transactions.producer_ids import decode_next_block
from trunkline.broker.transactions.state import (
    NO_EPOCH,
    NO_PRODUCER_ID,
    Status,
    TransactionState,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)
from trunkline.log.batch import NewRecord, build_batch
from trunkline.log.errors import CorruptBatch
from trunkline.log.store import Durability, TopicPartition

from .transaction_bench import bench, scenario

_ids = st.integers(0, 2**63 - 1)
_epochs = st.integers(-1, 2**15 - 1)
_stamps = st.integers(-1, 2**60)
_partitions = st.frozensets(
    st.builds(TopicPartition, st.text("abc._-é", min_size=1, max_size=9), st.integers(0, 2**31 - 1)), max_size=20
)


@st.composite
def states(draw: st.DrawFn) -> TransactionState:
    status = draw(st.sampled_from([status for status in Status if status is not Status.PREPARE_EPOCH_FENCE]))
    return TransactionState(
        draw(_ids),
        draw(_epochs),
        draw(st.integers(0, 2**31 - 1)),
        status,
        frozenset() if status is Status.EMPTY else draw(_partitions),
        draw(_stamps),
        draw(_stamps),
        draw(_ids | st.just(NO_PRODUCER_ID)),
        draw(_ids | st.just(NO_PRODUCER_ID)),
        draw(_epochs | st.just(NO_EPOCH)),
        draw(st.sampled_from([0, 2])),
    )


@given(states())
def test_a_state_is_read_as_it_was_written(state: TransactionState) -> None:
    assert decode_value(encode_value(state)) == state


@given(st.text(max_size=300))
def test_a_key_is_read_as_it_was_written(transactional_id: str) -> None:
    assert decode_key(encode_key(transactional_id)) == transactional_id


@given(st.binary(max_size=200))
def test_garbage_raises_nothing_but_value_error(data: bytes) -> None:
    for decode in (decode_key, decode_value, decode_next_block):
        try:
            decode(data)
        except ValueError:
            continue


@given(states(), st.data())
def test_a_damaged_state_raises_nothing_but_value_error(state: TransactionState, data: st.DataObject) -> None:
    value = bytearray(encode_value(state))
    value[data.draw(st.integers(0, len(value) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        decode_value(bytes(value[: data.draw(st.integers(0, len(value)))]))
    except ValueError:
        pass


def test_the_bytes_are_those_of_kafkas_transaction_log() -> None:
    assert encode_key("ab").hex() == "000000026162"
    state = TransactionState(
        producer_id=5,
        producer_epoch=2,
        timeout_ms=60_000,
        status=Status.ONGOING,
        partitions=frozenset({TopicPartition("t", 0), TopicPartition("t", 3)}),
        last_update_ms=7,
        start_ms=6,
        previous_producer_id=4,
        client_version=2,
    )
    assert encode_value(state).hex() == (
        "0001" "0000000000000005" "0002" "0000ea60" "01"
        "02" "0274" "03" "00000000" "00000003" "00"
        "0000000000000007" "0000000000000006"
        "02" "00" "08" "0000000000000004" "02" "02" "0002"
    )  # fmt: skip


def test_version_0_is_read() -> None:
    value = struct.pack(">hqhibih1sii", 0, 9, 1, 1000, Status.PREPARE_COMMIT, 1, 1, b"t", 1, 4)
    value += struct.pack(">qq", 20, 10)
    assert decode_value(value) == TransactionState(
        9, 1, 1000, Status.PREPARE_COMMIT, frozenset({TopicPartition("t", 4)}), 20, 10
    )
    empty = struct.pack(">hqhibiqq", 0, 9, 1, 1000, Status.EMPTY, -1, 20, -1)
    assert decode_value(empty) == TransactionState(9, 1, 1000, Status.EMPTY, frozenset(), 20, -1)


def test_a_fence_that_kafka_left_pending_is_an_open_transaction() -> None:
    value = struct.pack(">hqhibiqq", 0, 9, 1, 1000, Status.PREPARE_EPOCH_FENCE, 0, 20, 10)
    assert decode_value(value).status is Status.ONGOING


@scenario
async def test_records_of_an_unknown_kind_are_skipped_and_unreadable_ones_named() -> None:
    b = await bench()
    await b.init()
    future_kind = build_batch([NewRecord(struct.pack(">h", 99), b"whatever")], timestamp_ms=0)
    await b.store.append(TRANSACTION_STATE, future_kind, Durability.DISK)
    again = await b.restarted()
    assert again.state() == "Empty"
    end = b.store.bounds(TRANSACTION_STATE).high_watermark
    damaged = build_batch([NewRecord(encode_key("t"), b"\x00\x01\x00")], timestamp_ms=0)
    await b.store.append(TRANSACTION_STATE, damaged, Durability.DISK)
    with pytest.raises(CorruptBatch, match=f"__transaction_state-0 at offset {end}"):
        await b.restarted()
