"""What the admin calls tell of a group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from trunkline.cursors.stream.classic import ClassicGroup
from trunkline.cursors.stream.classic_state import ClassicState
from trunkline.cursors.stream.consumer import ConsumerGroup
from trunkline.cursors.stream.consumer_member import Partitions
from trunkline.cursors.stream.runtime import GroupType
from trunkline.cursors.stream.share_assignor import SIMPLE
from trunkline.cursors.stream.share_group import ShareGroup


class GroupListing(NamedTuple):
    group_id: str
    protocol_type: str
    state: str
    type: GroupType


class ClassicMemberDescription(NamedTuple):
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


class ClassicDescription(NamedTuple):
    group_id: str
    state: str
    protocol_type: str
    protocol_name: str
    members: Sequence[ClassicMemberDescription]
    type: GroupType = GroupType.CLASSIC


class ConsumerMemberDescription(NamedTuple):
    member_id: str
    instance_id: str | None
    rack_id: str | None
    member_epoch: int
    client_id: str
    client_host: str
    subscribed_topic_names: Sequence[str]
    subscribed_topic_regex: str
    assignment: Partitions
    target_assignment: Partitions


class ConsumerDescription(NamedTuple):
    group_id: str
    state: str
    group_epoch: int
    assignment_epoch: int
    assignor: str
    members: Sequence[ConsumerMemberDescription]
    type: GroupType = GroupType.CONSUMER


class ShareMemberDescription(NamedTuple):
    member_id: str
    rack_id: str | None
    member_epoch: int
    client_id: str
    client_host: str
    subscribed_topic_names: Sequence[str]
    assignment: Partitions


class ShareDescription(NamedTuple):
    group_id: str
    state: str
    group_epoch: int
    assignor: str
    members: Sequence[ShareMemberDescription]
    type: GroupType = GroupType.SHARE


Group = ClassicGroup | ConsumerGroup | ShareGroup
Description = ClassicDescription | ConsumerDescription | ShareDescription


def list_one(group: Group) -> GroupListing:
    if isinstance(group, ClassicGroup):
        return GroupListing(group.group_id, group.protocol_type or "", group.state.value, GroupType.CLASSIC)
    if isinstance(group, ShareGroup):
        return GroupListing(group.group_id, "share", group.state.value, GroupType.SHARE)
    return GroupListing(group.group_id, "consumer", group.state.value, GroupType.CONSUMER)


def describe(group: Group) -> Description:
    if isinstance(group, ShareGroup):
        return _describe_share(group)
    return _describe_classic(group) if isinstance(group, ClassicGroup) else _describe_consumer(group)


def _describe_classic(group: ClassicGroup) -> ClassicDescription:
    """Protocol, metadata and assignments are told of a stable group only: before that they are about to change."""
    stable = group.state is ClassicState.STABLE
    members = [
        ClassicMemberDescription(
            member.member_id,
            member.instance_id,
            member.client_id,
            member.client_host,
            member.metadata(group.protocol_name) if stable else b"",
            member.assignment if stable else b"",
        )
        for member in group.members
    ]
    protocol_name = (group.protocol_name or "") if stable else ""
    return ClassicDescription(group.group_id, group.state.value, group.protocol_type or "", protocol_name, members)


def _describe_consumer(group: ConsumerGroup) -> ConsumerDescription:
    members = [
        ConsumerMemberDescription(
            member.member_id,
            member.instance_id,
            member.rack_id,
            member.epoch,
            member.client_id,
            member.client_host,
            sorted(member.topic_names),
            member.topic_regex,
            member.assigned,
            member.target,
        )
        for member in group.members.values()
    ]
    return ConsumerDescription(
        group.group_id, group.state.value, group.epoch, group.target_epoch, group.assignor, members
    )


def _describe_share(group: ShareGroup) -> ShareDescription:
    members = [
        ShareMemberDescription(
            member.member_id,
            member.rack_id,
            member.epoch,
            member.client_id,
            member.client_host,
            sorted(member.topic_names),
            member.assigned,
        )
        for member in group.members.values()
    ]
    return ShareDescription(group.group_id, group.state.value, group.epoch, SIMPLE, members)
