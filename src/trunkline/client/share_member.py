"""A member of a share group (KIP-932), over one connection: it joins, locks records and says what became of them.

It tells which offsets it was given and hands on the batches as they came: opening them is the caller's matter. Nothing happens
behind the caller's back: who holds records for long, or waits long between fetches, sends heartbeats in between. After a
failure the connection is of no use, and what was held comes to others; with the same id another `ShareMember` takes this
one's place in the group.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from trunkline.client.connection import KafkaConnection, Submitted
from trunkline.client.errors import check
from trunkline.log.buffer import Buffer
from trunkline.protocols.kafka.errors import ErrorCode
from trunkline.protocols.kafka.messages import share_acknowledge as acknowledging
from trunkline.protocols.kafka.messages import share_fetch as fetching
from trunkline.protocols.kafka.messages import share_group_heartbeat as heartbeat
from trunkline.protocols.kafka.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse

ACCEPT, RELEASE, REJECT, RENEW = 1, 2, 3, 4
MAX_RECORDS = 500
MAX_BYTES = 50 << 20
MAX_WAIT_MS = 500
_LEAVING = -1
_RETRIED = frozenset(
    {ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR}
)


class Place(NamedTuple):
    topic_id: UUID
    partition: int


class Locked(NamedTuple):
    """Offsets that the member holds now, and how often they were delivered."""

    place: Place
    first: int
    last: int
    deliveries: int

    @property
    def record_count(self) -> int:
        return self.last - self.first + 1


class Settled(NamedTuple):
    """Offsets, and what became of them."""

    first: int
    last: int
    kind: int


Said = Mapping[Place, Sequence[Settled]]


class ShareMember:
    def __init__(
        self, connection: KafkaConnection, group: str, topics: Iterable[str], member_id: str | None = None
    ) -> None:
        self.connection = connection
        self.group = group
        self.member_id = member_id or secrets.token_hex(11)
        self.epoch = 0
        self.assigned: list[Place] = []
        self.records: dict[Place, Buffer] = {}  # the batches of the last fetch
        self._topics = list(topics)
        self._session_epoch = 0
        self._reads: set[Place] = set()  # what the session has

    def heartbeat(self) -> bool:
        """Join, or stay in the group and hear what to read. False when there is no coordinator yet: try again."""
        request = heartbeat.ShareGroupHeartbeatRequest(
            group_id=self.group,
            member_id=self.member_id,
            member_epoch=self.epoch,
            subscribed_topic_names=self._topics if self.epoch == 0 else None,
        )
        answer = self.connection.request(request, heartbeat.ShareGroupHeartbeatResponse)
        if answer.error_code in _RETRIED:
            # Asked for the coordinator, Apache Kafka makes the topics that it needs.
            find = FindCoordinatorRequest(key=self.group, coordinator_keys=[self.group])
            self.connection.request(find, FindCoordinatorResponse)
            return False
        check(answer.error_code, f"group {self.group}", answer.error_message)
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            topics = answer.assignment.topic_partitions
            self.assigned = [Place(topic.topic_id, part) for topic in topics for part in topic.partitions]
        return True

    def fetch(
        self, said: Said | None = None, *, max_records: int = MAX_RECORDS, max_wait_ms: int = MAX_WAIT_MS
    ) -> list[Locked]:
        """Lock records of the partitions that are assigned, after saying what became of those before."""
        return self.collect(self.submit(said, max_records=max_records, max_wait_ms=max_wait_ms))

    def submit(
        self, said: Said | None = None, *, max_records: int = MAX_RECORDS, max_wait_ms: int = MAX_WAIT_MS
    ) -> Submitted:
        """Send a fetch without waiting for its answer, which is to be collected before anything else is asked."""
        said = said or {}
        wanted = set(self.assigned)
        named = (wanted - self._reads) | said.keys()
        topics: dict[UUID, fetching.FetchTopic] = {}
        for place in named:
            batches = [
                fetching.AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=[kind])
                for first, last, kind in said.get(place, ())
            ]
            part = fetching.FetchPartition(partition_index=place.partition, acknowledgement_batches=batches)
            topics.setdefault(place.topic_id, fetching.FetchTopic(topic_id=place.topic_id)).partitions.append(part)
        forgotten: dict[UUID, fetching.ForgottenTopic] = {}
        for place in (self._reads | named) - wanted:
            topic = forgotten.setdefault(place.topic_id, fetching.ForgottenTopic(topic_id=place.topic_id))
            topic.partitions.append(place.partition)
        request = fetching.ShareFetchRequest(
            group_id=self.group,
            member_id=self.member_id,
            share_session_epoch=self._session_epoch,
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            max_bytes=MAX_BYTES,
            max_records=max_records,
            batch_size=max_records,
            topics=list(topics.values()),
            forgotten_topics_data=list(forgotten.values()),
        )
        self._reads = wanted
        return self.connection.submit(request)

    def collect(self, submitted: Submitted) -> list[Locked]:
        """The answer to a fetch that was sent."""
        response = self.connection.collect(submitted, fetching.ShareFetchResponse)
        check(response.error_code, "share fetch", response.error_message)
        self._session_epoch += 1
        taken: list[Locked] = []
        self.records = {}
        for topic in response.responses:
            for data in topic.partitions:
                place = Place(topic.topic_id, data.partition_index)
                check(data.error_code, f"share fetch of partition {place.partition}", data.error_message)
                check(data.acknowledge_error_code, "acknowledgement", data.acknowledge_error_message)
                if data.acquired_records:
                    self.records[place] = data.records or b""
                taken += [
                    Locked(place, each.first_offset, each.last_offset, each.delivery_count)
                    for each in data.acquired_records
                ]
        return taken

    def acknowledge(self, said: Said, *, closing: bool = False) -> None:
        """Say what became of records; answered when that is kept. With `closing` the session ends, too."""
        topics: dict[UUID, acknowledging.AcknowledgeTopic] = {}
        for place, settled in said.items():
            batches = [
                acknowledging.AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=[kind])
                for first, last, kind in settled
            ]
            part = acknowledging.AcknowledgePartition(partition_index=place.partition, acknowledgement_batches=batches)
            topic = topics.setdefault(place.topic_id, acknowledging.AcknowledgeTopic(topic_id=place.topic_id))
            topic.partitions.append(part)
        request = acknowledging.ShareAcknowledgeRequest(
            group_id=self.group,
            member_id=self.member_id,
            share_session_epoch=_LEAVING if closing else self._session_epoch,
            is_renew_ack=any(each.kind == RENEW for settled in said.values() for each in settled),
            topics=list(topics.values()),
        )
        response = self.connection.request(request, acknowledging.ShareAcknowledgeResponse)
        check(response.error_code, "acknowledgement", response.error_message)
        self._session_epoch = 0 if closing else self._session_epoch + 1
        if closing:
            self._reads = set()
        for answer in response.responses:
            for data in answer.partitions:
                check(data.error_code, "acknowledgement", data.error_message)

    def leave(self) -> None:
        """Leave the group; what is held is given back."""
        if self._session_epoch:
            self.acknowledge({}, closing=True)
        request = heartbeat.ShareGroupHeartbeatRequest(
            group_id=self.group, member_id=self.member_id, member_epoch=_LEAVING
        )
        answer = self.connection.request(request, heartbeat.ShareGroupHeartbeatResponse)
        check(answer.error_code, f"group {self.group}", answer.error_message)


def accepting(locked: Iterable[Locked], kind: int = ACCEPT) -> dict[Place, list[Settled]]:
    """That all of these are accepted, or what else became of them."""
    said: dict[Place, list[Settled]] = {}
    for place, first, last, _ in locked:
        said.setdefault(place, []).append(Settled(first, last, kind))
    return said
