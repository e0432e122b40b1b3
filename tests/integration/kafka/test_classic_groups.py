"""The classic group protocol with librdkafka: eager and cooperative assignment, members that come, go and die."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaException, TopicPartition

from tests.integration.kafka import settings
from tests.integration.kafka.conftest import ClientFactory, MemberFactory, TopicFactory, create_topic
from tests.integration.kafka.deliveries import deliver, take, take_values
from tests.integration.kafka.membership import Group, MemberProcess, all_partitions, assigned
from tests.integration.server import RunningBroker
from tests.integration.waiting import DEADLINE_SECONDS, wait_until

STRATEGIES = ("range", "roundrobin", "cooperative-sticky")


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_partitions_are_divided_anew_as_members_join_and_leave(
    strategy: str, topic: TopicFactory, consumer: MemberFactory, unique: Callable[[str], str]
) -> None:
    name, group = topic(6), unique("group")
    everything = all_partitions(name, 6)

    def join() -> Any:
        member = consumer(group, partition_assignment_strategy=strategy)
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


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_a_killed_members_partitions_go_to_the_others(
    strategy: str, broker: RunningBroker, topic: TopicFactory, consumer: MemberFactory, unique: Callable[[str], str]
) -> None:
    name, group = topic(4), unique("group")
    survivor = consumer(group, partition_assignment_strategy=strategy)
    survivor.subscribe([name])
    victim = MemberProcess(
        settings.confluent_consumer(broker.bootstrap, group, partition_assignment_strategy=strategy), [name]
    )
    try:
        members = Group([survivor])
        members.until(
            lambda: len(assigned(survivor)) == 2 and len(victim.assignment()) == 2, "two members with two each"
        )
        killed_at = time.monotonic()
        victim.kill()
        members.settle(all_partitions(name, 4), [4])
        assert time.monotonic() - killed_at > 2, "the session timeout is 6 s; the broker did not wait for it"
    finally:
        victim.close()


def test_cooperative_members_keep_what_they_need_not_give_up(
    topic: TopicFactory, consumer: MemberFactory, unique: Callable[[str], str]
) -> None:
    name, group = topic(4), unique("group")
    revoked: list[TopicPartition] = []
    first = consumer(group, partition_assignment_strategy="cooperative-sticky")
    first.subscribe([name], on_revoke=lambda _, partitions: revoked.extend(partitions))
    members = Group([first])
    members.settle(all_partitions(name, 4), [4])
    second = consumer(group, partition_assignment_strategy="cooperative-sticky")
    second.subscribe([name])
    members.add(second)
    members.settle(all_partitions(name, 4), [2, 2])
    assert {(each.topic, each.partition) for each in revoked} == assigned(second)


def test_a_static_member_returns_to_its_partitions_without_a_rebalance(
    topic: TopicFactory, consumer: MemberFactory, unique: Callable[[str], str]
) -> None:
    name, group = topic(4), unique("group")
    rebalances: list[str] = []
    first = consumer(group, group_instance_id="one", session_timeout_ms=20_000)
    first.subscribe(
        [name], on_assign=lambda *_: rebalances.append("assign"), on_revoke=lambda *_: rebalances.append("revoke")
    )
    second = consumer(group, group_instance_id="two", session_timeout_ms=20_000)
    second.subscribe([name])
    members = Group([first, second])
    members.settle(all_partitions(name, 4), [2, 2])
    before, seen = members.assignments(), len(rebalances)
    members.close(1)
    again = consumer(group, group_instance_id="two", session_timeout_ms=20_000)
    again.subscribe([name])
    members.add(again)
    members.settle(all_partitions(name, 4), [2, 2])
    assert members.assignments() == before
    assert len(rebalances) == seen


def test_a_second_static_member_of_the_same_name_fences_the_first(
    topic: TopicFactory, consumer: MemberFactory, unique: Callable[[str], str]
) -> None:
    name, group = topic(2), unique("group")
    first = consumer(group, group_instance_id="same")
    first.subscribe([name])
    members = Group([first])
    members.settle(all_partitions(name, 2), [2])
    second = consumer(group, group_instance_id="same")
    second.subscribe([name])
    members.add(second)
    members.until(
        lambda: any(error.name() in ("_FATAL", "FENCED_INSTANCE_ID") for error in members.errors),
        "the first to be fenced",
    )
    members.until(lambda: len(assigned(second)) == 2, "the second to have all partitions")


def test_a_member_that_stops_polling_is_put_out_and_comes_back(
    topic: TopicFactory, consumer: MemberFactory, unique: Callable[[str], str]
) -> None:
    name, group = topic(2), unique("group")
    slow = consumer(group, max_poll_interval_ms=6000)
    slow.subscribe([name])
    Group([slow]).settle(all_partitions(name, 2), [2])
    quick = consumer(group)
    quick.subscribe([name])
    Group([quick]).settle(all_partitions(name, 2), [2])
    both = Group([slow, quick])
    both.settle(all_partitions(name, 2), [1, 1])


def test_two_groups_each_read_everything(
    topic: TopicFactory, producer: ClientFactory, consumer: MemberFactory, unique: Callable[[str], str]
) -> None:
    name = topic(3)
    values = [b"%d" % number for number in range(90)]
    client = producer()
    for number, value in enumerate(values):
        client.produce(name, value, partition=number % 3)
    assert client.flush(DEADLINE_SECONDS) == 0
    for group in (unique("group"), unique("group")):
        reader = consumer(group)
        reader.subscribe([name])
        assert set(take_values(reader, 90)) == set(values)
        reader.commit(asynchronous=False)
        assert sum(each.offset for each in reader.committed([TopicPartition(name, p) for p in range(3)])) == 90


def test_members_of_one_group_share_the_records(
    topic: TopicFactory, producer: ClientFactory, consumer: MemberFactory, unique: Callable[[str], str]
) -> None:
    name, group = topic(4), unique("group")
    readers = [consumer(group) for _ in range(2)]
    for reader in readers:
        reader.subscribe([name])
    members = Group(readers)
    members.settle(all_partitions(name, 4), [2, 2])
    client = producer()
    values = [b"%d" % number for number in range(100)]
    for number, value in enumerate(values):
        client.produce(name, value, partition=number % 4)
    assert client.flush(DEADLINE_SECONDS) == 0
    members.until(lambda: len(members.values()) >= 100, "100 records")
    assert sorted(members.values()) == sorted(values)
    assert [len(messages) for messages in members.messages] == [50, 50]


def test_a_group_resumes_at_its_commit(
    topic: TopicFactory, producer: ClientFactory, consumer: MemberFactory, unique: Callable[[str], str]
) -> None:
    name, group = topic(), unique("group")
    deliver(producer(), name, [b"%d" % number for number in range(10)])
    first = consumer(group)
    first.subscribe([name])
    messages = take(first, 4)
    first.commit(message=messages[-1], asynchronous=False)
    first.close()
    second = consumer(group)
    second.subscribe([name])
    assert take_values(second, 6) == [b"%d" % number for number in range(4, 10)]


def test_auto_commit_remembers_what_was_read(
    topic: TopicFactory, producer: ClientFactory, consumer: MemberFactory, unique: Callable[[str], str]
) -> None:
    name, group = topic(), unique("group")
    deliver(producer(), name, [b"%d" % number for number in range(5)])
    reader = consumer(group, enable_auto_commit=True, auto_commit_interval_ms=100)
    reader.subscribe([name])
    take(reader, 5)
    other = consumer(group)

    def committed() -> bool:
        reader.poll(0.05)
        return bool(other.committed([TopicPartition(name, 0)], timeout=DEADLINE_SECONDS)[0].offset == 5)

    wait_until(committed, what="the automatic commit of offset 5")


def test_a_commit_keeps_its_metadata_and_a_partition_without_one_has_none(
    topic: TopicFactory, consumer: MemberFactory, unique: Callable[[str], str]
) -> None:
    name, group = topic(2), unique("group")
    member = consumer(group)
    member.commit(offsets=[TopicPartition(name, 0, 7, metadata="checkpoint ß")], asynchronous=False)
    first, second = member.committed([TopicPartition(name, 0), TopicPartition(name, 1)], timeout=DEADLINE_SECONDS)
    assert (first.offset, first.metadata) == (7, "checkpoint ß")
    assert second.offset == -1001


def test_a_commit_without_membership_is_refused_while_the_group_has_members(
    topic: TopicFactory, consumer: MemberFactory, unique: Callable[[str], str]
) -> None:
    name, group = topic(), unique("group")
    member = consumer(group)
    member.subscribe([name])
    Group([member]).settle(all_partitions(name, 1), [1])
    stranger = consumer(group)
    with pytest.raises(KafkaException) as raised:
        stranger.commit(offsets=[TopicPartition(name, 0, 1)], asynchronous=False)
    assert raised.value.args[0].name() == "UNKNOWN_MEMBER_ID"


def test_a_session_timeout_out_of_bounds_is_refused(
    topic: TopicFactory, consumer: MemberFactory, unique: Callable[[str], str]
) -> None:
    member = consumer(unique("group"), session_timeout_ms=1000, heartbeat_interval_ms=100)
    member.subscribe([topic()])
    found = wait_until(lambda: member.poll(0.2), what="the refusal")
    assert found.error().name() == "INVALID_SESSION_TIMEOUT"


def test_members_without_a_common_strategy_are_refused(
    topic: TopicFactory, consumer: MemberFactory, unique: Callable[[str], str]
) -> None:
    name, group = topic(), unique("group")
    first = consumer(group, partition_assignment_strategy="range")
    first.subscribe([name])
    Group([first]).settle(all_partitions(name, 1), [1])
    second = consumer(group, partition_assignment_strategy="roundrobin")
    second.subscribe([name])
    found = wait_until(lambda: second.poll(0.2), what="the refusal")
    assert found.error().name() == "INCONSISTENT_GROUP_PROTOCOL"


def test_a_pattern_subscription_finds_topics_that_appear_later(
    admin: Any, consumer: MemberFactory, unique: Callable[[str], str]
) -> None:
    prefix = unique("pattern")
    create_topic(admin, f"{prefix}-a", 1)
    member = consumer(unique("group"))
    member.subscribe([f"^{prefix}-.*"])
    members = Group([member])
    members.settle(frozenset({(f"{prefix}-a", 0)}), [1])
    create_topic(admin, f"{prefix}-b", 2)
    members.settle(frozenset({(f"{prefix}-a", 0), (f"{prefix}-b", 0), (f"{prefix}-b", 1)}), [3])


def test_new_partitions_are_assigned_to_the_group(
    topic: TopicFactory, admin: Any, consumer: MemberFactory, unique: Callable[[str], str]
) -> None:
    from confluent_kafka.admin import NewPartitions

    name = topic(1)
    member = consumer(unique("group"))
    member.subscribe([name])
    members = Group([member])
    members.settle(all_partitions(name, 1), [1])
    admin.create_partitions([NewPartitions(name, 3)])[name].result(DEADLINE_SECONDS)
    members.settle(all_partitions(name, 3), [3])
