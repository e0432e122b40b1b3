"""Administration on the wire: what clients' own interfaces hide, as an Apache Kafka of one node answers it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.integration.conftest import BrokerFactory
from tests.integration.kafka.conftest import TopicFactory
from tests.integration.kafka.pipeline import Pipeline
from tests.integration.server import RunningBroker
from tests.integration.waiting import wait_until
from trunkline.protocols.kafka.errors import ErrorCode
from trunkline.protocols.kafka.messages import alter_configs as full
from trunkline.protocols.kafka.messages import alter_partition_reassignments as reassign
from trunkline.protocols.kafka.messages import alter_replica_log_dirs as dirs
from trunkline.protocols.kafka.messages import consumer_group_heartbeat as cgh
from trunkline.protocols.kafka.messages import describe_configs as describe
from trunkline.protocols.kafka.messages import describe_quorum as quorum
from trunkline.protocols.kafka.messages import incremental_alter_configs as incremental
from trunkline.protocols.kafka.messages import offset_commit as commit
from trunkline.protocols.kafka.messages import update_features as features
from trunkline.protocols.kafka.messages.create_topics import CreatableTopic, CreateTopicsRequest
from trunkline.protocols.kafka.messages.describe_log_dirs import DescribeLogDirsRequest
from trunkline.protocols.kafka.messages.find_coordinator import FindCoordinatorRequest
from trunkline.protocols.kafka.messages.list_config_resources import ListConfigResourcesRequest
from trunkline.protocols.kafka.messages.list_groups import ListGroupsRequest
from trunkline.protocols.kafka.messages.list_partition_reassignments import ListPartitionReassignmentsRequest

Unique = Callable[[str], str]
TOPIC, BROKER, LOGGER, GROUP = 2, 4, 8, 32
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3


@pytest.fixture
def wire(broker: RunningBroker) -> Iterator[Pipeline]:
    with Pipeline(broker.host, broker.port) as opened:
        coordinator = FindCoordinatorRequest(key_type=0, coordinator_keys=["any"])
        wait_until(lambda: opened.ask((coordinator, 4))[0].coordinators[0].error_code == 0, what="the coordinator")
        yield opened


def alter(wire: Pipeline, kind: int, name: str, setting: str, value: str | None, operation: int = SET) -> Any:
    config = incremental.AlterableConfig(name=setting, config_operation=operation, value=value)
    resource = incremental.AlterConfigsResource(resource_type=kind, resource_name=name, configs=[config])
    (answer,) = wire.ask((incremental.IncrementalAlterConfigsRequest(resources=[resource]), 1))
    return answer.responses[0]


def described(wire: Pipeline, kind: int, name: str) -> Any:
    resource = describe.DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)
    (answer,) = wire.ask((describe.DescribeConfigsRequest(resources=[resource], include_synonyms=True), 4))
    return answer.results[0]


def value(wire: Pipeline, kind: int, name: str, setting: str) -> str | None:
    shown: dict[str, str | None] = {entry.name: entry.value for entry in described(wire, kind, name).configs}
    return shown[setting]


def test_success_comes_without_a_message(wire: Pipeline, unique: Unique) -> None:
    name = unique("t")
    wanted = CreatableTopic(name=name, num_partitions=1, replication_factor=1)
    (created,) = wire.ask((CreateTopicsRequest(topics=[wanted], timeout_ms=10_000), 5))
    assert (created.topics[0].error_code, created.topics[0].error_message) == (0, None)
    altered = alter(wire, TOPIC, name, "retention.ms", "70000")
    assert (altered.error_code, altered.error_message) == (0, None)
    config = full.AlterableConfig(name="retention.ms", value="80000")
    resource = full.AlterConfigsResource(resource_type=TOPIC, resource_name=name, configs=[config])
    (replaced,) = wire.ask((full.AlterConfigsRequest(resources=[resource]), 1))
    assert (replaced.responses[0].error_code, replaced.responses[0].error_message) == (0, None)
    parts = [reassign.ReassignablePartition(partition_index=0, replicas=[1])]
    topics = [reassign.ReassignableTopic(name=name, partitions=parts)]
    (moved,) = wire.ask((reassign.AlterPartitionReassignmentsRequest(timeout_ms=10_000, topics=topics), 0))
    assert (moved.error_code, moved.error_message) == (0, None)
    assert (moved.responses[0].partitions[0].error_code, moved.responses[0].partitions[0].error_message) == (0, None)
    (listed,) = wire.ask((ListPartitionReassignmentsRequest(timeout_ms=10_000, topics=None), 0))
    assert (listed.error_code, listed.error_message) == (0, None)


def test_a_list_can_be_emptied(wire: Pipeline, topic: TopicFactory) -> None:
    name = topic()
    assert alter(wire, TOPIC, name, "cleanup.policy", "delete", SUBTRACT).error_code == 0
    assert value(wire, TOPIC, name, "cleanup.policy") == ""
    assert alter(wire, TOPIC, name, "cleanup.policy", "compact", SUBTRACT).error_code == 0
    assert alter(wire, TOPIC, name, "cleanup.policy", "compact", APPEND).error_code == 0
    assert value(wire, TOPIC, name, "cleanup.policy") == "compact"
    assert alter(wire, TOPIC, name, "retention.ms", "5", APPEND).error_code == ErrorCode.INVALID_CONFIG


@pytest.mark.parametrize(
    ("setting", "good", "bad"),
    [
        ("compression.gzip.level", "3", "99"),
        ("compression.lz4.level", "4", "0"),
        ("compression.zstd.level", "22", "x"),
        ("remote.storage.enable", "false", "true"),
        ("remote.log.copy.disable", "true", "perhaps"),
        ("remote.log.delete.on.disable", "true", "1"),
        ("local.retention.ms", "1000", "-3"),
        ("local.retention.bytes", "1000", "-5"),
        ("leader.replication.throttled.replicas", "0:1,1:1", "0:1,x"),
        ("follower.replication.throttled.replicas", "*", "all"),
    ],
)
def test_settings_that_mean_nothing_here_are_checked_kept_and_shown(
    wire: Pipeline, topic: TopicFactory, setting: str, good: str, bad: str
) -> None:
    name = topic()
    assert setting in {entry.name for entry in described(wire, TOPIC, name).configs}
    assert alter(wire, TOPIC, name, setting, good).error_code == 0
    wait_until(lambda: value(wire, TOPIC, name, setting) == good, what=f"{setting} as it was set")
    assert alter(wire, TOPIC, name, setting, bad).error_code == ErrorCode.INVALID_CONFIG
    assert alter(wire, TOPIC, name, "no.such.setting", good).error_code == ErrorCode.INVALID_CONFIG


def test_the_broker_shows_what_tools_look_for(wire: Pipeline) -> None:
    shown = {entry.name: entry.value for entry in described(wire, BROKER, "1").configs}
    (found,) = wire.ask((DescribeLogDirsRequest(topics=None), 4))
    assert shown["log.dirs"] == found.results[0].log_dir
    assert shown["default.replication.factor"] == "1"
    for name in ("log.dir", "process.roles", "delete.topic.enable", "offsets.topic.replication.factor",
                 "transaction.state.log.replication.factor", "group.consumer.session.timeout.ms", "log.retention.hours",
                 "listeners", "num.partitions", "min.insync.replicas", "message.max.bytes"):  # fmt: skip
        assert shown[name], name


def test_throttles_come_and_go(wire: Pipeline) -> None:
    for setting in ("leader.replication.throttled.rate", "follower.replication.throttled.rate"):
        assert alter(wire, BROKER, "1", setting, "1000").error_code == 0
        assert alter(wire, BROKER, "1", setting, None, DELETE).error_code == 0


@pytest.mark.ours_only("an Apache Kafka lets some be changed")
def test_the_brokers_own_settings_cannot_be_set(wire: Pipeline) -> None:
    assert alter(wire, BROKER, "1", "num.partitions", "9").error_code == ErrorCode.INVALID_CONFIG


# -- groups ------------------------------------------------------------------------------------------------------


def groups(wire: Pipeline) -> set[str]:
    return {group.group_id for group in wire.ask((ListGroupsRequest(), 4))[0].groups}


def test_a_refused_commit_leaves_no_group(wire: Pipeline, unique: Unique) -> None:
    group = unique("g")
    part = commit.OffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata="")
    by_id = commit.OffsetCommitRequestTopic(topic_id=uuid.uuid4(), partitions=[part])
    (answer,) = wire.ask((commit.OffsetCommitRequest(group_id=group, topics=[by_id]), 10))
    assert answer.topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
    by_name = commit.OffsetCommitRequestTopic(name=unique("absent"), partitions=[part])
    (answer,) = wire.ask((commit.OffsetCommitRequest(group_id=group, topics=[by_name]), 8))
    assert answer.topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert group not in groups(wire)


def heartbeat(wire: Pipeline, group: str, **fields: Any) -> Any:
    asked = {"member_id": str(uuid.uuid4()), "rebalance_timeout_ms": 60_000, "topic_partitions": [], **fields}
    (answer,) = wire.ask((cgh.ConsumerGroupHeartbeatRequest(group_id=group, member_epoch=0, **asked), 1))
    return answer


def test_a_refused_join_leaves_no_group(wire: Pipeline, unique: Unique) -> None:
    group = unique("g")
    assert heartbeat(wire, group, subscribed_topic_regex="(").error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert group not in groups(wire)


def test_a_group_has_settings_of_its_own(wire: Pipeline, topic: TopicFactory, unique: Unique) -> None:
    group, setting = unique("g"), "consumer.heartbeat.interval.ms"
    before = value(wire, GROUP, group, setting)
    assert alter(wire, GROUP, group, "consumer.session.timeout.ms", "50000").error_code == 0
    altered = alter(wire, GROUP, group, setting, "7000")
    assert (altered.error_code, altered.error_message) == (0, None)
    assert value(wire, GROUP, group, setting) == "7000"
    assert heartbeat(wire, group, subscribed_topic_names=[topic()]).heartbeat_interval_ms == 7000
    (listed,) = wire.ask((ListConfigResourcesRequest(resource_types=[GROUP]), 1))
    assert group in {each.resource_name for each in listed.config_resources}
    for name, wrong in (("no.such", "1"), (setting, "soon"), (setting, "50001"), ("share.isolation.level", "none")):
        assert alter(wire, GROUP, group, name, wrong).error_code == ErrorCode.INVALID_CONFIG
    assert alter(wire, GROUP, group, setting, None, DELETE).error_code == 0
    assert value(wire, GROUP, group, setting) == before
    assert described(wire, GROUP, "").error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.ours_only("an Apache Kafka keeps them elsewhere")
def test_a_groups_settings_outlive_a_restart(broker_with: BrokerFactory) -> None:
    server = broker_with()
    with Pipeline(server.host, server.port) as wire:
        assert alter(wire, GROUP, "g", "consumer.session.timeout.ms", "55000").error_code == 0
        assert alter(wire, GROUP, "h", "consumer.session.timeout.ms", "55000").error_code == 0
        assert alter(wire, GROUP, "h", "consumer.session.timeout.ms", None, DELETE).error_code == 0
    server.kill()
    server.start()
    with Pipeline(server.host, server.port) as wire:
        assert value(wire, GROUP, "g", "consumer.session.timeout.ms") == "55000"
        assert value(wire, GROUP, "h", "consumer.session.timeout.ms") != "55000"


# -- loggers -----------------------------------------------------------------------------------------------------


def test_loggers_can_be_set_and_reset(wire: Pipeline) -> None:
    shown = {entry.name: entry.value for entry in described(wire, LOGGER, "1").configs}
    name = next(each for each in shown if each != "root")
    altered = alter(wire, LOGGER, "1", name, "FATAL")
    assert (altered.error_code, altered.error_message) == (0, None)
    assert value(wire, LOGGER, "1", name) == "FATAL"
    assert alter(wire, LOGGER, "1", name, None, DELETE).error_code == 0
    assert value(wire, LOGGER, "1", name) == shown[name]
    assert alter(wire, LOGGER, "1", name, "LOUD").error_code == ErrorCode.INVALID_CONFIG
    assert alter(wire, LOGGER, "1", "no.such.logger", "INFO").error_code == ErrorCode.INVALID_CONFIG
    assert alter(wire, LOGGER, "1", "root", None, DELETE).error_code == ErrorCode.INVALID_REQUEST
    assert alter(wire, LOGGER, "1", name, "INFO", APPEND).error_code == ErrorCode.INVALID_REQUEST
    assert described(wire, LOGGER, "7").error_code == ErrorCode.INVALID_REQUEST


# -- a cluster of one --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 1, 2])
def test_the_quorum_is_this_broker(wire: Pipeline, version: int) -> None:
    def asked(name: str) -> quorum.DescribeQuorumRequest:
        part = quorum.DescribeQuorumRequestPartition(partition_index=0)
        return quorum.DescribeQuorumRequest(
            topics=[quorum.DescribeQuorumRequestTopic(topic_name=name, partitions=[part])]
        )

    (answer,) = wire.ask((asked("__cluster_metadata"), version))
    found = answer.topics[0].partitions[0]
    assert (answer.error_code, found.error_code, found.leader_id) == (0, 0, 1)
    assert [(voter.replica_id, voter.log_end_offset) for voter in found.current_voters] == [(1, found.high_watermark)]
    assert [node.node_id for node in answer.nodes] == ([1] if version == 2 else [])
    (other,) = wire.ask((asked("absent"), version))
    assert other.topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize(
    ("feature", "level", "kind", "code"),
    [
        ("group.version", 1, 1, ErrorCode.NONE),
        ("group.version", 2, 1, ErrorCode.INVALID_UPDATE_VERSION),
        ("group.version", 0, 1, ErrorCode.INVALID_UPDATE_VERSION),
        ("group.version", 1, 9, ErrorCode.INVALID_UPDATE_VERSION),
        ("no.such.feature", 1, 1, ErrorCode.INVALID_UPDATE_VERSION),
    ],
)
@pytest.mark.parametrize("version", [1, 2])
def test_features_can_be_asked_for_as_they_are(
    wire: Pipeline, version: int, feature: str, level: int, kind: int, code: ErrorCode
) -> None:
    update = features.FeatureUpdateKey(feature=feature, max_version_level=level, upgrade_type=kind)
    (answer,) = wire.ask((features.UpdateFeaturesRequest(feature_updates=[update], validate_only=True), version))
    assert answer.error_code == code
    assert (answer.error_message is None) == (code == ErrorCode.NONE)


def test_replicas_stay_in_the_one_directory(wire: Pipeline, topic: TopicFactory) -> None:
    name = topic()
    (found,) = wire.ask((DescribeLogDirsRequest(topics=None), 4))
    path = found.results[0].log_dir

    def moved(path: str, name: str, index: int = 0) -> int:
        wanted = dirs.AlterReplicaLogDirTopic(name=name, partitions=[index])
        request = dirs.AlterReplicaLogDirsRequest(dirs=[dirs.AlterReplicaLogDir(path=path, topics=[wanted])])
        return int(wire.ask((request, 2))[0].results[0].partitions[0].error_code)

    assert moved(path, name) == ErrorCode.NONE
    assert moved("/nowhere", name) == ErrorCode.LOG_DIR_NOT_FOUND
    assert moved(path, name, 9) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert moved(path, "absent") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
