"""What all STOMP connections of a broker share: the broker's parts that they call, and remembered envelopes."""

from __future__ import annotations

from trunkline.broker.core import BrokerCore
from trunkline.protocols.stomp.limits import StompLimits
from trunkline.protocols.stomp.mapping import Envelopes


class Service:
    def __init__(self, broker: BrokerCore, limits: StompLimits | None = None) -> None:
        messaging = broker.messaging
        self.limits = limits or StompLimits()
        self.messaging = messaging
        self.clock = broker.clock
        self.complaints = broker.complaints
        self.space = broker.space
        self.access = broker.access
        self.logins = broker.logins
        self.turn = messaging.turn
        self.publishing = messaging.publishing
        self.queues = messaging.queues
        self.topology = messaging.topology
        self.vhosts = messaging.topology.vhosts
        self._envelopes: dict[tuple[str, int], Envelopes] = {}

    def envelopes_of(self, vhost: str, version: int) -> Envelopes:
        """Envelopes remember routes and escaped text, so each virtual host and version has its own."""
        found = self._envelopes.get((vhost, version))
        if found is None:
            found = self._envelopes[vhost, version] = Envelopes(version)
        return found
