"""The Kafka server: what its connections share."""

from __future__ import annotations

from trunkline.broker.core import BrokerCore
from trunkline.protocols.kafka.codec import SpareBuffers
from trunkline.protocols.kafka.fetch_sessions import FetchSessions
from trunkline.protocols.kafka.session import Session
from trunkline.protocols.kafka.share_sessions import ShareSessions
from trunkline.protocols.listener.server import Server
from trunkline.protocols.listener.session import Wire

_HIGH_WATER_BYTES = 256 * 1024
_MAX_TICK_MS = 30_000


class KafkaServer(Server[Session]):
    def __init__(self, broker: BrokerCore) -> None:
        limits = broker.limits
        super().__init__(
            broker,
            "a Kafka connection",
            max_connections=limits.max_connections,
            high_water_bytes=_HIGH_WATER_BYTES,
            tick_ms=min(_MAX_TICK_MS, limits.max_idle_ms / 4, limits.max_request_ms / 4),
        )
        self.fetch_sessions = FetchSessions()
        self.share_sessions = ShareSessions()
        self._spares = SpareBuffers()

    def make_session(self, wire: Wire) -> Session:
        return Session(self.broker, self.fetch_sessions, self.share_sessions, self._spares, wire)

    def tick(self) -> None:
        now_ms = self.broker.clock.monotonic_ms()
        for session in self.all_sessions():
            session.tick(now_ms)
