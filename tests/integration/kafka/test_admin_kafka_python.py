"""Administration with kafka-python's client, which reaches APIs that librdkafka does not: log dirs, topics by page, offsets."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import kafka
import kafka.errors
import pytest
from kafka.admin import ConfigResource, OffsetSpec
from kafka.protocol.admin.topics import ElectionType

from tests.integration.kafka.conftest import ClientFactory, MemberFactory, TopicFactory
from tests.integration.kafka.deliveries import deliver
from tests.integration.kafka.membership import Group, all_partitions
from tests.integration.kafka.settings import HOUR_AGO_MS
from tests.integration.server import RunningBroker
from tests.integration.waiting import wait_until

Name = Callable[[str], str]
ELECTION_NOT_NEEDED = 84


def test_topics_are_created_described_and_deleted(python_admin: Any, unique: Name) -> None:
    name = unique("topic")
    python_admin.create_topics(
        {name: {"num_partitions": 2, "replication_factor": 1, "configs": {"retention.ms": "77"}}},
        wait_for_metadata=True,
    )
    assert name in python_admin.list_topics()
    [described] = python_admin.describe_topics([name])
    assert (described["name"], len(described["partitions"]), described["is_internal"]) == (name, 2, False)
    with pytest.raises(kafka.errors.TopicAlreadyExistsError):
        python_admin.create_topics({name: {"num_partitions": 2, "replication_factor": 1}})
    with pytest.raises(kafka.errors.InvalidPartitionsError):
        python_admin.create_topics({unique("topic"): {"num_partitions": 0, "replication_factor": 1}})
    python_admin.create_partitions({name: 3})
    wait_until(lambda: len(python_admin.describe_topics([name])[0]["partitions"]) == 3, what="three partitions")
    python_admin.delete_topics([name])
    wait_until(lambda: name not in python_admin.list_topics(), what="the deletion")


def test_a_created_topic_is_answered_with_its_settings(python_admin: Any, unique: Name) -> None:
    name = unique("topic")
    made = python_admin.create_topics(
        {name: {"num_partitions": 2, "replication_factor": 1, "configs": {"retention.ms": "77"}}}
    )
    [created] = made["topics"]
    assert (created["num_partitions"], created["replication_factor"]) == (2, 1)
    assert created["configs"]["retention.ms"]["value"] == "77"


def test_topics_are_deleted_by_id(python_admin: Any, topic: TopicFactory) -> None:
    name = topic()
    [described] = python_admin.describe_topics([name])
    python_admin.delete_topics([uuid.UUID(str(described["topic_id"]))])
    wait_until(lambda: name not in python_admin.list_topics(), what="the deletion")


def test_topic_partitions_are_described_in_pages(python_admin: Any, topic: TopicFactory) -> None:
    name = topic(5)
    seen: list[int] = []
    cursor = None
    for _ in range(5):
        page = python_admin.describe_topic_partitions([name], response_partition_limit=2, cursor=cursor)
        [found] = page["topics"]
        assert found["name"] == name
        seen += [each["partition_index"] for each in found["partitions"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert seen == [0, 1, 2, 3, 4]


def test_log_dirs_tell_the_size_of_each_partition(
    python_admin: Any, topic: TopicFactory, producer: ClientFactory
) -> None:
    name = topic(2)
    deliver(producer(), name, [b"x" * 10_000], partition=1)
    found = python_admin.describe_log_dirs([name])
    sizes = {
        each["partition_index"]: each["partition_size"]
        for answer in found
        for directory in answer.get("results", answer.get("log_dirs", []))
        for listed in directory["topics"]
        if (listed.get("name") or listed.get("topic")) == name
        for each in listed["partitions"]
    }
    assert sizes[0] == 0
    assert 10_000 < sizes[1] < 11_000


def test_offsets_are_listed_by_every_spec(python_admin: Any, topic: TopicFactory, producer: ClientFactory) -> None:
    name = topic()
    client = producer()
    for timestamp_ms in (HOUR_AGO_MS, HOUR_AGO_MS + 9000, HOUR_AGO_MS + 3000):
        deliver(client, name, [b"x"], timestamp=timestamp_ms)
    where = kafka.TopicPartition(name, 0)

    def offset(spec: Any) -> int:
        return int(python_admin.list_partition_offsets({where: spec})[where].offset)

    assert offset(OffsetSpec.EARLIEST) == 0
    assert offset(OffsetSpec.LATEST) == 3
    assert offset(OffsetSpec.MAX_TIMESTAMP) == 1
    assert offset(OffsetSpec.EARLIEST_LOCAL) == 0
    assert offset(HOUR_AGO_MS + 1) == 1


def test_settings_are_described_and_altered(python_admin: Any, topic: TopicFactory) -> None:
    name = topic(retention_ms=5)

    def values() -> dict[str, Any]:
        found = python_admin.describe_configs([ConfigResource("TOPIC", name)], config_filter="all")
        return {key: entry["value"] for key, entry in found["TOPIC" if "TOPIC" in found else "topic"][name].items()}

    assert values()["retention.ms"] in ("5", 5)
    python_admin.alter_configs([ConfigResource("TOPIC", name, {"retention.ms": "6"})])
    wait_until(lambda: values()["retention.ms"] in ("6", 6), what="the new setting")
    python_admin.reset_configs([ConfigResource("TOPIC", name, ["retention.ms"])])
    wait_until(lambda: values()["retention.ms"] in ("604800000", 604800000), what="the default")


def test_groups_and_their_offsets_are_listed_described_altered_and_deleted(
    python_admin: Any, topic: TopicFactory, consumer: MemberFactory, unique: Name
) -> None:
    name, group = topic(2), unique("group")
    first, second = (kafka.TopicPartition(name, partition) for partition in range(2))
    member = consumer(group, client_id="me")
    member.subscribe([name])
    Group([member]).settle(all_partitions(name, 2), [2])
    described = python_admin.describe_groups([group])[group]
    assert (described["group_state"], described["protocol_type"]) == ("Stable", "consumer")
    assert [each["client_id"] for each in described["members"]] == ["me"]
    assert group in {each["group_id"] for each in python_admin.list_groups()}
    member.unsubscribe()
    wait_until(
        lambda: (member.poll(0.05), python_admin.describe_groups([group])[group]["group_state"] == "Empty")[1],
        what="an empty group",
    )
    python_admin.alter_group_offsets(
        group, {first: kafka.OffsetAndMetadata(3, "three", -1), second: kafka.OffsetAndMetadata(4, "", -1)}
    )
    offsets = python_admin.list_group_offsets([group])[group]
    assert {where: found.offset for where, found in offsets.items()} == {first: 3, second: 4}
    assert offsets[first].metadata == "three"
    python_admin.delete_group_offsets(group, [second])
    assert set(python_admin.list_group_offsets([group])[group]) == {first}
    python_admin.delete_groups([group])
    wait_until(lambda: group not in {each["group_id"] for each in python_admin.list_groups()}, what="the deletion")


def test_offsets_of_a_subscribed_topic_are_not_deleted(
    python_admin: Any, topic: TopicFactory, consumer: MemberFactory, unique: Name
) -> None:
    name, group = topic(), unique("group")
    member = consumer(group)
    member.subscribe([name])
    Group([member]).settle(all_partitions(name, 1), [1])
    member.commit(offsets=[kafka_to_confluent(name, 1)], asynchronous=False)
    where = kafka.TopicPartition(name, 0)
    result = python_admin.delete_group_offsets(group, [where])
    assert result[where] is kafka.errors.GroupSubscribedToTopicError
    assert python_admin.list_group_offsets([group])[group][where].offset == 1


def kafka_to_confluent(topic: str, offset: int) -> Any:
    from confluent_kafka import TopicPartition

    return TopicPartition(topic, 0, offset)


def test_a_member_is_removed_by_the_administrator(
    python_admin: Any, topic: TopicFactory, consumer: MemberFactory, unique: Name
) -> None:
    name, group = topic(), unique("group")
    member = consumer(group, group_instance_id="static", session_timeout_ms=60_000)
    member.subscribe([name])
    Group([member]).settle(all_partitions(name, 1), [1])
    member.close()
    assert len(python_admin.describe_groups([group])[group]["members"]) == 1
    python_admin.remove_group_members(group, [kafka.admin.MemberToRemove(group_instance_id="static")])
    wait_until(lambda: python_admin.describe_groups([group])[group]["members"] == [], what="the removal")


def test_records_are_deleted(python_admin: Any, topic: TopicFactory, producer: ClientFactory) -> None:
    name = topic()
    deliver(producer(), name, [b"%d" % number for number in range(5)])
    where = kafka.TopicPartition(name, 0)
    assert python_admin.delete_records({where: 3})[where]["low_watermark"] == 3
    with pytest.raises(kafka.errors.OffsetOutOfRangeError):
        python_admin.delete_records({where: 99})


def test_the_cluster_and_its_versions_are_described(python_admin: Any, broker: RunningBroker) -> None:
    found = python_admin.describe_cluster()
    assert [(each["host"], each["port"]) for each in found["brokers"]] == [(broker.host, broker.port)]
    assert found["controller_id"] == found["brokers"][0]["broker_id"]
    assert python_admin.api_versions()
    assert "TOPIC" in {str(kind).upper() for kind in python_admin.list_config_resources(["TOPIC"])}


def test_features_elections_and_reassignments_are_those_of_a_settled_node(
    python_admin: Any, topic: TopicFactory
) -> None:
    name = topic()
    features = python_admin.describe_features()
    assert features["group.version"]["finalized"] == (1, 1)
    assert features["transaction.version"]["finalized"] == (2, 2)
    assert python_admin.list_partition_reassignments() == {}
    elected = python_admin.elect_leaders(ElectionType.PREFERRED, {name: [0]}, raise_errors=False)
    [result] = elected.replica_election_results
    assert [(each.partition_id, each.error_code) for each in result.partition_result] == [(0, ELECTION_NOT_NEEDED)]
