"""The guard: what clients may do to the topics that are the broker's own, whatever protocol they ask in.

Everything that takes a topic's name from a client asks here, by the operation that it stands for. The parts of the broker
whose memory such a topic is (groups, transactions, queues, topology, sessions) go to the store itself.

- Nobody changes a reserved topic: its records are the broker's memory, and its settings decide what is kept of it.
- `READABLE_TOPICS` can be read and described by everybody, as in Kafka.
- The other reserved topics hold what is not everybody's: password hashes, others' sessions and messages. Only an
  administrator reads or describes them; to others they do not exist.
- Other names that begin with two underscores are not reserved, as in Kafka.

Who may look, and everything about other topics, is decided by `access`; this is what it and all changes of topics stand on.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from trunkline.log.errors import LogError
from trunkline.log.names import READABLE_TOPICS, RESERVED_TOPICS


class Operation(IntEnum):
    DESCRIBE = 0
    READ = 1
    WRITE = 2
    CREATE = 3
    DELETE = 4
    GROW = 5
    CONFIGURE = 6
    TRIM = 7
    OPEN_AS_QUEUE = 8


_SHOWN: Final = {
    Operation.DESCRIBE: "described",
    Operation.READ: "read",
    Operation.WRITE: "written to",
    Operation.CREATE: "created",
    Operation.DELETE: "deleted",
    Operation.GROW: "given more partitions",
    Operation.CONFIGURE: "given other settings",
    Operation.TRIM: "trimmed",
    Operation.OPEN_AS_QUEUE: "a queue",
}
_LOOKING: Final = frozenset({Operation.DESCRIBE, Operation.READ})
_PRIVATE: Final = RESERVED_TOPICS - READABLE_TOPICS
_NOTHING: Final[frozenset[str]] = frozenset()


class TopicForbidden(LogError):
    """A client may not do this to this topic. `name` is Kafka's: whether nobody may, or only this client may not."""

    def __init__(self, operation: Operation, topic: str) -> None:
        looking = operation in _LOOKING
        whose = "for administrators" if looking else "the broker's own"
        super().__init__(f"topic {topic} is {whose}: it cannot be {_SHOWN[operation]}")
        self.name = "TOPIC_AUTHORIZATION_FAILED" if looking else "INVALID_TOPIC_EXCEPTION"


class TrimForbidden(LogError):
    """Records of a topic that is only compacted are not removed from its front. `name` is Kafka's."""

    name = "POLICY_VIOLATION"

    def __init__(self, topic: str) -> None:
        super().__init__(f"topic {topic} is only compacted: its records cannot be removed from the front")


def refused(operation: Operation, *, administrator: bool = False) -> frozenset[str]:
    """The topics that this operation is refused for; for callers that look at many topics in one request."""
    if operation not in _LOOKING:
        return RESERVED_TOPICS
    return _NOTHING if administrator else _PRIVATE


def check(operation: Operation, topic: str, *, administrator: bool = False) -> None:
    """Raise TopicForbidden unless a client may do this."""
    if topic in refused(operation, administrator=administrator):
        raise TopicForbidden(operation, topic)
