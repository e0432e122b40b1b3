"""Share groups (KIP-932) seen from outside: where they stand, and moving them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from trunkline.client.client import Client
from trunkline.client.errors import check
from trunkline.log.store import TopicPartition
from trunkline.protocols.kafka.messages import alter_share_group_offsets as alter
from trunkline.protocols.kafka.messages import describe_share_group_offsets as offsets

SHARE = "share"


class Standing(NamedTuple):
    """The first record that is not done with, and how many of them there are; -1 where a broker does not say."""

    start_offset: int
    lag: int


class ShareGroups:
    def __init__(self, client: Client) -> None:
        self.client = client

    def standings(self, name: str) -> dict[TopicPartition, Standing]:
        """Of every partition of which the group has had records."""
        return self.client.retrying(lambda: self._standings(name))

    def _standings(self, name: str) -> dict[TopicPartition, Standing]:
        asked = offsets.DescribeShareGroupOffsetsRequestGroup(group_id=name, topics=None)
        request = offsets.DescribeShareGroupOffsetsRequest(groups=[asked])
        response = self.client.coordinator(name).request(request, offsets.DescribeShareGroupOffsetsResponse)
        found: dict[TopicPartition, Standing] = {}
        for group in response.groups:
            check(group.error_code, f"group {name}", group.error_message)
            for topic in group.topics:
                for part in topic.partitions:
                    check(part.error_code, f"group {name}, partition {topic.topic_name}-{part.partition_index}")
                    tp = TopicPartition(topic.topic_name, part.partition_index)
                    found[tp] = Standing(part.start_offset, part.lag)
        return {tp: standing for tp, standing in found.items() if standing.start_offset >= 0}

    def move(self, name: str, starts: Mapping[TopicPartition, int]) -> None:
        """Begin at other offsets. The group must have no members."""
        if starts:
            self.client.retrying(lambda: self._move(name, starts))

    def _move(self, name: str, starts: Mapping[TopicPartition, int]) -> None:
        topics: dict[str, alter.AlterShareGroupOffsetsRequestTopic] = {}
        for tp, offset in starts.items():
            topic = topics.setdefault(tp.topic, alter.AlterShareGroupOffsetsRequestTopic(topic_name=tp.topic))
            topic.partitions.append(
                alter.AlterShareGroupOffsetsRequestPartition(partition_index=tp.partition, start_offset=offset)
            )
        request = alter.AlterShareGroupOffsetsRequest(group_id=name, topics=list(topics.values()))
        response = self.client.coordinator(name).request(request, alter.AlterShareGroupOffsetsResponse)
        check(response.error_code, f"group {name}", response.error_message)
        for answer in response.responses:
            for result in answer.partitions:
                check(result.error_code, f"group {name}, partition {answer.topic_name}-{result.partition_index}")
