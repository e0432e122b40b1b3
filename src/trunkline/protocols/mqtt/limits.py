"""The named limits of the MQTT front door, with their defaults. Each names the reason code that a 5.0 client is told."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MqttLimits:
    max_connections: int = 20_000  # 0x89 server busy
    connect_timeout_ms: int = 10_000  # from the socket to a complete CONNECT; closed without a word
    max_packet_bytes: int = 16 << 20  # 0x95 packet too large
    max_connect_bytes: int = 512 << 10  # of a CONNECT, whose sender nobody knows yet: 0x95
    max_client_id_bytes: int = 1_024  # 0x85 client identifier not valid
    max_keep_alive_s: int = 65_535  # 5.0 clients are told by Server Keep Alive
    max_session_expiry_s: int = 0xFFFF_FFFF  # 5.0 clients are told by Session Expiry Interval
    receive_maximum: int = 1_000  # unacknowledged publications from one client: 0x93
    topic_alias_maximum: int = 100  # per connection, in either direction: 0x94
    max_inflight_messages: int = 16_384  # unacknowledged publications to a client whose session is not kept
    max_stored_inflight_messages: int = 256  # … to a client whose session outlives it; also on disk
    max_queued_messages: int = 1_000  # per session, of topics that are not stored: more are dropped and counted
    max_queued_bytes: int = 256 << 20  # … of all sessions together
    max_queued_retained: int = 1_000_000  # names per session that wait to be sent: more are dropped and counted
    max_unsent_bytes: int = 32 << 20  # per connection: QoS 0 messages beyond it are dropped and counted
    refused_filters: tuple[str, ...] = ()  # subscriptions that one of these covers: 0x80, which does not say why
    max_subscriptions: int = 100_000  # per session: 0x97 quota exceeded
    max_total_subscriptions: int = 4_000_000  # of all sessions: 0x97
    max_sessions: int = 1_000_000  # 0x97
    max_topic_levels: int = 128  # 0x90 topic name invalid, 0x8F topic filter invalid
    max_topic_bytes: int = 4_096  # 0x90, 0x8F
    max_retained_messages: int = 1_000_000  # 0x97
    max_retained_bytes: int = 1 << 30  # 0x97
    max_turn_bytes: int = 64 << 20  # publications read but not yet appended: beyond it nothing more is read
    catch_up_read_bytes: int = 256 << 10  # of the log at a time, for a session that is behind
    sys_interval_ms: int = 10_000  # between two updates of $SYS; 0 for none
