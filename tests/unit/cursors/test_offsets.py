from __future__ import annotations

import asyncio

import pytest

from tests.unit.cursors.harness import Harness, refused, run, subscription, turns
from trunkline.cursors.stream import (
    OFFSETS_PARTITION,
    ClassicDescription,
    GroupError,
    GroupErrorName,
    GroupLimits,
    GroupType,
    LeavingMember,
    OffsetEntry,
)
from trunkline.cursors.stream.limits import DAY_MS
from trunkline.log.errors import ProducerFenced, StorageFailure
from trunkline.log.store import TopicPartition

T0 = TopicPartition("t", 0)
PRODUCER = 42


async def txn_commit(h: Harness, offset: int, *, producer_id: int = PRODUCER, partition: int = 0) -> None:
    results = await h.groups.txn_commit("g", producer_id, 0, [OffsetEntry("t", partition, offset)])
    assert results == {TopicPartition("t", partition): None}


async def end(h: Harness, *, commit: bool, producer_id: int = PRODUCER) -> None:
    await h.store.append_marker(OFFSETS_PARTITION, producer_id, 0, commit=commit)
    await h.groups.txn_end(producer_id, commit)


# -- committing -----------------------------------------------------------------------------------------------------


def test_a_committed_offset_is_fetched_and_survives_a_restart() -> None:
    async def scenario() -> None:
        h = await Harness().start(t=2)
        entries = [OffsetEntry("t", 0, 5, 3, "note"), OffsetEntry("t", 1, 9)]
        assert set((await h.groups.commit("g", "", -1, None, entries)).values()) == {None}
        for each in (h, await h.restarted()):
            fetched = each.groups.fetch("g", None)
            assert [(tp.partition, got.offset, got.leader_epoch, got.metadata) for tp, got in fetched.items()] == [
                (0, 5, 3, "note"),
                (1, 9, -1, ""),
            ]
            assert each.state() == "Empty"

    run(scenario)


def test_nothing_committed_is_minus_one_and_no_error() -> None:
    async def scenario() -> None:
        h = await Harness().start(t=1)
        assert h.fetched() == (-1, -1, "", None)
        assert h.groups.fetch("g", None) == {}

    run(scenario)


def test_a_commit_is_answered_and_seen_only_when_it_is_on_disk() -> None:
    async def scenario() -> None:
        h = await Harness().start(t=1)
        h.store.automatic_sync = False
        committing = asyncio.ensure_future(h.commit(5))
        await turns()
        assert not committing.done()
        assert h.committed() == -1
        h.store.sync()
        assert await committing == ""
        assert h.committed() == 5

    run(scenario)


def test_commits_of_one_turn_share_a_batch_and_the_last_one_counts() -> None:
    async def scenario() -> None:
        h = await Harness().start(t=1)
        before = h.store.appends
        assert await asyncio.gather(*(h.commit(offset) for offset in range(100))) == [""] * 100
        assert h.store.appends == before + 1
        assert h.committed() == 99
        assert (await h.restarted()).committed() == 99

    run(scenario)


def test_many_large_commits_of_one_turn_are_split_over_batches_in_order() -> None:
    async def scenario() -> None:
        h = await Harness().start(t=400)
        note = "x" * 4_096
        entries = [[OffsetEntry("t", number, number, metadata=note)] for number in range(400)]
        before = h.store.appends
        await asyncio.gather(*(h.groups.commit("g", "", -1, None, each) for each in entries))
        assert 2 <= h.store.appends - before <= 8
        after = await h.restarted()
        assert [got.offset for got in after.groups.fetch("g", None).values()] == list(range(400))

    run(scenario)


def test_a_commit_that_does_not_reach_the_disk_is_refused_and_not_seen() -> None:
    async def scenario() -> None:
        h = await Harness().start(t=1)
        assert await h.commit(1) == ""
        h.store.failure = StorageFailure("file", "Input/output error")
        assert await refused(h.commit(2)) == "COORDINATOR_NOT_AVAILABLE"
        h.store.failure = None
        assert h.committed() == 1

    run(scenario)


def test_a_commit_happens_though_its_caller_went_away() -> None:
    async def scenario() -> None:
        h = await Harness().start(t=1)
        h.store.automatic_sync = False
        committing = asyncio.ensure_future(h.commit(5))
        await turns()
        committing.cancel()
        await turns()
        h.store.sync()
        await turns()
        assert h.committed() == 5

    run(scenario)


def test_later_fsyncs_that_complete_first_are_applied_in_order() -> None:
    async def scenario() -> None:
        h = await Harness().start(t=1)
        h.store.automatic_sync = False
        first = asyncio.ensure_future(h.commit(1))
        await turns()
        held, h.store.waiting = h.store.waiting, []
        second = asyncio.ensure_future(h.commit(2))
        await turns()
        h.store.sync()
        await turns()
        assert not second.done()
        h.store.waiting = held
        h.store.sync()
        assert (await first, await second) == ("", "")
        assert h.committed() == 2

    run(scenario)


def test_unknown_partitions_and_long_metadata_are_refused_one_by_one() -> None:
    async def scenario() -> None:
        h = await Harness().start(t=1)
        entries = [
            OffsetEntry("t", 0, 1),
            OffsetEntry("t", 1, 1),
            OffsetEntry("none", 0, 1),
        ]
        results = await h.groups.commit("g", "", -1, None, entries)
        assert list(results.values()) == [None, *[GroupErrorName.UNKNOWN_TOPIC_OR_PARTITION] * 2]
        long = await h.groups.commit("g", "", -1, None, [OffsetEntry("t", 0, 2, metadata="é" * 2_049)])
        assert long == {T0: GroupErrorName.OFFSET_METADATA_TOO_LARGE}
        assert h.committed() == 1

    run(scenario)


def test_only_current_members_commit_to_a_live_classic_group() -> None:
    async def scenario() -> None:
        h = await Harness().start(t=1)
        (old,) = await h.stable()
        assert await h.commit(1, member=old) == ""
        assert await refused(h.commit(2)) == "UNKNOWN_MEMBER_ID"
        joined = await h.join(old.member_id)
        assert await refused(h.commit(2, member=joined)) == "REBALANCE_IN_PROGRESS"
        assert await refused(h.commit(2, member=old)) == "ILLEGAL_GENERATION"
        assert await refused(h.groups.commit("g", "x", 2, None, [])) == "UNKNOWN_MEMBER_ID"
        assert await refused(h.groups.commit("other", "x", 2, None, [])) == "ILLEGAL_GENERATION"
        assert h.committed() == 1

    run(scenario)


def test_a_member_may_commit_while_a_rebalance_is_being_prepared_and_that_renews_its_session() -> None:
    async def scenario() -> None:
        h = await Harness().start(t=1)
        (member,) = await h.stable()
        h.join()
        for offset in range(2):
            await h.advance(9_000)
            assert await h.commit(offset, member=member) == ""
        assert h.state() == "PreparingRebalance"
        await h.groups.close()

    run(scenario)


def test_commits_to_a_consumer_group_must_have_the_members_epoch() -> None:
    async def scenario() -> None:
        h = await Harness().start(t=1)
        await h.beat848("a", 0)
        entries = [OffsetEntry("t", 0, 3)]
        assert await h.groups.commit("g", "a", 1, None, entries) == {T0: None}
        assert await refused(h.groups.commit("g", "a", 2, None, entries)) == "STALE_MEMBER_EPOCH"
        assert await refused(h.groups.commit("g", "b", 1, None, entries)) == "UNKNOWN_MEMBER_ID"
        assert await refused(h.groups.commit("g", "", -1, None, entries)) == "UNKNOWN_MEMBER_ID"
        assert h.groups.fetch("g", [T0], member_id="a", member_epoch=1)[T0].offset == 3
        with pytest.raises(GroupError, match="epoch 9"):
            h.groups.fetch("g", [T0], member_id="a", member_epoch=9)
        await h.beat848("a", -1)
        assert await h.commit(4) == ""

    run(scenario)


# -- transactions ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("commit", [True, False])
def test_transactional_offsets_count_only_when_the_transaction_commits(restart: bool, commit: bool) -> None:
    async def scenario() -> None:
        h = await Harness().start(t=1)
        await h.commit(1)
        await txn_commit(h, 10)
        if restart:
            h = await h.restarted()
        assert h.committed() == 1
        assert h.fetched(require_stable=True).error is GroupErrorName.UNSTABLE_OFFSET_COMMIT
        await end(h, commit=commit)
        for each in (h, await h.restarted()):
            assert each.fetched(require_stable=True).error is None
            assert each.committed() == (10 if commit else 1)

    run(scenario)


def test_a_plain_commit_after_a_transactional_one_wins_though_the_transaction_ends_later() -> None:
    async def scenario() -> None:
        h = await Harness().start(t=1)
        await txn_commit(h, 10)
        await h.commit(20)
        await end(h, commit=True)
        assert h.committed() == (await h.restarted()).committed() == 20

    run(scenario)


def test_two_transactions_on_one_partition_are_told_apart() -> None:
    async def scenario() -> None:
        h = await Harness().start(t=1)
        await txn_commit(h, 10, producer_id=1)
        await txn_commit(h, 11, producer_id=2)
        await end(h, commit=False, producer_id=2)
        assert h.fetched(require_stable=True).error is GroupErrorName.UNSTABLE_OFFSET_COMMIT
        await end(h, commit=True, producer_id=1)
        assert h.fetched(require_stable=True).offset == 10

    run(scenario)


def test_a_new_group_of_a_transaction_is_listed_once_it_commits_and_others_see_it_unstable() -> None:
    async def scenario() -> None:
        h = await Harness().start(t=2)
        await txn_commit(h, 10, partition=1)
        unstable = h.groups.fetch("g", None, require_stable=True)
        assert unstable[TopicPartition("t", 1)].error is GroupErrorName.UNSTABLE_OFFSET_COMMIT
        assert h.groups.fetch("g", None) == {}
        await end(h, commit=True)
        assert [each.group_id for each in h.groups.list_groups()] == ["g"]

    run(scenario)


def test_a_fenced_producer_cannot_commit_offsets() -> None:
    async def scenario() -> None:
        h = await Harness().start(t=1)
        h.store.failure = ProducerFenced("epoch 0 is older than 1")
        work = h.groups.txn_commit("g", PRODUCER, 0, [OffsetEntry("t", 0, 1)])
        assert await refused(work) == "INVALID_PRODUCER_EPOCH"
        h.store.failure = None
        assert h.fetched(require_stable=True).error is None

    run(scenario)


def test_a_transaction_may_commit_for_a_member_of_the_generation_or_without_one() -> None:
    async def scenario() -> None:
        h = await Harness().start(t=1)
        (member,) = await h.stable()
        entries = [OffsetEntry("t", 0, 1)]
        await h.groups.txn_commit("g", 1, 0, entries, member_id=member.member_id, generation_or_epoch=1)
        await h.groups.txn_commit("g", 1, 0, entries)
        stale = h.groups.txn_commit("g", 1, 0, entries, member_id=member.member_id, generation_or_epoch=9)
        assert await refused(stale) == "ILLEGAL_GENERATION"

    run(scenario)


# -- deleting -------------------------------------------------------------------------------------------------------


def test_offsets_of_topics_that_a_group_reads_cannot_be_deleted_others_can() -> None:
    async def scenario() -> None:
        h = await Harness().start(t=1, u=1)
        (member,) = await h.stable(protocols=[("range", subscription("t"))])
        await h.commit(1, member=member)
        await h.commit(2, topic="u", member=member)
        u0 = TopicPartition("u", 0)
        results = await h.groups.delete_offsets("g", [T0, u0, TopicPartition("none", 0)])
        assert results == {
            T0: GroupErrorName.GROUP_SUBSCRIBED_TO_TOPIC,
            u0: None,
            TopicPartition("none", 0): GroupErrorName.UNKNOWN_TOPIC_OR_PARTITION,
        }
        for each in (h, await h.restarted()):
            assert each.committed() == 1
            assert each.committed("u") == -1

    run(scenario)


def test_offsets_of_a_consumer_group_follow_its_subscription() -> None:
    async def scenario() -> None:
        h = await Harness().start(t=1, u=1)
        await h.commit(1)
        await h.commit(2, topic="u")
        await h.beat848("a", 0, regex="t.*")
        results = await h.groups.delete_offsets("g", [T0, TopicPartition("u", 0)])
        assert list(results.values()) == [GroupErrorName.GROUP_SUBSCRIBED_TO_TOPIC, None]

    run(scenario)


def test_offsets_of_a_live_group_of_another_kind_and_of_no_group_are_not_deleted() -> None:
    async def scenario() -> None:
        h = await Harness().start(t=1)
        assert await refused(h.groups.delete_offsets("g", [T0])) == "GROUP_ID_NOT_FOUND"
        await h.join(protocol_type="connect")
        assert await refused(h.groups.delete_offsets("g", [T0])) == "NON_EMPTY_GROUP"

    run(scenario)


def test_only_an_empty_group_is_deleted_and_its_offsets_go_with_it() -> None:
    async def scenario() -> None:
        h = await Harness().start(t=1)
        assert await refused(h.groups.delete_group("g")) == "GROUP_ID_NOT_FOUND"
        (member,) = await h.stable()
        await h.commit(1, member=member)
        assert await refused(h.groups.delete_group("g")) == "NON_EMPTY_GROUP"
        h.groups.leave("g", [LeavingMember(member.member_id)])
        await h.groups.delete_group("g")
        for each in (h, await h.restarted()):
            assert each.committed() == -1
            assert each.groups.list_groups() == []

    run(scenario)


def test_a_consumer_group_is_deleted_when_its_members_left() -> None:
    async def scenario() -> None:
        h = await Harness().start(t=1)
        await h.beat848("a", 0)
        assert await refused(h.groups.delete_group("g")) == "NON_EMPTY_GROUP"
        await h.beat848("a", -1)
        await h.groups.delete_group("g")
        assert (await h.restarted()).groups.list_groups() == []

    run(scenario)


def test_a_commit_that_was_under_way_is_deleted_with_its_group() -> None:
    async def scenario() -> None:
        h = await Harness().start(t=1)
        await h.commit(1)
        await asyncio.gather(h.commit(2), h.groups.delete_group("g"))
        assert h.committed() == -1
        assert await h.commit(3) == ""
        for each in (h, await h.restarted()):
            assert each.committed() == 3

    run(scenario)


def test_a_deleted_topics_offsets_are_dropped_in_every_group() -> None:
    async def scenario() -> None:
        h = await Harness().start(t=1, u=1)
        for group_id in ("g", "h"):
            await h.commit(1, group_id=group_id)
            await h.commit(2, topic="u", group_id=group_id)
        await txn_commit(h, 9)
        await h.store.delete_topic("t")
        await h.groups.topic_deleted("t")
        await end(h, commit=True)
        for each in (h, await h.restarted()):
            for group_id in ("g", "h"):
                assert [tp.topic for tp in each.groups.fetch(group_id, None)] == ["u"]

    run(scenario)


def test_offsets_committed_to_a_topic_of_the_same_name_made_since_stay() -> None:
    async def scenario() -> None:
        h = await Harness().start(t=1)
        await h.commit(1)
        await h.store.delete_topic("t")
        forgotten = h.groups.topic_deleted("t")
        h.store.add_topic("t", 1)
        await h.commit(2)
        await forgotten
        assert h.committed() == 2

    run(scenario)


def test_a_crash_between_a_topics_deletion_and_that_of_its_offsets_is_made_good_on_start() -> None:
    async def scenario() -> None:
        h = await Harness().start(t=1)
        await h.commit(1)
        await h.store.delete_topic("t")
        after = await h.restarted()
        assert after.groups.fetch("g", None) == {}

    run(scenario)


# -- expiry ---------------------------------------------------------------------------------------------------------


def test_offsets_expire_a_week_after_their_group_became_empty_and_the_group_goes_with_them() -> None:
    async def scenario() -> None:
        h = await Harness().start(t=1)
        session_ms = h.limits.max_session_timeout_ms
        member = await h.join(protocols=[("range", subscription("t"))], session_timeout_ms=session_ms)
        await h.sync(member, {})
        await h.commit(1, member=member)
        while h.clock.monotonic_ms() < 8 * DAY_MS:  # a live member reads the topic: nothing expires, however old
            await h.advance(session_ms - 1)
            assert h.beat(member) == ""
        assert h.committed() == 1
        h.groups.leave("g", [LeavingMember(member.member_id)])
        await h.advance(7 * DAY_MS - 1_000_000)
        assert h.committed() == 1
        await h.advance(2_000_000)
        for each in (h, await h.restarted()):
            assert each.committed() == -1
            assert each.groups.list_groups() == []

    run(scenario)


def test_simple_consumers_offsets_expire_a_week_after_their_commit() -> None:
    async def scenario() -> None:
        h = await Harness().start(t=2)
        await h.commit(1)
        await h.advance(4 * DAY_MS)
        await h.commit(2, partition=1)
        await h.advance(3 * DAY_MS + 1_000_000)
        assert h.committed() == -1
        assert h.committed(partition=1) == 2

    run(scenario)


def test_topics_that_a_live_group_no_longer_reads_expire() -> None:
    async def scenario() -> None:
        h = await Harness(limits=GroupLimits(consumer_session_timeout_ms=30 * DAY_MS)).start(t=1, u=1)
        await h.commit(1)
        await h.commit(2, topic="u")
        await h.beat848("a", 0, topics=["t"])
        await h.advance(8 * DAY_MS)
        assert h.committed() == 1
        assert h.committed("u") == -1

    run(scenario)


def test_an_empty_consumer_group_keeps_its_offsets_a_week_after_its_last_member_however_old_they_are() -> None:
    async def scenario() -> None:
        h = await Harness(limits=GroupLimits(consumer_session_timeout_ms=30 * DAY_MS)).start(t=1)
        await h.commit(1)
        await h.beat848("a", 0, topics=["t"])
        await h.advance(8 * DAY_MS)
        await h.beat848("a", -1)
        h = await h.restarted()
        await h.advance(6 * DAY_MS)
        assert h.committed() == 1
        await h.advance(2 * DAY_MS)
        assert h.committed() == -1

    run(scenario)


def test_offsets_with_a_transaction_pending_do_not_expire() -> None:
    async def scenario() -> None:
        h = await Harness().start(t=1)
        await h.commit(1)
        await txn_commit(h, 2)
        await h.advance(8 * DAY_MS)
        assert h.committed() == 1

    run(scenario)


def test_a_sweep_over_many_groups_is_done_in_slices() -> None:
    async def scenario() -> None:
        h = await Harness(limits=GroupLimits(expiry_groups_per_turn=2)).start(t=1)
        for number in range(7):
            await h.commit(1, group_id=f"g{number}")
        await h.advance(8 * DAY_MS)
        assert h.groups.list_groups() == []

    run(scenario)


# -- admin ----------------------------------------------------------------------------------------------------------


def test_groups_are_listed_by_state_and_type_without_regard_to_case() -> None:
    async def scenario() -> None:
        h = await Harness().start(t=1)
        await h.stable()
        await h.commit(1, group_id="simple")
        await h.beat848("a", 0, group_id="new")

        def listed(*, states: tuple[str, ...] = (), types: tuple[str, ...] = ()) -> set[str]:
            return {each.group_id for each in h.groups.list_groups(states, types)}

        assert listed() == {"g", "simple", "new"}
        assert listed(states=("stable",)) == {"g", "new"}
        assert listed(states=("Empty",)) == {"simple"}
        assert listed(types=("Consumer",)) == {"new"}
        assert listed(states=("STABLE",), types=("classic",)) == {"g"}

    run(scenario)


def test_describing_asks_for_the_right_type() -> None:
    async def scenario() -> None:
        h = await Harness().start(t=1)
        (member,) = await h.stable()
        description = h.groups.describe("g", GroupType.CLASSIC)
        assert isinstance(description, ClassicDescription)
        assert description.protocol_type == "consumer"
        assert description.members[0].metadata == b"r"
        assert description.members[0].assignment == member.member_id.encode()
        for group_id, group_type in (("none", None), ("g", GroupType.CONSUMER)):
            with pytest.raises(GroupError) as caught:
                h.groups.describe(group_id, group_type)
            assert caught.value.name is GroupErrorName.GROUP_ID_NOT_FOUND

    run(scenario)
