"""Settled offsets against a set; state records through their encoding."""

from __future__ import annotations

from itertools import pairwise
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.cursors.queue import Message, state
from trunkline.cursors.queue.settings import Overflow, QueueSettings
from trunkline.cursors.queue.settled import CHUNK_OFFSETS, SettledOffsets, runs

SPAN = CHUNK_OFFSETS * 2 + 100
STEPS = st.lists(
    st.tuples(st.sampled_from(["run", "some", "before", "cut"]), st.integers(0, SPAN - 1), st.integers(1, 6000)),
    max_size=30,
)


@given(STEPS)
def test_settled_offsets_are_what_a_set_would_be(steps: list[tuple[str, int, int]]) -> None:
    settled = SettledOffsets()
    reference: set[int] = set()
    for name, start, count in steps:
        if name == "run":
            for first, length in list(settled.unsettled(start, min(start + count, SPAN))):
                settled.settle_run(first, length)
                reference |= set(range(first, first + length))
            reference |= set(range(start, min(start + count, SPAN)))
        elif name == "some":
            chosen = [o for o in range(start, min(start + count, SPAN), 3) if o not in reference]
            settled.settle(reversed(chosen))
            reference |= set(chosen)
        elif name == "before":
            settled.settle_before(start)
            reference |= set(range(start))
        else:
            settled.cut(start)
            reference = {offset for offset in reference if offset < start}
        assert settled.head + settled.above == len(reference)
        assert settled.head == next(offset for offset in range(SPAN + 1) if offset not in reference)
        assert all(offset in settled for offset in list(reference)[::97])
        free = [o for first, length in settled.unsettled(0, SPAN) for o in range(first, first + length)]
        assert free == [offset for offset in range(SPAN) if offset not in reference]


@given(st.sets(st.integers(0, 300)))
def test_runs_cover_exactly_the_offsets(offsets: set[int]) -> None:
    found = list(runs(list(offsets)))
    assert sorted(o for start, count in found for o in range(start, start + count)) == sorted(offsets)
    assert all(start + count < following for (start, count), (following, _) in pairwise(found))


@given(
    st.integers(0, 2**CHUNK_OFFSETS - 1), st.dictionaries(st.integers(0, CHUNK_OFFSETS - 1), st.integers(0, 2**32 - 1))
)
def test_a_chunk_is_read_back_as_it_was(bits: int, counts: dict[int, int]) -> None:
    chunk = state.Chunk(bits, counts)
    encoded = state.encode_chunk(chunk)
    assert state.decode_chunk(encoded) == chunk
    assert len(encoded) <= 2 + CHUNK_OFFSETS // 8 + 2 + 6 * len(counts)


def test_a_chunk_with_few_runs_is_small() -> None:
    bits = ((1 << 100) - 1) << 50
    assert len(state.encode_chunk(state.Chunk(bits, {}))) == 10
    assert state.decode_chunk(state.encode_chunk(state.Chunk(bits, {}))).bits == bits


@given(st.text(max_size=50), st.integers(0, 2**63 - 1), st.sampled_from([state.HEAD, state.CHUNK, state.SCHEDULED]))
def test_keys_are_read_back(name: str, number: int, kind: bytes) -> None:
    key = state.encode_key(kind, name, None if kind == state.HEAD else number)
    assert state.decode_key(key) == (kind, name, 0 if kind == state.HEAD else number)


@given(st.binary(max_size=60))
def test_bytes_that_are_no_state_are_refused_and_nothing_else_happens(value: bytes) -> None:
    state.decode_key(value)
    for decode in (state.decode_head, state.decode_chunk, state.decode_scheduled, state.decode_due):
        try:
            decode(value)
        except ValueError:
            continue


def test_scheduled_messages_and_heads_are_read_back() -> None:
    message = Message(b"body", b"\x00", b"key", 5, 9, 3, False)
    for one in (message, message._replace(key=None, expires_ms=None)):
        value = state.encode_scheduled(one, 77)
        assert (state.decode_scheduled(value), state.decode_due(value)) == (one, 77)
    head = state.Head(uuid4(), 1, 2, 3)
    assert state.decode_head(state.encode_head(head)) == head


def test_settings_are_read_back_and_nonsense_is_refused() -> None:
    settings = QueueSettings(
        max_length=0, overflow=Overflow.REJECT_PUBLISH_DLX, dead_letter=("x", None), max_priority=255, order_by_key=True
    )
    assert QueueSettings.decode(settings.encode()) == settings
    assert QueueSettings().encode() == {}
    with pytest.raises(ValueError, match="settings"):
        QueueSettings.decode({"colour": "red"})
    for name, wrong in {"max_length": -1, "expires_ms": 0, "max_priority": 256}.items():
        with pytest.raises(ValueError, match=name):
            QueueSettings.decode({name: wrong})
