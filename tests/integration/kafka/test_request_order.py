"""Requests on one connection take effect in the order in which they were sent, also when they come in one write."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.integration.kafka.conftest import TopicFactory
from tests.integration.kafka.pipeline import Ask, Pipeline
from tests.integration.server import RunningBroker
from trunkline.log.batch import NewRecord, build_batch
from trunkline.protocols.kafka.errors import ErrorCode
from trunkline.protocols.kafka.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from trunkline.protocols.kafka.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from trunkline.protocols.kafka.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from trunkline.protocols.kafka.messages.create_topics import CreatableTopic, CreateTopicsRequest
from trunkline.protocols.kafka.messages.delete_groups import DeleteGroupsRequest
from trunkline.protocols.kafka.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from trunkline.protocols.kafka.messages.delete_topics import DeleteTopicsRequest
from trunkline.protocols.kafka.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from trunkline.protocols.kafka.messages.end_txn import EndTxnRequest
from trunkline.protocols.kafka.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from trunkline.protocols.kafka.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from trunkline.protocols.kafka.messages.init_producer_id import InitProducerIdRequest
from trunkline.protocols.kafka.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from trunkline.protocols.kafka.messages.leave_group import LeaveGroupRequest
from trunkline.protocols.kafka.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from trunkline.protocols.kafka.messages.metadata import MetadataRequest, MetadataRequestTopic
from trunkline.protocols.kafka.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from trunkline.protocols.kafka.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from trunkline.protocols.kafka.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from trunkline.protocols.kafka.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from trunkline.protocols.kafka.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)

pytestmark = pytest.mark.ours_only("an Apache Kafka needs time to begin: for its coordinators, for a topic's leader")

TIMES = 5  # each pair, as chance may hide a wrong order once
TIMEOUT_MS = 10_000
TOPIC = 2  # Kafka's number for a resource that is a topic
EARLIEST, LATEST = -2, -1
Unique = Callable[[str], str]


@pytest.fixture
def pipeline(broker: RunningBroker) -> Iterator[Pipeline]:
    with Pipeline(broker.host, broker.port) as opened:
        yield opened


# -- requests ----------------------------------------------------------------------------------------------------


def create(name: str, partitions: int = 1) -> Ask:
    topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
    return CreateTopicsRequest(topics=[topic], timeout_ms=TIMEOUT_MS), 5


def delete(name: str) -> Ask:
    return DeleteTopicsRequest(topic_names=[name], timeout_ms=TIMEOUT_MS), 5


def grow(name: str, partitions: int) -> Ask:
    topic = CreatePartitionsTopic(name=name, count=partitions, assignments=None)
    return CreatePartitionsRequest(topics=[topic], timeout_ms=TIMEOUT_MS), 3


def metadata(name: str) -> Ask:
    return MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=False), 9


def produce(name: str, value: bytes = b"v", partition: int = 0) -> Ask:
    batch = memoryview(build_batch([NewRecord(b"k", value)], timestamp_ms=1_700_000_000_000))
    part = PartitionProduceData(index=partition, records=batch)
    topic = TopicProduceData(name=name, partition_data=[part])
    return ProduceRequest(acks=-1, timeout_ms=TIMEOUT_MS, topic_data=[topic]), 9


def fetch(name: str, offset: int = 0, max_wait_ms: int = 0) -> Ask:
    part = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    topic = FetchTopic(topic=name, partitions=[part])
    request = FetchRequest(max_wait_ms=max_wait_ms, min_bytes=1, max_bytes=1 << 20, session_epoch=-1, topics=[topic])
    return request, 11


def delete_records(name: str, before: int) -> Ask:
    topic = DeleteRecordsTopic(name=name, partitions=[DeleteRecordsPartition(partition_index=0, offset=before)])
    return DeleteRecordsRequest(topics=[topic], timeout_ms=TIMEOUT_MS), 2


def list_offset(name: str, timestamp: int) -> Ask:
    part = ListOffsetsPartition(partition_index=0, timestamp=timestamp, current_leader_epoch=-1)
    return ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=name, partitions=[part])]), 6


def set_config(name: str, setting: str, value: str) -> Ask:
    config = AlterableConfig(name=setting, config_operation=0, value=value)
    resource = AlterConfigsResource(resource_type=TOPIC, resource_name=name, configs=[config])
    return IncrementalAlterConfigsRequest(resources=[resource]), 1


def describe_config(name: str, setting: str) -> Ask:
    resource = DescribeConfigsResource(resource_type=TOPIC, resource_name=name, configuration_keys=[setting])
    return DescribeConfigsRequest(resources=[resource]), 4


def commit(group: str, name: str, offset: int) -> Ask:
    part = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata="")
    topic = OffsetCommitRequestTopic(name=name, partitions=[part])
    return OffsetCommitRequest(group_id=group, topics=[topic]), 8


def committed(group: str, name: str) -> Ask:
    topic = OffsetFetchRequestTopics(name=name, partition_indexes=[0])
    return OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=[topic])]), 8


def delete_offset(group: str, name: str) -> Ask:
    topic = OffsetDeleteRequestTopic(name=name, partitions=[OffsetDeleteRequestPartition(partition_index=0)])
    return OffsetDeleteRequest(group_id=group, topics=[topic]), 0


def offset_in(answer: Any) -> int:
    return int(answer.groups[0].topics[0].partitions[0].committed_offset)


def listed(answer: Any) -> int:
    return int(answer.topics[0].partitions[0].offset)


def error_of_topic(answer: Any) -> int:
    return int(answer.topics[0].error_code)


# -- pairs -------------------------------------------------------------------------------------------------------


def test_metadata_sees_the_topic_that_was_created_before_it(pipeline: Pipeline, unique: Unique) -> None:
    for _ in range(TIMES):
        name = unique("t")
        created, found = pipeline.ask(create(name, 3), metadata(name))
        assert error_of_topic(created) == 0
        assert (error_of_topic(found), len(found.topics[0].partitions)) == (0, 3)


def test_metadata_sees_no_topic_that_was_deleted_before_it(pipeline: Pipeline, topic: TopicFactory) -> None:
    for _ in range(TIMES):
        name = topic()
        _, found = pipeline.ask(delete(name), metadata(name))
        assert error_of_topic(found) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_metadata_sees_the_partitions_that_were_added_before_it(pipeline: Pipeline, topic: TopicFactory) -> None:
    for _ in range(TIMES):
        name = topic()
        _, found = pipeline.ask(grow(name, 4), metadata(name))
        assert len(found.topics[0].partitions) == 4


def test_a_produce_finds_the_topic_that_was_created_before_it(pipeline: Pipeline, unique: Unique) -> None:
    for _ in range(TIMES):
        name = unique("t")
        _, produced, grown, second = pipeline.ask(create(name), produce(name), grow(name, 2), produce(name, b"", 1))
        assert grown.results[0].error_code == 0
        for answer in (produced, second):
            assert answer.responses[0].partition_responses[0].error_code == 0


def test_a_topic_can_be_deleted_and_made_anew_in_one_breath(pipeline: Pipeline, unique: Unique) -> None:
    name = unique("t")
    pipeline.ask(create(name), produce(name))
    for _ in range(TIMES):
        deleted, created, produced, end = pipeline.ask(
            delete(name), create(name), produce(name), list_offset(name, LATEST)
        )
        assert (deleted.responses[0].error_code, error_of_topic(created)) == (0, 0)
        assert produced.responses[0].partition_responses[0].base_offset == 0
        assert listed(end) == 1


def test_list_offsets_sees_the_records_that_were_deleted_before_it(pipeline: Pipeline, topic: TopicFactory) -> None:
    name = topic()
    pipeline.ask(*[produce(name) for _ in range(TIMES + 1)])
    for before in range(1, TIMES + 1):
        _, start, gone = pipeline.ask(
            delete_records(name, before), list_offset(name, EARLIEST), fetch(name, before - 1)
        )
        assert listed(start) == before
        assert gone.responses[0].partitions[0].error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_a_fetch_reads_what_is_deleted_after_it(pipeline: Pipeline, topic: TopicFactory) -> None:
    for _ in range(TIMES):
        name = topic()
        pipeline.ask(produce(name, b"kept"))
        fetched, deleted = pipeline.ask(fetch(name), delete(name))
        assert b"kept" in bytes(fetched.responses[0].partitions[0].records)
        assert deleted.responses[0].error_code == 0


def test_an_offset_fetch_sees_the_commit_before_it(pipeline: Pipeline, topic: TopicFactory, unique: Unique) -> None:
    name, group = topic(), unique("g")
    for offset in range(1, 4 * TIMES):
        _, found = pipeline.ask(commit(group, name, offset), committed(group, name))
        assert offset_in(found) == offset


def test_of_many_commits_in_one_write_the_last_one_stands(
    pipeline: Pipeline, topic: TopicFactory, unique: Unique
) -> None:
    name, group = topic(), unique("g")
    commits = [commit(group, name, offset) for offset in range(1, 101)]
    assert offset_in(pipeline.ask(*commits, committed(group, name))[-1]) == 100


def test_an_offset_fetch_sees_no_offset_that_was_deleted_before_it(
    pipeline: Pipeline, topic: TopicFactory, unique: Unique
) -> None:
    name, group = topic(), unique("g")
    for _ in range(TIMES):
        answers = pipeline.ask(commit(group, name, 7), delete_offset(group, name), committed(group, name))
        assert answers[1].topics[0].partitions[0].error_code == 0
        assert offset_in(answers[2]) == -1


def test_an_offset_fetch_sees_no_group_that_was_deleted_before_it(
    pipeline: Pipeline, topic: TopicFactory, unique: Unique
) -> None:
    name, group = topic(), unique("g")
    for _ in range(TIMES):
        pipeline.ask(commit(group, name, 7))
        deleted, found = pipeline.ask((DeleteGroupsRequest(groups_names=[group]), 2), committed(group, name))
        assert deleted.results[0].error_code == 0
        assert offset_in(found) == -1


def test_describe_configs_sees_the_change_before_it(pipeline: Pipeline, topic: TopicFactory) -> None:
    name = topic()
    for times in range(1, TIMES + 1):
        value = str(times * 60_000)
        _, found = pipeline.ask(set_config(name, "retention.ms", value), describe_config(name, "retention.ms"))
        assert found.results[0].configs[0].value == value


def test_a_produce_obeys_the_limit_that_was_set_before_it(pipeline: Pipeline, topic: TopicFactory) -> None:
    for _ in range(TIMES):
        name = topic()
        _, refused, _, taken = pipeline.ask(
            set_config(name, "max.message.bytes", "100"),
            produce(name, bytes(200)),
            set_config(name, "max.message.bytes", "1000"),
            produce(name, bytes(200)),
        )
        assert refused.responses[0].partition_responses[0].error_code == ErrorCode.MESSAGE_TOO_LARGE
        assert taken.responses[0].partition_responses[0].error_code == 0


# -- transactions ------------------------------------------------------------------------------------------------


def transactional_batch(producer_id: int, epoch: int, sequence: int, records: int) -> memoryview:
    return memoryview(
        build_batch(
            [NewRecord(b"k", b"v") for _ in range(records)],
            timestamp_ms=1_700_000_000_000,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=True,
        )
    )


def test_transactional_produces_to_several_partitions_keep_their_sequence(
    pipeline: Pipeline, topic: TopicFactory, unique: Unique
) -> None:
    """As a Java producer sends them: up to five in flight, each with what is ready for some of the partitions."""
    partitions, in_flight, records = 7, 5, 3
    name, transactional_id = topic(partitions), unique("tx")
    (identity,) = pipeline.ask(
        (InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=60_000), 4)
    )
    producer_id, epoch = identity.producer_id, identity.producer_epoch
    for _ in range(TIMES):
        sequences = [0] * partitions  # they begin anew with the epoch, which grows with each transaction
        asks: list[Ask] = []
        for number in range(in_flight):
            parts = []
            for index in range(partitions) if number == 0 else range(partitions - 1, number, -1):
                batch = transactional_batch(producer_id, epoch, sequences[index], records)
                parts.append(PartitionProduceData(index=index, records=batch))
                sequences[index] += records
            data = [TopicProduceData(name=name, partition_data=parts)]
            request = ProduceRequest(transactional_id=transactional_id, acks=-1, timeout_ms=TIMEOUT_MS, topic_data=data)
            asks.append((request, 12))
        for answer in pipeline.ask(*asks):
            refused = {p.index: p.error_message for p in answer.responses[0].partition_responses if p.error_code}
            assert refused == {}
        end = EndTxnRequest(
            transactional_id=transactional_id, producer_id=producer_id, producer_epoch=epoch, committed=True
        )
        (ended,) = pipeline.ask((end, 5))
        assert ended.error_code == 0
        producer_id, epoch = ended.producer_id, ended.producer_epoch


def test_a_whole_transaction_with_offsets_fits_in_one_write(
    pipeline: Pipeline, topic: TopicFactory, unique: Unique
) -> None:
    name, group, transactional_id = topic(2), unique("g"), unique("tx")
    for times in range(1, TIMES + 1):
        (identity,) = pipeline.ask(
            (InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=60_000), 4)
        )
        who = {
            "transactional_id": transactional_id,
            "producer_id": identity.producer_id,
            "producer_epoch": identity.producer_epoch,
        }
        partitions = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=transactional_id,
            v3_and_below_producer_id=identity.producer_id,
            v3_and_below_producer_epoch=identity.producer_epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=name, partitions=[0, 1])],
        )
        batch = transactional_batch(identity.producer_id, identity.producer_epoch, 0, 1)
        data = TopicProduceData(name=name, partition_data=[PartitionProduceData(index=0, records=batch)])
        part = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=times, committed_metadata="")
        offsets = TxnOffsetCommitRequestTopic(name=name, partitions=[part])
        added, produced, joined, sent, ended, found, end = pipeline.ask(
            (partitions, 3),
            (
                ProduceRequest(transactional_id=transactional_id, acks=-1, timeout_ms=TIMEOUT_MS, topic_data=[data]),
                9,
            ),
            (AddOffsetsToTxnRequest(**who, group_id=group), 3),
            (TxnOffsetCommitRequest(**who, group_id=group, topics=[offsets]), 3),
            (EndTxnRequest(**who, committed=True), 3),
            committed(group, name),
            list_offset(name, LATEST),
        )
        assert [p.partition_error_code for p in added.results_by_topic_v3_and_below[0].results_by_partition] == [0, 0]
        assert produced.responses[0].partition_responses[0].error_code == 0
        assert (joined.error_code, sent.topics[0].partitions[0].error_code, ended.error_code) == (0, 0, 0)
        assert offset_in(found) == times
        assert listed(end) == 2 * times  # a record and its marker


# -- what waits for others holds nobody up -----------------------------------------------------------------------


def test_a_waiting_fetch_does_not_hold_up_what_comes_behind_it(
    pipeline: Pipeline, broker: RunningBroker, topic: TopicFactory, unique: Unique
) -> None:
    name, group = topic(), unique("g")
    asks = [fetch(name, max_wait_ms=60_000), commit(group, name, 5)]
    ids = pipeline.send(*asks)
    with Pipeline(broker.host, broker.port) as other:
        deadline = time.monotonic() + 10
        while offset_in(other.ask(committed(group, name))[0]) != 5:
            assert time.monotonic() < deadline, "the commit waits for the fetch before it"
        other.ask(produce(name, b"wake"))
    fetched, _ = pipeline.receive(asks, ids)
    assert b"wake" in bytes(fetched.responses[0].partitions[0].records)


def test_a_waiting_join_does_not_hold_up_the_farewell_behind_it(
    pipeline: Pipeline, broker: RunningBroker, unique: Unique
) -> None:
    group = unique("g")
    protocols = [JoinGroupRequestProtocol(name="range", metadata=b"")]
    join = JoinGroupRequest(
        group_id=group,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=60_000,
        protocol_type="consumer",
        protocols=protocols,
    )
    with Pipeline(broker.host, broker.port) as other:
        (first,) = other.ask((join, 3))
        assert first.error_code == 0
    # The second member waits until the first one joins again or goes.
    asks: list[Ask] = [(join, 3), (LeaveGroupRequest(group_id=group, member_id=first.member_id), 2)]
    started = time.monotonic()
    joined, left = pipeline.ask(*asks)
    assert (joined.error_code, left.error_code) == (0, 0)
    assert time.monotonic() - started < 8, "the join was answered by a timeout, not by the farewell"
