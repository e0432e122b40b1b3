"""What all AMQP connections of a broker share: the broker's parts that they call, direct replies, and remembered envelopes."""

from __future__ import annotations

from collections import Counter

from trunkline.broker.core import BrokerCore
from trunkline.broker.messaging.typed_values import FieldValue
from trunkline.broker.state.virtual_host import VirtualHost
from trunkline.protocols.amqp.limits import AmqpLimits
from trunkline.protocols.amqp.management import Management
from trunkline.protocols.amqp.mapping import Envelope, Envelopes
from trunkline.protocols.amqp.replies import Replies, answer_request
from trunkline.protocols.amqp.shared import May, SharedRequests
from trunkline.security.principal import Principal


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
        self.logins = broker.logins
        self.access = broker.access
        self.user_limits = broker.access.book.limits
        self.present: Counter[tuple[str, str]] = Counter()  # connections that are open, by user and by virtual host
        self.channels: Counter[str] = Counter()  # by user
        self.management = Management(broker.administration)
        self.shared = SharedRequests(broker.shared)
        self.cluster_name = broker.cluster_id
        self._listeners = broker.listeners
        self.replies: Replies = {}
        self._envelopes: dict[str, Envelopes] = {}

    @property
    def blocked(self) -> str | None:
        """Why publications must wait: the broker is short of disk or memory. None: they need not."""
        return self.space.blocked

    def listeners(self) -> dict[str, FieldValue]:
        """Where else this broker is to be found: `host:port`, without the host where that is the one asked."""
        return {name: f"{host}:{port}" for name, (host, port) in self._listeners.items()}

    def envelopes_of(self, vhost: str) -> Envelopes:
        """Envelopes remember routes, so each virtual host has its own."""
        found = self._envelopes.get(vhost)
        if found is None:
            found = self._envelopes[vhost] = Envelopes()
        return found

    def manage(self, principal: Principal, vhost: VirtualHost, envelope: Envelope, body: bytes) -> None:
        """Answer a management request, as soon as what it asks for is done."""
        reply = self.management.answer(principal, vhost, body)
        self.messaging.spawn(answer_request(reply, self.replies, envelope))

    def share(self, vhost: VirtualHost, envelope: Envelope, body: bytes, may: May) -> None:
        """Answer a request about a map or a team."""
        self.messaging.spawn(answer_request(self.shared.answer(vhost, body, may), self.replies, envelope))
