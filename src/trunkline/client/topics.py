"""Topics: create, describe, alter, delete, and where their partitions begin and end.

Settings are Kafka's topic settings as text. Offsets are asked of each partition's leader.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from trunkline.client.client import Client
from trunkline.client.errors import check
from trunkline.log.store import TopicPartition
from trunkline.protocols.kafka.errors import ErrorCode
from trunkline.protocols.kafka.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from trunkline.protocols.kafka.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from trunkline.protocols.kafka.messages.delete_topics import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from trunkline.protocols.kafka.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
)
from trunkline.protocols.kafka.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from trunkline.protocols.kafka.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

EARLIEST = -2
LATEST = -1

_TOPIC = 2  # the resource type of the config requests
_TOPIC_SOURCE = 1  # the config source that means "set on this topic"
_SET, _DELETE = 0, 1


@dataclass(frozen=True, slots=True)
class TopicSetting:
    name: str
    value: str | None
    overridden: bool
    """Set on the topic itself, not a default."""


class Topics:
    def __init__(self, client: Client) -> None:
        self.client = client

    def create(
        self, name: str, partitions: int = -1, config: Mapping[str, str] | None = None, replicas: int = -1
    ) -> None:
        """-1 leaves the number to the broker."""
        settings = [CreatableTopicConfig(name=key, value=value) for key, value in (config or {}).items()]
        topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=replicas, configs=settings)
        request = CreateTopicsRequest(topics=[topic], timeout_ms=self.client.timeout_ms)
        for result in self.client.ask_controller(request, CreateTopicsResponse).topics:
            check(result.error_code, f"topic {name}", result.error_message)

    def delete(self, name: str) -> None:
        request = DeleteTopicsRequest(
            topics=[DeleteTopicState(name=name)], topic_names=[name], timeout_ms=self.client.timeout_ms
        )
        for result in self.client.ask_controller(request, DeleteTopicsResponse).responses:
            check(result.error_code, f"topic {name}", result.error_message)

    def grow(self, name: str, partitions: int) -> None:
        topic = CreatePartitionsTopic(name=name, count=partitions, assignments=None)
        request = CreatePartitionsRequest(topics=[topic], timeout_ms=self.client.timeout_ms)
        for result in self.client.ask_controller(request, CreatePartitionsResponse).results:
            check(result.error_code, f"topic {name}", result.error_message)

    def configure(self, name: str, set_to: Mapping[str, str], unset: Iterable[str] = ()) -> None:
        """Change some settings and put others back to their default; the rest stay."""
        changes = [AlterableConfig(name=key, config_operation=_SET, value=value) for key, value in set_to.items()]
        changes += [AlterableConfig(name=key, config_operation=_DELETE, value=None) for key in unset]
        resource = AlterConfigsResource(resource_type=_TOPIC, resource_name=name, configs=changes)
        request = IncrementalAlterConfigsRequest(resources=[resource])
        for result in self.client.ask_controller(request, IncrementalAlterConfigsResponse).responses:
            check(result.error_code, f"topic {name}", result.error_message)

    def settings(self, name: str) -> list[TopicSetting]:
        resource = DescribeConfigsResource(resource_type=_TOPIC, resource_name=name, configuration_keys=None)
        request = DescribeConfigsRequest(resources=[resource])
        (result,) = self.client.ask_controller(request, DescribeConfigsResponse).results
        check(result.error_code, f"topic {name}", result.error_message)
        return sorted((_setting(item) for item in result.configs), key=lambda item: item.name)

    def offsets(
        self, partitions: Iterable[TopicPartition], timestamp_ms: int, *, committed: bool = False
    ) -> dict[TopicPartition, int]:
        """The first offset at or after the time, EARLIEST or LATEST; -1 where no record is that young."""
        wanted = list(partitions)
        return self.client.retrying(lambda: self._offsets(wanted, timestamp_ms, committed))

    def offsets_since(self, partitions: Iterable[TopicPartition], timestamp_ms: int) -> dict[TopicPartition, int]:
        """As `offsets`, with the end of the partition where no record is that young."""
        found = self.offsets(partitions, timestamp_ms)
        late = [tp for tp, offset in found.items() if offset < 0]
        return {**found, **self.offsets(late, LATEST)} if late else found

    def _offsets(
        self, partitions: list[TopicPartition], timestamp_ms: int, committed: bool
    ) -> dict[TopicPartition, int]:
        by_leader: dict[int, dict[str, list[ListOffsetsPartition]]] = {}
        for tp in partitions:
            leader = self.client.leaders(tp.topic).get(tp.partition)
            if leader is None:
                check(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"partition {tp}")
                continue
            asked = ListOffsetsPartition(partition_index=tp.partition, timestamp=timestamp_ms)
            by_leader.setdefault(leader, {}).setdefault(tp.topic, []).append(asked)
        found: dict[TopicPartition, int] = {}
        for leader, topics in by_leader.items():
            request = ListOffsetsRequest(
                replica_id=-1,
                isolation_level=int(committed),
                topics=[ListOffsetsTopic(name=name, partitions=items) for name, items in topics.items()],
                timeout_ms=self.client.timeout_ms,
            )
            for topic in self.client.broker(leader).request(request, ListOffsetsResponse).topics:
                for item in topic.partitions:
                    tp = TopicPartition(topic.name, item.partition_index)
                    check(item.error_code, f"partition {tp}")
                    found[tp] = item.old_style_offsets[0] if item.old_style_offsets else item.offset
        return found


def _setting(item: DescribeConfigsResourceResult) -> TopicSetting:
    # Version 0 only says whether a value is the default; later ones say where it was set.
    overridden = item.config_source == _TOPIC_SOURCE if item.config_source != -1 else not item.is_default
    return TopicSetting(item.name, None if item.is_sensitive else item.value, overridden)
