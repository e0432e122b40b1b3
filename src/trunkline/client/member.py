"""A member of a consumer group, by the consumer protocol (KIP-848): the broker divides the partitions.

    with Member(client, "billing", ["orders"]) as member:
        for item in member.poll():
            handle(item)

The rules it keeps:

- It owns what it has told the broker it owns. A partition that is taken away is committed and given up first, then the
  next heartbeat says so, and only then may the broker hand it to another member.
- A record counts as handled when the caller asks for the one after it, or calls `mark`. Only handled records are
  committed: every `commit_interval_ms`, when partitions are taken away, and on `close`, which also leaves the group.
- When the broker no longer knows the member (it did not heartbeat within the session timeout), everything is given up
  without a commit and the member joins again; records since the last commit then come once more.

Heartbeats are sent from `poll`, so a caller that handles one record for longer than the session timeout is removed from
the group. Brokers without the consumer protocol (Apache Kafka before 4.0) are refused with UNSUPPORTED_VERSION.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Self

from trunkline.client.client import Client
from trunkline.client.errors import ClientError, check
from trunkline.client.groups import Groups
from trunkline.client.reader import Reader, ReadRecord
from trunkline.client.topics import EARLIEST, Topics
from trunkline.log.store import TopicPartition
from trunkline.protocols.kafka.errors import ErrorCode
from trunkline.protocols.kafka.messages.consumer_group_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)

DEFAULT_REBALANCE_TIMEOUT_MS = 60_000
DEFAULT_COMMIT_INTERVAL_MS = 5_000
_JOIN_EPOCH = 0
_LEAVE_EPOCH = -1
_FENCED = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH})
_STALE = frozenset({ErrorCode.UNKNOWN_MEMBER_ID.name, ErrorCode.FENCED_MEMBER_EPOCH.name, "STALE_MEMBER_EPOCH"})


class Member:
    def __init__(
        self,
        client: Client,
        group: str,
        topics: Sequence[str],
        *,
        start_at: int = EARLIEST,
        committed: bool = False,
        commit_interval_ms: int = DEFAULT_COMMIT_INTERVAL_MS,
    ) -> None:
        """`start_at` (EARLIEST, LATEST or a time) is where partitions without a committed offset begin."""
        self.client = client
        self.group = group
        self.topics = list(topics)
        self.start_at = start_at
        self.commit_interval_ms = commit_interval_ms
        self.member_id = secrets.token_urlsafe(16)
        self.epoch = _JOIN_EPOCH
        self.reader = Reader(client, {}, committed=committed)
        self._groups = Groups(client)
        self._handled: dict[TopicPartition, int] = {}
        self._stored: dict[TopicPartition, int] = {}
        self._heartbeat_due_ms = 0.0
        self._commit_due_ms = 0.0
        self._acknowledge = False
        self._names = {client.topic(name).id: name for name in self.topics}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @property
    def owned(self) -> set[TopicPartition]:
        return set(self.reader.positions)

    def poll(self, max_wait_ms: int = 500) -> Iterator[ReadRecord]:
        """Heartbeat if it is time, then one round of fetches."""
        now_ms = self.client.clock.monotonic_ms()
        if now_ms >= self._heartbeat_due_ms:
            self._heartbeat()
        if now_ms >= self._commit_due_ms:
            self.commit()
            self._commit_due_ms = now_ms + self.commit_interval_ms
        if not self.reader.positions:
            self.client.pause(max(0.0, min(max_wait_ms, self._heartbeat_due_ms - now_ms)))
            return
        for item in self.reader.poll(max_wait_ms):
            yield item
            self.mark(item)
        # Everything that was fetched is handled, and so is what was skipped: control batches, aborted records.
        self._handled.update(self.reader.positions)

    def fetch(self, max_wait_ms: int) -> list[ReadRecord]:
        """The same for a caller who commits by himself (see `note_committed`): nothing that it gives counts as handled."""
        self.beat()
        if not self.reader.positions:
            self.client.pause(min(max_wait_ms, 100))
            return []
        return list(self.reader.poll(max_wait_ms))

    def beat(self) -> None:
        """Heartbeat, if it is time."""
        if self.client.clock.monotonic_ms() >= self._heartbeat_due_ms:
            self._heartbeat()

    def note_committed(self, partition: TopicPartition, offset: int) -> None:
        """Somebody has committed this in the member's name."""
        self._handled[partition] = self._stored[partition] = offset

    def mark(self, item: ReadRecord) -> None:
        """This record is handled, and those before it on its partition."""
        self._handled[item.partition] = item.record.offset + 1

    def commit(self) -> None:
        """Store the offsets of what is handled."""
        news = {tp: offset for tp, offset in self._handled.items() if self._stored.get(tp) != offset}
        if not news:
            return
        try:
            self._groups.commit(self.group, news, member_id=self.member_id, generation=self.epoch)
        except ClientError as error:
            if error.name not in _STALE:
                raise
            self._heartbeat_due_ms = 0.0  # the next heartbeat finds out where we stand
            return
        self._stored.update(news)

    def close(self) -> None:
        """Commit and leave. A broker that is gone finds out by the session timeout."""
        if self.epoch == _JOIN_EPOCH:
            return
        try:
            self.commit()
            self._ask(
                ConsumerGroupHeartbeatRequest(group_id=self.group, member_id=self.member_id, member_epoch=_LEAVE_EPOCH)
            )
        finally:
            self.epoch = _JOIN_EPOCH

    def _ask(self, request: ConsumerGroupHeartbeatRequest) -> ConsumerGroupHeartbeatResponse:
        return self.client.coordinator(self.group).request(request, ConsumerGroupHeartbeatResponse)

    def _heartbeat(self) -> None:
        response = self.client.retrying(self._beat)
        if response.error_code in _FENCED and self.epoch != _JOIN_EPOCH:
            self._start_over()
            response = self.client.retrying(self._beat)
        check(response.error_code, f"group {self.group}", response.error_message)
        self.member_id = response.member_id or self.member_id
        self.epoch = response.member_epoch
        self._acknowledge = False
        if response.assignment is not None:
            self._reconcile(response.assignment)
        # A changed assignment is acknowledged at once: another member may be waiting for what we gave up.
        interval_ms = 0 if self._acknowledge else response.heartbeat_interval_ms
        self._heartbeat_due_ms = self.client.clock.monotonic_ms() + interval_ms

    def _beat(self) -> ConsumerGroupHeartbeatResponse:
        joining = self.epoch == _JOIN_EPOCH
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.group,
            member_id=self.member_id,
            member_epoch=self.epoch,
            rebalance_timeout_ms=DEFAULT_REBALANCE_TIMEOUT_MS if joining else -1,
            subscribed_topic_names=self.topics if joining else None,
            topic_partitions=self._owned_by_id() if joining or self._acknowledge else None,
        )
        response = self._ask(request)
        if response.error_code not in _FENCED:
            check(response.error_code, f"group {self.group}", response.error_message)
        return response

    def _owned_by_id(self) -> list[TopicPartitions]:
        ids = {name: topic_id for topic_id, name in self._names.items()}
        found: dict[str, list[int]] = {}
        for tp in sorted(self.owned):
            found.setdefault(tp.topic, []).append(tp.partition)
        return [TopicPartitions(topic_id=ids[name], partitions=items) for name, items in found.items()]

    def _start_over(self) -> None:
        self.epoch = _JOIN_EPOCH
        self.reader.positions.clear()
        self._handled.clear()
        self._stored.clear()

    def _reconcile(self, assignment: Assignment) -> None:
        target: set[TopicPartition] = set()
        for topic in assignment.topic_partitions:
            if topic.topic_id not in self._names:
                # A subscribed topic was deleted and created again since we looked.
                self.client.forget()
                self._names |= {self.client.topic(name).id: name for name in self.topics}
            name = self._names.get(topic.topic_id)
            if name is not None:
                target |= {TopicPartition(name, partition) for partition in topic.partitions}
        owned = self.owned
        if target == owned:
            return
        self._acknowledge = True
        self._give_up(owned - target)
        self._take_on(target - owned)

    def _give_up(self, partitions: set[TopicPartition]) -> None:
        if partitions:
            self.commit()
        for tp in partitions:
            del self.reader.positions[tp]
            self._handled.pop(tp, None)
            self._stored.pop(tp, None)

    def _take_on(self, partitions: set[TopicPartition]) -> None:
        if not partitions:
            return
        stored = self._groups.committed(self.group, member_id=self.member_id, member_epoch=self.epoch)
        fresh = sorted(partitions - stored.keys())
        begin = Topics(self.client).offsets_since(fresh, self.start_at) if fresh else {}
        for tp in sorted(partitions):
            position = stored[tp] if tp in stored else begin[tp]
            self.reader.positions[tp] = position
            # Committed even if no record is read: the next member must not begin somewhere else.
            self._handled[tp] = position
            if tp in stored:
                self._stored[tp] = position
