"""The MQTT server, over TCP and WebSocket.

One timer ticks for all connections: an idle one must cost nothing. Sessions are folded before the first listener starts.
"""

from __future__ import annotations

from trunkline.broker.core import BrokerCore
from trunkline.broker.messaging.mapping import Mapping
from trunkline.protocols.listener.connection import ServedConnection
from trunkline.protocols.listener.server import Server
from trunkline.protocols.listener.session import Wire
from trunkline.protocols.mqtt.hub import Hub
from trunkline.protocols.mqtt.limits import MqttLimits
from trunkline.protocols.mqtt.session import ClientConnection
from trunkline.protocols.mqtt.statistics import Statistics
from trunkline.protocols.websocket.codec import Subprotocol
from trunkline.protocols.websocket.session import WebSocketSession

_WEBSOCKET_LISTENERS = frozenset({"mqtt-ws", "mqtt-wss"})
WEBSOCKET = Subprotocol(("mqtt", "mqttv3.1"))  # binary, and required [MQTT-6.0.0-1, MQTT-6.0.0-3]
AnySession = ClientConnection | WebSocketSession[ClientConnection]


class MqttServer(Server[AnySession]):
    def __init__(
        self,
        broker: BrokerCore,
        *,
        limits: MqttLimits | None = None,
        mapping: Mapping | None = None,
        anonymous: bool = True,
    ) -> None:
        self.limits = limits or MqttLimits()
        most = self.limits.max_connections
        super().__init__(broker, "an MQTT connection", max_connections=most, limit="mqtt_max_connections")
        self.hub = Hub(broker, self.limits, mapping or Mapping(), anonymous=anonymous)
        self.sessions = self.hub.sessions
        self.statistics = Statistics(self.hub, self.limits.sys_interval_ms, lambda: broker.counters.unsent_bytes)
        self._started = False
        self._unconnected: dict[ServedConnection[AnySession], float] = {}  # since when, oldest first

    async def start(self) -> None:
        """Fold the internal topics; listeners come after that."""
        if not self._started:
            self._started = True
            await self.hub.start()
            self.tick()
            self.start_ticking()

    def make_session(self, wire: Wire) -> AnySession:
        if wire.listener in _WEBSOCKET_LISTENERS:
            return WebSocketSession(wire, WEBSOCKET, self.limits.max_packet_bytes, self._make_client)
        return self._make_client(wire)

    def _make_client(self, wire: Wire) -> ClientConnection:
        return ClientConnection(self.hub, wire, wire.host, wire.certificate)

    async def close(self) -> None:
        await super().close()
        await self.hub.close()

    def tick(self) -> None:
        self.hub.keep_alive.expire()
        self.sessions.expire()
        self.sessions.mark_seen()
        self.hub.sources.discover()
        self.statistics.tick()
        before_ms = self.broker.clock.monotonic_ms() - self.limits.connect_timeout_ms
        while self._unconnected:
            connection, since_ms = next(iter(self._unconnected.items()))
            session = connection.session
            client = session.inside if isinstance(session, WebSocketSession) else session
            settled = client is None or client.settled
            if since_ms > before_ms and not settled:
                break
            del self._unconnected[connection]
            if not settled:
                connection.abort()

    def refusal(self) -> str:
        refusal = super().refusal()
        if refusal:
            self.hub.counters.connections_refused += 1
        return refusal

    def add(self, connection: ServedConnection[AnySession]) -> None:
        super().add(connection)
        self._unconnected[connection] = self.broker.clock.monotonic_ms()
        counters = self.hub.counters
        counters.connections += 1
        counters.connected = len(self.connections)
        counters.connected_maximum = max(counters.connected_maximum, counters.connected)

    def remove(self, connection: ServedConnection[AnySession]) -> None:
        super().remove(connection)
        self._unconnected.pop(connection, None)
        self.hub.counters.connected = len(self.connections)
