"""Transactions on a partition: what is open holds back the stable end; a marker decides, and readers can tell."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.contract.conftest import MakeStore
from tests.contract.scenario import TP, batch, noticed, put, run, seen, values
from trunkline.log.errors import InvalidTransactionState, OutOfOrderSequence, ProducerFenced, UnknownTopicOrPartition
from trunkline.log.store import AbortedTransaction, LogStore, TopicPartition


def test_an_open_transaction_holds_back_committed_readers(make_store: MakeStore) -> None:
    async def scenario(store: LogStore) -> None:
        await put(store, b"before")
        await store.append(TP, batch(b"inside", producer=1, sequence=0, transactional=True))
        await put(store, b"after")
        await noticed(store, lambda: store.bounds(TP)[1:3] == (3, 1))
        assert values(await seen(store, committed=True)) == [b"before"]
        assert values(await seen(store)) == [b"before", b"inside", b"after"]
        await store.append_marker(TP, 1, 0, commit=True)
        await noticed(store, lambda: store.bounds(TP)[1:3] == (4, 4))
        assert values(await seen(store, committed=True)) == [b"before", b"inside", b"after"]

    run(make_store, scenario)


def test_aborted_records_are_named_to_committed_readers(make_store: MakeStore) -> None:
    async def scenario(store: LogStore) -> None:
        await store.append(TP, batch(b"no", producer=1, sequence=0, transactional=True))
        await store.append(TP, batch(b"yes", producer=2, sequence=0, transactional=True))
        await store.append_marker(TP, 1, 0, commit=False)
        await noticed(store, lambda: store.bounds(TP).last_stable_offset == 1)  # the other one is still open
        await store.append_marker(TP, 2, 0, commit=True)
        piece = await store.read(TP, 0, 1, committed=True)
        assert list(piece.aborted) == [AbortedTransaction(1, 0)]
        assert values(await seen(store, committed=True)) == [b"yes"]
        assert list((await store.read(TP, 0, 1)).aborted) == []

    run(make_store, scenario)


def test_a_producer_may_begin_again_after_its_transaction(make_store: MakeStore) -> None:
    async def scenario(store: LogStore) -> None:
        for number, commit in enumerate((True, False, True)):
            await store.append(TP, batch(b"%d" % number, producer=1, sequence=number, transactional=True))
            await store.append_marker(TP, 1, 0, commit=commit)
        assert values(await seen(store, committed=True)) == [b"0", b"2"]

    run(make_store, scenario)


def test_a_batch_is_a_repetition_only_within_its_own_transaction(make_store: MakeStore) -> None:
    async def scenario(store: LogStore) -> None:
        first = batch(b"a", producer=1, sequence=0, transactional=True)
        await store.append(TP, first)
        assert (await store.append(TP, first)).duplicate
        await store.append_marker(TP, 1, 0, commit=True)
        with pytest.raises(OutOfOrderSequence):
            await store.append(TP, first)

    run(make_store, scenario)


def test_markers_of_an_older_epoch_or_coordinator_are_refused(make_store: MakeStore) -> None:
    async def scenario(store: LogStore) -> None:
        await store.append(TP, batch(b"a", producer=1, epoch=3, sequence=0, transactional=True))
        with pytest.raises(ProducerFenced):
            await store.append_marker(TP, 1, 2, commit=True)
        await store.append_marker(TP, 1, 3, commit=True, coordinator_epoch=5)
        with pytest.raises(InvalidTransactionState):
            await store.append_marker(TP, 1, 3, commit=True, coordinator_epoch=4)
        with pytest.raises(UnknownTopicOrPartition):
            await store.append_marker(TopicPartition("nowhere", 0), 1, 3, commit=True)

    run(make_store, scenario)


def test_a_marker_fences_the_epochs_before_it(make_store: MakeStore) -> None:
    async def scenario(store: LogStore) -> None:
        await store.append(TP, batch(b"a", producer=1, epoch=0, sequence=0, transactional=True))
        await store.append_marker(TP, 1, 1, commit=False)
        with pytest.raises(ProducerFenced):
            await store.append(TP, batch(b"zombie", producer=1, epoch=0, sequence=1, transactional=True))
        assert values(await seen(store, committed=True)) == []

    run(make_store, scenario)


def test_a_plain_batch_inside_the_producers_transaction_is_refused(make_store: MakeStore) -> None:
    async def scenario(store: LogStore) -> None:
        await store.append(TP, batch(b"a", producer=1, sequence=0, transactional=True))
        with pytest.raises(InvalidTransactionState):
            await store.append(TP, batch(b"b", producer=1, sequence=1))

    run(make_store, scenario)


_STEPS = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from(["put", "put", "commit", "abort", "plain"])), max_size=40
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=_STEPS, max_bytes=st.integers(1, 400))
def test_committed_readers_see_what_was_committed_in_the_order_of_the_log(
    make_store: MakeStore, steps: list[tuple[int, str]], max_bytes: int
) -> None:
    async def scenario(store: LogStore) -> None:
        name = f"m{len(store.topics())}"
        await store.create_topic(name, 1)
        tp = TopicPartition(name, 0)
        written: list[tuple[int, bytes]] = []  # (producer or -1, value)
        outcome: dict[bytes, bool] = {}
        pending: dict[int, list[bytes]] = {}
        sequences = dict.fromkeys(range(3), 0)
        for number, (producer, step) in enumerate(steps):
            value = b"%d" % number
            if step == "plain":
                await store.append(tp, batch(value))
                written.append((-1, value))
                outcome[value] = True
            elif step == "put":
                await store.append(
                    tp, batch(value, producer=producer, sequence=sequences[producer], transactional=True)
                )
                sequences[producer] += 1
                pending.setdefault(producer, []).append(value)
                written.append((producer, value))
            else:
                await store.append_marker(tp, producer, 0, commit=step == "commit")
                for ended in pending.pop(producer, []):
                    outcome[ended] = step == "commit"
        expected: list[bytes] = []
        for _, value in written:
            if value not in outcome:
                break  # the first that is still open holds back the rest
            if outcome[value]:
                expected.append(value)
        assert values(await seen(store, tp, max_bytes=max_bytes, committed=True)) == expected
        assert values(await seen(store, tp, max_bytes=max_bytes)) == [value for _, value in written]

    run(make_store, scenario)
