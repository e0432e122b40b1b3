"""What a request's handler may know besides the request itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from trunkline.broker.core import BrokerCore
from trunkline.protocols.kafka.fetch_sessions import FetchSessions
from trunkline.security.principal import Principal


class CloseConnection(Exception):
    """A handler asks for the connection to be closed without a response."""


@dataclass(slots=True)
class Context:
    broker: BrokerCore
    client_id: str
    client_host: str
    local_host: str  # ours, as the client reached it
    listener: str  # the one that its connection came in on
    api_key: int
    version: int
    fetch_sessions: FetchSessions
    principal: Principal
    # To be called when everything is done that a later request on this connection could notice, if that is before the
    # answer: the later ones may begin then.
    took_effect: Callable[[], None]

    @property
    def address(self) -> tuple[str, int]:
        """Where this client is told to find the broker: the address that is configured, else the one that it found."""
        host, port = self.broker.listeners[self.listener]
        return host or self.local_host, port
