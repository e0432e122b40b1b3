"""KIP-848 groups (`group.protocol=consumer`): the broker assigns, members converge one heartbeat at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupState, ConsumerGroupType, TopicPartition
from confluent_kafka.admin import NewPartitions

from tests.integration.kafka import settings
from tests.integration.kafka.conftest import ClientFactory, MemberFactory, TopicFactory, create_topic
from tests.integration.kafka.deliveries import deliver, take, take_values
from tests.integration.kafka.membership import Group, MemberProcess, all_partitions, assigned
from tests.integration.server import RunningBroker
from tests.integration.waiting import DEADLINE_SECONDS, wait_until

NEW_PROTOCOL = {"group_protocol": "consumer"}


@pytest.mark.parametrize("assignor", [None, "range", "uniform"])
def test_partitions_are_divided_anew_as_members_join_and_leave(
    assignor: str | None, topic: TopicFactory, consumer: MemberFactory, unique: Callable[[str], str]
) -> None:
    name, group = topic(6), unique("group")
    everything = all_partitions(name, 6)
    chosen = {} if assignor is None else {"group_remote_assignor": assignor}

    def join() -> Any:
        member = consumer(group, **NEW_PROTOCOL, **chosen)
        member.subscribe([name])
        return member

    members = Group([join()])
    members.settle(everything, [6])
    members.add(join())
    members.settle(everything, [3, 3])
    members.add(join())
    members.settle(everything, [2, 2, 2])
    members.close(0)
    members.settle(everything, [3, 3])
    members.close(0)
    members.settle(everything, [6])


def test_the_range_assignor_gives_each_member_the_same_partitions_of_every_topic(
    topic: TopicFactory, consumer: MemberFactory, unique: Callable[[str], str]
) -> None:
    first, second, group = topic(4), topic(4), unique("group")
    members = Group([consumer(group, **NEW_PROTOCOL, group_remote_assignor="range") for _ in range(2)])
    for member in members.members:
        member.subscribe([first, second])
    members.settle(all_partitions(first, 4) | all_partitions(second, 4), [4, 4])
    for share in members.assignments():
        assert {partition for topic_, partition in share if topic_ == first} == {
            partition for topic_, partition in share if topic_ == second
        }


def test_an_unknown_assignor_is_refused(
    topic: TopicFactory, consumer: MemberFactory, unique: Callable[[str], str]
) -> None:
    member = consumer(unique("group"), **NEW_PROTOCOL, group_remote_assignor="no-such-assignor")
    member.subscribe([topic()])
    found = wait_until(lambda: member.poll(0.2), what="the refusal")
    assert "UNSUPPORTED_ASSIGNOR" in found.error().name() or "assignor" in found.error().str().lower()


def test_members_keep_what_they_need_not_give_up(
    topic: TopicFactory, consumer: MemberFactory, unique: Callable[[str], str]
) -> None:
    name, group = topic(4), unique("group")
    revoked: list[TopicPartition] = []
    first = consumer(group, **NEW_PROTOCOL)
    first.subscribe([name], on_revoke=lambda _, partitions: revoked.extend(partitions))
    members = Group([first])
    members.settle(all_partitions(name, 4), [4])
    second = consumer(group, **NEW_PROTOCOL)
    second.subscribe([name])
    members.add(second)
    members.settle(all_partitions(name, 4), [2, 2])
    assert {(each.topic, each.partition) for each in revoked} == assigned(second)


def test_a_killed_members_partitions_go_to_the_others(
    broker: RunningBroker, topic: TopicFactory, consumer: MemberFactory, unique: Callable[[str], str]
) -> None:
    name, group = topic(4), unique("group")
    survivor = consumer(group, **NEW_PROTOCOL)
    survivor.subscribe([name])
    victim = MemberProcess(settings.confluent_consumer(broker.bootstrap, group, **NEW_PROTOCOL), [name])
    try:
        members = Group([survivor])
        members.until(
            lambda: len(assigned(survivor)) == 2 and len(victim.assignment()) == 2, "two members with two each"
        )
        victim.kill()
        members.settle(all_partitions(name, 4), [4])
    finally:
        victim.close()


def test_a_group_shares_records_and_resumes_at_its_commit(
    topic: TopicFactory, producer: ClientFactory, consumer: MemberFactory, unique: Callable[[str], str]
) -> None:
    name, group = topic(), unique("group")
    deliver(producer(), name, [b"%d" % number for number in range(10)])
    first = consumer(group, **NEW_PROTOCOL)
    first.subscribe([name])
    messages = take(first, 4)
    first.commit(message=messages[-1], asynchronous=False)
    first.close()
    second = consumer(group, **NEW_PROTOCOL)
    second.subscribe([name])
    assert take_values(second, 6) == [b"%d" % number for number in range(4, 10)]
    second.commit(asynchronous=False)
    assert second.committed([TopicPartition(name, 0)], timeout=DEADLINE_SECONDS)[0].offset == 10


def test_a_static_member_returns_to_its_partitions(
    topic: TopicFactory, consumer: MemberFactory, unique: Callable[[str], str]
) -> None:
    name, group = topic(4), unique("group")
    rebalances: list[str] = []
    first = consumer(group, **NEW_PROTOCOL, group_instance_id="one")
    first.subscribe(
        [name], on_assign=lambda *_: rebalances.append("assign"), on_revoke=lambda *_: rebalances.append("revoke")
    )
    second = consumer(group, **NEW_PROTOCOL, group_instance_id="two")
    second.subscribe([name])
    members = Group([first, second])
    members.settle(all_partitions(name, 4), [2, 2])
    before, seen = members.assignments(), len(rebalances)
    members.close(1)
    again = consumer(group, **NEW_PROTOCOL, group_instance_id="two")
    again.subscribe([name])
    members.add(again)
    members.settle(all_partitions(name, 4), [2, 2])
    assert members.assignments() == before
    assert len(rebalances) == seen


def test_a_second_static_member_of_the_same_name_is_refused(
    topic: TopicFactory, consumer: MemberFactory, unique: Callable[[str], str]
) -> None:
    name, group = topic(2), unique("group")
    first = consumer(group, **NEW_PROTOCOL, group_instance_id="same")
    first.subscribe([name])
    members = Group([first])
    members.settle(all_partitions(name, 2), [2])
    second = consumer(group, **NEW_PROTOCOL, group_instance_id="same")
    second.subscribe([name])
    members.add(second)
    members.until(
        lambda: any(error.name() in ("UNRELEASED_INSTANCE_ID", "_FATAL") for error in members.errors), "the refusal"
    )
    assert len(assigned(first)) == 2


def test_a_regex_is_evaluated_by_the_broker_and_follows_new_topics(
    admin: Any, consumer: MemberFactory, unique: Callable[[str], str]
) -> None:
    prefix = unique("pattern")
    create_topic(admin, f"{prefix}-a", 1)
    create_topic(admin, f"other-{prefix}", 1)
    member = consumer(unique("group"), **NEW_PROTOCOL)
    member.subscribe([f"^{prefix}-.*"])
    members = Group([member])
    members.settle(frozenset({(f"{prefix}-a", 0)}), [1])
    create_topic(admin, f"{prefix}-b", 2)
    members.settle(frozenset({(f"{prefix}-a", 0), (f"{prefix}-b", 0), (f"{prefix}-b", 1)}), [3])


def test_new_partitions_are_assigned_to_the_group(
    topic: TopicFactory, admin: Any, consumer: MemberFactory, unique: Callable[[str], str]
) -> None:
    name = topic(1)
    member = consumer(unique("group"), **NEW_PROTOCOL)
    member.subscribe([name])
    members = Group([member])
    members.settle(all_partitions(name, 1), [1])
    admin.create_partitions([NewPartitions(name, 3)])[name].result(DEADLINE_SECONDS)
    members.settle(all_partitions(name, 3), [3])


def test_members_with_different_subscriptions_get_only_what_they_asked_for(
    topic: TopicFactory, consumer: MemberFactory, unique: Callable[[str], str]
) -> None:
    shared, alone, group = topic(2), topic(2), unique("group")
    both, one = (consumer(group, **NEW_PROTOCOL) for _ in range(2))
    both.subscribe([shared, alone])
    one.subscribe([shared])
    members = Group([both, one])
    members.until(
        lambda: (
            all_partitions(alone, 2) <= assigned(both)
            and assigned(one) <= all_partitions(shared, 2)
            and assigned(one) | assigned(both) == all_partitions(shared, 2) | all_partitions(alone, 2)
            and len(assigned(one)) + len(assigned(both)) == 4
        ),
        "partitions only where they are subscribed",
    )


def test_the_group_is_described_in_its_own_protocol(
    topic: TopicFactory, admin: Any, consumer: MemberFactory, unique: Callable[[str], str]
) -> None:
    name, group = topic(2), unique("group")
    member = consumer(group, **NEW_PROTOCOL, client_id="described")
    member.subscribe([name])
    Group([member]).settle(all_partitions(name, 2), [2])
    found = wait_until(
        lambda: _stable(admin.describe_consumer_groups([group])[group].result(DEADLINE_SECONDS)), what="a stable group"
    )
    assert found.type == ConsumerGroupType.CONSUMER
    assert found.partition_assignor == "uniform"
    [described] = found.members
    assert described.client_id == "described"
    assert {(each.topic, each.partition) for each in described.assignment.topic_partitions} == all_partitions(name, 2)
    listed = admin.list_consumer_groups(types={ConsumerGroupType.CONSUMER}).result(DEADLINE_SECONDS).valid
    assert (group, ConsumerGroupType.CONSUMER) in {(each.group_id, each.type) for each in listed}
    classic = admin.list_consumer_groups(types={ConsumerGroupType.CLASSIC}).result(DEADLINE_SECONDS).valid
    assert group not in {each.group_id for each in classic}


def _stable(description: Any) -> Any:
    return description if description.state == ConsumerGroupState.STABLE else None


def test_a_group_moves_from_the_classic_to_the_new_protocol_when_it_is_empty(
    topic: TopicFactory, producer: ClientFactory, consumer: MemberFactory, unique: Callable[[str], str]
) -> None:
    name, group = topic(), unique("group")
    deliver(producer(), name, [b"0", b"1", b"2"])
    classic = consumer(group)
    classic.subscribe([name])
    classic.commit(message=take(classic, 1)[0], asynchronous=False)
    classic.close()
    member = consumer(group, **NEW_PROTOCOL)
    member.subscribe([name])
    assert take_values(member, 2) == [b"1", b"2"]
