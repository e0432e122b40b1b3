"""What went wrong between us and a broker, in Kafka's word for it, with a sentence on what to do.

`ClientError.name` is Kafka's error name (`UNKNOWN_TOPIC_OR_PARTITION`) or one of those that never cross the wire:
`CONNECTION_FAILED` (no broker was ever reached), `DISCONNECTED` (one was, and is gone), `TIMED_OUT`, `REFUSED` (by a
broker whose protocol has no name for it), `NOT_LET_IN` (one of the two does not believe the other: a password, a certificate)
and `OTHER_PROTOCOL` (what listens there is something else).
"""

from __future__ import annotations

from trunkline.protocols.kafka.errors import ErrorCode

CONNECTION_FAILED = "CONNECTION_FAILED"
DISCONNECTED = "DISCONNECTED"
TIMED_OUT = "TIMED_OUT"
BLOCKED = "BLOCKED"
REFUSED = "REFUSED"
OTHER_PROTOCOL = "OTHER_PROTOCOL"
NOT_LET_IN = "NOT_LET_IN"

RETRIABLE = frozenset(
    {
        DISCONNECTED,
        "LEADER_NOT_AVAILABLE",
        "NOT_LEADER_OR_FOLLOWER",
        "BROKER_NOT_AVAILABLE",
        "REPLICA_NOT_AVAILABLE",
        "NETWORK_EXCEPTION",
        "REQUEST_TIMED_OUT",
        "COORDINATOR_LOAD_IN_PROGRESS",
        "COORDINATOR_NOT_AVAILABLE",
        "NOT_COORDINATOR",
        "NOT_CONTROLLER",
        "NOT_ENOUGH_REPLICAS",
        "OFFSET_NOT_AVAILABLE",
        "FENCED_LEADER_EPOCH",
        "UNKNOWN_LEADER_EPOCH",
        "UNSTABLE_OFFSET_COMMIT",
        "CONCURRENT_TRANSACTIONS",
    }
)
"""Names after which asking again, with fresh metadata, may succeed."""

_MEANING = {
    "UNKNOWN_TOPIC_OR_PARTITION": "there is no such topic or partition",
    "UNKNOWN_TOPIC_ID": "the topic was deleted in the meantime",
    "TOPIC_ALREADY_EXISTS": "the topic exists already",
    "INVALID_TOPIC_EXCEPTION": "the topic name is not allowed",
    "INVALID_PARTITIONS": "the number of partitions is not allowed",
    "INVALID_REPLICATION_FACTOR": "there are not enough brokers for that many replicas",
    "INVALID_CONFIG": "the broker does not take this setting",
    "MESSAGE_TOO_LARGE": "the record is larger than the topic allows",
    "OFFSET_OUT_OF_RANGE": "the offset is before the start or past the end of the partition",
    "NON_EMPTY_GROUP": "the group still has members",
    "GROUP_ID_NOT_FOUND": "there is no such group, or it uses the other group protocol",
    "INVALID_GROUP_ID": "the group name is not allowed",
    "GROUP_SUBSCRIBED_TO_TOPIC": "the group is subscribed to the topic",
    "GROUP_MAX_SIZE_REACHED": "the group has as many members as it may have",
    "INCONSISTENT_GROUP_PROTOCOL": "the group's members use another protocol",
    "UNKNOWN_MEMBER_ID": "the group has members, so its offsets cannot be changed from outside",
    "KAFKA_STORAGE_ERROR": "the broker could not use its disk",
    "INVALID_RECORD": "the topic does not take this record",
    "INVALID_TIMESTAMP": "the record's timestamp is outside of what the topic allows",
    "UNSUPPORTED_VERSION": "the broker does not support this request",
    "TOPIC_AUTHORIZATION_FAILED": "not allowed to use this topic",
    "GROUP_AUTHORIZATION_FAILED": "not allowed to use this group",
    "PRODUCER_FENCED": "another producer has taken over this transactional id",
    "INVALID_PRODUCER_EPOCH": "another producer has taken over this transactional id",
    "INVALID_TXN_STATE": "the transaction has ended already, perhaps because it took longer than its time-out",
    "CLUSTER_AUTHORIZATION_FAILED": "not allowed to do this on this cluster",
}

_HINT = {
    "UNKNOWN_TOPIC_OR_PARTITION": "`trunkline topic list` shows what there is; `trunkline topic create` makes one",
    "TOPIC_ALREADY_EXISTS": "add --if-not-exists to accept that",
    "INVALID_TOPIC_EXCEPTION": "use 1 to 249 letters, digits, dots, dashes and underscores; the broker's own topics cannot be changed",
    "INVALID_PARTITIONS": "a topic has at least one partition, and can only grow",
    "INVALID_CONFIG": "`trunkline topic describe NAME --all` shows the names and values of all settings",
    "MESSAGE_TOO_LARGE": "raise the topic's max.message.bytes with `trunkline topic alter --config`",
    "OFFSET_OUT_OF_RANGE": "`trunkline topic describe` shows the first and last offset of each partition",
    "NON_EMPTY_GROUP": "stop its consumers first; `trunkline group describe` shows them",
    "UNKNOWN_MEMBER_ID": "stop its consumers first; `trunkline group describe` shows them",
    "GROUP_ID_NOT_FOUND": "`trunkline group list` shows what there is",
    "GROUP_SUBSCRIBED_TO_TOPIC": "stop its consumers first",
    "INCONSISTENT_GROUP_PROTOCOL": "use another group, or stop its other consumers first",
    "KAFKA_STORAGE_ERROR": "the broker's disk is full or failing; its log names the file and the cause",
    "INVALID_RECORD": "a compacted topic needs a key on every record: see --key-separator",
    "UNSUPPORTED_VERSION": "use a newer broker",
    CONNECTION_FAILED: "start a broker with `trunkline serve`, or name one with --bootstrap HOST:PORT",
    DISCONNECTED: "see whether the broker is still up",
    BLOCKED: "make room on the broker's disk (see min_free_bytes) and publish again: the message was not confirmed",
    TIMED_OUT: "the broker may be overloaded; try again, or with a longer --request-timeout",
}


class ClientError(Exception):
    """A request that did not succeed. `str()` is one line for a person; `hint` says what to do, or is empty."""

    def __init__(self, name: str, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.name = name
        self.hint = _HINT.get(name, "") if hint is None else hint

    def in_handshake(self, protocol: str, option: str) -> ClientError:
        """The same of a connection that never came to be: perhaps something else listens there."""
        if self.name not in {DISCONNECTED, TIMED_OUT, OTHER_PROTOCOL}:
            return self
        return ClientError(self.name, str(self), f"is it {protocol} listener? name one with {option}")

    @property
    def retriable(self) -> bool:
        return self.name in RETRIABLE


def error_name(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"ERROR_{code}"


def refusal(code: int, subject: str, detail: str | None = None) -> ClientError:
    """The error for a code that a broker answered with; `subject` is what was asked about ("topic orders")."""
    name = error_name(code)
    meaning = detail or _MEANING.get(name) or name.lower().replace("_", " ")
    return ClientError(name, f"{subject}: {meaning.rstrip('.')} ({name})")


def check(code: int, subject: str, detail: str | None = None) -> None:
    """Raise unless the code says that all went well."""
    if code != ErrorCode.NONE:
        raise refusal(code, subject, detail)
