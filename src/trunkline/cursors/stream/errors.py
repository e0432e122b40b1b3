"""What a group refuses, by Kafka's names. The protocol layer maps each name to its own code.

`GroupErrorName` is the whole list. A refusal of a whole request is a raised `GroupError`; a refusal of one entry among
several (a partition of a commit, a member of a leave) is a `GroupErrorName` in that entry's result, `None` meaning done.
"""

from __future__ import annotations

from enum import StrEnum


class GroupErrorName(StrEnum):
    COORDINATOR_LOAD_IN_PROGRESS = "COORDINATOR_LOAD_IN_PROGRESS"
    COORDINATOR_NOT_AVAILABLE = "COORDINATOR_NOT_AVAILABLE"
    FENCED_INSTANCE_ID = "FENCED_INSTANCE_ID"
    FENCED_MEMBER_EPOCH = "FENCED_MEMBER_EPOCH"
    GROUP_ID_NOT_FOUND = "GROUP_ID_NOT_FOUND"
    GROUP_MAX_SIZE_REACHED = "GROUP_MAX_SIZE_REACHED"
    GROUP_SUBSCRIBED_TO_TOPIC = "GROUP_SUBSCRIBED_TO_TOPIC"
    ILLEGAL_GENERATION = "ILLEGAL_GENERATION"
    INCONSISTENT_GROUP_PROTOCOL = "INCONSISTENT_GROUP_PROTOCOL"
    INVALID_CONFIG = "INVALID_CONFIG"
    INVALID_COMMIT_OFFSET_SIZE = "INVALID_COMMIT_OFFSET_SIZE"
    INVALID_GROUP_ID = "INVALID_GROUP_ID"
    INVALID_PRODUCER_EPOCH = "INVALID_PRODUCER_EPOCH"
    INVALID_REGULAR_EXPRESSION = "INVALID_REGULAR_EXPRESSION"
    INVALID_REQUEST = "INVALID_REQUEST"
    INVALID_SESSION_TIMEOUT = "INVALID_SESSION_TIMEOUT"
    MEMBER_ID_REQUIRED = "MEMBER_ID_REQUIRED"
    NON_EMPTY_GROUP = "NON_EMPTY_GROUP"
    OFFSET_METADATA_TOO_LARGE = "OFFSET_METADATA_TOO_LARGE"
    REBALANCE_IN_PROGRESS = "REBALANCE_IN_PROGRESS"
    STALE_MEMBER_EPOCH = "STALE_MEMBER_EPOCH"
    UNKNOWN_MEMBER_ID = "UNKNOWN_MEMBER_ID"
    UNKNOWN_TOPIC_OR_PARTITION = "UNKNOWN_TOPIC_OR_PARTITION"
    UNRELEASED_INSTANCE_ID = "UNRELEASED_INSTANCE_ID"
    UNSTABLE_OFFSET_COMMIT = "UNSTABLE_OFFSET_COMMIT"
    UNSUPPORTED_ASSIGNOR = "UNSUPPORTED_ASSIGNOR"


class GroupError(Exception):
    """A refused request. `member_id` is the id that MEMBER_ID_REQUIRED asks the client to come back with."""

    def __init__(self, name: GroupErrorName, message: str = "", *, member_id: str = "") -> None:
        super().__init__(message or name.value)
        self.name = name
        self.code_name = name.value
        self.message = message
        self.member_id = member_id
