"""Kafka's own command-line tools, as its scripts run them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.java.jvm import java
from tests.integration.kafka.sharing import joined, take
from tests.integration.server import RunningBroker
from trunkline.bench.apache_kafka import classpath

pytestmark = [pytest.mark.java, pytest.mark.xdist_group("java")]

TOOL_SECONDS = 90.0
Unique = Callable[[str], str]


def tool(broker: RunningBroker, main_class: str, *arguments: str, stdin: str = "") -> str:
    """Run one tool against the broker; its exit code must be 0."""
    where = ("--bootstrap-server", broker.bootstrap)
    done = java(classpath(), [main_class, *where, *arguments], TOOL_SECONDS, stdin)
    assert done.returncode == 0, f"{main_class} exited with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


TOPICS = "org.apache.kafka.tools.TopicCommand"
PRODUCER = "org.apache.kafka.tools.ConsoleProducer"
CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
OFFSETS = "org.apache.kafka.tools.GetOffsetShell"
CONFIGS = "kafka.admin.ConfigCommand"
TRANSACTIONS = "org.apache.kafka.tools.TransactionsCommand"
PERFORMANCE = "org.apache.kafka.tools.ProducerPerformance"
API_VERSIONS = "org.apache.kafka.tools.BrokerApiVersionsCommand"
QUORUM = "org.apache.kafka.tools.MetadataQuorumCommand"
FEATURES = "org.apache.kafka.tools.FeatureCommand"
REASSIGN = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
LOG_DIRS = "org.apache.kafka.tools.LogDirsCommand"
ACLS = "org.apache.kafka.tools.AclCommand"
DUMP = "org.apache.kafka.tools.DumpLogSegments"
SHARE_GROUPS = "org.apache.kafka.tools.consumer.group.ShareGroupCommand"


def test_kafka_topics_creates_describes_and_deletes(broker: RunningBroker, unique: Unique) -> None:
    topic = unique("tool")
    created = tool(broker, TOPICS, "--create", "--topic", topic, "--partitions", "3", "--config", "retention.ms=99000")
    assert f"Created topic {topic}." in created
    described = tool(broker, TOPICS, "--describe", "--topic", topic)
    assert "PartitionCount: 3" in described
    assert "retention.ms=99000" in described
    assert described.count("Leader: 1") == 3
    tool(broker, TOPICS, "--delete", "--topic", topic)
    assert topic not in tool(broker, TOPICS, "--list").split()


def test_console_producer_consumer_groups_and_offsets(broker: RunningBroker, unique: Unique) -> None:
    topic, group = unique("tool"), unique("group")
    lines = "".join(f"key{i}:value{i}\n" for i in range(50))
    tool(
        broker,
        PRODUCER,
        "--topic",
        topic,
        "--reader-property",
        "parse.key=true",
        "--reader-property",
        "key.separator=:",
        stdin=lines,
    )
    shown = tool(
        broker, CONSUMER, "--topic", topic, "--group", group, "--from-beginning", "--max-messages", "50",
        "--formatter-property", "print.key=true", "--formatter-property", "key.separator=:",
        "--timeout-ms", "30000",
    )  # fmt: skip
    assert shown.splitlines() == lines.splitlines()
    assert f"{topic}:0:50" in tool(broker, OFFSETS, "--topic", topic)
    described = tool(broker, GROUPS, "--describe", "--group", group)
    row = next(line.split() for line in described.splitlines() if line.startswith(group))
    assert row[1:6] == [topic, "0", "50", "50", "0"], "committed, end and lag"
    reset = tool(broker, GROUPS, "--group", group, "--topic", topic, "--reset-offsets", "--to-offset", "7", "--execute")
    assert re.search(rf"{topic}\s+0\s+7\b", reset)
    tool(broker, GROUPS, "--delete", "--group", group)


def test_console_consumer_with_the_modern_protocol(broker: RunningBroker, unique: Unique) -> None:
    topic, group = unique("tool"), unique("group")
    tool(broker, PRODUCER, "--topic", topic, stdin="one\ntwo\n")
    shown = tool(
        broker, CONSUMER, "--topic", topic, "--group", group, "--from-beginning", "--max-messages", "2",
        "--command-property", "group.protocol=consumer", "--timeout-ms", "30000",
    )  # fmt: skip
    assert shown.split() == ["one", "two"]
    assert group in tool(broker, GROUPS, "--list")


def test_kafka_configs_alters_and_describes(broker: RunningBroker, unique: Unique) -> None:
    topic = unique("tool")
    tool(broker, TOPICS, "--create", "--topic", topic)
    entity = ("--entity-type", "topics", "--entity-name", topic)
    tool(broker, CONFIGS, *entity, "--alter", "--add-config", "cleanup.policy=compact,segment.ms=60000")
    described = tool(broker, CONFIGS, *entity, "--describe")
    assert "cleanup.policy=compact" in described
    assert "segment.ms=60000" in described


def test_kafka_configs_knows_groups(broker: RunningBroker, unique: Unique) -> None:
    entity = ("--entity-type", "groups", "--entity-name", unique("group"))
    tool(broker, CONFIGS, *entity, "--alter", "--add-config", "consumer.session.timeout.ms=50000")
    described = tool(broker, CONFIGS, *entity, "--describe")
    assert "consumer.session.timeout.ms=50000" in described
    tool(broker, CONFIGS, *entity, "--alter", "--delete-config", "consumer.session.timeout.ms")
    assert "consumer.session.timeout.ms=50000" not in tool(broker, CONFIGS, *entity, "--describe")


@pytest.mark.ours_only("names our own loggers")
def test_kafka_configs_knows_loggers(broker: RunningBroker) -> None:
    entity = ("--entity-type", "broker-loggers", "--entity-name", "1")
    logger = "trunkline.broker.complaints"
    assert f"{logger}=INFO" in tool(broker, CONFIGS, *entity, "--describe")
    tool(broker, CONFIGS, *entity, "--alter", "--add-config", f"{logger}=ERROR")
    assert f"{logger}=ERROR" in tool(broker, CONFIGS, *entity, "--describe")
    tool(broker, CONFIGS, *entity, "--alter", "--delete-config", logger)
    assert f"{logger}=INFO" in tool(broker, CONFIGS, *entity, "--describe")


def test_kafka_configs_shows_the_broker(broker: RunningBroker) -> None:
    shown = tool(broker, CONFIGS, "--entity-type", "brokers", "--entity-name", "1", "--describe", "--all")
    for setting in (
        "default.replication.factor=1",
        "log.dirs=/",
        "num.partitions=1",
        "offsets.topic.replication.factor=1",
    ):
        assert setting in shown


def test_kafka_metadata_quorum_shows_a_quorum_of_one(broker: RunningBroker) -> None:
    status = tool(broker, QUORUM, "describe", "--status")
    assert re.search(r"LeaderId:\s+1\b", status)
    assert re.search(r"MaxFollowerLag:\s+0\b", status)
    assert re.search(
        r"^1\s+\S+\s+\d+\s+0\s+\d+\s+\d+\s+Leader", tool(broker, QUORUM, "describe", "--replication"), re.MULTILINE
    )


def test_kafka_features_shows_and_asks_for_what_is_there(broker: RunningBroker) -> None:
    assert re.search(r"Feature: group.version.*FinalizedVersionLevel: 1", tool(broker, FEATURES, "describe"))
    assert "group.version" in tool(broker, FEATURES, "upgrade", "--feature", "group.version=1", "--dry-run")


def test_kafka_reassign_partitions_finds_nothing_to_do(broker: RunningBroker, unique: Unique, tmp_path: Path) -> None:
    topic = unique("tool")
    tool(broker, TOPICS, "--create", "--topic", topic, "--partitions", "2")
    path = json.loads(tool(broker, LOG_DIRS, "--describe", "--topic-list", topic).splitlines()[-1])
    directory = path["brokers"][0]["logDirs"][0]["logDir"]
    partitions = [{"topic": topic, "partition": index, "replicas": [1], "log_dirs": [directory]} for index in range(2)]
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"version": 1, "partitions": partitions}))
    arguments = ("--reassignment-json-file", str(plan))
    assert "Successfully started partition reassignments" in tool(broker, REASSIGN, *arguments, "--execute")
    assert "is completed" in tool(broker, REASSIGN, *arguments, "--verify")
    assert "No partition reassignments found." in tool(broker, REASSIGN, "--list")


def test_kafka_transactions_lists(broker: RunningBroker, unique: Unique) -> None:
    listed = tool(broker, TRANSACTIONS, "list")
    assert listed.split()[:2] == ["TransactionalId", "Coordinator"]


def test_kafka_broker_api_versions_knows_every_api_that_it_needs(broker: RunningBroker) -> None:
    shown = tool(broker, API_VERSIONS)
    for api in ("Produce", "Fetch", "Metadata", "ConsumerGroupHeartbeat", "EndTxn", "DescribeTopicPartitions"):
        line = next(line for line in shown.splitlines() if line.strip().startswith(f"{api}("))
        assert "[usable:" in line, line


def test_kafka_producer_perf_test_loses_nothing(broker: RunningBroker, unique: Unique) -> None:
    topic = unique("perf")
    shown = tool(
        broker, PERFORMANCE, "--topic", topic, "--num-records", "20000", "--record-size", "200", "--throughput", "-1",
        "--command-property", "acks=all",
    )  # fmt: skip
    assert "20000 records sent" in shown
    assert f"{topic}:0:20000" in tool(broker, OFFSETS, "--topic", topic)


@pytest.mark.ours_only("Kafka's data directory is its own affair")
def test_kafka_dump_log_reads_our_segments(broker: RunningBroker, unique: Unique) -> None:
    topic = unique("dump")
    tool(broker, PRODUCER, "--topic", topic, "--compression-codec", "zstd", stdin="a\nb\nc\n")
    segment = next((broker.data / f"{topic}-0").glob("*.log"))
    done = java(classpath(), [DUMP, "--files", str(segment), "--print-data-log"], TOOL_SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "compresscodec: zstd" in done.stdout
    assert "isvalid: true" in done.stdout
    assert re.findall(r"payload: (\w)$", done.stdout, re.MULTILINE) == ["a", "b", "c"]


def test_kafka_share_groups_lists_describes_moves_and_deletes(broker: RunningBroker, unique: Unique) -> None:
    topic, group = unique("tool"), unique("share")
    tool(broker, PRODUCER, "--topic", topic, stdin="".join(f"value{i}\n" for i in range(10)))
    where = ("--entity-type", "groups", "--entity-name", group)
    tool(broker, CONFIGS, *where, "--alter", "--add-config", "share.auto.offset.reset=earliest")
    assert "share.auto.offset.reset=earliest" in tool(broker, CONFIGS, *where, "--describe")
    member = joined(broker.bootstrap, group, [topic])
    taken = take(member, 10)
    member.commit_sync()
    assert group in tool(broker, SHARE_GROUPS, "--list").split()
    members = tool(broker, SHARE_GROUPS, "--describe", "--group", group, "--members")
    assert f"{topic}:0" in members
    member.close()
    assert len(taken) == 10
    state = tool(broker, SHARE_GROUPS, "--describe", "--group", group, "--state")
    assert "Empty" in state
    moved = tool(
        broker, SHARE_GROUPS, "--reset-offsets", "--group", group, "--topic", topic, "--to-earliest", "--execute"
    )
    assert re.search(rf"{topic}\s+0\s+0", moved), moved
    standing = tool(broker, SHARE_GROUPS, "--describe", "--group", group, "--offsets")
    row = next(line.split() for line in standing.splitlines() if line.startswith(group))
    assert row[:5] == [group, topic, "0", "0", "10"]
    assert topic in tool(broker, SHARE_GROUPS, "--delete-offsets", "--group", group, "--topic", topic)
    assert "successful" in tool(broker, SHARE_GROUPS, "--delete", "--group", group)
    assert group not in tool(broker, SHARE_GROUPS, "--list").split()


@pytest.mark.ours_only("the Apache Kafka of these tests has no authorizer")
def test_kafka_acls_adds_lists_and_removes(broker: RunningBroker, unique: Unique) -> None:
    topic, group = unique("tool"), unique("group")
    added = tool(
        broker, ACLS, "--add", "--allow-principal", "User:bob", "--consumer", "--topic", topic, "--group", group
    )
    assert f"name={topic}" in added
    tool(
        broker, ACLS, "--add", "--deny-principal", "User:eve", "--deny-host", "10.0.0.1", "--operation", "Write",
        "--topic", topic, "--resource-pattern-type", "prefixed",
    )  # fmt: skip
    listed = tool(broker, ACLS, "--list", "--topic", topic, "--resource-pattern-type", "match")
    assert "principal=User:bob, host=*, operation=READ, permissionType=ALLOW" in listed
    assert "principal=User:eve, host=10.0.0.1, operation=WRITE, permissionType=DENY" in listed
    assert "patternType=PREFIXED" in listed
    assert "User:bob" in tool(broker, ACLS, "--list", "--principal", "User:bob")
    for place in (("--topic", topic, "--resource-pattern-type", "match"), ("--group", group)):
        tool(broker, ACLS, "--remove", "--force", *place)
        assert "principal=" not in tool(broker, ACLS, "--list", *place)


@pytest.mark.ours_only("quotas would stay with the Apache Kafka of these tests")
def test_kafka_configs_alters_and_describes_quotas(broker: RunningBroker, unique: Unique) -> None:
    user = ("--entity-type", "users", "--entity-name", unique("user"))
    tool(broker, CONFIGS, *user, "--alter", "--add-config", "producer_byte_rate=1024,request_percentage=200")
    described = tool(broker, CONFIGS, *user, "--describe")
    assert "producer_byte_rate=1024.0" in described
    assert "request_percentage=200.0" in described
    tool(broker, CONFIGS, *user, "--alter", "--delete-config", "producer_byte_rate,request_percentage")
    assert "producer_byte_rate" not in tool(broker, CONFIGS, *user, "--describe")
