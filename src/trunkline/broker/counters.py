"""What is counted, in one place: by the edge for all protocols, and by those that tell their clients (MQTT's `$SYS`)."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class MqttCounters:
    """All of them only grow, but `connected`."""

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


@dataclass(slots=True)
class Counters:
    connections: int = 0  # that are open, of all protocols
    unsent_bytes: int = 0  # what slow clients of all protocols have not taken yet
    mqtt: MqttCounters = field(default_factory=MqttCounters)
