from __future__ import annotations

import asyncio

import pytest

from tests.unit.cursors.harness import REBALANCE_MS, SESSION_MS, Harness, refused, run, turns
from trunkline.budget import Budget
from trunkline.cursors.stream import (
    ClassicDescription,
    GroupError,
    GroupErrorName,
    GroupLimits,
    JoinedMember,
    LeavingMember,
)
from trunkline.log.errors import StorageFailure

# -- joining ----------------------------------------------------------------------------------------------------


def test_a_lone_member_leads_at_once_and_gets_the_assignment_it_made() -> None:
    async def scenario() -> None:
        h = await Harness().start()
        joined = await h.join()
        assert joined.leader == joined.member_id
        assert joined.member_id.startswith("client-")
        assert joined.generation == 1
        assert joined.protocol_name == "range"
        assert joined.members == [JoinedMember(joined.member_id, None, b"r")]
        assert h.state() == "CompletingRebalance"
        synced = await h.sync(joined, {joined.member_id: b"mine"})
        assert synced.assignment == b"mine"
        assert h.state() == "Stable"
        assert h.beat(joined) == ""

    run(scenario)


def test_a_second_member_waits_until_the_first_has_rejoined() -> None:
    async def scenario() -> None:
        h = await Harness().start()
        (first,) = await h.stable()
        second = h.join()
        await turns()
        assert not second.done()
        assert h.state() == "PreparingRebalance"
        assert h.beat(first) == "REBALANCE_IN_PROGRESS"
        again = await h.join(first.member_id)
        other = await second
        assert again.generation == other.generation == first.generation + 1
        assert again.leader == other.leader == first.member_id
        assert len(again.members) == 2
        assert not other.members
        follower = h.sync(other)
        await turns()
        assert not follower.done()
        await h.sync(again, {first.member_id: b"a", other.member_id: b"b"})
        assert (await follower).assignment == b"b"

    run(scenario)


def test_a_new_member_is_told_its_id_first_when_it_can_come_back_with_one() -> None:
    async def scenario() -> None:
        h = await Harness().start()
        with pytest.raises(GroupError) as caught:
            await h.join(require_known_member_id=True)
        assert caught.value.name is GroupErrorName.MEMBER_ID_REQUIRED
        assert caught.value.member_id.startswith("client-")
        joined = await h.join(caught.value.member_id, require_known_member_id=True)
        assert joined.member_id == caught.value.member_id

    run(scenario)


def test_a_rebalance_waits_for_a_member_that_was_told_its_id_but_not_longer_than_its_session() -> None:
    async def scenario() -> None:
        h = await Harness().start()
        (first,) = await h.stable()
        with pytest.raises(GroupError):
            await h.join(require_known_member_id=True)
        again = h.join(first.member_id)
        await turns()
        assert not again.done()
        await h.advance(SESSION_MS)
        assert (await again).generation == first.generation + 1

    run(scenario)


@pytest.mark.parametrize("timeout_ms", [5_999, 30 * 60_000 + 1])
def test_session_timeouts_outside_the_limits_are_refused(timeout_ms: int) -> None:
    async def scenario() -> None:
        h = await Harness().start()
        assert await refused(h.join(session_timeout_ms=timeout_ms)) == "INVALID_SESSION_TIMEOUT"

    run(scenario)


def test_joining_without_a_group_id_or_to_a_group_that_never_was_is_refused() -> None:
    async def scenario() -> None:
        h = await Harness().start()
        assert await refused(h.join(group_id="")) == "INVALID_GROUP_ID"
        assert await refused(h.join("stranger")) == "UNKNOWN_MEMBER_ID"
        await h.stable()
        assert await refused(h.join("stranger")) == "UNKNOWN_MEMBER_ID"

    run(scenario)


def test_members_must_have_type_and_a_protocol_in_common() -> None:
    async def scenario() -> None:
        h = await Harness().start()
        assert await refused(h.join(protocols=())) == "INCONSISTENT_GROUP_PROTOCOL"
        assert await refused(h.join(protocol_type="")) == "INCONSISTENT_GROUP_PROTOCOL"
        await h.stable()
        assert await refused(h.join(protocols=[("sticky", b"")])) == "INCONSISTENT_GROUP_PROTOCOL"
        assert await refused(h.join(protocol_type="connect")) == "INCONSISTENT_GROUP_PROTOCOL"

    run(scenario)


def test_the_protocol_that_most_members_prefer_among_those_all_know_is_chosen() -> None:
    async def scenario() -> None:
        limits = GroupLimits(initial_rebalance_delay_ms=100)
        h = await Harness(limits=limits).start()
        tasks = [
            h.join(protocols=[("roundrobin", b""), ("range", b""), ("only-me", b"")]),
            h.join(protocols=[("range", b""), ("roundrobin", b"")]),
            h.join(protocols=[("range", b""), ("roundrobin", b"")]),
        ]
        await h.advance(1_000)
        assert {each.protocol_name for each in await asyncio.gather(*tasks)} == {"range"}

    run(scenario)


def test_an_initial_delay_is_prolonged_while_members_keep_coming_up_to_the_rebalance_timeout() -> None:
    async def scenario() -> None:
        h = await Harness(limits=GroupLimits(initial_rebalance_delay_ms=3_000)).start()
        tasks = [h.join(rebalance_timeout_ms=7_000)]
        await h.advance(2_000)
        tasks.append(h.join(rebalance_timeout_ms=7_000))
        await h.advance(1_500)
        assert not any(task.done() for task in tasks)
        await h.advance(2_500)
        assert {each.generation for each in await asyncio.gather(*tasks)} == {1}

    run(scenario)


def test_group_size_is_bounded() -> None:
    async def scenario() -> None:
        h = await Harness(limits=GroupLimits(max_members_per_group=2)).start()
        members = await h.stable(2)
        assert await refused(h.join()) == "GROUP_MAX_SIZE_REACHED"
        assert h.beat(members[0]) == ""

    run(scenario)


def test_the_number_of_groups_is_bounded() -> None:
    async def scenario() -> None:
        h = await Harness(limits=GroupLimits(max_groups=1)).start()
        await h.stable()
        assert await refused(h.join(group_id="another")) == "GROUP_MAX_SIZE_REACHED"

    run(scenario)


def test_a_follower_that_rejoins_unchanged_is_told_the_standing_generation() -> None:
    async def scenario() -> None:
        h = await Harness().start()
        leader, follower = await h.stable(2)
        again = await h.join(follower.member_id)
        assert again.generation == follower.generation
        assert h.state() == "Stable"
        assert h.beat(leader) == ""

    run(scenario)


@pytest.mark.parametrize("who", ["leader", "changed follower"])
def test_a_leader_that_rejoins_or_a_follower_with_other_metadata_starts_a_rebalance(who: str) -> None:
    async def scenario() -> None:
        h = await Harness().start()
        leader, follower = await h.stable(2)
        if who == "leader":
            h.join(leader.member_id)
        else:
            h.join(follower.member_id, protocols=[("range", b"other")])
        await turns()
        assert h.state() == "PreparingRebalance"
        await h.groups.close()

    run(scenario)


def test_a_join_whose_reply_was_lost_can_be_repeated_before_the_sync() -> None:
    async def scenario() -> None:
        h = await Harness().start()
        joined = await h.join()
        again = await h.join(joined.member_id)
        assert again == joined
        assert h.state() == "CompletingRebalance"

    run(scenario)


# -- time ---------------------------------------------------------------------------------------------------------


def test_members_that_do_not_rejoin_within_the_rebalance_timeout_are_dropped() -> None:
    async def scenario() -> None:
        h = await Harness().start()
        first, second = await h.stable(2)
        third = h.join()
        again = h.join(first.member_id)
        for _ in range(4):  # the second heartbeats all the while, and still does not rejoin
            await h.advance(REBALANCE_MS / 5)
            assert h.beat(second) == "REBALANCE_IN_PROGRESS"
        await h.advance(REBALANCE_MS / 5)
        assert (await third).generation == (await again).generation == first.generation + 1
        assert h.beat(second) == "UNKNOWN_MEMBER_ID"

    run(scenario)


def test_a_member_without_heartbeats_is_removed_after_its_session_and_the_others_rebalance() -> None:
    async def scenario() -> None:
        h = await Harness().start()
        first, second = await h.stable(2)
        await h.advance(SESSION_MS - 1)
        assert h.beat(first) == ""
        await h.advance(1)
        assert h.state() == "PreparingRebalance"
        assert h.beat(second) == "UNKNOWN_MEMBER_ID"
        assert (await h.join(first.member_id)).generation == first.generation + 1

    run(scenario)


def test_heartbeats_keep_a_member_forever() -> None:
    async def scenario() -> None:
        h = await Harness().start()
        (member,) = await h.stable()
        for _ in range(50):
            await h.advance(SESSION_MS - 1)
            assert h.beat(member) == ""

    run(scenario)


def test_a_group_whose_last_member_dies_is_empty_in_a_new_generation() -> None:
    async def scenario() -> None:
        h = await Harness().start()
        (member,) = await h.stable()
        await h.advance(SESSION_MS)
        assert h.state() == "Empty"
        assert h.beat(member) == "UNKNOWN_MEMBER_ID"
        assert (await h.join()).generation == member.generation + 2

    run(scenario)


def test_a_member_that_joined_and_never_syncs_is_removed_after_the_rebalance_timeout() -> None:
    async def scenario() -> None:
        h = await Harness().start()
        first, second = await h.stable(2)
        tasks = [h.join(first.member_id), h.join(second.member_id)]
        joined, silent = await asyncio.gather(*tasks)
        await h.sync(joined, {})
        for _ in range(5):
            await h.advance(REBALANCE_MS / 5)
            h.beat(silent)
            h.beat(joined)
        assert h.beat(silent) == "UNKNOWN_MEMBER_ID"
        assert h.state() == "PreparingRebalance"

    run(scenario)


def test_followers_are_sent_back_to_join_when_the_leader_dies_before_it_assigns() -> None:
    async def scenario() -> None:
        h = await Harness().start()
        first, second = await h.stable(2)
        _, follower = await asyncio.gather(h.join(first.member_id), h.join(second.member_id))
        waiting = h.sync(follower)
        await h.advance(SESSION_MS)
        assert await refused(waiting) == "REBALANCE_IN_PROGRESS"
        rejoined = await h.join(follower.member_id)
        assert rejoined.leader == follower.member_id

    run(scenario)


def test_a_session_stands_still_while_the_member_waits_for_the_others() -> None:
    async def scenario() -> None:
        h = await Harness().start()
        first, second = await h.stable(2)
        waiting = h.join(first.member_id)
        for _ in range(2):
            await h.advance(SESSION_MS - 1)
            h.beat(second)
        assert not waiting.done()
        await h.join(second.member_id)
        assert (await waiting).generation == first.generation + 1

    run(scenario)


def test_a_member_whose_connection_died_while_it_waited_is_removed_by_its_session() -> None:
    async def scenario() -> None:
        h = await Harness().start()
        (first,) = await h.stable()
        dying = h.join()
        await turns()
        dying.cancel()
        await turns()
        again = await h.join(first.member_id)
        assert len(again.members) == 2  # nobody knows yet
        await h.sync(again, {})
        for _ in range(3):
            await h.advance(SESSION_MS / 2)
            h.beat(again)
        assert h.state() == "PreparingRebalance"
        assert len((await h.join(first.member_id)).members) == 1

    run(scenario)


# -- syncing ------------------------------------------------------------------------------------------------------


def test_an_assignment_is_handed_out_only_when_it_is_on_disk() -> None:
    async def scenario() -> None:
        h = await Harness().start()
        joined = await h.join()
        h.store.automatic_sync = False
        syncing = h.sync(joined, {joined.member_id: b"x"})
        await turns()
        assert not syncing.done()
        assert h.state() == "CompletingRebalance"
        h.store.sync()
        assert (await syncing).assignment == b"x"

    run(scenario)


@pytest.mark.parametrize("when", ["append", "fsync"])
def test_a_failing_disk_sends_the_members_back_to_rebalance(when: str) -> None:
    async def scenario() -> None:
        h = await Harness().start()
        joined = await h.join()
        if when == "append":
            h.store.failure = StorageFailure("file", "No space left on device")
        h.store.automatic_sync = False
        syncing = h.sync(joined, {joined.member_id: b"x"})
        await turns()
        if when == "fsync":
            h.store.fail_unsynced()
        assert await refused(syncing) == "COORDINATOR_NOT_AVAILABLE"
        assert h.state() == "PreparingRebalance"
        h.store.failure, h.store.automatic_sync = None, True
        again = await h.join(joined.member_id)
        assert (await h.sync(again, {again.member_id: b"y"})).assignment == b"y"

    run(scenario)


def test_sync_of_another_generation_protocol_or_member_is_refused() -> None:
    async def scenario() -> None:
        h = await Harness().start()
        joined = await h.join()

        async def sync(generation: int = 1, member_id: str = joined.member_id, name: str = "range") -> str:
            return await refused(
                h.groups.sync(
                    "g", generation=generation, member_id=member_id, protocol_name=name, protocol_type="consumer"
                )
            )

        assert await sync(generation=2) == "ILLEGAL_GENERATION"
        assert await sync(member_id="stranger") == "UNKNOWN_MEMBER_ID"
        assert await sync(name="sticky") == "INCONSISTENT_GROUP_PROTOCOL"
        assert await refused(h.groups.sync("none", generation=1, member_id="m")) == "UNKNOWN_MEMBER_ID"

    run(scenario)


def test_sync_during_a_new_rebalance_says_so_and_in_a_stable_group_repeats_the_assignment() -> None:
    async def scenario() -> None:
        h = await Harness().start()
        (member,) = await h.stable()
        assert (await h.sync(member)).assignment == member.member_id.encode()
        h.join()
        await turns()
        assert await refused(h.groups.sync("g", generation=1, member_id=member.member_id)) == "REBALANCE_IN_PROGRESS"
        await h.groups.close()

    run(scenario)


def test_a_rebalance_while_the_assignment_is_being_stored_wins() -> None:
    async def scenario() -> None:
        h = await Harness().start()
        joined = await h.join()
        h.store.automatic_sync = False
        syncing = h.sync(joined, {joined.member_id: b"x"})
        await turns()
        newcomer = h.join()
        assert await refused(syncing) == "REBALANCE_IN_PROGRESS"
        h.store.sync()
        await turns()
        assert h.state() == "PreparingRebalance"
        h.store.automatic_sync = True
        again, other = await asyncio.gather(h.join(joined.member_id), newcomer)
        assert again.generation == other.generation == 2

    run(scenario)


def test_members_that_the_leader_leaves_out_get_an_empty_assignment() -> None:
    async def scenario() -> None:
        h = await Harness().start()
        first, second = await h.stable(2)
        leader, follower = await asyncio.gather(h.join(first.member_id), h.join(second.member_id))
        waiting = h.sync(follower)
        await h.sync(leader, {leader.member_id: b"all"})
        assert (await waiting).assignment == b""

    run(scenario)


# -- heartbeat, leave ---------------------------------------------------------------------------------------------


def test_heartbeats_of_an_old_generation_or_an_unknown_member_are_refused() -> None:
    async def scenario() -> None:
        h = await Harness().start()
        (old,) = await h.stable()
        new = await h.join(old.member_id)
        assert h.beat(old) == "ILLEGAL_GENERATION"
        assert h.beat(new) == ""
        with pytest.raises(GroupError, match="no classic group"):
            h.groups.heartbeat("none", generation=1, member_id="m")

    run(scenario)


def test_leaving_rebalances_at_once_and_the_last_one_leaves_an_empty_group() -> None:
    async def scenario() -> None:
        h = await Harness().start()
        first, second = await h.stable(2)
        (left,) = h.groups.leave("g", [LeavingMember(second.member_id)])
        assert left.error is None
        assert h.beat(first) == "REBALANCE_IN_PROGRESS"
        h.groups.leave("g", [LeavingMember(first.member_id)])
        assert h.state() == "Empty"

    run(scenario)


def test_leaving_answers_for_each_member() -> None:
    async def scenario() -> None:
        h = await Harness().start()
        (member,) = await h.stable()
        answers = h.groups.leave("g", [LeavingMember(member.member_id), LeavingMember("stranger")])
        assert [each.error for each in answers] == [None, GroupErrorName.UNKNOWN_MEMBER_ID]
        (unknown,) = h.groups.leave("none", [LeavingMember("m")])
        assert unknown.error is GroupErrorName.UNKNOWN_MEMBER_ID

    run(scenario)


def test_a_member_that_was_only_told_its_id_can_leave_without_disturbing_anyone() -> None:
    async def scenario() -> None:
        h = await Harness().start()
        (member,) = await h.stable()
        with pytest.raises(GroupError) as caught:
            await h.join(require_known_member_id=True)
        (left,) = h.groups.leave("g", [LeavingMember(caught.value.member_id)])
        assert left.error is None
        assert h.state() == "Stable"
        assert h.beat(member) == ""

    run(scenario)


def test_the_last_missing_member_leaving_completes_the_rebalance() -> None:
    async def scenario() -> None:
        h = await Harness().start()
        first, second = await h.stable(2)
        waiting = h.join(first.member_id)
        await turns()
        assert not waiting.done()
        h.groups.leave("g", [LeavingMember(second.member_id)])
        assert (await waiting).generation == first.generation + 1

    run(scenario)


# -- static members -----------------------------------------------------------------------------------------------


async def _static_pair(h: Harness) -> tuple[str, str, int]:
    """A stable group with a static leader and a static follower; their member ids and the generation."""
    first = await h.join(instance_id="i1")
    second = h.join(instance_id="i2")
    again = await h.join(first.member_id, instance_id="i1")
    other = await second
    follower = h.sync(other, instance_id="i2")
    await h.sync(again, {again.member_id: b"1", other.member_id: b"2"}, instance_id="i1")
    await follower
    return again.member_id, other.member_id, again.generation


def test_a_static_member_takes_its_old_place_without_a_rebalance_and_the_old_one_is_fenced() -> None:
    async def scenario() -> None:
        h = await Harness().start()
        _, old_id, generation = await _static_pair(h)
        back = await h.join(instance_id="i2")
        assert back.member_id != old_id
        assert back.generation == generation
        assert h.state() == "Stable"
        assert (await h.sync(back, instance_id="i2")).assignment == b"2"
        with pytest.raises(GroupError) as caught:
            h.groups.heartbeat("g", generation=generation, member_id=old_id, group_instance_id="i2")
        assert caught.value.name is GroupErrorName.FENCED_INSTANCE_ID
        assert await refused(h.join(old_id, instance_id="i2")) == "FENCED_INSTANCE_ID"

    run(scenario)


def test_a_static_leader_that_returns_is_told_to_skip_the_assignment() -> None:
    async def scenario() -> None:
        h = await Harness().start()
        old_id, _, generation = await _static_pair(h)
        back = await h.join(instance_id="i1")
        assert back.skip_assignment
        assert back.leader == back.member_id
        assert len(back.members) == 2
        older_client = await h.join(instance_id="i1", supports_skipping_assignment=False)
        assert not older_client.skip_assignment
        assert older_client.leader == back.member_id != older_client.member_id
        assert older_client.generation == generation
        assert old_id not in {back.member_id, older_client.member_id}

    run(scenario)


def test_a_static_member_that_is_replaced_while_it_waits_is_fenced() -> None:
    async def scenario() -> None:
        h = await Harness().start()
        first_id, _, _ = await _static_pair(h)
        waiting = h.join(first_id, instance_id="i1")  # the leader: a rebalance begins
        await turns()
        replacing = h.join(instance_id="i1")
        assert await refused(waiting) == "FENCED_INSTANCE_ID"
        await turns()
        assert not replacing.done()
        await h.groups.close()

    run(scenario)


def test_a_static_member_that_does_not_rejoin_stays_until_its_session_ends() -> None:
    async def scenario() -> None:
        h = await Harness().start()
        static = await h.join(instance_id="i1", session_timeout_ms=100_000)
        await h.sync(static, {}, instance_id="i1")
        newcomer = h.join()
        await h.advance(REBALANCE_MS)
        joined = await newcomer
        assert {each.group_instance_id for each in joined.members} == {"i1", None}
        assert joined.leader == joined.member_id
        await h.sync(joined, {})
        for _ in range(9):
            await h.advance(SESSION_MS - 1)
            h.beat(joined)
        assert h.state() == "PreparingRebalance"

    run(scenario)


def test_a_static_member_leaves_by_its_instance_id() -> None:
    async def scenario() -> None:
        h = await Harness().start()
        first_id, _, _ = await _static_pair(h)
        wrong, missing, right = h.groups.leave(
            "g", [LeavingMember("someone", "i1"), LeavingMember("", "i9"), LeavingMember("", "i2")]
        )
        assert wrong.error is GroupErrorName.FENCED_INSTANCE_ID
        assert missing.error is GroupErrorName.UNKNOWN_MEMBER_ID
        assert right.error is None
        description = h.groups.describe("g")
        assert [each.member_id for each in description.members] == [first_id]

    run(scenario)


# -- restart ------------------------------------------------------------------------------------------------------


def test_a_stable_group_survives_a_restart_with_members_and_assignments() -> None:
    async def scenario() -> None:
        h = await Harness().start()
        members = await h.stable(3)
        before = h.groups.describe("g")
        after = await h.restarted()
        assert after.groups.describe("g") == before
        assert isinstance(before, ClassicDescription)
        assert before.protocol_name == "range"
        for member in members:
            assert after.beat(member) == ""
            assert (await after.sync(member)).assignment == member.member_id.encode()

    run(scenario)


def test_members_that_do_not_come_back_after_a_restart_are_removed_by_their_session() -> None:
    async def scenario() -> None:
        h = await Harness().start()
        await h.stable(2)
        after = await h.restarted()
        await after.advance(SESSION_MS)
        assert after.state() == "Empty"
        assert (await after.restarted()).state() == "Empty"

    run(scenario)


def test_a_replaced_static_member_is_known_by_its_new_id_after_a_restart() -> None:
    async def scenario() -> None:
        h = await Harness().start()
        _, _, _ = await _static_pair(h)
        back = await h.join(instance_id="i2")
        after = await h.restarted()
        assert after.beat(back, instance_id="i2") == ""

    run(scenario)


def test_calls_before_the_replay_and_after_the_end_are_refused_as_loading_and_gone() -> None:
    async def scenario() -> None:
        h = Harness()
        assert await refused(h.join()) == "COORDINATOR_LOAD_IN_PROGRESS"
        await h.start()
        (member,) = await h.stable()
        waiting = h.join()
        await turns()
        await h.groups.close()
        assert await refused(waiting) == "COORDINATOR_NOT_AVAILABLE"
        assert h.beat(member) == "COORDINATOR_NOT_AVAILABLE"

    run(scenario)


def test_members_of_a_group_may_say_so_much_together() -> None:
    async def scenario() -> None:
        h = await Harness(limits=GroupLimits(max_group_metadata_bytes=1_000)).start()
        await h.join(protocols=[("range", bytes(600))])
        assert await refused(h.join(protocols=[("range", bytes(600))])) == "GROUP_MAX_SIZE_REACHED"
        await h.join(group_id="other", protocols=[("range", bytes(600))])

    run(scenario)


def test_the_member_that_said_most_goes_when_all_that_clients_say_is_too_much() -> None:
    async def scenario() -> None:
        budget = Budget(10_000)
        h = Harness(held=budget)
        await h.start()
        modest = await h.join(group_id="modest")
        talkative = await h.join(group_id="talkative", protocols=[("range", bytes(6_000))])
        await h.join(group_id="other", protocols=[("range", bytes(5_000))])
        await h.advance(1)
        h.groups.heartbeat("modest", generation=modest.generation, member_id=modest.member_id)
        with pytest.raises(GroupError) as gone:
            h.groups.heartbeat("talkative", generation=talkative.generation, member_id=talkative.member_id)
        assert gone.value.name is GroupErrorName.UNKNOWN_MEMBER_ID
        assert budget.held_bytes < 6_000
        left = await h.join(group_id="talkative", protocols=[("range", bytes(10))])
        assert left.generation > talkative.generation

    run(scenario)
