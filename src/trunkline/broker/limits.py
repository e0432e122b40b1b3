"""The broker's named limits and settings, with their defaults. Everything that can grow is bounded by one of these."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from trunkline.security.tokens import TokenSettings


class BrokerLimits(NamedTuple):
    max_connections: int = 10_000
    max_open_connections: int = 1_000_000  # of all protocols together: what the process's open files allow
    max_request_bytes: int = 100 * 1024 * 1024  # Kafka's socket.request.max.bytes
    max_request_ms: int = 120_000  # from a request's first byte to its last
    max_input_bytes: int = 512 * 1024 * 1024  # that all clients have begun to send and not finished
    max_in_flight_requests: int = 100  # per connection, counted until the response is sent
    fetch_max_bytes: int = 55 * 1024 * 1024  # Kafka's fetch.max.bytes on a broker
    max_unsent_bytes: int = 512 * 1024 * 1024  # that slow clients, of all protocols, have not taken yet
    max_idle_ms: int = 600_000  # Kafka's connections.max.idle.ms
    max_partitions_per_topic: int = 10_000
    max_fetch_wait_ms: int = 300_000
    min_free_bytes: int = 50 * 1024 * 1024  # of disk; below it publishers of messages wait (RabbitMQ's disk_free_limit)


class LoginSettings(NamedTuple):
    required: bool = False  # else strangers are let in, and may administer the broker from this machine
    name_rules: str = "DEFAULT"  # from a certificate's distinguished name to a user's: see `security.certificates`
    max_reauth_ms: int = 0  # how long a SASL login of Kafka's is good for; 0: for ever
    tokens: TokenSettings | None = None  # whose JSON Web Tokens are taken


class BrokerSettings(NamedTuple):
    node_id: int = 1
    auto_create_topics: bool = True
    num_partitions: int = 1  # of a topic that is created without saying how many
    topic_defaults: Mapping[str, str] = MappingProxyType({})  # the broker's defaults for topic settings
    audit_topic: Mapping[str, str] = MappingProxyType({})  # settings of `__audit` that are not as in `audit`
    super_users: tuple[str, ...] = ()  # names: who stands above all rules
    allow_everyone_if_no_acl: bool = True
    # Log topic -> the filters of the MQTT topics that are written to it, and those of others that these cover, too.
    mqtt_topics: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = MappingProxyType({})
    logins: LoginSettings = LoginSettings()
    limits: BrokerLimits = BrokerLimits()
