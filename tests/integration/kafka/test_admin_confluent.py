"""Administration with librdkafka's AdminClient: topics, settings, groups, offsets, records, and the errors Kafka gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import (
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    ConsumerGroupType,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from tests.integration.kafka.conftest import ClientFactory, MemberFactory, TopicFactory, wait_for_topic
from tests.integration.kafka.deliveries import deliver, take_values
from tests.integration.kafka.membership import Group, all_partitions
from tests.integration.server import RunningBroker
from tests.integration.waiting import DEADLINE_SECONDS, wait_until

Name = Callable[[str], str]


def error_of(future: Any) -> str:
    with pytest.raises(KafkaException) as raised:
        future.result(DEADLINE_SECONDS)
    return str(raised.value.args[0].name())


def configs_of(admin: Any, kind: Any, name: str) -> dict[str, Any]:
    resource = ConfigResource(kind, name)
    found: dict[str, Any] = admin.describe_configs([resource])[resource].result(DEADLINE_SECONDS)
    return found


def names(admin: Any) -> set[str]:
    return set(admin.list_topics(timeout=DEADLINE_SECONDS).topics)


def test_a_topic_is_created_listed_described_and_deleted(admin: Any, unique: Name) -> None:
    name = unique("topic")
    admin.create_topics([NewTopic(name, 3, 1)])[name].result(DEADLINE_SECONDS)
    wait_for_topic(admin, name, 3)
    found = admin.describe_topics(TopicCollection([name]))[name].result(DEADLINE_SECONDS)
    assert (found.name, found.is_internal, len(found.partitions)) == (name, False, 3)
    assert str(found.topic_id) != "AAAAAAAAAAAAAAAAAAAAAA"
    for number, partition in enumerate(found.partitions):
        assert partition.id == number
        assert [each.id for each in partition.replicas] == [each.id for each in partition.isr] == [partition.leader.id]
    admin.delete_topics([name])[name].result(DEADLINE_SECONDS)
    wait_until(lambda: name not in names(admin), what="the deletion")
    assert error_of(admin.describe_topics(TopicCollection([name]))[name]) == "UNKNOWN_TOPIC_OR_PART"


def test_a_topic_created_again_has_another_id_and_no_records(
    admin: Any, producer: ClientFactory, consumer: MemberFactory, unique: Name
) -> None:
    name, identities = unique("topic"), []
    for _ in range(2):
        admin.create_topics([NewTopic(name, 1, 1)])[name].result(DEADLINE_SECONDS)
        wait_for_topic(admin, name, 1)
        identities.append(str(admin.describe_topics(TopicCollection([name]))[name].result(DEADLINE_SECONDS).topic_id))
        reader = consumer(unique("group"))
        assert reader.get_watermark_offsets(TopicPartition(name, 0), timeout=DEADLINE_SECONDS) == (0, 0)
        admin.delete_topics([name])[name].result(DEADLINE_SECONDS)
        wait_until(lambda: name not in names(admin), what="the deletion")
    assert identities[0] != identities[1]


def test_defaults_are_the_brokers_when_the_client_does_not_say(admin: Any, unique: Name) -> None:
    name = unique("topic")
    admin.create_topics([NewTopic(name)])[name].result(DEADLINE_SECONDS)
    wait_for_topic(admin, name, 1)


def test_validate_only_creates_nothing(admin: Any, topic: TopicFactory, unique: Name) -> None:
    name, existing = unique("topic"), topic()
    admin.create_topics([NewTopic(name, 1, 1)], validate_only=True)[name].result(DEADLINE_SECONDS)
    refused = admin.create_topics([NewTopic(existing, 1, 1)], validate_only=True)[existing]
    assert error_of(refused) == "TOPIC_ALREADY_EXISTS"
    admin.create_partitions([NewPartitions(existing, 4)], validate_only=True)[existing].result(DEADLINE_SECONDS)
    resource = ConfigResource(ResourceType.TOPIC, existing, incremental_configs=[_set("retention.ms", "5")])
    admin.incremental_alter_configs([resource], validate_only=True)[resource].result(DEADLINE_SECONDS)
    assert name not in names(admin)
    assert len(admin.list_topics(existing, timeout=DEADLINE_SECONDS).topics[existing].partitions) == 1
    assert configs_of(admin, ResourceType.TOPIC, existing)["retention.ms"].value == "604800000"


@pytest.mark.parametrize(
    ("name", "arguments", "error"),
    [
        ("ok", {"num_partitions": 0, "replication_factor": 1}, "INVALID_PARTITIONS"),
        ("ok", {"num_partitions": 1, "replication_factor": 3}, "INVALID_REPLICATION_FACTOR"),
        ("ok", {"num_partitions": 1, "replication_factor": 1, "config": {"retention.ms": "soon"}}, "INVALID_CONFIG"),
        ("ok", {"num_partitions": 1, "replication_factor": 1, "config": {"no.such.setting": "1"}}, "INVALID_CONFIG"),
        ("ok", {"num_partitions": 1, "replication_factor": 1, "config": {"cleanup.policy": "burn"}}, "INVALID_CONFIG"),
        ("spaces are not allowed", {"num_partitions": 1, "replication_factor": 1}, "TOPIC_EXCEPTION"),
        ("x" * 250, {"num_partitions": 1, "replication_factor": 1}, "TOPIC_EXCEPTION"),
        ("..", {"num_partitions": 1, "replication_factor": 1}, "TOPIC_EXCEPTION"),
    ],
)
def test_a_bad_topic_is_refused_with_kafkas_error(
    name: str, arguments: dict[str, Any], error: str, admin: Any, unique: Name
) -> None:
    name = unique("topic") if name == "ok" else name
    # librdkafka itself refuses 0 partitions, so ask for an impossible assignment of the same meaning.
    if arguments["num_partitions"] == 0:
        existing = unique("topic")
        admin.create_topics([NewTopic(existing, 2, 1)])[existing].result(DEADLINE_SECONDS)
        wait_for_topic(admin, existing, 2)
        assert error_of(admin.create_partitions([NewPartitions(existing, 1)])[existing]) == error
        return
    assert error_of(admin.create_topics([NewTopic(name, **arguments)])[name]) == error
    assert name not in names(admin)


def test_errors_of_one_topic_leave_the_others_alone(admin: Any, topic: TopicFactory, unique: Name) -> None:
    existing, new = topic(), unique("topic")
    futures = admin.create_topics([NewTopic(existing, 1, 1), NewTopic(new, 1, 1)])
    assert error_of(futures[existing]) == "TOPIC_ALREADY_EXISTS"
    futures[new].result(DEADLINE_SECONDS)
    wait_for_topic(admin, new, 1)
    absent = unique("absent")
    futures = admin.delete_topics([new, absent])
    futures[new].result(DEADLINE_SECONDS)
    assert error_of(futures[absent]) == "UNKNOWN_TOPIC_OR_PART"


def test_partitions_are_added_never_removed(
    admin: Any, topic: TopicFactory, producer: ClientFactory, unique: Name
) -> None:
    name = topic(2)
    admin.create_partitions([NewPartitions(name, 5)])[name].result(DEADLINE_SECONDS)
    wait_for_topic(admin, name, 5)
    assert [each.offset() for each in deliver(producer(), name, [b"x"], partition=4)] == [0]
    assert error_of(admin.create_partitions([NewPartitions(name, 5)])[name]) == "INVALID_PARTITIONS"
    absent = unique("absent")
    assert error_of(admin.create_partitions([NewPartitions(absent, 5)])[absent]) == "UNKNOWN_TOPIC_OR_PART"


def _set(name: str, value: str, operation: Any = AlterConfigOpType.SET) -> ConfigEntry:
    return ConfigEntry(name, value, incremental_operation=operation)


def test_topic_settings_are_described_with_their_source(admin: Any, topic: TopicFactory) -> None:
    name = topic(cleanup_policy="compact", retention_ms=1234)
    found = configs_of(admin, ResourceType.TOPIC, name)
    assert (found["retention.ms"].value, found["retention.ms"].source) == (
        "1234",
        ConfigSource.DYNAMIC_TOPIC_CONFIG.value,
    )
    assert found["cleanup.policy"].value == "compact"
    assert found["segment.bytes"].value == str(1 << 30)
    assert found["segment.bytes"].is_default
    assert found["max.message.bytes"].value == "1048588"
    assert found["compression.type"].value == "producer"
    assert not any(entry.is_sensitive for entry in found.values())


def test_topic_settings_are_altered_one_by_one(admin: Any, topic: TopicFactory) -> None:
    name = topic(retention_ms=1234, segment_bytes=2_000_000)

    def alter(*entries: ConfigEntry) -> Any:
        resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=list(entries))
        return admin.incremental_alter_configs([resource])[resource]

    def value(setting: str) -> str:
        return str(configs_of(admin, ResourceType.TOPIC, name)[setting].value)

    alter(_set("retention.ms", "4321"), _set("cleanup.policy", "compact", AlterConfigOpType.APPEND)).result(
        DEADLINE_SECONDS
    )
    wait_until(lambda: value("retention.ms") == "4321", what="the new retention")
    assert set(value("cleanup.policy").split(",")) == {"compact", "delete"}
    assert value("segment.bytes") == "2000000"
    alter(
        _set("cleanup.policy", "delete", AlterConfigOpType.SUBTRACT),
        ConfigEntry("retention.ms", None, incremental_operation=AlterConfigOpType.DELETE),
    ).result(DEADLINE_SECONDS)
    wait_until(lambda: value("retention.ms") == "604800000", what="the default retention")
    assert value("cleanup.policy") == "compact"
    assert error_of(alter(_set("retention.ms", "never"))) == "INVALID_CONFIG"
    assert error_of(alter(_set("no.such.setting", "1"))) == "INVALID_CONFIG"
    assert value("retention.ms") == "604800000"


def test_the_older_alter_replaces_all_settings(admin: Any, topic: TopicFactory) -> None:
    name = topic(retention_ms=1234)
    resource = ConfigResource(ResourceType.TOPIC, name, set_config={"segment.bytes": "3000000"})
    admin.alter_configs([resource])[resource].result(DEADLINE_SECONDS)
    wait_until(
        lambda: configs_of(admin, ResourceType.TOPIC, name)["segment.bytes"].value == "3000000", what="the new settings"
    )
    assert configs_of(admin, ResourceType.TOPIC, name)["retention.ms"].value == "604800000"


def test_settings_of_an_unknown_topic_are_an_error(admin: Any, unique: Name) -> None:
    resource = ConfigResource(ResourceType.TOPIC, unique("absent"))
    assert error_of(admin.describe_configs([resource])[resource]) == "UNKNOWN_TOPIC_OR_PART"
    resource = ConfigResource(ResourceType.TOPIC, unique("absent"), incremental_configs=[_set("retention.ms", "1")])
    assert error_of(admin.incremental_alter_configs([resource])[resource]) == "UNKNOWN_TOPIC_OR_PART"


def test_the_brokers_own_settings_are_described(admin: Any) -> None:
    node = admin.describe_cluster().result(DEADLINE_SECONDS).controller.id
    found = configs_of(admin, ResourceType.BROKER, str(node))
    assert found["num.partitions"].value == "1"
    assert found["message.max.bytes"].value == "1048588"
    assert "log.retention.ms" in found or "log.retention.hours" in found


def test_the_cluster_is_described(admin: Any, broker: RunningBroker) -> None:
    found = admin.describe_cluster().result(DEADLINE_SECONDS)
    assert [(node.host, node.port) for node in found.nodes] == [(broker.host, broker.port)]
    assert found.controller.id == found.nodes[0].id
    assert len(found.cluster_id) == 22
    assert admin.list_topics(timeout=DEADLINE_SECONDS).cluster_id == found.cluster_id


def test_authorized_operations_are_told_when_asked(admin: Any, topic: TopicFactory) -> None:
    name = topic()
    cluster = admin.describe_cluster(include_authorized_operations=True).result(DEADLINE_SECONDS)
    described = admin.describe_topics(TopicCollection([name]), include_authorized_operations=True)[name]
    assert cluster.authorized_operations
    assert described.result(DEADLINE_SECONDS).authorized_operations


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_is_listed_described_emptied_and_deleted(
    protocol: str, admin: Any, topic: TopicFactory, consumer: MemberFactory, unique: Name
) -> None:
    name, group = topic(2), unique("group")
    member = consumer(group, group_protocol=protocol, client_id="me")
    member.subscribe([name])
    Group([member]).settle(all_partitions(name, 2), [2])
    member.commit(offsets=[TopicPartition(name, 0, 1)], asynchronous=False)

    def described() -> Any:
        return admin.describe_consumer_groups([group])[group].result(DEADLINE_SECONDS)

    wait_until(lambda: described().state == ConsumerGroupState.STABLE, what="a stable group")
    found = described()
    assert found.type == (ConsumerGroupType.CLASSIC if protocol == "classic" else ConsumerGroupType.CONSUMER)
    assert found.coordinator.id == admin.describe_cluster().result(DEADLINE_SECONDS).nodes[0].id
    [only] = found.members
    assert (only.client_id, only.host.lstrip("/")) == ("me", "127.0.0.1")
    assert {(each.topic, each.partition) for each in only.assignment.topic_partitions} == all_partitions(name, 2)
    listed = admin.list_consumer_groups(states={ConsumerGroupState.STABLE}).result(DEADLINE_SECONDS).valid
    assert group in {each.group_id for each in listed}
    assert error_of(admin.delete_consumer_groups([group])[group]) == "NON_EMPTY_GROUP"
    member.unsubscribe()
    wait_until(lambda: (member.poll(0.05), described().state == ConsumerGroupState.EMPTY)[1], what="an empty group")
    listed = admin.list_consumer_groups(states={ConsumerGroupState.STABLE}).result(DEADLINE_SECONDS).valid
    assert group not in {each.group_id for each in listed}
    admin.delete_consumer_groups([group])[group].result(DEADLINE_SECONDS)
    wait_until(lambda: group not in group_names(admin), what="the deletion")
    assert error_of(admin.delete_consumer_groups([group])[group]) == "GROUP_ID_NOT_FOUND"


def group_names(admin: Any) -> set[str]:
    return {each.group_id for each in admin.list_consumer_groups().result(DEADLINE_SECONDS).valid}


def test_an_unknown_group_is_described_as_dead_or_not_found(admin: Any, unique: Name) -> None:
    group = unique("absent")
    future = admin.describe_consumer_groups([group])[group]
    try:
        assert future.result(DEADLINE_SECONDS).state == ConsumerGroupState.DEAD
    except KafkaException as error:
        assert error.args[0].name() == "GROUP_ID_NOT_FOUND"  # noqa: PT017


def test_group_offsets_are_listed_and_altered(
    admin: Any, topic: TopicFactory, producer: ClientFactory, consumer: MemberFactory, unique: Name
) -> None:
    name, group = topic(2), unique("group")
    deliver(producer(), name, [b"%d" % number for number in range(10)], partition=0)
    wanted = ConsumerGroupTopicPartitions(group, [TopicPartition(name, 0, 6), TopicPartition(name, 1, 0)])
    altered = admin.alter_consumer_group_offsets([wanted])[group].result(DEADLINE_SECONDS)
    assert [each.error for each in altered.topic_partitions] == [None, None]

    def offsets(request: ConsumerGroupTopicPartitions) -> dict[int, int]:
        found = admin.list_consumer_group_offsets([request])[group].result(DEADLINE_SECONDS)
        return {each.partition: each.offset for each in found.topic_partitions}

    assert offsets(ConsumerGroupTopicPartitions(group)) == {0: 6, 1: 0}
    assert offsets(ConsumerGroupTopicPartitions(group, [TopicPartition(name, 0)])) == {0: 6}
    member = consumer(group)
    member.subscribe([name])
    assert take_values(member, 4) == [b"%d" % number for number in range(6, 10)]
    refused = admin.alter_consumer_group_offsets([wanted])[group].result(DEADLINE_SECONDS)
    assert {each.error.name() for each in refused.topic_partitions} == {"UNKNOWN_MEMBER_ID"}


def test_records_before_an_offset_are_deleted(
    admin: Any, topic: TopicFactory, producer: ClientFactory, consumer: MemberFactory, unique: Name
) -> None:
    name = topic()
    deliver(producer(batch_num_messages=2), name, [b"%d" % number for number in range(10)])
    where = TopicPartition(name, 0, 5)
    assert admin.delete_records([where])[where].result(DEADLINE_SECONDS).low_watermark == 5
    reader = consumer(unique("group"))
    assert reader.get_watermark_offsets(TopicPartition(name, 0), timeout=DEADLINE_SECONDS) == (5, 10)
    reader.assign([TopicPartition(name, 0, 0)])
    assert take_values(reader, 5) == [b"%d" % number for number in range(5, 10)]
    beyond = TopicPartition(name, 0, 11)
    assert error_of(admin.delete_records([beyond])[beyond]) == "OFFSET_OUT_OF_RANGE"
    all_of_it = TopicPartition(name, 0, -1)
    assert admin.delete_records([all_of_it])[all_of_it].result(DEADLINE_SECONDS).low_watermark == 10


def test_internal_topics_are_marked_and_cannot_be_guessed_at(
    admin: Any, topic: TopicFactory, consumer: MemberFactory, unique: Name
) -> None:
    name = topic()
    consumer(unique("group")).commit(offsets=[TopicPartition(name, 0, 1)], asynchronous=False)
    wait_until(lambda: "__consumer_offsets" in names(admin), what="the internal topic")
    collection = TopicCollection(["__consumer_offsets"])
    found = admin.describe_topics(collection)["__consumer_offsets"].result(DEADLINE_SECONDS)
    assert found.is_internal
