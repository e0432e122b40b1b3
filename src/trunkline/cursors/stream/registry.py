"""Which groups there are, of which type, and how the log tells it.

A group id names one group: classic, consumer or share. An empty classic or consumer group becomes one of the other type when a
member joins with the other protocol; its offsets, which belong to the id, stay. A share group has none and stays what it is. A group with members keeps its type: there is no
migration of a live group, and the refusals are those of a Kafka whose migration policy is disabled.

The replay folds group records to the last value of each key and builds the groups when the whole log is read. A
group that cannot be read is reported and left out; its members then join again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from trunkline.cursors.stream.classic import ClassicGroup
from trunkline.cursors.stream.consumer import ConsumerGroup
from trunkline.cursors.stream.descriptions import Group
from trunkline.cursors.stream.errors import GroupError, GroupErrorName
from trunkline.cursors.stream.offsets import OffsetBook
from trunkline.cursors.stream.records import (
    ClassicKey,
    ConsumerGroupKey,
    ConsumerMemberKey,
    GroupSettingsKey,
    JsonObject,
    OffsetKey,
    ShareGroupKey,
    ShareMemberKey,
    UnreadableRecord,
    read_classic_value,
    read_json_value,
    read_key,
    read_offset_value,
)
from trunkline.cursors.stream.runtime import GroupRuntime
from trunkline.cursors.stream.share_group import ShareGroup
from trunkline.log.batch import BatchHeader, read_marker
from trunkline.log.records import iter_light
from trunkline.log.store import LogStore, TopicPartition

_LOG = logging.getLogger(__name__)


class GroupRegistry:
    def __init__(self, store: LogStore, runtime: GroupRuntime) -> None:
        self._store = store
        self._runtime = runtime
        self._groups: dict[str, Group] = {}

    def __iter__(self) -> Iterator[Group]:
        return iter(self._groups.values())

    def __len__(self) -> int:
        return len(self._groups)

    def get(self, group_id: str) -> Group | None:
        return self._groups.get(group_id)

    def ids(self) -> list[str]:
        return list(self._groups)

    # -- groups for requests -------------------------------------------------------------------------------------

    def classic_to_join(self, group_id: str) -> ClassicGroup:
        group = self._groups.get(group_id)
        if isinstance(group, ClassicGroup):
            return group
        if isinstance(group, ShareGroup):
            raise GroupError(GroupErrorName.INCONSISTENT_GROUP_PROTOCOL, f"{group_id} is a share group")
        if group is not None:
            if not group.is_empty:
                raise GroupError(GroupErrorName.INCONSISTENT_GROUP_PROTOCOL, f"{group_id} uses the consumer protocol")
            self._runtime.journal.write(group.die())
            classic = ClassicGroup(group_id, self._runtime)
            classic.generation = group.epoch  # so that no old epoch passes for a new generation
            self._groups[group_id] = classic
            return classic
        return self.simple(group_id)

    def consumer_to_join(self, group_id: str) -> ConsumerGroup:
        group = self._groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            return group
        if isinstance(group, ShareGroup):
            raise GroupError(GroupErrorName.GROUP_ID_NOT_FOUND, f"{group_id} is a share group")
        if group is None:
            self.check_room()
        elif not group.is_empty:
            raise GroupError(GroupErrorName.GROUP_ID_NOT_FOUND, f"{group_id} uses the classic protocol")
        consumer = ConsumerGroup(group_id, self._runtime, self._store.topics(), group.generation if group else 0)
        if group is not None:
            tombstones = group.die()
            if tombstones:
                self._runtime.journal.write(tombstones)
        self._groups[group_id] = consumer
        return consumer

    def simple(self, group_id: str) -> ClassicGroup:
        """A classic group without members, made when a member is about to join."""
        group = self._groups.get(group_id)
        if isinstance(group, ClassicGroup):
            return group
        assert group is None
        self.check_room()
        created = self._groups[group_id] = ClassicGroup(group_id, self._runtime)
        return created

    def share_to_join(self, group_id: str) -> ShareGroup:
        group = self._groups.get(group_id)
        if group is None:
            self.check_room()
            created = self._groups[group_id] = ShareGroup(group_id, self._runtime, self._store.topics())
            return created
        return self.share(group_id)

    def share(self, group_id: str) -> ShareGroup:
        group = self._groups.get(group_id)
        if not isinstance(group, ShareGroup):
            what = f"Share group {group_id} not found." if group is None else f"Group {group_id} is not a share group."
            raise GroupError(GroupErrorName.GROUP_ID_NOT_FOUND, what)
        return group

    def classic(self, group_id: str) -> ClassicGroup | None:
        group = self._groups.get(group_id)
        return group if isinstance(group, ClassicGroup) else None

    def consumer(self, group_id: str) -> ConsumerGroup | None:
        group = self._groups.get(group_id)
        return group if isinstance(group, ConsumerGroup) else None

    def adopt_offsets_of(self, group_id: str) -> None:
        """Offsets are there, so the group is too, however full the registry."""
        if group_id not in self._groups:
            self._groups[group_id] = ClassicGroup(group_id, self._runtime)

    def discard_unused(self, group_id: str) -> None:
        """The request that a group was made for is refused: nothing of it is in the log yet."""
        group = self._groups.get(group_id)
        if group is not None and group.is_empty:
            del self._groups[group_id]

    def drop(self, group_id: str) -> list[tuple[bytes, bytes | None]]:
        """Forget an empty group; returns the tombstones that make it so in the log."""
        return list(self._groups.pop(group_id).die())

    def check_room(self) -> None:
        limit = self._runtime.limits.max_groups
        if len(self._groups) >= limit:
            raise GroupError(GroupErrorName.GROUP_MAX_SIZE_REACHED, f"the broker holds {limit} groups, its most")

    # -- replay --------------------------------------------------------------------------------------------------

    async def replay(self, book: OffsetBook) -> None:
        fold = _Fold(book)
        settings = self._runtime.settings
        async for header, batch in self._runtime.journal.replay():
            fold.add(header, batch)
        for group_id, overrides in fold.settings.items():
            own = {name: str(value) for name, value in overrides.items()}
            try:
                settings.check(own)
            except GroupError as error:
                _LOG.error("the settings of group %s are left out: %s", group_id, error)
                continue
            settings.put(group_id, own)
        for group_id, value in fold.consumer_groups():
            group = ConsumerGroup(group_id, self._runtime, self._store.topics())
            try:
                group.restore(value, fold.members.get(group_id, {}))
            except (UnreadableRecord, GroupError) as error:
                _LOG.error("group %s is left out, its members will join again: %s", group_id, error)
                continue
            self._groups[group_id] = group
        for group_id, value in fold.share.items():
            share = ShareGroup(group_id, self._runtime, self._store.topics())
            try:
                share.restore(value, fold.share_members.get(group_id, {}))
            except UnreadableRecord as error:
                _LOG.error("share group %s is left out, its members will join again: %s", group_id, error)
                continue
            self._groups[group_id] = share
        for group_id, (data, _) in fold.classic.items():
            if group_id in self._groups:
                continue
            try:
                self._groups[group_id] = ClassicGroup.restore(group_id, self._runtime, read_classic_value(data))
            except UnreadableRecord as error:
                _LOG.error("group %s is left out, its members will join again: %s", group_id, error)
        for group_id in book.groups():
            self.adopt_offsets_of(group_id)


class _Fold:
    """The last value of each key, offsets straight into the book."""

    def __init__(self, book: OffsetBook) -> None:
        self._book = book
        self.classic: dict[str, tuple[bytes, int]] = {}
        self.consumer: dict[str, tuple[JsonObject, int]] = {}
        self.members: dict[str, dict[str, JsonObject]] = {}
        self.settings: dict[str, JsonObject] = {}
        self.share: dict[str, JsonObject] = {}
        self.share_members: dict[str, dict[str, JsonObject]] = {}

    def add(self, header: BatchHeader, batch: memoryview) -> None:
        if header.control:
            marker = read_marker(batch)
            if marker is not None:
                self._book.end_transaction(header.producer_id, commit=marker.commit)
            return
        producer_id = header.producer_id if header.transactional else None
        for offset, _, key, value, _ in iter_light(batch):
            try:
                self._add(offset, key, value, producer_id)
            except UnreadableRecord as error:
                _LOG.error("record %d of __consumer_offsets is skipped: %s", offset, error)

    def _add(self, offset: int, record_key: bytes | None, value: bytes | None, producer_id: int | None) -> None:
        if record_key is None:
            raise UnreadableRecord("no key")
        key = read_key(record_key)
        if isinstance(key, OffsetKey):
            self._add_offset(key, value, producer_id, offset)
        elif isinstance(key, ClassicKey):
            if value is None:
                self.classic.pop(key.group_id, None)
            else:
                self.classic[key.group_id] = (value, offset)
        elif isinstance(key, ConsumerGroupKey):
            if value is None:
                self.consumer.pop(key.group_id, None)
            else:
                self.consumer[key.group_id] = (read_json_value(value), offset)
        elif isinstance(key, GroupSettingsKey):
            self.settings[key.group_id] = {} if value is None else read_json_value(value)
        elif isinstance(key, ShareGroupKey):
            if value is None:
                self.share.pop(key.group_id, None)
            else:
                self.share[key.group_id] = read_json_value(value)
        elif isinstance(key, ConsumerMemberKey | ShareMemberKey):
            of_all = self.members if isinstance(key, ConsumerMemberKey) else self.share_members
            members = of_all.setdefault(key.group_id, {})
            if value is None:
                members.pop(key.member_id, None)
            else:
                members[key.member_id] = read_json_value(value)

    def _add_offset(self, key: OffsetKey, value: bytes | None, producer_id: int | None, position: int) -> None:
        tp = TopicPartition(key.topic, key.partition)
        if value is None:
            self._book.remove(key.group_id, tp, position)
        elif producer_id is not None:
            self._book.put_pending(producer_id, key.group_id, tp, read_offset_value(value), position)
        else:
            self._book.put(key.group_id, tp, read_offset_value(value), position)

    def consumer_groups(self) -> Iterator[tuple[str, JsonObject | None]]:
        """Consumer groups that no later classic record replaces."""
        for group_id, (value, position) in self.consumer.items():
            if position > self.classic.get(group_id, (b"", -1))[1]:
                yield group_id, value
