"""What all MQTT connections of a broker share: the hub, sessions, retained messages, statistics."""

from __future__ import annotations

from trunkline.broker.core import BrokerCore
from trunkline.broker.messaging.mapping import Mapping
from trunkline.broker.state.retained import RetainedMessages
from trunkline.protocols.mqtt.access import Access
from trunkline.protocols.mqtt.exchange_bindings import ExchangeBindings
from trunkline.protocols.mqtt.hub import Hub
from trunkline.protocols.mqtt.limits import MqttLimits
from trunkline.protocols.mqtt.session_journal import SessionJournal
from trunkline.protocols.mqtt.sessions import Sessions
from trunkline.protocols.mqtt.sources import Sources
from trunkline.protocols.mqtt.statistics import Statistics
from trunkline.protocols.mqtt.subscription import Routes


class Service:
    def __init__(self, broker: BrokerCore, limits: MqttLimits, mapping: Mapping, *, anonymous: bool) -> None:
        self.retained = RetainedMessages(
            broker.store, broker.clock, max_messages=limits.max_retained_messages, max_bytes=limits.max_retained_bytes
        )
        sources = Sources(broker, mapping, limits.max_packet_bytes)
        self.hub = Hub(
            broker.store,
            broker.clock,
            limits,
            Routes(mapping, limits),
            sources,
            self.retained,
            SessionJournal(broker.store, broker.clock),
            ExchangeBindings(broker.messaging),
            Access(broker.accounts, anonymous=anonymous),
            broker.complaints,
        )
        self.sessions = Sessions(self.hub)
        sources.changed = self.hub.source_changed
        sources.dropped = self.sessions.source_dropped
        self.statistics = Statistics(self.hub, limits.sys_interval_ms, lambda: broker.unsent_bytes)

    async def start(self) -> None:
        """Fold the internal topics."""
        await self.retained.start()
        await self.sessions.start()

    def tick(self) -> None:
        """What has to be looked at from time to time."""
        self.hub.keep_alive.expire()
        self.sessions.expire()
        self.sessions.mark_seen()
        self.hub.sources.discover()
        self.statistics.tick()

    async def close(self) -> None:
        await self.hub.close()
        self.hub.sources.close()
