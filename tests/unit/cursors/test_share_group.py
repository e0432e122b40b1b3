"""Membership of share groups, and who reads what."""

from __future__ import annotations

from collections import Counter
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.cursors.harness import Harness, refused, run
from trunkline.cursors.stream import (
    GroupError,
    GroupLimits,
    GroupType,
    HeartbeatResult,
    ShareDescription,
    ShareHeartbeat,
)
from trunkline.cursors.stream.group_settings import GroupSettings, reset_duration_ms
from trunkline.cursors.stream.share_assignor import assign_shares

SESSION_MS = GroupLimits().share_session_timeout_ms


async def beat(h: Harness, member: str, epoch: int, *topics: str, group: str = "g") -> HeartbeatResult:
    return await h.groups.share_heartbeat(
        ShareHeartbeat(group, member, epoch, None, topics or None, "client", "/127.0.0.1")
    )


def numbers(result: HeartbeatResult) -> list[int]:
    assert result.assignment is not None
    return sorted(partition for _, partition in result.assignment)


def test_members_divide_the_partitions_and_share_them_when_they_are_many() -> None:
    async def scenario() -> None:
        h = await Harness().start(t=2)
        first = await beat(h, "a", 0, "t")
        assert (first.member_epoch, numbers(first)) == (1, [0, 1])
        second = await beat(h, "b", 0, "t")
        first = await beat(h, "a", first.member_epoch)
        assert sorted(numbers(first) + numbers(second)) == [0, 1]
        third = await beat(h, "c", 0, "t")
        assert len(numbers(third)) == 1
        assert (await beat(h, "c", third.member_epoch)).assignment is None  # nothing new
        found = h.groups.describe("g", GroupType.SHARE)
        assert isinstance(found, ShareDescription)
        assert (found.state, found.assignor, len(found.members)) == ("Stable", "simple", 3)

    run(scenario)


def test_who_leaves_or_dies_makes_room() -> None:
    async def scenario() -> None:
        h = await Harness().start(t=2)
        a = await beat(h, "a", 0, "t")
        await beat(h, "b", 0, "t")
        assert (await beat(h, "b", -1)).member_epoch == -1
        a = await beat(h, "a", a.member_epoch)
        assert numbers(a) == [0, 1]
        await h.advance(SESSION_MS + 1)
        assert h.state() == "Empty"
        assert await refused(beat(h, "a", a.member_epoch)) == "UNKNOWN_MEMBER_ID"

    run(scenario)


def test_a_member_proves_itself_by_its_epoch() -> None:
    async def scenario() -> None:
        h = await Harness().start(t=2)
        a = await beat(h, "a", 0, "t")
        await beat(h, "b", 0, "t")
        moved = await beat(h, "a", a.member_epoch)
        again = await beat(h, "a", a.member_epoch)  # the reply was lost
        assert again == moved
        await beat(h, "c", 0, "t")
        await beat(h, "a", moved.member_epoch)
        assert await refused(beat(h, "a", a.member_epoch)) == "FENCED_MEMBER_EPOCH"
        assert await refused(beat(h, "a", 99)) == "FENCED_MEMBER_EPOCH"
        rejoined = await beat(h, "a", 0, "t")
        assert rejoined.assignment is not None

    run(scenario)


def test_a_group_survives_a_restart_with_its_members() -> None:
    async def scenario() -> None:
        h = await Harness().start(t=4)
        a = await beat(h, "a", 0, "t")
        b = await beat(h, "b", 0, "t")
        h = await h.restarted()
        assert (await beat(h, "b", b.member_epoch)).assignment == b.assignment
        assert (await beat(h, "a", a.member_epoch)).member_epoch == b.member_epoch
        await beat(h, "a", -1)
        await beat(h, "b", -1)
        h = await h.restarted()
        assert h.state() == "Empty"
        await h.advance(8 * 24 * 3_600_000)
        assert h.state() == "Empty"  # offsets expire, a share group does not
        await h.groups.delete_group("g")
        h = await h.restarted()
        assert h.groups.list_groups() == []

    run(scenario)


def test_topics_that_come_and_grow_are_noticed() -> None:
    async def scenario() -> None:
        h = await Harness().start(t=1)
        a = await beat(h, "a", 0, "t", "later")
        assert numbers(a) == [0]
        h.store.add_topic("later", 2)
        h.groups.topics_changed()
        a = await beat(h, "a", a.member_epoch)
        assert numbers(a) == [0, 0, 1]

    run(scenario)


def test_names_belong_to_groups_of_one_type() -> None:
    async def scenario() -> None:
        h = await Harness().start(t=1)
        await beat(h, "a", 0, "t")
        assert await refused(h.beat848("x", 0)) == "GROUP_ID_NOT_FOUND"
        assert await refused(h.join()) == "INCONSISTENT_GROUP_PROTOCOL"
        assert await refused(h.commit(1)) == "GROUP_ID_NOT_FOUND"
        await h.beat848("x", 0, group_id="consumers")
        assert await refused(beat(h, "a", 0, "t", group="consumers")) == "GROUP_ID_NOT_FOUND"
        assert await refused(beat(h, "a", 1, group="nobody")) == "GROUP_ID_NOT_FOUND"
        assert [(each.group_id, each.protocol_type) for each in h.groups.list_groups(types=["Share"])] == [
            ("g", "share")
        ]
        assert await refused(h.groups.empty_share_group("g")) == "NON_EMPTY_GROUP"

    run(scenario)


def test_requests_that_make_no_sense_are_refused() -> None:
    async def scenario() -> None:
        h = await Harness(limits=GroupLimits(max_share_group_members=2)).start(t=1)
        assert await refused(beat(h, "a", 0)) == "INVALID_REQUEST"
        assert await refused(beat(h, "", 0, "t")) == "INVALID_REQUEST"
        assert await refused(beat(h, "a", -2, "t")) == "INVALID_REQUEST"
        assert await refused(beat(h, "a", 0, "t", group=" ")) == "INVALID_REQUEST"
        await beat(h, "a", 0, "t")
        await beat(h, "b", 0, "t")
        assert await refused(beat(h, "c", 0, "t")) == "GROUP_MAX_SIZE_REACHED"
        await beat(h, "b", 0, "t")

    run(scenario)


@given(
    st.dictionaries(st.text("abcdef", min_size=1, max_size=2), st.sets(st.integers(1, 3)), min_size=1),
    st.fixed_dictionaries({number: st.integers(0, 7) for number in (1, 2, 3)}),
    st.sets(st.text("abcdef", min_size=1, max_size=2)),
)
def test_every_partition_is_read_evenly_and_members_keep_what_they_can(
    members: dict[str, set[int]], sizes: dict[int, int], leavers: set[str]
) -> None:
    topics = {number: UUID(int=number) for number in sizes}
    counts = {topics[number]: size for number, size in sizes.items()}
    wants = {name: [topics[number] for number in chosen] for name, chosen in members.items()}
    given_out = assign_shares(wants, counts, {})
    assert given_out.keys() == members.keys()
    for number, size in sizes.items():
        readers = [name for name, chosen in members.items() if number in chosen]
        of_topic = [(name, part) for name in readers for topic, part in given_out[name] if topic == topics[number]]
        if not readers or not size:
            assert of_topic == []
            continue
        per_partition = Counter(part for _, part in of_topic)
        per_member = Counter(name for name, _ in of_topic)
        assert len(per_partition) == size
        assert max(per_partition.values()) - min(per_partition.values()) <= 1
        assert len(per_member) == min(len(readers), max(size, len(readers)))
        assert max(per_member.values()) - min(per_member.values()) <= 1
        if size >= len(readers):
            assert max(per_partition.values()) == 1
    assert assign_shares(wants, counts, given_out) == given_out
    rest = {name: chosen for name, chosen in wants.items() if name not in leavers}
    if rest:
        after = assign_shares(rest, counts, given_out)
        assert after.keys() == rest.keys()


@pytest.mark.parametrize(
    ("text", "ms"),
    [("by_duration:PT1H", 3_600_000), ("by_duration:P1DT2M3.5S", 86_523_500), ("by_duration:PT0.25S", 250), ("by_duration:P2D", 172_800_000)],
)  # fmt: skip
def test_durations_are_iso_8601(text: str, ms: int) -> None:
    assert reset_duration_ms(text) == ms
    GroupSettings(GroupLimits()).check({"share.auto.offset.reset": text})


@pytest.mark.parametrize(
    "text", ["by_duration:", "by_duration:1h", "by_duration:PT", "by_duration:P", "by_duration:-PT1H", "sometimes"]
)
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(GroupError):
        GroupSettings(GroupLimits()).check({"share.auto.offset.reset": text})


def test_a_session_must_outlast_its_heartbeats() -> None:
    with pytest.raises(GroupError):
        GroupSettings(GroupLimits(share_session_timeout_ms=10_000)).check({"share.heartbeat.interval.ms": "15000"})
