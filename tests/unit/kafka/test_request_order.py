"""Whatever a client sends in one go is answered as if it had waited for each answer: random pipelines, real listener."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trunkline.broker.core import BrokerCore
from trunkline.log.batch import NewRecord, build_batch
from trunkline.log.embedded.store import EmbeddedStore
from trunkline.protocols.kafka.apis import ApiKey, load
from trunkline.protocols.kafka.codec import decode_response, encode_request
from trunkline.protocols.kafka.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
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
from trunkline.protocols.kafka.messages.list_groups import ListGroupsRequest
from trunkline.protocols.kafka.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from trunkline.protocols.kafka.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
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
from trunkline.protocols.kafka.server import KafkaServer
from trunkline.protocols.kafka.wire import Message

Ask = tuple[Message, int]
DEADLINE_S = 60
TOPIC_RESOURCE = 2
STAMP_MS = 1_700_000_000_000

names = st.sampled_from(["a", "b"])
groups = st.sampled_from(["g", "h"])
few = st.integers(0, 3)


def _batch(records: int, epoch: int = -1, sequence: int = -1) -> memoryview:
    # 0 is the first id that a new broker gives.
    identity = {"producer_id": 0, "producer_epoch": epoch, "base_sequence": sequence, "transactional": True}
    return memoryview(
        build_batch(
            [NewRecord(b"k", b"v") for _ in range(records)],
            timestamp_ms=STAMP_MS,
            **(identity if epoch >= 0 else {}),  # type: ignore[arg-type]
        )
    )


def _produce(name: str, partitions: Sequence[int], batch: memoryview, acks: int = -1, version: int = 9) -> Ask:
    parts = [PartitionProduceData(index=index, records=batch) for index in partitions]
    request = ProduceRequest(
        transactional_id="tx" if version > 9 else None,
        acks=acks,
        timeout_ms=1000,
        topic_data=[TopicProduceData(name=name, partition_data=parts)],
    )
    return request, version


def _create(name: str, partitions: int) -> Ask:
    topic = CreatableTopic(name=name, num_partitions=partitions + 1, replication_factor=1)
    return CreateTopicsRequest(topics=[topic], timeout_ms=1000), 5


def _grow(name: str, partitions: int) -> Ask:
    topic = CreatePartitionsTopic(name=name, count=partitions + 1, assignments=None)
    return CreatePartitionsRequest(topics=[topic], timeout_ms=1000), 3


def _trim(name: str, before: int) -> Ask:
    topic = DeleteRecordsTopic(name=name, partitions=[DeleteRecordsPartition(partition_index=0, offset=before)])
    return DeleteRecordsRequest(topics=[topic], timeout_ms=1000), 2


def _configure(name: str, value: int) -> Ask:
    config = AlterableConfig(name="retention.ms", config_operation=0, value=str(value))
    resource = AlterConfigsResource(resource_type=TOPIC_RESOURCE, resource_name=name, configs=[config])
    return IncrementalAlterConfigsRequest(resources=[resource]), 1


def _described(name: str) -> Ask:
    resource = DescribeConfigsResource(
        resource_type=TOPIC_RESOURCE, resource_name=name, configuration_keys=["retention.ms"]
    )
    return DescribeConfigsRequest(resources=[resource]), 4


def _bounds(name: str, timestamp: int) -> Ask:
    part = ListOffsetsPartition(partition_index=0, timestamp=timestamp, current_leader_epoch=-1)
    return ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=name, partitions=[part])]), 6


def _fetch(name: str, offset: int) -> Ask:
    part = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=1 << 20,
        session_epoch=-1,
        topics=[FetchTopic(topic=name, partitions=[part])],
    )
    return request, 11


def _commit(group: str, name: str, offset: int) -> Ask:
    part = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata="")
    topic = OffsetCommitRequestTopic(name=name, partitions=[part])
    return OffsetCommitRequest(group_id=group, topics=[topic]), 8


def _commit_in_transaction(group: str, name: str, epoch: int, offset: int) -> Ask:
    part = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata="")
    topic = TxnOffsetCommitRequestTopic(name=name, partitions=[part])
    return TxnOffsetCommitRequest(
        transactional_id="tx", producer_id=0, producer_epoch=epoch, group_id=group, topics=[topic]
    ), 5


def _committed(group: str) -> Ask:
    topics = [OffsetFetchRequestTopics(name=name, partition_indexes=[0]) for name in ("a", "b")]
    return OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=topics)]), 8


def _forget(group: str, name: str) -> Ask:
    topic = OffsetDeleteRequestTopic(name=name, partitions=[OffsetDeleteRequestPartition(partition_index=0)])
    return OffsetDeleteRequest(group_id=group, topics=[topic]), 0


requests = st.one_of(
    st.builds(_create, names, few),
    st.builds(lambda name: (DeleteTopicsRequest(topic_names=[name], timeout_ms=1000), 5), names),
    st.builds(_grow, names, few),
    st.builds(
        lambda name: (
            MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=name == "b"),
            9,
        ),
        names,
    ),
    st.builds(
        lambda name, parts, acks: _produce(name, parts, _batch(2), acks),
        names,
        st.lists(few, min_size=1, max_size=3, unique=True),
        st.sampled_from([-1, 1]),
    ),
    st.builds(
        lambda name, parts, epoch, sequence: _produce(name, parts, _batch(2, epoch, 2 * sequence), version=12),
        names,
        st.lists(few, min_size=1, max_size=3, unique=True),
        few,
        few,
    ),
    st.builds(_trim, names, few),
    st.builds(_configure, names, st.integers(1, 4)),
    st.builds(_described, names),
    st.builds(_bounds, names, st.sampled_from([-2, -1])),
    st.builds(_fetch, names, few),
    st.builds(_commit, groups, names, few),
    st.builds(_commit_in_transaction, groups, names, few, few),
    st.builds(_committed, groups),
    st.builds(_forget, groups, names),
    st.builds(lambda group: (DeleteGroupsRequest(groups_names=[group]), 2), groups),
    st.just((ListGroupsRequest(), 4)),
    st.just((InitProducerIdRequest(transactional_id="tx", transaction_timeout_ms=60_000), 4)),
    st.builds(
        lambda group, epoch: (
            AddOffsetsToTxnRequest(transactional_id="tx", producer_id=0, producer_epoch=epoch, group_id=group),
            3,
        ),
        groups,
        few,
    ),
    st.builds(
        lambda epoch, committed, version: (
            EndTxnRequest(transactional_id="tx", producer_id=0, producer_epoch=epoch, committed=committed),
            version,
        ),
        few,
        st.booleans(),
        st.sampled_from([3, 5]),
    ),
)


# What gives the rest something to work on.
BEGINNING: list[Ask] = [
    _create("a", 3),
    (InitProducerIdRequest(transactional_id="tx", transaction_timeout_ms=60_000), 4),
]


async def _answers(data: Path, asks: Sequence[Ask], *, pieces: int | None) -> list[Any]:
    """What a new broker answers: to each request before the next is sent, or to all in so many writes."""
    broker = BrokerCore(EmbeddedStore(data))
    await broker.start()
    server = KafkaServer(broker)
    broker.listeners["kafka"] = await server.listen("127.0.0.1", 0, "kafka")
    try:
        async with asyncio.timeout(DEADLINE_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", broker.listeners["kafka"][1])
            frames = [b"".join(encode_request(*ask, number, "test")) for number, ask in enumerate(asks)]
            answers: list[Any] = []
            if pieces is not None:
                for piece in _cut(b"".join(frames), pieces):
                    writer.write(piece)
                    await asyncio.sleep(0)
            for number, (request, version) in enumerate(asks):
                if pieces is None:
                    writer.write(frames[number])
                frame = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
                _, response = load(ApiKey(request.API_KEY))
                answers.append(_shown(decode_response(response, memoryview(frame), version, number)))
            writer.close()
            return answers
    finally:
        await server.close()
        await broker.close()


def _cut(data: bytes, pieces: int) -> list[bytes]:
    chance = random.Random(pieces)
    cuts = sorted({0, len(data), *(chance.randrange(len(data)) for _ in range(pieces - 1))})
    return [data[start:end] for start, end in pairwise(cuts)]


def _shown(answer: Any) -> Any:
    """Without what differs between two brokers whatever is asked."""
    if isinstance(answer, MetadataResponse):
        brokers = [replace(broker, port=0) for broker in answer.brokers]
        return replace(answer, cluster_id=None, brokers=brokers)
    return answer


@settings(max_examples=60, deadline=None)
@given(asks=st.lists(requests, min_size=2, max_size=25), pieces=st.integers(1, 4))
def test_a_pipeline_is_answered_as_if_each_request_had_been_waited_for(
    asks: list[Ask], pieces: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    asks = [*BEGINNING, *asks]

    async def run() -> tuple[list[Any], list[Any]]:
        one_by_one = await _answers(tmp_path_factory.mktemp("one-by-one"), asks, pieces=None)
        return one_by_one, await _answers(tmp_path_factory.mktemp("pipelined"), asks, pieces=pieces)

    one_by_one, pipelined = asyncio.run(run())
    for ask, expected, got in zip(asks, one_by_one, pipelined, strict=True):
        assert got == expected, ask
