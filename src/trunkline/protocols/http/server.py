"""An HTTP server: what its connections share. Which handler answers is said by whoever makes it."""

from __future__ import annotations

from trunkline.broker.core import BrokerCore
from trunkline.protocols.http.limits import HttpLimits
from trunkline.protocols.http.message import Handler
from trunkline.protocols.http.session import Session
from trunkline.protocols.listener.server import Server
from trunkline.protocols.listener.session import Wire


class HttpServer(Server[Session]):
    """Is the `Service` of its sessions."""

    def __init__(self, broker: BrokerCore, handler: Handler, limits: HttpLimits | None = None) -> None:
        self.handler = handler
        self.limits = limits or HttpLimits()
        self.clock = broker.clock
        self.turn = broker.turn
        self.complaints = broker.complaints
        super().__init__(
            broker,
            "an HTTP connection",
            max_connections=self.limits.max_connections,
            high_water_bytes=self.limits.high_water_bytes,
        )

    def make_session(self, wire: Wire) -> Session:
        return Session(self, wire)

    def tick(self) -> None:
        now_ms = self.clock.monotonic_ms()
        for session in self.all_sessions():
            session.tick(now_ms)
