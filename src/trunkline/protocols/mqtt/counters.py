"""What the MQTT front door counts, for `$SYS` and for metrics. All of them only grow, but `connected`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    connected: int = 0
    connected_maximum: int = 0
    connections: int = 0
    connections_refused: int = 0  # over max_connections, or before a CONNECT was accepted
    messages_received: int = 0
    messages_sent: int = 0
    bytes_received: int = 0
    bytes_sent: int = 0
    dropped: int = 0  # messages: over max_unsent_bytes, max_queued_messages or a client's maximum packet size
    retained_refused: int = 0  # over max_retained_messages or max_retained_bytes
    malformed: int = 0  # packets that closed their connection
    keep_alive_timeouts: int = 0
    taken_over: int = 0
    sessions_expired: int = 0
    refused: int = 0  # publications, subscriptions and sessions over one of the other limits
