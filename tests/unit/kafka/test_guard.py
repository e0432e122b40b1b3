"""Every Kafka API that names a topic has a rule for the broker's own topics, and keeps it in every version.

Requests are built from the declarations: every array has one element, every field that can name a topic names the reserved
one. An API that is added with such a field fails here until it has a rule.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from importlib import import_module
from pathlib import Path
from uuid import UUID

import pytest

from tests.unit.kafka.test_session import Client, with_client
from trunkline.broker import guard
from trunkline.broker.core import BrokerCore
from trunkline.broker.guard import Operation, TopicForbidden
from trunkline.log.batch import NewRecord, build_batch
from trunkline.log.names import READABLE_TOPICS, RESERVED_TOPICS
from trunkline.log.store import Bounds, TopicInfo, TopicPartition
from trunkline.protocols.kafka import apis
from trunkline.protocols.kafka.apis import Request
from trunkline.protocols.kafka.codec import decode_response
from trunkline.protocols.kafka.errors import ErrorCode
from trunkline.protocols.kafka.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
)
from trunkline.protocols.kafka.messages.list_config_resources import (
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from trunkline.protocols.kafka.messages.metadata import MetadataRequest, MetadataResponse
from trunkline.protocols.kafka.schema.declaration import Declaration, Field, Struct, load


class Rule(Enum):
    CHANGES = "refused for every reserved topic: INVALID_TOPIC_EXCEPTION"
    JOINS = "refused for every reserved topic: TOPIC_AUTHORIZATION_FAILED, as Kafka says for transactions"
    LOOKS = "refused for those that are not everybody's: TOPIC_AUTHORIZATION_FAILED"
    OPEN = "reaches no record and no setting of the topic"


RULES = {
    "Produce": Rule.CHANGES,
    "CreateTopics": Rule.CHANGES,
    "DeleteTopics": Rule.CHANGES,
    "CreatePartitions": Rule.CHANGES,
    "AlterConfigs": Rule.CHANGES,
    "IncrementalAlterConfigs": Rule.CHANGES,
    "DeleteRecords": Rule.CHANGES,
    "WriteTxnMarkers": Rule.CHANGES,
    "AddPartitionsToTxn": Rule.JOINS,
    "Fetch": Rule.LOOKS,
    "ListOffsets": Rule.LOOKS,
    "OffsetForLeaderEpoch": Rule.LOOKS,
    "DescribeProducers": Rule.LOOKS,
    "Metadata": Rule.LOOKS,
    "DescribeTopicPartitions": Rule.LOOKS,
    "DescribeConfigs": Rule.LOOKS,
    "ConsumerGroupHeartbeat": Rule.LOOKS,
    # A group's offsets are its own, whatever topic they are said to be of.
    "OffsetCommit": Rule.OPEN,
    "OffsetFetch": Rule.OPEN,
    "OffsetDelete": Rule.OPEN,
    "TxnOffsetCommit": Rule.OPEN,
    # Sizes of partitions; one broker with one replica of each has nothing to elect or to move.
    "DescribeLogDirs": Rule.OPEN,
    "ElectLeaders": Rule.OPEN,
    "AlterReplicaLogDirs": Rule.OPEN,
    # Of the one quorum that there is, whatever topic is asked for.
    "DescribeQuorum": Rule.OPEN,
    "AlterPartitionReassignments": Rule.OPEN,
    "ListPartitionReassignments": Rule.OPEN,
    # A rule may name any topic, there or not.
    "CreateAcls": Rule.OPEN,
    "DescribeAcls": Rule.OPEN,
    "DeleteAcls": Rule.OPEN,
    "ShareGroupHeartbeat": Rule.LOOKS,
    "ShareFetch": Rule.LOOKS,
    "DescribeShareGroupOffsets": Rule.LOOKS,
    "AlterShareGroupOffsets": Rule.LOOKS,
    "DeleteShareGroupOffsets": Rule.LOOKS,
    # Of records that a share fetch gave.
    "ShareAcknowledge": Rule.OPEN,
}
PRODUCER_ID, PRODUCER_EPOCH = 7, 0
# What a field of this name is given, where zero, false or nothing would not be a request that could be obeyed.
VALUES: dict[str, object] = {
    "acks": -1,
    "config_operation": 0,
    "coordinator_keys": "group",
    "count": 3,
    "current_leader_epoch": -1,
    "endpoint_type": 1,
    "group_id": "group",
    "group_ids": "group",
    "groups": "group",
    "groups_names": "group",
    "key": "group",
    "max_bytes": 1 << 20,
    "max_num_offsets": 1,
    "max_records": 1,
    "member_epoch": 0,
    "member_id": "member",
    "num_partitions": 1,
    "offset": 1,
    "partition_max_bytes": 1 << 20,
    "rebalance_timeout_ms": 60_000,
    "replica_id": -1,
    "replication_factor": 1,
    "resource_type": 2,
    "is_renew_ack": False,
    "response_partition_limit": 100,
    "session_epoch": -1,
    "timestamp": -2,
    "transactional_id": "transaction",
    "transactional_ids": "transaction",
    "v3_and_below_transactional_id": "transaction",
    "validate_only": False,
}
SKIPPED = {
    "transactional_id": {"Produce"},
    "assignments": {"CreateTopics", "CreatePartitions"},
    "acknowledgement_batches": {"ShareFetch"},
    "cursor": None,
}


@cache
def declarations() -> dict[str, Declaration]:
    return {found.name: found for each in load().values() for found in each if found.key is not None}


def names_a_topic(item: Field) -> bool:
    return "topic" in item.name or item.name.startswith("resource_name")


def topic_fields(struct: Struct) -> Iterator[str]:
    for item in struct.fields:
        if names_a_topic(item):
            yield item.name
        if item.struct is not None:
            yield from topic_fields(item.struct)


def naming_apis() -> list[str]:
    return sorted(name for name, found in declarations().items() if any(topic_fields(found.messages[0])))


def build(api: str, struct: Struct, module: object, version: int, topic: str, topic_id: UUID) -> Request:
    """A request, or a part of it, that names the topic wherever it can."""
    given: dict[str, object] = {}
    for item in struct.fields:
        skipped = SKIPPED.get(item.name, ())
        if version not in item.versions or skipped is None or api in skipped:
            continue
        if item.struct is not None:
            part = build(api, item.struct, module, version, topic, topic_id)
            given[item.name] = [part] if item.is_array else part
        elif item.is_array:
            given[item.name] = [_value(struct, item, topic, topic_id)]
        else:
            given[item.name] = _value(struct, item, topic, topic_id)
    return getattr(module, struct.name)(**given)  # type: ignore[no-any-return]


def _value(struct: Struct, item: Field, topic: str, topic_id: UUID) -> object:
    if item.name in VALUES:
        return VALUES[item.name]
    if "Config" in struct.name and item.name in {"name", "value"}:
        return {"name": "retention.ms", "value": "1"}[item.name]
    if item.name == "configuration_keys":
        return "retention.ms"
    if item.type == "uuid":
        return topic_id
    if item.type == "records":
        return memoryview(build_batch([NewRecord(b"k", b"v")], timestamp_ms=1))
    if item.type == "string":
        return topic if names_a_topic(item) or item.name in {"name", "pattern"} else ""
    if item.type == "bytes":
        return b""
    if "producer_id" in item.name:
        return PRODUCER_ID
    return False if item.type == "bool" else 0


def codes(answer: object) -> set[ErrorCode]:
    """Every error code of a response."""
    found: set[ErrorCode] = set()
    if isinstance(answer, list):
        found = found.union(*map(codes, answer))
    elif is_dataclass(answer):
        for item in fields(answer):
            value = getattr(answer, item.name)
            if item.name.endswith("error_code"):
                found.add(ErrorCode(value))
            else:
                found |= codes(value)
    return found - {ErrorCode.NONE}


def state_of(broker: BrokerCore, topic: str) -> tuple[TopicInfo | None, Bounds | None]:
    info = broker.store.topic(topic)
    return info, None if info is None else broker.store.bounds(TopicPartition(topic, 0))


def expected(rule: Rule, topic: str) -> set[ErrorCode]:
    if rule is Rule.CHANGES:
        return {ErrorCode.INVALID_TOPIC_EXCEPTION}
    if rule is Rule.JOINS:
        return {ErrorCode.TOPIC_AUTHORIZATION_FAILED}
    return {ErrorCode.TOPIC_AUTHORIZATION_FAILED} if topic not in READABLE_TOPICS else set()


def test_every_api_that_names_a_topic_has_a_rule() -> None:
    assert naming_apis() == sorted(RULES)


@pytest.mark.parametrize("api", RULES)
def test_an_api_keeps_its_rule_for_every_reserved_topic_in_every_version(api: str, tmp_path: Path) -> None:
    declared = declarations()[api]
    key, rule = declared.key, RULES[api]
    assert key is not None

    async def scenario(client: Client, broker: BrokerCore) -> None:
        for missing in RESERVED_TOPICS - broker.store.topics().keys():  # `__sessions`, when there is no MQTT listener
            await broker.store.create_topic(missing, 1)
        if "Share" in api and api != "ShareGroupHeartbeat":
            await broker.groups.empty_share_group("group", create=True)
        for version in range(apis.APIS[key].min_version, apis.APIS[key].max_version + 1):
            for topic in sorted(RESERVED_TOPICS):
                before = state_of(broker, topic)
                assert before[0] is not None
                request = _request(api, version, topic, before[0].id)
                answer = await ask(client, request, key, version)
                where = (version, topic, answer)
                if rule is Rule.OPEN:
                    assert state_of(broker, topic)[0] == before[0], where
                    continue
                assert codes(answer) & {*expected(rule, topic)} == expected(rule, topic), where
                if rule is Rule.LOOKS and not expected(rule, topic):
                    assert ErrorCode.TOPIC_AUTHORIZATION_FAILED not in codes(answer), where
                if rule is not Rule.LOOKS:
                    assert state_of(broker, topic) == before, where

    with_client(tmp_path, scenario)


def test_who_asks_for_all_topics_sees_only_those_that_can_be_read(tmp_path: Path) -> None:
    async def scenario(client: Client, broker: BrokerCore) -> None:
        await broker.create_topic("__foo")
        visible = (READABLE_TOPICS & broker.store.topics().keys()) | {"__foo"}  # as far as they are there yet
        answer = await ask(client, MetadataRequest(topics=None), MetadataRequest.API_KEY, 9)
        assert isinstance(answer, MetadataResponse)
        assert {topic.name: topic.is_internal for topic in answer.topics} == {
            name: name in RESERVED_TOPICS for name in visible
        }
        described = await ask(
            client,
            DescribeTopicPartitionsRequest(response_partition_limit=100),
            DescribeTopicPartitionsRequest.API_KEY,
            0,
        )
        assert isinstance(described, DescribeTopicPartitionsResponse)
        assert {topic.name for topic in described.topics} == visible
        listed = await ask(client, ListConfigResourcesRequest(), ListConfigResourcesRequest.API_KEY, 1)
        assert isinstance(listed, ListConfigResourcesResponse)
        assert {item.resource_name for item in listed.config_resources if item.resource_type == 2} == visible

    with_client(tmp_path, scenario)


def test_no_client_makes_a_reserved_topic_before_the_broker_does(tmp_path: Path) -> None:
    async def scenario(client: Client, broker: BrokerCore) -> None:
        missing = RESERVED_TOPICS - broker.store.topics().keys()
        assert missing
        for topic in missing:
            for api in ("Metadata", "CreateTopics"):
                key = declarations()[api].key
                assert key is not None
                for version in range(apis.APIS[key].min_version, apis.APIS[key].max_version + 1):
                    await ask(client, _request(api, version, topic, UUID(int=0)), key, version)
            with pytest.raises(TopicForbidden):
                await broker.ensure_topic(topic)
        assert not missing & broker.store.topics().keys()

    with_client(tmp_path, scenario)


def test_an_administrator_reads_every_topic_and_changes_no_reserved_one() -> None:
    for topic in RESERVED_TOPICS:
        for operation in Operation:
            if operation in {Operation.READ, Operation.DESCRIBE}:
                guard.check(operation, topic, administrator=True)
            else:
                with pytest.raises(TopicForbidden, match="the broker's own"):
                    guard.check(operation, topic, administrator=True)


def _request(api: str, version: int, topic: str, topic_id: UUID) -> Request:
    declared = declarations()[api]
    module = import_module(f"trunkline.protocols.kafka.messages.{apis.APIS[declared.key or 0].module}")
    return build(api, declared.messages[0], module, version, topic, topic_id)


async def ask(client: Client, request: Request, key: int, version: int) -> object:
    client.sent.clear()
    correlation_id = client.ask(request, version)
    await client.until(lambda: bool(client.sent) or client.closed)
    assert not client.closed, (request, version)
    _, response = apis.load(key)
    return decode_response(response, memoryview(client.sent[0])[4:], version, correlation_id)
