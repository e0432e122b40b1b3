"""The stream cursor: groups, their members and their committed offsets.

`GroupCoordinator` is the way in. See `classic`, `consumer` and `share_group` for the group protocols, `offsets` and `commits` for
committed offsets, `records` and `journal` for what is in the log.
"""

from trunkline.cursors.stream.assignors import ASSIGNORS, TopicIdPartition
from trunkline.cursors.stream.classic_member import (
    JoinedMember,
    JoinResult,
    LeavingMember,
    LeftMember,
    SyncResult,
)
from trunkline.cursors.stream.consumer_member import HeartbeatRequest, HeartbeatResult, by_topic
from trunkline.cursors.stream.coordinator import GroupCoordinator
from trunkline.cursors.stream.descriptions import (
    ClassicDescription,
    ClassicMemberDescription,
    ConsumerDescription,
    ConsumerMemberDescription,
    GroupListing,
    ShareDescription,
    ShareMemberDescription,
)
from trunkline.cursors.stream.errors import GroupError, GroupErrorName
from trunkline.cursors.stream.journal import OFFSETS_PARTITION, OFFSETS_TOPIC
from trunkline.cursors.stream.limits import GroupLimits
from trunkline.cursors.stream.offsets import FetchedOffset, OffsetEntry
from trunkline.cursors.stream.runtime import GroupType
from trunkline.cursors.stream.share_group import ShareHeartbeat

__all__ = [
    "ASSIGNORS",
    "OFFSETS_PARTITION",
    "OFFSETS_TOPIC",
    "ClassicDescription",
    "ClassicMemberDescription",
    "ConsumerDescription",
    "ConsumerMemberDescription",
    "FetchedOffset",
    "GroupCoordinator",
    "GroupError",
    "GroupErrorName",
    "GroupLimits",
    "GroupListing",
    "GroupType",
    "HeartbeatRequest",
    "HeartbeatResult",
    "JoinResult",
    "JoinedMember",
    "LeavingMember",
    "LeftMember",
    "OffsetEntry",
    "ShareDescription",
    "ShareHeartbeat",
    "ShareMemberDescription",
    "SyncResult",
    "TopicIdPartition",
    "by_topic",
]
