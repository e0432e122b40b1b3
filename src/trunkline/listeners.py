"""The table of listeners: which there are, which setting has the port of each, and which server serves it.

A new protocol is one maker in `MAKERS` and one row of `LISTENERS` for each way to reach it. Listeners start in the order of
the table. Those of one protocol share its server, and with it all that its clients share; the servers are closed in the
reverse order of their start.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol

from trunkline.config import Config, ConfigError

if TYPE_CHECKING:
    from trunkline.broker.core import BrokerCore
    from trunkline.broker.messaging.mapping import Mapping as MqttMapping
    from trunkline.protocols.listener.accepting import Secured
    from trunkline.protocols.mqtt.limits import MqttLimits


class ProtocolServer(Protocol):
    """What this table asks of a protocol's server."""

    async def listen(self, host: str, port: int, listener: str, *, tls: Secured | None = None) -> tuple[str, int]:
        """Listen on one more address, under this row's name; returns the one that clients connect to."""

    async def close(self) -> None: ...


class Row(NamedTuple):
    """One listener. `name` is what it is called in the ready file and in `Broker.addresses`."""

    name: str
    protocol: str
    setting: str
    tls: bool = False  # on only where there is a certificate
    messaging: bool = True  # needs queues, exchanges and sessions; a broker for Kafka clients alone does without them


LISTENERS = (
    Row("kafka", "kafka", "kafka_port", messaging=False),
    Row("amqp", "amqp", "amqp_port"),
    Row("mqtt", "mqtt", "mqtt_port"),
    Row("mqtt-ws", "mqtt", "mqtt_ws_port"),
    Row("stomp", "stomp", "stomp_port"),
    Row("stomp-ws", "stomp", "stomp_ws_port"),
    Row("http", "management", "http_port"),
    Row("aws", "aws", "aws_port"),
    Row("kafka-tls", "kafka", "kafka_tls_port", tls=True, messaging=False),
    Row("amqps", "amqp", "amqp_tls_port", tls=True),
    Row("mqtts", "mqtt", "mqtt_tls_port", tls=True),
    Row("mqtt-wss", "mqtt", "mqtt_wss_port", tls=True),
    Row("stomps", "stomp", "stomp_tls_port", tls=True),
    Row("stomp-wss", "stomp", "stomp_wss_port", tls=True),
    Row("https", "management", "https_port", tls=True),
    Row("aws-tls", "aws", "aws_tls_port", tls=True),
)


def wanted(config: Config) -> list[tuple[Row, int]]:
    """The listeners that are on, and the port of each; 0 for a free one."""
    rows = [row for row in LISTENERS if not row.tls or config.tls_certificate is not None]
    return [(row, port) for row in rows if (port := port_of(config, row)) is not None]


def port_of(config: Config, row: Row) -> int | None:
    port: int | None = getattr(config, row.setting)
    return port


# -- the servers; each is imported only if it is needed ------------------------------------------------------------------


def _kafka(core: BrokerCore, config: Config) -> ProtocolServer:
    from trunkline.protocols.kafka.server import KafkaServer

    return KafkaServer(core)


def _amqp(core: BrokerCore, config: Config) -> ProtocolServer:
    from trunkline.protocols.amqp.limits import AmqpLimits
    from trunkline.protocols.amqp.server import AmqpServer

    return AmqpServer(core, AmqpLimits(max_message_bytes=config.max_message_bytes))


def _mqtt(core: BrokerCore, config: Config) -> ProtocolServer:
    from trunkline.protocols.mqtt.server import MqttServer

    return MqttServer(
        core,
        limits=_mqtt_limits(config),
        mapping=_mapping(config),
        anonymous=config.mqtt_anonymous and not core.settings.logins.required,
    )


def _management(core: BrokerCore, config: Config) -> ProtocolServer:
    from trunkline.protocols.management.server import ManagementServer

    return ManagementServer(core, open_to_loopback=config.mqtt_anonymous and not core.settings.logins.required)


def _aws(core: BrokerCore, config: Config) -> ProtocolServer:
    from trunkline.client.http_post import post
    from trunkline.protocols.aws.limits import AwsLimits
    from trunkline.protocols.aws.server import AwsServer

    limits = AwsLimits(max_message_bytes=config.aws_max_message_bytes)
    return AwsServer(
        core,
        limits,
        anonymous=config.aws_anonymous and not core.settings.logins.required,
        advertised_host=config.advertised_host,
        post=post,
    )


def _stomp(core: BrokerCore, config: Config) -> ProtocolServer:
    from trunkline.protocols.stomp.limits import StompLimits
    from trunkline.protocols.stomp.server import StompServer

    return StompServer(core, StompLimits(max_message_bytes=config.max_message_bytes))


MAKERS: Mapping[str, Callable[[BrokerCore, Config], ProtocolServer]] = {
    "kafka": _kafka,
    "amqp": _amqp,
    "mqtt": _mqtt,
    "stomp": _stomp,
    "management": _management,
    "aws": _aws,
}


def _mqtt_limits(config: Config) -> MqttLimits:
    from trunkline.protocols.mqtt.limits import MqttLimits

    return MqttLimits(
        max_connections=config.mqtt_max_connections,
        max_packet_bytes=config.mqtt_max_packet_bytes,
        receive_maximum=config.mqtt_receive_maximum,
        max_inflight_messages=config.mqtt_max_inflight,
        max_stored_inflight_messages=min(config.mqtt_max_inflight, MqttLimits().max_stored_inflight_messages),
        max_queued_messages=config.mqtt_max_queued,
        max_sessions=config.mqtt_max_sessions,
        max_subscriptions=config.mqtt_max_subscriptions,
        max_retained_messages=config.mqtt_max_retained,
        max_topic_levels=config.mqtt_max_topic_levels,
        max_keep_alive_s=config.mqtt_max_keep_alive_s,
        refused_filters=tuple(each.strip() for each in (config.mqtt_refused_filters or "").split(",") if each.strip()),
        sys_interval_ms=config.mqtt_sys_interval_ms,
    )


def _mapping(config: Config) -> MqttMapping:
    from trunkline.broker.messaging.mapping import Mapping, MappingRule

    rules = [MappingRule(topic_filter, topic, key) for topic_filter, (topic, key) in config.mqtt.items()]
    try:
        return Mapping(rules, config.mqtt_topic)
    except ValueError as error:
        raise ConfigError(f"mqtt: {error}") from None
