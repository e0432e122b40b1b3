"""One function per API: a decoded request in, a response out. This table is what the broker serves and advertises.

Handlers are grouped by what they are about. They hold no state: that is in the broker, or in the fetch sessions. A module
is imported when one of its APIs is first asked for: the message classes of all APIs together take longer to import than
a broker takes to start.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import cache
from importlib import import_module
from typing import Any, cast

from trunkline.protocols.kafka.apis import ApiKey, Response
from trunkline.protocols.kafka.context import Context

# The table maps each key to the handler of that key's request type, which the type system cannot say.
Handler = Callable[[Context, Any], Coroutine[object, object, Response | None]]

# API key -> module here, function in it.
_TABLE: dict[int, tuple[str, str]] = {
    ApiKey.PRODUCE: ("produce", "produce"),
    ApiKey.FETCH: ("fetch", "fetch"),
    ApiKey.LIST_OFFSETS: ("offsets", "list_offsets"),
    ApiKey.DELETE_RECORDS: ("offsets", "delete_records"),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: ("offsets", "offset_for_leader_epoch"),
    ApiKey.METADATA: ("topics", "metadata"),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: ("topics", "describe_topic_partitions"),
    ApiKey.CREATE_TOPICS: ("topics", "create_topics"),
    ApiKey.DELETE_TOPICS: ("topics", "delete_topics"),
    ApiKey.CREATE_PARTITIONS: ("topics", "create_partitions"),
    ApiKey.DESCRIBE_CONFIGS: ("configs", "describe_configs"),
    ApiKey.ALTER_CONFIGS: ("configs", "alter_configs"),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: ("configs", "incremental_alter_configs"),
    ApiKey.LIST_CONFIG_RESOURCES: ("configs", "list_config_resources"),
    ApiKey.API_VERSIONS: ("api_versions", "api_versions"),
    ApiKey.SASL_HANDSHAKE: ("logins", "sasl_handshake"),
    ApiKey.SASL_AUTHENTICATE: ("logins", "sasl_authenticate"),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: ("scram_users", "describe_user_scram_credentials"),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: ("scram_users", "alter_user_scram_credentials"),
    ApiKey.FIND_COORDINATOR: ("cluster", "find_coordinator"),
    ApiKey.DESCRIBE_CLUSTER: ("cluster", "describe_cluster"),
    ApiKey.DESCRIBE_LOG_DIRS: ("cluster", "describe_log_dirs"),
    ApiKey.ALTER_REPLICA_LOG_DIRS: ("cluster", "alter_replica_log_dirs"),
    ApiKey.DESCRIBE_QUORUM: ("cluster", "describe_quorum"),
    ApiKey.UPDATE_FEATURES: ("cluster", "update_features"),
    ApiKey.DESCRIBE_PRODUCERS: ("cluster", "describe_producers"),
    ApiKey.ELECT_LEADERS: ("cluster", "elect_leaders"),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: ("cluster", "list_partition_reassignments"),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: ("cluster", "alter_partition_reassignments"),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: ("quotas", "describe_client_quotas"),
    ApiKey.ALTER_CLIENT_QUOTAS: ("quotas", "alter_client_quotas"),
    ApiKey.DESCRIBE_ACLS: ("acls", "describe_acls"),
    ApiKey.CREATE_ACLS: ("acls", "create_acls"),
    ApiKey.DELETE_ACLS: ("acls", "delete_acls"),
    ApiKey.JOIN_GROUP: ("groups", "join_group"),
    ApiKey.SYNC_GROUP: ("groups", "sync_group"),
    ApiKey.HEARTBEAT: ("groups", "heartbeat"),
    ApiKey.LEAVE_GROUP: ("groups", "leave_group"),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: ("groups", "consumer_group_heartbeat"),
    ApiKey.CONSUMER_GROUP_DESCRIBE: ("groups", "consumer_group_describe"),
    ApiKey.DESCRIBE_GROUPS: ("groups", "describe_groups"),
    ApiKey.LIST_GROUPS: ("groups", "list_groups"),
    ApiKey.DELETE_GROUPS: ("groups", "delete_groups"),
    ApiKey.OFFSET_COMMIT: ("groups", "offset_commit"),
    ApiKey.OFFSET_FETCH: ("groups", "offset_fetch"),
    ApiKey.OFFSET_DELETE: ("groups", "offset_delete"),
    ApiKey.SHARE_GROUP_HEARTBEAT: ("share_groups", "share_group_heartbeat"),
    ApiKey.SHARE_GROUP_DESCRIBE: ("share_groups", "share_group_describe"),
    ApiKey.SHARE_FETCH: ("share_fetch", "share_fetch"),
    ApiKey.SHARE_ACKNOWLEDGE: ("share_fetch", "share_acknowledge"),
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: ("share_groups", "describe_share_group_offsets"),
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: ("share_groups", "alter_share_group_offsets"),
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: ("share_groups", "delete_share_group_offsets"),
    ApiKey.INIT_PRODUCER_ID: ("transactions", "init_producer_id"),
    ApiKey.ADD_PARTITIONS_TO_TXN: ("transactions", "add_partitions_to_txn"),
    ApiKey.ADD_OFFSETS_TO_TXN: ("transactions", "add_offsets_to_txn"),
    ApiKey.TXN_OFFSET_COMMIT: ("transactions", "txn_offset_commit"),
    ApiKey.END_TXN: ("transactions", "end_txn"),
    ApiKey.WRITE_TXN_MARKERS: ("transactions", "write_txn_markers"),
    ApiKey.DESCRIBE_TRANSACTIONS: ("transactions", "describe_transactions"),
    ApiKey.LIST_TRANSACTIONS: ("transactions", "list_transactions"),
}

# When a later request on the same connection may begin, other than when the earlier one is answered (see `session`).
# These have changed all that they change before they wait for anything: then they wait for other members, or for the disk.
AT_FIRST_WAIT = frozenset(
    {
        ApiKey.JOIN_GROUP,
        ApiKey.SYNC_GROUP,
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
        ApiKey.SHARE_GROUP_HEARTBEAT,
        ApiKey.SHARE_ACKNOWLEDGE,
    }
)
# These may begin while others of their kind are under way: reads disturb no reads, and commits are applied in the order
# in which they began.
AMONG_THEMSELVES = frozenset({ApiKey.FETCH, ApiKey.OFFSET_COMMIT})


@cache
def find(api_key: int) -> Handler | None:
    place = _TABLE.get(api_key)
    if place is None:
        return None
    module, function = place
    return cast(Handler, getattr(import_module(f"{__name__}.{module}"), function))


@cache
def served() -> frozenset[int]:
    return frozenset(int(key) for key in _TABLE)
