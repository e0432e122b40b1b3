"""The STOMP server, over TCP and WebSocket."""

from __future__ import annotations

from trunkline.broker.core import BrokerCore
from trunkline.protocols.listener.server import Server
from trunkline.protocols.listener.session import Wire
from trunkline.protocols.stomp.heart_beats import TICK_MS
from trunkline.protocols.stomp.limits import StompLimits
from trunkline.protocols.stomp.service import Service
from trunkline.protocols.stomp.session import Session
from trunkline.protocols.websocket.codec import Subprotocol
from trunkline.protocols.websocket.session import WebSocketSession

_WEBSOCKET_LISTENERS = frozenset({"stomp-ws", "stomp-wss"})
# As RabbitMQ's: text frames, and clients that offer no subprotocol are taken, too.
WEBSOCKET = Subprotocol(("v12.stomp", "v11.stomp", "v10.stomp"), required=False, text=True)
_FRAME_ROOM_BYTES = 1 << 20  # for the head of a frame
AnySession = Session | WebSocketSession[Session]


class StompServer(Server[AnySession]):
    def __init__(self, broker: BrokerCore, limits: StompLimits | None = None) -> None:
        self.service = Service(broker, limits)
        super().__init__(
            broker,
            "a STOMP connection",
            max_connections=broker.limits.max_connections,
            high_water_bytes=self.service.limits.write_high_water_bytes,
            tick_ms=TICK_MS,
        )
        self.service.space.subscribe(self._space_changed)
        self.service.access.subscribe(self._access_changed)

    def make_session(self, wire: Wire) -> AnySession:
        if wire.listener in _WEBSOCKET_LISTENERS:
            largest_bytes = self.service.limits.max_message_bytes + _FRAME_ROOM_BYTES
            return WebSocketSession(wire, WEBSOCKET, largest_bytes, self._make_inside)
        return self._make_inside(wire)

    def _make_inside(self, wire: Wire) -> Session:
        return Session(self.service, wire)

    def _inside(self) -> list[Session]:
        return [each.inside if isinstance(each, WebSocketSession) else each for each in self.all_sessions()]

    def _space_changed(self, reason: str | None) -> None:
        for session in self._inside():
            session.space_changed()

    def _access_changed(self) -> None:
        for session in self._inside():
            session.access_changed()

    def tick(self) -> None:
        now_ms = self.broker.clock.monotonic_ms()
        for session in self._inside():
            session.tick(now_ms)
