"""The AMQP server: what its connections share, and who tells them that the broker is short of space."""

from __future__ import annotations

from trunkline.broker.core import BrokerCore
from trunkline.protocols.amqp.limits import AmqpLimits
from trunkline.protocols.amqp.service import Service
from trunkline.protocols.amqp.session import Session
from trunkline.protocols.listener.server import Server
from trunkline.protocols.listener.session import Wire


class AmqpServer(Server[Session]):
    def __init__(self, broker: BrokerCore, limits: AmqpLimits | None = None) -> None:
        self.service = Service(broker, limits)
        super().__init__(
            broker,
            "an AMQP connection",
            max_connections=broker.limits.max_connections,
            high_water_bytes=self.service.limits.write_high_water_bytes,
        )
        self.service.space.subscribe(self._tell_blocked)
        self.service.access.subscribe(self._access_changed)

    def make_session(self, wire: Wire) -> Session:
        return Session(self.service, wire)

    def _tell_blocked(self, reason: str | None) -> None:
        for session in self.all_sessions():
            session.tell_blocked(reason)

    def _access_changed(self) -> None:
        for session in self.all_sessions():
            session.access_changed()

    def tick(self) -> None:
        now_ms = self.broker.clock.monotonic_ms()
        for session in self.all_sessions():
            session.tick(now_ms)
