from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping

import pytest

from tests.unit.cursors.harness import REBALANCE_MS, Harness, refused, run, turns
from trunkline.cursors.stream import (
    ConsumerDescription,
    GroupError,
    GroupErrorName,
    GroupLimits,
    HeartbeatRequest,
    HeartbeatResult,
    TopicIdPartition,
)
from trunkline.log.errors import StorageFailure

Owned = frozenset[TopicIdPartition]
SESSION_MS = GroupLimits().consumer_session_timeout_ms


class Member:
    """A client of the consumer protocol that does as it is told."""

    def __init__(self, h: Harness, name: str, *, instance_id: str | None = None, group_id: str = "g") -> None:
        self.h, self.name, self.instance_id, self.group_id = h, name, instance_id, group_id
        self.epoch = 0
        self.owned: Owned = frozenset()

    async def join(self, **options: str) -> HeartbeatResult:
        self.owned = frozenset()
        return self._take(
            await self.h.beat848(
                self.name,
                0,
                instance_id=self.instance_id,
                group_id=self.group_id,
                topics=options.get("topics", "t").split(",") if "regex" not in options else None,
                regex=options.get("regex"),
                assignor=options.get("assignor"),
            )
        )

    async def beat(self, *, report: bool = True) -> HeartbeatResult:
        return self._take(
            await self.h.beat848(
                self.name,
                self.epoch,
                instance_id=self.instance_id,
                group_id=self.group_id,
                owned=self.owned if report else None,
            )
        )

    async def leave(self, epoch: int = -1) -> HeartbeatResult:
        return await self.h.beat848(self.name, epoch, instance_id=self.instance_id, group_id=self.group_id)

    def _take(self, result: HeartbeatResult) -> HeartbeatResult:
        self.epoch = result.member_epoch
        if result.assignment is not None:
            self.owned = result.assignment
        return result


async def converge(*members: Member, rounds: int = 6) -> None:
    for _ in range(rounds):
        for member in members:
            await member.beat()


def described(h: Harness) -> ConsumerDescription:
    found = h.groups.describe("g")
    assert isinstance(found, ConsumerDescription)
    return found


def partitions(h: Harness, counts: Mapping[str, int]) -> Owned:
    return frozenset(
        TopicIdPartition(h.store.topics()[name].id, number) for name, count in counts.items() for number in range(count)
    )


# -- assignment -----------------------------------------------------------------------------------------------------


def test_the_first_member_gets_everything_with_its_first_heartbeat() -> None:
    async def scenario() -> None:
        h = await Harness().start(t=4)
        a = Member(h, "a")
        result = await a.join()
        assert result.member_epoch == 1
        assert result.heartbeat_interval_ms == 5_000
        assert result.assignment == partitions(h, {"t": 4})
        assert h.state() == "Stable"

    run(scenario)


def test_partitions_move_only_after_their_owner_gave_them_up() -> None:
    async def scenario() -> None:
        h = await Harness().start(t=4)
        a, b = Member(h, "a"), Member(h, "b")
        await a.join()
        joined = await b.join()
        assert joined.assignment == frozenset()
        assert joined.member_epoch == 2
        told = await a.beat(report=False)
        assert told.member_epoch == 1  # keeps its epoch until it has revoked
        assert told.assignment is not None
        assert len(told.assignment) == 2
        assert (await b.beat()).assignment is None
        assert h.state() == "Reconciling"
        acknowledged = await a.beat()
        assert acknowledged.member_epoch == 2
        got = await b.beat()
        assert got.assignment == partitions(h, {"t": 4}) - told.assignment
        assert h.state() == "Stable"

    run(scenario)


def test_nothing_is_told_again_when_nothing_changed() -> None:
    async def scenario() -> None:
        h = await Harness().start(t=2)
        a = Member(h, "a")
        await a.join()
        appends = h.store.appends
        for _ in range(5):
            assert (await a.beat()).assignment is None
        assert h.store.appends == appends

    run(scenario)


def test_a_leaving_member_frees_its_partitions_for_the_others() -> None:
    async def scenario() -> None:
        h = await Harness().start(t=4)
        a, b = Member(h, "a"), Member(h, "b")
        await a.join()
        await b.join()
        await converge(a, b)
        assert (await b.leave()).member_epoch == -1
        assert h.state() == "Assigning"
        await a.beat()
        assert a.owned == partitions(h, {"t": 4})

    run(scenario)


def test_the_last_member_leaving_leaves_an_empty_group() -> None:
    async def scenario() -> None:
        h = await Harness().start(t=1)
        a = Member(h, "a")
        await a.join()
        await a.leave()
        assert h.state() == "Empty"

    run(scenario)


def test_a_change_of_subscription_reassigns() -> None:
    async def scenario() -> None:
        h = await Harness().start(t=2, u=2)
        a = Member(h, "a")
        await a.join()
        result = await h.beat848("a", a.epoch, topics=["u"], owned=a.owned)
        assert result.assignment == frozenset()  # t is to be revoked first
        assert result.member_epoch == a.epoch
        after = await h.beat848("a", a.epoch, owned=frozenset())
        assert after.assignment == partitions(h, {"u": 2})

    run(scenario)


@pytest.mark.parametrize("hook", [True, False])
def test_new_topics_and_partitions_are_noticed(hook: bool) -> None:
    async def scenario() -> None:
        h = await Harness().start(t=1)
        a = Member(h, "a")
        await a.join(topics="t,later")
        h.store.add_topic("later", 2)
        await h.store.grow_topic("t", 3)
        if hook:
            h.groups.topics_changed()
        else:
            await h.advance(h.limits.consumer_metadata_refresh_ms)
        await a.beat()
        assert a.owned == partitions(h, {"t": 3, "later": 2})

    run(scenario)


def test_a_deleted_topic_is_taken_back() -> None:
    async def scenario() -> None:
        h = await Harness().start(t=1, u=1)
        a = Member(h, "a")
        await a.join(topics="t,u")
        await h.store.delete_topic("u")
        h.groups.topics_changed()
        await converge(a)
        assert a.owned == partitions(h, {"t": 1})

    run(scenario)


def test_a_pattern_subscribes_to_what_matches_now_and_later() -> None:
    async def scenario() -> None:
        h = await Harness().start(orders_eu=1, orders_us=1, other=1)
        a = Member(h, "a")
        await a.join(regex="orders_.*")
        assert a.owned == partitions(h, {"orders_eu": 1, "orders_us": 1})
        h.store.add_topic("orders_jp", 1)
        h.groups.topics_changed()
        await a.beat()
        assert len(a.owned) == 3

    run(scenario)


def test_a_pattern_matches_the_topics_that_kafka_has_but_not_the_state_of_this_broker() -> None:
    async def scenario() -> None:
        h = await Harness().start(t=1, __mine=1, __topology=1, __queue_state=1)
        a = Member(h, "a")
        await a.join(regex=".*")
        assert a.owned == partitions(h, {"t": 1, "__mine": 1, "__consumer_offsets": 1})

    run(scenario)


def test_a_pattern_that_becomes_too_costly_keeps_the_topics_it_had() -> None:
    async def scenario() -> None:
        h = await Harness().start(t=1)
        a = Member(h, "a")
        await a.join(regex="t|.*a.{900}")
        chance = random.Random(1)
        for _ in range(200):
            h.store.add_topic("".join(chance.choices("ab", k=240)), 1)
        h.groups.topics_changed()
        await a.beat()
        assert a.owned == partitions(h, {"t": 1})
        assert await refused(Member(h, "b", group_id="new").join(regex="t|.*a.{900}")) == "INVALID_REGULAR_EXPRESSION"

    run(scenario)


@pytest.mark.parametrize("pattern", ["(", "a{2,1}", "(?=x)", "x" * 1_001, r"(a)\1"])
def test_a_pattern_that_cannot_be_matched_is_refused(pattern: str) -> None:
    async def scenario() -> None:
        h = await Harness().start(t=1)
        assert await refused(Member(h, "a").join(regex=pattern)) == "INVALID_REGULAR_EXPRESSION"
        assert h.groups.list_groups() == []

    run(scenario)


def test_the_assignor_that_most_members_ask_for_is_used() -> None:
    async def scenario() -> None:
        h = await Harness().start(t=3, u=3)
        a, b = Member(h, "a"), Member(h, "b")
        await a.join(topics="t,u", assignor="range")
        await b.join(topics="t,u")
        await converge(a, b)
        assert described(h).assignor == "range"
        t, u = h.store.topics()["t"].id, h.store.topics()["u"].id
        assert a.owned == {(t, 0), (t, 1), (u, 0), (u, 1)}
        assert b.owned == {(t, 2), (u, 2)}

    run(scenario)


# -- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "name"),
    [
        (HeartbeatRequest("", "m", 0), "INVALID_REQUEST"),
        (HeartbeatRequest("g", "", 1), "INVALID_REQUEST"),
        (HeartbeatRequest("g", "m", -3), "INVALID_REQUEST"),
        (HeartbeatRequest("g", "m", -2), "INVALID_REQUEST"),
        (HeartbeatRequest("g", "m", 1, instance_id=""), "INVALID_REQUEST"),
        (HeartbeatRequest("g", "m", 1, rack_id=""), "INVALID_REQUEST"),
        (HeartbeatRequest("g", "m" * 9_000, 1), "INVALID_REQUEST"),
        (HeartbeatRequest("g", "m", 0, subscribed_topic_names=("t",), topic_partitions=frozenset()), "INVALID_REQUEST"),
        (HeartbeatRequest("g", "m", 0, rebalance_timeout_ms=5, subscribed_topic_names=("t",)), "INVALID_REQUEST"),
        (HeartbeatRequest("g", "m", 0, rebalance_timeout_ms=5, topic_partitions=frozenset()), "INVALID_REQUEST"),
        (
            HeartbeatRequest(
                "g",
                "m",
                0,
                rebalance_timeout_ms=5,
                subscribed_topic_names=("t",),
                topic_partitions=frozenset(),
                server_assignor="magic",
            ),
            "UNSUPPORTED_ASSIGNOR",
        ),
        (HeartbeatRequest("g", "m", 1), "GROUP_ID_NOT_FOUND"),
        (HeartbeatRequest("g", "m", -1), "GROUP_ID_NOT_FOUND"),
    ],
)
def test_malformed_heartbeats_are_refused_by_name(request_: HeartbeatRequest, name: str) -> None:
    async def scenario() -> None:
        h = await Harness().start(t=1)
        assert await refused(h.groups.consumer_heartbeat(request_)) == name

    run(scenario)


def test_an_unknown_member_and_an_epoch_from_elsewhere_are_fenced() -> None:
    async def scenario() -> None:
        h = await Harness().start(t=2)
        a = Member(h, "a")
        await a.join()
        assert await refused(h.beat848("stranger", 1)) == "UNKNOWN_MEMBER_ID"
        assert await refused(h.beat848("a", a.epoch + 1)) == "FENCED_MEMBER_EPOCH"
        await Member(h, "b").join()
        await converge(a)
        assert a.epoch == 2
        old = await h.beat848("a", 1, owned=frozenset())
        assert old.assignment == a.owned  # only our reply was lost: it is told again
        owning_too_much = partitions(h, {"t": 2})
        assert await refused(h.beat848("a", 1, owned=owning_too_much)) == "FENCED_MEMBER_EPOCH"

    run(scenario)


def test_the_size_of_a_group_is_bounded() -> None:
    async def scenario() -> None:
        h = await Harness(limits=GroupLimits(max_members_per_group=1)).start(t=1)
        await Member(h, "a").join()
        assert await refused(Member(h, "b").join()) == "GROUP_MAX_SIZE_REACHED"

    run(scenario)


def test_a_member_may_join_again_with_epoch_zero_and_keeps_its_partitions() -> None:
    async def scenario() -> None:
        h = await Harness().start(t=2)
        a = Member(h, "a")
        await a.join()
        result = await a.join()
        assert result.member_epoch == 1
        assert result.assignment == partitions(h, {"t": 2})

    run(scenario)


def test_a_member_without_an_id_is_given_one() -> None:
    async def scenario() -> None:
        h = await Harness().start(t=1)
        result = await h.beat848("", 0)
        assert result.member_id
        assert (await h.beat848(result.member_id, result.member_epoch)).member_epoch == 1

    run(scenario)


# -- time -----------------------------------------------------------------------------------------------------------


def test_a_member_without_heartbeats_is_fenced_after_the_session_timeout() -> None:
    async def scenario() -> None:
        h = await Harness().start(t=2)
        a, b = Member(h, "a"), Member(h, "b")
        await a.join()
        await b.join()
        await converge(a, b)
        await h.advance(SESSION_MS - 1)
        await b.beat()
        await h.advance(1)
        await b.beat()
        assert b.owned == partitions(h, {"t": 2})
        assert await refused(a.beat()) == "UNKNOWN_MEMBER_ID"

    run(scenario)


def test_a_member_that_does_not_revoke_within_its_rebalance_timeout_is_fenced() -> None:
    async def scenario() -> None:
        h = await Harness().start(t=2)
        a, b = Member(h, "a"), Member(h, "b")
        await a.join()
        stubborn = a.owned
        await b.join()
        for _ in range(3):
            await h.beat848("a", 1, owned=stubborn)
            await h.advance(REBALANCE_MS / 3 - 1)
            await b.beat()
            assert not b.owned
        await h.advance(REBALANCE_MS / 3)
        await b.beat()
        assert b.owned == partitions(h, {"t": 2})
        assert await refused(h.beat848("a", 1, owned=stubborn)) == "UNKNOWN_MEMBER_ID"

    run(scenario)


def test_a_member_that_revoked_in_time_is_not_fenced() -> None:
    async def scenario() -> None:
        h = await Harness().start(t=2)
        a, b = Member(h, "a"), Member(h, "b")
        await a.join()
        await b.join()
        await converge(a, b)
        for _ in range(4):
            await h.advance(REBALANCE_MS)
            await converge(a, b)
        assert len(a.owned) == len(b.owned) == 1

    run(scenario)


# -- static members ---------------------------------------------------------------------------------------------------


def test_a_static_member_that_returns_gets_its_partitions_back_without_a_rebalance() -> None:
    async def scenario() -> None:
        h = await Harness().start(t=4)
        a, b = Member(h, "a", instance_id="i"), Member(h, "b")
        await a.join()
        await b.join()
        await converge(a, b)
        kept, epoch = a.owned, described(h).group_epoch
        assert (await a.leave(-2)).member_epoch == -2
        await converge(b)
        assert len(b.owned) == 2
        again = Member(h, "a2", instance_id="i")
        await again.join()
        assert again.owned == kept
        assert described(h).group_epoch == epoch
        assert await refused(a.beat()) == "FENCED_INSTANCE_ID"

    run(scenario)


def test_a_static_member_that_does_not_return_is_removed_after_the_session_timeout() -> None:
    async def scenario() -> None:
        h = await Harness().start(t=2)
        a, b = Member(h, "a", instance_id="i"), Member(h, "b")
        await a.join()
        await b.join()
        await converge(a, b)
        await a.leave(-2)
        await h.advance(SESSION_MS - 1)
        await b.beat()
        assert len(b.owned) == 1
        await h.advance(1)
        await b.beat()
        assert len(b.owned) == 2

    run(scenario)


def test_an_instance_id_that_a_live_member_holds_is_not_given_away() -> None:
    async def scenario() -> None:
        h = await Harness().start(t=2)
        a = Member(h, "a", instance_id="i")
        await a.join()
        assert await refused(Member(h, "thief", instance_id="i").join()) == "UNRELEASED_INSTANCE_ID"
        assert await refused(h.beat848("a", a.epoch, instance_id="unknown")) == "UNKNOWN_MEMBER_ID"
        assert (await a.beat()).member_epoch == a.epoch

    run(scenario)


# -- the disk, and restarts -------------------------------------------------------------------------------------------


def test_an_assignment_is_told_only_when_it_is_on_disk() -> None:
    async def scenario() -> None:
        h = await Harness().start(t=2)
        h.store.automatic_sync = False
        joining = asyncio.ensure_future(Member(h, "a").join())
        await turns()
        retry = asyncio.ensure_future(h.beat848("a", 0))  # changes nothing, and must wait all the same
        await turns()
        assert not joining.done()
        assert not retry.done()
        h.store.sync()
        assert (await joining).assignment == (await retry).assignment == partitions(h, {"t": 2})

    run(scenario)


def test_what_could_not_be_written_is_written_before_anything_is_told() -> None:
    async def scenario() -> None:
        h = await Harness().start(t=2)
        h.store.failure = StorageFailure("file", "No space left on device")
        a = Member(h, "a")
        assert await refused(a.join()) == "COORDINATOR_NOT_AVAILABLE"
        assert await refused(a.join()) == "COORDINATOR_NOT_AVAILABLE"
        h.store.failure = None
        await a.join()
        after = await h.restarted()
        assert after.groups.describe("g") == h.groups.describe("g")

    run(scenario)


def test_a_group_in_the_middle_of_a_move_is_the_same_after_a_restart() -> None:
    async def scenario() -> None:
        h = await Harness().start(t=4, u=1)
        a, b = Member(h, "a"), Member(h, "b", instance_id="i")
        await a.join()
        await b.join(regex="[tu]")
        await a.beat()
        before = h.groups.describe("g")
        after = await h.restarted()
        assert after.groups.describe("g") == before
        a.h = b.h = after
        await converge(a, b)
        assert a.owned | b.owned == partitions(h, {"t": 4, "u": 1})
        assert not a.owned & b.owned

    run(scenario)


def test_a_restart_in_itself_changes_no_epoch() -> None:
    async def scenario() -> None:
        h = await Harness().start(t=4)
        a = Member(h, "a")
        await a.join()
        a.h = await h.restarted()
        assert (await a.beat()).assignment is None
        assert described(a.h).group_epoch == 1

    run(scenario)


def test_revocation_deadlines_go_on_after_a_restart() -> None:
    async def scenario() -> None:
        h = await Harness().start(t=2)
        a, b = Member(h, "a"), Member(h, "b")
        await a.join()
        await b.join()
        await a.beat(report=False)
        b.h = after = await h.restarted()
        await after.advance(REBALANCE_MS)
        await b.beat()
        assert b.owned == partitions(h, {"t": 2})

    run(scenario)


def test_gone_members_stay_gone_after_a_restart() -> None:
    async def scenario() -> None:
        h = await Harness().start(t=1)
        a = Member(h, "a")
        await a.join()
        await a.leave()
        after = await h.restarted()
        assert after.state() == "Empty"
        assert not described(after).members

    run(scenario)


# -- types ------------------------------------------------------------------------------------------------------------


def test_an_empty_group_changes_its_type_with_its_next_member_and_keeps_its_offsets() -> None:
    async def scenario() -> None:
        h = await Harness().start(t=1)
        (member,) = await h.stable()
        assert await h.commit(7, member=member) == ""
        a = Member(h, "a")
        assert await refused(a.join()) == "GROUP_ID_NOT_FOUND"
        await h.advance(60_000)
        assert h.state() == "Empty"
        await a.join()
        assert a.epoch > member.generation
        assert h.committed() == 7
        assert await refused(h.join()) == "INCONSISTENT_GROUP_PROTOCOL"
        after = await h.restarted()
        assert isinstance(after.groups.describe("g"), ConsumerDescription)
        await a.leave()
        (back,) = await h.stable()
        assert back.generation > a.epoch
        assert h.committed() == 7
        last = await h.restarted()
        assert last.state() == "Stable"
        assert last.committed() == 7

    run(scenario)


def test_classic_calls_on_a_consumer_group_find_no_member() -> None:
    async def scenario() -> None:
        h = await Harness().start(t=1)
        a = Member(h, "a")
        await a.join()
        with pytest.raises(GroupError) as caught:
            h.groups.heartbeat("g", generation=1, member_id="a")
        assert caught.value.name is GroupErrorName.UNKNOWN_MEMBER_ID
        assert await refused(h.groups.sync("g", generation=1, member_id="a")) == "UNKNOWN_MEMBER_ID"

    run(scenario)
