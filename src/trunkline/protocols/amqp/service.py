"""What all AMQP connections of a broker share: the broker's parts that they call, direct replies, and remembered envelopes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trunkline.broker.core import BrokerCore
from trunkline.protocols.amqp.limits import AmqpLimits
from trunkline.protocols.amqp.management import Management
from trunkline.protocols.amqp.mapping import Envelopes

if TYPE_CHECKING:
    from trunkline.protocols.amqp.channel import Channel


class Service:
    def __init__(self, broker: BrokerCore, limits: AmqpLimits | None = None) -> None:
        messaging = broker.messaging
        self.messaging = messaging
        self.limits = limits or AmqpLimits()
        self.clock = broker.clock
        self.complaints = broker.complaints
        self.space = broker.space
        self.turn = messaging.turn
        self.publishing = messaging.publishing
        self.queues = messaging.queues
        self.topology = messaging.topology
        self.vhosts = messaging.topology.vhosts
        self.accounts = broker.accounts
        self.management = Management(broker.administration)
        self.cluster_name = broker.cluster_id
        self.replies: dict[str, Channel] = {}  # direct reply-to: address to the channel that waits there
        self._envelopes: dict[str, Envelopes] = {}

    @property
    def blocked(self) -> str | None:
        """Why publications must wait: the broker is short of disk or memory. None: they need not."""
        return self.space.blocked

    def envelopes_of(self, vhost: str) -> Envelopes:
        """Envelopes remember routes, so each virtual host has its own."""
        found = self._envelopes.get(vhost)
        if found is None:
            found = self._envelopes[vhost] = Envelopes()
        return found
