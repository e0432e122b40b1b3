"""RabbitMQ's objects: queues, exchanges, bindings, nodes and the overview as its API describes them.

Whole objects: strict readers (rabbitmqadmin v2 is one) fail over a field that is missing. What has no meaning here is what a
RabbitMQ says that has none of it: 0, null or an empty list.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Final
from urllib.parse import quote

from trunkline.broker.administration.node import Node
from trunkline.broker.messaging.queue import Queue
from trunkline.broker.state.arguments import to_json
from trunkline.broker.state.virtual_host import ExchangeInfo, VirtualHost
from trunkline.protocols.management.codec import Json
from trunkline.protocols.management.service import NODE_NAME, Service
from trunkline.version import BEHAVES_LIKE, VERSION

_COLLECTING: Final = {
    "fullsweep_after": 65535,
    "max_heap_size": 0,
    "min_bin_vheap_size": 46422,
    "min_heap_size": 233,
    "minor_gcs": 0,
}
# Our names of listeners, and RabbitMQ's; a listener that it does not have keeps ours.
PROTOCOLS: Final = {
    "amqp": "amqp",
    "amqps": "amqp/ssl",
    "mqtt": "mqtt",
    "mqtts": "mqtt/ssl",
    "mqtt-ws": "http/web-mqtt",
    "mqtt-wss": "https/web-mqtt",
    "stomp": "stomp",
    "stomps": "stomp/ssl",
    "stomp-ws": "http/web-stomp",
    "stomp-wss": "https/web-stomp",
    "http": "http",
    "https": "https",
}


def rate(value: float) -> Json:
    return {"rate": round(value, 3)}


# -- queues --------------------------------------------------------------------------------------------------------------


def queue_document(service: Service, queue: Queue) -> Json:
    stats = queue.cursor.stats()
    rates, name = service.rates, (queue.vhost, queue.name)
    messages = stats.ready + stats.unacked
    size_bytes = stats.ready_bytes + stats.unacked_bytes
    counted = {
        "publish": stats.published,
        "deliver": stats.delivered,
        "deliver_get": stats.delivered,
        "deliver_no_ack": 0,
        "get": 0,
        "get_no_ack": 0,
        "redeliver": stats.redelivered,
        "ack": stats.acknowledged,
    }
    message_stats: Json = {}
    for key, value in counted.items():
        message_stats[key] = value
        message_stats[f"{key}_details"] = rate(rates.of(("queue", key, *name), value) if value else 0.0)
    return {
        "name": queue.name,
        "vhost": queue.vhost,
        "type": str(queue.arguments.get("x-queue-type", "classic")),
        "durable": queue.declaration.durable,
        "auto_delete": queue.auto_delete,
        "exclusive": queue.exclusive,
        "arguments": to_json(queue.arguments),
        "node": NODE_NAME,
        "state": "running",
        "leader": NODE_NAME,
        "members": [NODE_NAME],
        "online": [NODE_NAME],
        "policy": None,
        "operator_policy": None,
        "effective_policy_definition": {},
        "exclusive_consumer_tag": None,
        "single_active_consumer_tag": None,
        "consumers": stats.consumers,
        "consumer_capacity": 1.0 if stats.consumers else 0.0,
        "consumer_utilisation": 1.0 if stats.consumers else 0.0,
        "memory": stats.buffered_bytes,
        "messages": messages,
        "messages_details": rate(0.0),
        "messages_ready": stats.ready,
        "messages_ready_details": rate(0.0),
        "messages_unacknowledged": stats.unacked,
        "messages_unacknowledged_details": rate(0.0),
        "messages_persistent": messages if queue.durable else 0,
        "messages_ram": messages,
        "messages_ready_ram": stats.ready,
        "messages_unacknowledged_ram": stats.unacked,
        "messages_paged_out": 0,
        "messages_delayed": stats.delayed,
        "messages_dead_lettered": stats.dead_lettered,
        "message_bytes": size_bytes,
        "message_bytes_ready": stats.ready_bytes,
        "message_bytes_unacknowledged": stats.unacked_bytes,
        "message_bytes_persistent": size_bytes if queue.durable else 0,
        "message_bytes_ram": stats.buffered_bytes,
        "message_bytes_paged_out": 0,
        "message_stats": message_stats,
        "head_message_timestamp": None,
        "garbage_collection": _COLLECTING,
        "reductions": 0,
        "reductions_details": rate(0.0),
        "storage_version": 2,
        "topic": queue.topic,
        "head_offset": stats.head_offset,
        "end_offset": stats.end_offset,
    }


# -- exchanges and bindings ----------------------------------------------------------------------------------------------


def exchange_document(vhost: str, info: ExchangeInfo) -> Json:
    return {
        "name": info.name,
        "vhost": vhost,
        "type": info.kind,
        "durable": info.durable,
        "auto_delete": info.auto_delete,
        "internal": info.internal,
        "arguments": to_json(info.arguments),
        "policy": None,
        "user_who_performed_action": "",
    }


def all_bindings(vhost: VirtualHost) -> list[Json]:
    """The bindings of a virtual host; those of the default exchange, which every queue has, too."""
    found = [_binding(vhost.name, "", queue, "queue", queue, {}) for queue in vhost.queues]
    for exchange in vhost.exchanges:
        for route in vhost.router.bindings(exchange) if exchange else ():
            kind = "exchange" if route.to_exchange else "queue"
            found.append(
                _binding(vhost.name, exchange, route.destination, kind, route.routing_key, to_json(route.arguments))
            )
    return found


def _binding(vhost: str, source: str, destination: str, kind: str, routing_key: str, arguments: object) -> Json:
    return {
        "source": source,
        "vhost": vhost,
        "destination": destination,
        "destination_type": kind,
        "routing_key": routing_key,
        "arguments": arguments,
        "properties_key": properties_key(routing_key, arguments),
    }


def properties_key(routing_key: str, arguments: object) -> str:
    """What tells a binding from others of the same two ends, for addresses."""
    name = quote(routing_key, safe="") if routing_key else "~"
    if not arguments:
        return name
    digest = hashlib.sha256(json.dumps(arguments, sort_keys=True, default=str).encode()).hexdigest()[:22]
    return f"{'' if not routing_key else name}~{digest}"


# -- connections ---------------------------------------------------------------------------------------------------------


def connection_document(listed: Json) -> Json:
    """A connection of any protocol, as administration lists it, in RabbitMQ's words."""
    details = listed["details"] if isinstance(listed["details"], dict) else {}
    own = details.get("client_properties")
    properties: Json = {"capabilities": {}, **(own if isinstance(own, dict) else {})}
    if "client_id" in details:
        properties["client_id"] = details["client_id"]
    host, port = listed["peer_host"], listed["peer_port"]
    channels = details.get("channel_details")
    return {
        "id": listed["id"],
        "name": f"{host}:{port} -> {listed['listener']}",
        "node": NODE_NAME,
        "protocol": listed["protocol"],
        "listener": listed["listener"],
        "user": listed["user"] or "",
        "user_who_performed_action": listed["user"] or "",
        "vhost": str(details.get("virtual_host", "/")),
        "state": "running",
        "type": "network",
        "connected_at": listed["connected_at_ms"],
        "connected_ms": listed["connected_at_ms"],
        "host": "",
        "port": 0,
        "peer_host": host,
        "peer_port": port,
        "ssl": str(listed["listener"]).endswith(("s", "-tls")) and listed["listener"] not in ("mqtt-ws", "stomp-ws"),
        "channels": details.get("channels", 0),
        "channel_max": details.get("channel_max", 0),
        "frame_max": details.get("frame_max", 0),
        "timeout": details.get("heartbeat_s", 0),
        "auth_mechanism": "",
        "client_properties": properties,
        "channel_details": channels if isinstance(channels, list) else [],
    }


def _connection_details(connection: Json) -> Json:
    return {name: connection[name] for name in ("name", "peer_host", "peer_port")}


def channel_documents(connection: Json) -> list[Json]:
    channels = connection["channel_details"]
    return [
        {
            "number": each["number"],
            "name": f"{connection['name']} ({each['number']})",
            "connection_details": _connection_details(connection),
            "node": NODE_NAME,
            "vhost": connection["vhost"],
            "user": connection["user"],
            "state": "running",
            "confirm": each["confirm"],
            "transactional": each["transactional"],
            "consumer_count": len(each["consumers"]),
            "prefetch_count": each["prefetch_count"],
            "global_prefetch_count": 0,
            "messages_unacknowledged": each["messages_unacknowledged"],
            "messages_unconfirmed": 0,
            "messages_uncommitted": 0,
            "acks_uncommitted": 0,
        }
        for each in (channels if isinstance(channels, list) else [])
    ]


def consumer_documents(connection: Json) -> list[Json]:
    channels = connection["channel_details"]
    return [
        {
            "consumer_tag": consumer["consumer_tag"],
            "active": True,
            "activity_status": "up",
            "ack_required": consumer["ack_required"],
            "exclusive": consumer["exclusive"],
            "prefetch_count": consumer["prefetch_count"],
            "arguments": consumer["arguments"],
            "consumer_timeout": 0,
            "queue": {"name": consumer["queue"], "vhost": consumer["vhost"]},
            "channel_details": {
                "number": channel["number"],
                "name": f"{connection['name']} ({channel['number']})",
                "connection_name": connection["name"],
                "node": NODE_NAME,
                "user": connection["user"],
                "peer_host": connection["peer_host"],
                "peer_port": connection["peer_port"],
            },
        }
        for channel in (channels if isinstance(channels, list) else [])
        for consumer in channel["consumers"]
    ]


# -- the node and the whole ----------------------------------------------------------------------------------------------


def node_document(service: Service, node: Node) -> Json:
    uptime_ms = service.clock.wall_ms() - service.started_ms
    blocked = service.broker.space.blocked
    versions = {"rabbitmq_version": BEHAVES_LIKE, "erlang_version": "0", "erlang_full_version": f"Python {node.python}"}
    zero_rates = dict.fromkeys(("io_read_count", "io_read_bytes", "io_read_avg_time", "io_write_count", "io_write_bytes", "io_write_avg_time", "io_sync_count", "io_sync_avg_time", "io_seek_count", "io_seek_avg_time", "io_reopen_count", "mnesia_ram_tx_count", "mnesia_disk_tx_count", "msg_store_read_count", "msg_store_write_count", "queue_index_read_count", "queue_index_write_count", "gc_num", "gc_bytes_reclaimed", "context_switches", "connection_created", "connection_closed", "channel_created", "channel_closed", "queue_declared", "queue_created", "queue_deleted"), 0)  # fmt: skip
    return {
        "name": NODE_NAME,
        "type": "disc",
        "running": True,
        "being_drained": False,
        **versions,
        "crypto_lib_version": "",
        "product_name": "Trunkline",
        "product_version": VERSION,
        "uptime": max(0, uptime_ms) % 2**32,
        "run_queue": 0,
        "processors": node.processors,
        "os_pid": str(node.pid),
        "fd_total": node.max_open_files,
        "fd_used": node.open_files,
        "fd_used_details": rate(0.0),
        "sockets_total": node.max_open_files,
        "sockets_used": service.broker.counters.connections,
        "sockets_used_details": rate(0.0),
        "proc_total": 1_048_576,
        "proc_used": service.broker.counters.connections,
        "proc_used_details": rate(0.0),
        "mem_used": node.memory_bytes,
        "mem_used_details": rate(0.0),
        "mem_limit": node.memory_total_bytes,
        "mem_alarm": False,
        "mem_calculation_strategy": "rss",
        "disk_free": node.disk_free_bytes,
        "disk_free_details": rate(0.0),
        "disk_free_limit": service.broker.limits.min_free_bytes,
        "disk_free_alarm": blocked is not None,
        "rates_mode": "basic",
        "exchange_types": [
            {"name": name, "description": "", "enabled": True}
            for name in ("direct", "fanout", "headers", "topic", "x-content", "x-type", "x-delayed-message")
        ],
        "auth_mechanisms": [
            {"name": name, "description": "", "enabled": True} for name in ("PLAIN", "AMQPLAIN", "EXTERNAL")
        ],
        "applications": [],
        "contexts": [],
        "config_files": [],
        "log_files": [],
        "db_dir": "",
        "net_ticktime": 60,
        "enabled_plugins": [],
        "cluster_links": [],
        "partitions": [],
        "metrics_gc_queue_length": {},
        "ra_open_file_metrics": {},
        **zero_rates,
        **{f"{name}_details": rate(0.0) for name in zero_rates},
    }


def memory_document(node: Node) -> Json:
    zero = (
        "connection_readers", "connection_writers", "connection_channels", "connection_other", "queue_procs",
        "quorum_queue_procs", "stream_queue_procs", "stream_queue_replica_reader_procs", "stream_queue_coordinator_procs",
        "plugins", "metadata_store", "other_proc", "metrics", "mgmt_db", "mnesia", "quorum_ets", "metadata_store_ets",
        "other_ets", "binary", "msg_index", "code", "atom", "allocated_unused", "reserved_unallocated",
    )  # fmt: skip
    total = {"rss": node.memory_bytes, "allocated": node.memory_bytes, "erlang": node.memory_bytes}
    return {
        "memory": {
            **dict.fromkeys(zero, 0),
            "other_system": node.memory_bytes,
            "strategy": "rss",
            "total": total,
        }
    }


def listener_documents(service: Service) -> list[Json]:
    return [
        {
            "node": NODE_NAME,
            "protocol": PROTOCOLS.get(name, name),
            "ip_address": host or "::",
            "port": port,
            "socket_opts": {},
        }
        for name, (host, port) in service.broker.listeners.items()
    ]


def overview_document(service: Service, queues: Iterable[Queue], node: Node, *, exchanges: int) -> Json:
    totals = dict.fromkeys(
        ("ready", "unacked", "consumers", "published", "delivered", "redelivered", "acknowledged", "dead_lettered"), 0
    )
    count = 0
    for queue in queues:
        count += 1
        stats = queue.cursor.stats()
        for name in totals:
            totals[name] += getattr(stats, name)
    rates = service.rates
    counted = {
        "publish": totals["published"],
        "confirm": totals["published"],
        "deliver": totals["delivered"],
        "deliver_get": totals["delivered"],
        "deliver_no_ack": 0,
        "get": 0,
        "get_no_ack": 0,
        "redeliver": totals["redelivered"],
        "ack": totals["acknowledged"],
        "drop_unroutable": 0,
        "return_unroutable": 0,
        "disk_reads": 0,
        "disk_writes": 0,
    }
    message_stats: Json = {}
    for key, value in counted.items():
        message_stats[key] = value
        message_stats[f"{key}_details"] = rate(rates.of(("all", key), value))
    messages = totals["ready"] + totals["unacked"]
    connections = service.broker.counters.connections
    churn = ("connection_created", "connection_closed", "channel_created", "channel_closed", "queue_declared",
             "queue_created", "queue_deleted")  # fmt: skip
    return {
        "management_version": BEHAVES_LIKE,
        "rates_mode": "basic",
        "sample_retention_policies": {"global": [600], "basic": [600], "detailed": [600]},
        "exchange_types": [],
        "product_version": VERSION,
        "product_name": "Trunkline",
        "rabbitmq_version": BEHAVES_LIKE,
        "cluster_name": service.broker.cluster_id,
        "cluster_tags": {},
        "node_tags": {},
        "default_queue_type": "classic",
        "erlang_version": "0",
        "erlang_full_version": f"Python {node.python}",
        "crypto_lib_version": "",
        "release_series_support_status": "supported",
        "disable_stats": False,
        "is_op_policy_updating_enabled": False,
        "enable_queue_totals": False,
        "message_stats": message_stats,
        "churn_rates": {
            **dict.fromkeys(churn, 0),
            **{f"{name}_details": rate(0.0) for name in churn},
        },
        "queue_totals": {
            "messages": messages,
            "messages_details": rate(0.0),
            "messages_ready": totals["ready"],
            "messages_ready_details": rate(0.0),
            "messages_unacknowledged": totals["unacked"],
            "messages_unacknowledged_details": rate(0.0),
        },
        "object_totals": {
            "connections": connections,
            "channels": 0,
            "queues": count,
            "exchanges": exchanges,
            "consumers": totals["consumers"],
        },
        "statistics_db_event_queue": 0,
        "node": NODE_NAME,
        "listeners": listener_documents(service),
        "contexts": [],
    }
