"""Names: which ones a topic may have, and which are the broker's own."""

from __future__ import annotations

import re

from trunkline.log.errors import InvalidTopicName

MAX_TOPIC_NAME_LENGTH = 249
_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]+")
TOPOLOGY_TOPIC = "__topology"
SHARE_STATE_TOPIC = "__share_group_state"
AUDIT_TOPIC = "__audit"
# Internal topics. All but the audit trail are compacted: the broker's memory is their fold. What clients may do with them, the broker's guard says.
RESERVED_TOPICS = frozenset(
    {
        TOPOLOGY_TOPIC,
        AUDIT_TOPIC,
        "__consumer_offsets",
        "__transaction_state",
        "__queue_state",
        "__sessions",
        "__retained",
        SHARE_STATE_TOPIC,
    }
)
# Those that everybody may read, because an Apache Kafka has them too under these names. A new internal topic is nobody's
# business until it is named here.
READABLE_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", SHARE_STATE_TOPIC})


def folded(name: str) -> str:
    """What two names must not share: metrics are named after topics, with '_' for '.'."""
    return name.replace(".", "_")


def check_topic_name(name: str) -> None:
    """Kafka's rules: they keep names usable as directories."""
    if not name:
        raise InvalidTopicName("the topic name is empty")
    if name in (".", ".."):
        raise InvalidTopicName(f"the topic name cannot be {name!r}")
    if len(name) > MAX_TOPIC_NAME_LENGTH:
        raise InvalidTopicName(
            f"the topic name has {len(name)} characters; at most {MAX_TOPIC_NAME_LENGTH} are allowed"
        )
    if not _LEGAL_NAME.fullmatch(name):
        raise InvalidTopicName(
            f"topic name {name!r} has a character other than ASCII letters, digits, '.', '_' and '-'"
        )
